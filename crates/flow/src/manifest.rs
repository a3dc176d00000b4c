// SPDX-License-Identifier: Apache-2.0
//! The manifest: the immutable list of a dataset's objects, made by one listing and read by everything after it.
//!
//! Owns the document (docs/reference/manifest.md), its order and the fingerprint of the logical dataset. Opens no
//! object: codec and format come from names alone.

mod columns;
mod document;
mod parquet;

use std::sync::Arc;

use bytes::BytesMut;
use futures::TryStreamExt;
use penstock_codec::{Codec, strip_suffix};
use penstock_store::{Meta, Store, StoreSettings, Version};
use penstock_types::{Deadline, Digest, Error, Key, Metrics, Result, Scheme, Url, unix_now};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

pub use document::ManifestFormat;
pub(crate) use document::{Head, write};

use crate::feed::split_glob;
use crate::select::Select;
use crate::urls::UrlList;

/// The version of the document that this build writes and reads.
pub const MANIFEST_VERSION: u32 = 1;

/// Names that begin with this are our own state (journal, manifest, locks) and never part of a dataset.
pub const OWN_PREFIX: &[u8] = b".penstock";

/// A manifest of a billion objects does not fit a JSON document; one beyond this is refused before it is read.
const MAX_DOCUMENT_BYTES: u64 = 16 << 30;

/// How records are framed inside an object, once it is inflated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordFormat {
    /// TFRecord framing.
    TfRecord,
    /// A tar archive.
    Tar,
    /// One NumPy array.
    Npy,
    /// One JPEG image.
    Jpeg,
    /// Not known from the name: the object is one record, or its reader is told.
    Raw,
}

impl RecordFormat {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::TfRecord, Self::Tar, Self::Npy, Self::Jpeg, Self::Raw];

    /// Its name in manifests and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::TfRecord => "tfrecord",
            Self::Tar => "tar",
            Self::Npy => "npy",
            Self::Jpeg => "jpeg",
            Self::Raw => "raw",
        }
    }

    /// The format that a name claims, whatever codec its suffix adds: `a.tfrecord.gz`, `train.tfrecord-00001-of-00100`.
    pub fn of_name(name: &[u8]) -> Self {
        let name = strip_suffix(name).to_ascii_lowercase();
        let last = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let ends = |suffixes: &[&[u8]]| suffixes.iter().any(|suffix| last.ends_with(suffix));
        if ends(&[b".tfrecord", b".tfrecords"]) || last.windows(10).any(|part| part == b".tfrecord-") {
            Self::TfRecord
        } else if ends(&[b".tar"]) {
            Self::Tar
        } else if ends(&[b".npy"]) {
            Self::Npy
        } else if ends(&[b".jpg", b".jpeg"]) {
            Self::Jpeg
        } else {
            Self::Raw
        }
    }
}

/// What said how an object is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SaidBy {
    /// Its name, which lost its suffix when the object was inflated.
    Suffix,
    /// Its Content-Encoding, borne out by its first bytes; the name stays.
    Header,
    /// Its first bytes alone, under a name that claims an inflated format; the name stays.
    Content,
}

/// Where a staged copy's object came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Its key below the source's folder.
    #[serde(flatten, with = "key_text")]
    pub key: Key,
    /// Stored bytes there.
    pub size: u64,
    /// The version that was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Digests of the bytes as stored there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
    /// Those that were promised, and that the bytes were held against as they arrived. Empty: nobody promised any.
    #[serde(default)]
    pub checked: Vec<Digest>,
    /// Content-Encoding there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// What was undone on the way.
    #[serde(default, skip_serializing_if = "is_none", with = "codec_text")]
    pub undone: Codec,
    /// Who said that it was in that codec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<SaidBy>,
    /// What it was compressed in on the way, by `--deflate`.
    #[serde(default, skip_serializing_if = "is_none", with = "codec_text")]
    pub packed: Codec,
    /// What the stage was asked to do to content: `inflate`, `gzip:6`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<String>,
    /// Its last change there, where it has no version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
}

impl Origin {
    /// An object as it stands there, moved as stored.
    pub fn of(entry: &Entry) -> Self {
        Self {
            key: entry.key.clone(),
            size: entry.size,
            version: entry.version.clone(),
            digests: entry.digests.clone(),
            checked: Vec::new(),
            encoding: entry.encoding.clone(),
            undone: Codec::None,
            undone_by: None,
            packed: Codec::None,
            asked: None,
            modified_s: None,
        }
    }
}

fn is_none(codec: &Codec) -> bool {
    *codec == Codec::None
}

/// One object of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Key relative to the manifest's folder.
    #[serde(flatten, with = "key_text")]
    pub key: Key,
    /// Stored bytes.
    pub size: u64,
    /// The version that the listing saw; reads are pinned to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Last change, seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
    /// Digests of the bytes as stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
    /// Content-Encoding, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// How the bytes are compressed, by name.
    #[serde(with = "codec_text")]
    pub codec: Codec,
    /// How the inflated bytes are framed, by name.
    pub format: RecordFormat,
    /// Records inside, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// What the object inflates to, where an earlier stage found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inflated: Option<Box<Inflated>>,
    /// In a staged copy: the object that this one was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
}

/// A compressed object's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inflated {
    /// Its bytes.
    pub size: u64,
    /// Their digests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
}

impl Entry {
    /// An object of which only name and size are known.
    pub fn new(key: Key, size: u64) -> Self {
        let (codec, format) = (Codec::of_name(key.as_bytes()), RecordFormat::of_name(key.as_bytes()));
        Self {
            key,
            size,
            version: None,
            modified_s: None,
            digests: Vec::new(),
            encoding: None,
            codec,
            format,
            records: None,
            inflated: None,
            origin: None,
        }
    }

    pub(crate) fn of_meta(key: Key, meta: Meta) -> Self {
        Self {
            version: meta.version,
            modified_s: meta.modified_s,
            digests: meta.digests,
            encoding: meta.encoding,
            ..Self::new(key, meta.size)
        }
    }

    /// What it inflates to, where that is known.
    pub fn inflated_size(&self) -> Option<u64> {
        self.inflated.as_ref().map(|inflated| inflated.size)
    }

    /// How its bytes are compressed as a store gives them, by its name or else by its Content-Encoding.
    pub fn codec_as_read(&self) -> Codec {
        match (self.codec, self.encoding.as_deref()) {
            (Codec::None, Some("gzip")) => Codec::Gzip,
            (codec, _) => codec,
        }
    }

    /// The name without its codec suffix: what a gzip'd object and its inflated copy share.
    pub fn logical_name(&self) -> &[u8] {
        strip_suffix(self.key.as_bytes())
    }
}

/// The list. Sorted by logical name, then key, so that object *i* of a compressed dataset is object *i* of its inflated
/// copy (`a.gz` sorts after `a-b.gz`, but `a` before `a-b`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`MANIFEST_VERSION`].
    #[serde(rename = "penstock_manifest")]
    pub version: u32,
    /// The folder that keys are relative to; ends in `/`.
    pub url: String,
    /// In a staged copy: the folder that its origins' keys are relative to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// When the listing ended, seconds since the Unix epoch.
    pub created_s: f64,
    /// The objects.
    pub objects: Vec<Entry>,
}

impl Manifest {
    /// A manifest of these objects, in the manifest's order.
    pub fn new(url: String, mut objects: Vec<Entry>) -> Self {
        sort(&mut objects);
        pack_keys(&mut objects);
        Self { version: MANIFEST_VERSION, url, source: None, created_s: unix_now().as_secs_f64(), objects }
    }

    /// Stored bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|entry| entry.size).sum()
    }

    /// Of a staged copy: the manifest of what it was made from, with what each object inflated to; `None` where the copy
    /// does not say.
    pub fn of_source(&self) -> Option<Self> {
        let source = self.source.clone()?;
        let objects = self
            .objects
            .iter()
            .map(|entry| {
                let origin = entry.origin.as_deref()?;
                let inflated = Inflated { size: entry.size, digests: entry.digests.clone() };
                Some(Entry {
                    version: origin.version.clone(),
                    digests: origin.digests.clone(),
                    encoding: origin.encoding.clone(),
                    records: entry.records,
                    inflated: (origin.undone != Codec::None).then(|| Box::new(inflated)),
                    ..Entry::new(origin.key.clone(), origin.size)
                })
            })
            .collect::<Option<Vec<Entry>>>()?;
        Some(Self { created_s: self.created_s, ..Self::new(source, objects) })
    }

    /// The same without the objects that are not meant.
    pub fn keep(mut self, select: &Select) -> Self {
        if !select.is_all() {
            self.objects.retain(|entry| select.takes(&entry.key));
        }
        self
    }

    /// [`Manifest::keep`]; errs where nothing is left.
    pub fn only(self, select: &Select) -> Result<Self> {
        let kept = self.keep(select);
        match kept.objects.is_empty() && !select.is_all() {
            true => {
                Err(Error::NotFound { place: format!("any object under {} that fits {}", kept.url, select.text()) })
            }
            false => Ok(kept),
        }
    }

    /// The dataset's identity whatever path it is read by: logical names and, where the feed's ladder has found them,
    /// record counts (`records[i]` belongs to `objects[i]`; empty when they are not known). Sizes, codecs, versions and
    /// URLs do not enter, so a staged, inflated or transcoded copy keeps it.
    pub fn fingerprint(&self, records: &[u64]) -> u128 {
        let mut hash = Xxh3::new();
        hash.update(b"penstock dataset 1");
        let mut order: Vec<usize> = (0..self.objects.len()).collect();
        if !self.objects.is_sorted_by(|a, b| place_of(a) <= place_of(b)) {
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

    /// Reads a document; `place` stands in the error.
    pub fn from_json(bytes: &[u8], place: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            penstock_manifest: Option<u32>,
        }
        let head: Head = serde_json::from_slice(bytes)
            .map_err(|error| Error::corrupt(place, format!("is no Penstock manifest: {error}")))?;
        match head.penstock_manifest {
            Some(MANIFEST_VERSION) => {}
            Some(version) => return Err(other_version(version, place)),
            None => return Err(Error::corrupt(place, "is no Penstock manifest: it has no `penstock_manifest`")),
        }
        let mut manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::corrupt(place, format!("is no Penstock manifest: {error}")))?;
        pack_keys(&mut manifest.objects);
        finished(manifest, place)
    }
}

/// A manifest as it was read, in order. Foreign tools may have written it: the order is ours to hold.
fn finished(mut manifest: Manifest, place: &str) -> Result<Manifest> {
    sort(&mut manifest.objects);
    match manifest.objects.windows(2).find(|pair| pair[0].key == pair[1].key) {
        Some(pair) => Err(Error::corrupt(place, format!("names `{}` twice", pair[0].key))),
        None => Ok(manifest),
    }
}

fn other_version(version: u32, place: &str) -> Error {
    Error::Unsupported {
        what: format!("manifest version {version} of {place}"),
        by: format!("this build, which reads version {MANIFEST_VERSION}"),
    }
}

/// By what a manifest is sorted.
fn place_of(entry: &Entry) -> (&[u8], &Key) {
    (entry.logical_name(), &entry.key)
}

fn sort(objects: &mut [Entry]) {
    if !objects.is_sorted_by(|a, b| place_of(a) <= place_of(b)) {
        objects.sort_unstable_by(|a, b| place_of(a).cmp(&place_of(b)));
    }
}

/// Lets keys share a few large allocations: one of its own for each of 10^7 keys costs more than the keys.
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

/// One listing of everything under `prefix` (a folder, or one object), as a manifest. No object is opened: codec and
/// format are what names say. Skips our own state at any level, and the empty objects that stand for folders.
///
/// `url` is what the user wrote; the manifest's URL is its folder. Errs with `NotFound` when nothing is there.
pub async fn index(store: &dyn Store, prefix: &Key, url: &Url, deadline: Deadline) -> Result<Manifest> {
    index_selected(store, prefix, url, &Select::default(), deadline).await
}

/// [`index`] of what is meant alone; the store is asked for nothing else where the patterns allow it.
pub async fn index_selected(
    store: &dyn Store,
    prefix: &Key,
    url: &Url,
    select: &Select,
    deadline: Deadline,
) -> Result<Manifest> {
    let folder = prefix.as_folder();
    let mut objects = Vec::new();
    let mut met = false;
    // Folders and pages are walked from a folder; object stores list any beginning of keys.
    let begin = match url.scheme {
        Scheme::S3 | Scheme::Azure | Scheme::Gcs | Scheme::Memory => folder.join(select.literal_prefix()),
        Scheme::File | Scheme::Http | Scheme::Https | Scheme::Hdfs => folder.clone(),
    };
    let mut listing = store.list(&begin, None, deadline);
    loop {
        match listing.try_next().await {
            Ok(Some(meta)) => {
                let Some(key) = meta.key.strip_prefix(&folder) else {
                    return Err(Error::bug(format!("a listing of `{folder}` gave `{}`", meta.key)));
                };
                met = true;
                if !is_own(&key) && !is_folder_marker(&key, meta.size) && select.takes(&key) {
                    objects.push(Entry::of_meta(key, meta));
                }
            }
            Ok(None) => break,
            // A single file has nothing below it; whether it is there itself is asked next.
            Err(Error::NotFound { .. }) if objects.is_empty() && folder != *prefix => break,
            Err(error) => return Err(error),
        }
    }
    drop(listing);
    if !objects.is_empty() {
        return Ok(Manifest::new(url.as_folder().to_string(), objects));
    }
    if !select.is_all() && (met || folder == *prefix) {
        return Err(Error::NotFound { place: format!("any object under {url} that fits {}", select.text()) });
    }
    if folder != *prefix {
        match store.head(prefix, deadline).await {
            Ok(meta) => {
                let cut = prefix.as_bytes().iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
                let parent =
                    Key::new(url.key.as_bytes()[..url.key.as_bytes().len() - (prefix.as_bytes().len() - cut)].to_vec());
                let name = Key::new(prefix.as_bytes()[cut..].to_vec());
                return Ok(Manifest::new(url.with_key(parent).to_string(), vec![Entry::of_meta(name, meta)]));
            }
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    // A local folder that is not there was told by its store: this one is there, and empty.
    let place = if url.scheme == Scheme::File { format!("any object under {url}") } else { url.to_string() };
    Err(Error::NotFound { place })
}

/// A URL without its pattern, and what is meant below it: `s3://b/train/*.gz`. A local path that is there is no pattern.
pub fn without_pattern(url: &Url, select: Select) -> (Url, Select) {
    match split_glob(url).filter(|_| !url.to_path().is_some_and(|path| path.exists())) {
        Some((folder, pattern)) => (folder, select.within(pattern)),
        None => (url.clone(), select),
    }
}

/// Opens what a URL (with a pattern or without) or a local list of URLs names, and lists what is meant.
pub async fn list(
    url: &Url,
    select: Select,
    settings: &StoreSettings,
    metrics: Arc<Metrics>,
    deadline: Deadline,
) -> Result<Manifest> {
    if let Some(list) = UrlList::load(url)? {
        let opened = penstock_store::open(&list.folder, settings, metrics)?;
        return list.manifest(&*opened.store, &opened.prefix, &select, deadline).await;
    }
    let (url, select) = without_pattern(url, select);
    let opened = penstock_store::open(&url, settings, metrics)?;
    index_selected(&*opened.store, &opened.prefix, &url, &select, deadline).await
}

/// True for a key with a component that is Penstock's own.
pub(crate) fn is_own(key: &Key) -> bool {
    key.as_bytes().split(|byte| *byte == b'/').any(|part| part.starts_with(OWN_PREFIX))
}

fn is_folder_marker(key: &Key, size: u64) -> bool {
    size == 0 && (key.is_empty() || key.as_bytes().ends_with(b"/"))
}

/// A key in JSON: `"key": "text"`, or `"key_hex": "61ff"` where it is not UTF-8.
pub(crate) mod key_text {
    use penstock_types::Key;
    use serde::ser::SerializeMap;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1))?;
        match key.as_str() {
            Some(text) => map.serialize_entry("key", text)?,
            None => {
                let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
                map.serialize_entry("key_hex", &hex)?;
            }
        }
        map.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        #[derive(Deserialize)]
        struct Text {
            key: Option<String>,
            key_hex: Option<String>,
        }
        let text = Text::deserialize(deserializer)?;
        match (text.key, text.key_hex) {
            (Some(key), None) => Ok(Key::new(key.into_bytes())),
            (None, Some(hex)) => {
                let bad = || serde::de::Error::custom(format!("`{hex}` is not hex"));
                if !hex.is_ascii() || hex.len() % 2 != 0 {
                    return Err(bad());
                }
                let bytes: Result<Vec<u8>, _> =
                    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16)).collect();
                Ok(Key::new(bytes.map_err(|_| bad())?))
            }
            _ => Err(serde::de::Error::custom("wants one of `key` and `key_hex`")),
        }
    }
}

/// A codec in JSON, by name.
mod codec_text {
    use penstock_codec::Codec;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(codec: &Codec, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(codec.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Codec, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
