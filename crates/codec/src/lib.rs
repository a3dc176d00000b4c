// SPDX-License-Identifier: Apache-2.0
//! Compression codecs `gzip`, `zstd`, `lz4` and `none`. The codecs work on whole objects ([`decompress_into`]), on
//! streams ([`StreamDecoder`]), and on runs of frames that several cores decompress in parallel ([`split_frames`]). The
//! crate also has checksums ([`checksum`]).
//!
//! Codecs work on slices and do not depend on stores, records or threads. Damaged or hostile input gives
//! [`penstock_types::Error::Corrupt`] with the relevant numbers. Output never exceeds the caller's limit.

mod bitshuffle;
mod byteshuffle;
pub mod checksum;
mod codec;
mod compress;
mod decompress;
mod frames;
mod gzip;
mod libdeflate;
mod lz4;
mod output;
mod parallel_compress;
mod sized;
mod stream_decoder;
mod transposed;
mod zstandard;

pub use byteshuffle::{shuffle, unshuffle};
pub use codec::{Codec, strip_suffix};
pub use compress::compress;
pub use decompress::{decompress_frames, decompress_into, decompress_into_checked};
pub use frames::{FrameRun, FrameRunSize, split_frames};
pub use gzip::{GzipCheck, gzip_size_hint};
pub use output::Inflated;
pub use parallel_compress::{BlockCompressor, CompressedBlock, Tail};
pub use sized::{SizedCodec, crc32, decompress_exact};
pub use stream_decoder::StreamDecoder;
pub use transposed::{Planes, restore_transposed, transpose};
