// SPDX-License-Identifier: Apache-2.0
//! Manifest entry: the metadata of one object and, in a staged copy, of its source object.

use penstock_codec::{Codec, strip_suffix};
use penstock_store::{Meta, Version};
use penstock_types::{Algorithm, Digest, Key};
use serde::{Deserialize, Serialize};

use super::RecordFormat;
use super::serde_with::{codec_text, key_text, transform_text};

/// Metadata of one object of a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Key relative to the manifest's folder.
    #[serde(flatten, with = "key_text")]
    pub key: Key,
    /// Number of stored bytes.
    pub size: u64,
    /// Object version that the listing returned. Reads are pinned to this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Time of the last modification, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
    /// Digests of the stored bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
    /// Content-Encoding of the object, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// Codec of the stored bytes, as shown by the object's name.
    #[serde(with = "codec_text")]
    pub codec: Codec,
    /// Record format of the decompressed bytes, as shown by the object's name.
    pub format: RecordFormat,
    /// Number of records in the object, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Size and digests of the decompressed content, if an earlier stage recorded them.
    #[serde(default, alias = "inflated", skip_serializing_if = "Option::is_none")]
    pub decompressed: Option<Box<Decompressed>>,
    /// In a staged copy: the source object that this object was copied from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
}

impl Entry {
    /// Creates an entry with only a key and a size.
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

    /// Creates the entry of an object from its store metadata.
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

    /// Codec of the bytes that a store returns: the codec in the name or, without one, the codec in the
    /// Content-Encoding.
    pub fn codec_as_read(&self) -> Codec {
        match (self.codec, self.encoding.as_deref()) {
            (Codec::None, Some("gzip")) => Codec::Gzip,
            (codec, _) => codec,
        }
    }

    /// Object name without its codec suffix. A gzip-compressed object and its decompressed copy have the same logical
    /// name.
    pub fn logical_name(&self) -> &[u8] {
        strip_suffix(self.key.as_bytes())
    }
}

/// Size and digests of a compressed object's decompressed content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decompressed {
    /// Decompressed size in bytes.
    pub size: u64,
    /// Digests of the decompressed bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
}

/// Source object of an object in a staged copy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// Key relative to the source's folder.
    #[serde(flatten, with = "key_text")]
    pub key: Key,
    /// Size of the source object, in bytes as stored.
    pub size: u64,
    /// Version of the source object from which the stage read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
    /// Digests of the source object's stored bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
    /// Digests that the source published and that the stage verified while it received the bytes. Empty if the source
    /// published no digest.
    #[serde(default)]
    pub checked: Vec<Digest>,
    /// Content-Encoding of the source object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<String>,
    /// Codec that the stage decompressed.
    #[serde(default, alias = "undone", skip_serializing_if = "is_none", with = "codec_text")]
    pub decoded: Codec,
    /// Where the stage found the codec that it decompressed.
    #[serde(default, alias = "undone_by", skip_serializing_if = "Option::is_none")]
    pub codec_source: Option<CodecSource>,
    /// Codec that the stage compressed the object with.
    #[serde(default, alias = "packed", skip_serializing_if = "is_none", with = "codec_text")]
    pub encoded: Codec,
    /// Transform requested from the stage: `decompress`, `gzip:6`, `decompress,zstd:3`.
    #[serde(default, alias = "asked", skip_serializing_if = "Option::is_none", deserialize_with = "transform_text")]
    pub transform: Option<String>,
    /// Last modification time of the source object, if the object has no version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
}

impl Origin {
    /// True if a CRC-32C of the source's stored bytes is recorded. Every stage records this CRC, and every transfer
    /// verifies the fetched bytes with this CRC before the bytes are published. An origin without the CRC is not
    /// trusted. The key of a forged origin could name any object that this user can read, such as a private key. A
    /// repair would copy that object into the destination.
    pub fn is_recognisable(&self) -> bool {
        self.digests.iter().any(|digest| digest.algorithm == Algorithm::Crc32c)
    }

    /// Creates the origin of an object that was copied without a transform.
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
    /// In the object's name. The decompressed copy loses the codec suffix.
    Suffix,
    /// In the Content-Encoding, confirmed by the first bytes. The decompressed copy has the same name.
    Header,
    /// In the first bytes alone: the name claims an uncompressed format. The decompressed copy has the same name.
    Content,
}

fn is_none(codec: &Codec) -> bool {
    *codec == Codec::None
}
