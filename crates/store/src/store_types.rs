// SPDX-License-Identifier: Apache-2.0
//! Types of the `Store` interface: versions and metadata of objects, chunks of a read, and options of a write.

use std::fmt;

use bytes::Bytes;
use futures::stream::BoxStream;
use penstock_types::{Digest, Key, Result, Url};
use serde::{Deserialize, Serialize};

/// Version of an object: an S3 ETag, a GCS generation, or a file's inode, size and mtime. A version is opaque. Two
/// versions can only be compared for equality, and only if both come from the same store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version(pub String);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the URL of `key` below the root of a store, for error messages.
pub fn place(root: &Url, key: &Key) -> String {
    root.with_key(root.key.join(key.as_bytes())).to_string()
}

/// Capabilities of a store. The store suite tests each one. Callers must check a capability before they rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Can list keys. A plain web server cannot.
    pub list: bool,
    /// Can write and delete objects.
    pub put: bool,
    /// Returns versions. If a read requests a version, returns only that version.
    pub versions: bool,
    /// Supports preconditions on writes.
    pub preconditions: bool,
    /// Stores checksums of whole objects and returns them.
    pub checksums: bool,
    /// Can read a range without reading the whole object.
    pub ranges: bool,
    /// Accepts any byte string as a key. For example, both `a` and `a/b` can exist.
    pub any_key: bool,
}

impl Capabilities {
    /// All capabilities.
    pub const ALL: Self = Self {
        list: true,
        put: true,
        versions: true,
        preconditions: true,
        checksums: true,
        ranges: true,
        any_key: true,
    };
}

/// Reference to an object and, if it is pinned, to one version of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Key of the object below the store's root.
    pub key: Key,
    /// Pinned version. If the object has another version, a read returns `Changed`.
    pub version: Option<Version>,
}

impl ObjectRef {
    /// Refers to the current version of an object, without pinning it.
    pub fn current(key: Key) -> Self {
        Self { key, version: None }
    }
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Meta {
    /// Key of the object below the store's root.
    pub key: Key,
    /// Stored size in bytes.
    pub size: u64,
    /// Version of the object, if the store supports versions.
    pub version: Option<Version>,
    /// Digests of the whole stored object, if the response contained any.
    pub digests: Vec<Digest>,
    /// Content-Encoding stored with the object.
    pub encoding: Option<String>,
    /// Time of the last change, in seconds since the Unix epoch.
    pub modified_s: Option<f64>,
}

/// Consecutive bytes of one of the requested ranges.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Index of the range in the list of requested ranges.
    pub range: usize,
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// Bytes of the chunk; never empty.
    pub bytes: Bytes,
}

/// Result of a read: the object's metadata at the start of the read, and the stream of bytes.
///
/// Within a range, chunks arrive in order and without gaps. Chunks of different ranges may interleave. If the stream
/// ends without an error, every range is complete. A whole-object read has then also been verified against the store's
/// checksum, if the store has one.
pub struct GetResult {
    /// Metadata from the response.
    pub meta: Meta,
    /// Stream of the bytes. Dropping it cancels the request.
    pub chunks: BoxStream<'static, Result<Chunk>>,
}

impl fmt::Debug for GetResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetResult").field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// Precondition of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Precondition {
    /// No precondition.
    #[default]
    None,
    /// The key must not exist yet.
    Absent,
    /// The object must have this version.
    Matches(Version),
}

/// Options of a write.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// Precondition of the write. If it is not met, the write returns `Precondition`.
    pub precondition: Precondition,
    /// Content-Encoding to store with the object.
    pub encoding: Option<String>,
    /// Digest of the bytes. A store that supports checksums saves it, and returns `Corrupt` if the bytes differ.
    pub checksum: Option<Digest>,
}
