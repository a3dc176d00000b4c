// SPDX-License-Identifier: Apache-2.0
//! Tier: the name, year and limits of a store. This module only holds the data; `limits` enforces them.
//!
//! Python's tier book (`penstock.tiers`) holds all tiers, with a source for each number. It validates a tier and passes
//! it as JSON. Fields that are not enforced (title, sources, dates, observations) are ignored here.

use penstock_types::{Result, parse_settings};
use serde::Deserialize;

/// Limits and latency of a store.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Tier {
    /// Name without the year, for example `azure-hot`.
    pub name: String,
    /// Year of the tier's numbers.
    pub year: u16,
    /// Rate limits, each with its scope.
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
    /// Time to first byte.
    #[serde(default)]
    pub latency: Vec<Latency>,
    /// Maximum time that bytes above a limit wait in the queue; beyond it, requests get a 503 response.
    #[serde(default)]
    pub queue: Option<Seconds>,
    /// Burst, in seconds: as many requests as a limit allows in this time may arrive together.
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

/// Quantity that a limit restricts.
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

/// Set of requests that share one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// All requests to the endpoint.
    Account,
    /// All requests to one bucket (the endpoint has only one).
    Bucket,
    /// All requests to keys with the same text up to the last `/`.
    Prefix,
    /// One connection.
    Connection,
}

/// A rate limit.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Limit {
    /// Quantity that the limit restricts.
    pub what: What,
    /// Set of requests that share the limit.
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

/// Lognormal distribution of times to the first byte, given by its median and 99th percentile. A separate tail is
/// possible: a fraction `tail_share` of the requests then takes `tail_ms`.
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
    /// Latency of the requests in the tail, in milliseconds.
    #[serde(default)]
    pub tail_ms: f64,
}

/// A duration.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Seconds {
    /// Seconds.
    pub value: f64,
}

/// Content of a throttled response. The status is 503, as on S3; the message is that of the provider.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Throttle {
    /// Error message.
    pub message: String,
    /// Seconds in `Retry-After`, if the provider sends one.
    #[serde(default)]
    pub retry_after_s: Option<u32>,
}
