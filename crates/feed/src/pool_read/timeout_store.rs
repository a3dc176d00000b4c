// SPDX-License-Identifier: Apache-2.0
//! Store wrapper that adds short timeouts. A pool's engine may take minutes to detect that a node is down.
//!
//! The wrapper is inside the concurrency limit, so the time that a request waits in the queue does not count towards
//! the timeout.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_store::{GetResult, Meta, ObjectRef, Store};
use penstock_types::{ByteRange, Deadline, Error, Key, Result};

use super::ObjectState;

/// Timeout of a metadata request to the engine.
const LOOK: Duration = Duration::from_secs(2);

/// Store wrapper that adds short timeouts (see the module documentation). A request for an object that is not in
/// `known` keeps its full deadline.
#[derive(Debug)]
pub(super) struct TimeoutStore {
    pub inner: Arc<dyn Store>,
    pub known: Arc<HashMap<Key, ObjectState>>,
}

/// Runs `work` with a timeout. Returns `Unreachable` if `work` does not finish in time.
async fn within<T>(timeout: Duration, place: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        let reason = format!("no data received for {} s", timeout.as_secs());
        Err(Error::Unreachable { place: place.to_owned(), reason })
    })
}

#[async_trait]
impl Store for TimeoutStore {
    penstock_store::delegate_store!(|this| this.inner; root, capabilities, list, put, uploads, delete);

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let work = self.inner.head(key, deadline);
        if !self.known.contains_key(key) {
            return work.await;
        }
        within(LOOK, &self.root().to_string(), work).await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let work = self.inner.get_ranges(object, ranges, deadline);
        let Some(known) = self.known.get(&object.key) else { return work.await };
        let (timeout, place) = (known.timeout(), self.root().to_string());
        let got = within(timeout, &place, work).await?;
        let chunks = stream::try_unfold((got.chunks, place), move |(mut chunks, place)| async move {
            let next = within(timeout, &place, chunks.try_next()).await?;
            Ok(next.map(|chunk| (chunk, (chunks, place))))
        });
        Ok(GetResult { meta: got.meta, chunks: chunks.boxed() })
    }
}
