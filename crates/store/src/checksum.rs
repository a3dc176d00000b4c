// SPDX-License-Identifier: Apache-2.0
//! Computes and verifies the checksums that stores use. Accepts the bytes piece by piece.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use md5::Digest as _;
use penstock_types::{Algorithm, Digest, Error, PartDigest, Result};

use crate::Chunk;
use crate::multipart::Part;

/// CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of the concatenated `parts`.
pub(crate) fn crc32c_of(parts: &[Bytes]) -> u32 {
    let mut running = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| running.update(part));
    running.finalize() as u32
}

/// Combines the CRC-32Cs of the parts into the CRC-32C of the whole object. Does not read the bytes again.
pub fn combined(parts: &[Part]) -> Option<Digest> {
    let whole = parts.iter().map(|part| (u64::from(part.crc32c), part.size)).reduce(|(crc, size), (next, more)| {
        (crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc32Iscsi, crc, next, more), size + more)
    });
    whole.map(|(crc, _)| Digest::of_u32(Algorithm::Crc32c, crc as u32))
}

/// Computes a digest incrementally.
#[derive(Debug, Clone)]
pub struct Digester {
    algorithm: Algorithm,
    state: State,
}

#[derive(Debug, Clone)]
enum State {
    Crc(Box<crc_fast::Digest>),
    Md5(Box<md5::Md5>),
    Sha256(Box<sha2::Sha256>),
    Parts(Box<Parts>),
}

/// Computes a composite digest: a digest of the digests of the parts.
#[derive(Debug, Clone)]
struct Parts {
    part: Digester,
    part_bytes: u64,
    /// Number of bytes that still fit into the current part. A full part is closed only when more bytes follow.
    room: u64,
    closed: Digester,
}

impl Digester {
    /// Creates a digester. Returns `None` for algorithms that this crate does not compute (SHA-1, XXH3).
    pub fn new(algorithm: Algorithm) -> Option<Self> {
        let crc = |kind| Some(State::Crc(Box::new(crc_fast::Digest::new(kind))));
        let state = match algorithm {
            Algorithm::Crc32 => crc(crc_fast::CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => crc(crc_fast::CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => crc(crc_fast::CrcAlgorithm::Crc64Nvme),
            Algorithm::Md5 => Some(State::Md5(Box::default())),
            Algorithm::Sha256 => Some(State::Sha256(Box::default())),
            Algorithm::Parts(kind, part_bytes) => {
                let part = Self::new(kind.of_a_part())?;
                Some(State::Parts(Box::new(Parts { closed: part.clone(), part, part_bytes, room: part_bytes })))
            }
            Algorithm::Sha1 | Algorithm::Xxh3 => None,
        }?;
        Some(Self { algorithm, state })
    }

    /// Returns the algorithm of the digest.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Crc(crc) => crc.update(bytes),
            State::Md5(md5) => md5.update(bytes),
            State::Sha256(sha) => sha.update(bytes),
            State::Parts(parts) => parts.update(bytes),
        }
    }

    /// Returns the digest of all bytes that were added.
    pub fn finish(self) -> Digest {
        let value = match self.state {
            State::Crc(crc) if self.algorithm == Algorithm::Crc64Nvme => crc.finalize().to_be_bytes().to_vec(),
            State::Crc(crc) => (crc.finalize() as u32).to_be_bytes().to_vec(),
            State::Md5(md5) => md5.finalize().to_vec(),
            State::Sha256(sha) => sha.finalize().to_vec(),
            State::Parts(mut parts) => {
                parts.close();
                parts.closed.finish().value
            }
        };
        Digest { algorithm: self.algorithm, value }
    }
}

impl Parts {
    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.room == 0 {
                self.close();
                self.room = self.part_bytes;
            }
            let (now, later) = bytes.split_at((bytes.len() as u64).min(self.room) as usize);
            self.part.update(now);
            self.room -= now.len() as u64;
            bytes = later;
        }
    }

    fn close(&mut self) {
        if let Some(fresh) = Digester::new(self.part.algorithm) {
            self.closed.update(&std::mem::replace(&mut self.part, fresh).finish().value);
        }
    }
}

/// Returns the digest of the concatenated `parts`, or `None` if this crate does not compute the algorithm.
pub(crate) fn of_parts(algorithm: Algorithm, parts: &[Bytes]) -> Option<Digest> {
    let mut running = Digester::new(algorithm)?;
    parts.iter().for_each(|part| running.update(part));
    Some(running.finish())
}

/// Returns the digest that is cheapest to verify, for reads of whole objects. Returns `None` if this crate can compute
/// none of the algorithms.
pub fn cheapest(digests: &[Digest]) -> Option<&Digest> {
    let rank = |digest: &Digest| match digest.algorithm {
        Algorithm::Crc32c | Algorithm::Crc64Nvme => Some(0),
        Algorithm::Crc32 => Some(1),
        Algorithm::Parts(PartDigest::Crc32 | PartDigest::Crc32c, _) => Some(2),
        Algorithm::Md5 => Some(3),
        Algorithm::Parts(PartDigest::Md5, _) => Some(4),
        Algorithm::Sha1 | Algorithm::Sha256 | Algorithm::Xxh3 => None,
    };
    digests.iter().filter_map(|digest| Some((rank(digest)?, digest))).min_by_key(|(rank, _)| *rank).map(|(_, d)| d)
}

/// Returns a `Corrupt` error if the bytes of `parts` do not match the digest `want`.
pub(crate) fn check_parts(want: Option<&Digest>, parts: &[Bytes], place: impl Fn() -> String) -> Result<()> {
    match want.and_then(|want| Some((want, of_parts(want.algorithm, parts)?))) {
        Some((want, have)) if *want != have => {
            Err(Error::corrupt(place(), format!("should have {want}, but the bytes to write have {have}")))
        }
        _ => Ok(()),
    }
}

/// Passes the chunks of a whole object on. Ends with an error if the bytes do not match the digest `want`.
pub(crate) fn verified(
    chunks: BoxStream<'static, Result<Chunk>>,
    want: &Digest,
    place: String,
) -> BoxStream<'static, Result<Chunk>> {
    let Some(running) = Digester::new(want.algorithm) else {
        return chunks;
    };
    let state = Some((chunks, running, want.clone(), place));
    stream::unfold(state, |state| async move {
        let (mut chunks, mut running, want, place) = state?;
        match chunks.next().await {
            Some(Ok(chunk)) => {
                running.update(&chunk.bytes);
                Some((Ok(chunk), Some((chunks, running, want, place))))
            }
            Some(Err(error)) => Some((Err(error), None)),
            None => {
                let have = running.finish();
                (have != want).then(|| {
                    (Err(Error::corrupt(place, format!("arrived with {have}, but its store has {want}"))), None)
                })
            }
        }
    })
    .fuse()
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_running_digests_match_the_published_check_values() {
        // Published check values: the digests of "123456789".
        for (algorithm, want) in [
            (Algorithm::Crc32, "crc32:cbf43926"),
            (Algorithm::Crc32c, "crc32c:e3069283"),
            (Algorithm::Crc64Nvme, "crc64nvme:ae8b14860a799888"),
            (Algorithm::Md5, "md5:25f9e794323b453885f5181f1b624d0b"),
            (Algorithm::Sha256, "sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"),
        ] {
            let parts = [Bytes::from_static(b"1234"), Bytes::from_static(b"56789")];
            assert_eq!(of_parts(algorithm, &parts).unwrap().to_string(), want);
        }
    }

    #[test]
    fn test_digest_of_parts_is_that_of_the_parts_own_however_bytes_come() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for (kind, part_bytes) in [(PartDigest::Crc32c, 300), (PartDigest::Crc32, 500), (PartDigest::Md5, 1000)] {
            let one = |bytes: &[u8]| of_parts(kind.of_a_part(), &[Bytes::copy_from_slice(bytes)]).unwrap().value;
            let want = one(&bytes.chunks(part_bytes).flat_map(one).collect::<Vec<u8>>());
            for step in [1, 7, 300, 1000] {
                let pieces: Vec<Bytes> = bytes.chunks(step).map(Bytes::copy_from_slice).collect();
                let have = of_parts(Algorithm::Parts(kind, part_bytes as u64), &pieces).unwrap();
                assert_eq!(have.value, want, "{kind:?} in steps of {step}");
            }
        }
    }

    #[test]
    fn test_cheapest_prefers_a_crc_to_md5() {
        let md5: Digest = "md5:25f9e794323b453885f5181f1b624d0b".parse().unwrap();
        let crc: Digest = "crc32c:e3069283".parse().unwrap();
        assert_eq!(cheapest(&[md5.clone(), crc.clone()]), Some(&crc));
        assert_eq!(cheapest(std::slice::from_ref(&md5)), Some(&md5));
        assert_eq!(cheapest(&[]), None);
    }
}
