// SPDX-License-Identifier: Apache-2.0
//! S3 emulator: serves a folder as an S3 bucket and enforces the limits of a store tier (see `tier`). It runs inside
//! the calling process. The demo, tests and rehearsals use it by default.
//!
//! This crate implements the protocol (routing and signatures through `s3s`), the bucket on a folder, and the limits of
//! the tier. It is not a durable store: it has no replication, no fsync and no versions. It serves one bucket with one
//! pair of keys. See docs/decisions/0201.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod bucket;
mod connections;
mod directories;
mod fs_backend;
mod key_path;
mod limits;
mod list;
mod object_metadata;
mod preconditions;
mod request_body;
mod response_body;
mod server;
mod signing;
mod throttle_layer;
mod throttled_body;
mod tier;

pub use limits::{Connection, Limits, Refusal, Request, Route};
pub use server::{Emulator, Keys, Settings, bucket_name};
pub use throttle_layer::Stats;
pub use tier::{Kind, Latency, Limit, Scope, Seconds, Throttle, Tier, What};
