// SPDX-License-Identifier: Apache-2.0
//! Fletcher-32 as in HDF5: checksum over big-endian 16-bit words.

/// Number of words after which the sums are reduced, so that they do not overflow 32 bits.
const RUN: usize = 360;

fn fletcher32(data: &[u8]) -> u32 {
    let (mut first, mut second) = (0u32, 0u32);
    let (words, rest) = data.as_chunks::<2>();
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    for run in words.chunks(RUN) {
        for word in run {
            first = first.wrapping_add(u32::from(u16::from_be_bytes(*word)));
            second = second.wrapping_add(first);
        }
        (first, second) = (fold(first), fold(second));
    }
    if let [last] = rest {
        first = first.wrapping_add(u32::from(*last) << 8);
        second = second.wrapping_add(first);
        (first, second) = (fold(first), fold(second));
    }
    fold(second) << 16 | fold(first)
}

/// True if `sum` is the checksum of `data`. Also accepts the form of HDF5 before 1.6.3 on little-endian machines, in
/// which the bytes of each 16-bit half are swapped.
pub(super) fn matches(data: &[u8], sum: u32) -> bool {
    let is = fletcher32(data);
    let [a, b, c, d] = is.to_be_bytes();
    sum == is || sum == u32::from_be_bytes([b, a, d, c])
}
