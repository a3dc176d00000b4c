// SPDX-License-Identifier: Apache-2.0
//! Log of record offsets. A stage logs the record offsets of the files that it writes, so that the staged copy can be
//! opened without a scan.
//!
//! Owns the log (`.penstock/records-NODE-of-NODES.bin`), which is append-only. Each entry describes one file, and is
//! written in one call. If a file has several entries, the last entry counts. An entry is used only if the file still
//! has the recorded size and mtime. Without a readable log, the copy is scanned. Only uncompressed TFRecord and tar
//! files have entries.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use penstock_codec::Codec;
use penstock_record::tar::{Sample, Samples};
use penstock_record::tfrecord::{self, RecordSpan, frame_len};
use penstock_types::{Key, Result, Url};
use xxhash_rust::xxh3::xxh3_64;

use crate::manifest::{Entry, Manifest, OWN_PREFIX, RecordFormat};
use crate::record_index::{IndexWriter, Map, RecordIndex, Span, packed, stamp, unpacked};

/// Size and mtime of a file, by which a later run recognises the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, in ns since the Unix epoch.
    pub mtime_ns: i64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"PENSTRL1");

/// Header size of an entry: magic, checksum of all following bytes, name length, number of records, size, mtime.
const HEADER: usize = 48;

/// Maximum number of folders that are searched for the root of the copy, from the opened folder upwards.
const ANCESTORS: usize = 8;

/// Tolerance for comparing two modification times, in seconds. A listing holds the seconds as a float.
const SAME_S: f64 = 1e-6;

/// Appends the record locations of a finished file to a log. `log` opens the log with the given name, and is only
/// called if the file has record locations. Write errors are ignored, because a missing entry only costs a scan.
pub fn note(log: impl FnOnce(&str) -> Option<File>, node: &str, target: &Key, file: &File, state: FileState) {
    if let Some(spans) = spans_of(file, target)
        && let Some(mut log) = log(&format!("records-{node}.bin"))
    {
        let _ = log.write_all(&entry(target, state, &spans));
    }
}

/// Returns the log entry of a file that was written to `path`. `None` if [`note`] would record nothing for the file.
pub fn log_entry(path: &Path, target: &Key) -> Option<Vec<u8>> {
    use std::os::unix::fs::MetadataExt;
    let file = File::open(path).ok()?;
    let meta = file.metadata().ok()?;
    let mtime_ns = meta.mtime().checked_mul(1_000_000_000)?.checked_add(meta.mtime_nsec())?;
    let state = FileState { size: meta.len(), mtime_ns };
    Some(entry(target, state, &spans_of(&file, target)?))
}

/// Returns the record locations of an uncompressed TFRecord or tar file. `None` for any other name, and for a file that
/// cannot be read in that format.
fn spans_of(file: &File, target: &Key) -> Option<Vec<Span>> {
    let name = target.as_bytes();
    let format = RecordFormat::of_name(name);
    if Codec::of_name(name) != Codec::None || !matches!(format, RecordFormat::TfRecord | RecordFormat::Tar) {
        return None;
    }
    let map = Map::of(file, "a staged file").ok()?;
    let content = map.bytes().get(..usize::try_from(file.metadata().ok()?.len()).ok()?)?;
    // Only headers are read, and no checksum is computed: TFRecords contain their own checksums, and tar samples have
    // none.
    let spans: Result<Vec<Span>> = if format == RecordFormat::TfRecord {
        let span = |record: RecordSpan| Span { offset: record.offset, len: frame_len(record.len), crc: 0 };
        tfrecord::scan(content, "a staged file").map(|records| records.into_iter().map(span).collect())
    } else {
        let span = |sample: Sample<'_>| Span { offset: sample.offset, len: sample.len, crc: 0 };
        Samples::new(content, "a staged file").map(|sample| sample.map(span)).collect()
    };
    spans.ok()
}

fn entry(target: &Key, state: FileState, spans: &[Span]) -> Vec<u8> {
    let key = target.as_bytes();
    let mut rest = Vec::with_capacity(HEADER + key.len() + 16 * spans.len());
    for number in [key.len() as u64, spans.len() as u64, state.size, state.mtime_ns.cast_unsigned()] {
        rest.extend_from_slice(&number.to_le_bytes());
    }
    rest.extend_from_slice(key);
    spans.iter().for_each(|span| rest.extend_from_slice(&packed(span).to_le_bytes()));
    [&MAGIC.to_le_bytes()[..], &xxh3_64(&rest).to_le_bytes(), &rest].concat()
}

/// Log entry of one file.
#[derive(Debug, Clone, Copy)]
struct Noted<'a> {
    size: u64,
    mtime_ns: i64,
    /// Locations of the file's records, 16 bytes each.
    spans: &'a [u8],
}

/// Parses a log into its entries by file name. Skips entries that a killed stage wrote only in part.
fn parse(mut log: &[u8]) -> HashMap<&[u8], Noted<'_>> {
    let mut found = HashMap::new();
    while !log.is_empty() {
        log = match next(log) {
            Some((key, noted, rest)) => {
                found.insert(key, noted);
                rest
            }
            None => log[1..].windows(8).position(|bytes| bytes == MAGIC.to_le_bytes()).map_or(&[], |at| &log[1 + at..]),
        };
    }
    found
}

fn next(log: &[u8]) -> Option<(&[u8], Noted<'_>, &[u8])> {
    let number = |at: usize| log.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let (key, records) = (usize::try_from(number(16)?).ok()?, usize::try_from(number(24)?).ok()?);
    let key_end = HEADER.checked_add(key)?;
    let end = key_end.checked_add(records.checked_mul(16)?)?;
    let rest = log.get(16..end)?;
    if number(0)? != MAGIC || number(8)? != xxh3_64(rest) {
        return None;
    }
    let noted = Noted { size: number(32)?, mtime_ns: number(40)?.cast_signed(), spans: &log[key_end..end] };
    Some((&log[HEADER..key_end], noted, &log[end..]))
}

/// Number of records in all entries of a log; used to fuzz [`parse`].
#[doc(hidden)]
pub fn records_noted(log: &[u8]) -> usize {
    parse(log).values().map(|noted| noted.spans.len() / 16).sum()
}

/// Record-offset logs of a staged copy. The dataset is the root folder of the copy, or a folder in it.
pub struct StagedOffsets {
    logs: Vec<Map>,
    /// Path of the opened folder, relative to the copy's root.
    below: Vec<u8>,
}

impl StagedOffsets {
    /// Opens the logs of a dataset. Returns `None` if the dataset is not a local folder, or if no stage wrote a log for
    /// it.
    pub fn of(manifest: &Manifest) -> Option<Self> {
        let folder = manifest.url.parse::<Url>().ok()?.to_path()?;
        let own = |root: &Path| root.join(std::str::from_utf8(OWN_PREFIX).unwrap_or_default());
        let root = folder.ancestors().take(ANCESTORS).find(|root| own(root).is_dir())?;
        let below = folder.strip_prefix(root).ok()?;
        let mut below = std::os::unix::ffi::OsStrExt::as_bytes(below.as_os_str()).to_vec();
        if !below.is_empty() {
            below.push(b'/');
        }
        let is_log = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("records-") && name.ends_with(".bin")
        };
        let entries = std::fs::read_dir(own(root)).ok()?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_log);
        let logs: Vec<Map> =
            paths.filter_map(|path| Map::of(&File::open(path).ok()?, "a log of records").ok()).collect();
        (!logs.is_empty()).then_some(Self { logs, below })
    }

    /// Writes an index row for each object: from the logs if the object is unchanged, otherwise from the index
    /// `before`.
    pub fn import(
        &self,
        manifest: &Manifest,
        before: Option<&RecordIndex>,
        mut writer: IndexWriter,
    ) -> Result<RecordIndex> {
        let noted: Vec<HashMap<&[u8], Noted<'_>>> = self.logs.iter().map(|log| parse(log.bytes())).collect();
        let objects = &manifest.objects;
        for (object, entry) in objects.iter().enumerate() {
            let key = [self.below.as_slice(), entry.key.as_bytes()].concat();
            let found = noted.iter().filter_map(|log| log.get(key.as_slice())).find(|noted| noted.is_of(entry));
            match (found, before.and_then(|before| before.spans(object as u64))) {
                (Some(noted), _) => {
                    let spans = noted.spans.as_chunks::<16>().0.iter();
                    writer.push(stamp(entry), spans.map(|bits| unpacked(u128::from_le_bytes(*bits))))?;
                }
                (None, Some(spans)) => writer.push(stamp(entry), spans)?,
                (None, None) => writer.push_unknown(entry),
            }
        }
        writer.finish(objects)
    }
}

impl Noted<'_> {
    /// True if the file has not changed since this log entry was written.
    fn is_of(&self, entry: &Entry) -> bool {
        let then = self.mtime_ns as f64 / 1e9;
        self.size == entry.size && entry.modified_s.is_some_and(|now| (now - then).abs() < SAME_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back_and_a_cut_log_gives_what_is_whole() {
        let spans = [Span { offset: 0, len: 20, crc: 7 }, Span { offset: 20, len: 30, crc: 8 }];
        let state = |size| FileState { size, mtime_ns: -5 };
        let mut log = entry(&Key::from("a/b.tar"), state(50), &spans);
        let first = log.len();
        log.extend(entry(&Key::from("c.tar"), state(20), &spans[..1]));
        log.extend(entry(&Key::from("a/b.tar"), state(51), &spans[..1]));
        let found = parse(&log);
        assert_eq!((found.len(), found[&b"a/b.tar"[..]].size, found[&b"c.tar"[..]].mtime_ns), (2, 51, -5));
        assert_eq!(records_noted(&log), 2);
        for cut in 0..first {
            assert_eq!(records_noted(&log[..cut]), 0);
        }
        assert_eq!(records_noted(&log[..first]), 2);
        assert_eq!(records_noted(&[&log[..first - 3], &log].concat()), 2, "a half-written entry is passed over");
    }
}
