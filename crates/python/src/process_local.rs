// SPDX-License-Identifier: Apache-2.0
//! Values that belong to one process. After a fork, the child leaks the inherited value, and must create its own.

use std::mem::ManuallyDrop;

use penstock_types::{Error, Result};

/// A value that only the process that created it can use or drop.
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
            Err(Error::config(what, format!("belongs to process {}; create a new one in this process", self.pid)))
        }
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: the value is dropped only here, and only once.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
