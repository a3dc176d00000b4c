// SPDX-License-Identifier: Apache-2.0
//! Local folder as a store: `file:///folder/`. A key is a relative path of non-empty names.
//!
//! This module maps keys to files. Every path is resolved below the folder (see `rooted`). Keys that a folder cannot
//! store are rejected. A version consists of inode, size and mtime, so a file has another version after it was changed
//! or replaced.

mod direct;
mod list;
mod opened_file;
mod read;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use penstock_types::{ByteRange, Deadline, Error, Key, Result, Url};

pub use self::direct::LocalReads;
pub use self::read::plan;
pub use self::write::WRITE_BYTES;
use crate::{BufferPool, Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store};

/// Local folder as a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Local {
    root: Url,
    path: PathBuf,
    reads: LocalReads,
    /// Maximum size in bytes of a chunk that is read through the page cache.
    piece: u64,
    direct: Arc<direct::Direct>,
    buffers: Arc<BufferPool>,
}

impl Local {
    /// Creates the store of a folder, given by its absolute path. The folder need not exist yet.
    pub fn new(path: &Path) -> Result<Self> {
        let root = Url::from_path(path)?.as_folder();
        let (direct, buffers) = (Arc::default(), BufferPool::of_process());
        Ok(Self { root, path: path.to_owned(), reads: LocalReads::Threads, piece: read::PIECE, direct, buffers })
    }

    /// Returns the same store with another read method.
    pub fn with_reads(self, reads: LocalReads) -> Self {
        Self { reads, ..self }
    }

    /// Returns the same store with chunks of up to `piece` bytes, for readers that need whole files in one chunk.
    pub fn with_piece(self, piece: u64) -> Self {
        Self { piece: piece.max(1), ..self }
    }

    fn place(&self, key: &Key) -> String {
        crate::place(&self.root, key)
    }

    /// Runs blocking work on another thread.
    async fn blocking<T: Send + 'static>(
        &self,
        what: &str,
        deadline: Deadline,
        work: impl FnOnce(Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        blocking(what, deadline, move || work(store)).await
    }
}

/// Runs blocking work on a separate thread. The caller waits only until the deadline. After the deadline, the work
/// continues, because a system call cannot be interrupted.
async fn blocking<T: Send + 'static>(
    what: &str,
    deadline: Deadline,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    deadline.check(what)?;
    let work = tokio::task::spawn_blocking(work);
    let joined = match deadline.instant() {
        Some(at) => tokio::time::timeout_at(at.into(), work).await.map_err(|_| deadline.error(what))?,
        None => work.await,
    };
    joined.map_err(|error| match error.is_panic() {
        true => Error::bug(format!("{what} panicked")),
        false => Error::Interrupted,
    })?
}

#[async_trait]
impl Store for Local {
    fn root(&self) -> &Url {
        &self.root
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { checksums: false, any_key: false, ..Capabilities::ALL }
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        list::stream(self.clone(), prefix.clone(), after.cloned(), deadline).boxed()
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let key = key.clone();
        self.blocking("HEAD", deadline, move |store| {
            let file = store.open_object(&key)?;
            Ok(file.meta)
        })
        .await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        read::get(self, object, ranges, deadline).await
    }

    /// The file system enforces the precondition `Absent`. For `Matches`, a folder lock excludes other Penstock
    /// processes. Other programs are not excluded; the version is checked immediately before the write.
    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        let (key, options) = (key.clone(), options.clone());
        self.blocking("PUT", deadline, move |store| write::put(&store, &key, &parts, &options)).await
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        None
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        let keys = keys.to_vec();
        self.blocking("DELETE", deadline, move |store| keys.iter().try_for_each(|key| write::delete(&store, key))).await
    }
}
