// SPDX-License-Identifier: Apache-2.0
//! Multipart uploads that can outlive a process: S3 multipart uploads, Azure blocks and Google's resumable uploads.
//!
//! This interface is for callers that keep a journal; other callers use `Store::put`. An upload has an ID, and its
//! parts are sent one by one. After a restart, a process sends only the parts that the store does not have yet. The
//! object becomes visible when the upload is completed.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use penstock_types::{Algorithm, Deadline, Digest, Key, Result};
use serde::{Deserialize, Serialize};

use crate::{Meta, PutOptions};

/// Limits of a store for the parts of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultipartLimits {
    /// Minimum part size in bytes. The last part may be smaller.
    pub least: u64,
    /// The size of each part must be a multiple of this number of bytes, except for the last part.
    pub multiple: u64,
    /// Maximum number of parts of an object.
    pub max_parts: u64,
    /// True if parts must be sent in order, one at a time.
    pub is_ordered: bool,
    /// Algorithm of the digest of the whole object that the store can save, if the caller provides such a digest.
    pub whole: Algorithm,
}

impl MultipartLimits {
    /// Returns the part size for an object of `size` bytes. It is at least `wanted`, and large enough that the number
    /// of parts does not exceed the limit.
    pub fn part_bytes(&self, wanted: u64, size: u64) -> u64 {
        wanted.max(self.least).max(size.div_ceil(self.max_parts.max(1))).next_multiple_of(self.multiple.max(1))
    }
}

/// Upload ID. In some stores it grants write access, so it is stored in a journal of mode 0600 and never printed.
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
    /// Part number, counted from 0.
    pub number: u32,
    /// Offset of the part in the object, in bytes.
    pub offset: u64,
    /// Size of the part in bytes.
    pub size: u64,
    /// CRC-32C of the part.
    pub crc32c: u32,
    /// Identifier that the store returned for the part.
    pub tag: String,
}

/// Position of a part that is to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartSpec {
    /// Part number, counted from 0.
    pub number: u32,
    /// Offset of the part in the object, in bytes.
    pub offset: u64,
    /// CRC-32C of the whole object, set only for the last part. If the last part completes the upload, the store
    /// verifies this CRC-32C.
    pub ends: Option<u32>,
}

/// Multipart uploads of a store. Calls return `NotFound` if the upload was aborted, expired or completed.
#[async_trait]
pub trait MultipartStore: Send + Sync {
    /// Returns the limits for parts.
    fn limits(&self) -> MultipartLimits;

    /// Starts an upload. The store uses only those options that it needs at the start.
    async fn create(&self, key: &Key, options: &PutOptions, deadline: Deadline) -> Result<UploadId>;

    /// Returns those of `parts` that the store still has.
    async fn list_parts(&self, key: &Key, id: &UploadId, parts: &[Part], deadline: Deadline) -> Result<Vec<Part>>;

    /// Sends a part. If the same part was sent before, the store replaces it.
    async fn put_part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part>;

    /// Completes the object from all its parts, in order. `whole` contains digests of the object. The store saves the
    /// digests that it supports, and returns `Corrupt` if one differs from its own. The options must equal those of
    /// `create`.
    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta>;

    /// Deletes the parts of an upload. An upload that does not exist is not an error.
    async fn abort(&self, key: &Key, id: &UploadId, deadline: Deadline) -> Result<()>;
}
