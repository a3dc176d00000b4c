// SPDX-License-Identifier: Apache-2.0
//! Settings of a feed: the JSON document that a Python `Loader` writes.

use std::time::Duration;

use penstock_types::{Result, parse_settings};
use serde::{Deserialize, Deserializer, de};

use super::on_error::OnError;

/// Settings of a feed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedSettings {
    /// Maximum bytes in flight: stored objects, scratch, and batches not yet delivered. By default 1 GiB, or twice the
    /// required minimum if that is more.
    pub memory_bytes: Option<u64>,
    /// Maximum number of concurrent requests; local files need fewer.
    pub max_in_flight: usize,
    /// Batches in preparation besides the next one; by default enough to keep these requests busy.
    pub read_ahead: Option<u64>,
    /// Decoding threads; by default one per core.
    #[serde(deserialize_with = "cores_by_default")]
    pub threads: usize,
    /// Time limit of one object, including retries and back-off.
    #[serde(rename = "object_timeout_s", deserialize_with = "seconds")]
    pub object_timeout: Duration,
    /// Policy for a sample that cannot be read.
    pub on_error: OnError,
    /// While an epoch ends, fetch the first objects of the next.
    pub prefetch_next_epoch: bool,
}

impl FeedSettings {
    /// Reads the document.
    ///
    /// # Errors
    ///
    /// A field is missing, unknown, or has an invalid value.
    pub fn from_json(json: &str) -> Result<Self> {
        parse_settings("loader", json)
    }
}

fn cores_by_default<'de, D: Deserializer<'de>>(document: D) -> std::result::Result<usize, D::Error> {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Ok(Option::deserialize(document)?.unwrap_or_else(cores))
}

fn seconds<'de, D: Deserializer<'de>>(document: D) -> std::result::Result<Duration, D::Error> {
    let seconds = f64::deserialize(document)?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| de::Error::custom(format_args!("{seconds} is not a duration in seconds")))
}
