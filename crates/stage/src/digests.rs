// SPDX-License-Identifier: Apache-2.0
//! Incremental digests: the two digests in every manifest (CRC-32C and XXH3), and those that a store reported.

use penstock_codec::checksum::{Crc32c, Xxh3};
use penstock_store::{Digester, cheapest};
use penstock_types::{Algorithm, Digest, PartDigest};

/// Counts bytes and computes the CRC-32C and the XXH3 of the bytes, piece by piece.
#[derive(Debug, Clone, Default)]
pub(crate) struct ContentDigest {
    pub bytes: u64,
    crc: Crc32c,
    xxh: Xxh3,
}

impl ContentDigest {
    pub fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc.update(bytes);
        self.xxh.update(bytes);
    }

    /// Adds bytes to the count, to the XXH3 and to `part`, the CRC of a part. [`ContentDigest::end_part`] later appends
    /// `part` to the CRC of the content.
    pub fn update_in_part(&mut self, bytes: &[u8], part: &mut Crc32c) {
        self.bytes += bytes.len() as u64;
        part.update(bytes);
        self.xxh.update(bytes);
    }

    /// Appends the CRC of a complete part.
    pub fn end_part(&mut self, part: &Crc32c) {
        self.crc.append(part);
    }

    pub fn digests(&self) -> Vec<Digest> {
        vec![Digest::of_u32(Algorithm::Crc32c, self.crc.value()), Digest::of_u128(Algorithm::Xxh3, self.xxh.value())]
    }
}

/// Digests of stored bytes: CRC-32C and XXH3. If the store reports a CRC of another kind, this CRC is computed too. An
/// MD5 or a SHA-256 is computed only if the store reports no CRC.
#[derive(Clone)]
pub(crate) struct StoredDigests {
    pub seal: ContentDigest,
    other: Vec<Digester>,
}

impl StoredDigests {
    pub fn new(known: &[Digest]) -> Self {
        let first = cheapest(known).map(|digest| digest.algorithm);
        let is_wanted = |digest: &&Digest| match digest.algorithm {
            Algorithm::Crc32c => false,
            // MD5 is expensive, so it is computed only if the store reports no cheaper digest.
            kind @ (Algorithm::Md5 | Algorithm::Parts(PartDigest::Md5, _)) => first == Some(kind),
            Algorithm::Sha256 => first.is_none(),
            _ => true,
        };
        let other = known.iter().filter(is_wanted).filter_map(|digest| Digester::new(digest.algorithm)).collect();
        Self { seal: ContentDigest::default(), other }
    }

    /// Also computes the MD5.
    pub fn with_md5(mut self) -> Self {
        if !self.other.iter().any(|other| other.algorithm() == Algorithm::Md5) {
            self.other.extend(Digester::new(Algorithm::Md5));
        }
        self
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.seal.update(bytes);
        self.other.iter_mut().for_each(|other| other.update(bytes));
    }

    /// Like `update`, but adds the CRC of the bytes to `part`.
    pub fn update_in_part(&mut self, bytes: &[u8], part: &mut Crc32c) {
        self.seal.update_in_part(bytes, part);
        self.other.iter_mut().for_each(|other| other.update(bytes));
    }

    /// All digests; CRC-32C and XXH3 come first.
    pub fn digests(&self) -> Vec<Digest> {
        let mut digests = self.seal.digests();
        digests.extend(self.other.iter().map(|other| other.clone().finish()));
        digests
    }
}

/// Verified digests of an object's stored bytes.
#[derive(Debug, Clone)]
pub(crate) struct Verified {
    /// CRC-32C and XXH3 of the bytes.
    pub digests: Vec<Digest>,
    /// Expected digests that match the bytes.
    pub checked: Vec<Digest>,
    /// Content-Encoding that the store reported.
    pub encoding: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seal_in_parts_is_the_seal_of_the_whole() {
        let bytes: Vec<u8> = (0..10_000u32).map(|at| ((at * at) >> 3) as u8).collect();
        let (mut whole, mut parts) = (ContentDigest::default(), ContentDigest::default());
        whole.update(&bytes);
        for part in bytes.chunks(3_333) {
            let mut crc = Crc32c::new();
            for piece in part.chunks(1_000) {
                parts.update_in_part(piece, &mut crc);
            }
            parts.end_part(&crc);
        }
        assert_eq!((parts.bytes, parts.digests()), (whole.bytes, whole.digests()));
    }
}
