// SPDX-License-Identifier: Apache-2.0
//! Request and summary of a stage.

use std::path::PathBuf;
use std::time::Duration;

use penstock_store::{Rates, StoreSettings};
use penstock_types::Url;

use crate::plan::StageOptions;
use crate::status_record::Identity;
use penstock_dataset::key_filter::KeyFilter;

/// Request of a stage, validated once.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// A folder of objects, one object, or a local list of URLs.
    pub source: Url,
    /// Settings to access the source.
    pub settings: StoreSettings,
    /// Other stores with the same objects, and the settings to access each; reads are spread over them.
    pub mirrors: Vec<(Url, StoreSettings)>,
    /// The local folder. With `remote`: the folder where this stage keeps its journal.
    pub destination: PathBuf,
    /// Destination store, instead of the folder.
    pub remote: Option<Url>,
    /// Manifest of the source, instead of a listing.
    pub manifest: Option<PathBuf>,
    /// Filter for the objects to stage.
    pub select: KeyFilter,
    /// Options.
    pub options: StageOptions,
    /// Rate limits of the whole job; each node takes its share. The limit of requests in flight is in `options`.
    pub rates: Rates,
    /// Plan only; do not touch the destination.
    pub dry_run: bool,
    /// Wall-clock limit of the whole stage.
    pub deadline: Option<Duration>,
    /// Launch id, if the launcher provides one.
    pub launch: Option<String>,
    /// True if other ranks of this node wait for a record of the result, even of an early failure.
    pub is_awaited: bool,
    /// The rank that stages for this node.
    pub leader_rank: u32,
    /// Number of threads that decompress.
    pub cores: usize,
}

impl StageRequest {
    pub(crate) fn identity(&self) -> Identity {
        let StageOptions { decompress, node, nodes, division, allow_case_collisions, max_inflated, .. } = &self.options;
        let to = self.remote.as_ref().map(|url| format!(" to={url}")).unwrap_or_default();
        let transform_id = self.options.transform_id().unwrap_or_default();
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
