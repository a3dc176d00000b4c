// SPDX-License-Identifier: Apache-2.0
//! Objects as files below one folder, and in its side store: find, write whole or not at all, remove.
//!
//! Blocking calls: the callers run them on the blocking pool. Paths are resolved by the kernel beneath the folder
//! (`openat2`), so that no key and no link leads out of it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use penstock_store::owned::{self, OwnedFile, Proof, Replace};
use penstock_types::{Error, lock};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::directories::Directories;
use crate::key_path::{STATE, plain_path, side_name};
use crate::object_metadata::{Fact, Facts, Stamp};
use crate::response_body::CHUNK;

const TEMPORARY: &str = "incoming-";
/// A client's request names the object that is replaced or removed, and the user the folder that is served.
const NAMED: Replace = Replace::Existing(Proof::Named);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);

/// See the module.
pub(crate) struct Folder {
    pub(crate) root: OwnedFd,
    state: PathBuf,
    pub(crate) facts: Facts,
    pub(crate) directories: Directories,
    /// Held while names change, so that a condition and the write that it guards are one step.
    names: Mutex<()>,
}

/// An object that is there.
pub(crate) struct Found {
    pub file: File,
    pub stamp: Stamp,
    pub etag: String,
    pub fact: Option<Arc<Fact>>,
}

/// Bytes on their way to becoming an object; removed unless committed.
pub(crate) struct Temp {
    pub file: File,
    owned: OwnedFile,
}

impl Drop for Temp {
    fn drop(&mut self) {
        // Gone already when it was committed.
        self.owned.remove();
    }
}

/// Shows all bytes of a file, wherever it is positioned; returns their number.
pub(crate) fn read_all(file: &File, see: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<u64> {
    read_range(file, 0..u64::MAX, see)
}

/// As [`read_all`], of one range; fewer bytes than the range has where the file ends before it.
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

/// Errors that say "no such object" rather than "something is wrong".
fn is_absent(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG | Errno::NXIO)
}

impl Folder {
    /// The folder at `path`, which must be there.
    pub(crate) fn open(path: &Path) -> penstock_types::Result<Self> {
        let place = || path.display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| Error::from_io(place(), &error.into()))?;
        // Absolute, so that a later change of the working directory does not move the state.
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

    /// Opens what lies at `path` beneath the folder.
    pub(crate) fn open_beneath(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // NONBLOCK: a FIFO in the folder must not hang the server. PATH opens nothing, and allows no such flag.
        let patient = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        let flags = flags | OFlags::CLOEXEC | patient;
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)
    }

    /// The object of that key, open for reading.
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

    /// A file to write into, on the same file system as the folder.
    pub(crate) fn temp(&self) -> io::Result<Temp> {
        let folder = self.state.join("tmp");
        std::fs::create_dir_all(&folder)?;
        let folder = Arc::new(File::open(folder)?.into());
        // Several endpoints may serve one folder, from one process or from several.
        let owned = OwnedFile::create(&folder, TEMPORARY)?;
        Ok(Temp { file: owned.file().try_clone()?, owned })
    }

    /// Gives `temp` its name. `allow` looks at what is there now and may refuse; no write comes between the two.
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

    /// Renames a temp file to a plain path; false when a file or a folder of another key is in the way.
    fn rename_plain(&self, temp: &Temp, path: &str) -> io::Result<bool> {
        let blocked = |error: Errno| {
            matches!(
                error,
                Errno::NOTDIR | Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY | Errno::LOOP | Errno::NAMETOOLONG
            )
        };
        let (parents, name) = path.rsplit_once('/').map_or((None, path), |(parents, name)| (Some(parents), name));
        let mut at: Option<OwnedFd> = None;
        for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
            let here = at.as_ref().map_or(self.root.as_fd(), |fd| fd.as_fd());
            let next = match enter(here, part) {
                Err(Errno::NOENT) => match rustix::fs::mkdirat(here, part, FOLDER_MODE) {
                    Ok(()) | Err(Errno::EXIST) => enter(here, part),
                    Err(error) => Err(error),
                },
                other => other,
            };
            match next {
                Ok(fd) => at = Some(fd),
                Err(error) if blocked(error) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        let here = at.as_ref().map_or(self.root.as_fd(), |fd| fd.as_fd());
        match temp.owned.rename(here, name.as_bytes(), NAMED) {
            Ok(()) => Ok(true),
            Err(error) if blocked(error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the object of that key, and the folders that this leaves empty. An absent object is not an error.
    /// `allow` sees an object that exists and may refuse; other writers wait between the check and the removal.
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

    /// Changes what is kept with an object besides its bytes; returns false if the object does not exist.
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
        let parts: Vec<&str> = path.split('/').collect();
        let (name, parents) = parts.split_last().expect("split gives one part at least");
        let mut chain: Vec<OwnedFd> = Vec::with_capacity(parents.len());
        for part in parents {
            let here = chain.last().map_or(self.root.as_fd(), |fd| fd.as_fd());
            match enter(here, part) {
                Ok(fd) => chain.push(fd),
                Err(error) if is_absent(error) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        let here = chain.last().map_or(self.root.as_fd(), |fd| fd.as_fd());
        match owned::remove_file(here, *name, Proof::Named) {
            Ok(()) => {}
            // A folder of that name is not an object.
            Err(Errno::ISDIR | Errno::PERM) => return Ok(()),
            Err(error) if is_absent(error) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        for (depth, part) in parents.iter().enumerate().rev() {
            let here = if depth == 0 { self.root.as_fd() } else { chain[depth - 1].as_fd() };
            // The first that is not empty ends it.
            if owned::remove_folder(here, *part, Proof::Named).is_err() {
                break;
            }
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

/// Removes what endpoints that were killed left half written: a living one holds the lock of its file.
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

/// Opens a folder by one name; a link is not followed.
fn enter(at: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty())
}
