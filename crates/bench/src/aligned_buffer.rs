// SPDX-License-Identifier: Apache-2.0
//! Memory at page boundaries, as O_DIRECT wants it. The only module that allocates by hand.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Every device's alignment divides it.
const ALIGNMENT: usize = 4096;

/// Bytes at a page boundary; never moves.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone, as a `Box<[u8]>`'s does.
unsafe impl Send for Buffer {}

impl Buffer {
    /// `len` zeros; at least one byte.
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).expect("a length that a file may have");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Self { start: NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `layout.size()` initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this very layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
