// SPDX-License-Identifier: Apache-2.0
//! CPU time: of this process, io_uring's kernel workers among it, and of the whole machine.

use serde::Serialize;

/// CPU seconds of a stretch of time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CpuTime {
    /// In this program.
    pub user_s: f64,
    /// In the kernel for it.
    pub system_s: f64,
}

impl CpuTime {
    /// Of this process until now.
    pub fn now() -> Self {
        // SAFETY: `rusage` is plain numbers, for which zeros are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is writable and of the type that the call fills.
        let answer = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        debug_assert_eq!(answer, 0, "the call knows its own constant");
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self { user_s: seconds(usage.ru_utime), system_s: seconds(usage.ru_stime) }
    }

    /// What was spent since.
    pub fn since(self, earlier: Self) -> Self {
        Self { user_s: self.user_s - earlier.user_s, system_s: self.system_s - earlier.system_s }
    }
}

/// Ticks of the whole machine: (busy, all). Zeros where the kernel does not tell.
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    /// Until now.
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let ticks: Vec<u64> = text
            .lines()
            .next()
            .map(|line| line.split_ascii_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect())
            .unwrap_or_default();
        let all: u64 = ticks.iter().sum();
        // Idle and waiting for I/O stand fourth and fifth.
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Self { busy: all - idle, all }
    }

    /// Percent of all cores that were busy since.
    pub fn percent_since(self, earlier: Self) -> Option<f64> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        Some(100.0 * self.busy.saturating_sub(earlier.busy) as f64 / all as f64)
    }
}
