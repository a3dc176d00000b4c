// SPDX-License-Identifier: Apache-2.0
//! Digests of bytes as they pass: our own two, which every manifest holds, and those that a store promised.

use penstock_codec::checksum::{Crc32c, Xxh3};
use penstock_store::{Digester, cheapest};
use penstock_types::{Algorithm, Digest, PartDigest};

/// Count and digests of bytes as they pass.
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

    /// The same, of bytes whose CRC is made apart: [`ContentDigest::end_part`] brings it.
    pub fn update_in_part(&mut self, bytes: &[u8], part: &mut Crc32c) {
        self.bytes += bytes.len() as u64;
        part.update(bytes);
        self.xxh.update(bytes);
    }

    /// The CRC of the bytes that passed since the last part ended.
    pub fn end_part(&mut self, part: &Crc32c) {
        self.crc.append(part);
    }

    pub fn digests(&self) -> Vec<Digest> {
        vec![Digest::of_u32(Algorithm::Crc32c, self.crc.value()), Digest::of_u128(Algorithm::Xxh3, self.xxh.value())]
    }
}

/// Our own two digests of stored bytes, and the store's where it is another CRC; its MD5 or SHA-256 only where there is no CRC.
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
            // The dear ones only where nothing else is promised.
            kind @ (Algorithm::Md5 | Algorithm::Parts(PartDigest::Md5, _)) => first == Some(kind),
            Algorithm::Sha256 => first.is_none(),
            _ => true,
        };
        let other = known.iter().filter(is_wanted).filter_map(|digest| Digester::new(digest.algorithm)).collect();
        Self { seal: ContentDigest::default(), other }
    }

    /// The MD5 too.
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

    /// The same, of bytes whose CRC is made apart.
    pub fn update_in_part(&mut self, bytes: &[u8], part: &mut Crc32c) {
        self.seal.update_in_part(bytes, part);
        self.other.iter_mut().for_each(|other| other.update(bytes));
    }

    /// Ours first.
    pub fn digests(&self) -> Vec<Digest> {
        let mut digests = self.seal.digests();
        digests.extend(self.other.iter().map(|other| other.clone().finish()));
        digests
    }
}

/// Size and digests of an object's stored bytes, as computed.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Our own digests of them.
    pub digests: Vec<Digest>,
    /// Those that were promised and that they have.
    pub checked: Vec<Digest>,
    /// Content-Encoding, as the store said it.
    pub encoding: Option<String>,
}

/// The promised digests that were looked at, each once.
pub(crate) fn checked_of<'a>(
    promised: impl Iterator<Item = &'a Digest>,
    is_checked: impl Fn(Algorithm) -> bool,
) -> Vec<Digest> {
    let mut checked: Vec<Digest> = Vec::new();
    for digest in promised.filter(|digest| is_checked(digest.algorithm)) {
        if !checked.contains(digest) {
            checked.push(digest.clone());
        }
    }
    checked
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
