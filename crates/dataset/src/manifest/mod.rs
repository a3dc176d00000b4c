// SPDX-License-Identifier: Apache-2.0
//! The manifest: the immutable list of a dataset's objects. The manifest is created from one listing, and all later
//! steps read the manifest.
//!
//! Owns the list, its order and the fingerprint of the logical dataset. The submodules `entry` and `record_format`
//! describe one object, and `listing` converts a store listing. The other submodules (`io`, `head`, `parquet`,
//! `columns`, `serde_with`) read and write the manifest file (docs/reference/manifest.md) as JSON or Parquet. Opens no
//! object: codec and format come from names alone.

mod columns;
mod entry;
mod head;
mod io;
mod listing;
mod parquet;
mod record_format;
mod serde_with;

use bytes::BytesMut;
use penstock_codec::Codec;
use penstock_types::{Error, Key, Result, Url, unix_now};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

pub use entry::{CodecSource, Decompressed, Entry, Origin};
use head::other_version;
pub use head::{Head, MANIFEST_VERSION};
pub use io::{ManifestFormat, write};
pub use listing::is_own;
pub use listing::{OWN_PREFIX, index, index_selected, index_written, list, without_pattern, written_fields};
pub use record_format::RecordFormat;
pub use serde_with::{codec_text, key_text, transform_text};

use crate::key_filter::KeyFilter;
use crate::key_names::last_component;

/// List of a dataset's objects, sorted by logical name, then by key. Object *i* of a compressed dataset is therefore
/// also object *i* of the decompressed copy. Sorting by key alone does not have this property: `a.gz` sorts after
/// `a-b.gz`, but `a` sorts before `a-b`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_VERSION`].
    #[serde(rename = "penstock_manifest")]
    pub version: u32,
    /// Folder URL that keys are relative to; ends in `/`.
    pub url: String,
    /// In a staged copy: source folder that the keys of the origins are relative to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Time at which the listing ended, in seconds since the Unix epoch.
    pub created_s: f64,
    /// In a staged copy: number of objects in this node's share that could not be staged and are therefore not listed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// The objects.
    pub objects: Vec<Entry>,
}

impl Manifest {
    /// Creates a manifest of these objects, and sorts them.
    pub fn new(url: String, mut objects: Vec<Entry>) -> Self {
        sort(&mut objects);
        pack_keys(&mut objects);
        Self { version: MANIFEST_VERSION, url, source: None, created_s: unix_now().as_secs_f64(), failed: 0, objects }
    }

    /// Returns the manifest that a listing of `url` would return. `url` is a folder in this manifest's folder, or one
    /// object.
    ///
    /// # Errors
    /// `NotFound` if the manifest contains no object below `url`.
    pub fn narrowed(mut self, url: &Url) -> Result<Self> {
        let own: Url = self.url.parse()?;
        let missing = Error::NotFound { place: format!("{url} in the manifest of {}", self.url) };
        let mut folder = url.key.as_folder();
        let Some(below) = folder.strip_prefix(&own.key.as_folder()) else { return Err(missing) };
        if below.is_empty() {
            return Ok(self);
        }
        let object = url.key.strip_prefix(&own.key.as_folder()).filter(|key| *key != below);
        if let Some(at) = self.objects.iter().position(|entry| Some(&entry.key) == object.as_ref()) {
            let name = last_component(url.key.as_bytes());
            folder = url.key.head(url.key.as_bytes().len() - name.len());
            self.objects = vec![Entry { key: Key::new(name.to_vec()), ..self.objects.swap_remove(at) }];
        } else {
            self.objects.retain_mut(|entry| {
                let Some(key) = entry.key.strip_prefix(&below).filter(|key| !key.is_empty()) else { return false };
                entry.key = key;
                true
            });
        }
        if self.objects.is_empty() {
            return Err(missing);
        }
        self.url = own.with_key(folder).to_string();
        Ok(self)
    }

    /// Stored bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|entry| entry.size).sum()
    }

    /// Reconstructs the source's manifest from a staged copy. Objects that the stage only decompressed get their
    /// decompressed size and digests. Returns `None` if the copy does not record its source.
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

    /// Removes the objects that `select` does not select.
    pub fn keep(mut self, select: &KeyFilter) -> Self {
        if !select.is_all() {
            self.objects.retain(|entry| select.takes(&entry.key));
        }
        self
    }

    /// Like [`Manifest::keep`], but returns an error if no object is selected, or if an object that the URL names is
    /// missing.
    pub fn only(self, select: &KeyFilter) -> Result<Self> {
        let mut named = select.named_keys();
        self.objects.iter().for_each(|entry| named.found(entry.key.as_bytes()));
        named.check(&self.url.parse()?)?;
        let kept = self.keep(select);
        match kept.objects.is_empty() && !select.is_all() {
            true => Err(select.none_of(format_args!("any object under {}", kept.url))),
            false => Ok(kept),
        }
    }

    /// Identity of the dataset, independent of the path from which the dataset is read. The identity covers logical
    /// names and record counts. `records[i]` is the count of `objects[i]`; `records` is empty if the counts are
    /// unknown. Sizes, codecs, versions and URLs are not covered, so a staged, decompressed or transcoded copy has the
    /// same fingerprint.
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

/// True for a count of zero, which the file omits.
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

/// Sort key of an entry in a manifest.
fn place_of(entry: &Entry) -> (&[u8], &Key) {
    (entry.logical_name(), &entry.key)
}

fn sort(objects: &mut [Entry]) {
    if !objects.is_sorted_by_key(place_of) {
        objects.sort_unstable_by(|a, b| place_of(a).cmp(&place_of(b)));
    }
}

/// Packs keys into a few large allocations. For 10^7 keys, separate allocations would take more memory than the keys
/// themselves.
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
