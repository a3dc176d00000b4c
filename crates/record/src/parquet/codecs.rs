// SPDX-License-Identifier: Apache-2.0
//! Decompresses one Parquet page to exactly the size that its header states.

use std::io::Read;

use ::parquet::basic::Compression;
use penstock_codec::{Codec, GzipCheck, SizedCodec, decompress_exact, decompress_into_checked};
use penstock_types::{Error, Result, with_separators};

/// Size in bytes of the Brotli decoder's input buffer.
const BROTLI_INPUT: usize = 4096;

/// Returns a page of `want` bytes: `levels`, which are never compressed, followed by the decompressed `input`.
pub(super) fn page(codec: Compression, levels: &[u8], input: &[u8], want: usize, place: &str) -> Result<Vec<u8>> {
    let body = want.saturating_sub(levels.len());
    let mut made = Vec::new();
    // Decompress gzip directly into the result: the general path would need twice the memory for a large page.
    if matches!(codec, Compression::GZIP(_)) && body > 0 {
        decompress_into_checked(Codec::Gzip, input, &mut made, body as u64, GzipCheck::Full, place)?;
        if made.len() != body {
            return Err(other_size(made.len() as u64, body, place));
        }
        made.splice(..0, levels.iter().copied());
        return Ok(made);
    }
    if made.try_reserve_exact(want).is_err() {
        // Running out of memory must be an error, not an abort.
        return Err(Error::BudgetExceeded { what: format!("a page of {place}"), need: want as u64, budget: 0 });
    }
    made.extend_from_slice(levels);
    made.resize(want, 0);
    // If a page contains only nulls, there may be no bytes after its levels, not even an empty stream.
    if body > 0 {
        decompress(codec, input, &mut made[levels.len()..], place)?;
    }
    Ok(made)
}

fn damaged(problem: String, place: &str) -> Error {
    Error::corrupt(place, format!("is damaged Parquet: a page {problem}"))
}

fn other_size(made: u64, want: usize, place: &str) -> Error {
    damaged(format!("has {} bytes (want {})", with_separators(made), with_separators(want as u64)), place)
}

/// Decompresses `input` into `out` and requires that it fills `out`. `place` names the column in messages.
fn decompress(codec: Compression, input: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    match codec {
        Compression::UNCOMPRESSED if input.len() != out.len() => Err(other_size(input.len() as u64, out.len(), place)),
        Compression::UNCOMPRESSED => {
            out.copy_from_slice(input);
            Ok(())
        }
        Compression::SNAPPY => match snap::raw::decompress_len(input) {
            Ok(made) if made != out.len() => Err(other_size(made as u64, out.len(), place)),
            _ => match snap::raw::Decoder::new().decompress(input, out) {
                Ok(_) => Ok(()),
                Err(problem) => Err(damaged(format!("is damaged Snappy: {problem}"), place)),
            },
        },
        Compression::GZIP(_) => decompress_exact(SizedCodec::Gzip, input, out, place),
        Compression::ZSTD(_) => decompress_exact(SizedCodec::Zstd, input, out, place),
        Compression::LZ4_RAW => decompress_exact(SizedCodec::Lz4Block, input, out, place),
        Compression::LZ4 => lz4(input, out, place),
        Compression::BROTLI(_) => {
            let mut stream = brotli_decompressor::Decompressor::new(input, BROTLI_INPUT);
            let end = stream.read_exact(out).and_then(|()| stream.read(&mut [0]));
            match end {
                Ok(0) => Ok(()),
                Ok(_) => Err(damaged(format!("has more than {} bytes", with_separators(out.len() as u64)), place)),
                Err(problem) => Err(damaged(format!("is damaged Brotli: {problem}"), place)),
            }
        }
        Compression::LZO => {
            Err(Error::Unsupported { what: format!("LZO compression ({place})"), by: "the Parquet reader".to_owned() })
        }
    }
}

/// Decompresses the deprecated codec `LZ4`: depending on the writer, Hadoop's framing, an LZ4 frame, or a bare block.
fn lz4(input: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    if hadoop_lz4(input, out, place).is_some() {
        return Ok(());
    }
    if Codec::sniff(input) == Codec::Lz4 {
        let mut made = Vec::new();
        decompress_into_checked(Codec::Lz4, input, &mut made, out.len() as u64, GzipCheck::Full, place)?;
        return decompress(Compression::UNCOMPRESSED, &made, out, place);
    }
    decompress_exact(SizedCodec::Lz4Block, input, out, place)
}

/// Decompresses Hadoop's LZ4 framing: blocks, each after its decompressed size and its stored size (both big-endian).
/// Returns `None` if the bytes do not have this form.
fn hadoop_lz4(mut input: &[u8], mut out: &mut [u8], place: &str) -> Option<()> {
    while !input.is_empty() {
        let (made, rest) = input.split_first_chunk::<4>()?;
        let (stored, rest) = rest.split_first_chunk::<4>()?;
        let (block, rest) = rest.split_at_checked(u32::from_be_bytes(*stored) as usize)?;
        let (slot, behind) = out.split_at_mut_checked(u32::from_be_bytes(*made) as usize)?;
        decompress_exact(SizedCodec::Lz4Block, block, slot, place).ok()?;
        (input, out) = (rest, behind);
    }
    out.is_empty().then_some(())
}
