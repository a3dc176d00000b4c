// SPDX-License-Identifier: Apache-2.0
//! Header of a manifest's file, and its version.

use penstock_types::Error;

/// The version of the document that this build writes. It reads version 1 too.
pub const MANIFEST_VERSION: u32 = 2;

/// Header of a document.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// [`Manifest::url`].
    pub url: &'a str,
    /// [`Manifest::source`].
    pub source: Option<&'a str>,
    /// [`Manifest::created_s`], in s since 1970.
    pub created_s: f64,
    /// [`Manifest::failed`].
    pub failed: u64,
}

/// Error of a document of another version.
pub(super) fn other_version(version: u32, place: &str) -> Error {
    Error::Unsupported {
        what: format!("manifest version {version} of {place}"),
        by: format!("this build, which reads versions 1 to {MANIFEST_VERSION}"),
    }
}
