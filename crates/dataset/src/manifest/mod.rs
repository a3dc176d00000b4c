// SPDX-License-Identifier: Apache-2.0
//! The manifest: the immutable list of a dataset's objects. One listing makes it, and all later steps read it.
//!
//! Owns the list, its order and the fingerprint of the logical dataset. Submodules hold one object (`entry`,
//! `record_format`), the conversion of a listing (`listing`), and the document (docs/reference/manifest.md) as JSON or
//! Parquet (`io`, `head`, `parquet`, `columns`, `serde_key`). Opens no object: codec and format come from names alone.

mod columns;
mod entry;
mod head;
mod io;
mod listing;
mod parquet;
mod record_format;
mod serde_key;

use bytes::BytesMut;
use penstock_codec::Codec;
use penstock_types::{Error, Key, Result, unix_now};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

pub use entry::{CodecSource, Decompressed, Entry, Origin};
use head::other_version;
pub use head::{Head, MANIFEST_VERSION};
pub use io::{ManifestFormat, write};
pub use listing::is_own;
pub use listing::{OWN_PREFIX, index, index_selected, list, without_pattern};
pub use record_format::RecordFormat;
pub use serde_key::{codec_text, key_text, transform_text};

use crate::key_filter::KeyFilter;

/// List of a dataset's objects, sorted by logical name, then key. Object *i* of a compressed dataset is therefore
/// object *i* of its decompressed copy (`a.gz` sorts after `a-b.gz`, but `a` before `a-b`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_VERSION`].
    #[serde(rename = "penstock_manifest")]
    pub version: u32,
    /// Folder that keys are relative to; ends in `/`.
    pub url: String,
    /// In a staged copy: the folder that the keys of its origins are relative to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Time when the listing ended, in seconds since the Unix epoch.
    pub created_s: f64,
    /// In a staged copy: number of objects of this share that could not be staged and are not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// The objects.
    pub objects: Vec<Entry>,
}

impl Manifest {
    /// Creates a manifest of these objects and sorts them.
    pub fn new(url: String, mut objects: Vec<Entry>) -> Self {
        sort(&mut objects);
        pack_keys(&mut objects);
        Self { version: MANIFEST_VERSION, url, source: None, created_s: unix_now().as_secs_f64(), failed: 0, objects }
    }

    /// Stored bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|entry| entry.size).sum()
    }

    /// Reconstructs the source's manifest from a staged copy, with the content of each object that was decompressed and
    /// not compressed again. `None` if the copy does not record its source.
    pub fn of_source(&self) -> Option<Self> {
        let source = self.source.clone()?;
        let objects = self
            .objects
            .iter()
            .map(|entry| {
                let origin = entry.origin.as_deref()?;
                let is_plain = origin.decoded != Codec::None && origin.encoded == Codec::None;
                let content = Decompressed { size: entry.size, digests: entry.digests.clone() };
                Some(Entry {
                    version: origin.version.clone(),
                    digests: origin.digests.clone(),
                    encoding: origin.encoding.clone(),
                    records: entry.records,
                    decompressed: is_plain.then(|| Box::new(content)),
                    ..Entry::new(origin.key.clone(), origin.size)
                })
            })
            .collect::<Option<Vec<Entry>>>()?;
        Some(Self { created_s: self.created_s, ..Self::new(source, objects) })
    }

    /// Keeps only the selected objects.
    pub fn keep(mut self, select: &KeyFilter) -> Self {
        if !select.is_all() {
            self.objects.retain(|entry| select.takes(&entry.key));
        }
        self
    }

    /// Like [`Manifest::keep`], but returns an error if nothing is left.
    pub fn only(self, select: &KeyFilter) -> Result<Self> {
        let kept = self.keep(select);
        match kept.objects.is_empty() && !select.is_all() {
            true => Err(select.none_of(format_args!("any object under {}", kept.url))),
            false => Ok(kept),
        }
    }

    /// Identity of the dataset, whatever path it is read by. Covers logical names and, if the feed has found them,
    /// record counts: `records[i]` belongs to `objects[i]`; empty if unknown. Sizes, codecs, versions and URLs are left
    /// out, so a staged, decompressed or transcoded copy keeps it.
    pub fn fingerprint(&self, records: &[u64]) -> u128 {
        let mut hash = Xxh3::new();
        hash.update(b"penstock dataset 1");
        let mut order: Vec<usize> = (0..self.objects.len()).collect();
        if !self.objects.is_sorted_by_key(place_of) {
            order.sort_by_key(|&at| place_of(&self.objects[at]));
        }
        for at in order {
            let name = self.objects[at].logical_name();
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name);
            hash.update(&records.get(at).copied().unwrap_or(u64::MAX).to_le_bytes());
        }
        hash.digest128()
    }
}

/// True for a count of zero, which the document leaves out.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

fn finished(mut manifest: Manifest, place: &str) -> Result<Manifest> {
    sort(&mut manifest.objects);
    match manifest.objects.windows(2).find(|pair| pair[0].key == pair[1].key) {
        Some(pair) => Err(Error::corrupt(place, format!("lists `{}` twice", pair[0].key))),
        None => Ok(manifest),
    }
}

/// Sort key of a manifest.
fn place_of(entry: &Entry) -> (&[u8], &Key) {
    (entry.logical_name(), &entry.key)
}

fn sort(objects: &mut [Entry]) {
    if !objects.is_sorted_by_key(place_of) {
        objects.sort_unstable_by(|a, b| place_of(a).cmp(&place_of(b)));
    }
}

/// Packs keys into a few large allocations: a separate one for each of 10^7 keys costs more than the keys.
fn pack_keys(objects: &mut [Entry]) {
    const BLOCK: usize = 256 << 10;
    let mut block = BytesMut::new();
    for entry in objects {
        let key = entry.key.as_bytes();
        if block.capacity() < key.len() {
            block = BytesMut::with_capacity(BLOCK.max(key.len()));
        }
        block.extend_from_slice(key);
        entry.key = Key::new(block.split().freeze());
    }
}

#[cfg(test)]
mod tests;
