// SPDX-License-Identifier: Apache-2.0
//! Load generator: sends requests to disks and stores, and measures how long each takes.
//!
//! Owns the timed loops, their histograms, their content and their arrivals. Prints nothing, and removes only what its
//! caller asks it to remove. Sweeps, caches, rows and verdicts belong to Python.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod arrivals;
mod content;
mod cpu_usage;
mod histogram;
pub mod object;
pub mod storage;

pub use arrivals::{Arrivals, Schedule};
pub use histogram::{Histogram, Latency};
