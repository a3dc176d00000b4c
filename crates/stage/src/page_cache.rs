// SPDX-License-Identifier: Apache-2.0
//! Whether what a stage writes would still be in the page cache when it is done.

use penstock_store::memory_available;

/// True where so many bytes leave room in memory for what else is there: a first epoch then reads them from there.
/// Otherwise each file would only push out the one before it, and what other programs keep.
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
