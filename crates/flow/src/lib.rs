// SPDX-License-Identifier: Apache-2.0
//! What moves: the manifest, the order, the share plan, the stage and the feed.
//!
//! Knows stores, codecs and records; knows no Python.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod budget;
pub mod cache;
pub mod course;
mod diff;
pub mod feed;
mod manifest;
pub mod order;
mod route;
mod select;
mod share;
pub mod stage;
mod urls;

pub use budget::{Budget, Reservation};
pub use diff::{Change, Difference, diff};
pub use manifest::{
    Entry, Inflated, MANIFEST_VERSION, Manifest, ManifestFormat, OWN_PREFIX, Origin, RecordFormat, SaidBy, index,
    index_selected, list, without_pattern,
};
pub use route::{Placed, Reader, Routed, Routes};
pub use select::Select;
pub use share::{Division, NameRule, ShareBy, SharePlan, Weights};
pub use urls::{Listed, UrlList};
