// SPDX-License-Identifier: Apache-2.0
//! Digests (checksums and hashes) of stored or decompressed bytes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Algorithm of a digest. Stores can return every algorithm except `Xxh3`, which only Penstock uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// CRC-32 (ISO-HDLC), as in gzip.
    Crc32,
    /// CRC-32C (Castagnoli), as in TFRecord and S3.
    Crc32c,
    /// CRC-64/NVME, S3's default.
    Crc64Nvme,
    /// SHA-1, which S3 can store with an object.
    Sha1,
    /// SHA-256, which S3 can store with an object.
    Sha256,
    /// MD5, as in ETags and Content-MD5 headers.
    Md5,
    /// XXH3 (128 bits): detects accidental damage, but is not a cryptographic hash.
    Xxh3,
    /// Composite digest: a digest of the digests of parts. S3 returns it for multipart uploads. The number is the size
    /// of each part in bytes; the last part may have another size.
    Parts(PartDigest, u64),
}

/// Algorithm that computes a composite digest and the digests of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartDigest {
    /// CRC-32.
    Crc32,
    /// CRC-32C.
    Crc32c,
    /// MD5, as in an ETag like `...-8`.
    Md5,
}

impl PartDigest {
    /// Returns the algorithm of each part's digest.
    pub fn of_a_part(self) -> Algorithm {
        match self {
            Self::Crc32 => Algorithm::Crc32,
            Self::Crc32c => Algorithm::Crc32c,
            Self::Md5 => Algorithm::Md5,
        }
    }

    fn named(name: &str) -> Option<Self> {
        [Self::Crc32, Self::Crc32c, Self::Md5].into_iter().find(|kind| kind.of_a_part().name() == name)
    }
}

impl Algorithm {
    /// Name in manifests and journals. For a composite digest, the name of the algorithm of its parts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::Crc64Nvme => "crc64nvme",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Md5 => "md5",
            Self::Xxh3 => "xxh3",
            Self::Parts(kind, _) => kind.of_a_part().name(),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some((name, bytes)) = text.split_once('@') {
            return Some(Self::Parts(PartDigest::named(name)?, bytes.parse().ok().filter(|bytes| *bytes > 0)?));
        }
        [Self::Crc32, Self::Crc32c, Self::Crc64Nvme, Self::Sha1, Self::Sha256, Self::Md5, Self::Xxh3]
            .into_iter()
            .find(|algorithm| algorithm.name() == text)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parts(_, bytes) => write!(f, "{}@{bytes}", self.name()),
            _ => f.write_str(self.name()),
        }
    }
}

/// A digest: an algorithm and a big-endian value. As text: `algorithm:hex`, or `algorithm@part-bytes:hex` if composite.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Digest {
    /// Algorithm of the digest.
    pub algorithm: Algorithm,
    /// Bytes of the digest, most significant first.
    pub value: Vec<u8>,
}

impl Digest {
    /// Creates a digest of 32 bits.
    pub fn of_u32(algorithm: Algorithm, value: u32) -> Self {
        Self { algorithm, value: value.to_be_bytes().to_vec() }
    }

    /// Creates a digest of 128 bits.
    pub fn of_u128(algorithm: Algorithm, value: u128) -> Self {
        Self { algorithm, value: value.to_be_bytes().to_vec() }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.algorithm)?;
        self.value.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::config("digest", format!("must be algorithm:hex (got `{text}`)"));
        let (name, hex) = text.split_once(':').ok_or_else(bad)?;
        let algorithm = Algorithm::parse(name).ok_or_else(bad)?;
        if !hex.is_ascii() || hex.len() % 2 != 0 {
            return Err(bad());
        }
        let value = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|_| bad()))
            .collect::<Result<_>>()?;
        Ok(Self { algorithm, value })
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_text_round_trips() {
        let digest = Digest::of_u32(Algorithm::Crc32c, 0x00c0_ffee);
        assert_eq!(digest.to_string(), "crc32c:00c0ffee");
        assert_eq!("crc32c:00c0ffee".parse::<Digest>().unwrap(), digest);
        assert!("crc32c:0x".parse::<Digest>().is_err());
        assert!("nope:00".parse::<Digest>().is_err());
        let parts = Digest::of_u32(Algorithm::Parts(PartDigest::Crc32c, 8 << 20), 0x00c0_ffee);
        assert_eq!(parts.to_string(), "crc32c@8388608:00c0ffee");
        assert_eq!("crc32c@8388608:00c0ffee".parse::<Digest>().unwrap(), parts);
        for text in ["crc32c@0:00", "crc32c@-1:00", "sha1@5:00", "xxh3@5:00", "@5:00", "crc32c@:00"] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
