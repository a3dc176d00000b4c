// SPDX-License-Identifier: Apache-2.0
//! The last step: synced temporary files get their final names, many at a time.
//!
//! Order of one batch: the journal's lines are on disk; then the renames; then one sync of each folder touched. A crash
//! between the first two leaves a whole file under its temporary name, which the next run recognises and renames.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use penstock_types::{Error, Key, Result};

use super::jail::{Jail, split, state_at};
use super::journal::{Journal, Line};
use super::progress::Progress;

/// Most files in a batch: bounds the wait of the first one.
const BATCH: usize = 256;

/// A file that is whole, checked and synced, under its temporary name.
#[derive(Debug)]
pub(crate) struct Finished {
    pub line: Line,
    pub temporary: String,
    /// Other files of ours that are of no use once this one has its name.
    pub leftovers: Vec<String>,
}

/// The one writer of the journal.
pub(crate) struct Committer {
    pub jail: Arc<Jail>,
    pub parts: Arc<OwnedFd>,
    pub journal: Journal,
    pub progress: Arc<Progress>,
}

impl Committer {
    /// Commits what comes until the senders are gone. An error is of the journal or the disk, and ends the stage.
    pub fn run(mut self, finished: &Receiver<Finished>) -> Result<Journal> {
        while let Ok(first) = finished.recv() {
            let mut batch = vec![first];
            batch.extend(finished.try_iter().take(BATCH - 1));
            self.commit(batch)?;
        }
        Ok(self.journal)
    }

    fn commit(&mut self, batch: Vec<Finished>) -> Result<()> {
        let lines: Vec<Line> = batch.iter().map(|finished| finished.line.clone()).collect();
        let places = self.journal.append(&lines)?;
        drop(lines);
        let mut folders: HashMap<Vec<u8>, OwnedFd> = HashMap::new();
        let mut named = Vec::with_capacity(batch.len());
        for (finished, place) in batch.into_iter().zip(places) {
            let target = finished.line.target.as_bytes();
            match self.jail.adopt(&self.parts, &finished.temporary, target) {
                Ok(folder) => {
                    folders.insert(split(target).0.to_vec(), folder);
                    named.push((finished, place));
                }
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    super::jail::remove_own(&self.parts, &finished.temporary);
                    self.progress.fail(&finished.line.origin.key, error);
                }
            }
        }
        for (name, folder) in &folders {
            rustix::fs::fsync(folder).map_err(|errno| self.jail.error(name, errno))?;
        }
        for (finished, place) in &named {
            self.journal.remember(&finished.line.target, *place);
            for leftover in &finished.leftovers {
                super::jail::remove_own(&self.parts, leftover);
            }
            self.progress.finish(&finished.line);
        }
        Ok(())
    }
}

/// Finishes what a crash left between journal and rename: true where the temporary file is what the line says, and now
/// has its final name.
pub(crate) fn adopt_left_behind(jail: &Jail, parts: &OwnedFd, temporary: &str, line: &Line) -> Result<bool> {
    let state = state_at(parts, temporary.as_bytes()).map_err(|errno| jail.error(b"", errno))?;
    if state != Some(line.state()) {
        return Ok(false);
    }
    let folder = jail.adopt(parts, temporary, line.target.as_bytes())?;
    rustix::fs::fsync(&folder).map_err(|errno| jail.error(line.target.as_bytes(), errno))?;
    Ok(true)
}

/// True for what no other object will be spared from: a full disk, a dead endpoint, a spent budget.
pub(crate) fn is_fatal(error: &Error) -> bool {
    match error {
        Error::Throttled { .. }
        | Error::Unreachable { .. }
        | Error::Deadline { .. }
        | Error::BudgetExceeded { .. }
        | Error::NoSpace { .. }
        | Error::System { .. }
        | Error::Config { .. }
        | Error::Unsupported { .. }
        | Error::RankFailed { .. }
        | Error::Interrupted
        | Error::Bug { .. } => true,
        Error::NotFound { .. }
        | Error::Denied { .. }
        | Error::Server { .. }
        | Error::Corrupt { .. }
        | Error::Mismatch { .. }
        | Error::Changed { .. }
        | Error::Precondition { .. }
        | Error::KeyRefused { .. } => false,
    }
}

/// The temporary names of an object: hashed, because a key may be longer than a name can be.
pub(crate) fn temporary_name(target: &Key, kind: &str) -> String {
    format!("{:032x}.{kind}", xxhash_rust::xxh3::xxh3_128(target.as_bytes()))
}
