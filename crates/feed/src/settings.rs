// SPDX-License-Identifier: Apache-2.0
//! Settings of a feed. A Python `Loader` writes them as a JSON document.

use std::time::Duration;

use penstock_types::{Result, parse_settings};
use serde::{Deserialize, Deserializer, de};

use super::on_error::OnError;

/// Settings of a feed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedSettings {
    /// Memory budget in bytes for stored objects, decompression buffers, and batches that are not delivered yet. The
    /// default is the larger of 1 GiB and twice the required minimum.
    pub memory_bytes: Option<u64>,
    /// Maximum number of concurrent requests. For local files, fewer requests are sent.
    pub max_in_flight: usize,
    /// Number of batches to prepare in addition to the next batch. The default keeps `max_in_flight` requests busy.
    pub read_ahead: Option<u64>,
    /// Number of decoding threads. The default is one per core.
    #[serde(deserialize_with = "cores_by_default")]
    pub threads: usize,
    /// Time limit for reading one object, including retries and back-off.
    #[serde(rename = "object_timeout_s", deserialize_with = "seconds")]
    pub object_timeout: Duration,
    /// Policy for a sample that cannot be read.
    pub on_error: OnError,
    /// True to fetch the first objects of the next epoch while an epoch ends.
    pub prefetch_next_epoch: bool,
    /// For each dataset of the sampler, its number in the field `source`. `None` if batches do not have this field.
    pub source_numbers: Option<Vec<i32>>,
}

impl FeedSettings {
    /// Parses the JSON document.
    ///
    /// # Errors
    ///
    /// A field is missing or unknown, or has an invalid value.
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
        .map_err(|_| de::Error::custom(format_args!("must be a valid duration in seconds (got {seconds})")))
}
