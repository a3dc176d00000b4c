// SPDX-License-Identifier: Apache-2.0
//! Counts the calls and bytes of a store in which each call is one request: local folders, memory, and stores in tests.
//! Stores on a network count their own requests, because one call may need several requests.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Metrics, Result, Stopwatch, Url};

use crate::{Capabilities, Chunk, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store};

/// Assumed number of keys per page of a listing, for stores without pages.
const PAGE: u64 = 1000;

/// Store wrapper that counts calls and bytes.
#[derive(Debug)]
pub struct MeteredStore {
    inner: Arc<dyn Store>,
    metrics: Arc<Metrics>,
}

impl MeteredStore {
    /// Wraps `inner` and counts its calls in `metrics`.
    pub fn new(inner: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics }
    }

    pub(crate) fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    /// Counts one request of a multipart upload that sends `bytes` bytes.
    pub(crate) fn uploaded(&self, bytes: u64) {
        self.sent(Metric::Puts);
        self.metrics.add(Metric::BytesSent, bytes);
    }

    fn sent(&self, kind: Metric) {
        self.metrics.count(Metric::Requests);
        self.metrics.count(kind);
    }

    fn seen<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| count_error(&self.metrics, error))
    }
}

/// Counts an error. A throttled request counts as a throttle, not as an error.
pub(crate) fn count_error(metrics: &Metrics, error: &Error) {
    metrics.count(if matches!(error, Error::Throttled { .. }) { Metric::Throttles } else { Metric::Errors });
}

/// Counts the bytes of a body as they arrive. Also measures the time from `started` to the first byte, and from the
/// first byte to the last.
pub(crate) fn timed(
    chunks: BoxStream<'static, Result<Chunk>>,
    started: Stopwatch,
    metrics: Arc<Metrics>,
) -> BoxStream<'static, Result<Chunk>> {
    struct Timed {
        chunks: BoxStream<'static, Result<Chunk>>,
        started: Stopwatch,
        first: Option<Stopwatch>,
        metrics: Arc<Metrics>,
    }
    impl Drop for Timed {
        fn drop(&mut self) {
            match &self.first {
                Some(first) => self.metrics.time(Metric::Transfer, first.elapsed()),
                None => self.metrics.time(Metric::FirstByteWait, self.started.elapsed()),
            }
        }
    }
    let state = Timed { chunks, started, first: None, metrics };
    stream::unfold(state, |mut state| async move {
        let next = state.chunks.next().await?;
        match &next {
            Ok(chunk) => {
                if state.first.is_none() {
                    state.metrics.time(Metric::FirstByteWait, state.started.elapsed());
                    state.first = Some(Stopwatch::start());
                }
                state.metrics.add(Metric::BytesIn, chunk.bytes.len() as u64);
            }
            Err(error) => count_error(&state.metrics, error),
        }
        Some((next, state))
    })
    .fuse()
    .boxed()
}

#[async_trait]
impl Store for MeteredStore {
    fn root(&self) -> &Url {
        self.inner.root()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        self.sent(Metric::Lists);
        let mut seen = 0;
        self.inner
            .list(prefix, after, deadline)
            .inspect_ok(move |_| {
                seen += 1;
                if seen % PAGE == 0 {
                    self.sent(Metric::Lists);
                }
            })
            .inspect_err(|error| count_error(&self.metrics, error))
            .boxed()
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        self.sent(Metric::Heads);
        self.seen(self.inner.head(key, deadline).await)
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        self.sent(Metric::Gets);
        let started = Stopwatch::start();
        let got = self.seen(self.inner.get_ranges(object, ranges, deadline).await)?;
        Ok(GetResult { meta: got.meta, chunks: timed(got.chunks, started, self.metrics.clone()) })
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        self.sent(Metric::Puts);
        self.metrics.add(Metric::BytesSent, parts.iter().map(|part| part.len() as u64).sum());
        self.seen(self.inner.put(key, parts, options, deadline).await)
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        self.inner().multipart().map(|_| self as &dyn MultipartStore)
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        self.metrics.count(Metric::Requests);
        self.seen(self.inner.delete(keys, deadline).await)?;
        self.metrics.add(Metric::Deletes, keys.len() as u64);
        Ok(())
    }
}
