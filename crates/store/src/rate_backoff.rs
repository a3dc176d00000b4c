// SPDX-License-Identifier: Apache-2.0
//! Adaptive request rate for a store that throttles (429, 503). All calls to the store share the rate.
//!
//! The rate is unlimited until the first throttled request. Then this module searches for the limit of the store. A
//! throttled request lowers the rate by one tenth to one half. The fewer requests succeeded before it, the larger the
//! cut. Each success raises the rate a step towards the rate of the last throttled request. Above that rate, the steps
//! are so small that only about one request in fifty is throttled. If each call backed off independently, all calls
//! would wait while the store has capacity, and would return together when it has none.
//!
//! If a lower rate does not reduce throttling, the throttling has another cause, such as an unhealthy proxy or shard.
//! As long as most requests succeed, the rate then stays above half of the fastest proven rate. A rate is proven if
//! nine requests in a row succeeded at it.
//!
//! This module decides which call sends next, and when. It sends no requests and updates no metrics.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_types::now;

/// Rate after the first throttled request, in requests per second. If this rate is too high, a few throttled requests
/// reduce it quickly; if it is too low, it soon rises.
const START: f64 = 4000.0;
/// Minimum rate in requests per second. At this rate, the back-off of the calls already limits the load.
const MIN_RATE: f64 = 10.0;
/// Minimum factor by which a throttled request multiplies the rate.
const LEFT: f64 = 0.5;
/// Maximum number of successes that are counted. It makes a throttled request lower the rate by at least a tenth.
const MANY: u32 = 9;
/// If the mean number of successes between two rate cuts is below this value, each rate cut halves `State::proven`.
const FEW: f64 = 1.5;
/// Weight of the latest rate cut in the mean number of successes.
const LAST: f64 = 1.0 / 8.0;
/// Part of the distance to the last throttled rate that one success adds to the rate.
const BACK: f64 = 1.0 / 32.0;
/// Minimum increase per success, as a share of the rate. Forty successes make up for one throttled request.
const BEYOND: f64 = 1.0 / 400.0;
/// Typical lateness of timers. To make up for a late timer, the next request may be sent up to this much earlier.
const LATE: Duration = Duration::from_millis(2);

/// Request rate that adapts to throttling.
#[derive(Debug, Default)]
pub(crate) struct AdaptiveRate {
    state: Mutex<Option<State>>,
    /// Time of the next request. The call that sends next holds the lock, and the other calls queue for the lock.
    next: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug)]
struct State {
    /// Requests per second.
    rate: f64,
    /// The last rate at which a request was throttled.
    refused: f64,
    /// Time of the last rate cut.
    since: Instant,
    /// Number of successful requests that were sent after the last rate cut.
    passed: u32,
    /// Mean number of successes between two rate cuts.
    mean: f64,
    /// The fastest rate at which at least `MANY` requests in a row succeeded.
    proven: f64,
}

/// Permission to send one request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permit {
    at: Instant,
    /// Time spent waiting.
    pub waited: Duration,
}

impl AdaptiveRate {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn interval(&self) -> Option<Duration> {
        self.state().as_ref().map(|state| Duration::from_secs_f64(1.0 / state.rate))
    }

    /// Waits for permission to send a request. Calls get permission in the order of their arrival.
    pub async fn turn(&self) -> Permit {
        let came = now();
        if self.interval().is_none() {
            return Permit { at: came, waited: Duration::ZERO };
        }
        let mut next = self.next.lock().await;
        // Time that is lost to a late timer or to the lock does not count as waiting.
        let has_room = next.is_none_or(|next| next <= came);
        let begin = |at: Instant| next.map_or(at, |next| next.max(at.checked_sub(LATE).unwrap_or(at)));
        tokio::time::sleep_until(begin(now()).into()).await;
        let at = now();
        *next = Some(begin(at) + self.interval().unwrap_or_default());
        Permit { at, waited: if has_room { Duration::ZERO } else { at.saturating_duration_since(came) } }
    }

    /// Records that the request with this permit succeeded.
    pub fn passed(&self, turn: Permit) {
        if let Some(state) = self.state().as_mut().filter(|state| turn.at > state.since) {
            state.passed = state.passed.saturating_add(1);
            // Only a request that had to wait shows that a faster rate may be possible.
            if !turn.waited.is_zero() {
                state.rate += (BACK * (state.refused - state.rate)).max(BEYOND * state.rate);
            }
        }
    }

    /// Records that the request with this permit was throttled.
    pub fn refused(&self, turn: Permit) {
        let mut slot = self.state();
        let first = || State { rate: START, refused: START, since: turn.at, passed: 0, mean: MANY.into(), proven: 0.0 };
        let is_first = slot.is_none();
        let state = slot.get_or_insert_with(first);
        // A request that was sent before the last rate cut is not evidence for the new rate.
        if !is_first && turn.at <= state.since {
            return;
        }
        state.mean += LAST * (f64::from(state.passed.min(4 * MANY)) - state.mean);
        if state.passed >= MANY {
            state.proven = state.proven.max(state.rate);
        } else if state.mean < FEW {
            state.proven /= 2.0;
        }
        let counted = f64::from(state.passed.min(MANY));
        let left = (counted / (counted + 1.0)).max(LEFT);
        // A store that throttled every request since the last cut is down. This is not evidence for its limit, so the
        // last known rate remains the target.
        if state.passed > 0 {
            state.refused = state.rate;
        }
        state.rate = (state.rate * left).max(state.proven / 2.0).max(MIN_RATE);
        (state.since, state.passed) = (now(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a store that accepts `limit` requests per second, one request at a time, until `count` have succeeded.
    /// Returns the achieved rate and the number of throttled requests. Time is simulated.
    fn simulated(pace: &AdaptiveRate, limit: f64, count: u32) -> (f64, u32) {
        let start = now();
        let (mut at, mut free, mut passed, mut refused) = (0.0, 0.0, 0, 0);
        while passed < count {
            let rate = pace.state().as_ref().map(|state| state.rate);
            at += rate.map_or(0.0, |rate| 1.0 / rate);
            let turn = Permit { at: start + Duration::from_secs_f64(at), waited: Duration::from_nanos(1) };
            if at >= free {
                free = at + 1.0 / limit;
                passed += 1;
                pace.passed(turn);
            } else {
                refused += 1;
                pace.refused(turn);
            }
        }
        (f64::from(passed) / at, refused)
    }

    #[test]
    fn pace_of_a_store_that_refuses_is_found_and_kept_with_few_refusals() {
        for limit in [20.0, 50.0, 200.0, 5500.0] {
            let pace = AdaptiveRate::default();
            simulated(&pace, limit, 2000);
            let (rate, refused) = simulated(&pace, limit, 2000);
            assert!(rate > 0.85 * limit && refused < 100, "{limit}: {rate}/s, {refused} refused");
            // Raise the limit tenfold, then restore it.
            simulated(&pace, 10.0 * limit, 2000);
            assert!(simulated(&pace, 10.0 * limit, 2000).0 > 8.5 * limit, "{limit}");
            simulated(&pace, limit, 2000);
            assert!(simulated(&pace, limit, 2000).0 > 0.85 * limit, "{limit}");
        }
    }

    #[test]
    fn refusals_that_a_slower_pace_does_not_make_fewer_do_not_end_the_work() {
        for one_in in [20, 10] {
            let (pace, mut noise) = (AdaptiveRate::default(), 1_u64);
            for at in 1..20_000 {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let turn = Permit { at: now() + Duration::from_secs(at), waited: Duration::from_nanos(1) };
                match (noise >> 33) % one_in {
                    0 => pace.refused(turn),
                    _ => pace.passed(turn),
                }
            }
            let rate = pace.state().as_ref().map(|state| state.rate).unwrap();
            assert!(rate > START / 16.0, "one in {one_in}: {rate}/s");
        }
    }

    #[test]
    fn pace_is_back_soon_after_a_store_that_refused_everything() {
        let pace = AdaptiveRate::default();
        simulated(&pace, 500.0, 2000);
        for _ in 0..40 {
            pace.refused(Permit { at: now() + Duration::from_secs(60), waited: Duration::ZERO });
        }
        assert_eq!(pace.state().as_ref().map(|state| state.rate), Some(MIN_RATE));
        let (_, refused) = simulated(&pace, 500.0, 100);
        assert!(refused < 20 && pace.state().as_ref().is_some_and(|state| state.rate > 200.0));
    }

    #[tokio::test]
    async fn requests_that_wait_for_nothing_do_not_raise_the_pace() {
        let pace = AdaptiveRate::default();
        pace.refused(pace.turn().await);
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let turn = pace.turn().await;
            assert_eq!(turn.waited, Duration::ZERO);
            pace.passed(turn);
        }
        assert_eq!(pace.state().as_ref().map(|state| state.rate), Some(START / 2.0));
    }

    #[tokio::test]
    async fn turns_come_one_by_one_and_a_call_that_gives_up_holds_nobody() {
        let pace = AdaptiveRate::default();
        assert_eq!(pace.turn().await.waited, Duration::ZERO);
        pace.refused(pace.turn().await);
        assert_eq!(pace.state().as_ref().map(|state| state.rate), Some(START / 2.0));
        pace.turn().await;
        if let Some(state) = pace.state().as_mut() {
            state.rate = 20.0;
        }
        pace.turn().await;
        let gives_up = tokio::time::timeout(Duration::from_millis(1), pace.turn());
        let (gone, stays) = tokio::join!(gives_up, pace.turn());
        assert!(gone.is_err() && stays.waited >= Duration::from_millis(40), "{stays:?}");
    }

    #[test]
    fn refusals_of_one_burst_cut_once() {
        let pace = AdaptiveRate::default();
        let turn = Permit { at: now(), waited: Duration::ZERO };
        (0..5).for_each(|_| pace.refused(turn));
        pace.passed(turn);
        let state = pace.state();
        assert_eq!(state.as_ref().map(|state| (state.rate, state.passed)), Some((START / 2.0, 0)));
    }
}
