// SPDX-License-Identifier: Apache-2.0
//! Checksums (CRC-32C and XXH3), computed over a whole buffer or incrementally.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use penstock_types::{Algorithm, Digest};

/// CRC-32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32
}

/// CRC-32C of `bytes`, masked as in TFRecord files.
pub fn crc32c_masked(bytes: &[u8]) -> u32 {
    mask(crc32c(bytes))
}

/// Masks a CRC: rotates it right by 15 bits and adds a constant. A CRC over data that contains CRCs is weak, so
/// TFRecord (like Snappy's framing and LevelDB before it) stores only masked CRCs.
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Incremental CRC-32C computation.
#[derive(Debug, Clone, Copy)]
pub struct Crc32c(crc_fast::Digest);

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// Creates the checksum of an empty input.
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(Crc32Iscsi))
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Appends the bytes that the CRC `next` covers, without reading the bytes again.
    pub fn append(&mut self, next: &Self) {
        self.0.combine(&next.0);
    }

    /// Returns the CRC of the bytes added so far.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }

    /// Returns the CRC of the bytes added so far, as a [`Digest`].
    pub fn digest(&self) -> Digest {
        Digest::of_u32(Algorithm::Crc32c, self.value())
    }
}

/// Incremental XXH3 (128 bits), the digest in manifests. XXH3 detects accidental damage, but is not a cryptographic
/// hash.
#[derive(Clone, Default)]
pub struct Xxh3(Box<xxhash_rust::xxh3::Xxh3Default>);

impl Xxh3 {
    /// Creates the hash of an empty input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the hash of the bytes added so far.
    pub fn value(&self) -> u128 {
        self.0.digest128()
    }

    /// Returns the hash of the bytes added so far, as a [`Digest`].
    pub fn digest(&self) -> Digest {
        Digest::of_u128(Algorithm::Xxh3, self.value())
    }

    /// Returns the XXH3 digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest::of_u128(Algorithm::Xxh3, xxhash_rust::xxh3::xxh3_128(bytes))
    }
}

impl std::fmt::Debug for Xxh3 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Xxh3({:032x})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_has_the_published_check_values() {
        // The expected values are from RFC 3720 B.4 and the CRC catalogue (check value).
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn mask_is_that_of_tensorflow() {
        // TensorFlow writes these bytes for the length field of an empty record: the masked CRC-32C of eight zero
        // bytes.
        assert_eq!(crc32c_masked(&[0; 8]).to_le_bytes(), [0x29, 0x03, 0x98, 0x07]);
    }

    #[test]
    fn xxh3_has_the_published_value_of_nothing() {
        assert_eq!(Xxh3::of(b"").to_string(), "xxh3:99aa06d3014798d86001c324468d497f");
    }

    proptest::proptest! {
        #[test]
        fn prop_streamed_checksums_are_those_of_the_whole(parts: Vec<Vec<u8>>) {
            let (mut crc, mut xxh, mut appended) = (Crc32c::new(), Xxh3::new(), Crc32c::new());
            for part in &parts {
                crc.update(part);
                xxh.update(part);
                let mut alone = Crc32c::new();
                alone.update(part);
                appended.append(&alone);
            }
            let whole = parts.concat();
            proptest::prop_assert_eq!(appended.value(), crc32c(&whole));
            proptest::prop_assert_eq!(crc.value(), crc32c(&whole));
            proptest::prop_assert_eq!(xxh.digest(), Xxh3::of(&whole));
        }
    }
}
