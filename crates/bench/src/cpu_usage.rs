// SPDX-License-Identifier: Apache-2.0
//! CPU time of this process (including io_uring's kernel workers), and how busy its allowed processors are.

use serde::Serialize;

/// CPU seconds in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CpuTime {
    /// CPU seconds in user space.
    pub user_s: f64,
    /// CPU seconds in the kernel.
    pub system_s: f64,
}

impl CpuTime {
    /// Returns the CPU time that this process has used so far.
    pub fn now() -> Self {
        // SAFETY: `rusage` contains only integers, for which zero is a valid value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is writable and has the type that `getrusage` fills.
        let answer = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        debug_assert_eq!(answer, 0, "the call knows its own constant");
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self { user_s: seconds(usage.ru_utime), system_s: seconds(usage.ru_stime) }
    }

    /// Returns the CPU time used since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self { user_s: self.user_s - earlier.user_s, system_s: self.system_s - earlier.system_s }
    }
}

/// Number of processors that this process can keep busy, as limited by its affinity and its cgroup's CPU quota.
pub fn usable_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Scheduler ticks of the processors that this process may run on, as (busy, total). Both numbers are 0 if the kernel
/// does not report them.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuTicks {
    busy: u64,
    all: u64,
}

impl CpuTicks {
    /// Reads the current tick counts.
    pub fn now() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/stat"), &read("/proc/self/status"))
    }

    /// Parses `/proc/stat`. Counts only the processors that `/proc/self/status` allows, or all if it lists none.
    fn parse(stat: &str, status: &str) -> Self {
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        let is_allowed = |cpu: usize| {
            allowed.trim().split(',').any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&cpu))
            })
        };
        let (mut machine, mut own) = (Self::default(), Self::default());
        for line in stat.lines() {
            let Some((name, ticks)) = line.strip_prefix("cpu").and_then(|line| line.split_once(' ')) else { continue };
            let ticks: Vec<u64> = ticks.split_ascii_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
            let all: u64 = ticks.iter().sum();
            // The fourth and the fifth field are idle time and I/O wait.
            let busy = all - ticks.iter().skip(3).take(2).sum::<u64>();
            match name.parse() {
                Ok(cpu) if is_allowed(cpu) => own = Self { busy: own.busy + busy, all: own.all + all },
                Err(_) if name.is_empty() => machine = Self { busy, all },
                _ => {}
            }
        }
        if own.all > 0 { own } else { machine }
    }

    /// Returns the percentage of the time since `earlier` in which these processors were busy; `None` if it is unknown.
    pub fn percent_since(self, earlier: Self) -> Option<f64> {
        let all = self.all.checked_sub(earlier.all).filter(|all| *all > 0)?;
        Some(100.0 * self.busy.saturating_sub(earlier.busy) as f64 / all as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "cpu  0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0\ncpu3 0 0 0 0 0 0 0 0\n";
    const AFTER: &str = "cpu  70 0 30 190 10 0 0 0 5 0\ncpu0 0 0 0 95 5 0 0 0\ncpu2 50 0 20 30 0 0 0 0\ncpu3 20 0 10 65 5 0 0 0\nintr 1\n";

    fn percent(status: &str) -> Option<f64> {
        CpuTicks::parse(AFTER, status).percent_since(CpuTicks::parse(BEFORE, status))
    }

    #[test]
    fn busy_share_covers_only_the_processors_of_the_affinity() {
        for (allowed, want) in [("2", 70.0), ("2-3", 50.0), ("0,2", 35.0), ("0-3", 100.0 / 3.0)] {
            let status = format!("Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t{allowed}\n");
            assert!((percent(&status).unwrap() - want).abs() < 1e-9, "{allowed}");
        }
        assert!((percent("").unwrap() - 100.0 / 3.0).abs() < 1e-9, "no list: the whole machine");
        assert_eq!(CpuTicks::parse("", "").percent_since(CpuTicks::default()), None);
    }

    #[test]
    fn machine_of_now_has_ticks_of_the_usable_cores() {
        assert!(CpuTicks::now().all > 0);
        assert!(usable_cores() >= 1);
    }
}
