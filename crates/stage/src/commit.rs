// SPDX-License-Identifier: Apache-2.0
//! Commit: gives synced temporary files their final names, in batches.
//!
//! For each batch, the committer syncs the journal lines to disk, renames the files, then syncs each affected folder
//! once. A crash between journal and rename leaves a complete file under its temporary name. The next run recognises
//! this file and renames it. A file stays locked from before its first byte until after its rename, so that no other
//! process truncates it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_store::owned::{OwnedFile, Proof, Replace};
use penstock_store::rooted::split;
use penstock_types::{Error, Key, Result};
use tokio::sync::mpsc::Receiver;

use crate::dest_dir::{DestDir, state_of_file};
use crate::journal::{Journal, Line};
use crate::progress::Progress;
use crate::to_folder::part_files::PartFiles;

/// Maximum number of files in a batch. The maximum limits how long the first file waits.
const MAX_BATCH: usize = 128;
/// Maximum number of finished files that wait for the committer; each holds an open file descriptor.
pub(crate) const MAX_WAITING: usize = 128;

/// A complete, verified and synced file, locked under its temporary name.
#[derive(Debug)]
pub(crate) struct Finished {
    pub line: Line,
    pub temporary: Arc<OwnedFile>,
    /// Parts that the file was assembled from, if any.
    pub parts: Option<PartFiles>,
}

/// Gives finished files their final names. Only the committer writes to the journal.
pub(crate) struct Committer {
    pub dest_dir: Arc<DestDir>,
    pub journal: Journal,
    /// True if the user allows replacing files that no stage created.
    pub overwrites: bool,
    pub progress: Arc<Progress>,
}

impl Committer {
    /// Commits files until all senders are dropped. Returns an error, which ends the stage, only if the journal or the
    /// disk fails.
    pub fn run(mut self, mut finished: Receiver<Finished>) -> Result<Journal> {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        while finished.blocking_recv_many(&mut batch, MAX_BATCH) > 0 {
            self.commit(std::mem::take(&mut batch))?;
        }
        Ok(self.journal)
    }

    /// Returns which existing files a commit may replace: with `--overwrite`, any file; otherwise, only files that an
    /// earlier stage of this source created.
    fn replaces(&self, target: &Key) -> Replace {
        match (self.overwrites, self.journal.knows(target)) {
            (true, _) => Replace::Existing(Proof::Named),
            (false, true) => Replace::Existing(Proof::Covered),
            (false, false) => Replace::Nothing,
        }
    }

    fn commit(&mut self, batch: Vec<Finished>) -> Result<()> {
        let lines: Vec<Line> = batch.iter().map(|finished| finished.line.clone()).collect();
        // Compute this before the append, because the append adds the lines of this batch to the journal.
        let replaces: Vec<Replace> = lines.iter().map(|line| self.replaces(&line.target)).collect();
        let places = self.journal.append(&lines)?;
        drop(lines);
        let mut folders: HashMap<Vec<u8>, OwnedFd> = HashMap::new();
        let mut named = Vec::with_capacity(batch.len());
        for ((finished, place), replace) in batch.into_iter().zip(places).zip(replaces) {
            let target = finished.line.target.as_bytes();
            // Remove the part files before the rename, because another process may reuse their name after the rename.
            // The journal now covers the complete file.
            if let Some(parts) = &finished.parts {
                parts.remove_all_but(&finished.temporary);
            }
            match self.dest_dir.adopt(&finished.temporary, target, replace) {
                Ok(folder) => {
                    folders.insert(split(target).0.to_vec(), folder);
                    named.push((finished, place));
                }
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    if replace == Replace::Nothing {
                        self.journal.retract(&finished.line)?;
                    }
                    finished.temporary.remove();
                    self.progress.fail(&finished.line.origin.key, error);
                }
            }
        }
        for (name, folder) in &folders {
            rustix::fs::fsync(folder).map_err(|errno| self.dest_dir.error(name, errno))?;
        }
        for (finished, place) in &named {
            self.journal.remember(&finished.line.target, *place);
            self.progress.finish(&finished.line);
        }
        Ok(())
    }
}

/// Completes a commit that a crash interrupted between journal and rename. Returns true if the temporary file matches
/// the line and now has its final name. Returns false if the file does not match the line, or if another process has
/// locked it.
pub(crate) fn adopt_left_behind(
    dest_dir: &DestDir,
    parts: &Arc<OwnedFd>,
    temporary: &str,
    line: &Line,
) -> Result<bool> {
    let Ok(file) = OwnedFile::lock_existing(parts, temporary) else { return Ok(false) };
    if state_of_file(file.file()).ok() != Some(line.state()) {
        return Ok(false);
    }
    let folder = dest_dir.adopt(&file, line.target.as_bytes(), Replace::Existing(Proof::Covered))?;
    rustix::fs::fsync(&folder).map_err(|errno| dest_dir.error(line.target.as_bytes(), errno))?;
    Ok(true)
}

/// True for an error that would also affect every other object: a full disk, an unreachable endpoint, an exhausted
/// budget.
pub(crate) fn is_fatal(error: &Error) -> bool {
    match error {
        Error::Throttled { .. }
        | Error::Unreachable { .. }
        | Error::Untrusted { .. }
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
        | Error::Busy { .. }
        | Error::KeyRefused { .. } => false,
    }
}

/// Temporary name of an object. The name is a hash, because a key may be longer than the maximum length of a file name.
pub(crate) fn temporary_name(target: &Key, kind: &str) -> String {
    format!("{:032x}.{kind}", xxhash_rust::xxh3::xxh3_128(target.as_bytes()))
}

/// True for any name that [`temporary_name`] can produce.
pub(crate) fn is_temporary_name(name: &str) -> bool {
    name.split_once('.').is_some_and(|(hash, kind)| {
        let is_hex = hash.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        hash.len() == 32 && is_hex && matches!(kind, "tmp" | "part" | "done" | "up")
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use penstock_dataset::manifest::{Entry, Origin};

    #[test]
    fn finished_file_stays_locked_until_after_its_rename() {
        let inside = tempfile::tempdir().unwrap();
        let dest_dir = Arc::new(DestDir::open(inside.path()).unwrap());
        let parts = Arc::new(dest_dir.make_folder(b"parts").unwrap());
        let journal = Journal::open(&parts, "journal-0-of-1.jsonl", "s", "j").unwrap();
        let target = Key::from("a/b.bin");
        let name = temporary_name(&target, "tmp");
        let file = OwnedFile::lock(&parts, &name).unwrap();
        file.file().write_all(b"whole").unwrap();
        let state = state_of_file(file.file()).unwrap();
        let line = Line {
            target,
            size: state.size,
            mtime_ns: state.mtime_ns,
            digests: Vec::new(),
            origin: Origin::of(&Entry::new(Key::from("a/b.bin"), 5)),
            modified_s: None,
            decompress: false,
            version: None,
        };
        let (send, inbox) = tokio::sync::mpsc::channel(1);
        send.try_send(Finished { line, temporary: Arc::new(file), parts: None }).unwrap();
        drop(send);
        // Between the last byte and the rename, another stage of the same object gets neither the file nor its name.
        assert_eq!(OwnedFile::lock(&parts, &name).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        Committer { dest_dir, journal, overwrites: false, progress: Arc::default() }.run(inbox).unwrap();
        // After the rename, another stage gets a new file.
        OwnedFile::lock(&parts, &name).unwrap().file().write_all(b"other bytes").unwrap();
        assert_eq!(std::fs::read(inside.path().join("a/b.bin")).unwrap(), b"whole");
    }

    #[test]
    fn temporary_names_are_told_from_others() {
        let ours = temporary_name(&Key::from("a"), "part");
        assert!(is_temporary_name(&ours));
        for other in ["notes.txt", "a.tmp", &ours[1..], &ours.to_uppercase(), &format!("{ours}.bak")] {
            assert!(!is_temporary_name(other), "{other}");
        }
    }
}
