// SPDX-License-Identifier: Apache-2.0
//! A tier: the limits of a store, by name and year. Data only; `limits` enforces it.
//!
//! Python's tier book (`penstock.tiers`) holds the tiers with the source of each number, validates them, and passes one
//! as JSON. Fields that are not enforced (title, sources, dates, observations) are ignored here.

use penstock_types::{Result, parse_settings};
use serde::Deserialize;

/// Limits and latency of a store.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Tier {
    /// Name without the year, for example `azure-hot`.
    pub name: String,
    /// Year of the tier's numbers.
    pub year: u16,
    /// Rates, each with its scope.
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
    /// Time to first byte.
    #[serde(default)]
    pub latency: Vec<Latency>,
    /// Maximum queueing delay of bytes above a limit; beyond it the response is 503.
    #[serde(default)]
    pub queue: Option<Seconds>,
    /// Number of requests above a limit that pass at once, as seconds of that limit.
    #[serde(default)]
    pub burst: Option<Seconds>,
    /// Content of a throttled response.
    pub throttle: Throttle,
}

impl Tier {
    /// Parses a tier from JSON.
    ///
    /// # Errors
    ///
    /// Fails if a field is missing or has the wrong type.
    pub fn from_json(json: &str) -> Result<Self> {
        parse_settings("tier", json)
    }

    /// Name with the year: `azure-hot@2021`.
    pub fn label(&self) -> String {
        format!("{}@{}", self.name, self.year)
    }
}

/// Quantity that a limit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Bytes read from the store.
    ReadBytes,
    /// Bytes written to the store.
    WriteBytes,
    /// GET, HEAD and LIST requests.
    ReadRequests,
    /// PUT, POST and DELETE requests.
    WriteRequests,
    /// Requests of either kind.
    Requests,
}

/// Set of requests that share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// All requests to the endpoint.
    Account,
    /// One bucket (the endpoint has one).
    Bucket,
    /// Keys with the same text up to the last `/`.
    Prefix,
    /// One connection.
    Connection,
}

/// A rate limit.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Limit {
    /// Quantity that the limit applies to.
    pub what: What,
    /// Requests that share the limit.
    pub scope: Scope,
    /// Bytes or requests per second.
    pub value: f64,
}

/// Kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// GET, HEAD and LIST.
    Read,
    /// PUT, POST and DELETE, after the body has arrived.
    Write,
}

/// Distribution of times to the first byte: lognormal, by its median and 99th percentile. If it has a separate tail, the
/// share `tail_share` of requests takes `tail_ms`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Latency {
    /// Kind of request that has this latency.
    pub what: Kind,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Fraction of requests in the tail, 0 to 1.
    #[serde(default)]
    pub tail_share: f64,
    /// Latency of the requests in the tail.
    #[serde(default)]
    pub tail_ms: f64,
}

/// A duration.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Seconds {
    /// Seconds.
    pub value: f64,
}

/// Content of a throttled response. The status is 503, as from S3; the text is the provider's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Throttle {
    /// Message of the error.
    pub message: String,
    /// Seconds in `Retry-After`, if the provider sends one.
    #[serde(default)]
    pub retry_after_s: Option<u32>,
}
