// SPDX-License-Identifier: Apache-2.0
//! Header of a TFRecord frame: the length of the payload, and the checksum of that length.

use penstock_codec::checksum::crc32c_masked;

/// Number of bytes that precede a payload in its frame.
pub const HEADER_LEN: usize = 12;

/// Returns the stored checksum of the length, followed by the computed one.
pub(crate) fn header_sums(header: &[u8; HEADER_LEN]) -> (u32, u32) {
    let [length @ .., a, b, c, d] = header;
    (u32::from_le_bytes([*a, *b, *c, *d]), crc32c_masked(length))
}

/// True if the header's checksum matches its length field.
pub(crate) fn header_is_sound(header: &[u8; HEADER_LEN]) -> bool {
    let (want, is) = header_sums(header);
    want == is
}
