// SPDX-License-Identifier: Apache-2.0
//! Context of a planned stage (to a folder or to a store), and the list of objects that the stage could not copy.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_store::owned::{self, Proof};
use penstock_types::{Deadline, Error, Result};
use tokio::sync::watch;

use crate::atomic_replace::replace_own;
use crate::dest_dir::DestDir;
use crate::opened_source::Source;
use crate::plan::StagePlan;
use crate::progress::{Failure, Progress};
use crate::request::StageRequest;
use crate::status_record::FOLDER;
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

impl StateDir {
    /// Writes the list of failed objects of one node's share. If no object failed, removes the list that an earlier run
    /// wrote.
    pub fn write_residue(&self, (node, nodes): (u32, u32), source: &str, failures: &[Failure]) -> Result<()> {
        let name = match nodes {
            1 => "residue.json".to_owned(),
            _ => format!("residue-{node}-of-{nodes}.json"),
        };
        if failures.is_empty() {
            let io = |errno: rustix::io::Errno| self.dest_dir.io_error(FOLDER.as_bytes(), &errno.into(), 0);
            return owned::remove_file(&self.folder, &name, Proof::Covered).map_err(io);
        }
        let json = residue_json(source, failures)?;
        replace_own(&self.folder, &name, &json)
            .map_err(|error| self.dest_dir.io_error(FOLDER.as_bytes(), &error, json.len() as u64))
    }
}

/// Returns the JSON list of objects that could not be staged, one per line, each with the reason.
fn residue_json(source: &str, failures: &[Failure]) -> Result<Vec<u8>> {
    let bug = |error: serde_json::Error| Error::bug(error.to_string());
    let mut out =
        format!("{{\"penstock_residue\":1,\"source\":{},\"failed\":[", serde_json::json!(source)).into_bytes();
    for (at, failure) in failures.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
        serde_json::to_writer(&mut out, failure).map_err(bug)?;
    }
    out.extend_from_slice(b"\n]}\n");
    Ok(out)
}
