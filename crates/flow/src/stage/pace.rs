// SPDX-License-Identifier: Apache-2.0
//! How many requests are in flight: one more after each calm round, half after a throttled one (AIMD, as TCP does it).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use penstock_types::{Metric, Metrics, now};
use tokio::sync::Notify;

/// Requests at the start: enough to fill a 10 Gb/s link at 8 MiB and 100 ms, few enough to be polite.
const START: usize = 16;
/// Cuts closer together than this answer the same burst of refusals.
const CUT_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct State {
    limit: usize,
    in_flight: usize,
    calm: usize,
    throttles_seen: u64,
    last_cut: Option<Instant>,
}

/// The limit, and who is under it.
#[derive(Debug)]
pub(crate) struct Pace {
    state: Mutex<State>,
    freed: Notify,
    most: usize,
    metrics: Arc<Metrics>,
}

impl Pace {
    pub fn new(most: usize, metrics: Arc<Metrics>) -> Self {
        let most = most.max(1);
        let throttles_seen = metrics.get(Metric::Throttles);
        let state = State { limit: START.min(most), in_flight: 0, calm: 0, throttles_seen, last_cut: None };
        Self { state: Mutex::new(state), freed: Notify::new(), most, metrics }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one more request may be sent.
    pub async fn enter(self: &Arc<Self>) -> Slot {
        loop {
            {
                let mut state = self.state();
                if state.in_flight < state.limit {
                    state.in_flight += 1;
                    if state.in_flight < state.limit {
                        self.freed.notify_one();
                    }
                    return Slot(self.clone());
                }
            }
            self.freed.notified().await;
        }
    }

    fn leave(&self) {
        let throttles = self.metrics.get(Metric::Throttles);
        let mut state = self.state();
        state.in_flight -= 1;
        if throttles > state.throttles_seen {
            state.throttles_seen = throttles;
            state.calm = 0;
            if state.last_cut.is_none_or(|cut| now().saturating_duration_since(cut) >= CUT_EVERY) {
                state.limit = (state.limit / 2).max(1);
                state.last_cut = Some(now());
            }
        } else {
            state.calm += 1;
            if state.calm >= state.limit && state.limit < self.most {
                state.limit += 1;
                state.calm = 0;
            }
        }
        drop(state);
        self.freed.notify_one();
    }

    #[cfg(test)]
    fn limit(&self) -> usize {
        self.state().limit
    }
}

/// One request's leave to be in flight.
#[derive(Debug)]
pub(crate) struct Slot(Arc<Pace>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pace_grows_when_calm_and_halves_when_throttled() {
        let metrics = Arc::new(Metrics::default());
        let pace = Arc::new(Pace::new(20, metrics.clone()));
        for _ in 0..200 {
            drop(pace.enter().await);
        }
        assert_eq!(pace.limit(), 20);
        metrics.count(Metric::Throttles);
        drop(pace.enter().await);
        assert_eq!(pace.limit(), 10);
        metrics.count(Metric::Throttles);
        drop(pace.enter().await); // the same burst: no second cut
        assert_eq!(pace.limit(), 10);
    }

    #[tokio::test]
    async fn pace_never_lets_more_in_than_its_limit_and_strands_no_one() {
        let pace = Arc::new(Pace::new(3, Arc::default()));
        let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                let (pace, inside) = (pace.clone(), inside.clone());
                tokio::spawn(async move {
                    let _slot = pace.enter().await;
                    let now = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    assert!(now < 3);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}
