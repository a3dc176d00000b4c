// SPDX-License-Identifier: Apache-2.0
//! The `Store` trait, which all stores implement. The store suite (`crate::suite`) tests its contract for each
//! capability.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use penstock_types::{ByteRange, Deadline, Key, Result, Url};

use crate::{Capabilities, GetResult, Meta, MultipartStore, ObjectRef, PutOptions};

/// Stream of keys and their metadata, in the byte order of keys.
pub type ListStream<'a> = BoxStream<'a, Result<Meta>>;

/// Object store: reads, writes and lists objects by key. A store keeps no state between calls. A write is atomic:
/// readers never see a partial object. A store can be shared cheaply (`Arc<dyn Store>`).
///
/// Methods have no default bodies. Otherwise, a wrapper that omits a method would silently bypass its inner store.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Returns the root URL, to which all keys are relative. Error messages contain it.
    fn root(&self) -> &Url;

    /// Returns the capabilities of this store.
    fn capabilities(&self) -> Capabilities;

    /// Lists the objects whose keys begin with `prefix` and sort after `after`. Returns `Unsupported` if the store does
    /// not have the `list` capability.
    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_>;

    /// Returns the metadata of one object, or `NotFound` if it does not exist.
    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta>;

    /// Reads ranges of one object. `[ByteRange::WHOLE]` reads all of it. The deadline covers the call and its stream.
    ///
    /// Returns `NotFound` if the object does not exist, and `Changed` if it no longer has the pinned version. Returns
    /// `Corrupt` if a range begins beyond the end of the object. A range that ends beyond the end is shortened.
    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult>;

    /// Writes one object from `parts`, in order. The write is atomic.
    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta>;

    /// Returns the interface for multipart uploads that can outlive a process. Returns `None` if the store does not
    /// support or need such uploads.
    fn multipart(&self) -> Option<&dyn MultipartStore>;

    /// Deletes objects. An object that does not exist is not an error.
    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()>;
}

/// A store and the key prefix from its URL.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The store, with retries and metrics.
    pub store: Arc<dyn Store>,
    /// Prefix of the keys below the URL.
    pub prefix: Key,
}
