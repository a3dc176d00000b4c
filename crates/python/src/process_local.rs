// SPDX-License-Identifier: Apache-2.0
//! Values that belong to one process: a forked child leaks the inherited ones and makes its own.

use std::mem::ManuallyDrop;

use penstock_types::{Error, Result};

/// A value that only its own process may use or drop.
pub(crate) struct Own<T> {
    pid: u32,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    pub fn new(value: T) -> Self {
        Self { pid: std::process::id(), value: ManuallyDrop::new(value) }
    }

    pub fn get(&self, what: &str) -> Result<&T> {
        if self.pid == std::process::id() {
            Ok(&self.value)
        } else {
            Err(Error::config(what, format!("it belongs to process {}; make a new one in this process", self.pid)))
        }
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
