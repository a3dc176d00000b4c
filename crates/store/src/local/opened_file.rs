// SPDX-License-Identifier: Apache-2.0
//! Opens the file of a key below the root folder.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use penstock_types::{Error, Key, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Local;
use crate::rooted::{open_beneath, refusal};
use crate::{Meta, Version};

/// An open file of an object, with its metadata.
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) meta: Meta,
}

pub(super) fn version(stat: &Stat) -> Version {
    Version(format!("{}-{}-{}", stat.st_ino, stat.st_size, mtime_ns(stat)))
}

fn mtime_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec)
}

pub(super) fn meta(key: Key, stat: &Stat) -> Meta {
    Meta {
        key,
        size: stat.st_size as u64,
        version: Some(version(stat)),
        digests: Vec::new(),
        encoding: None,
        modified_s: Some(mtime_ns(stat) as f64 / 1e9),
    }
}

pub(super) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

impl Local {
    pub(super) fn io(&self, key: &Key, errno: Errno) -> Error {
        Error::from_io(self.place(key), &errno.into())
    }

    pub(super) fn refused(&self, key: &Key, reason: &str) -> Error {
        Error::KeyRefused { key: key.to_string(), place: self.path.display().to_string(), reason: reason.to_owned() }
    }

    /// Error for a link that leads out of the root folder.
    pub(super) fn leaves(&self, key: &Key) -> Error {
        let reason = "a symbolic link in the path leads out of the folder; use its target instead".to_owned();
        Error::System { place: self.place(key), reason }
    }

    /// Returns `KeyRefused` for a key that cannot be a path below the root.
    pub(super) fn check_key(&self, key: &Key) -> Result<()> {
        refusal(key.as_bytes()).map_or(Ok(()), |reason| Err(self.refused(key, reason)))
    }

    /// Opens the root folder. Each call opens it again, because it may have been created or replaced in the meantime.
    pub(super) fn open_root(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, self.path.as_os_str().as_bytes(), flags, Mode::empty())
            .map_err(|errno| Error::from_io(self.path.display().to_string(), &errno.into()))
    }

    /// Opens an object for reading. Returns `NotFound` for a folder, because folders are not objects.
    pub(super) fn open_object(&self, key: &Key) -> Result<Opened> {
        self.check_key(key)?;
        let missing = || Error::NotFound { place: self.place(key) };
        let root = self.open_root()?;
        // Without NONBLOCK, opening a named pipe could block for ever. The flag has no effect on regular files.
        let file = match open_beneath(&root, key.as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Err(missing()),
            Err(Errno::XDEV | Errno::LOOP) => {
                return Err(self.leaves(key));
            }
            Err(errno) => return Err(self.io(key, errno)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|errno| self.io(key, errno))?;
        if !is_regular(&stat) {
            return Err(missing());
        }
        Ok(Opened { meta: meta(key.clone(), &stat), file })
    }
}
