// SPDX-License-Identifier: Apache-2.0
//! Datasets: the manifest of their objects, the locations of their records, the sample order of an epoch, and the
//! assignment of objects to nodes.
//!
//! Depends on the store, codec and record crates. Staging and the feed depend on this crate, not the reverse.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

pub mod dataset_view;
pub mod detect_codec;
mod diff;
pub mod glob;
pub mod key_filter;
pub mod key_names;
pub mod manifest;
pub mod order;
pub mod record_index;
pub mod record_offsets;
pub mod sampler;
mod share;
mod subset;
mod url_list;
pub mod weighted_draws;

pub use diff::{Change, Difference, diff};
pub use key_filter::KeyFilter;
pub use manifest::{
    CodecSource, Decompressed, Entry, MANIFEST_VERSION, Manifest, ManifestFormat, OWN_PREFIX, Origin, RecordFormat,
    index, index_selected, index_written, list, without_pattern, written_fields,
};
pub use record_index::RecordIndex;
pub use share::{Division, NameRule, ShareBy, SharePlan, Weights};
pub use subset::ObjectStarts;
pub use url_list::{Listed, UrlList};
