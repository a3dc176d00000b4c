// SPDX-License-Identifier: Apache-2.0
//! Which record format an object is in, by its name or by its first (inflated) bytes.

use std::fmt;
use std::str::FromStr;

use penstock_codec::strip_suffix;
use penstock_types::{Error, Result};

use crate::tfrecord;

/// How an object's inflated bytes hold records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum RecordFormat {
    /// TFRecord: any number of framed records.
    TfRecord,
    /// The object is one record.
    #[default]
    Raw,
}

impl RecordFormat {
    /// Every format.
    pub const ALL: [Self; 2] = [Self::TfRecord, Self::Raw];

    /// Its name in manifests and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::TfRecord => "tfrecord",
            Self::Raw => "raw",
        }
    }

    /// The format that a name says, its codec's suffix aside: `.tfrecord`, `.tfrecords` and `.tfrec`.
    pub fn of_name(name: &[u8]) -> Self {
        let name = strip_suffix(name);
        let named = [&b".tfrecord"[..], b".tfrecords", b".tfrec"].into_iter().any(|suffix| name.ends_with(suffix));
        if named { Self::TfRecord } else { Self::Raw }
    }

    /// The format that an object's first 12 inflated bytes say: a length with its right checksum is a TFRecord's.
    pub fn sniff(head: &[u8]) -> Self {
        match head.first_chunk::<{ tfrecord::HEADER_LEN }>() {
            Some(header) if tfrecord::header_is_sound(header) => Self::TfRecord,
            _ => Self::Raw,
        }
    }
}

impl fmt::Display for RecordFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RecordFormat {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(|| {
            Error::config("format", format!("`{name}` is none of {}", Self::ALL.map(Self::name).join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_of_name_looks_behind_the_codec() {
        for name in ["a.tfrecord", "a.tfrecord.gz", "d/a.tfrecords.zst", "a.tfrec.lz4"] {
            assert_eq!(RecordFormat::of_name(name.as_bytes()), RecordFormat::TfRecord, "{name}");
        }
        for name in ["a", "a.npy", "a.tfrecord.bz2", "tfrecord"] {
            assert_eq!(RecordFormat::of_name(name.as_bytes()), RecordFormat::Raw, "{name}");
        }
    }

    #[test]
    fn format_sniff_knows_a_tfrecord_by_its_length_checksum() {
        let mut bytes = Vec::new();
        tfrecord::write_frame(b"payload", &mut bytes);
        assert_eq!(RecordFormat::sniff(&bytes), RecordFormat::TfRecord);
        assert_eq!(RecordFormat::sniff(&bytes[..12]), RecordFormat::TfRecord);
        assert_eq!(RecordFormat::sniff(&bytes[..11]), RecordFormat::Raw);
        bytes[3] ^= 1;
        assert_eq!(RecordFormat::sniff(&bytes), RecordFormat::Raw);
        assert_eq!(RecordFormat::sniff(&[0; 12]), RecordFormat::Raw);
    }
}
