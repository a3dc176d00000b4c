// SPDX-License-Identifier: Apache-2.0
//! One object of a manifest, and in a staged copy the one that it was made from, as the document holds them.

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
    /// Its content once decompressed, where an earlier stage recorded it.
    #[serde(default, alias = "inflated", skip_serializing_if = "Option::is_none")]
    pub decompressed: Option<Box<Decompressed>>,
    /// In a staged copy: the object that this one was made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
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
            decompressed: None,
            origin: None,
        }
    }

    /// The entry of an object that a store described.
    pub fn of_meta(key: Key, meta: Meta) -> Self {
        Self {
            version: meta.version,
            modified_s: meta.modified_s,
            digests: meta.digests,
            encoding: meta.encoding,
            ..Self::new(key, meta.size)
        }
    }

    /// Bytes of its content once decompressed, where they are known.
    pub fn decompressed_size(&self) -> Option<u64> {
        self.decompressed.as_ref().map(|content| content.size)
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

/// A compressed object's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decompressed {
    /// Its bytes.
    pub size: u64,
    /// Their digests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub digests: Vec<Digest>,
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
    /// Promised digests that the bytes were compared with as they arrived. Empty: the source gave none.
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
    /// The request of the stage: `decompress`, `gzip:6`, `decompress,zstd:3`.
    #[serde(default, alias = "asked", skip_serializing_if = "Option::is_none", deserialize_with = "transform_text")]
    pub transform: Option<String>,
    /// Its last change there, where it has no version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_s: Option<f64>,
}

impl Origin {
    /// True where a CRC-32C of the stored bytes is recorded, against which every transfer holds what it fetched before it
    /// publishes a byte. Every stage records one. A record without it may name any object that this user can read, such
    /// as a private key, and a repair would copy it into the destination.
    pub fn is_recognisable(&self) -> bool {
        self.digests.iter().any(|digest| digest.algorithm == Algorithm::Crc32c)
    }

    /// An object as it is there, moved as stored.
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
    /// Its name, which lost its suffix when the object was inflated.
    Suffix,
    /// Its Content-Encoding, borne out by its first bytes; the name stays.
    Header,
    /// Its first bytes alone, under a name that claims an inflated format; the name stays.
    Content,
}

fn is_none(codec: &Codec) -> bool {
    *codec == Codec::None
}
