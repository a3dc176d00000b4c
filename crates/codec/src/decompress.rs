// SPDX-License-Identifier: Apache-2.0
//! Inflation of whole objects into a buffer that the caller keeps and gives again.

use penstock_types::Result;

use crate::gzip::{self, GzipCheck};
use crate::output::{above_limit, reserve};
use crate::{Codec, StreamDecoder, zstandard};

/// Inflates the whole object `input` into `out`, which then holds exactly its content: what was there is replaced, the
/// room is reused, and nothing is zeroed first. `limit` bounds the content (a bomb stops there); on an error `out` is
/// empty. `place` names the object in messages.
///
/// Gzip goes through libdeflate, zstd in one pass where the frame says its size, LZ4 block by block.
pub fn decompress_into(codec: Codec, input: &[u8], out: &mut Vec<u8>, limit: u64, place: &str) -> Result<()> {
    decompress_into_checked(codec, input, out, limit, GzipCheck::Full, place)
}

/// [`decompress_into`] with a say in how much of gzip's trailer is checked; the other codecs check all they carry.
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

/// An LZ4 object: its frames.
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

/// Inflates one stretch that [`crate::split_frames`] gave into `out`, whose content is replaced: the blocks it holds.
/// `None` where it does not consist of whole blocks that inflate, checksums included, to at most `limit` bytes: then
/// nothing behind it is to be believed, and [`StreamDecoder::resume_at`] reads on from where it begins.
///
/// Stretches inflate apart, in any order and on any thread. That each of them, from the first one on, consists of whole
/// blocks proves the cuts: a block that begins where a whole one has ended begins there.
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

/// Room for `more` bytes behind what `out` holds, growing by a factor, the limit allowing.
fn reserve_more(out: &mut Vec<u8>, more: usize, limit: u64, place: &str) -> Result<()> {
    let need = out.len() as u64 + more as u64;
    if need > out.capacity() as u64 {
        reserve(out, (out.capacity() as u64).saturating_mul(2).min(limit).max(need), place)?;
    }
    Ok(())
}
