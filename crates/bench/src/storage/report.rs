// SPDX-License-Identifier: Apache-2.0
//! Report of one storage phase.

use serde::Serialize;

use crate::Latency;
use crate::cpu_usage::CpuTime;

/// Counts since the start of a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Completed files or folders.
    pub entries: u64,
    /// Completed reads or writes.
    pub ios: u64,
    /// Bytes read or written.
    pub bytes: u64,
}

/// Counts at the moment when the first (or the last) worker ended.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ends {
    /// Time since the start of the phase.
    pub seconds: f64,
    /// Totals of all workers until that moment.
    #[serde(flatten)]
    pub total: Total,
    /// Percentage of the time until that moment in which this process's allowed cores were busy. `None` if the kernel
    /// does not report it.
    pub cpu_percent: Option<f64>,
}

/// Totals at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// Time since the start of the phase.
    pub t_s: f64,
    /// Totals of all workers.
    #[serde(flatten)]
    pub total: Total,
}

/// Report of one phase on one host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseReport {
    /// Name of the phase.
    pub phase: &'static str,
    /// Start of the phase, in seconds since the Unix epoch.
    pub started_s: f64,
    /// Time from the agreed start of all hosts to the actual start, if the hosts agreed on a start.
    pub start_late_s: Option<f64>,
    /// Counts when the first worker ended. All workers were busy until then.
    pub first: Ends,
    /// Counts when the last worker ended.
    pub last: Ends,
    /// Time from the first worker's end to the last worker's end.
    pub tail_s: f64,
    /// Latency of whole files (open, all blocks, fsync, close) or, in a metadata phase, of one call.
    pub entry_latency: Latency,
    /// Latency of reads or writes. In an open loop, it is measured from the intended start.
    pub io_latency: Latency,
    /// Latency of the requests of an open loop, measured from their actual start.
    pub service_latency: Option<Latency>,
    /// Target rate of an open loop, in requests per second.
    pub offered_per_s: Option<f64>,
    /// CPU time of this process.
    pub cpu: CpuTime,
    /// Number of processors that this process could keep busy, as limited by its affinity and its cgroup's CPU quota.
    pub cores: usize,
    /// Totals over time.
    pub series: Vec<Sample>,
    /// Bytes that were verified against the generated content.
    pub verified_bytes: u64,
    /// Limit that ended the phase: `time` or `ios`. `None` if all work was done.
    pub ended_by: Option<&'static str>,
}
