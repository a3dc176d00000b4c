// SPDX-License-Identifier: Apache-2.0
//! Wrapper for `std`'s mutex that ignores poisoning. Ignoring it is safe: code that panics while it holds one of
//! Penstock's locks never leaves the protected data half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread panicked while it held the mutex. Penstock does not use `parking_lot`, because its
/// table of waiting threads is process-wide: a forked child could wait for a thread of its parent.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
