// SPDX-License-Identifier: Apache-2.0
//! Estimates whether the data of a stage still fit into the page cache when it ends.

use penstock_store::memory_available;

/// True if this many bytes fit in memory beside other data, so that a first epoch reads them from there. Otherwise each
/// file would only evict the previous one, and the cached data of other programs.
pub(crate) fn keeps(bytes: u64) -> bool {
    memory_available().is_none_or(|available| bytes <= available / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_little_and_not_more_than_there_is() {
        assert!(keeps(1 << 20) && !keeps(1 << 60));
    }
}
