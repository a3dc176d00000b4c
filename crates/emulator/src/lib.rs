// SPDX-License-Identifier: Apache-2.0
//! An S3 endpoint over a folder, with the limits of a tier: the embedded default for the demo, tests and rehearsals.
//!
//! Owns the wire (through `s3s`: routing and signatures), the folder as a bucket, and the tier's limits. It refuses to be
//! a store for keeps: no replication, no fsync, no versions, one bucket, one pair of keys. See docs/decisions/0201.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod bucket;
mod condition;
mod connections;
mod facts;
mod folder;
mod front;
mod incoming;
mod limits;
mod list;
mod outgoing;
mod seat;
mod server;
mod shaped;
mod signing;
mod tier;

pub use front::Stats;
pub use limits::{Connection, Limits, Refusal, Request, Route};
pub use server::{Emulator, Keys, Settings, bucket_name};
pub use tier::{Confidence, Kind, Latency, Limit, Number, Observation, Scope, Throttle, Tier, What};
