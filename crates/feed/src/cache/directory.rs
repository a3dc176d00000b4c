// SPDX-License-Identifier: Apache-2.0
//! Directory of a node's cache, which several processes share: file names, locks and the count of used bytes.
//!
//! Deletes only files that the cache created: regular files that have cache entry names, below its own folder. The
//! cache opens that folder once, and follows no link in it. All locks are kernel locks (`flock`), so the kernel
//! releases the locks of a killed process.

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penstock_store::owned::{self, OwnedFile, Proof, Replace};
use penstock_store::rooted::{FOLDER, Links, Missing, open_folder};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock};

use super::entry::Name;

/// Subfolder of the user's folder for the cache. Other files in the user's folder are not touched.
const OWN_FOLDER: &str = "penstock-cache-1";
const DIRECTORY: OFlags = FOLDER.union(OFlags::NOFOLLOW);

/// An open cache folder. Dropping it releases its locks and keeps its files.
#[derive(Debug)]
pub(super) struct Folder {
    place: PathBuf,
    limit: u64,
    root: OwnedFd,
    parts: Arc<OwnedFd>,
    objects: OwnedFd,
    /// File of eight bytes: the number of bytes in the cache, including unfinished entries. A process reads and changes
    /// the number under the file's own lock.
    ledger: File,
    /// Every process that uses the folder holds a shared lock on this file.
    _users: File,
}

/// Exclusive lock for writing one entry. While the lock is held, no other writer gets it.
#[derive(Debug)]
pub(super) struct EntryLock {
    part: OwnedFile,
    name: Name,
}

fn made(folder: impl AsFd, name: &str) -> Result<File> {
    owned::open(folder, name, OFlags::RDWR | OFlags::CREATE)
}

/// Opens a subfolder, and creates it if it is missing. Returns an error if `name` is a link.
fn open_or_make(folder: impl AsFd, name: &str) -> Result<OwnedFd> {
    open_folder(folder, name.as_bytes(), Links::Refused, Missing::Make).map_err(|blocked| blocked.errno.into())
}

/// Returns the names of the cache entries in a folder.
fn entries(folder: impl AsFd) -> Result<Vec<Name>> {
    let names = Dir::read_from(folder)?.filter_map(|entry| Name::from_hex(entry.ok()?.file_name().to_str().ok()?));
    Ok(names.collect())
}

/// Size of a regular file in bytes; `None` for a missing file and for any other kind of file.
fn bytes_of(folder: impl AsFd, name: Name) -> Option<u64> {
    let stat = rustix::fs::statat(folder, name.hex(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile).then_some(stat.st_size as u64)
}

impl Folder {
    /// Opens the cache below `folder`, and creates it if it is missing. If no other process uses the cache, recomputes
    /// the cache's size and removes the unfinished files of crashed processes.
    pub fn open(folder: &Path, limit: u64) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let root = open_or_make(File::open(folder)?, OWN_FOLDER)?;
        let (parts, objects) = (Arc::new(open_or_make(&root, "parts")?), open_or_make(&root, "objects")?);
        let (users, ledger) = (made(&root, "users")?, made(&root, "ledger")?);
        let place = folder.join(OWN_FOLDER);
        let folder = Self { place, limit, root, parts, objects, ledger, _users: users.try_clone()? };
        if flock(&users, FlockOperation::NonBlockingLockExclusive).is_ok() {
            for name in entries(&*folder.parts)? {
                if let Ok(part) = OwnedFile::lock_existing(&folder.parts, &name.hex()) {
                    part.remove();
                }
            }
            let mut used = 0;
            folder.each_entry(|_, bytes| used += bytes)?;
            folder.ledger.write_all_at(&used.to_le_bytes(), 0)?;
        }
        flock(&users, FlockOperation::LockShared)?;
        Ok(folder)
    }

    /// Path of the cache folder.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Calls `each` with the name and the size on disk of each finished entry.
    pub fn each_entry(&self, mut each: impl FnMut(Name, u64)) -> Result<()> {
        for shelf in Dir::read_from(&self.objects)?.flatten() {
            let name = shelf.file_name();
            let Ok(shelf) = rustix::fs::openat(&self.objects, name, DIRECTORY, Mode::empty()) else { continue };
            for entry in entries(&shelf).unwrap_or_default() {
                let is_here = entry.hex().as_bytes().starts_with(name.to_bytes());
                if let Some(bytes) = bytes_of(&shelf, entry).filter(|_| is_here && name.to_bytes().len() == 2) {
                    each(entry, bytes);
                }
            }
        }
        Ok(())
    }

    /// Opens the subfolder of an entry. Entries are divided among 256 subfolders, so that no directory becomes slow to
    /// search.
    fn shelf(&self, name: Name) -> Result<OwnedFd> {
        Ok(rustix::fs::openat(&self.objects, &name.hex()[..2], DIRECTORY, Mode::empty())?)
    }

    /// Opens the finished entry `name`. Returns `None` if it does not exist.
    pub fn find(&self, name: Name) -> Option<File> {
        owned::open(self.shelf(name).ok()?, &name.hex(), OFlags::RDONLY).ok()
    }

    /// Takes the lock for writing an entry. Returns `None` if another writer holds it.
    pub fn turn(&self, name: Name) -> Result<Option<EntryLock>> {
        match OwnedFile::lock(&self.parts, &name.hex()) {
            Ok(part) => {
                part.clear()?;
                Ok(Some(EntryLock { part, name }))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reserves `bytes`. If they do not fit, evicts the entries that `victim` returns, one by one, until they fit.
    /// Returns false if `victim` returns none before that.
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

    /// Releases bytes that were reserved but not used.
    pub fn release(&self, bytes: u64) -> Result<()> {
        self.change(|used| (used.saturating_sub(bytes), ()))
    }

    /// Removes an entry. Returns false if the entry did not exist.
    pub fn remove(&self, name: Name) -> Result<bool> {
        self.change(|used| {
            // Runs under the ledger's lock. If two processes remove the same entry, its size is subtracted only once.
            let Ok(shelf) = self.shelf(name) else { return (used, false) };
            let Some(bytes) = bytes_of(&shelf, name) else { return (used, false) };
            match owned::remove_file(&shelf, name.hex(), Proof::Covered) {
                Ok(()) => (used.saturating_sub(bytes), true),
                Err(_) => (used, false),
            }
        })
    }

    fn change<T>(&self, decide: impl FnOnce(u64) -> (u64, T)) -> Result<T> {
        // Opens the file again for each call, because `flock` does not exclude threads that share an open file.
        let ledger = made(&self.root, "ledger")?;
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

    /// Number of bytes in the cache, including unfinished entries.
    #[cfg(test)]
    pub fn used(&self) -> Result<u64> {
        self.change(|used| (used, used))
    }
}

impl EntryLock {
    /// File to which the entry is written.
    pub fn file(&self) -> &File {
        self.part.file()
    }

    /// Renames the written entry to its final name. `admitted` is the number of bytes that were reserved for the entry.
    pub fn keep(&self, folder: &Folder, admitted: u64) -> Result<()> {
        let shelf = open_or_make(&folder.objects, &self.name.hex()[..2])?;
        let bytes = self.file().metadata()?.len();
        // Runs under the ledger's lock. The size of a replaced entry is subtracted, and no other process can remove
        // that entry in between.
        folder.change(|used| {
            let replaced = bytes_of(&shelf, self.name).unwrap_or(0);
            match self.part.rename(&shelf, self.name.hex().as_bytes(), Replace::Existing(Proof::Covered)) {
                Ok(()) => ((used + bytes).saturating_sub(admitted + replaced), Ok(())),
                Err(errno) => (used, Err(errno.into())),
            }
        })?
    }

    /// Removes the unfinished entry.
    pub fn discard(&self) {
        // If the removal fails, the next process that is alone in the cache folder removes the file.
        self.part.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(folder: &Folder, name: u128, bytes: u64) {
        assert!(folder.admit(bytes, || None).unwrap());
        let turn = folder.turn(Name(name)).unwrap().unwrap();
        turn.file().write_all_at(&vec![7; bytes as usize], 0).unwrap();
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
