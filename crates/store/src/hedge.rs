// SPDX-License-Identifier: Apache-2.0
//! Asks a second time for what is late: a GET that has brought nothing after nearly all of its peers have is sent once
//! more, the first answer wins and the other request ends (Dean and Barroso, "The tail at scale", CACM 56(2), 2013).
//! Below [`Retry`](crate::Retry), so that each request is judged by itself.
//!
//! The threshold for late requests follows recent answers; extra requests are a stated share of all. A store that throttles is
//! asked nothing twice: it would only be made slower. Owns no request that writes; those are sent once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::future::{Either, select};
use futures::{StreamExt, pin_mut, stream};
use penstock_types::{ByteRange, Deadline, Error, Metric, Metrics, Result, Stopwatch, now};

use crate::{GetResult, ObjectRef, Store};

/// Answers that the quantile is taken from.
const PEERS: usize = 256;
/// With fewer, nothing is known.
const MIN_PEERS: usize = 32;
/// The quantile is taken again after so many answers.
const LEARN_EVERY: usize = 16;
/// A request is late behind this share of its peers.
const QUANTILE: f64 = 0.95;
/// A read that would not end sooner by a second request is not late: a second answer takes another median.
const MEDIANS: f64 = 2.0;
/// Below this, what a hedge can save is less than what it costs.
const FLOOR: Duration = Duration::from_millis(20);
/// Extra requests, of all GETs.
const SHARE: f64 = 0.05;
/// Extra requests that may be saved up for a bad moment.
const SAVED: f64 = 8.0;
/// So long after a refusal nothing is asked twice.
const QUIET: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct State {
    /// Times to the first byte, the latest last.
    peers: VecDeque<Duration>,
    since_learned: usize,
    /// From when on a request is late.
    late: Option<Duration>,
    /// Extra requests that may be sent.
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

    /// When a request that is sent now will be late; `None` while that is not known, or the store throttles.
    fn hedge_after(&self) -> Option<Duration> {
        let is_quiet = self.throttled.is_some_and(|at| now().saturating_duration_since(at) < QUIET);
        self.late.filter(|_| !is_quiet)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Hedge {
    inner: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

impl Hedge {
    /// Hedges the GETs of `inner`, and counts into `metrics` how many and how many of the second answers won.
    pub fn new(inner: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One request, up to its first byte.
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

    /// Counts a request that was asked for; when it will be late, if that is known.
    fn asked(&self) -> Option<Duration> {
        let mut state = self.state();
        state.saved = (state.saved + SHARE).min(SAVED);
        state.hedge_after()
    }

    /// True when one more request may be sent than were asked for.
    fn may_hedge(&self) -> bool {
        let mut state = self.state();
        // A refusal may have come while this one was waited for.
        if state.saved < 1.0 || state.hedge_after().is_none() {
            return false;
        }
        state.saved -= 1.0;
        true
    }

    /// Notes how a request went.
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
            // An answer that is an error does not win over one that may still be none.
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
