// SPDX-License-Identifier: Apache-2.0
//! What moves a dataset: staging, the feed, the node's cache and the reads of a pool.
//!
//! Knows stores, codecs, records and datasets; knows no Python.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

pub mod cache;
pub mod feed;
mod memory_budget;
mod pool_read;
pub mod stage;

pub use memory_budget::{MemoryBudget, Reservation};
pub use pool_read::{Placement, Placements, PoolStore, Reader};
