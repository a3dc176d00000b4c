// SPDX-License-Identifier: Apache-2.0
//! Request and summary of a stage.

use std::path::PathBuf;
use std::time::Duration;

use penstock_store::{Rates, StoreSettings};
use penstock_types::Url;

use crate::plan::StageOptions;
use crate::status_record::Identity;
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
