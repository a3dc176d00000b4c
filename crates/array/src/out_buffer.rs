// SPDX-License-Identifier: Apache-2.0
//! Memory of a caller that several threads fill, each its own bytes.

use std::marker::PhantomData;

use penstock_types::{Error, Result};

/// A writable slice that can be shared among threads which write disjoint bytes.
#[derive(Debug, Clone, Copy)]
pub struct OutBuffer<'a> {
    start: *mut u8,
    len: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: the pointer is to plain bytes that live for 'a; `write` checks the bounds, and callers write disjoint ranges.
unsafe impl Send for OutBuffer<'_> {}
// SAFETY: as above.
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

    /// True without bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes `at..at + len`, for one thread to write.
    ///
    /// # Safety
    /// No other thread reads or writes these bytes meanwhile.
    pub unsafe fn part(&self, at: usize, len: usize) -> Result<&'a mut [u8]> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::bug(format!("bytes {at}..+{len} of a buffer of {}", self.len)));
        }
        // SAFETY: within the buffer, which lives for 'a; the caller promises that no other code uses these bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) })
    }
}
