// SPDX-License-Identifier: Apache-2.0
//! Whether what a stage writes would still be in the page cache when it is done.

use std::path::Path;

/// True where so many bytes leave room in memory for what else is there: a first epoch then reads them from there.
/// Otherwise each file would only push out the one before it, and what other programs keep.
pub(crate) fn keeps(bytes: u64) -> bool {
    available().is_none_or(|available| bytes <= available / 2)
}

/// Bytes of memory that may be had, for this machine and this group of processes; `None` where nobody says.
fn available() -> Option<u64> {
    let machine = of_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    let group = Path::new("/sys/fs/cgroup/memory.max");
    let group = std::fs::read_to_string(group).ok().and_then(|text| text.trim().parse().ok());
    Some(group.map_or(machine, |group: u64| group.min(machine)))
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_little_and_not_more_than_there_is() {
        assert!(keeps(1 << 20) && !keeps(1 << 60));
    }

    #[test]
    fn meminfo_is_read_or_left() {
        let text = "MemTotal:       24684100 kB\nMemFree: 1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(of_meminfo(text), Some(23_000_000 * 1024));
        for odd in ["", "MemAvailable: many kB", "MemAvailable: 5", "MemAvailable: 99999999999999999 kB"] {
            assert_eq!(of_meminfo(odd), None, "{odd}");
        }
    }
}
