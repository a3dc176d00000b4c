// SPDX-License-Identifier: Apache-2.0
//! The folder of a node's cache, which any number of processes share: names, locks and the byte count.
//!
//! Owns what it made and nothing else: it deletes only files of its own names below its own folder. Every lock is the
//! kernel's (`flock`), so that one whose holder was killed is free again.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::entry::Name;

/// Below the folder that the user named, so that what else lies there is none of our business.
const OWN_FOLDER: &str = "penstock-cache-1";

/// A folder that is open. Dropping it lets go of its locks and leaves its files.
#[derive(Debug)]
pub(super) struct Folder {
    place: PathBuf,
    limit: u64,
    /// Eight bytes: how much lies here, entries under way included. Read and changed under its lock.
    ledger: File,
    /// Held shared by every process that uses the folder.
    _users: File,
}

/// The right to write one entry; others wait until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    pub file: File,
    part: PathBuf,
    whole: PathBuf,
}

fn made(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

impl Folder {
    /// Opens the cache below `folder`, made if it is missing. Whoever finds nobody else there counts it anew and takes
    /// away what crashed processes have left unfinished.
    pub fn open(folder: &Path, limit: u64) -> Result<Self> {
        let place = folder.join(OWN_FOLDER);
        std::fs::create_dir_all(place.join("parts"))?;
        std::fs::create_dir_all(place.join("objects"))?;
        let users = made(&place.join("users"))?;
        let folder = Self { ledger: made(&place.join("ledger"))?, place, limit, _users: users.try_clone()? };
        if flock(&users, FlockOperation::NonBlockingLockExclusive).is_ok() {
            for part in std::fs::read_dir(folder.place.join("parts"))?.flatten() {
                if part.file_name().to_str().and_then(Name::from_hex).is_some() {
                    std::fs::remove_file(part.path())?;
                }
            }
            let mut used = 0;
            folder.each_entry(|_, bytes| used += bytes)?;
            folder.ledger.write_all_at(&used.to_le_bytes(), 0)?;
        }
        flock(&users, FlockOperation::LockShared)?;
        Ok(folder)
    }

    /// The folder itself.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Every whole entry and its bytes on disk.
    pub fn each_entry(&self, mut each: impl FnMut(Name, u64)) -> Result<()> {
        for shelf in std::fs::read_dir(self.place.join("objects"))?.flatten() {
            let Ok(entries) = std::fs::read_dir(shelf.path()) else { continue };
            for entry in entries.flatten() {
                if let (Some(name), Ok(facts)) = (entry.file_name().to_str().and_then(Name::from_hex), entry.metadata())
                {
                    each(name, facts.len());
                }
            }
        }
        Ok(())
    }

    /// 256 shelves: no directory grows beyond what its file system finds quickly.
    fn whole(&self, name: Name) -> PathBuf {
        let hex = name.hex();
        self.place.join("objects").join(&hex[..2]).join(hex)
    }

    /// The whole entry of that name, if there is one.
    pub fn find(&self, name: Name) -> Option<File> {
        File::open(self.whole(name)).ok()
    }

    /// The right to write an entry, if nobody has it now.
    pub fn turn(&self, name: Name) -> Result<Option<Turn>> {
        let (part, whole) = (self.place.join("parts").join(name.hex()), self.whole(name));
        let file = made(&part)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        // Whoever had it before may have given the file its final name since it was opened here.
        let same = std::fs::metadata(&part).is_ok_and(|now| file.metadata().is_ok_and(|have| have.ino() == now.ino()));
        if !same {
            return Ok(None);
        }
        file.set_len(0)?;
        Ok(Some(Turn { file, part, whole }))
    }

    /// Counts `bytes` in if they fit, asking for room until they do. False when no room is left to be had.
    pub fn admit(&self, bytes: u64, mut victim: impl FnMut() -> Option<Name>) -> Result<bool> {
        loop {
            let fits = self.change(|used| {
                let sum = used.saturating_add(bytes);
                if sum <= self.limit { (sum, true) } else { (used, false) }
            })?;
            if fits {
                return Ok(true);
            }
            match victim() {
                Some(name) => _ = self.remove(name)?,
                None => return Ok(false),
            }
        }
    }

    /// Counts `bytes` out that were admitted and not used.
    pub fn release(&self, bytes: u64) -> Result<()> {
        self.change(|used| (used.saturating_sub(bytes), ()))
    }

    /// Takes an entry away; false when it was not there.
    pub fn remove(&self, name: Name) -> Result<bool> {
        let whole = self.whole(name);
        self.change(|used| {
            // Under the ledger's lock, so that of two who remove it one counts it.
            let Ok(facts) = std::fs::metadata(&whole) else { return (used, false) };
            match std::fs::remove_file(&whole) {
                Ok(()) => (used.saturating_sub(facts.len()), true),
                Err(_) => (used, false),
            }
        })
    }

    fn change<T>(&self, decide: impl FnOnce(u64) -> (u64, T)) -> Result<T> {
        // A lock of its own: `flock` does not keep threads apart that share an open file.
        let ledger = made(&self.place.join("ledger"))?;
        flock(&ledger, FlockOperation::LockExclusive)?;
        let mut number = [0; 8];
        match self.ledger.read_exact_at(&mut number, 0) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
        let (used, outcome) = decide(u64::from_le_bytes(number));
        self.ledger.write_all_at(&used.to_le_bytes(), 0)?;
        Ok(outcome)
    }

    /// Bytes that lie here, entries under way included.
    #[cfg(test)]
    pub fn used(&self) -> Result<u64> {
        self.change(|used| (used, used))
    }
}

impl Turn {
    /// Gives the written entry its final name. `admitted` is what was counted in for it.
    pub fn keep(&self, folder: &Folder, admitted: u64) -> Result<()> {
        if let Some(shelf) = self.whole.parent() {
            std::fs::create_dir_all(shelf)?;
        }
        let bytes = self.file.metadata()?.len();
        // Under the ledger's lock: what is replaced is counted out, and nobody removes it meanwhile.
        folder.change(|used| {
            let replaced = std::fs::metadata(&self.whole).map_or(0, |facts| facts.len());
            match std::fs::rename(&self.part, &self.whole) {
                Ok(()) => ((used + bytes).saturating_sub(admitted + replaced), Ok(())),
                Err(error) => (used, Err(error)),
            }
        })?
    }

    /// Takes the unfinished entry away.
    pub fn discard(&self) {
        // What stays is taken away by the next process that finds itself alone here.
        let _ = std::fs::remove_file(&self.part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(folder: &Folder, name: u128, bytes: u64) {
        assert!(folder.admit(bytes, || None).unwrap());
        let turn = folder.turn(Name(name)).unwrap().unwrap();
        turn.file.write_all_at(&vec![7; bytes as usize], 0).unwrap();
        turn.keep(folder, bytes).unwrap();
    }

    #[test]
    fn turn_is_one_at_a_time_and_free_when_its_holder_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (Folder::open(dir.path(), 100).unwrap(), Folder::open(dir.path(), 100).unwrap());
        let turn = a.turn(Name(1)).unwrap();
        assert!(turn.is_some() && b.turn(Name(1)).unwrap().is_none() && b.turn(Name(2)).unwrap().is_some());
        drop(turn);
        assert!(b.turn(Name(1)).unwrap().is_some());
    }

    #[test]
    fn entry_that_replaces_another_is_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), 100).unwrap();
        keep(&folder, 1, 40);
        keep(&folder, 1, 30);
        assert_eq!(folder.used().unwrap(), 30);
    }

    #[test]
    fn admit_asks_for_room_and_never_passes_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), 100).unwrap();
        keep(&folder, 1, 60);
        let mut victims = vec![Name(1), Name(99)];
        assert!(folder.admit(50, || victims.pop()).unwrap());
        assert!(folder.find(Name(1)).is_none());
        assert_eq!(folder.used().unwrap(), 50);
        assert!(!folder.admit(51, || None).unwrap());
        folder.release(50).unwrap();
        assert_eq!(folder.used().unwrap(), 0);
    }

    #[test]
    fn folder_is_counted_anew_by_whoever_is_alone_there() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), 100).unwrap();
        keep(&folder, 1, 10);
        let crashed = folder.turn(Name(2)).unwrap().unwrap();
        folder.admit(40, || None).unwrap();
        std::fs::write(dir.path().join("theirs"), b"not ours").unwrap();
        std::fs::write(folder.place().join("parts").join("theirs"), b"not ours").unwrap();
        assert_eq!(Folder::open(dir.path(), 100).unwrap().used().unwrap(), 50, "not alone");
        drop((folder, crashed));
        let folder = Folder::open(dir.path(), 100).unwrap();
        assert_eq!(folder.used().unwrap(), 10);
        assert!(folder.find(Name(1)).is_some());
        let parts: Vec<_> = std::fs::read_dir(folder.place().join("parts")).unwrap().flatten().collect();
        assert_eq!(parts.len(), 1, "the stranger's file alone");
        assert!(dir.path().join("theirs").exists());
    }
}
