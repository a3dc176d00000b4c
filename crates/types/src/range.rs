// SPDX-License-Identifier: Apache-2.0
//! Byte range of an object.

/// Range of `len` bytes from offset `start`. One read of a part of an object uses one such range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Length in bytes; [`ByteRange::TO_END`] reads to the object's end.
    pub len: u64,
}

impl ByteRange {
    /// Value of `len` that means "to the end of the object".
    pub const TO_END: u64 = u64::MAX;

    /// Range that covers the whole object.
    pub const WHOLE: Self = Self { start: 0, len: Self::TO_END };

    /// Creates a range of `len` bytes from offset `start`.
    pub fn new(start: u64, len: u64) -> Self {
        Self { start, len }
    }

    /// Returns true if the range covers the whole object.
    pub fn is_whole(&self) -> bool {
        *self == Self::WHOLE
    }

    /// Returns the offset after the range's last byte, in an object of `size` bytes.
    pub fn end(&self, size: u64) -> u64 {
        self.start.saturating_add(self.len).min(size)
    }
}
