// SPDX-License-Identifier: Apache-2.0
//! Sidecar indexes: imports record indexes that other programs wrote for a dataset. Supports DALI's `.idx` files for
//! TFRecords and tars, Megatron-LM's `.idx` files, and the shard list of `wids` (random access for WebDataset).
//!
//! Owns the assignment of indexes to objects, and their conversion to a record index of Penstock. An index that cannot
//! be read or does not match its object is ignored, with a note; the object then counts as unindexed. Indexes of
//! compressed objects are ignored, because their offsets refer to decompressed bytes, which cannot be read by range.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt, stream};
use penstock_codec::{Codec, strip_suffix};
use penstock_record::megatron;
use penstock_record::sidecar_index::{parse_shard_list, parse_tar_index, parse_tfrecord_index};
use penstock_record::tfrecord::frame_len;
use penstock_store::{ObjectRef, Store, read_whole};
use penstock_types::{Deadline, Error, Key, Result, with_separators};

use super::format::FormatSpec;
use super::source::Source;
use penstock_dataset::key_names::{INDEX_SUFFIX, SHARD_LIST, is_index_name, last_component};
use penstock_dataset::manifest::{Entry, Manifest};
use penstock_dataset::record_index::Span;
use penstock_dataset::record_index::{IndexWriter, RecordIndex, stamp};

/// Maximum size of an object's index, in bytes. An index of 10^8 records has 2 GB.
const MAX_BYTES: u64 = 4 << 30;

/// Maximum number of indexes that are read concurrently.
const IN_FLIGHT: usize = 64;

/// Maximum number of consecutive bytes of a tar that the index may omit. The index omits folders, long names and, at
/// the end, blocks of zeros (GNU tar and Python pad a tar to a multiple of 10,240 bytes).
const MAX_GAP: u64 = 64 << 10;

/// Maximum number of notes. A few notes are enough, even if 10^6 indexes have the same defect.
const MAX_NOTES: usize = 8;

/// Indexes that other programs wrote. They are stored beside the objects or in a separate folder.
#[derive(Debug)]
pub struct SidecarIndexes {
    store: Arc<dyn Store>,
    base: Key,
    manifest: Manifest,
}

/// Result of importing the indexes.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    /// Number of objects whose record positions are now known.
    pub indexed: usize,
    /// Record counts of all objects, if a shard list contains them.
    pub counts: Option<Vec<u64>>,
}

/// Returns the indexes in a listing: `.idx` files whose names match another object, and shard lists. Returns `None` if
/// the listing contains neither.
pub fn indexes_in(listing: &Manifest) -> Option<Manifest> {
    let mut objects: Vec<Entry> =
        listing.objects.iter().filter(|entry| is_index_name(entry.key.as_bytes())).cloned().collect();
    if objects.iter().any(|entry| entry.key.as_bytes().ends_with(INDEX_SUFFIX)) {
        let data = listing.objects.iter().filter(|entry| !entry.key.as_bytes().ends_with(INDEX_SUFFIX));
        let named: HashSet<Vec<u8>> = data.flat_map(|entry| names_of(entry.key.as_bytes())).collect();
        objects.retain(|entry| !entry.key.as_bytes().ends_with(INDEX_SUFFIX) || named.contains(entry.key.as_bytes()));
    }
    (!objects.is_empty()).then(|| Manifest { objects, ..Manifest::new(listing.url.clone(), Vec::new()) })
}

/// Removes the index files of objects from a listing.
pub fn without_indexes(listing: &mut Manifest, indexes: &Manifest) {
    let named: HashSet<&[u8]> = indexes.objects.iter().map(|entry| entry.key.as_bytes()).collect();
    listing
        .objects
        .retain(|entry| !entry.key.as_bytes().ends_with(INDEX_SUFFIX) || !named.contains(entry.key.as_bytes()));
}

/// Possible index names of an object. For `a.tfrecord`, they are `a.tfrecord.idx` and `a.idx`.
pub(crate) fn names_of(key: &[u8]) -> [Vec<u8>; 2] {
    let logical = strip_suffix(key);
    let base = logical.len() - last_component(logical).len();
    let stem = logical[base..].iter().rposition(|&byte| byte == b'.').filter(|&dot| dot > 0);
    let stem = stem.map_or(logical, |dot| &logical[..base + dot]);
    [[logical, INDEX_SUFFIX].concat(), [stem, INDEX_SUFFIX].concat()]
}

impl SidecarIndexes {
    /// Creates the sidecar indexes in `manifest`. Their keys are relative to `base` in `store`.
    pub fn new(store: Arc<dyn Store>, base: Key, manifest: Manifest) -> Self {
        Self { store, base, manifest }
    }

    /// Imports the indexes. Writes the record positions of each object of `source` to `writer`, and the problems of
    /// ignored indexes to `notes`. The index of an object that `before` contains is not read. Returns an error if the
    /// store fails.
    pub(crate) async fn import(
        &self,
        source: &Source,
        before: Option<&RecordIndex>,
        writer: &mut IndexWriter,
        notes: &mut Vec<String>,
        deadline: Deadline,
    ) -> Result<Imported> {
        let objects = &source.manifest().objects;
        let mut imported = Imported::default();
        let named: HashMap<&[u8], &Entry> =
            self.manifest.objects.iter().map(|entry| (entry.key.as_bytes(), entry)).collect();
        // A separate folder may contain the indexes without the subfolders of their objects.
        let mut flat: HashMap<&[u8], Option<&Entry>> = HashMap::new();
        if self.manifest.url != source.manifest().url {
            for entry in &self.manifest.objects {
                flat.entry(last_component(entry.key.as_bytes()))
                    .and_modify(|known| *known = None)
                    .or_insert(Some(entry));
            }
        }
        let index_of = |entry: &Entry| {
            let names = names_of(entry.key.as_bytes());
            let own = names.iter().find_map(|name| named.get(name.as_slice()).copied());
            own.or_else(|| names.iter().find_map(|name| flat.get(last_component(name)).copied().flatten()))
        };
        let mut found = stream::iter(0..objects.len() as u64)
            .map(|object| {
                let index = index_of(source.entry(object)).filter(|_| source.codec(object) == Codec::None);
                let kept = before.and_then(|before| before.spans(object));
                async move {
                    match index {
                        _ if kept.is_some() => Ok(kept),
                        Some(index) => self.spans(source, object, index, deadline).await.map(Some),
                        None => Ok(None),
                    }
                }
            })
            .buffered(IN_FLIGHT);
        for entry in objects {
            match found
                .next()
                .await
                .ok_or_else(|| Error::bug("an object has no result from the import of its sidecar index"))?
            {
                Ok(Some(spans)) => {
                    writer.push(stamp(entry), spans)?;
                    imported.indexed += 1;
                }
                Ok(None) => writer.push_unknown(entry),
                Err(error @ (Error::Corrupt { .. } | Error::Unsupported { .. } | Error::NotFound { .. })) => {
                    note(notes, error.to_string());
                    writer.push_unknown(entry);
                }
                Err(error) => return Err(error),
            }
        }
        drop(found);
        if imported.indexed < objects.len() && matches!(source.format(), FormatSpec::Tar {}) {
            let list = self.manifest.objects.iter().find(|entry| last_component(entry.key.as_bytes()) == SHARD_LIST);
            if let Some(list) = list {
                imported.counts = self.shard_counts(source, list, notes, deadline).await?;
            }
        }
        Ok(imported)
    }

    /// Reads the record positions of an object from its index.
    async fn spans(&self, source: &Source, object: u64, index: &Entry, deadline: Deadline) -> Result<Vec<Span>> {
        let text = self.read(index, deadline).await?;
        let (size, place) = (source.entry(object).size, self.place(index));
        match source.format() {
            FormatSpec::TfRecord { .. } => {
                let spans = parse_tfrecord_index(&text, size, &place)?;
                Ok(spans.iter().map(|span| Span { offset: span.offset, len: frame_len(span.len), crc: 0 }).collect())
            }
            FormatSpec::Tar {} => tar_spans(&text, size, &place),
            FormatSpec::Megatron { dtype, .. } => {
                let have = megatron::header(&text, &place)?.dtype;
                if dtype.as_deref().is_some_and(|dtype| dtype != have.name()) {
                    let want = dtype.as_deref().unwrap_or_default();
                    return Err(Error::corrupt(
                        place,
                        format!("declares tokens of type {have}, but the first index declares {want}"),
                    ));
                }
                let documents = megatron::documents(&text, size, &place)?;
                let span =
                    |range: std::ops::Range<u64>| Span { offset: range.start, len: range.end - range.start, crc: 0 };
                Ok(documents.into_iter().map(span).collect())
            }
            other => Err(Error::Unsupported { what: place, by: format!("the format {}", other.name()) }),
        }
    }

    /// Reads the record counts from a shard list. Returns `None` if the list lacks the count of an object.
    async fn shard_counts(
        &self,
        source: &Source,
        list: &Entry,
        notes: &mut Vec<String>,
        deadline: Deadline,
    ) -> Result<Option<Vec<u64>>> {
        let place = self.place(list);
        let shards = match parse_shard_list(&self.read(list, deadline).await?, &place) {
            Ok(shards) => shards,
            Err(error) => {
                note(notes, error.to_string());
                return Ok(None);
            }
        };
        let known: HashMap<&[u8], _> =
            shards.iter().map(|shard| (last_component(shard.url.as_bytes()), shard)).collect();
        let mut counts = Vec::new();
        for entry in &source.manifest().objects {
            let Some(shard) = known.get(last_component(entry.key.as_bytes())) else {
                note(notes, format!("{place} does not list `{}`", entry.key));
                return Ok(None);
            };
            if let Some(size) = shard.size.filter(|&size| size != entry.size) {
                let (want, have) = (with_separators(size), with_separators(entry.size));
                note(
                    notes,
                    format!("{place} states {want} bytes for `{}`, but the object has {have} bytes", entry.key),
                );
                return Ok(None);
            }
            let Some(samples) = shard.samples else { return Ok(None) };
            counts.push(samples);
        }
        Ok(Some(counts))
    }

    async fn read(&self, index: &Entry, deadline: Deadline) -> Result<Vec<u8>> {
        if index.size > MAX_BYTES {
            let problem =
                format!("has {} bytes, which is too large for the index of one object", with_separators(index.size));
            return Err(Error::corrupt(self.place(index), problem));
        }
        let object = ObjectRef { key: self.base.join(index.key.as_bytes()), version: index.version.clone() };
        Ok(read_whole(&*self.store, &object, None, deadline).await?.1.into())
    }

    fn place(&self, index: &Entry) -> String {
        format!("{}{}", self.manifest.url, index.key)
    }
}

fn note(notes: &mut Vec<String>, text: String) {
    if notes.len() < MAX_NOTES {
        notes.push(text);
    }
}

/// Returns the positions of a tar's samples from a DALI index. The index omits folders and long names, so each sample
/// is assumed to start where the previous sample ends. Returns an error if a gap is too large for folders and long
/// names.
fn tar_spans(text: &[u8], size: u64, place: &str) -> Result<Vec<Span>> {
    let samples = parse_tar_index(text, size, place)?;
    let mut spans = Vec::with_capacity(samples.len());
    let mut end = 0;
    let silent = |from: u64, to: u64| {
        let problem = format!(
            "does not cover bytes {} to {} of an object of {} bytes: the index is stale or belongs to a different object",
            with_separators(from),
            with_separators(to),
            with_separators(size)
        );
        Error::corrupt(place, problem)
    };
    for sample in samples {
        let next = sample.offset.saturating_add(sample.len);
        if sample.offset < end || sample.offset - end > MAX_GAP {
            return Err(silent(end.min(sample.offset), sample.offset.max(end)));
        }
        spans.push(Span { offset: end, len: next - end, crc: 0 });
        end = next;
    }
    if size - end.min(size) > MAX_GAP { Err(silent(end, size)) } else { Ok(spans) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_goes_by_its_objects_name() {
        let names = |key: &str| names_of(key.as_bytes()).map(|name| String::from_utf8(name).unwrap());
        assert_eq!(names("d/a.tfrecord"), ["d/a.tfrecord.idx", "d/a.idx"]);
        assert_eq!(names("d.x/train-00000-of-00002"), ["d.x/train-00000-of-00002.idx", "d.x/train-00000-of-00002.idx"]);
        assert_eq!(names("a.tfrecord.gz"), ["a.tfrecord.idx", "a.idx"]);
        assert_eq!(names("d/.tar"), ["d/.tar.idx", "d/.tar.idx"]);
    }

    #[test]
    fn an_index_of_nothing_is_an_object_like_others() {
        let entries = ["a.idx", "b.idx", "b.tar", "index.json"].map(|name| Entry::new(Key::from(name), 1)).to_vec();
        let mut listing = Manifest::new("memory://x/".to_owned(), entries);
        let found = indexes_in(&listing).unwrap();
        let keys = |manifest: &Manifest| manifest.objects.iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>();
        assert_eq!(keys(&found), ["b.idx", "index.json"]);
        without_indexes(&mut listing, &found);
        assert_eq!(keys(&listing), ["a.idx", "b.tar", "index.json"]);
    }

    #[test]
    fn samples_of_a_tar_begin_where_the_one_before_ends() {
        let index = b"v1.2 2\njpg 1536 9 a.jpg\npng 3072 600 b.png\n";
        let spans = tar_spans(index, 10_240, "a.idx").unwrap();
        let (first, second) = (Span { offset: 0, len: 2048, crc: 0 }, Span { offset: 2048, len: 2048, crc: 0 });
        assert_eq!(spans, [first, second]);
        let problem = |size: u64, text: &str| tar_spans(text.as_bytes(), size, "a.idx").unwrap_err().to_string();
        assert_eq!(
            problem(1 << 20, "v1.2 1\njpg 512 9 a.jpg\n"),
            "a.idx does not cover bytes 1,024 to 1,048,576 of an object of 1,048,576 bytes: \
             the index is stale or belongs to a different object"
        );
        assert!(problem(1 << 20, "v1.2 1\njpg 512000 9 a.jpg\n").contains("bytes 0 to 511,488"));
        assert!(problem(9216, "v1.2 2\njpg 512 900 a.jpg\njpg 1024 9 b.jpg\n").contains("bytes 512 to"));
    }
}
