// SPDX-License-Identifier: Apache-2.0
//! Writes of one object in parts that outlive the process: S3 multipart uploads, Azure blocks, Google's resumable uploads.
//!
//! A second door beside `Store::put`, for callers that keep a journal: what was begun is named by an id, parts are sent one
//! by one, and a later process sends only those that the store does not hold. Nothing is visible before the end.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use penstock_types::{Algorithm, Deadline, Digest, Key, Result};
use serde::{Deserialize, Serialize};

use crate::{Meta, PutOptions};

/// Limits that a store sets for the parts of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultipartLimits {
    /// Fewest bytes of a part, the last apart.
    pub least: u64,
    /// Each part, the last apart, is a multiple of this.
    pub multiple: u64,
    /// Most parts of an object.
    pub most_parts: u64,
    /// Parts are taken one after another, in order.
    pub is_ordered: bool,
    /// The digest of the whole object that the store keeps if the upload gives one.
    pub whole: Algorithm,
}

impl MultipartLimits {
    /// Bytes of each part of an object of `size` bytes: `wanted`, or as many as its count allows.
    pub fn part_bytes(&self, wanted: u64, size: u64) -> u64 {
        wanted.max(self.least).max(size.div_ceil(self.most_parts.max(1))).next_multiple_of(self.multiple.max(1))
    }
}

/// Upload ID. In some stores it grants write access: it is kept in a journal of mode 0600 and never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadId(pub String);

impl fmt::Debug for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UploadId(..)")
    }
}

/// A part that a store has taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its place, from 0.
    pub number: u32,
    /// Bytes before it.
    pub offset: u64,
    /// Its bytes.
    pub size: u64,
    /// Their CRC-32C.
    pub crc32c: u32,
    /// The store's name for the part.
    pub tag: String,
}

/// Which part is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartSpec {
    /// Its place, from 0.
    pub number: u32,
    /// Bytes before it.
    pub offset: u64,
    /// Of the last one: the CRC-32C of the whole object. A store whose last part ends the upload holds the bytes
    /// against it.
    pub ends: Option<u32>,
}

/// See the module. One that was lost (aborted, expired, finished) errs with `NotFound`.
#[async_trait]
pub trait MultipartStore: Send + Sync {
    /// Limits of the parts.
    fn terms(&self) -> MultipartLimits;

    /// Begins one; of the options, what a store must know first.
    async fn begin(&self, key: &Key, options: &PutOptions, deadline: Deadline) -> Result<UploadId>;

    /// Those of `parts` that the store still holds.
    async fn held(&self, key: &Key, id: &UploadId, parts: &[Part], deadline: Deadline) -> Result<Vec<Part>>;

    /// Sends a part; one that was sent before is replaced by the same.
    async fn part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part>;

    /// Makes the object of all its parts, in order. `whole` are digests of it: the store refuses (`Corrupt`) where it
    /// has others, and keeps what it can. The options are those that it was begun with.
    async fn finish(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta>;

    /// Takes the parts away; an upload that does not exist is not an error.
    async fn abort(&self, key: &Key, id: &UploadId, deadline: Deadline) -> Result<()>;
}
