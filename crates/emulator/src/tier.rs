// SPDX-License-Identifier: Apache-2.0
//! Tier: the name, the year and the limits of a store. This module only defines the data; `limits` enforces the limits.
//!
//! The Python module `penstock.tiers` defines all tiers, with a source for each number. It validates a tier and passes
//! it to this crate as JSON. Parsing ignores fields that are not enforced (title, sources, dates, observations).

use penstock_types::{Result, parse_settings};
use serde::Deserialize;

/// Limits and latency of a store.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Tier {
    /// Name without the year, for example `azure-hot`.
    pub name: String,
    /// Year in which the tier's numbers applied.
    pub year: u16,
    /// Rate limits, each with its scope.
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
    /// Times to first byte, by kind of request.
    #[serde(default)]
    pub latency: Vec<Latency>,
    /// Maximum time that bytes above a limit wait in the queue. If the wait is longer, new requests get a 503 response.
    #[serde(default)]
    pub queue: Option<Seconds>,
    /// Burst in seconds. As many requests as a limit allows in this time may arrive together.
    #[serde(default)]
    pub burst: Option<Seconds>,
    /// Content of a response to a throttled request.
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

/// Scope of a limit: the set of requests that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// All requests to the endpoint.
    Account,
    /// All requests to one bucket. The endpoint has only one bucket.
    Bucket,
    /// All requests whose keys are equal up to the last `/`.
    Prefix,
    /// All requests on one connection.
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

/// Log-normal distribution of the time to first byte, given by its median and its 99th percentile. Optionally, the
/// fraction `tail_share` of the requests takes `tail_ms` instead.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Latency {
    /// Kind of request that has this latency.
    pub what: Kind,
    /// Median.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Fraction of requests in the tail, from 0 to 1.
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

/// Content of a response to a throttled request. The status is 503, as on S3; the message is the provider's own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Throttle {
    /// Error message.
    pub message: String,
    /// Value of `Retry-After` in seconds, if the provider sends this header.
    #[serde(default)]
    pub retry_after_s: Option<u32>,
}
