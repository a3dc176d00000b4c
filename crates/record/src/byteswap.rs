// SPDX-License-Identifier: Apache-2.0
//! Byte swap: reverses the byte order of elements.

/// Copies `data` to `out`, which has the same length, and reverses the bytes of each element of `size` bytes.
pub(crate) fn swap_into(data: &[u8], out: &mut [u8], size: usize) {
    fn swap<const N: usize>(data: &[u8], out: &mut [u8]) {
        for (slot, element) in out.as_chunks_mut::<N>().0.iter_mut().zip(data.as_chunks::<N>().0) {
            *slot = *element;
            slot.reverse();
        }
    }
    match size {
        2 => swap::<2>(data, out),
        4 => swap::<4>(data, out),
        8 => swap::<8>(data, out),
        _ => out.copy_from_slice(data),
    }
}
