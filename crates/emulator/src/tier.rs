// SPDX-License-Identifier: Apache-2.0
//! A tier: what a store of a name and a year allows. Data only; `limits` enforces it.
//!
//! Python's tier book (`penstock.tiers`) holds the tiers with the source of each number, checks them, and passes one
//! as JSON. What is not enforced (title, sources, dates, observations) is ignored here.

use penstock_types::{Result, parse_settings};
use serde::Deserialize;

/// Limits and latency of a store.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Tier {
    /// `azure-hot`, without the year.
    pub name: String,
    /// Year of its numbers.
    pub year: u16,
    /// Rates, each with its scope.
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
    /// Time to first byte.
    #[serde(default)]
    pub latency: Vec<Latency>,
    /// Maximum delay of bytes above a limit before the answer is 503.
    #[serde(default)]
    pub queue: Option<Seconds>,
    /// Requests above a limit that pass at once, in seconds of that limit.
    #[serde(default)]
    pub burst: Option<Seconds>,
    /// Content of a throttled answer.
    pub throttle: Throttle,
}

impl Tier {
    /// Reads a tier.
    ///
    /// # Errors
    ///
    /// A field is missing or of another type.
    pub fn from_json(json: &str) -> Result<Self> {
        parse_settings("tier", json)
    }

    /// `azure-hot@2021`.
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
    /// Bytes written to it.
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
    /// Keys up to the last `/`.
    Prefix,
    /// One connection.
    Connection,
}

/// A rate.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Limit {
    /// Quantity that it applies to.
    pub what: What,
    /// Requests that share it.
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
    /// Requests that have it.
    pub what: Kind,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Share of requests in the tail, 0 to 1.
    #[serde(default)]
    pub tail_share: f64,
    /// Latency of the requests in the tail.
    #[serde(default)]
    pub tail_ms: f64,
}

/// A time.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Seconds {
    /// Seconds.
    pub value: f64,
}

/// Content of a throttled answer. The status is 503, as from S3; the text is the provider's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Throttle {
    /// Message of the error.
    pub message: String,
    /// Seconds in `Retry-After`, if the provider sends one.
    #[serde(default)]
    pub retry_after_s: Option<u32>,
}
