// SPDX-License-Identifier: Apache-2.0
//! Hedged requests (Dean and Barroso, "The tail at scale", CACM 56(2), 2013). If a GET has returned nothing for longer
//! than nearly all recent GETs took, this wrapper sends it a second time. The first response is used, and the other
//! request is cancelled. This wrapper is below [`Retry`](crate::Retry), so that it measures each request separately.
//!
//! The time after which a request counts as late follows the recent response times. At most a fixed share of all GETs
//! is sent twice. While a store throttles, no GET is sent twice, because that would slow the store down further. Writes
//! are never sent twice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::{Either, select};
use futures::{StreamExt, pin_mut, stream};
use penstock_types::{ByteRange, Deadline, Error, Metric, Metrics, Result, Stopwatch, now};

use crate::{GetResult, ObjectRef, Store};

/// Number of recent responses from which the quantile is computed.
const PEERS: usize = 256;
/// Minimum number of responses from which the quantile is computed.
const MIN_PEERS: usize = 32;
/// Number of new responses after which the quantile is computed again.
const LEARN_EVERY: usize = 16;
/// Quantile of the recent response times. A request that takes longer is late.
const QUANTILE: f64 = 0.95;
/// A request is late only after this many median response times. The second request itself takes about one median
/// response time, so sending it earlier would not save time.
const MEDIANS: f64 = 2.0;
/// Minimum time before a second request is sent. After a shorter time, a hedge costs more than it can save.
const FLOOR: Duration = Duration::from_millis(20);
/// Maximum share of hedged GETs among all GETs.
const SHARE: f64 = 0.05;
/// Maximum number of unused hedges that accumulate for later bursts.
const SAVED: f64 = 8.0;
/// Time after a throttled request during which no GET is hedged.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct State {
    /// Recent times to the first byte, in the order of the responses.
    peers: VecDeque<Duration>,
    since_learned: usize,
    /// Time after which a request is late. `None` until it has been computed.
    late: Option<Duration>,
    /// Number of hedges that may be sent now.
    saved: f64,
    throttled: Option<Instant>,
}

impl State {
    fn answered(&mut self, after: Duration) {
        if self.peers.len() == PEERS {
            self.peers.pop_front();
        }
        self.peers.push_back(after);
        self.since_learned += 1;
        if self.peers.len() >= MIN_PEERS && (self.late.is_none() || self.since_learned >= LEARN_EVERY) {
            self.since_learned = 0;
            let mut sorted: Vec<Duration> = self.peers.iter().copied().collect();
            sorted.sort_unstable();
            let at = |quantile: f64| sorted[((sorted.len() - 1) as f64 * quantile) as usize];
            self.late = Some(at(QUANTILE).max(at(0.5).mul_f64(MEDIANS)).max(FLOOR));
        }
    }

    /// Returns the time after which a new request counts as late. Returns `None` if this time is not known yet, or if
    /// the store has throttled recently.
    fn hedge_after(&self) -> Option<Duration> {
        let is_quiet = self.throttled.is_some_and(|at| now().saturating_duration_since(at) < QUIET);
        self.late.filter(|_| !is_quiet)
    }
}

/// Store wrapper that sends late GETs a second time.
#[derive(Debug)]
pub struct Hedge {
    inner: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

impl Hedge {
    /// Wraps `inner` and hedges its GETs. Counts hedges, and second requests that won, in `metrics`.
    pub fn new(inner: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends one request and waits for its first byte.
    async fn ask(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let throttled = |error: &Error| {
            if matches!(error, Error::Throttled { .. }) {
                self.state().throttled = Some(now());
            }
        };
        let mut got = self.inner.get_ranges(object, ranges, deadline).await.inspect_err(throttled)?;
        match got.chunks.next().await {
            None => Ok(got),
            Some(first) => {
                let first = first.inspect_err(throttled)?;
                Ok(GetResult { meta: got.meta, chunks: stream::iter([Ok(first)]).chain(got.chunks).boxed() })
            }
        }
    }

    /// Counts a request. Returns the time after which the request is late; `None` if it must not be hedged.
    fn asked(&self) -> Option<Duration> {
        let mut state = self.state();
        state.saved = (state.saved + SHARE).min(SAVED);
        state.hedge_after()
    }

    /// Takes one hedge from the allowed number. Returns false if no hedge is left.
    fn may_hedge(&self) -> bool {
        let mut state = self.state();
        // The store may have throttled another request since this request was sent.
        if state.saved < 1.0 || state.hedge_after().is_none() {
            return false;
        }
        state.saved -= 1.0;
        true
    }

    /// Records the response time of a successful request.
    fn ended(&self, result: Result<GetResult>, sent: &Stopwatch) -> Result<GetResult> {
        if result.is_ok() {
            self.state().answered(sent.elapsed());
        }
        result
    }
}

#[async_trait]
impl Store for Hedge {
    crate::delegate_store!(|this| this.inner; root, capabilities, list, head, put, uploads, delete);

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let hedge_after = self.asked();
        let sent = Stopwatch::start();
        let first = self.ask(object, ranges, deadline);
        pin_mut!(first);
        let Some(hedge_after) = hedge_after else { return self.ended(first.await, &sent) };
        if let Ok(result) = tokio::time::timeout(hedge_after, &mut first).await {
            return self.ended(result, &sent);
        }
        if !self.may_hedge() {
            return self.ended(first.await, &sent);
        }
        self.metrics.count(Metric::Hedges);
        let second = self.ask(object, ranges, deadline);
        pin_mut!(second);
        let (result, is_second) = match select(first, second).await {
            // Ignore the error while the other request may still succeed.
            Either::Left((Err(error), second)) => (second.await.map_err(|_| error), true),
            Either::Left((result, _)) => (result, false),
            Either::Right((Err(_), first)) => (first.await, false),
            Either::Right((result, _)) => (result, true),
        };
        if is_second && result.is_ok() {
            self.metrics.count(Metric::HedgesWon);
        }
        self.ended(result, &sent)
    }
}

#[cfg(test)]
#[path = "hedge_tests.rs"]
mod tests;
