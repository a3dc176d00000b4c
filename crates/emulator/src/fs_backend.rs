// SPDX-License-Identifier: Apache-2.0
//! File backend: stores objects as files in one folder. Objects that cannot be plain files go to the side store, a
//! subfolder. Finds objects, writes them atomically and removes them.
//!
//! All calls block, so callers run them in the blocking thread pool. Paths are resolved below the folder
//! (`penstock_store::rooted`), so that neither keys nor links lead out of the folder.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use penstock_store::owned::{self, OwnedFile, Proof, Replace};
use penstock_store::rooted::{self, FOLDER, Links, Missing, split};
use penstock_types::{Error, lock};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::directories::Directories;
use crate::key_path::{STATE, plain_path, side_name};
use crate::object_metadata::{Fact, Facts, Stamp};
use crate::response_body::CHUNK;

const TEMPORARY: &str = "incoming-";
/// Proof that a file may be replaced: the client named the object, and the user named the served folder.
const NAMED: Replace = Replace::Existing(Proof::Named);

/// The folder that an endpoint serves.
pub(crate) struct Folder {
    pub(crate) root: OwnedFd,
    state: PathBuf,
    pub(crate) facts: Facts,
    pub(crate) directories: Directories,
    /// Lock that a writer holds while it checks a precondition and then writes or removes, so that both are atomic.
    names: Mutex<()>,
}

/// An existing object.
pub(crate) struct Found {
    pub file: File,
    pub stamp: Stamp,
    pub etag: String,
    pub fact: Option<Arc<Fact>>,
}

/// A temporary file. A commit turns it into an object; otherwise, it is removed when dropped.
pub(crate) struct Temp {
    pub file: File,
    owned: OwnedFile,
}

impl Drop for Temp {
    fn drop(&mut self) {
        // After a commit, this does nothing, because the file has been renamed.
        self.owned.remove();
    }
}

/// Passes all bytes of a file to `see`, regardless of the file's read position. Returns the number of bytes.
pub(crate) fn read_all(file: &File, see: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    read_range(file, 0..u64::MAX, see)
}

/// Like [`read_all`], but for one range. If the file is shorter, passes fewer bytes.
pub(crate) fn read_range(
    file: &File,
    range: std::ops::Range<u64>,
    mut see: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<u64> {
    let (mut buffer, mut at) = (vec![0; CHUNK], range.start);
    loop {
        let want = (range.end - at).min(CHUNK as u64) as usize;
        match file.read_at(&mut buffer[..want], at) {
            Ok(0) => return Ok(at - range.start),
            Ok(got) => {
                see(&buffer[..got])?;
                at += got as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns true for errors which mean that the object does not exist.
fn is_absent(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG | Errno::NXIO)
}

impl Folder {
    /// Opens the folder at `path`, which must exist.
    pub(crate) fn open(path: &Path) -> penstock_types::Result<Self> {
        let place = || path.display().to_string();
        let root =
            rustix::fs::open(path, FOLDER, Mode::empty()).map_err(|error| Error::from_io(place(), &error.into()))?;
        // Use the absolute path, because the working directory may change before the state folder is used.
        let path = path.canonicalize().map_err(|error| Error::from_io(place(), &error))?;
        let state = path.join(STATE);
        if let Ok(tmp) = File::open(state.join("tmp")) {
            sweep(&Arc::new(tmp.into()));
        }
        Ok(Self {
            root,
            facts: Facts::new(&state),
            directories: Directories::default(),
            state,
            names: Mutex::default(),
        })
    }

    /// Opens an entry. `path` is relative to the folder and cannot lead out of it.
    pub(crate) fn open_beneath(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        // With NONBLOCK, opening a FIFO in the folder does not block the server. With PATH, NONBLOCK is invalid, and
        // not needed, because the file itself is not opened.
        let nonblock = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        rooted::open_beneath(&self.root, path.as_bytes(), flags | nonblock, Mode::empty())
    }

    /// Finds the object with this key, and opens it for reading.
    pub(crate) fn find(&self, key: &str) -> io::Result<Option<Found>> {
        if let Some(path) = plain_path(key) {
            match self.open_beneath(path, OFlags::RDONLY) {
                Ok(fd) => {
                    let stat = rustix::fs::fstat(&fd)?;
                    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                        let stamp = Stamp::of(&stat);
                        let fact = self.facts.get(key)?.filter(|fact| fact.stamp == stamp && !fact.side);
                        return Ok(Some(Self::found(fd, stamp, fact)));
                    }
                }
                Err(error) if is_absent(error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Some(fact) = self.facts.get(key)?.filter(|fact| fact.side) else { return Ok(None) };
        match File::open(self.side(key)) {
            Ok(file) => {
                let stamp = Stamp::of(&rustix::fs::fstat(&file)?);
                Ok(Some(Self::found(file.into(), stamp, Some(fact).filter(|fact| fact.stamp == stamp))))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn found(fd: OwnedFd, stamp: Stamp, fact: Option<Arc<Fact>>) -> Found {
        let etag = fact.as_ref().and_then(|fact| fact.etag.clone()).unwrap_or_else(|| stamp.etag());
        Found { file: fd.into(), stamp, etag, fact }
    }

    /// Creates a temporary file on the same file system as the folder.
    pub(crate) fn temp(&self) -> io::Result<Temp> {
        let folder = self.state.join("tmp");
        std::fs::create_dir_all(&folder)?;
        let folder = Arc::new(File::open(folder)?.into());
        // The name must be unique, because several endpoints may serve one folder, even in one process.
        let owned = OwnedFile::create(&folder, TEMPORARY)?;
        Ok(Temp { file: owned.file().try_clone()?, owned })
    }

    /// Moves `temp` to its final name. `allow` receives the existing object and can reject the write. Between `allow`
    /// and the move, this endpoint processes no other write.
    pub(crate) fn commit<E: From<io::Error>>(
        &self,
        key: &str,
        temp: Temp,
        mut fact: Fact,
        allow: impl FnOnce(Option<&Found>) -> Result<(), E>,
    ) -> Result<(), E> {
        let _names = self.names();
        let there = self.find(key)?;
        allow(there.as_ref())?;
        drop(there);
        fact.stamp = Stamp::of(&rustix::fs::fstat(&temp.file).map_err(io::Error::from)?);
        fact.side = match plain_path(key) {
            Some(path) => !self.rename_plain(&temp, path)?,
            None => true,
        };
        if fact.side {
            let objects = self.state.join("objects");
            std::fs::create_dir_all(&objects)?;
            let renamed = temp.owned.rename(File::open(objects)?, side_name(key).as_bytes(), NAMED);
            renamed.map_err(io::Error::from)?;
        } else {
            self.remove_side(key)?;
        }
        self.facts.put(key, Some(fact), true)?;
        Ok(())
    }

    /// Renames a temporary file to a plain path. Returns false if a file or folder of another key is in the way.
    fn rename_plain(&self, temp: &Temp, path: &str) -> io::Result<bool> {
        let blocked = |error: Errno| {
            matches!(
                error,
                Errno::NOTDIR | Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY | Errno::LOOP | Errno::NAMETOOLONG
            )
        };
        let (folder, name) = split(path.as_bytes());
        let folder = match rooted::open_folder(&self.root, folder, Links::Refused, Missing::Make) {
            Ok(folder) => folder,
            Err(error) if blocked(error.errno) => return Ok(false),
            Err(error) => return Err(error.errno.into()),
        };
        match temp.owned.rename(&folder, name, NAMED) {
            Ok(()) => Ok(true),
            Err(error) if blocked(error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the object with this key, and all parent folders that are empty afterwards. A missing object is not an
    /// error. `allow` receives the existing object and can reject the removal. Between `allow` and the removal, this
    /// endpoint processes no other write.
    pub(crate) fn remove<E: From<io::Error>>(
        &self,
        key: &str,
        allow: impl FnOnce(&Found) -> Result<(), E>,
    ) -> Result<(), E> {
        let _names = self.names();
        if let Some(found) = self.find(key)? {
            allow(&found)?;
        }
        if let Some(path) = plain_path(key) {
            self.unlink_plain(path)?;
        }
        if let Some(fact) = self.facts.get(key)? {
            if fact.side {
                self.remove_side(key)?;
            }
            self.facts.put(key, None, false)?;
        }
        Ok(())
    }

    /// Changes the stored metadata of an object but not its bytes. Returns false if the object does not exist.
    pub(crate) fn amend(&self, key: &str, change: impl FnOnce(&mut Fact)) -> io::Result<bool> {
        let _names = self.names();
        let Some(found) = self.find(key)? else { return Ok(false) };
        let mut fact = found.fact.as_deref().cloned().unwrap_or_default();
        fact.stamp = found.stamp;
        change(&mut fact);
        std::fs::create_dir_all(&self.state)?;
        self.facts.put(key, Some(fact), true)?;
        Ok(true)
    }

    fn unlink_plain(&self, path: &str) -> io::Result<()> {
        let open = |folder| rooted::open_folder(&self.root, folder, Links::Refused, Missing::Fail);
        let (mut folder, name) = split(path.as_bytes());
        let at = match open(folder) {
            Ok(at) => at,
            Err(error) if is_absent(error.errno) => return Ok(()),
            Err(error) => return Err(error.errno.into()),
        };
        match owned::remove_file(at, name, Proof::Named) {
            Ok(()) => {}
            // A folder with this name is not an object.
            Err(Errno::ISDIR | Errno::PERM) => return Ok(()),
            Err(error) if is_absent(error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        // Remove empty parent folders from the innermost outwards. Stop at the first folder that is not empty.
        while !folder.is_empty() {
            let (above, name) = split(folder);
            if open(above).map_or(true, |at| owned::remove_folder(at, name, Proof::Named).is_err()) {
                break;
            }
            folder = above;
        }
        Ok(())
    }

    fn remove_side(&self, key: &str) -> io::Result<()> {
        match File::open(self.state.join("objects")) {
            Ok(objects) => Ok(owned::remove_file(objects, side_name(key), Proof::Named)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn side(&self, key: &str) -> PathBuf {
        self.state.join("objects").join(side_name(key))
    }

    fn names(&self) -> MutexGuard<'_, ()> {
        lock(&self.names)
    }
}

/// Removes incomplete files that killed endpoints left behind. A running endpoint holds a lock on each of its files.
fn sweep(folder: &Arc<OwnedFd>) {
    let Ok(entries) = Dir::read_from(&**folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_str().unwrap_or_default();
        let is_ours = name.strip_prefix(TEMPORARY).is_some_and(|number| u64::from_str_radix(number, 16).is_ok());
        if let (true, Ok(left)) = (is_ours, OwnedFile::lock_existing(folder, name)) {
            left.remove();
        }
    }
}
