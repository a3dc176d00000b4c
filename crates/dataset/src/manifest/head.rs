// SPDX-License-Identifier: Apache-2.0
//! Header of a manifest file, including the format version.

use penstock_types::Error;

/// Manifest version that this build writes. This build also reads version 1.
pub const MANIFEST_VERSION: u32 = 2;

/// Header fields of a manifest file.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// [`Manifest::url`].
    pub url: &'a str,
    /// [`Manifest::source`].
    pub source: Option<&'a str>,
    /// [`Manifest::created_s`], in seconds since 1970.
    pub created_s: f64,
    /// [`Manifest::failed`].
    pub failed: u64,
}

/// Error for a manifest of an unsupported version.
pub(super) fn other_version(version: u32, place: &str) -> Error {
    Error::Unsupported {
        what: format!("manifest version {version} of {place}"),
        by: format!("this build, which reads versions 1 to {MANIFEST_VERSION}"),
    }
}
