// SPDX-License-Identifier: Apache-2.0
//! Bytes to bytes: gzip, zstd, lz4 and none, whole-object ([`inflate_into`]), streaming ([`Inflater`]) and in stretches
//! that inflate on many cores at once ([`take_apart`]), and the checksums of what passes ([`checksum`]).
//!
//! A codec is tested on slices: it knows no store, no record and no thread. Damaged or hostile input ends in
//! [`penstock_types::Error::Corrupt`] with the numbers; output never passes the limit that the caller gives.

mod bits;
mod blocks;
pub mod checksum;
mod codec;
mod deflate;
mod exact;
mod gzip;
mod inflate;
mod inflater;
mod libdeflate;
mod lz4;
mod pack;
mod planes;
mod shuffle;
mod zstandard;

pub use blocks::{Stretch, StretchSize, take_apart};
pub use codec::{Codec, strip_suffix};
pub use deflate::deflate;
pub use exact::{Packing, crc32, inflate_exact};
pub use gzip::{GzipCheck, gzip_size_hint};
pub use inflate::{inflate_apart, inflate_into, inflate_into_checked};
pub use inflater::{Inflated, Inflater};
pub use pack::{Packed, Packer, Tail};
pub use planes::{Planes, from_planes, to_planes};
pub use shuffle::{shuffle, unshuffle};
