// SPDX-License-Identifier: Apache-2.0
//! A store wrapper with short timeouts: an engine may take minutes to notice that a node is gone.
//!
//! Lies inside the concurrency limit, so that queueing time does not count as silence of the engine.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use penstock_store::{GetResult, Meta, ObjectRef, Store};
use penstock_types::{ByteRange, Deadline, Error, Key, Result};

use super::ObjectState;

/// Timeout of an engine's answer about an object.
const LOOK: Duration = Duration::from_secs(2);

/// See the module. Objects that are not `known` use their full deadline.
#[derive(Debug)]
pub(super) struct TimeoutStore {
    pub inner: Arc<dyn Store>,
    pub known: Arc<HashMap<Key, ObjectState>>,
}

/// `Unreachable` if the work does not finish in time.
async fn within<T>(timeout: Duration, place: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(timeout, work).await.unwrap_or_else(|_| {
        let reason = format!("no byte for {} s", timeout.as_secs());
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
