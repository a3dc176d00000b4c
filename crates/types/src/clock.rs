// SPDX-License-Identifier: Apache-2.0
//! Clock and deadlines. Only this module reads the clock; `clippy.toml` forbids clock reads elsewhere. All other code
//! receives deadlines as values.

use std::time::{Duration, Instant, SystemTime};

use crate::{Error, Result};

/// Returns the current monotonic time.
#[expect(clippy::disallowed_methods, reason = "only this module reads the clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time since the Unix epoch; zero if the clock is set to a time before the epoch.
#[expect(clippy::disallowed_methods, reason = "only this module reads the clock")]
pub fn unix_now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Time by which a call must return. Every store call has a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    at: Option<Instant>,
    limit: Duration,
}

impl Deadline {
    /// Returns a deadline that is `limit` from now.
    pub fn within(limit: Duration) -> Self {
        Self { at: now().checked_add(limit), limit }
    }

    /// No deadline. Use it only if the caller enforces a deadline of its own.
    pub const NEVER: Self = Self { at: None, limit: Duration::MAX };

    /// Returns the remaining time: `None` without a deadline, zero after the deadline.
    pub fn left(&self) -> Option<Duration> {
        self.at.map(|at| at.saturating_duration_since(now()))
    }

    /// Returns the deadline as an instant, for timers; `None` without a deadline.
    pub fn instant(&self) -> Option<Instant> {
        self.at
    }

    /// Returns true if the deadline has passed.
    pub fn passed(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// Returns [`Error::Deadline`] if the deadline has passed.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.passed() { Err(self.error(what)) } else { Ok(()) }
    }

    /// Builds the error for the call `what`, which missed this deadline.
    pub fn error(&self, what: &str) -> Error {
        Error::Deadline { what: what.to_owned(), limit: self.limit }
    }
}

/// Stopwatch: measures the time since its start.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring now.
    pub fn start() -> Self {
        Self(now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.0)
    }
}
