// SPDX-License-Identifier: Apache-2.0
//! Wrapper for `std`'s mutex that ignores poisoning. That is safe, because no code that holds one of Penstock's locks
//! can leave its data half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread panicked while it held the mutex. `parking_lot` is not used: its table of waiting
/// threads is process-wide, so a forked child could wait for a thread of its parent.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
