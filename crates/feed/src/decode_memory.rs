// SPDX-License-Identifier: Apache-2.0
//! Memory limits for data whose size is known only during decoding: values of variable length, and values that are
//! decompressed one by one. Memory for such data is reserved here before it is allocated.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, PoisonError};

use penstock_types::{Error, Result, lock};

/// Limit on the bytes of variable-length values in one batch.
#[derive(Debug)]
pub(crate) struct Values {
    limit: u64,
    used: Mutex<u64>,
}

impl Values {
    /// Creates a limit of `limit` bytes.
    pub fn limited(limit: u64) -> Self {
        Self { limit, used: Mutex::default() }
    }

    /// Replaces the `old` bytes that were counted for a row by `new` bytes. Returns `BudgetExceeded` if the total
    /// exceeds the limit.
    pub fn admit(&self, old: usize, new: usize, field: &str) -> Result<()> {
        let mut used = lock(&self.used);
        let need = used.saturating_sub(old as u64).saturating_add(new as u64);
        if need > self.limit {
            let what = format!("field `{field}` (all its variable-length values in one batch)");
            return Err(Error::BudgetExceeded { what, need, budget: self.limit });
        }
        *used = need;
        Ok(())
    }

    /// Counts a padded field: `rows` rows of `width` items of `size` bytes each. The field's values before padding are
    /// not counted in addition. Returns `BudgetExceeded` if the padded field exceeds the limit.
    pub fn admit_padded(&self, rows: usize, width: usize, size: usize, field: &str) -> Result<()> {
        let need = (rows as u64).saturating_mul(width as u64).saturating_mul(size as u64);
        if need > self.limit {
            let what = format!("field `{field}` (padded to {width} items in {rows} rows)");
            return Err(Error::BudgetExceeded { what, need, budget: self.limit });
        }
        let mut used = lock(&self.used);
        *used = (*used).max(need);
        Ok(())
    }

    /// Average number of bytes per row, if the batch has `rows` rows.
    pub fn per_row(&self, rows: usize) -> u64 {
        *lock(&self.used) / rows.max(1) as u64
    }
}

/// Memory for values that are decompressed one by one. The decoding threads share this memory.
#[derive(Debug)]
pub(crate) struct PartMemory {
    total: u64,
    limit: u64,
    free: Mutex<u64>,
    freed: Condvar,
}

impl PartMemory {
    /// Limits the reserved bytes of all threads to `total`, and the size of a single value to `limit`. A value that is
    /// larger than `total` reserves all of `total`.
    pub fn new(total: u64, limit: u64) -> Self {
        Self { total, limit, free: Mutex::new(total), freed: Condvar::new() }
    }

    /// Creates an empty reservation for a thread.
    pub fn hold(&self) -> PartHold<'_> {
        PartHold { memory: self, bytes: Cell::new(0) }
    }
}

/// Memory that one thread reserves for the value that it is decompressing. Dropping the reservation releases the
/// memory.
#[derive(Debug)]
pub(crate) struct PartHold<'a> {
    memory: &'a PartMemory,
    bytes: Cell<u64>,
}

impl PartHold<'_> {
    /// Releases the memory of the previous value, and reserves memory for a value of `bytes` bytes. Waits until other
    /// threads have released enough memory. A waiting thread holds no memory.
    pub fn take(&self, what: &str, bytes: u64) -> Result<()> {
        self.give_back();
        if bytes > self.memory.limit {
            return Err(Error::BudgetExceeded { what: what.to_owned(), need: bytes, budget: self.memory.limit });
        }
        let bytes = bytes.min(self.memory.total);
        let mut free = lock(&self.memory.free);
        while *free < bytes {
            free = self.memory.freed.wait(free).unwrap_or_else(PoisonError::into_inner);
        }
        *free -= bytes;
        self.bytes.set(bytes);
        Ok(())
    }

    fn give_back(&self) {
        *lock(&self.memory.free) += self.bytes.take();
        self.memory.freed.notify_all();
    }
}

impl Drop for PartHold<'_> {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_a_batch_are_counted_up_to_its_limit() {
        let values = Values::limited(100);
        values.admit(0, 60, "x").unwrap();
        let error = values.admit(0, 41, "x").unwrap_err();
        assert!(matches!(error, Error::BudgetExceeded { need: 101, budget: 100, .. }), "{error}");
        // A row that is written a second time is counted once.
        values.admit(60, 90, "x").unwrap();
        values.admit(0, 10, "x").unwrap();
        assert_eq!(values.per_row(3), 33);
    }

    #[test]
    fn parts_are_held_one_at_a_time_and_waited_for() {
        let memory = PartMemory::new(100, 1000);
        let first = memory.hold();
        first.take("a part", 60).unwrap();
        first.take("a part", 80).unwrap();
        assert!(matches!(first.take("a part", 1001), Err(Error::BudgetExceeded { need: 1001, budget: 1000, .. })));
        first.take("a part", 80).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                let hold = memory.hold();
                hold.take("a part", 900).map(|()| *lock(&memory.free))
            });
            drop(first);
            assert_eq!(second.join().unwrap().unwrap(), 0, "a large part has all of it");
        });
        assert_eq!(*lock(&memory.free), 100);
    }
}
