// SPDX-License-Identifier: Apache-2.0
//! Labels of the pixels of a mask, in the element types that the decoders return.

use penstock_types::Error;

/// Labels of a mask, row after row.
#[derive(Debug)]
pub enum Labels {
    /// Labels of up to 8 bits: a palette's indices or grey values.
    U8(Vec<u8>),
    /// Grey values of 16 bits.
    U16(Vec<u16>),
    /// Integers of any size.
    I64(Vec<i64>),
}

/// Error for a mask whose pixels are colours.
pub(super) fn coloured(what: &str, place: &str) -> Error {
    Error::mismatch(place, format!("is a mask with {what}, but labels must be palette indices or grey values"))
}

/// Unpacks values of less than 8 bits from rows of `line` bytes. The first value is in the most significant bits.
pub(super) fn unpacked(packed: &[u8], width: usize, line: usize, bits: usize) -> Vec<u8> {
    let label = |line: &[u8], x: usize| (line[x * bits / 8] >> (8 - bits - x * bits % 8)) & ((1 << bits) - 1);
    packed.chunks_exact(line).flat_map(|line| (0..width).map(move |x| label(line, x))).collect()
}
