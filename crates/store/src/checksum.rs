// SPDX-License-Identifier: Apache-2.0
//! The checksums that stores speak, over bytes as they pass.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use md5::Digest as _;
use penstock_types::{Algorithm, Digest, Error, Result};

use crate::Chunk;
use crate::upload::Part;

/// CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of bytes in pieces.
pub(crate) fn crc32c_of(parts: &[Bytes]) -> u32 {
    let mut running = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| running.update(part));
    running.finalize() as u32
}

/// CRC-32C of the object that these parts make, in order; nothing is read again.
pub fn combined(parts: &[Part]) -> Option<Digest> {
    let whole = parts.iter().map(|part| (u64::from(part.crc32c), part.size)).reduce(|(crc, size), (next, more)| {
        (crc_fast::checksum_combine(crc_fast::CrcAlgorithm::Crc32Iscsi, crc, next, more), size + more)
    });
    whole.map(|(crc, _)| Digest::of_u32(Algorithm::Crc32c, crc as u32))
}

/// A digest in the making.
pub(crate) struct Running {
    algorithm: Algorithm,
    state: State,
}

enum State {
    Crc(Box<crc_fast::Digest>),
    Md5(Box<md5::Md5>),
}

impl Running {
    /// Starts one; `None` for algorithms that we do not compute here (SHA-1, SHA-256, XXH3).
    pub(crate) fn new(algorithm: Algorithm) -> Option<Self> {
        let crc = |kind| Some(State::Crc(Box::new(crc_fast::Digest::new(kind))));
        let state = match algorithm {
            Algorithm::Crc32 => crc(crc_fast::CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => crc(crc_fast::CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => crc(crc_fast::CrcAlgorithm::Crc64Nvme),
            Algorithm::Md5 => Some(State::Md5(Box::default())),
            Algorithm::Sha1 | Algorithm::Sha256 | Algorithm::Xxh3 => None,
        }?;
        Some(Self { algorithm, state })
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match &mut self.state {
            State::Crc(crc) => crc.update(bytes),
            State::Md5(md5) => md5.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let value = match self.state {
            State::Crc(crc) if self.algorithm == Algorithm::Crc64Nvme => crc.finalize().to_be_bytes().to_vec(),
            State::Crc(crc) => (crc.finalize() as u32).to_be_bytes().to_vec(),
            State::Md5(md5) => md5.finalize().to_vec(),
        };
        Digest { algorithm: self.algorithm, value }
    }
}

/// The digest of `parts`, where we compute that algorithm.
pub(crate) fn of_parts(algorithm: Algorithm, parts: &[Bytes]) -> Option<Digest> {
    let mut running = Running::new(algorithm)?;
    parts.iter().for_each(|part| running.update(part));
    Some(running.finish())
}

/// The digest of `digests` that costs least to check, if there is one that we can check: the one that a whole-object
/// read is held against.
pub fn cheapest(digests: &[Digest]) -> Option<&Digest> {
    let rank = |digest: &Digest| match digest.algorithm {
        Algorithm::Crc32c | Algorithm::Crc64Nvme => Some(0),
        Algorithm::Crc32 => Some(1),
        Algorithm::Md5 => Some(2),
        Algorithm::Sha1 | Algorithm::Sha256 | Algorithm::Xxh3 => None,
    };
    digests.iter().filter_map(|digest| Some((rank(digest)?, digest))).min_by_key(|(rank, _)| *rank).map(|(_, d)| d)
}

/// Errs with `Corrupt` when a checksum was given that `parts` do not have.
pub(crate) fn check_parts(want: Option<&Digest>, parts: &[Bytes], place: impl Fn() -> String) -> Result<()> {
    match want.and_then(|want| Some((want, of_parts(want.algorithm, parts)?))) {
        Some((want, have)) if *want != have => {
            Err(Error::corrupt(place(), format!("was to be written with {want} but the bytes have {have}")))
        }
        _ => Ok(()),
    }
}

/// Passes the chunks of a whole object on, and errs at its end when they do not have the digest.
pub(crate) fn verified(
    chunks: BoxStream<'static, Result<Chunk>>,
    want: &Digest,
    place: String,
) -> BoxStream<'static, Result<Chunk>> {
    let Some(running) = Running::new(want.algorithm) else {
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
                (have != want)
                    .then(|| (Err(Error::corrupt(place, format!("arrived with {have}, its store has {want}"))), None))
            }
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_running_digests_match_the_published_check_values() {
        // The catalogue's check values, of "123456789".
        for (algorithm, want) in [
            (Algorithm::Crc32, "crc32:cbf43926"),
            (Algorithm::Crc32c, "crc32c:e3069283"),
            (Algorithm::Crc64Nvme, "crc64nvme:ae8b14860a799888"),
            (Algorithm::Md5, "md5:25f9e794323b453885f5181f1b624d0b"),
        ] {
            let parts = [Bytes::from_static(b"1234"), Bytes::from_static(b"56789")];
            assert_eq!(of_parts(algorithm, &parts).unwrap().to_string(), want);
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
