// SPDX-License-Identifier: Apache-2.0
//! Estimates whether the staged data will still fit into the page cache when the stage ends.

use penstock_store::memory_available;

/// True if this many bytes fit into the page cache together with other data, so that the first epoch reads them from
/// memory. If the bytes do not fit, caching them would only evict earlier files and the cached data of other programs.
pub(crate) fn fits_page_cache(bytes: u64) -> bool {
    memory_available().is_none_or(|available| bytes <= available / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_cache_fit_is_limited_by_available_memory() {
        assert!(fits_page_cache(1 << 20) && !fits_page_cache(1 << 60));
    }
}
