// SPDX-License-Identifier: Apache-2.0
//! Compression during a stage: decides whether an object is worth compressing, and compresses blocks in parallel on all
//! cores. The output depends only on content, codec and level.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use penstock_codec::{BlockCompressor, Codec, CompressedBlock, Tail, compress};
use penstock_types::{Error, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::parallel_decode::CpuBudget;
use penstock_dataset::manifest::{Entry, RecordFormat};

/// Number of bytes at the start of an object that the compression trial compresses, at level `TRIED_AT`.
pub(crate) const TRIED: usize = 256 << 10;
const TRIED_AT: i32 = 1;
/// Maximum ratio of compressed to original size in the trial. If the trial saves less, decompression costs readers more
/// than the store saves.
const WORTH: (usize, usize) = (19, 20);
/// Maximum size of content that is compressed in one piece. Compression in one piece is faster and saves more than
/// compression in blocks.
pub(crate) const WHOLE: usize = 16 << 20;

/// Suffixes of formats that are already compressed.
const COMPRESSED: [&[u8]; 24] = [
    b".7z",
    b".avif",
    b".br",
    b".bz2",
    b".flac",
    b".gif",
    b".heic",
    b".jp2",
    b".jxl",
    b".lzma",
    b".mkv",
    b".mov",
    b".mp3",
    b".mp4",
    b".npz",
    b".ogg",
    b".parquet",
    b".png",
    b".rar",
    b".tgz",
    b".webm",
    b".webp",
    b".xz",
    b".zip",
];

/// Codec and level for compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compression {
    /// gzip or zstd.
    pub codec: Codec,
    /// 0 to 12 for gzip; zstd has its own range.
    pub level: i32,
}

impl Compression {
    /// Returns a `Config` error for an invalid codec or level.
    pub fn new(codec: Codec, level: Option<i32>) -> Result<Self> {
        let level = level.unwrap_or_else(|| codec.default_level());
        BlockCompressor::new(codec, level).map(|_| Self { codec, level })
    }

    fn packer(self) -> Result<BlockCompressor> {
        BlockCompressor::new(self.codec, self.level)
    }

    /// Compresses the content of a small object in one piece.
    pub(crate) fn whole(self, content: &[u8]) -> Result<Vec<u8>> {
        compress(self.codec, content, self.level)
    }
}

/// True if the name, the Content-Encoding or the format of the object shows that it is already compressed.
pub(crate) fn is_packed(entry: &Entry) -> bool {
    let name = entry.key.as_bytes().to_ascii_lowercase();
    Codec::of_name(&name) != Codec::None
        || entry.encoding.is_some()
        || entry.format == RecordFormat::Jpeg
        || COMPRESSED.iter().any(|suffix| name.ends_with(suffix))
}

/// True if these first bytes of an object compress well enough to make compression of the object worth its cost.
pub(crate) fn is_worth(codec: Codec, head: &[u8]) -> bool {
    let head = &head[..head.len().min(TRIED)];
    Codec::sniff(head) == Codec::None
        && compress(codec, head, TRIED_AT).is_ok_and(|packed| packed.len() * WORTH.1 <= head.len() * WORTH.0)
}

/// Compresses content that arrives in pieces. Splits the content into blocks, compresses the blocks on blocking
/// threads, and returns the output in order.
pub(crate) struct AsyncCompressor {
    packer: BlockCompressor,
    cores: Arc<Semaphore>,
    at_once: usize,
    before: Bytes,
    block: BytesMut,
    flying: VecDeque<JoinHandle<Result<CompressedBlock>>>,
    tail: Tail,
    is_begun: bool,
}

impl Drop for AsyncCompressor {
    fn drop(&mut self) {
        self.flying.iter().for_each(JoinHandle::abort);
    }
}

impl AsyncCompressor {
    pub fn new(compression: Compression, cores: Arc<Semaphore>, threads: usize) -> Result<Self> {
        Ok(Self {
            packer: compression.packer()?,
            cores,
            // One block per core, plus one block that is ready when a core becomes free.
            at_once: threads + 1,
            before: Bytes::new(),
            block: BytesMut::new(),
            flying: VecDeque::new(),
            tail: Tail::default(),
            is_begun: false,
        })
    }

    /// Adds content; returns the compressed bytes that are ready.
    pub async fn push(&mut self, content: Bytes) -> Result<Vec<Bytes>> {
        let mut out = Vec::new();
        let mut rest = content;
        // A full block is sent only when another byte follows it, because the final block must be marked as the last
        // one.
        while !rest.is_empty() {
            let most = self.packer.block_bytes();
            if self.block.len() == most {
                self.launch(false).await?;
                self.gather(self.at_once, &mut out).await?;
            }
            let room = (most - self.block.len()).min(rest.len());
            self.block.extend_from_slice(&rest.split_to(room));
        }
        Ok(out)
    }

    /// Ends the content; returns the remaining compressed bytes, including the end of the stream.
    pub async fn finish(mut self) -> Result<Vec<Bytes>> {
        let mut out = Vec::new();
        self.launch(true).await?;
        self.gather(0, &mut out).await?;
        out.push(self.packer.end(self.tail).into());
        Ok(out)
    }

    async fn launch(&mut self, is_last: bool) -> Result<()> {
        let core = self.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        let (packer, before) = (self.packer, self.before.clone());
        let block = self.block.split().freeze();
        self.before = block.slice(block.len().saturating_sub(packer.window())..);
        self.flying.push_back(tokio::task::spawn_blocking(move || {
            let packed = packer.pack(&before, &block, is_last);
            drop(core);
            packed
        }));
        Ok(())
    }

    /// Waits until at most `left` blocks are in flight.
    async fn gather(&mut self, left: usize, out: &mut Vec<Bytes>) -> Result<()> {
        while self.flying.len() > left {
            let Some(next) = self.flying.pop_front() else { break };
            let packed = next.await.map_err(|join| Error::bug(format!("a compressing thread ended: {join}")))??;
            self.tail.take(&packed);
            if !self.is_begun {
                self.is_begun = true;
                out.push(self.packer.head().into());
            }
            out.push(packed.bytes.into());
        }
        Ok(())
    }
}

/// Like `AsyncCompressor`, for a caller on a blocking thread. Small content is compressed in one piece; large content
/// is compressed in blocks on idle cores.
pub(crate) struct Compressor<'a> {
    compression: Compression,
    cpu_budget: CpuBudget<'a>,
    held: Vec<u8>,
    /// For large content: the compressor, the number of bytes in `held` that only serve as the window of the next
    /// block, and the checksum and size for the trailer.
    large: Option<(BlockCompressor, usize, Tail)>,
}

impl<'a> Compressor<'a> {
    pub fn new(compression: Compression, cpu_budget: CpuBudget<'a>) -> Self {
        Self { compression, cpu_budget, held: Vec::new(), large: None }
    }

    pub fn take(&mut self, content: &[u8], out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        for piece in content.chunks(WHOLE / 4) {
            self.held.extend_from_slice(piece);
            if self.held.len() > WHOLE {
                self.compress_blocks(false, out)?;
            }
        }
        Ok(())
    }

    /// Ends the content; passes the remaining compressed bytes to `out`.
    pub fn finish(mut self, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match self.large {
            None => out(&self.compression.whole(&self.held)?),
            Some(_) => self.compress_blocks(true, out),
        }
    }

    /// Compresses all complete blocks except the last one. At the end of the content, compresses all blocks.
    fn compress_blocks(&mut self, is_end: bool, out: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (packer, mut at, mut tail) = match self.large.take() {
            Some(large) => large,
            None => {
                let packer = self.compression.packer()?;
                out(&packer.head())?;
                (packer, 0, Tail::default())
            }
        };
        let size = packer.block_bytes();
        loop {
            let left = self.held.len() - at;
            // A full block is compressed only when another byte follows it, because the final block must be marked as
            // the last one.
            let blocks = if is_end { left.div_ceil(size).max(1) } else { left.saturating_sub(1) / size };
            if blocks == 0 {
                break;
            }
            let more = blocks.min(self.cpu_budget.threads).saturating_sub(1) as u32;
            let spare = (1..=more).rev().find_map(|count| self.cpu_budget.cores.try_acquire_many(count).ok());
            let many = 1 + spare.as_ref().map_or(0, |permit| permit.num_permits());
            let held = &self.held;
            let one = |number: usize| {
                let start = at + number * size;
                let end = (start + size).min(held.len());
                packer.pack(&held[..start], &held[start..end], is_end && number + 1 == blocks)
            };
            let packed: Vec<Result<CompressedBlock>> = std::thread::scope(|scope| {
                let others: Vec<_> = (1..many).map(|number| scope.spawn(move || one(number))).collect();
                let first = one(0);
                let joined = others
                    .into_iter()
                    .map(|other| other.join().unwrap_or_else(|_| Err(Error::bug("a compressing thread panicked"))));
                std::iter::once(first).chain(joined).collect()
            });
            drop(spare);
            for packed in packed {
                let packed = packed?;
                tail.take(&packed);
                out(&packed.bytes)?;
                at = (at + size).min(self.held.len());
            }
            if is_end && blocks <= many {
                return out(&packer.end(tail));
            }
        }
        let window = at.saturating_sub(packer.window());
        self.held.drain(..window);
        self.large = Some((packer, at - window, tail));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squeeze_leaves_alone_what_is_compressed_or_does_not_compress() {
        for (name, packed) in
            [("a.gz", true), ("a.JPG", true), ("d/a.npz", true), ("a.tfrecord", false), ("a.npy", false)]
        {
            assert_eq!(is_packed(&Entry::new(name.into(), 9)), packed, "{name}");
        }
        let mut entry = Entry::new("a".into(), 9);
        entry.encoding = Some("br".into());
        assert!(is_packed(&entry));
        let mut state = 1u64;
        let noise: Vec<u8> = (0..100_000)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        assert!(!is_worth(Codec::Gzip, &noise) && !is_worth(Codec::Zstd, b""));
        assert!(is_worth(Codec::Gzip, &[7; 5000]));
        let twice = compress(Codec::Gzip, &[7; 5_000_000], 1).unwrap();
        assert!(!is_worth(Codec::Zstd, &twice), "it begins like what it is");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn press_gives_the_same_bytes_whatever_the_cores_and_the_pieces() {
        let content: Vec<u8> =
            (0..10_000_000u32).flat_map(|at| ((at / 100) as u16).to_le_bytes()).take(19_300_000).collect();
        for codec in [Codec::Gzip, Codec::Zstd] {
            let mut seen: Vec<Vec<u8>> = Vec::new();
            for (threads, piece) in [(1, 100_000), (4, 19_300_000), (2, 1 << 20)] {
                let compression = Compression::new(codec, Some(3)).unwrap();
                let mut compressor =
                    AsyncCompressor::new(compression, Arc::new(Semaphore::new(threads)), threads).unwrap();
                let mut out = Vec::new();
                for piece in content.chunks(piece) {
                    out.extend(compressor.push(Bytes::copy_from_slice(piece)).await.unwrap());
                }
                out.extend(compressor.finish().await.unwrap());
                seen.push(out.concat());
            }
            for threads in [1, 3] {
                let cores = Semaphore::new(threads - 1);
                let cpu_budget = CpuBudget { cores: &cores, threads, memory: 1 << 30 };
                let mut squeeze = Compressor::new(Compression::new(codec, Some(3)).unwrap(), cpu_budget);
                let mut out = Vec::new();
                let mut keep = |bytes: &[u8]| {
                    out.extend_from_slice(bytes);
                    Ok(())
                };
                content.chunks(700_001).for_each(|piece| squeeze.take(piece, &mut keep).unwrap());
                squeeze.finish(&mut keep).unwrap();
                seen.push(out);
            }
            assert!(seen.windows(2).all(|pair| pair[0] == pair[1]));
            let mut got = Vec::new();
            penstock_codec::decompress_into(codec, &seen[0], &mut got, u64::MAX, "here").unwrap();
            assert!(got == content);
        }
    }
}
