// SPDX-License-Identifier: Apache-2.0
//! The contract. The store suite (`crate::suite`) states it as tests, per capability.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use penstock_types::{ByteRange, Deadline, Digest, Key, Result, Url};
use serde::{Deserialize, Serialize};

use crate::MultipartStore;

/// What pins one state of an object: an S3 ETag, a GCS generation, a file's inode, size and mtime. Opaque; compared only
/// for equality, and only with versions of the same store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version(pub String);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The place that an error names: the URL of `key` below a store's root.
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
    /// Gives versions and honours them on reads.
    pub versions: bool,
    /// Honours preconditions on writes.
    pub preconditions: bool,
    /// Keeps checksums of whole objects and gives them back.
    pub checksums: bool,
    /// Reads ranges without reading the whole.
    pub ranges: bool,
    /// Holds any byte string as a key, `a` beside `a/b` among them.
    pub any_key: bool,
}

impl Capabilities {
    /// All of them.
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

/// An object and, where it is pinned, the version that must be read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectRef {
    /// Its key below the store's root.
    pub key: Key,
    /// The version to read; a read of any other errs with `Changed`.
    pub version: Option<Version>,
}

impl ObjectRef {
    /// Whatever version is current.
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
    /// Version, where the store has versions.
    pub version: Option<Version>,
    /// Digests of the whole object as stored, where the answer carried them.
    pub digests: Vec<Digest>,
    /// Content-Encoding, as stored with the object.
    pub encoding: Option<String>,
    /// Last change, seconds since the Unix epoch.
    pub modified_s: Option<f64>,
}

/// A stretch of one of the ranges that were asked for.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Which of the ranges, by its place in the request.
    pub range: usize,
    /// Offset of the first byte in the object.
    pub offset: u64,
    /// The bytes; never empty.
    pub bytes: Bytes,
}

/// The answer to a read: what was known when it began, and the bytes as they come.
///
/// Within a range, chunks come in order and without gaps; ranges may interleave. When the stream ends without an error
/// every range is complete, and a whole-object read has been checked against the store's own checksum where it gave one.
pub struct GetResult {
    /// The object as the store described it in its answer.
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
    /// No object of that key yet.
    Absent,
    /// The object is at this version.
    Matches(Version),
}

/// How to write.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// Condition of the write; if it fails, the error is `Precondition`.
    pub precondition: Precondition,
    /// Content-Encoding to store with it.
    pub encoding: Option<String>,
    /// Digest of the bytes; a store with checksums refuses bytes that differ (`Corrupt`) and keeps it.
    pub checksum: Option<Digest>,
}

/// Keys and what is known of them, in the byte order of keys.
pub type ListStream<'a> = BoxStream<'a, Result<Meta>>;

/// Answers requests for keys. Stateless and atomic: an object is seen whole or not at all, and nothing is remembered
/// between calls. Cheap to share (`Arc<dyn Store>`).
///
/// No method has a default body: a wrapper that forgot one would silently skip what it wraps.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// The root: keys are relative to it, and it appears in errors.
    fn root(&self) -> &Url;

    /// Capabilities of this store.
    fn capabilities(&self) -> Capabilities;

    /// Objects whose key begins with `prefix` and sorts after `after`. `Unsupported` without the capability.
    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_>;

    /// Metadata of one object; `NotFound` if it does not exist.
    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta>;

    /// Ranges of one object; `[ByteRange::WHOLE]` for all of it. The deadline covers the call and its stream.
    ///
    /// Errs with `NotFound`, `Changed` (the pinned version is gone) or, for a range that begins beyond the end,
    /// `Corrupt`. A range that ends beyond the end is cut there.
    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult>;

    /// Writes one object, whole or not at all, from its parts in order.
    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta>;

    /// The door for objects in parts that outlive a process; `None` where a store has none, or needs none.
    fn uploads(&self) -> Option<&dyn MultipartStore>;

    /// Deletes objects; one that does not exist is not an error.
    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()>;
}
