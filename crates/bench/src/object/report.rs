// SPDX-License-Identifier: Apache-2.0
//! Result of a phase of requests.

use serde::Serialize;

use super::spec::Operation;
use super::stats::{Failures, Stats};
use crate::Latency;
use crate::cpu_usage::CpuTime;

/// Requests of one kind that were answered, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OperationTotal {
    /// Answered well.
    pub requests: u64,
    /// Body bytes, including those of requests in progress.
    pub bytes: u64,
}

/// One of its two ends, by kind of request in the order of [`Operation::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ObjectEnds {
    /// Since the start.
    pub seconds: f64,
    /// Until then.
    pub totals: [OperationTotal; 6],
    /// Percent of the time of this process's cores (its affinity) that was busy until then.
    pub cpu_percent: Option<f64>,
}

/// Totals at one moment, over all operations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ObjectSample {
    /// Since the start.
    pub t_s: f64,
    /// Answered well.
    pub requests: u64,
    /// Body bytes.
    pub bytes: u64,
    /// Refusals for rate.
    pub throttles: u64,
    /// Threads that have begun.
    pub workers: u64,
}

/// One kind of request.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationReport {
    /// Which.
    pub operation: Operation,
    /// Latency of whole requests, including attempts and back-off; in an open loop since the intended start.
    pub latency: Latency,
    /// Latency of the successful attempt.
    pub attempt_latency: Latency,
    /// Time to its first byte, if it has a body.
    pub first_byte_latency: Latency,
    /// Attempts that failed.
    pub failures: Failures,
    /// Attempts beyond the first.
    pub retries: u64,
    /// Worker-seconds in refused attempts and in the back-off after them.
    pub throttled_s: f64,
    /// Bytes of attempts that came to nothing.
    pub bytes_refetched: u64,
    /// Bytes that were compared with the pattern.
    pub verified_bytes: u64,
}

impl OperationReport {
    pub(super) fn of(operation: Operation, stats: &Stats) -> Self {
        Self {
            operation,
            latency: stats.whole.latency(),
            attempt_latency: stats.attempt.latency(),
            first_byte_latency: stats.first_byte.latency(),
            failures: stats.failures,
            retries: stats.retries,
            throttled_s: stats.throttled.as_secs_f64(),
            bytes_refetched: stats.bytes_refetched,
            verified_bytes: stats.verified_bytes,
        }
    }
}

/// Everything that one host measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectReport {
    /// Start, in seconds since the Unix epoch.
    pub started_s: f64,
    /// Each kind that was sent.
    pub operations: Vec<OperationReport>,
    /// Counts when the first worker was done.
    pub first: ObjectEnds,
    /// Counts when the last worker was done.
    pub last: ObjectEnds,
    /// Totals when the last worker had started: the ramp is not a steady state.
    pub ramp: Option<ObjectEnds>,
    /// Totals over time.
    pub series: Vec<ObjectSample>,
    /// CPU time of this process.
    pub cpu: CpuTime,
    /// Processors that this process could keep busy: its affinity, and the quota of its control group.
    pub cores: usize,
    /// Requests a second that an open loop meant to send.
    pub offered_per_s: Option<f64>,
    /// `time`, `requests` or `stable` where a limit ended it.
    pub ended_by: Option<&'static str>,
}
