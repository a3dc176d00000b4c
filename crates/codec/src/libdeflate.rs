// SPDX-License-Identifier: Apache-2.0
//! Inflates raw DEFLATE data with libdeflate, through `libdeflate-sys`. The safe crate `libdeflater` does not return
//! the end of a stream, which is needed to find the next member. The safe crate also cannot write to uninitialised
//! memory, and zeroing a buffer of 16 MB costs a tenth of the time that inflating into the buffer takes.

use std::alloc::{Layout, handle_alloc_error};
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use libdeflate_sys::{
    libdeflate_alloc_decompressor, libdeflate_decompressor, libdeflate_deflate_decompress_ex,
    libdeflate_free_decompressor, libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE,
    libdeflate_result_LIBDEFLATE_SUCCESS,
};

/// Result of decompressing one DEFLATE stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The stream consumed `used` bytes of input and produced `made` bytes.
    Done { used: usize, made: usize },
    /// The stream is damaged or truncated; libdeflate does not distinguish these two cases.
    Bad,
    /// The output does not fit into the buffer.
    NoRoom,
}

struct Decompressor(NonNull<libdeflate_decompressor>);

impl Decompressor {
    fn new() -> Self {
        // SAFETY: the function has no arguments; it returns null if memory is exhausted.
        match NonNull::new(unsafe { libdeflate_alloc_decompressor() }) {
            Some(pointer) => Self(pointer),
            None => handle_alloc_error(Layout::new::<[u8; 16 << 10]>()),
        }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `libdeflate_alloc_decompressor` and is freed once.
        unsafe { libdeflate_free_decompressor(self.0.as_ptr()) }
    }
}

thread_local! {
    // Each thread keeps a decompressor, so that its tables (11 KB) are not allocated for each stream.
    static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
}

/// Decompresses the raw DEFLATE stream at the start of `input` into `out`. On success, the first `made` bytes of `out`
/// are initialised.
pub(crate) fn inflate_raw(input: &[u8], out: &mut [MaybeUninit<u8>]) -> Outcome {
    let (mut used, mut made) = (0, 0);
    let result = DECOMPRESSOR.with_borrow_mut(|decompressor| {
        // SAFETY: both buffers are passed with their true lengths. libdeflate reads only `input` and writes only within
        // `out`. The decompressor is borrowed only for this call.
        unsafe {
            libdeflate_deflate_decompress_ex(
                decompressor.0.as_ptr(),
                input.as_ptr().cast(),
                input.len(),
                out.as_mut_ptr().cast(),
                out.len(),
                &mut used,
                &mut made,
            )
        }
    });
    #[allow(non_upper_case_globals)]
    match result {
        libdeflate_result_LIBDEFLATE_SUCCESS if used <= input.len() && made <= out.len() => {
            Outcome::Done { used, made }
        }
        libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => Outcome::NoRoom,
        _ => Outcome::Bad,
    }
}
