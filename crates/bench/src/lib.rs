// SPDX-License-Identifier: Apache-2.0
//! Load generator: sends requests to disks and object stores, and measures the latency of each.
//!
//! This crate contains the timed loops, histograms, file content and arrival schedules. It prints nothing, and removes
//! only the files that its caller names. The Python code runs parameter sweeps, drops page caches, writes result rows
//! and judges the results.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod arrivals;
mod content;
mod cpu_usage;
mod histogram;
pub mod object;
pub mod storage;

pub use arrivals::{Arrivals, Schedule};
pub use histogram::{Histogram, Latency};
