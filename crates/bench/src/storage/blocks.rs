// SPDX-License-Identifier: Apache-2.0
//! Iterates over the blocks of a file, in sequential or random order.

use penstock_dataset::order::Permutation;

/// Iterates over those blocks of a file that one worker processes. Visits each block once.
#[derive(Debug)]
pub(super) struct Walk {
    size: u64,
    block: u64,
    order: Permutation,
    next: u64,
    end: u64,
}

impl Walk {
    /// Iterates over all blocks of a file of `size` bytes: in the given `order`, or sequentially if it is `None`.
    pub(super) fn whole(size: u64, block: u64, order: Option<Permutation>) -> Self {
        Self::share(size, block, order, 0, 1)
    }

    /// Iterates over the share of one worker; all workers have equal shares.
    pub(super) fn share(size: u64, block: u64, order: Option<Permutation>, worker: u64, workers: u64) -> Self {
        let count = size.div_ceil(block);
        let order = order.unwrap_or_else(|| Permutation::identity(count));
        debug_assert_eq!(order.len(), count);
        let at = |worker: u64| (u128::from(count) * u128::from(worker) / u128::from(workers)) as u64;
        Self { size, block, order, next: at(worker), end: at(worker + 1) }
    }

    /// Returns the offset and length of the next block.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(u64, usize)> {
        if self.next == self.end {
            return None;
        }
        let offset = self.order.at(self.next) * self.block;
        self.next += 1;
        Some((offset, self.block.min(self.size - offset) as usize))
    }

    /// Returns true if all blocks were taken.
    #[inline]
    pub(super) fn is_done(&self) -> bool {
        self.next == self.end
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prop_walk_shares_cover_each_byte_once(
            size in 0u64..100_000, block in 1u64..5_000, workers in 1u64..9, is_random: bool,
        ) {
            let count = size.div_ceil(block);
            let order = || is_random.then(|| Permutation::keyed(count, 1, 0, 0));
            let mut seen: Vec<(u64, usize)> = (0..workers)
                .flat_map(|worker| {
                    let mut walk = Walk::share(size, block, order(), worker, workers);
                    std::iter::from_fn(move || walk.take()).collect::<Vec<_>>()
                })
                .collect();
            seen.sort_unstable();
            let mut at = 0;
            for (offset, len) in seen {
                prop_assert_eq!(offset, at);
                at += len as u64;
            }
            prop_assert_eq!(at, size);
        }
    }
}
