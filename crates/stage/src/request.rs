// SPDX-License-Identifier: Apache-2.0
//! Request of a stage: source, destination, options and limits.

use std::path::PathBuf;
use std::time::Duration;

use penstock_store::{Rates, StoreSettings};
use penstock_types::Url;

use crate::plan::StageOptions;
use crate::status_record::Identity;
use penstock_dataset::key_filter::KeyFilter;

/// Input of a stage, validated once.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// Source: a folder of objects, one object, or a local list of URLs.
    pub source: Url,
    /// Settings for access to the source.
    pub settings: StoreSettings,
    /// Other stores with the same objects, each with its access settings. Reads are spread over the source and these
    /// stores.
    pub mirrors: Vec<(Url, StoreSettings)>,
    /// The local destination folder. If `remote` is set, the local folder for this stage's journal.
    pub destination: PathBuf,
    /// Destination store, which replaces the local folder.
    pub remote: Option<Url>,
    /// Manifest of the source, which replaces a listing.
    pub manifest: Option<PathBuf>,
    /// Filter that selects the objects to stage.
    pub select: KeyFilter,
    /// Options.
    pub options: StageOptions,
    /// Rate limits of the whole job; each node gets its share. `options` holds the limit on the number of requests in
    /// flight.
    pub rates: Rates,
    /// Only plan the stage; do not touch the destination.
    pub dry_run: bool,
    /// Wall-clock limit of the whole stage.
    pub deadline: Option<Duration>,
    /// Launch id, if the launcher provides one.
    pub launch: Option<String>,
    /// True if other ranks of this node wait for the result. A status record is then written even after an early
    /// failure.
    pub is_awaited: bool,
    /// Rank that stages for this node.
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
