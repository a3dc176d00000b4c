// SPDX-License-Identifier: Apache-2.0
//! One object of a manifest. In a staged copy, the entry also holds the source object.

use penstock_codec::{Codec, strip_suffix};
use penstock_store::{Meta, Version};
use penstock_types::{Algorithm, Digest, Key};
use serde::{Deserialize, Serialize};

use super::RecordFormat;
use super::serde_key::{codec_text, key_text, transform_text};

/// One object of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Key relative to the manifest's folder.
    #[serde(flatten, with = "key_text")]
    pub key: Key,
    /// Stored bytes.
    pub size: u64,
    /// Version that the listing returned; reads are pinned to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Last change, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
    /// Digests of the bytes as stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
    /// Content-Encoding, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// Codec of the stored bytes, according to the name.
    #[serde(with = "codec_text")]
    pub codec: Codec,
    /// Record framing of the decompressed bytes, according to the name.
    pub format: RecordFormat,
    /// Number of records in the object, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Its decompressed content, if an earlier stage recorded it.
    #[serde(default, alias = "inflated", skip_serializing_if = "Option::is_none")]
    pub decompressed: Option<Box<Decompressed>>,
    /// In a staged copy: the object that this one was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
}

impl Entry {
    /// An entry with only a key and a size.
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
            decompressed: None,
            origin: None,
        }
    }

    /// The entry for an object's metadata from a store.
    pub fn of_meta(key: Key, meta: Meta) -> Self {
        Self {
            version: meta.version,
            modified_s: meta.modified_s,
            digests: meta.digests,
            encoding: meta.encoding,
            ..Self::new(key, meta.size)
        }
    }

    /// Size of the decompressed content, if known.
    pub fn decompressed_size(&self) -> Option<u64> {
        self.decompressed.as_ref().map(|content| content.size)
    }

    /// Codec of the bytes as a store returns them, from the name or else from the Content-Encoding.
    pub fn codec_as_read(&self) -> Codec {
        match (self.codec, self.encoding.as_deref()) {
            (Codec::None, Some("gzip")) => Codec::Gzip,
            (codec, _) => codec,
        }
    }

    /// The name without its codec suffix, which a gzip'd object and its decompressed copy share.
    pub fn logical_name(&self) -> &[u8] {
        strip_suffix(self.key.as_bytes())
    }
}

/// Decompressed content of a compressed object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decompressed {
    /// Its bytes.
    pub size: u64,
    /// Their digests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
}

/// Source of an object in a staged copy.
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
    /// Digests promised by the source with which the stage compared the bytes as they arrived. Empty if the source gave
    /// none.
    #[serde(default)]
    pub checked: Vec<Digest>,
    /// Content-Encoding there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// The codec that the stage decompressed.
    #[serde(default, alias = "undone", skip_serializing_if = "is_none", with = "codec_text")]
    pub decoded: Codec,
    /// Where that codec was found.
    #[serde(default, alias = "undone_by", skip_serializing_if = "Option::is_none")]
    pub codec_source: Option<CodecSource>,
    /// The codec that the stage compressed it with.
    #[serde(default, alias = "packed", skip_serializing_if = "is_none", with = "codec_text")]
    pub encoded: Codec,
    /// Transform that the stage was asked for: `decompress`, `gzip:6`, `decompress,zstd:3`.
    #[serde(default, alias = "asked", skip_serializing_if = "Option::is_none", deserialize_with = "transform_text")]
    pub transform: Option<String>,
    /// Its last change there, if it has no version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
}

impl Origin {
    /// True if a CRC-32C of the stored bytes is recorded. Every stage records one, and every transfer compares it with
    /// what it fetched before it publishes a byte. A record without it may name any object that this user can read,
    /// such as a private key, and a repair would copy it into the destination.
    pub fn is_recognisable(&self) -> bool {
        self.digests.iter().any(|digest| digest.algorithm == Algorithm::Crc32c)
    }

    /// The origin of an object that was moved as stored.
    pub fn of(entry: &Entry) -> Self {
        Self {
            key: entry.key.clone(),
            size: entry.size,
            version: entry.version.clone(),
            digests: entry.digests.clone(),
            checked: Vec::new(),
            encoding: entry.encoding.clone(),
            decoded: Codec::None,
            codec_source: None,
            encoded: Codec::None,
            transform: None,
            modified_s: None,
        }
    }
}

/// Where the codec of an object was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodecSource {
    /// In its name, which lost its suffix when the object was decompressed.
    Suffix,
    /// In its Content-Encoding, confirmed by its first bytes; the name stays.
    Header,
    /// In its first bytes alone, although the name claims an uncompressed format; the name stays.
    Content,
}

fn is_none(codec: &Codec) -> bool {
    *codec == Codec::None
}
