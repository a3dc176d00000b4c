// SPDX-License-Identifier: Apache-2.0
//! Names of files and folders in the tree (`t00000/d00000/f0000000`), and the calls that open, create and delete them.
//! The names are formatted into a buffer that is reused, so handling a file allocates no memory.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use penstock_store::owned::{self, Proof};
use penstock_types::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::spec::StorageSpec;

/// Converts the error number of a system call on `place` to an error.
pub(super) fn failed(place: &str, errno: Errno) -> Error {
    Error::from_io(place, &errno.into())
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The subtree of one worker.
#[derive(Debug)]
pub(super) struct Branch {
    root: OwnedFd,
    place: String,
    worker: u32,
    name: String,
}

impl Branch {
    pub(super) fn new(root: &Path, worker: u32) -> Result<Self> {
        let place = root.display().to_string();
        let fd = rustix::fs::open(root, DIRECTORY, Mode::empty()).map_err(|errno| failed(&place, errno))?;
        Ok(Self { root: fd, place, worker, name: String::with_capacity(64) })
    }

    fn named(&mut self, directory: Option<u32>) {
        self.name.clear();
        // Writing to a string cannot fail.
        let _ = write!(self.name, "t{:05}", self.worker);
        if let Some(directory) = directory {
            let _ = write!(self.name, "/d{directory:05}");
        }
    }

    fn failed(&self, errno: Errno) -> Error {
        failed(&format!("{}/{}", self.place, self.name), errno)
    }

    /// Creates the worker's own folder (`None`) or one of its subfolders.
    pub(super) fn make(&mut self, directory: Option<u32>) -> Result<()> {
        self.named(directory);
        rustix::fs::mkdirat(&self.root, &*self.name, Mode::from_raw_mode(0o755)).map_err(|errno| self.failed(errno))
    }

    /// Deletes the worker's own folder (`None`) or one of its subfolders, which must be empty.
    pub(super) fn remove(&mut self, directory: Option<u32>) -> Result<()> {
        self.named(directory);
        owned::remove_folder(&self.root, &*self.name, Proof::Named).map_err(|errno| self.failed(errno))
    }

    /// Opens one of the worker's subfolders.
    pub(super) fn folder(&mut self, directory: u32) -> Result<Folder> {
        self.named(Some(directory));
        let fd = rustix::fs::openat(&self.root, &*self.name, DIRECTORY, Mode::empty()).map_err(|e| self.failed(e))?;
        Ok(Folder { fd, place: format!("{}/{}", self.place, self.name), name: String::with_capacity(32) })
    }
}

/// An open folder of files.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    place: String,
    name: String,
}

impl Folder {
    fn named(&mut self, file: u64) {
        self.name.clear();
        let _ = write!(self.name, "f{file:07}");
    }

    /// Path of a file, for error messages.
    pub(super) fn place(&mut self, file: u64) -> String {
        self.named(file);
        format!("{}/{}", self.place, self.name)
    }

    pub(super) fn open(&mut self, file: u64, flags: OFlags) -> Result<OwnedFd> {
        self.named(file);
        rustix::fs::openat(&self.fd, &*self.name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
            .map_err(|errno| failed(&self.place(file), errno))
    }

    /// Returns the size of a file.
    pub(super) fn stat(&mut self, file: u64) -> Result<u64> {
        self.named(file);
        let facts = rustix::fs::statat(&self.fd, &*self.name, AtFlags::SYMLINK_NOFOLLOW);
        facts.map(|facts| facts.st_size as u64).map_err(|errno| failed(&self.place(file), errno))
    }

    pub(super) fn delete(&mut self, file: u64) -> Result<()> {
        self.named(file);
        owned::remove_file(&self.fd, &*self.name, Proof::Named).map_err(|errno| failed(&self.place(file), errno))
    }
}

/// Returns the number of a file in the whole tree. The file's content is generated from this number.
pub(super) fn file_number(spec: &StorageSpec, worker: u32, directory: u32, file: u64) -> u64 {
    (u64::from(worker) * u64::from(spec.directories) + u64::from(directory)) * spec.files + file
}

/// Calls fsync on `file`.
pub(super) fn sync(file: impl AsFd, place: &dyn Fn() -> String) -> Result<()> {
    rustix::fs::fsync(file).map_err(|errno| failed(&place(), errno))
}
