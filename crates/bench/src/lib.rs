// SPDX-License-Identifier: Apache-2.0
//! Load generator: sends requests to disks and stores, and measures how long each takes.
//!
//! Owns the loops that are timed, their histograms, their content and their arrivals. Prints nothing, decides nothing and
//! cleans up nothing that its caller did not ask it to: sweeps, caches, rows and verdicts are Python's.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod arrivals;
mod content;
mod cpu_usage;
mod histogram;
pub mod object;
pub mod storage;

pub use arrivals::{Arrivals, Schedule};
pub use histogram::{Histogram, Latency};
