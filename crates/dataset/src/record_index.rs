// SPDX-License-Identifier: Apache-2.0
//! Record index: the offset, length and checksum of every record of a dataset, in one memory-mapped file with 16 bytes
//! per record. With the index, Penstock counts records without a scan, and reads a single record without the rest of
//! its object.
//!
//! Owns the index file, which is only a cache. The file stores a stamp of each object's key, size and version. If the
//! stamp of an object differs, the object counts as not indexed. An unreadable file counts as missing. The stored
//! positions can be wrong, so callers must check them against the object's size.

use std::fs::File;
use std::io::{BufWriter, Cursor, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use penstock_store::owned::{self, OwnedFile, Proof, Replace};
use penstock_types::{Error, Result};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::manifest::Entry;

const MAGIC: &[u8; 8] = b"PENSTIX1";
const HEADER: usize = 32;
/// Bytes per row. A row of the object table holds a stamp and the number of the first record. A row of the record table
/// holds an offset (48 bits), a length (48 bits) and a checksum (32 bits).
const ROW: usize = 16;
const WIDE: u64 = 1 << 48;

/// Location of a record in its object's decompressed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Checksum of the record. The record format defines the bytes of the record that the checksum covers.
    pub crc: u32,
}

impl Span {
    /// Byte range of the record.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.len)
    }
}

/// Hash that identifies an object in an index, computed from its key, size and version.
pub fn stamp(entry: &Entry) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&(entry.key.as_bytes().len() as u64).to_le_bytes());
    hash.update(entry.key.as_bytes());
    hash.update(&entry.size.to_le_bytes());
    hash.update(entry.version.as_ref().map_or("", |version| version.0.as_str()).as_bytes());
    hash.digest()
}

/// Memory-mapped bytes of a file.
pub struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is read-only, and this value owns it.
unsafe impl Send for Map {}
// SAFETY: the mapping is read-only, and this value owns it.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the whole file into memory. `place` names the file in errors.
    pub fn of(file: &File, place: &str) -> Result<Self> {
        use std::os::fd::AsRawFd;
        let io = |error: std::io::Error| Error::from_io(place, &error);
        let len = usize::try_from(file.metadata().map_err(io)?.len()).unwrap_or(usize::MAX).max(1);
        // SAFETY: a new mapping of a file does not affect existing memory. The mapped bytes do not change: cache files
        // are only replaced by renaming, and staged files and their logs only grow.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io(std::io::Error::last_os_error()));
        }
        Ok(Self { start: NonNull::new(start.cast()).ok_or_else(|| Error::bug("a mapping at address 0"))?, len })
    }

    /// Bytes of the file. For an empty file, the slice has one byte, which must not be read.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this value owns exactly this mapping, and does not use it afterwards.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

enum Bytes {
    Mapped(Map),
    Held(Vec<u8>),
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map.bytes(),
            Self::Held(bytes) => bytes,
        }
    }
}

/// A record index that was read and validated.
pub struct RecordIndex {
    bytes: Bytes,
    objects: usize,
    path: PathBuf,
    /// Objects of the dataset whose stamps differ from those in the file, in ascending order.
    stale: Vec<u64>,
}

impl std::fmt::Debug for RecordIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordIndex").field("path", &self.path).field("objects", &self.objects).finish_non_exhaustive()
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

pub(super) fn packed(span: &Span) -> u128 {
    u128::from(span.offset) | u128::from(span.len) << 48 | u128::from(span.crc) << 96
}

pub(super) fn unpacked(bits: u128) -> Span {
    Span { offset: bits as u64 % WIDE, len: (bits >> 48) as u64 % WIDE, crc: (bits >> 96) as u32 }
}

impl RecordIndex {
    /// Reads the index at `path`; `None` if the file is missing or unreadable.
    pub fn open(path: &Path, entries: &[Entry]) -> Option<Self> {
        let file = File::open(path).ok()?;
        let map = Map::of(&file, &path.display().to_string()).ok()?;
        Self::of(Bytes::Mapped(map), path, entries)
    }

    /// Parses an index that is held in memory. Returns `None` if the index is invalid.
    pub fn parse(bytes: Vec<u8>, entries: &[Entry]) -> Option<Self> {
        Self::of(Bytes::Held(bytes), Path::new(""), entries)
    }

    fn of(bytes: Bytes, path: &Path, entries: &[Entry]) -> Option<Self> {
        let file = bytes.get();
        let objects = usize::try_from(u64_at(file, 8)).ok()?;
        let records = usize::try_from(u64_at(file, 16)).ok()?;
        let table = objects.checked_add(1)?.checked_mul(ROW)?;
        let whole = HEADER.checked_add(table)?.checked_add(records.checked_mul(ROW)?)?;
        if file.get(..8)? != MAGIC || whole != file.len() || objects != entries.len() {
            return None;
        }
        let table = file.get(HEADER..HEADER + table)?;
        if u64_at(file, 24) != xxh3_64(table) {
            return None;
        }
        let first = |object: usize| u64_at(table, object * ROW + 8);
        let ascends = first(0) == 0 && (0..objects).all(|object| first(object) <= first(object + 1));
        if !ascends || first(objects) != records as u64 {
            return None;
        }
        let stale = (0..objects).filter(|&object| u64_at(table, object * ROW) != stamp(&entries[object]));
        let stale = stale.map(|object| object as u64).collect();
        Some(Self { bytes, objects, path: path.to_owned(), stale })
    }

    /// Path of the index file; empty for an index in memory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the index has every object of the dataset in its current version.
    pub fn is_complete(&self) -> bool {
        self.stale.is_empty()
    }

    fn range(&self, object: u64) -> Option<std::ops::Range<u64>> {
        if object >= self.objects as u64 || self.stale.binary_search(&object).is_ok() {
            return None;
        }
        let at = HEADER + object as usize * ROW + 8;
        Some(u64_at(self.bytes.get(), at)..u64_at(self.bytes.get(), at + ROW))
    }

    /// Number of records in an object. `None` if the object changed after it was indexed.
    pub fn count(&self, object: u64) -> Option<u64> {
        self.range(object).map(|range| range.end - range.start)
    }

    /// Locations of an object's records. `None` if the object changed after it was indexed.
    pub fn spans(&self, object: u64) -> Option<Vec<Span>> {
        (0..self.count(object)?).map(|record| self.span(object, record)).collect()
    }

    /// Location of one record. `None` if the object changed after it was indexed, or has no such record.
    pub fn span(&self, object: u64, record: u64) -> Option<Span> {
        let range = self.range(object)?;
        let number = range.start.checked_add(record).filter(|number| *number < range.end)?;
        let at = HEADER + (self.objects + 1) * ROW + number as usize * ROW;
        let bits = self.bytes.get().get(at..)?.first_chunk::<16>()?;
        Some(unpacked(u128::from_le_bytes(*bits)))
    }
}

/// Destination of a new index: a temporary file, or memory if the index is not stored.
enum Sheet {
    File { file: BufWriter<File>, temporary: OwnedFile, folder: Arc<OwnedFd>, path: PathBuf },
    Memory(Cursor<Vec<u8>>),
}

impl Sheet {
    fn write(&mut self, at: Option<u64>, bytes: &[u8]) -> Result<()> {
        fn put(to: &mut (impl Write + Seek), at: Option<u64>, bytes: &[u8]) -> std::io::Result<()> {
            if let Some(at) = at {
                to.seek(SeekFrom::Start(at))?;
            }
            to.write_all(bytes)
        }
        match self {
            Self::File { file, path, .. } => {
                put(file, at, bytes).map_err(|error| Error::from_io(path.display().to_string(), &error))
            }
            Self::Memory(memory) => put(memory, at, bytes).map_err(|error| Error::from_io("an index", &error)),
        }
    }
}

/// Writes an index, one object after another.
pub struct IndexWriter {
    sheet: Sheet,
    table: Vec<u8>,
    objects: usize,
    records: u64,
}

impl IndexWriter {
    /// Starts an index file of `objects` objects. [`IndexWriter::finish`] moves the file to `path`.
    pub fn create(path: &Path, objects: usize) -> Result<Self> {
        let place = path.display().to_string();
        let io = |error: std::io::Error| Error::from_io(&place, &error);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        let (folder, name) = owned::parent_of(path).map_err(io)?;
        let temporary = OwnedFile::create(&folder, &format!("{name}.tmp-")).map_err(io)?;
        let file = BufWriter::new(temporary.file().try_clone().map_err(io)?);
        Self::on(Sheet::File { file, temporary, folder, path: path.to_owned() }, objects)
    }

    /// Starts an index of `objects` objects that is only held in memory.
    pub fn in_memory(objects: usize) -> Result<Self> {
        Self::on(Sheet::Memory(Cursor::default()), objects)
    }

    fn on(mut sheet: Sheet, objects: usize) -> Result<Self> {
        sheet.write(Some((HEADER + (objects + 1) * ROW) as u64), &[])?;
        Ok(Self { sheet, table: Vec::new(), objects, records: 0 })
    }

    /// Adds the next object and the locations of its records.
    pub fn push(&mut self, stamp: u64, spans: impl IntoIterator<Item = Span>) -> Result<()> {
        self.row(stamp);
        for span in spans {
            if span.offset >= WIDE || span.len >= WIDE {
                return Err(Error::Unsupported {
                    what: "an offset or length of 2^48 bytes or more".to_owned(),
                    by: "the record index".to_owned(),
                });
            }
            self.sheet.write(None, &packed(&span).to_le_bytes())?;
            self.records += 1;
        }
        Ok(())
    }

    /// Adds the next object, marked as not indexed.
    pub fn push_unknown(&mut self, entry: &Entry) {
        self.row(!stamp(entry));
    }

    fn row(&mut self, stamp: u64) {
        self.table.extend_from_slice(&stamp.to_le_bytes());
        self.table.extend_from_slice(&self.records.to_le_bytes());
    }

    /// Moves the index to its final path and opens it.
    pub fn finish(mut self, entries: &[Entry]) -> Result<RecordIndex> {
        self.row(0);
        if self.table.len() != (self.objects + 1) * ROW {
            return Err(Error::bug("an index was finished before its last object"));
        }
        let numbers = [self.objects as u64, self.records, xxh3_64(&self.table)];
        let header = [&MAGIC[..], &numbers.map(u64::to_le_bytes).concat()].concat();
        self.sheet.write(Some(0), &header)?;
        self.sheet.write(None, &self.table)?;
        let opened = match &mut self.sheet {
            Sheet::Memory(memory) => RecordIndex::parse(std::mem::take(memory).into_inner(), entries),
            Sheet::File { file, temporary, folder, path } => {
                let mut put = || -> std::io::Result<()> {
                    file.flush()?;
                    file.get_ref().sync_all()?;
                    let name = path.file_name().unwrap_or_default().as_bytes();
                    Ok(temporary.rename(&*folder, name, Replace::Existing(Proof::Named))?)
                };
                put().map_err(|error| Error::from_io(path.display().to_string(), &error))?;
                RecordIndex::open(path, entries)
            }
        };
        opened.ok_or_else(|| Error::bug("an index that was just written cannot be read"))
    }
}

impl Drop for IndexWriter {
    fn drop(&mut self) {
        if let Sheet::File { temporary, .. } = &self.sheet {
            // After `finish`, the file has its final name and this call does nothing.
            temporary.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_types::Key;
    use proptest::prelude::*;

    fn entries(sizes: &[u64]) -> Vec<Entry> {
        let named = |(at, &size): (usize, &u64)| Entry::new(Key::from(&*format!("o{at:03}.tar")), size);
        sizes.iter().enumerate().map(named).collect()
    }

    fn spans() -> impl Strategy<Value = Vec<Vec<Span>>> {
        let span = (0..WIDE, 0..WIDE, any::<u32>()).prop_map(|(offset, len, crc)| Span { offset, len, crc });
        prop::collection::vec(prop::collection::vec(span, 0..5), 0..6)
    }

    proptest! {
        #[test]
        fn prop_index_gives_back_what_was_written(objects in spans(), cut in 0usize..400, flip in 0usize..400) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("deep/a.idx");
            let entries = entries(&vec![7; objects.len()]);
            let mut writer = IndexWriter::create(&path, objects.len()).unwrap();
            for (entry, spans) in entries.iter().zip(&objects) {
                writer.push(stamp(entry), spans.iter().copied()).unwrap();
            }
            writer.finish(&entries).unwrap();
            let index = RecordIndex::open(&path, &entries).unwrap();
            prop_assert!(index.is_complete());
            for (object, spans) in objects.iter().enumerate() {
                prop_assert_eq!(index.count(object as u64), Some(spans.len() as u64));
                let read: Vec<Span> = (0..).map_while(|record| index.span(object as u64, record)).collect();
                prop_assert_eq!(&read, spans);
            }
            // A damaged index is either rejected, or safe to read.
            let mut bytes = std::fs::read(&path).unwrap();
            let cut = cut.min(bytes.len());
            if cut < bytes.len() {
                prop_assert!(RecordIndex::parse(bytes[..cut].to_vec(), &entries).is_none());
            }
            let at = flip % bytes.len();
            bytes[at] ^= 1;
            if let Some(index) = RecordIndex::parse(bytes, &entries) {
                (0..objects.len() as u64).for_each(|object| assert!(index.span(object, u64::MAX).is_none()));
            }
        }
    }

    #[test]
    fn an_object_that_changed_is_as_if_it_were_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.idx");
        let before = entries(&[10, 20, 30]);
        let mut writer = IndexWriter::create(&path, 3).unwrap();
        for entry in &before {
            writer.push(stamp(entry), [Span { offset: 0, len: entry.size, crc: 1 }]).unwrap();
        }
        writer.finish(&before).unwrap();
        let index = RecordIndex::open(&path, &entries(&[10, 21, 30])).unwrap();
        assert_eq!((index.is_complete(), index.count(1), index.span(1, 0)), (false, None, None));
        assert_eq!(index.span(2, 0), Some(Span { offset: 0, len: 30, crc: 1 }));
        assert!(RecordIndex::open(&path, &entries(&[10, 20])).is_none());
        assert!(RecordIndex::open(&folder.path().join("none"), &before).is_none());
    }

    #[test]
    fn index_in_memory_returns_its_entries() {
        let entries = entries(&[10, 20]);
        let mut writer = IndexWriter::in_memory(2).unwrap();
        writer.push_unknown(&entries[0]);
        writer.push(stamp(&entries[1]), [Span { offset: 3, len: 4, crc: 0 }]).unwrap();
        let index = writer.finish(&entries).unwrap();
        assert_eq!((index.is_complete(), index.count(0), index.count(1)), (false, None, Some(1)));
        assert_eq!(index.span(1, 0), Some(Span { offset: 3, len: 4, crc: 0 }));
    }

    #[test]
    fn a_writer_that_stops_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        drop(IndexWriter::create(&folder.path().join("a.idx"), 3).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
