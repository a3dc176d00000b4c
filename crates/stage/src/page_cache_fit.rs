// SPDX-License-Identifier: Apache-2.0
//! Estimates whether the staged data will still fit into the page cache when the stage ends.

use penstock_store::memory_available;

/// True if this many bytes fit into the page cache beside other data, so that the first epoch reads them from memory.
/// If they do not fit, caching them would only evict earlier files and the cached data of other programs.
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
