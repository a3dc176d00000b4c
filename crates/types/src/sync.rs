// SPDX-License-Identifier: Apache-2.0
//! `std`'s locks without poisoning: none of our locks is held over code that may leave its data half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic of a thread that held it. Not `parking_lot`: its table of waiting threads is
/// process-wide, and a forked child could wait for a thread of the parent.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
