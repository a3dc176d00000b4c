// SPDX-License-Identifier: Apache-2.0
//! Result of a phase.

use serde::Serialize;

use crate::Latency;
use crate::cpu_usage::CpuTime;

/// Counts since a phase began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Files, or folders, that are done.
    pub entries: u64,
    /// Reads or writes that are done.
    pub ios: u64,
    /// Bytes that they moved.
    pub bytes: u64,
}

/// One of a phase's two ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ends {
    /// Since the start.
    pub seconds: f64,
    /// By all workers until then.
    #[serde(flatten)]
    pub total: Total,
    /// Busy time of this process's cores (its affinity) until then, in percent; absent if the kernel does not report it.
    pub cpu_percent: Option<f64>,
}

/// Totals at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// Since the start.
    pub t_s: f64,
    /// Sum over all workers.
    #[serde(flatten)]
    pub total: Total,
}

/// Everything that one host measured of one phase.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseReport {
    /// Which.
    pub phase: &'static str,
    /// Start, in seconds since the Unix epoch.
    pub started_s: f64,
    /// Delay against the agreed start.
    pub start_late_s: Option<f64>,
    /// Counts when the first worker was done; until then all were busy.
    pub first: Ends,
    /// Counts when the last worker was done.
    pub last: Ends,
    /// From the first end to the last.
    pub tail_s: f64,
    /// Latency of whole files (open, all blocks, fsync, close), or of one call of a metadata phase.
    pub entry_latency: Latency,
    /// Latency of reads or writes; in an open loop since their intended start.
    pub io_latency: Latency,
    /// Latency of an open loop's requests since their actual start.
    pub service_latency: Option<Latency>,
    /// Requests a second that an open loop meant to send.
    pub offered_per_s: Option<f64>,
    /// CPU time of this process.
    pub cpu: CpuTime,
    /// Processors that this process could keep busy: its affinity, and the quota of its control group.
    pub cores: usize,
    /// Totals over time.
    pub series: Vec<Sample>,
    /// Bytes that were compared with the pattern.
    pub verified_bytes: u64,
    /// `time` or `ios` where a limit ended it.
    pub ended_by: Option<&'static str>,
}
