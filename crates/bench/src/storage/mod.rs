// SPDX-License-Identifier: Apache-2.0
//! Storage benchmark: many threads read and write a tree of files, one shared file, or a block device.

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
