// SPDX-License-Identifier: Apache-2.0
//! Locks of `std`, without poison: no lock of ours is held over code that may leave its data half changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a panic of a thread that held it. Not `parking_lot`: its table of waiting threads is the
/// process's own, and a forked child could wait for a parent's thread.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
