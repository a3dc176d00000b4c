// SPDX-License-Identifier: Apache-2.0
//! Multipart uploads that outlive the process: S3 multipart uploads, Azure blocks, Google's resumable uploads.
//!
//! For callers that keep a journal, beside `Store::put`: an upload has an id, parts are sent one by one, and a later
//! process sends only the parts that the store does not have. The object is not visible before the end.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use penstock_types::{Algorithm, Deadline, Digest, Key, Result};
use serde::{Deserialize, Serialize};

use crate::{Meta, PutOptions};

/// Limits that a store sets for the parts of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultipartLimits {
    /// Minimum size of a part, except the last, in bytes.
    pub least: u64,
    /// The size of each part, except the last, is a multiple of this.
    pub multiple: u64,
    /// Maximum number of parts of an object.
    pub max_parts: u64,
    /// Parts must be sent in order, one at a time.
    pub is_ordered: bool,
    /// Kind of whole-object digest that the store keeps if the upload provides one.
    pub whole: Algorithm,
}

impl MultipartLimits {
    /// Part size for an object of `size` bytes: `wanted`, or more if the number of parts requires it.
    pub fn part_bytes(&self, wanted: u64, size: u64) -> u64 {
        wanted.max(self.least).max(size.div_ceil(self.max_parts.max(1))).next_multiple_of(self.multiple.max(1))
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

/// A part that a store has accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Number, from 0.
    pub number: u32,
    /// Offset in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// CRC-32C.
    pub crc32c: u32,
    /// The store's name for the part.
    pub tag: String,
}

/// Identifies the part to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartSpec {
    /// Number, from 0.
    pub number: u32,
    /// Offset in bytes.
    pub offset: u64,
    /// For the last part: the CRC-32C of the whole object. A store whose last part completes the upload verifies it.
    pub ends: Option<u32>,
}

/// See the module. An upload that no longer exists (aborted, expired, completed) errs with `NotFound`.
#[async_trait]
pub trait MultipartStore: Send + Sync {
    /// Limits of the parts.
    fn limits(&self) -> MultipartLimits;

    /// Starts an upload, with those options that a store needs first.
    async fn create(&self, key: &Key, options: &PutOptions, deadline: Deadline) -> Result<UploadId>;

    /// Those of `parts` that the store still has.
    async fn list_parts(&self, key: &Key, id: &UploadId, parts: &[Part], deadline: Deadline) -> Result<Vec<Part>>;

    /// Sends a part; a part that was sent before is replaced.
    async fn put_part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part>;

    /// Completes the object from all its parts, in order. `whole` are digests of it: the store refuses (`Corrupt`) if
    /// it has others, and keeps those that it can. The options are those of `create`.
    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta>;

    /// Deletes the parts; an upload that does not exist is not an error.
    async fn abort(&self, key: &Key, id: &UploadId, deadline: Deadline) -> Result<()>;
}
