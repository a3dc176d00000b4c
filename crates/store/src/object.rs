// SPDX-License-Identifier: Apache-2.0
//! Types of the store contract: an object's version and metadata, the chunks of a read, the options of a write.

use std::fmt;

use bytes::Bytes;
use futures::stream::BoxStream;
use penstock_types::{Digest, Key, Result, Url};
use serde::{Deserialize, Serialize};

/// Version of an object: an S3 ETag, a GCS generation, a file's inode, size and mtime. Opaque; compared only
/// for equality, and only with versions of the same store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version(pub String);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// URL of `key` below a store's root, for errors.
pub fn place(root: &Url, key: &Key) -> String {
    root.with_key(root.key.join(key.as_bytes())).to_string()
}

/// Capabilities of a store; the suite tests each claim, and callers check before they depend on one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Lists keys (a plain web server does not).
    pub list: bool,
    /// Writes and deletes.
    pub put: bool,
    /// Returns versions and honours them on reads.
    pub versions: bool,
    /// Honours preconditions on writes.
    pub preconditions: bool,
    /// Keeps checksums of whole objects and returns them.
    pub checksums: bool,
    /// Reads ranges without reading the whole.
    pub ranges: bool,
    /// Accepts any byte string as a key, for example both `a` and `a/b`.
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

/// An object and, if it is pinned, the version to read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Its key below the store's root.
    pub key: Key,
    /// The version to read; a read of any other errs with `Changed`.
    pub version: Option<Version>,
}

impl ObjectRef {
    /// The current version.
    pub fn current(key: Key) -> Self {
        Self { key, version: None }
    }
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Meta {
    /// Key below the store's root.
    pub key: Key,
    /// Stored bytes.
    pub size: u64,
    /// Version, if the store has versions.
    pub version: Option<Version>,
    /// Digests of the whole stored object, if the response contained them.
    pub digests: Vec<Digest>,
    /// Content-Encoding, as stored with the object.
    pub encoding: Option<String>,
    /// Last change, seconds since the Unix epoch.
    pub modified_s: Option<f64>,
}

/// A piece of one of the requested ranges.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Index of the range in the request.
    pub range: usize,
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// The bytes; never empty.
    pub bytes: Bytes,
}

/// Response of a read: the metadata when it started, and the stream of bytes.
///
/// Within a range, chunks arrive in order and without gaps; ranges may interleave. If the stream ends without an error,
/// every range is complete, and a whole-object read has been verified against the store's checksum, if there is one.
pub struct GetResult {
    /// Metadata from the response.
    pub meta: Meta,
    /// The bytes. Dropping it ends the request.
    pub chunks: BoxStream<'static, Result<Chunk>>,
}

impl fmt::Debug for GetResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetResult").field("meta", &self.meta).finish_non_exhaustive()
    }
}

/// Condition of a write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing.
    #[default]
    None,
    /// The key must not exist yet.
    Absent,
    /// The object is at this version.
    Matches(Version),
}

/// Options of a write.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// Condition of the write; if it fails, the error is `Precondition`.
    pub precondition: Precondition,
    /// Content-Encoding to store with it.
    pub encoding: Option<String>,
    /// Digest of the bytes; a store with checksums refuses bytes that differ (`Corrupt`) and keeps it.
    pub checksum: Option<Digest>,
}
