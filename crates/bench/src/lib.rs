// SPDX-License-Identifier: Apache-2.0
//! Load generator: sends requests to disks and object stores, and measures the latency of each.
//!
//! Contains the timed loops, histograms, file content and arrival schedules. Prints nothing, and removes only the files
//! that its caller names. Parameter sweeps, page caches, result rows and verdicts belong to the Python code.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod arrivals;
mod content;
mod cpu_usage;
mod histogram;
pub mod object;
pub mod storage;

pub use arrivals::{Arrivals, Schedule};
pub use histogram::{Histogram, Latency};
