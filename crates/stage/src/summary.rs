// SPDX-License-Identifier: Apache-2.0
//! Result of a stage.

use penstock_store::MirrorReport;
use serde::{Deserialize, Serialize};

use crate::progress::Failure;

/// Summary of a stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this JSON document.
    pub schema_version: u32,
    /// Source of the stage.
    pub source: String,
    /// Destination of the stage.
    pub destination: String,
    /// Path or URL of the manifest that this node wrote; empty after a dry run.
    #[serde(default)]
    pub manifest: String,
    /// True if the stage was only planned.
    pub dry_run: bool,
    /// True if compressed objects were decompressed.
    pub decompress: bool,
    /// Index of this node.
    pub node: u32,
    /// Number of nodes.
    pub nodes: u32,
    /// Objects in this node's share.
    pub objects: u64,
    /// Stored bytes of this node's share.
    pub bytes: u64,
    /// Objects of all nodes.
    pub objects_total: u64,
    /// Objects that already existed in the destination.
    pub skipped: u64,
    /// Objects copied by this run.
    pub moved: u64,
    /// Bytes of objects received.
    pub bytes_in: u64,
    /// Bytes of files that this run wrote completely.
    pub bytes_out: u64,
    /// Bytes that an interrupted run had transferred, and that this run therefore did not transfer.
    pub resumed_bytes: u64,
    /// Objects that were requested again because their bytes arrived damaged.
    pub refetched: u64,
    /// Copied objects for which the store has no digest. The digests in the manifest were then computed while the bytes
    /// arrived.
    #[serde(default)]
    pub without_checksum: u64,
    /// Requests sent; after a dry run, requests planned.
    pub requests: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Responses with 429 or 503.
    pub throttles: u64,
    /// Seconds that requests waited because the store throttled them, summed over all requests.
    pub throttle_wait_s: f64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Stored bytes of every node's share.
    pub shares: Vec<u64>,
    /// Number of objects in every node's share.
    #[serde(default)]
    pub share_objects: Vec<u64>,
    /// Number of requests that read every node's share.
    #[serde(default)]
    pub share_requests: Vec<u64>,
    /// Bytes read and written for every node's share; estimated if a decompressed size is unknown.
    #[serde(default)]
    pub share_io_bytes: Vec<u64>,
    /// Reads from the source and from each mirror, if there are mirrors. The source comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorReport>,
    /// Objects that could not be staged.
    pub failed: Vec<Failure>,
}
