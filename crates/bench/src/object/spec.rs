// SPDX-License-Identifier: Apache-2.0
//! Settings of one phase of object requests, and their validation.

use penstock_types::{Error, Result, with_separators};
use serde::{Deserialize, Serialize};

use crate::{Arrivals, Schedule};

/// Kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Writes an object.
    Put,
    /// Reads a whole object.
    Get,
    /// Reads a byte range of an object.
    Range,
    /// Lists keys.
    List,
    /// Requests an object's metadata.
    Head,
    /// Deletes an object.
    Delete,
}

impl Operation {
    /// All operations, in the order of arrays that contain one element per operation.
    pub const ALL: [Self; 6] = [Self::Put, Self::Get, Self::Range, Self::List, Self::Head, Self::Delete];
}

/// An operation and its share of the mix.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The operation.
    pub operation: Operation,
    /// Weight relative to the sum of all weights.
    pub weight: f64,
}

/// Settings of one phase of requests. Sizes are in bytes, times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectSpec {
    /// Folder of the objects; it ends in `/`. Unless `existing` is set, Penstock writes and deletes objects in it.
    pub url: String,
    /// Keys of existing objects, relative to the URL. They are only read, never written or deleted.
    pub existing: Vec<String>,
    /// Operations and their weights.
    pub mix: Vec<Share>,
    /// Size of each object.
    pub object_size: u64,
    /// Size of each ranged read.
    pub range_size: u64,
    /// Number of objects that already exist or that the phase will write.
    pub objects: u64,
    /// Number of folders over which the objects are spread. With only one folder, a limit per key prefix could be
    /// mistaken for the limit of the store.
    pub prefixes: u32,
    /// Uses each object once; the phase then ends.
    pub once: bool,
    /// Number of workers, each with one request in flight.
    pub concurrency: u32,
    /// Time over which the starts of the workers are spread, in seconds.
    pub ramp_s: f64,
    /// Ends the phase after this time.
    pub time_limit_s: Option<f64>,
    /// Ends the phase after this many requests.
    pub request_limit: Option<u64>,
    /// Ends the phase once the rate is steady.
    pub until_stable: bool,
    /// Interval between samples.
    pub sample_s: f64,
    /// Schedule of request start times (closed or open loop).
    pub arrivals: Schedule,
    /// For an open loop: requests per second, summed over all workers.
    pub rate: Option<f64>,
    /// If set, read bytes are verified against the content generated with this salt.
    pub verify: Option<u64>,
    /// Percentage of each page that consists of zeros.
    pub compressible: u32,
    /// Seed of all random choices: operations, orders, arrivals and content.
    pub seed: u64,
    /// An attempt fails if no byte arrives for this long.
    pub attempt_limit_s: f64,
    /// Time after which the worker gives up a request that keeps failing.
    pub give_up_after_s: f64,
    /// Maximum number of keys that one LIST operation reads.
    pub list_keys: u64,
}

const MAX_WORKERS: u64 = 65_536;

impl ObjectSpec {
    /// Validates the settings before any request is sent. Returns `Config` for an invalid one.
    pub fn check(&self) -> Result<()> {
        let within = |what: &str, value: u64, most: u64| match value {
            value if (1..=most).contains(&value) => Ok(()),
            value => Err(Error::config(
                what,
                format!("must be 1 to {} (got {})", with_separators(most), with_separators(value)),
            )),
        };
        within("--concurrency", u64::from(self.concurrency), MAX_WORKERS)?;
        within("--prefixes", u64::from(self.prefixes), 1 << 16)?;
        within("--list-keys", self.list_keys, 1 << 40)?;
        if self.existing.is_empty() {
            within("--objects", self.objects, 1 << 40)?;
        }
        for (what, seconds) in [
            ("--ramp", Some(self.ramp_s.max(f64::MIN_POSITIVE))),
            ("--duration", self.time_limit_s),
            ("the sample interval", Some(self.sample_s)),
            ("--attempt-timeout", Some(self.attempt_limit_s)),
            ("--retry-timeout", Some(self.give_up_after_s)),
        ] {
            if let Some(seconds) = seconds
                && !(seconds.is_finite() && seconds > 0.0 && seconds <= 1e9)
            {
                return Err(Error::config(what, format!("must be a valid duration in seconds (got {seconds})")));
            }
        }
        if self.ramp_s < 0.0 {
            return Err(Error::config("--ramp", format!("must be a valid duration in seconds (got {})", self.ramp_s)));
        }
        let sum: f64 = self.mix.iter().map(|share| share.weight).sum();
        if self.mix.iter().any(|share| !(share.weight.is_finite() && share.weight >= 0.0)) || sum <= 0.0 {
            return Err(Error::config("--mix", "weights must be at least 0, and at least one must be above 0"));
        }
        let has = |wanted: &[Operation]| self.mix.iter().any(|s| s.weight > 0.0 && wanted.contains(&s.operation));
        if has(&[Operation::Range]) && self.range_size == 0 {
            return Err(Error::config("--range-size", "must be above 0 bytes"));
        }
        if has(&[Operation::Range]) && self.existing.is_empty() && self.range_size > self.object_size {
            let (range, object) = (with_separators(self.range_size), with_separators(self.object_size));
            return Err(Error::config(
                "--range-size",
                format!("{range} bytes exceed the object size ({object} bytes)"),
            ));
        }
        if !self.existing.is_empty() && has(&[Operation::Put, Operation::Delete]) {
            return Err(Error::config(
                "--existing",
                "cannot be used with put and delete, which would change the existing objects",
            ));
        }
        if !self.existing.is_empty() && self.verify.is_some() {
            return Err(Error::config(
                "--verify",
                "cannot be used with --existing: the content of existing objects is unknown",
            ));
        }
        if self.compressible > 100 {
            return Err(Error::config("--compressible", format!("must be 0 to 100 (got {})", self.compressible)));
        }
        if !self.once && self.time_limit_s.is_none() && self.request_limit.is_none() && !self.until_stable {
            return Err(Error::config("--duration", "required, because no other limit ends the requests"));
        }
        if self.once && self.mix.iter().filter(|share| share.weight > 0.0).count() > 1 {
            return Err(Error::config(
                "--mix",
                "must contain exactly one kind of request if no limit is set (each object is then used once)",
            ));
        }
        Arrivals::new(self.arrivals, self.rate, 0, self.concurrency, self.seed).map(drop)
    }

    pub(super) fn is_one_kind(&self, operation: Operation) -> bool {
        self.once && self.mix.iter().any(|share| share.weight > 0.0 && share.operation == operation)
    }
}
