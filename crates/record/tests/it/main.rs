// SPDX-License-Identifier: Apache-2.0
//! Integration tests of the crate, in one binary so that they link only once.

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
