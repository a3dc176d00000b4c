// SPDX-License-Identifier: Apache-2.0
//! The contract. The store suite (`crate::suite`) states it as tests, per capability.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use penstock_types::{ByteRange, Deadline, Key, Result, Url};

use crate::{Capabilities, GetResult, Meta, MultipartStore, ObjectRef, PutOptions};

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

/// A store, and where in it the URL points.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The store: retried, and counting into the metrics that it was opened with.
    pub store: Arc<dyn Store>,
    /// Prefix of the keys that the URL names.
    pub prefix: Key,
}
