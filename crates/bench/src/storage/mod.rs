// SPDX-License-Identifier: Apache-2.0
//! Storage benchmark: phases of many threads over many files, over one file, or over a block device.

mod blocks;
mod job;
mod meter;
mod pwrite;
mod report;
mod spec;
mod target;
#[cfg(test)]
mod tests;
mod tree;
mod uring;
mod worker;

pub use job::PhaseJob;
pub use report::{Ends, PhaseReport, Sample, Total};
pub use spec::{Engine, Pattern, Phase, StorageSpec};
