// SPDX-License-Identifier: Apache-2.0
//! Format detection by content, for a dataset whose object names show no format. Selects the objects that probably
//! contain data, and detects the format of the first selected object that is not empty.
//!
//! For an unsupported format, the error describes the object's suffix and first bytes. An object of an unsupported
//! format is never reported as damaged.

use std::collections::HashMap;

use penstock_codec::{Codec, StreamDecoder};
use penstock_record::magic;
use penstock_types::{Deadline, Error, Result, with_separators};

use super::{FormatSpec, unnamed_hdf5};
use crate::source::Source;
use penstock_dataset::key_names::last_component;
use penstock_dataset::manifest::{Entry, Manifest};

/// Number of stored bytes that are read from the object whose format is detected.
const HEAD: u64 = 16 << 10;

/// Suffixes of the audio formats that Penstock decodes.
const AUDIO: [&str; 5] = [".wav", ".flac", ".ogg", ".oga", ".mp3"];

/// Maximum length of a suffix in bytes, with its dot. A longer suffix counts as part of the name.
const MAX_SUFFIX: usize = 12;

/// True for a file that does not contain data: a README, a licence, or a name that Hadoop treats as hidden
/// (`.DS_Store`, `_SUCCESS`, `_temporary/0/x`).
fn is_aside(entry: &Entry) -> bool {
    let key = entry.key.as_bytes();
    let base = last_component(key).to_ascii_lowercase();
    key.split(|byte| *byte == b'/').any(|part| part.starts_with(b".") || part.starts_with(b"_"))
        || [&b"readme"[..], b"license", b"licence"].iter().any(|name| base.starts_with(name))
}

/// Returns the suffix of an object's name in lower case, without a codec suffix. Returns an empty suffix if the name
/// has none, or if the suffix is a number (`part.00003`).
fn suffix(entry: &Entry) -> String {
    let base = last_component(entry.logical_name());
    let dot = base.iter().rposition(|byte| *byte == b'.').filter(|&dot| dot > 0);
    let suffix = dot.map_or(&[][..], |dot| &base[dot..]).to_ascii_lowercase();
    let is_suffix =
        suffix.len() <= MAX_SUFFIX && suffix.get(1..).is_some_and(|rest| !rest.iter().all(u8::is_ascii_digit));
    if is_suffix { String::from_utf8_lossy(&suffix).into_owned() } else { String::new() }
}

/// Returns the suffix of an object's name. Returns `audio` for all audio suffixes, because a folder may contain several
/// of them.
fn group(entry: &Entry) -> String {
    let suffix = suffix(entry);
    if AUDIO.contains(&suffix.as_str()) { "audio".to_owned() } else { suffix }
}

/// Groups the objects by suffix, and keeps only the group with the most bytes. Returns the number of removed objects.
///
/// Returns `Unsupported` if no object contains data.
pub fn keep_likely(manifest: &mut Manifest) -> Result<usize> {
    let all = manifest.objects.len();
    let mut groups: HashMap<String, (u64, usize)> = HashMap::new();
    for entry in manifest.objects.iter().filter(|entry| !is_aside(entry)) {
        let sum = groups.entry(group(entry)).or_default();
        *sum = (sum.0 + entry.size, sum.1 + 1);
    }
    let largest = groups.into_iter().max_by(|(a, x), (b, y)| (x, b).cmp(&(y, a)));
    let Some((likely, _)) = largest else {
        let first = manifest.objects.first().map(|entry| entry.key.to_string()).unwrap_or_default();
        let (url, all) = (&manifest.url, with_separators(all as u64));
        return Err(unread(format!("a folder without data ({url}{first}, the first of {all} objects)")));
    };
    manifest.objects.retain(|entry| !is_aside(entry) && group(entry) == likely);
    Ok(all - manifest.objects.len())
}

fn unread(what: String) -> Error {
    let by = "penstock.open, which reads TFRecord, WebDataset tar, MDS, Parquet, Arrow IPC, JSON lines, CSV, npy, npz, Zarr, \
              HDF5, JPEG, PNG, WebP, TIFF and audio";
    Error::Unsupported { what, by: by.to_owned() }
}

impl Source {
    /// Detects the format of the first non-empty object from its content. Returns TFRecord if all objects are empty.
    ///
    /// # Errors
    /// `Unsupported` for an unknown format, with the suffix and a description of the content.
    pub async fn sniff_format(&self, deadline: Deadline) -> Result<FormatSpec> {
        let objects = &self.manifest().objects;
        let Some(at) = objects.iter().position(|entry| entry.size > 0) else { return Ok(FormatSpec::TFRECORD) };
        let (object, place) = (at as u64, self.place(at as u64));
        let head = self.head(object, HEAD, deadline).await?;
        let named = self.codec(object);
        let compression = if named == Codec::None { Codec::sniff(&head) } else { Codec::None };
        let codec = if named == Codec::None { compression } else { named };
        let content = match magic::describe(&head) {
            Some(magic::TFRECORD) if named == Codec::None => return Ok(FormatSpec::TFRECORD),
            _ => first_bytes(codec, &head, &place),
        };
        let kind = magic::describe(&content);
        if let Some(magic::TFRECORD) = kind {
            return Ok(FormatSpec::TfRecord { compression });
        }
        let known = match kind {
            Some(magic::TAR) => Some(FormatSpec::Tar {}),
            Some(magic::NPY) => Some(FormatSpec::Npy { rows: false }),
            Some(magic::NPZ) => Some(FormatSpec::Npz {}),
            Some(magic::PARQUET) => Some(FormatSpec::Parquet {}),
            Some(magic::ARROW_FILE | magic::ARROW_STREAM) => Some(FormatSpec::Arrow {}),
            Some(magic::JSON) if content.trim_ascii_start().starts_with(b"{") => Some(FormatSpec::Jsonl {}),
            Some(magic::JPEG | magic::PNG | magic::TIFF | magic::WEBP) => Some(FormatSpec::Images { labels: None }),
            Some(magic::HDF5) => return Err(unnamed_hdf5(&place)),
            Some(magic::WAV | magic::FLAC | magic::OGG | magic::MP3) => Some(FormatSpec::Files {}),
            // Most MP3 files begin with an audio frame, which has no magic number.
            None if suffix(&objects[at]) == ".mp3" => Some(FormatSpec::Files {}),
            _ => None,
        };
        // If the name has no codec suffix, only TFRecords are decompressed.
        if let Some(known) = known.filter(|_| compression == Codec::None) {
            return Ok(known);
        }
        let (all, suffix) = (with_separators(objects.len() as u64), suffix(&objects[at]));
        let kind = match (kind, compression) {
            (Some(kind @ (magic::MP4 | magic::MATROSKA | magic::AVI)), Codec::None) => {
                format!("{kind} (penstock.video.open reads its clips)")
            }
            (Some(kind), Codec::None) => kind.to_owned(),
            (Some(kind), codec) => {
                format!("{kind} compressed by {codec}, without the suffix `{}` in its name", codec.suffix())
            }
            (None, _) if [".sgy", ".segy"].contains(&suffix.as_str()) => {
                "SEG-Y (convert it to Zarr: penstock array convert SOURCE.sgy TARGET.zarr)".to_owned()
            }
            (None, _) => "an unknown format".to_owned(),
        };
        let names = if suffix.is_empty() { "no known suffix".to_owned() } else { format!("the suffix `{suffix}`") };
        Err(unread(format!("{kind} ({place}, the first of {all} objects with {names})")))
    }
}

/// Decompresses the start of an object. Stops at the first bytes that cannot be decompressed.
fn first_bytes(codec: Codec, head: &[u8], place: &str) -> Vec<u8> {
    let mut content = Vec::new();
    let ended = StreamDecoder::new(codec, u64::MAX, place).push(head, &mut |bytes| {
        content.extend_from_slice(&bytes[..bytes.len().min(magic::HEAD_LEN)]);
        if content.len() < magic::HEAD_LEN {
            Ok(())
        } else {
            Err(Error::bug("decompression was stopped after the first bytes"))
        }
    });
    drop(ended);
    content
}

#[cfg(test)]
mod tests {
    use penstock_types::Key;

    use super::*;

    fn kept(names: &[(&str, u64)]) -> (Vec<String>, usize) {
        let entries = names.iter().map(|(name, size)| Entry::new(Key::from(*name), *size)).collect();
        let mut manifest = Manifest::new("memory://d/".to_owned(), entries);
        let removed = keep_likely(&mut manifest).unwrap();
        (manifest.objects.iter().map(|entry| entry.key.to_string()).collect(), removed)
    }

    #[test]
    fn likely_objects_are_those_of_the_suffix_with_most_bytes() {
        let shards =
            [("README.md", 900), ("_SUCCESS", 0), ("a/.DS_Store", 6000), ("part.00000", 10), ("part.00001", 10)];
        assert_eq!(kept(&shards), (vec!["part.00000".to_owned(), "part.00001".to_owned()], 3));
        assert_eq!(kept(&[("a.arrow", 500), ("info.json", 50), ("state.json", 50)]).0, ["a.arrow"]);
        assert_eq!(kept(&[("a.jsonl.gz", 5), ("b.JSONL", 5), ("c.md", 9)]).1, 1);
        // If two suffixes have equal bytes, the one with more objects is kept; then the first one.
        assert_eq!(kept(&[("a.md", 6), ("b.bin", 3), ("c.bin", 3)]).1, 1);
        assert_eq!(kept(&[("a.md", 5), ("b.bin", 5)]).0, ["b.bin"]);
        let mut aside = Manifest::new("memory://d/".to_owned(), vec![Entry::new(Key::from(".DS_Store"), 9)]);
        let error = keep_likely(&mut aside).unwrap_err().to_string();
        let want =
            "a folder without data (memory://d/.DS_Store, the first of 1 objects) is not supported by penstock.open";
        assert!(error.starts_with(want), "{error}");
    }
}
