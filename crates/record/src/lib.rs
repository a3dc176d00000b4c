// SPDX-License-Identifier: Apache-2.0
//! Bytes to records: containers of records ([`tfrecord`], [`tar`], [`mds`], [`parquet`](mod@parquet)), payloads
//! ([`tf_example`], [`tf_sequence_example`], [`npy`], [`npz`], [`image`]), chunks of arrays ([`chunk`]), other
//! programs' indexes ([`sidecar_index`]), and detection by first bytes ([`magic`]).
//!
//! Everything here works on bytes in memory and copies no payload; it uses no store and no thread. Damaged or hostile
//! bytes end in [`penstock_types::Error::Corrupt`] with the numbers.

mod byteswap;
pub mod chunk;
pub mod image;
pub mod magic;
pub mod mds;
pub mod npy;
pub mod npz;
pub mod parquet;
mod protobuf;
pub mod sidecar_index;
pub mod tar;
mod tar_header;
pub mod tf_example;
mod tf_feature;
pub mod tf_sequence_example;
pub mod tfrecord;
mod tfrecord_header;
