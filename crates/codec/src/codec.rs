// SPDX-License-Identifier: Apache-2.0
//! Compression format of an object, detected from its name or its first bytes.

use std::fmt;
use std::str::FromStr;

use penstock_types::{Error, Result};

/// Compression format of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Codec {
    /// No compression.
    #[default]
    None,
    /// gzip (RFC 1952), one or more members.
    Gzip,
    /// zstd (RFC 8878), one or more frames.
    Zstd,
    /// LZ4 frame format, one or more frames.
    Lz4,
}

impl Codec {
    /// All codecs.
    pub const ALL: [Self; 4] = [Self::None, Self::Gzip, Self::Zstd, Self::Lz4];

    /// Codec name in manifests, flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }

    /// File name suffix of this codec; empty for [`Codec::None`].
    pub fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
            Self::Lz4 => ".lz4",
        }
    }

    /// Detects the codec from the suffix of a name, ignoring case. A name that consists of a suffix only (`a/.gz`)
    /// gives [`Codec::None`], because removing the suffix would leave no name.
    pub fn of_name(name: &[u8]) -> Self {
        let ends = |codec: &Self| {
            let cut = name.len().checked_sub(codec.suffix().len());
            cut.and_then(|cut| name.split_at_checked(cut)).is_some_and(|(stem, end)| {
                end.eq_ignore_ascii_case(codec.suffix().as_bytes()) && !matches!(stem.last(), None | Some(b'/'))
            })
        };
        [Self::Gzip, Self::Zstd, Self::Lz4].into_iter().find(ends).unwrap_or(Self::None)
    }

    /// Detects the codec from the first four bytes of an object. Returns [`Codec::None`] for fewer bytes, and for a
    /// skippable frame, which zstd and LZ4 have in common.
    pub fn sniff(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, 8, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [0x04, 0x22, 0x4d, 0x18, ..] => Self::Lz4,
            _ => Self::None,
        }
    }

    /// Default compression level for [`crate::compress`].
    pub fn default_level(self) -> i32 {
        match self {
            Self::None | Self::Lz4 => 0,
            Self::Gzip => 6,
            Self::Zstd => 3,
        }
    }
}

/// Returns the name without its codec suffix.
pub fn strip_suffix(name: &[u8]) -> &[u8] {
    &name[..name.len() - Codec::of_name(name).suffix().len()]
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Codec {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|codec| codec.name() == name).ok_or_else(|| {
            Error::config("codec", format!("`{name}` is not one of {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codec_of_name_reads_the_suffix() {
        for (name, codec, stem) in [
            (&b"a.tfrecord.gz"[..], Codec::Gzip, &b"a.tfrecord"[..]),
            (b"A.TFRECORD.GZ", Codec::Gzip, b"A.TFRECORD"),
            (b"a.zst", Codec::Zstd, b"a"),
            (b"d/a.lz4", Codec::Lz4, b"d/a"),
            (b"a.tfrecord", Codec::None, b"a.tfrecord"),
            (b"d/.gz", Codec::None, b"d/.gz"),
            (b".gz", Codec::None, b".gz"),
            (b"agz", Codec::None, b"agz"),
            (b"", Codec::None, b""),
            (b"\xff.gz", Codec::Gzip, b"\xff"),
            (b"a.gz.gz", Codec::Gzip, b"a.gz"),
        ] {
            assert_eq!((Codec::of_name(name), strip_suffix(name)), (codec, stem));
        }
    }

    #[test]
    fn codec_sniff_of_own_output_is_itself() {
        for codec in Codec::ALL {
            let stored = crate::compress(codec, b"some bytes", codec.default_level()).unwrap();
            assert_eq!(Codec::sniff(&stored), codec);
            assert_eq!(codec.name().parse::<Codec>().unwrap(), codec);
        }
        assert_eq!(Codec::sniff(&[0x1f, 0x8b]), Codec::None);
        assert!("bzip2".parse::<Codec>().is_err());
    }
}
