// SPDX-License-Identifier: Apache-2.0
//! Record format of an object, determined only from its name.

use penstock_codec::strip_suffix;
use serde::{Deserialize, Serialize};

use crate::key_names::last_component;

/// Record format of an object's decompressed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordFormat {
    /// TFRecord frames.
    TfRecord,
    /// A tar archive.
    Tar,
    /// One NumPy array.
    Npy,
    /// One JPEG image.
    Jpeg,
    /// Not determined by the name: the object is one record, or the caller sets the format.
    Raw,
}

impl RecordFormat {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::TfRecord, Self::Tar, Self::Npy, Self::Jpeg, Self::Raw];

    /// Name of the format in manifests and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::TfRecord => "tfrecord",
            Self::Tar => "tar",
            Self::Npy => "npy",
            Self::Jpeg => "jpeg",
            Self::Raw => "raw",
        }
    }

    /// Format that an object's name shows, with any codec suffix removed: `a.tfrecord.gz`,
    /// `train.tfrecord-00001-of-00100`.
    pub fn of_name(name: &[u8]) -> Self {
        let name = strip_suffix(name).to_ascii_lowercase();
        let last = last_component(&name);
        let ends = |suffixes: &[&[u8]]| suffixes.iter().any(|suffix| last.ends_with(suffix));
        if ends(&[b".tfrecord", b".tfrecords", b".tfrec"]) || last.windows(10).any(|part| part == b".tfrecord-") {
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
