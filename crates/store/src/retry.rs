// SPDX-License-Identifier: Apache-2.0
//! Retries failed requests with exponential back-off and full jitter, and respects Retry-After. All calls to a store
//! that throttles share one request rate. Retries are limited by time budgets, not by attempt counts, and each request
//! has an idle timeout. If a read is interrupted, it resumes after the last byte received, at the same version (see
//! `resuming_stream`). This wrapper only repeats requests of the inner store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Metrics, Result, Url};

use crate::resuming_stream::{self, Source};
use crate::retry_policy::{Attempts, RetryPolicy, Shared};
use crate::{Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store, checksum};

/// Store wrapper that retries failed requests.
#[derive(Debug)]
pub struct Retry {
    shared: Arc<Shared>,
}

impl Retry {
    /// Wraps `inner` and retries its requests.
    pub fn new(inner: Arc<dyn Store>, policy: RetryPolicy) -> Self {
        Self { shared: Shared::new(inner, policy, Arc::default()) }
    }

    /// Counts retries, waits and requested bytes in the given metrics.
    pub fn with_metrics(self, metrics: Arc<Metrics>) -> Self {
        let Shared { inner, policy, .. } = &*self.shared;
        Self { shared: Shared::new(inner.clone(), policy.clone(), metrics) }
    }

    pub(crate) fn inner(&self) -> &dyn Store {
        &*self.shared.inner
    }

    pub(crate) fn attempt_timeout(&self) -> Duration {
        self.shared.policy.stall_after
    }

    pub(crate) fn attempts(&self, what: &str, key: &Key, deadline: Deadline) -> Attempts {
        let what = format!("{what} {}", crate::place(self.shared.inner.root(), key));
        Attempts::new(self.shared.clone(), what, deadline)
    }
}

#[async_trait]
impl Store for Retry {
    fn root(&self) -> &Url {
        self.shared.inner.root()
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.inner.capabilities()
    }

    /// Lists keys. An interrupted listing resumes after its last key. If the store ignores the start key and begins at
    /// or before that key, returns the original error, because each resumed listing would begin there again.
    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        struct Listing<'a> {
            stream: Option<ListStream<'a>>,
            after: Option<Key>,
            /// Error that caused the current restart. Cleared when the next key arrives.
            broke: Option<Error>,
            attempts: Attempts,
        }
        let prefix = prefix.clone();
        let state = Listing {
            stream: None,
            after: after.cloned(),
            broke: None,
            attempts: self.attempts("LIST", &prefix, deadline),
        };
        stream::try_unfold(state, move |mut state| {
            let prefix = prefix.clone();
            async move {
                state.attempts.asked();
                loop {
                    let begins = state.stream.is_none();
                    let stream = state
                        .stream
                        .get_or_insert_with(|| self.shared.inner.list(&prefix, state.after.as_ref(), deadline));
                    let limit = self.shared.policy.stall_after;
                    let next = if begins {
                        state.attempts.attempt(limit, stream.try_next()).await
                    } else {
                        state.attempts.silent_no_longer(limit, stream.try_next()).await
                    };
                    match next {
                        Ok(None) => return Ok(None),
                        Ok(Some(meta)) => {
                            match state.broke.take() {
                                Some(error) if state.after.as_ref().is_some_and(|after| meta.key <= *after) => {
                                    return Err(error);
                                }
                                _ => state.attempts.progressed(),
                            }
                            state.after = Some(meta.key.clone());
                            return Ok(Some((meta, state)));
                        }
                        Err(error) => {
                            state.stream = None;
                            state.attempts.after(error.clone()).await?;
                            state.broke = Some(error);
                        }
                    }
                }
            }
        })
        .boxed()
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let mut attempts = self.attempts("HEAD", key, deadline);
        loop {
            match attempts.attempt(self.shared.policy.stall_after, self.shared.inner.head(key, deadline)).await {
                Ok(meta) => return Ok(meta),
                Err(error) => attempts.after(error).await?,
            }
        }
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let mut attempts = self.attempts("GET", &object.key, deadline);
        let got = loop {
            let work = self.shared.inner.get_ranges(object, ranges, deadline);
            match attempts.attempt(self.shared.policy.stall_after, work).await {
                Ok(got) => break got,
                Err(error) => attempts.after(error).await?,
            }
        };
        let size = got.meta.size;
        let asked = ranges.iter().map(|range| range.end(size).saturating_sub(range.start)).sum();
        self.shared.metrics.add(Metric::BytesRequested, asked);
        let place = crate::place(self.root(), &object.key);
        let digest = match ranges {
            [range] if range.is_whole() => checksum::cheapest(&got.meta.digests).cloned(),
            _ => None,
        };
        let source = Source::new(object.key.clone(), &got.meta, ranges);
        let chunks = resuming_stream::stream(attempts, source, got.chunks);
        let chunks = match digest {
            Some(digest) => checksum::verified(chunks, &digest, place),
            None => chunks,
        };
        Ok(GetResult { meta: got.meta, chunks })
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        let size: u64 = parts.iter().map(|part| part.len() as u64).sum();
        // Large objects take longer. The timeout allows for a rate as low as 1 MB/s.
        let limit = self.shared.policy.stall_after + Duration::from_micros(size);
        let mut attempts = self.attempts("PUT", key, deadline);
        let mut is_doubtful = false;
        loop {
            let work = self.shared.inner.put(key, parts.clone(), options, deadline);
            match attempts.attempt(limit, work).await {
                Ok(meta) => return Ok(meta),
                // An earlier attempt may have succeeded although its connection broke. The existing object may
                // therefore be the object that this call wrote.
                Err(error @ Error::Precondition { .. }) if is_doubtful => {
                    let existing = self.head(key, deadline).await?;
                    let ours = existing.size == size
                        && checksum::cheapest(&existing.digests).is_some_and(|digest| {
                            checksum::of_parts(digest.algorithm, &parts).as_ref() == Some(digest)
                        });
                    return if ours { Ok(existing) } else { Err(error) };
                }
                Err(error) => {
                    is_doubtful |= !matches!(error, Error::Throttled { .. });
                    attempts.after(error).await?;
                }
            }
        }
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        self.inner().multipart().map(|_| self as &dyn MultipartStore)
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        let mut attempts = self.attempts("DELETE", &Key::default(), deadline);
        loop {
            match attempts.attempt(self.shared.policy.stall_after, self.shared.inner.delete(keys, deadline)).await {
                Ok(()) => return Ok(()),
                Err(error) => attempts.after(error).await?,
            }
        }
    }
}
