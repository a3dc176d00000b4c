// SPDX-License-Identifier: Apache-2.0
//! The caller's output buffer, which several threads fill. Each thread writes a different part of the buffer.

use std::marker::PhantomData;

use penstock_types::{Error, Result};

/// A writable slice that threads can share if they write disjoint bytes.
#[derive(Debug, Clone, Copy)]
pub struct OutBuffer<'a> {
    start: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: the pointer refers to plain bytes that live for 'a. `part` checks the bounds, and callers write disjoint
// ranges.
unsafe impl Send for OutBuffer<'_> {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for OutBuffer<'_> {}

impl<'a> OutBuffer<'a> {
    /// Shares `out`.
    pub fn new(out: &'a mut [u8]) -> Self {
        Self { start: out.as_mut_ptr(), len: out.len(), lifetime: PhantomData }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns bytes `at..at + len`, so that one thread can write them.
    ///
    /// # Safety
    /// While the slice exists, no other thread may read or write these bytes.
    pub unsafe fn part(&self, at: usize, len: usize) -> Result<&'a mut [u8]> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::bug(format!("bytes {at}..+{len} of a buffer of {}", self.len)));
        }
        // SAFETY: the bytes are in the buffer, which lives for 'a. The caller ensures that no other code uses these
        // bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) })
    }
}
