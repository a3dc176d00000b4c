// SPDX-License-Identifier: Apache-2.0
//! From keys to open files beneath the root, and nowhere else.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_types::{Error, Key, Result};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::Local;
use crate::{Meta, Version};

/// Longest name that a Linux file system takes.
const NAME_MAX: usize = 255;

/// The kernel has openat2; cleared when it says otherwise.
static RESOLVES_BENEATH: AtomicBool = AtomicBool::new(true);

/// An object's open file, and what is known of it.
pub(super) struct Opened {
    pub(super) file: OwnedFd,
    pub(super) meta: Meta,
}

/// Why `key` cannot be a path below a folder, if it cannot.
pub(super) fn refusal(key: &[u8]) -> Option<&'static str> {
    if key.is_empty() {
        return Some("it is empty");
    }
    key.split(|&byte| byte == b'/').find_map(|name| match name {
        b"" if key.starts_with(b"/") => Some("it begins with `/`"),
        b"" => Some("a name in it is empty"),
        b"." | b".." => Some("it leaves the folder or names it by `.`"),
        name if name.contains(&0) => Some("it holds a zero byte"),
        name if name.len() > NAME_MAX => Some("a name in it is longer than 255 bytes"),
        _ => None,
    })
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

/// Opens `path` (relative, of checked names) beneath `dir`.
pub(super) fn open_beneath(dir: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let text = CString::new(path).map_err(|_| Errno::INVAL)?;
    if RESOLVES_BENEATH.load(Ordering::Relaxed) {
        // EAGAIN: a rename raced with the look-up; a bounded number of tries, then it is an error like another.
        for _ in 0..16 {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(&dir, &text, flags | OFlags::CLOEXEC, mode, resolve) {
                Err(Errno::AGAIN) => {}
                Err(Errno::NOSYS) => {
                    RESOLVES_BENEATH.store(false, Ordering::Relaxed);
                    return name_by_name(dir, path, flags, mode);
                }
                // Some sandboxes forbid the call with this error; where it is the file that is forbidden, it comes again.
                Err(Errno::PERM) => return name_by_name(dir, path, flags, mode),
                result => return result,
            }
        }
        return Err(Errno::AGAIN);
    }
    name_by_name(dir, path, flags, mode)
}

/// The same for kernels before 5.6: each name is opened in turn, and no symbolic link is followed at all.
fn name_by_name(dir: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let mut at = rustix::fs::openat(&dir, c".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = path.split(|&byte| byte == b'/').peekable();
    while let Some(name) = names.next() {
        let (flags, mode) = match names.peek() {
            Some(_) => (OFlags::PATH | OFlags::DIRECTORY, Mode::empty()),
            None => (flags, mode),
        };
        at = rustix::fs::openat(&at, name, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, mode)?;
    }
    Ok(at)
}

impl Local {
    pub(super) fn io(&self, key: &Key, errno: Errno) -> Error {
        Error::from_io(self.place(key), &errno.into())
    }

    pub(super) fn refused(&self, key: &Key, reason: &str) -> Error {
        Error::KeyRefused { key: key.to_string(), place: self.path.display().to_string(), reason: reason.to_owned() }
    }

    /// Error of a read for a link that leads out of the root.
    pub(super) fn leaves(&self, key: &Key) -> Error {
        let reason = "a symbolic link there leads out of the folder; name its target instead".to_owned();
        Error::System { place: self.place(key), reason }
    }

    /// Errs with `KeyRefused` for a key that cannot be a path below the root.
    pub(super) fn check_key(&self, key: &Key) -> Result<()> {
        refusal(key.as_bytes()).map_or(Ok(()), |reason| Err(self.refused(key, reason)))
    }

    /// The root, opened again: it may have been made, or replaced, since the last call.
    pub(super) fn open_root(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(CWD, self.path.as_os_str().as_bytes(), flags, Mode::empty())
            .map_err(|errno| Error::from_io(self.path.display().to_string(), &errno.into()))
    }

    /// Opens an object to read. `NotFound` for folders too: they are no objects.
    pub(super) fn open_object(&self, key: &Key) -> Result<Opened> {
        self.check_key(key)?;
        let missing = || Error::NotFound { place: self.place(key) };
        let root = self.open_root()?;
        // NONBLOCK: a named pipe would hold the open for ever. It does nothing to a regular file.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_refusal_of_keys_that_no_folder_holds_says_why() {
        for key in [&b""[..], b"/a", b"a//b", b"a/", b"..", b"a/../b", b"./a", b"a\0b", &[b'n'; 256]] {
            assert!(refusal(key).is_some(), "{key:?}");
        }
        for key in [&b"a"[..], b"a/b", b"..a/b..", b"...", b"a b+c%20", b"\xff", &[b'n'; 255]] {
            assert!(refusal(key).is_none(), "{key:?}");
        }
    }

    #[test]
    fn test_name_by_name_follows_no_link_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/file"), b"x").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("out")).unwrap();
        let root = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(name_by_name(&root, b"a/file", OFlags::RDONLY, Mode::empty()).is_ok());
        assert!(name_by_name(&root, b"out/passwd", OFlags::RDONLY, Mode::empty()).is_err());
    }
}
