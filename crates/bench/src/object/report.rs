// SPDX-License-Identifier: Apache-2.0
//! Report of one phase of object requests.

use serde::Serialize;

use super::spec::Operation;
use super::stats::{Failures, Stats};
use crate::Latency;
use crate::cpu_usage::CpuTime;

/// Number of completed requests of one operation, and number of bytes that they transferred.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct OperationTotal {
    /// Successful requests.
    pub requests: u64,
    /// Body bytes, including the bytes that requests in flight have received so far.
    pub bytes: u64,
}

/// Counters at the moment when the first (or the last) worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ObjectEnds {
    /// Time since the start of the phase.
    pub seconds: f64,
    /// Totals until that moment, in the order of [`Operation::ALL`].
    pub totals: [OperationTotal; 6],
    /// Percentage of the time until that moment in which this process's allowed cores were busy. `None` if the kernel
    /// does not report it.
    pub cpu_percent: Option<f64>,
}

/// Totals over all operations at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ObjectSample {
    /// Time since the start of the phase.
    pub t_s: f64,
    /// Successful requests.
    pub requests: u64,
    /// Body bytes.
    pub bytes: u64,
    /// Attempts that the store throttled (429 or 503).
    pub throttles: u64,
    /// Number of workers that have started.
    pub workers: u64,
}

/// Statistics of one operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationReport {
    /// The operation.
    pub operation: Operation,
    /// Latency of whole requests, including all attempts and back-off. In an open loop, it is measured from the
    /// intended start.
    pub latency: Latency,
    /// Latency of the successful attempt.
    pub attempt_latency: Latency,
    /// Time to first byte of the successful attempt, for operations with a response body.
    pub first_byte_latency: Latency,
    /// Failed attempts by class.
    pub failures: Failures,
    /// Number of attempts beyond the first of each request.
    pub retries: u64,
    /// Time that workers spent in throttled attempts and in the back-off after such attempts, summed over all workers.
    pub throttled_s: f64,
    /// Bytes that failed attempts had received.
    pub bytes_refetched: u64,
    /// Bytes that were verified against the generated content.
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

/// Report of one phase on one host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ObjectReport {
    /// Start of the phase, in seconds since the Unix epoch.
    pub started_s: f64,
    /// Statistics of each operation that was sent.
    pub operations: Vec<OperationReport>,
    /// Counters when the first worker ended.
    pub first: ObjectEnds,
    /// Counters when the last worker ended.
    pub last: ObjectEnds,
    /// Counters when the last worker had started, if the start was spread over a ramp. Rates exclude the ramp, because
    /// it is not a steady state.
    pub ramp: Option<ObjectEnds>,
    /// Totals over time.
    pub series: Vec<ObjectSample>,
    /// CPU time of this process.
    pub cpu: CpuTime,
    /// Number of processors that this process could keep busy, as limited by its affinity and its cgroup's CPU quota.
    pub cores: usize,
    /// Target rate of an open loop, in requests per second.
    pub offered_per_s: Option<f64>,
    /// Limit that ended the phase: `time`, `requests` or `stable`. `None` if all work was done.
    pub ended_by: Option<&'static str>,
}
