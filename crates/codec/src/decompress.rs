// SPDX-License-Identifier: Apache-2.0
//! Decompresses whole objects into a buffer that the caller reuses.

use penstock_types::Result;

use crate::gzip::{self, GzipCheck};
use crate::output::{above_limit, reserve};
use crate::{Codec, StreamDecoder, zstandard};

/// Decompresses the whole object `input` into `out`, replacing the content of `out`. Reuses the memory of `out`,
/// without zeroing this memory first. `limit` is the maximum decompressed size in bytes; a decompression bomb fails at
/// the limit. After an error, `out` is empty. `place` names the object in error messages.
///
/// Gzip uses libdeflate. zstd decompresses in one pass if the frame header contains the size. LZ4 is decompressed one
/// block at a time.
pub fn decompress_into(codec: Codec, input: &[u8], out: &mut Vec<u8>, limit: u64, place: &str) -> Result<()> {
    decompress_into_checked(codec, input, out, limit, GzipCheck::Full, place)
}

/// Like [`decompress_into`], but the caller chooses how much of gzip's trailer is verified. All checksums of other
/// codecs are always verified.
pub fn decompress_into_checked(
    codec: Codec,
    input: &[u8],
    out: &mut Vec<u8>,
    limit: u64,
    check: GzipCheck,
    place: &str,
) -> Result<()> {
    out.clear();
    let result = match codec {
        Codec::None => copy(input, out, limit, place),
        Codec::Gzip => gzip::inflate_whole(input, out, limit, check, place),
        Codec::Zstd => zstandard::inflate_whole(input, out, limit, place).map(drop),
        Codec::Lz4 => lz4(input, out, limit, place).map(drop),
    };
    if result.is_err() {
        out.clear();
    }
    result
}

/// Decompresses an LZ4 object, frame by frame.
fn lz4(input: &[u8], out: &mut Vec<u8>, limit: u64, place: &str) -> Result<u64> {
    let mut inflater = StreamDecoder::new(Codec::Lz4, limit, place);
    let mut append = |bytes: &[u8]| {
        reserve_more(out, bytes.len(), limit, place)?;
        out.extend_from_slice(bytes);
        Ok(())
    };
    inflater.push(input, &mut append)?;
    let blocks = inflater.blocks();
    inflater.finish().map(|_| blocks)
}

/// Decompresses one run from [`crate::split_frames`] into `out`, replacing the content of `out`. Returns the number of
/// frames in the run. Returns `None` unless `stretch` consists of whole frames with correct checksums that decompress
/// to at most `limit` bytes. After `None`, the later runs are not valid either. Use [`StreamDecoder::resume_at`] to
/// continue from the start of the run that failed.
///
/// Runs can be decompressed independently, in any order and on any thread. If all runs up to some point consist of
/// whole frames, the boundaries between them are correct: each frame begins where the previous one ends.
pub fn decompress_frames(codec: Codec, stretch: &[u8], out: &mut Vec<u8>, limit: u64) -> Option<u64> {
    out.clear();
    let blocks = match codec {
        Codec::None => None,
        Codec::Gzip => gzip::decompress_frames(stretch, out, limit),
        Codec::Zstd => zstandard::inflate_whole(stretch, out, limit, "").ok(),
        Codec::Lz4 => lz4(stretch, out, limit, "").ok(),
    };
    if blocks.is_none() {
        out.clear();
    }
    blocks
}

fn copy(input: &[u8], out: &mut Vec<u8>, limit: u64, place: &str) -> Result<()> {
    if input.len() as u64 > limit {
        return Err(above_limit(limit, place));
    }
    reserve(out, input.len() as u64, place)?;
    out.extend_from_slice(input);
    Ok(())
}

/// Reserves `more` bytes after the content of `out`. At least doubles the capacity, up to the limit.
fn reserve_more(out: &mut Vec<u8>, more: usize, limit: u64, place: &str) -> Result<()> {
    let need = out.len() as u64 + more as u64;
    if need > out.capacity() as u64 {
        reserve(out, (out.capacity() as u64).saturating_mul(2).min(limit).max(need), place)?;
    }
    Ok(())
}
