// SPDX-License-Identifier: Apache-2.0
//! Header of a TFRecord frame: the payload's length, and the checksum of the length.

use penstock_codec::checksum::crc32c_masked;

/// Bytes before a payload.
pub const HEADER_LEN: usize = 12;

/// Stored and computed checksums of the length.
pub(crate) fn header_sums(header: &[u8; HEADER_LEN]) -> (u32, u32) {
    let [length @ .., a, b, c, d] = header;
    (u32::from_le_bytes([*a, *b, *c, *d]), crc32c_masked(length))
}

/// True if the checksum of the length is correct.
pub(crate) fn header_is_sound(header: &[u8; HEADER_LEN]) -> bool {
    let (want, is) = header_sums(header);
    want == is
}
