// SPDX-License-Identifier: Apache-2.0
//! The contract of stores. The store suite (`crate::suite`) tests it, per capability.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use penstock_types::{ByteRange, Deadline, Key, Result, Url};

use crate::{Capabilities, GetResult, Meta, MultipartStore, ObjectRef, PutOptions};

/// Keys and their metadata, in the byte order of keys.
pub type ListStream<'a> = BoxStream<'a, Result<Meta>>;

/// Serves requests for keys. Stateless and atomic: an object is visible whole or not at all, and nothing is remembered
/// between calls. Cheap to share (`Arc<dyn Store>`).
///
/// No method has a default body: a wrapper that omitted one would silently bypass the wrapped store.
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

    /// Reads ranges of one object; `[ByteRange::WHOLE]` for all of it. The deadline covers the call and its stream.
    ///
    /// Errs with `NotFound`, `Changed` (the pinned version is gone) or, for a range that begins beyond the end,
    /// `Corrupt`. A range that ends beyond the end is cut there.
    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult>;

    /// Writes one object, whole or not at all, from its parts in order.
    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta>;

    /// Interface for multipart uploads that outlive a process; `None` if the store has none, or needs none.
    fn multipart(&self) -> Option<&dyn MultipartStore>;

    /// Deletes objects; one that does not exist is not an error.
    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()>;
}

/// A store, and the key prefix of the URL.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The store, with retries and with the metrics that it was opened with.
    pub store: Arc<dyn Store>,
    /// Prefix of the keys below the URL.
    pub prefix: Key,
}
