// SPDX-License-Identifier: Apache-2.0
//! A range of an object's bytes.

/// `len` bytes from `start`. A part is one ranged read of such a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// Bytes; [`ByteRange::TO_END`] reads to the object's end.
    pub len: u64,
}

impl ByteRange {
    /// The length that means "to the end".
    pub const TO_END: u64 = u64::MAX;

    /// The whole object.
    pub const WHOLE: Self = Self { start: 0, len: Self::TO_END };

    /// `len` bytes from `start`.
    pub fn new(start: u64, len: u64) -> Self {
        Self { start, len }
    }

    /// True for a range that covers everything.
    pub fn is_whole(&self) -> bool {
        *self == Self::WHOLE
    }

    /// The byte after the last, in an object of `size` bytes.
    pub fn end(&self, size: u64) -> u64 {
        self.start.saturating_add(self.len).min(size)
    }
}
