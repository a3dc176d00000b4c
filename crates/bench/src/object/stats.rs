// SPDX-License-Identifier: Apache-2.0
//! Per-operation statistics: latencies, bytes, retries, and failed attempts by class.

use std::time::Duration;

use penstock_types::Error;
use serde::Serialize;

use crate::Histogram;

/// Failed attempts, by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Failures {
    /// HTTP 429 (Too Many Requests).
    #[serde(rename = "429")]
    pub too_many: u64,
    /// HTTP 503 (Service Unavailable, SlowDown, ServerBusy).
    #[serde(rename = "503")]
    pub busy: u64,
    /// Any other response with status 500 or above.
    #[serde(rename = "5xx")]
    pub server: u64,
    /// The connection failed or was reset.
    pub reset: u64,
    /// No byte arrived within the time limit of an attempt.
    pub timeout: u64,
}

/// Class of a failed attempt. [`Failure::of`] returns `None` for an error that a retry cannot fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    TooMany,
    Busy,
    Server,
    Reset,
    Timeout,
}

impl Failure {
    pub(super) fn of(error: &Error) -> Option<Self> {
        match error {
            Error::Throttled { status: 429, .. } => Some(Self::TooMany),
            Error::Throttled { .. } => Some(Self::Busy),
            Error::Server { .. } => Some(Self::Server),
            Error::Unreachable { .. } => Some(Self::Reset),
            Error::Deadline { .. } => Some(Self::Timeout),
            _ => None,
        }
    }

    pub(super) fn is_throttle(self) -> bool {
        matches!(self, Self::TooMany | Self::Busy)
    }
}

impl Failures {
    pub(super) fn count(&mut self, failure: Failure) {
        *match failure {
            Failure::TooMany => &mut self.too_many,
            Failure::Busy => &mut self.busy,
            Failure::Server => &mut self.server,
            Failure::Reset => &mut self.reset,
            Failure::Timeout => &mut self.timeout,
        } += 1;
    }

    fn add(&mut self, other: Self) {
        self.too_many += other.too_many;
        self.busy += other.busy;
        self.server += other.server;
        self.reset += other.reset;
        self.timeout += other.timeout;
    }
}

/// Statistics of one operation.
#[derive(Debug, Clone, Default)]
pub(super) struct Stats {
    /// Latency of whole requests, including all attempts and back-off. In an open loop, it is measured from the
    /// intended start.
    pub(super) whole: Histogram,
    /// Latency of the successful attempt.
    pub(super) attempt: Histogram,
    /// Time to first byte of the successful attempt.
    pub(super) first_byte: Histogram,
    pub(super) bytes: u64,
    pub(super) failures: Failures,
    pub(super) retries: u64,
    pub(super) throttled: Duration,
    pub(super) bytes_refetched: u64,
    pub(super) verified_bytes: u64,
}

impl Stats {
    pub(super) fn merge(&mut self, other: &Self) {
        self.whole.merge(&other.whole);
        self.attempt.merge(&other.attempt);
        self.first_byte.merge(&other.first_byte);
        self.bytes += other.bytes;
        self.failures.add(other.failures);
        self.retries += other.retries;
        self.throttled += other.throttled;
        self.bytes_refetched += other.bytes_refetched;
        self.verified_bytes += other.verified_bytes;
    }
}
