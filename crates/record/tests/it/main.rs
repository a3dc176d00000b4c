// SPDX-License-Identifier: Apache-2.0
//! Tests of the crate from outside, in one program: it links once.

mod chunk;
mod goldens;
mod image;
mod mds;
mod npy;
mod parquet;
mod sidecar_index;
mod tar;
mod tf_example;
mod tf_sequence_example;
