// SPDX-License-Identifier: Apache-2.0
//! Context of a planned stage, to a folder or to a store.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_types::Deadline;
use tokio::sync::watch;

use crate::dest_dir::DestDir;
use crate::opened_source::Source;
use crate::plan::StagePlan;
use crate::progress::Progress;
use crate::request::StageRequest;
use penstock_dataset::manifest::Manifest;

/// The destination folder and the stage's own folder in it. If the destination is a store, these are local folders for
/// the state of the stage.
#[derive(Clone)]
pub(crate) struct StateDir {
    pub dest_dir: Arc<DestDir>,
    pub folder: Arc<OwnedFd>,
}

/// A planned stage, which holds the launch lock of the destination.
pub(crate) struct StageContext<'a> {
    pub request: &'a StageRequest,
    pub from: Source,
    pub manifest: Manifest,
    pub plan: StagePlan,
    pub site: StateDir,
    pub progress: &'a Arc<Progress>,
    pub deadline: Deadline,
    pub cancelled: watch::Receiver<bool>,
}
