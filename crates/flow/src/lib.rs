// SPDX-License-Identifier: Apache-2.0
//! What moves: the manifest, the order, the share plan, the stage and the feed.
//!
//! Knows stores, codecs and records; knows no Python.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

pub mod cache;
mod diff;
pub mod feed;
mod key_filter;
mod manifest;
mod memory_budget;
pub mod order;
mod pool_read;
pub mod sampler;
mod share;
pub mod stage;
mod url_list;

pub use diff::{Change, Difference, diff};
pub use key_filter::KeyFilter;
pub use manifest::{
    CodecSource, Entry, Inflated, MANIFEST_VERSION, Manifest, ManifestFormat, OWN_PREFIX, Origin, RecordFormat, index,
    index_selected, list, without_pattern,
};
pub use memory_budget::{MemoryBudget, Reservation};
pub use pool_read::{Placement, Placements, PoolStore, Reader};
pub use share::{Division, NameRule, ShareBy, SharePlan, Weights};
pub use url_list::{Listed, UrlList};
