// SPDX-License-Identifier: Apache-2.0
//! The clock: the only module that reads the time (`clippy.toml` forbids others), so that a deadline is a value.

use std::time::{Duration, Instant, SystemTime};

use crate::{Error, Result};

/// The monotonic time now.
#[expect(clippy::disallowed_methods, reason = "this is the one door to the clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Time since the Unix epoch; zero on a machine whose clock is before it.
#[expect(clippy::disallowed_methods, reason = "this is the one door to the clock")]
pub fn unix_now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Time by which a call must return. Every store call takes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    at: Option<Instant>,
    limit: Duration,
}

impl Deadline {
    /// A deadline `limit` from now.
    pub fn within(limit: Duration) -> Self {
        Self { at: now().checked_add(limit), limit }
    }

    /// No deadline: only for calls whose caller already has one.
    pub const NEVER: Self = Self { at: None, limit: Duration::MAX };

    /// Remaining time; `None` without a deadline, zero when it has passed.
    pub fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(now()))
    }

    /// The deadline as an instant, for timers; `None` without a deadline.
    pub fn instant(&self) -> Option<Instant> {
        self.at
    }

    /// True once it has passed.
    pub fn passed(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Errs with [`Error::Deadline`] once it has passed.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.passed() { Err(self.error(what)) } else { Ok(()) }
    }

    /// Error for this deadline.
    pub fn error(&self, what: &str) -> Error {
        Error::Deadline { what: what.to_owned(), limit: self.limit }
    }
}

/// Time since a start.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self(now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.0)
    }

    /// Time since the start or the last lap; restarts the count.
    pub fn lap(&mut self) -> Duration {
        let at = now();
        let took = at.saturating_duration_since(self.0);
        self.0 = at;
        took
    }
}
