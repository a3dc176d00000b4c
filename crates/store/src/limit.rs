// SPDX-License-Identifier: Apache-2.0
//! Limits the load on a store. A job limits its requests per second and its bytes per second. The number of requests in
//! flight adapts: it stays at a level at which the store neither throttles (429, 503) nor becomes slow. This wrapper is
//! above [`Retry`](crate::Retry), so that a wait in it does not count as an idle connection.
//!
//! The number of requests in flight follows AIMD, as in TCP. A round ends after as many calls as the limit allows in
//! flight. Until the first sign of overload, each round doubles the limit. After that, each round without overload adds
//! one. A round whose first bytes take twice as long as in the best recent round lowers the limit by a tenth. If the
//! store throttles, the round ends without a change of the limit, because `Retry` already lowers the request rate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use penstock_types::{
    Algorithm, ByteRange, Deadline, Digest, Error, Key, Metric, Metrics, Result, Stopwatch, Url, now,
};
use tokio::sync::Notify;

use crate::{
    Capabilities, Chunk, GetResult, ListStream, Meta, MultipartLimits, MultipartStore, ObjectRef, Part, PartSpec,
    PutOptions, Store, UploadId,
};

/// Initial limit of requests in flight. With 8 MiB and 100 ms per request, it fills a link of 10 Gb/s. It is low enough
/// not to overload a store.
const START: usize = 16;
/// Number of keys in one page of a listing. Each page is one request.
const PAGE: u64 = 1000;
/// A round is slow if its first bytes take this many times as long as those of the best recent round.
const SLOW: f64 = 2.0;
/// Variation of first-byte times, in seconds, that a local store shows without overload.
const JITTER: f64 = 0.005;
/// Factor by which the best first-byte time grows in each round. Otherwise, the limit could never rise again after a
/// store has become permanently slower.
const FORGET: f64 = 1.02;

/// Rate limits of a job. The default limits neither requests nor bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Maximum number of requests per second, including retries.
    pub requests_per_s: Option<f64>,
    /// Maximum number of object bytes per second, summed over reads and writes.
    pub bytes_per_s: Option<f64>,
    /// Maximum number of requests in flight.
    pub in_flight: usize,
}

impl Default for Rates {
    fn default() -> Self {
        Self { requests_per_s: None, bytes_per_s: None, in_flight: 64 }
    }
}

impl Rates {
    /// Returns a `Config` error for a rate that is not positive and finite.
    pub fn check(&self) -> Result<()> {
        let bad = |rate: Option<f64>| rate.filter(|rate| !(rate.is_finite() && *rate > 0.0));
        if let Some(rate) = bad(self.requests_per_s) {
            return Err(Error::config("--max-requests-per-s", format!("must be positive (got {rate})")));
        }
        if let Some(rate) = bad(self.bytes_per_s) {
            return Err(Error::config("--max-bytes-per-s", format!("must be positive (got {rate})")));
        }
        Ok(())
    }
}

/// Token bucket. It stores the time at which the next unit may pass.
#[derive(Debug, Default)]
struct TokenBucket {
    next: Option<Instant>,
}

impl TokenBucket {
    /// Limit of the burst after a pause: the number of units that pass in this time at the limited rate.
    const BURST: Duration = Duration::from_millis(100);

    /// Takes `units`. Returns the time until this caller may start, and the time until its units have passed.
    fn take(&mut self, units: f64, rate: f64) -> (Duration, Duration) {
        let at = now();
        let earliest = at.checked_sub(Self::BURST).unwrap_or(at);
        let begin = self.next.map_or(earliest, |next| next.max(earliest));
        // Limit the wait to about a century, in case the rate is very low.
        let end = begin + Duration::from_secs_f64((units / rate).clamp(0.0, 3e9));
        self.next = Some(end);
        (begin.saturating_duration_since(at), end.saturating_duration_since(at))
    }
}

#[derive(Debug)]
struct State {
    limit: usize,
    in_flight: usize,
    /// True until the first sign of overload.
    doubling: bool,
    throttles_seen: u64,
    round: Round,
    best: Option<f64>,
}

/// Requests and bytes that the job has used. All limits of the job share this value.
#[derive(Debug)]
struct Spent {
    requests: TokenBucket,
    bytes: TokenBucket,
    retries_seen: u64,
    part: f64,
}

/// Statistics of the calls that have ended in the current round.
#[derive(Debug, Default)]
struct Round {
    calls: usize,
    first_bytes: f64,
    timed: usize,
}

/// Rate and concurrency limits of one store. All stores of a job share the rates.
#[derive(Debug)]
pub struct AdaptiveLimit {
    rates: Rates,
    metrics: Arc<Metrics>,
    spent: Arc<Mutex<Spent>>,
    state: Mutex<State>,
    freed: Notify,
}

impl AdaptiveLimit {
    /// Creates a limit. It detects throttling and retries in `metrics`, which the limited stores must share.
    pub fn new(rates: Rates, metrics: Arc<Metrics>) -> Arc<Self> {
        let retries_seen = metrics.get(Metric::Retries);
        let spent = Spent { requests: TokenBucket::default(), bytes: TokenBucket::default(), retries_seen, part: 1.0 };
        Self::spending(rates, metrics, Arc::new(Mutex::new(spent)))
    }

    /// Creates a limit for another store of the same job. The two limits share the rates. They do not share the number
    /// of requests in flight, because calls to one store may wait for calls to the other.
    pub fn beside(&self) -> Arc<Self> {
        Self::spending(self.rates, self.metrics.clone(), self.spent.clone())
    }

    fn spending(rates: Rates, metrics: Arc<Metrics>, spent: Arc<Mutex<Spent>>) -> Arc<Self> {
        let most = rates.in_flight.max(1);
        let state = State {
            limit: START.min(most),
            in_flight: 0,
            doubling: true,
            throttles_seen: metrics.get(Metric::Throttles),
            round: Round::default(),
            best: None,
        };
        let rates = Rates { in_flight: most, ..rates };
        Arc::new(Self { rates, metrics, spent, state: Mutex::new(state), freed: Notify::new() })
    }

    /// Sets the share of the job's rates, from 0 to 1, that this process may use.
    pub fn take_part(&self, part: f64) {
        self.spent().part = if part.is_finite() { part.clamp(1e-9, 1.0) } else { 1.0 };
    }

    /// Returns the current limit of requests in flight.
    pub fn limit(&self) -> usize {
        self.state().limit
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spent(&self) -> std::sync::MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the request rate allows `count` more requests.
    async fn rate(&self, count: u64) {
        let Some(rate) = self.rates.requests_per_s else { return };
        let wait = {
            let mut spent = self.spent();
            let retries = self.metrics.get(Metric::Retries);
            let again = retries.saturating_sub(spent.retries_seen);
            spent.retries_seen = retries;
            let rate = rate * spent.part;
            if again > 0 {
                spent.requests.take(again as f64, rate);
            }
            spent.requests.take(count as f64, rate).0
        };
        if wait > Duration::ZERO {
            tokio::time::sleep(wait).await;
        }
    }

    /// Waits until `bytes` bytes would have passed at the limited rate. The bytes have already been transferred.
    async fn passed(&self, bytes: u64) {
        let Some(rate) = self.rates.bytes_per_s else { return };
        let wait = {
            let mut spent = self.spent();
            let rate = rate * spent.part;
            spent.bytes.take(bytes as f64, rate).1
        };
        if wait > Duration::ZERO {
            tokio::time::sleep(wait).await;
        }
    }

    /// Waits until one more request may be sent, and returns the slot for this request.
    async fn enter(self: &Arc<Self>, what: &str, deadline: Deadline) -> Result<Slot> {
        let enter = async {
            let slot = self.slot().await;
            self.rate(1).await;
            slot
        };
        match deadline.instant() {
            None => Ok(enter.await),
            Some(at) => tokio::time::timeout_at(at.into(), enter).await.map_err(|_| deadline.error(what)),
        }
    }

    async fn slot(self: &Arc<Self>) -> Slot {
        loop {
            {
                let mut state = self.state();
                if state.in_flight < state.limit {
                    state.in_flight += 1;
                    if state.in_flight < state.limit {
                        self.freed.notify_one();
                    }
                    return Slot { governor: self.clone(), sent: Stopwatch::start(), first_byte: None };
                }
            }
            self.freed.notified().await;
        }
    }

    /// Updates the state when a call has ended. At the end of a round, adjusts the limit.
    fn left(&self, first_byte: Option<Duration>) {
        let throttles = self.metrics.get(Metric::Throttles);
        let mut state = self.state();
        state.in_flight -= 1;
        if throttles > state.throttles_seen {
            state.throttles_seen = throttles;
            state.doubling = false;
            state.round = Round::default();
        } else {
            state.round.calls += 1;
            if let Some(first_byte) = first_byte {
                state.round.first_bytes += first_byte.as_secs_f64();
                state.round.timed += 1;
            }
            if state.round.calls >= state.limit {
                let round = std::mem::take(&mut state.round);
                state.turn(&round, self.rates.in_flight);
            }
        }
        drop(state);
        self.freed.notify_one();
    }
}

impl State {
    /// Adjusts the limit after a round without throttling.
    fn turn(&mut self, round: &Round, most: usize) {
        let mut slow = false;
        // With fewer calls, the mean would not be reliable.
        if round.timed >= 4 {
            let mean = round.first_bytes / round.timed as f64;
            slow = self.best.is_some_and(|best| mean > best * SLOW + JITTER);
            self.best = Some(self.best.map_or(mean, |best| (best * FORGET).min(mean)));
        }
        if slow {
            self.doubling = false;
            // Never go below the initial limit, so that a store with varying response times still gets requests.
            self.limit = (self.limit - self.limit / 10).max(START.min(self.limit));
        } else if self.doubling {
            self.limit = self.limit.saturating_mul(2).min(most);
        } else {
            self.limit = (self.limit + 1).min(most);
        }
    }
}

/// Permission for one request in flight.
struct Slot {
    governor: Arc<AdaptiveLimit>,
    sent: Stopwatch,
    first_byte: Option<Duration>,
}

impl Slot {
    fn answered(&mut self) {
        self.first_byte.get_or_insert_with(|| self.sent.elapsed());
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.governor.left(self.first_byte);
    }
}

/// Store wrapper that limits the load on the inner store.
#[derive(Debug)]
pub struct LimitStore {
    inner: Arc<dyn Store>,
    governor: Arc<AdaptiveLimit>,
}

impl LimitStore {
    /// Wraps `inner` and limits the calls to it.
    pub fn new(inner: Arc<dyn Store>, governor: Arc<AdaptiveLimit>) -> Self {
        Self { inner, governor }
    }

    async fn enter(&self, what: &str, key: &Key, deadline: Deadline) -> Result<Slot> {
        // Build the text only if an error may need it.
        let what = match deadline.instant() {
            None => String::new(),
            Some(_) => format!("{what} {}", crate::place(self.inner.root(), key)),
        };
        self.governor.enter(&what, deadline).await
    }
}

/// Passes the chunks on at the limited rate. Holds the slot until the stream has ended or was dropped.
fn governed(chunks: BoxStream<'static, Result<Chunk>>, slot: Slot) -> BoxStream<'static, Result<Chunk>> {
    stream::unfold((chunks, slot), |(mut chunks, slot)| async move {
        let next = chunks.next().await?;
        if let Ok(chunk) = &next {
            slot.governor.passed(chunk.bytes.len() as u64).await;
        }
        Some((next, (chunks, slot)))
    })
    .fuse()
    .boxed()
}

#[async_trait]
impl Store for LimitStore {
    fn root(&self) -> &Url {
        self.inner.root()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    /// Each page counts as one request. A listing has only one request in flight at a time.
    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        let listing = self.inner.list(prefix, after, deadline);
        stream::unfold((listing, 0u64), move |(mut listing, seen)| async move {
            if seen % PAGE == 0 {
                self.governor.rate(1).await;
            }
            let next = listing.next().await?;
            Some((next, (listing, seen + 1)))
        })
        .boxed()
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let mut slot = self.enter("HEAD", key, deadline).await?;
        let meta = self.inner.head(key, deadline).await?;
        slot.answered();
        Ok(meta)
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let mut slot = self.enter("GET", &object.key, deadline).await?;
        let got = self.inner.get_ranges(object, ranges, deadline).await?;
        slot.answered();
        Ok(GetResult { meta: got.meta, chunks: governed(got.chunks, slot) })
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        let _slot = self.enter("PUT", key, deadline).await?;
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let meta = self.inner.put(key, parts, options, deadline).await?;
        self.governor.passed(bytes).await;
        Ok(meta)
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        self.inner.multipart().map(|_| self as &dyn MultipartStore)
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        let _slot = self.enter("DELETE", &Key::default(), deadline).await?;
        self.inner.delete(keys, deadline).await
    }
}

impl LimitStore {
    fn multipart(&self) -> Result<&dyn MultipartStore> {
        self.inner
            .multipart()
            .ok_or_else(|| Error::bug("a multipart upload to a store that does not support multipart uploads"))
    }
}

#[async_trait]
impl MultipartStore for LimitStore {
    fn limits(&self) -> MultipartLimits {
        // Nothing uses this value, because this method is called only if the inner store supports multipart uploads.
        let none = MultipartLimits { least: 1, multiple: 1, max_parts: 1, is_ordered: true, whole: Algorithm::Crc32c };
        self.inner.multipart().map_or(none, |uploads| uploads.limits())
    }

    async fn create(&self, key: &Key, options: &PutOptions, deadline: Deadline) -> Result<UploadId> {
        let _slot = self.enter("POST", key, deadline).await?;
        self.multipart()?.create(key, options, deadline).await
    }

    async fn list_parts(&self, key: &Key, id: &UploadId, parts: &[Part], deadline: Deadline) -> Result<Vec<Part>> {
        let _slot = self.enter("GET", key, deadline).await?;
        self.multipart()?.list_parts(key, id, parts, deadline).await
    }

    async fn put_part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part> {
        let _slot = self.enter("PUT", key, deadline).await?;
        let size = bytes.iter().map(|piece| piece.len() as u64).sum();
        let part = self.multipart()?.put_part(key, id, at, bytes, deadline).await?;
        self.governor.passed(size).await;
        Ok(part)
    }

    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta> {
        let _slot = self.enter("POST", key, deadline).await?;
        self.multipart()?.complete(key, id, parts, whole, options, deadline).await
    }

    async fn abort(&self, key: &Key, id: &UploadId, deadline: Deadline) -> Result<()> {
        let _slot = self.enter("DELETE", key, deadline).await?;
        self.multipart()?.abort(key, id, deadline).await
    }
}

#[cfg(test)]
#[path = "limit_tests.rs"]
mod tests;
