// SPDX-License-Identifier: Apache-2.0
//! Reverses Blosc's bit shuffle. The byte shuffle is in the codec crate.

/// Reverses the bit shuffle: the input has the lowest bit of every element, then the second-lowest bit of every
/// element, and so on. The output has elements of `size` bytes. Blosc does not shuffle if the number of elements is not
/// divisible by eight.
pub(super) fn unshuffle_bits(input: &[u8], out: &mut [u8], size: usize) {
    let count = input.len() / size.max(1);
    let whole = count * size;
    if !count.is_multiple_of(8) || whole == 0 {
        out.copy_from_slice(input);
        return;
    }
    let plane = count / 8;
    for byte in 0..size {
        for group in 0..plane {
            let rows: [u8; 8] = std::array::from_fn(|bit| input[(byte * 8 + bit) * plane + group]);
            let columns = transpose(u64::from_le_bytes(rows)).to_le_bytes();
            for (at, &value) in columns.iter().enumerate() {
                out[(group * 8 + at) * size + byte] = value;
            }
        }
    }
    out[whole..].copy_from_slice(&input[whole..]);
}

/// Transposes an 8 x 8 bit matrix in which each byte is a row (Hacker's Delight, 7-3).
fn transpose(mut x: u64) -> u64 {
    let mut swap = |mask: u64, shift: u32| {
        let t = (x ^ (x >> shift)) & mask;
        x ^= t ^ (t << shift);
    };
    swap(0x00aa_00aa_00aa_00aa, 7);
    swap(0x0000_cccc_0000_cccc, 14);
    swap(0x0000_0000_f0f0_f0f0, 28);
    x
}
