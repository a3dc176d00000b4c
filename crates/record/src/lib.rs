// SPDX-License-Identifier: Apache-2.0
//! Bytes to records: TFRecord framing ([`tfrecord`]) and tar ([`tar`]), MDS shards ([`mds`]), what stands in a record ([`example`], [`sequence`],
//! [`npy`], [`npz`], [`image`]), and which format an object is in.
//!
//! Everything here works on inflated bytes in memory and copies no payload. It knows no store and no thread. Damaged or
//! hostile bytes end in [`penstock_types::Error::Corrupt`] with the numbers.

pub mod example;
mod feature;
mod format;
pub mod image;
pub mod mds;
pub mod npy;
pub mod npz;
pub mod sequence;
mod swap;
pub mod tar;
mod tar_header;
pub mod tfrecord;
mod wire;

pub use format::RecordFormat;
