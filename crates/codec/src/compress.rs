// SPDX-License-Identifier: Apache-2.0
//! Compresses whole objects. The output is deterministic: the same input and level give the same bytes. It contains no
//! time and no file name, and one thread produces it.

use std::io::Write;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use penstock_types::{Error, Result};
use zstd::zstd_safe::{CCtx, CParameter, compress_bound, get_error_name};

use crate::Codec;

/// Compresses `input`. Valid levels are 0 to 12 for gzip (libdeflate's levels) and zstd's own range for zstd. LZ4 and
/// [`Codec::None`] ignore the level. The output of every codec except [`Codec::None`] contains a checksum and the size
/// of the content. gzip stores the size modulo 2^32.
pub fn compress(codec: Codec, input: &[u8], level: i32) -> Result<Vec<u8>> {
    match codec {
        Codec::None => Ok(input.to_vec()),
        Codec::Gzip => gzip(input, level),
        Codec::Zstd => zstd(input, level),
        Codec::Lz4 => lz4(input),
    }
}

fn gzip(input: &[u8], level: i32) -> Result<Vec<u8>> {
    let Ok(level) = libdeflater::CompressionLvl::new(level) else {
        return Err(Error::config("level", format!("must be 0 to 12 for gzip (got {level})")));
    };
    let mut compressor = libdeflater::Compressor::new(level);
    let mut out = vec![0; compressor.gzip_compress_bound(input.len())];
    let len = compressor.gzip_compress(input, &mut out).map_err(|error| Error::bug(format!("gzip: {error}")))?;
    out.truncate(len);
    out.shrink_to_fit();
    Ok(out)
}

fn zstd(input: &[u8], level: i32) -> Result<Vec<u8>> {
    let levels = zstd::compression_level_range();
    if !levels.contains(&level) {
        return Err(Error::config(
            "level",
            format!("must be {} to {} for zstd (got {level})", levels.start(), levels.end()),
        ));
    }
    let failed = |code| Error::bug(format!("zstd: {}", get_error_name(code)));
    let mut context = CCtx::create();
    context.set_parameter(CParameter::CompressionLevel(level)).map_err(failed)?;
    // zstd writes no checksum by default. Without a checksum, damage inside a frame can go unnoticed.
    context.set_parameter(CParameter::ChecksumFlag(true)).map_err(failed)?;
    let mut out = Vec::with_capacity(compress_bound(input.len()));
    context.compress2(&mut out, input).map_err(failed)?;
    out.shrink_to_fit();
    Ok(out)
}

fn lz4(input: &[u8]) -> Result<Vec<u8>> {
    let failed = |error: String| Error::bug(format!("lz4: {error}"));
    let info = FrameInfo::new()
        .content_size(Some(input.len() as u64))
        .content_checksum(true)
        .block_mode(BlockMode::Independent)
        .block_size(BlockSize::Max1MB);
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(input).map_err(|error| failed(error.to_string()))?;
    encoder.finish().map_err(|error| failed(error.to_string()))
}
