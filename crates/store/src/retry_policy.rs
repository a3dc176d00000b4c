// SPDX-License-Identifier: Apache-2.0
//! Retry policy: back-off, time budgets and idle timeout. Also applies the policy to the attempts of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock_types::{Deadline, Error, Metric, Metrics, Result, Stopwatch};

use crate::Store;
use crate::rate_backoff::AdaptiveRate;

/// Settings for retries: waits, time budgets and timeouts.
#[derive(Debug, Clone)]
pub struct RetryPolicy {
    /// Time budget for the retries of one call while the store throttles.
    pub give_up_after: Duration,
    /// Time budget for the retries of one call while the store does not respond or returns 5xx.
    pub unreachable_after: Duration,
    /// Time budget for the retries of one call if the store has never responded. It is short, so that a wrong endpoint
    /// is reported soon.
    pub never_reached_after: Duration,
    /// Upper limit of the first wait. It doubles with each attempt. Waits are random, with a mean of half the limit.
    pub first_wait: Duration,
    /// Maximum wait between two attempts, unless the store requests a longer wait.
    pub max_wait: Duration,
    /// Idle timeout: a request that receives no byte for this time is sent again.
    pub stall_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            give_up_after: Duration::from_secs(300),
            // This covers an outage of one minute plus the longest wait between two attempts.
            unreachable_after: Duration::from_secs(90),
            never_reached_after: Duration::from_secs(10),
            first_wait: Duration::from_millis(100),
            max_wait: Duration::from_secs(10),
            stall_after: Duration::from_secs(30),
        }
    }
}

/// State that all calls to a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) policy: RetryPolicy,
    pub(crate) metrics: Arc<Metrics>,
    /// Adaptive request rate after the store has throttled.
    pace: AdaptiveRate,
    /// True after the first response of the store, even if the response was an error.
    reached: AtomicBool,
}

impl Shared {
    pub(crate) fn new(inner: Arc<dyn Store>, policy: RetryPolicy, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { inner, policy, metrics, pace: AdaptiveRate::default(), reached: AtomicBool::new(false) })
    }
}

/// Attempts of one call, with their time budget.
pub(crate) struct Attempts {
    pub(crate) shared: Arc<Shared>,
    what: String,
    pub(crate) deadline: Deadline,
    started: Stopwatch,
    sent: u32,
    refused: u32,
    /// Number of back-off steps since the last progress.
    step: u32,
}

impl Attempts {
    pub(crate) fn new(shared: Arc<Shared>, what: String, deadline: Deadline) -> Self {
        Self { shared, what, deadline, started: Stopwatch::start(), sent: 0, refused: 0, step: 0 }
    }

    /// Waits until the request rate allows a request, then runs one attempt. The attempt fails if it is idle for longer
    /// than `limit`.
    pub(crate) async fn attempt<T>(&mut self, limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
        let turn = self.silent_no_longer(Duration::MAX, async { Ok(self.shared.pace.turn().await) }).await?;
        self.shared.metrics.time(Metric::ThrottleWait, turn.waited);
        if self.sent == 0 {
            // The time budget starts after the wait for the request rate, because that wait is not a failure.
            self.started = Stopwatch::start();
        }
        self.sent += 1;
        let result = self.silent_no_longer(limit, work).await;
        match &result {
            Err(Error::Throttled { .. }) => self.shared.pace.refused(turn),
            Err(Error::Unreachable { .. } | Error::Server { .. } | Error::Deadline { .. } | Error::Interrupted) => {}
            // Any other result shows that the store had capacity for the request.
            Ok(_) | Err(_) => self.shared.pace.passed(turn),
        }
        if !matches!(result, Err(Error::Unreachable { .. })) {
            self.shared.reached.store(true, Ordering::Relaxed);
        }
        result
    }

    pub(crate) async fn silent_no_longer<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limit = self.deadline.left().map_or(limit, |left| left.min(limit));
        match tokio::time::timeout(limit, work).await {
            Ok(result) => result,
            Err(_) if self.deadline.passed() => Err(self.deadline.error(&self.what)),
            Err(_) => Err(Error::Unreachable {
                place: self.shared.inner.root().to_string(),
                reason: format!("no data received for {:.1} s", limit.as_secs_f64()),
            }),
        }
    }

    /// Records that bytes have arrived. The next failure then starts a new time budget.
    pub(crate) fn progressed(&mut self) {
        (self.step, self.sent, self.refused, self.started) = (0, 1, 0, Stopwatch::start());
    }

    /// Records that the caller requests more data. Unless an attempt has failed since the last progress, the time that
    /// the caller itself spent does not count against the budget.
    pub(crate) fn asked(&mut self) {
        if self.step == 0 {
            self.started = Stopwatch::start();
        }
    }

    /// Waits before the next attempt. Returns an error if the call must not be retried.
    pub(crate) async fn after(&mut self, error: Error) -> Result<()> {
        let policy = &self.shared.policy;
        let elapsed = self.started.elapsed();
        let (budget, asked) = match &error {
            Error::Throttled { retry_after, .. } => (policy.give_up_after, *retry_after),
            Error::Unreachable { .. } if !self.shared.reached.load(Ordering::Relaxed) => {
                (policy.never_reached_after, None)
            }
            Error::Unreachable { .. } | Error::Server { .. } => (policy.unreachable_after, None),
            _ => return Err(error),
        };
        let throttled = matches!(error, Error::Throttled { .. });
        self.refused += u32::from(throttled);
        let ceiling = policy.first_wait.saturating_mul(1 << self.step.min(16)).min(policy.max_wait);
        self.step += 1;
        // Full jitter (M. Brooker, "Exponential backoff and jitter"). A wait that the store requests is never
        // shortened.
        let jitter = ceiling.mul_f64(rand::random::<f64>());
        let wait = asked.map_or(jitter, |asked| asked.saturating_add(jitter.min(asked / 10)));
        if elapsed.saturating_add(wait) > budget {
            return Err(self.exhausted(error, elapsed));
        }
        if self.deadline.left().is_some_and(|left| left <= wait) {
            return Err(self.deadline.error(&format!("{} ({}, last error: {error})", self.what, self.attempts())));
        }
        self.shared.metrics.count(Metric::Retries);
        tokio::time::sleep(wait).await;
        if throttled {
            self.shared.metrics.time(Metric::ThrottleWait, wait);
        }
        Ok(())
    }

    fn attempts(&self) -> String {
        if self.sent == 1 { "1 try".to_owned() } else { format!("{} tries", self.sent) }
    }

    /// Adds the number of attempts and their total duration to the last error.
    fn exhausted(&self, error: Error, elapsed: Duration) -> Error {
        let attempts = format!(" ({} in {:.1} s)", self.attempts(), elapsed.as_secs_f64());
        match error {
            Error::Throttled { place, retry_after, status, .. } => {
                let (refused, sent) = (self.refused, self.sent);
                Error::Throttled { place, refused, sent, window: elapsed, retry_after, status }
            }
            Error::Unreachable { place, reason } => Error::Unreachable { place, reason: reason + &attempts },
            Error::Server { place, status, reason } => Error::Server { place, status, reason: reason + &attempts },
            other => other,
        }
    }
}
