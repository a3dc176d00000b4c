// SPDX-License-Identifier: Apache-2.0
//! List of the objects that a stage could not copy: `residue.json` in the folder of the stage's state.

use penstock_store::owned::{self, Proof};
use penstock_types::{Error, Result};

use crate::atomic_replace::replace_own;
use crate::context::StateDir;
use crate::progress::Failure;
use crate::status_record::FOLDER;

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
