// SPDX-License-Identifier: Apache-2.0
//! Parallel compression of one large object in blocks, on the caller's threads. The output does not depend on the
//! number of threads.
//!
//! gzip output is one member, so decoders that read only one member read the whole object. Each block ends at a byte
//! boundary and uses the preceding 32 KiB as its window (as in pigz), so little compression is lost. zstd output has
//! one frame per block, which every decoder reads as one stream. This module starts no threads.

use flate2::{Compress, Compression, FlushCompress, Status};
use penstock_types::{Error, Result};

use crate::{Codec, compress};

/// Number of bytes of preceding content that a gzip block may refer to: DEFLATE's window.
const WINDOW: usize = 32 << 10;
/// Space for DEFLATE's overhead on incompressible data and for the marker at the end of a block.
const SLACK: usize = 1 << 10;

/// One compressed block.
#[derive(Debug)]
pub struct CompressedBlock {
    /// Compressed bytes of the block, as stored in the object.
    pub bytes: Vec<u8>,
    /// Uncompressed size of the block.
    pub len: u64,
    /// CRC-32 of the uncompressed bytes, if the codec's trailer needs it.
    crc: u32,
}

/// Settings that all blocks of one object share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCompressor {
    codec: Codec,
    level: i32,
}

/// Checksum and total size of the blocks so far, for the object's trailer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tail {
    crc: u64,
    len: u64,
}

impl Tail {
    /// Adds the next block; blocks must be added in order.
    pub fn take(&mut self, block: &CompressedBlock) {
        let iso = crc_fast::CrcAlgorithm::Crc32IsoHdlc;
        self.crc = match self.len {
            0 => u64::from(block.crc),
            _ => crc_fast::checksum_combine(iso, self.crc, u64::from(block.crc), block.len),
        };
        self.len += block.len;
    }
}

impl BlockCompressor {
    /// Creates a compressor for gzip or zstd. Returns a `Config` error for a level that the codec does not have.
    pub fn new(codec: Codec, level: i32) -> Result<Self> {
        match codec {
            Codec::Gzip | Codec::Zstd => {}
            Codec::None | Codec::Lz4 => {
                return Err(Error::config("--compress", format!("`{codec}` is neither gzip nor zstd")));
            }
        }
        compress(codec, b"", level)?;
        Ok(Self { codec, level })
    }

    /// Uncompressed size of each block except the last, in bytes.
    pub fn block_bytes(self) -> usize {
        match self.codec {
            Codec::Zstd => 8 << 20,
            Codec::None | Codec::Gzip | Codec::Lz4 => 1 << 20,
        }
    }

    /// Number of bytes that must precede a block as its compression window.
    pub fn window(self) -> usize {
        match self.codec {
            Codec::Gzip => WINDOW,
            Codec::None | Codec::Zstd | Codec::Lz4 => 0,
        }
    }

    /// Returns the object's header. The header contains no name and no time, so that equal content gives equal bytes.
    pub fn head(self) -> Vec<u8> {
        match self.codec {
            Codec::Gzip => vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255],
            Codec::None | Codec::Zstd | Codec::Lz4 => Vec::new(),
        }
    }

    /// Compresses a block. `before` is the content before the block, or at least the last [`BlockCompressor::window`]
    /// bytes of that content.
    pub fn pack(self, before: &[u8], block: &[u8], is_last: bool) -> Result<CompressedBlock> {
        let len = block.len() as u64;
        if self.codec == Codec::Zstd {
            return Ok(CompressedBlock { bytes: compress(Codec::Zstd, block, self.level)?, len, crc: 0 });
        }
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, block) as u32;
        let failed = |what: String| Error::bug(format!("gzip: {what}"));
        // Levels 0 to 12 are defined by libdeflate. Blocks from libdeflate cannot be joined, so zlib compresses the
        // blocks, with level 9 at most.
        let level = Compression::new(self.level.clamp(0, 9) as u32);
        let mut stream = Compress::new(level, false);
        let window = &before[before.len().saturating_sub(WINDOW)..];
        if !window.is_empty() {
            stream.set_dictionary(window).map_err(|error| failed(error.to_string()))?;
        }
        let flush = if is_last { FlushCompress::Finish } else { FlushCompress::Sync };
        let mut bytes = Vec::with_capacity(block.len() / 2 + SLACK);
        loop {
            let used = stream.total_in() as usize;
            let status = stream.compress_vec(&block[used..], &mut bytes, flush);
            match status.map_err(|error| failed(error.to_string()))? {
                Status::StreamEnd => break,
                // The flush is complete if the output buffer still has space.
                Status::Ok | Status::BufError
                    if !is_last && stream.total_in() == len && bytes.len() < bytes.capacity() =>
                {
                    break;
                }
                Status::Ok | Status::BufError => bytes.reserve(block.len() / 4 + SLACK),
            }
        }
        Ok(CompressedBlock { bytes, len, crc })
    }

    /// Returns the object's trailer.
    pub fn end(self, tail: Tail) -> Vec<u8> {
        match self.codec {
            Codec::Gzip => [(tail.crc as u32).to_le_bytes(), (tail.len as u32).to_le_bytes()].concat(),
            Codec::None | Codec::Zstd | Codec::Lz4 => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;
    use crate::StreamDecoder;

    fn whole(blocks: BlockCompressor, content: &[u8], block: usize) -> Vec<u8> {
        let (mut out, mut tail, mut at) = (blocks.head(), Tail::default(), 0);
        loop {
            let end = (at + block).min(content.len());
            let packed = blocks.pack(&content[..at], &content[at..end], end == content.len()).unwrap();
            tail.take(&packed);
            out.extend(packed.bytes);
            at = end;
            if at == content.len() {
                out.extend(blocks.end(tail));
                return out;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// For any content and block size, the output decompresses to the input, and gzip output is one member.
        #[test]
        fn prop_blocks_inflate_to_what_they_were_made_of(seed: u64, len in 0usize..300_000, block in 20_000usize..90_000, level in 0i32..10, is_zstd: bool) {
            let mut state = seed | 1;
            let content: Vec<u8> = (0..len).map(|at| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                if at % 5 < 3 { (at / 64) as u8 } else { (state >> 61) as u8 }
            }).collect();
            let codec = if is_zstd { Codec::Zstd } else { Codec::Gzip };
            let stored = whole(BlockCompressor::new(codec, level.max(i32::from(is_zstd))).unwrap(), &content, block);
            let mut got = Vec::new();
            let mut inflater = StreamDecoder::new(codec, u64::MAX, "here");
            inflater.push(&stored, &mut |piece| { got.extend_from_slice(piece); Ok(()) }).unwrap();
            inflater.finish().unwrap();
            prop_assert!(got == content);
            if !is_zstd {
                // This decoder stops after the first member.
                let mut one = Vec::new();
                flate2::read::GzDecoder::new(&stored[..]).read_to_end(&mut one).unwrap();
                prop_assert!(one == content);
            }
        }
    }

    #[test]
    fn blocks_of_a_level_or_a_codec_that_cannot_be_are_refused() {
        for (codec, level) in
            [(Codec::Gzip, 13), (Codec::Gzip, -1), (Codec::Zstd, 23), (Codec::Lz4, 1), (Codec::None, 0)]
        {
            assert_eq!(BlockCompressor::new(codec, level).unwrap_err().code(), "config");
        }
    }
}
