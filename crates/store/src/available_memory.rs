// SPDX-License-Identifier: Apache-2.0
//! Determines the memory that this process can use: the machine's free memory plus its clean page cache. A cgroup (v1
//! or v2) of this process may limit the result further.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

const GROUPS: &str = "/sys/fs/cgroup";

/// Returns the number of bytes available to this process, including clean page cache. Returns `None` if it is unknown.
pub fn memory_available() -> Option<u64> {
    let machine = of_meminfo(&read_to_string("/proc/meminfo").ok()?)?;
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(of_groups(&groups, Path::new(GROUPS)).fold(machine, u64::min))
}

fn of_meminfo(text: &str) -> Option<u64> {
    field(text, "MemAvailable:")?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Returns the available memory of each cgroup in `text` (a /proc/PID/cgroup file) and of the cgroup's ancestors.
fn of_groups(text: &str, root: &Path) -> impl Iterator<Item = u64> {
    let mut left = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(path)) = (words.next(), words.next(), words.next()) else { continue };
        let (root, names) = match kinds {
            "" => (root.to_owned(), ["memory.max", "memory.current", "file ", "shmem "]),
            _ if kinds.split(',').any(|kind| kind == "memory") => (
                root.join("memory"),
                ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ", "total_shmem "],
            ),
            _ => continue,
        };
        // In a container, `path` may be the path on the host, of which only the root is visible. Missing folders are
        // skipped.
        let own = root.join(path.trim_start_matches('/'));
        let groups = own.ancestors().take_while(|folder| folder.starts_with(&root));
        left.extend(groups.filter_map(|folder| of_group(folder.to_owned(), names)));
    }
    left.into_iter()
}

fn of_group(folder: PathBuf, [limit, used, cache, shared]: [&str; 4]) -> Option<u64> {
    let number = |name: &str| read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number(limit)?, number(used)?);
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let counted = |name: &str| field(&stat, name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    // Files in a tmpfs count as cache, but the kernel cannot drop them.
    let clean = counted(cache).saturating_sub(counted(shared));
    Some(limit.saturating_sub(used.saturating_sub(clean)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_available_is_some_of_this_machine() {
        let available = memory_available().unwrap();
        assert!(available > 1 << 20 && available < 1 << 60);
    }

    #[test]
    fn meminfo_is_read_or_left() {
        let text = "MemTotal:       24684100 kB\nMemFree: 1 kB\nMemAvailable:   23000000 kB\n";
        assert_eq!(of_meminfo(text), Some(23_000_000 * 1024));
        for odd in ["", "MemAvailable: many kB", "MemAvailable: 5", "MemAvailable: 99999999999999999 kB"] {
            assert_eq!(of_meminfo(odd), None, "{odd}");
        }
    }

    #[test]
    fn groups_of_both_versions_leave_what_their_limits_do_and_caches_are_free() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for (path, text) in [
            ("job/memory.max", "1000\n"),
            ("job/memory.current", "700\n"),
            ("job/memory.stat", "anon 450\nfile 250\nshmem 50\n"),
            ("job/step/memory.max", "max\n"),
            ("job/step/memory.current", "700\n"),
            ("memory/old/memory.limit_in_bytes", "400\n"),
            ("memory/old/memory.usage_in_bytes", "900\n"),
            ("memory/old/memory.stat", "cache 1\ntotal_cache 600\n"),
        ] {
            write(path, text);
        }
        let left = |text: &str| of_groups(text, root.path()).collect::<Vec<_>>();
        assert_eq!(left("0::/job/step\n"), [500]);
        assert_eq!(left("5:cpu:/\n4:cpuset,memory:/old\n"), [100]);
        assert_eq!(left("0::/elsewhere/of/the/host\nodd\n"), [0_u64; 0]);
    }
}
