// SPDX-License-Identifier: Apache-2.0
//! Object store benchmark. Workers send a mix of requests, and each attempt is classified by its result.

mod job;
mod keys;
mod report;
mod shared;
mod spec;
mod stats;
#[cfg(test)]
mod tests;
mod worker;

pub use job::{ObjectJob, clear, keys_of};
pub use report::{ObjectEnds, ObjectReport, ObjectSample, OperationReport, OperationTotal};
pub use spec::{ObjectSpec, Operation, Share};
