// SPDX-License-Identifier: Apache-2.0
//! Record formats.
//!
//! Parses containers of records ([`tfrecord`], [`tar`], [`mds`], [`parquet`](mod@parquet), [`jsonl`], [`csv`],
//! [`arrow`]), payloads ([`tf_example`], [`tf_sequence_example`], [`npy`], [`npz`], [`image`], [`audio`]) and array
//! chunks ([`chunk`]). Also parses index files of other programs ([`sidecar_index`], [`megatron`]), encodes texts
//! ([`byte_pairs`]), and detects formats by their first bytes ([`magic`]).
//!
//! All functions work on bytes in memory, without copying payloads; they use neither stores nor threads. For damaged or
//! hostile bytes, they return [`penstock_types::Error::Corrupt`] with the relevant numbers.

pub mod arrow;
pub mod audio;
pub mod byte_pairs;
mod byteswap;
pub mod chunk;
pub mod csv;
pub mod image;
pub mod jsonl;
pub mod magic;
pub mod mds;
pub mod megatron;
pub mod npy;
pub mod npz;
pub mod parquet;
mod protobuf;
pub mod sidecar_index;
pub mod tar;
mod tar_header;
pub mod tar_writer;
pub mod tf_example;
mod tf_feature;
pub mod tf_sequence_example;
pub mod tfrecord;
mod tfrecord_header;
pub mod value_stats;
