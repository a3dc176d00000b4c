// SPDX-License-Identifier: Apache-2.0
//! Request and summary of a stage.

use std::path::PathBuf;
use std::time::Duration;

use penstock_store::{MirrorReport, Rates, StoreSettings};
use penstock_types::Url;
use serde::{Deserialize, Serialize};

use crate::node_status::Identity;
use crate::plan::StageOptions;
use crate::progress::Failure;
use crate::to_store::target::transform_id;
use penstock_dataset::key_filter::KeyFilter;

/// Request of a stage, validated once.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// A folder of objects, one object, or a local list of URLs.
    pub source: Url,
    /// How to reach it.
    pub settings: StoreSettings,
    /// Other stores that hold the same objects, and how to reach each; reads are spread over them.
    pub mirrors: Vec<(Url, StoreSettings)>,
    /// The local folder. With `remote`: where this stage keeps its journal.
    pub destination: PathBuf,
    /// The store that objects go to, in place of the folder.
    pub remote: Option<Url>,
    /// A manifest of the source, in place of a listing.
    pub manifest: Option<PathBuf>,
    /// Which of the objects are meant.
    pub select: KeyFilter,
    /// Options.
    pub options: StageOptions,
    /// Rate limits of the whole job; each node takes its share. The limit of requests in flight is in `options`.
    pub rates: Rates,
    /// Plan only; the destination is not touched.
    pub dry_run: bool,
    /// Wall-clock limit of the whole stage.
    pub deadline: Option<Duration>,
    /// The launch, where the launcher names it.
    pub launch: Option<String>,
    /// Other ranks of this node wait for a record of how it went, even of an early failure.
    pub is_awaited: bool,
    /// The rank that stages for this node.
    pub leader_rank: u32,
    /// Threads that inflate.
    pub cores: usize,
}

impl StageRequest {
    pub(crate) fn identity(&self) -> Identity {
        let StageOptions { decompress, node, nodes, division, allow_case_collisions, max_inflated, .. } = &self.options;
        let to = self.remote.as_ref().map(|url| format!(" to={url}")).unwrap_or_default();
        let transform_id = transform_id(&self.options).unwrap_or_default();
        Identity {
            request: format!(
                "{}{to} transform_id={transform_id} decompress={decompress} case={allow_case_collisions} max_inflated={max_inflated:?} manifest={:?} {} {:?}",
                self.source,
                self.manifest,
                self.select.text(),
                division
            ),
            launch: self.launch.clone(),
            node: *node,
            nodes: *nodes,
        }
    }
}

/// How a stage went.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this document.
    pub schema_version: u32,
    /// Where from.
    pub source: String,
    /// Where to.
    pub destination: String,
    /// Path or URL of the manifest that this node wrote; empty in a dry run.
    #[serde(default)]
    pub manifest: String,
    /// Nothing was moved, only planned.
    pub dry_run: bool,
    /// Compressed objects were decompressed.
    pub decompress: bool,
    /// This node.
    pub node: u32,
    /// All nodes.
    pub nodes: u32,
    /// Objects of this node's share.
    pub objects: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Objects of all nodes.
    pub objects_total: u64,
    /// Objects that stood there already.
    pub skipped: u64,
    /// Objects moved by this run.
    pub moved: u64,
    /// Bytes of objects received.
    pub bytes_in: u64,
    /// Bytes of files that this run finished.
    pub bytes_out: u64,
    /// Bytes that an interrupted run had received and that were not asked for again.
    pub resumed_bytes: u64,
    /// Objects asked for again because their bytes arrived damaged.
    pub refetched: u64,
    /// Objects moved for which the store has no digest: the manifest holds ours, of the bytes as they arrived.
    #[serde(default)]
    pub without_checksum: u64,
    /// Requests sent; planned ones in a dry run.
    pub requests: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Answers 429 and 503.
    pub throttles: u64,
    /// Seconds spent waiting because the store asked for it, summed over requests.
    pub throttle_wait_s: f64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Stored bytes of every node's share.
    pub shares: Vec<u64>,
    /// Objects of every node's share.
    #[serde(default)]
    pub share_objects: Vec<u64>,
    /// Requests that reading every node's share takes.
    #[serde(default)]
    pub share_requests: Vec<u64>,
    /// Bytes received and written for every node's share, estimated where the decompressed size is not known.
    #[serde(default)]
    pub share_io_bytes: Vec<u64>,
    /// How the reads were spread, where there are mirrors; the source comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorReport>,
    /// Objects that could not be staged.
    pub failed: Vec<Failure>,
}
