// SPDX-License-Identifier: Apache-2.0
//! Destination folder: ensures that no object key and no planted symbolic link leads to a path outside the folder.
//!
//! Opens every path relative to one descriptor, component by component, without following links
//! (`penstock_store::rooted`).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub(crate) use penstock_dataset::record_offsets::FileState;
use penstock_store::owned::{self, OwnedFile, Proof, Replace};
use penstock_store::rooted::{self, FOLDER, Links, Missing, split};
use penstock_types::{Error, Key, Result};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// An open destination folder.
#[derive(Debug)]
pub(crate) struct DestDir {
    root: OwnedFd,
    path: PathBuf,
}

impl DestDir {
    /// Opens the folder; creates it and its parents if needed. The folder itself may be a link, because the user chose
    /// the path of the folder.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AlreadyExists | std::io::ErrorKind::NotADirectory => {
                Error::config("destination", format!("{} is not a folder", path.display()))
            }
            _ => Error::from_io(path.display().to_string(), &error),
        };
        std::fs::create_dir_all(path).map_err(io)?;
        let root = rustix::fs::open(path, FOLDER, Mode::empty()).map_err(|errno| io(errno.into()))?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Opens an existing folder; creates nothing.
    pub fn open_existing(path: &Path) -> Result<Self> {
        let root = rustix::fs::open(path, FOLDER, Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR => Error::config("destination", format!("{} is not a folder", path.display())),
            errno => Error::from_io(path.display().to_string(), &errno.into()),
        })?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Opens a folder below the root; `None` if the folder does not exist.
    pub fn folder(&self, relative: &[u8]) -> Result<Option<OwnedFd>> {
        match self.walk(relative, Missing::Fail) {
            Ok(folder) => Ok(Some(folder)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Opens the regular file at a key for reading. Returns `NotFound` if nothing exists at the key, and `KeyRefused`
    /// if the entry is not a regular file or a link is on the path.
    pub fn open_file(&self, relative: &[u8]) -> Result<File> {
        let (folder, name) = split(relative);
        if matches!(name, b"" | b"." | b"..") {
            return Err(self.refused(relative, "the key does not end in a file name"));
        }
        let folder = self.walk(folder, Missing::Fail)?;
        // NONBLOCK: without it, opening a planted FIFO would block until another process opens its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = match rustix::fs::openat(&folder, name, flags, Mode::empty()) {
            Ok(file) => file.into(),
            Err(Errno::LOOP) => return Err(self.refused(relative, "the path is a symbolic link")),
            Err(Errno::NXIO) => return Err(self.refused(relative, "the path is not a regular file")),
            Err(errno) => return Err(self.error(relative, errno)),
        };
        match state_of_file(&file) {
            Ok(_) => Ok(file),
            Err(_) => Err(self.refused(relative, "the path is not a regular file")),
        }
    }

    /// The path as the user wrote it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a key, for messages.
    pub fn place(&self, relative: &[u8]) -> String {
        self.path.join(Key::new(relative.to_vec()).to_string()).display().to_string()
    }

    /// Free bytes on the destination's file system.
    pub fn free_bytes(&self) -> Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.root).map_err(|errno| self.error(b"", errno))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Opens a folder below the root; creates it if it is missing.
    pub fn make_folder(&self, relative: &[u8]) -> Result<OwnedFd> {
        self.walk(relative, Missing::Make)
    }

    fn walk(&self, relative: &[u8], missing: Missing) -> Result<OwnedFd> {
        rooted::open_folder(&self.root, relative, Links::Refused, missing).map_err(|blocked| {
            let walked = &relative[..blocked.walked];
            match (blocked.errno, blocked.entry) {
                (Errno::XDEV, _) => self.refused(relative, "the path has a `.` or `..` component"),
                (_, Some(FileType::Symlink)) => {
                    let link = Key::new(walked.to_vec());
                    self.refused(relative, &format!("`{link}` is a symbolic link, which is not followed"))
                }
                (Errno::LOOP | Errno::NOTDIR, _) => {
                    self.refused(relative, &format!("`{}` is not a folder", Key::new(walked.to_vec())))
                }
                (errno, _) => self.error(walked, errno),
            }
        })
    }

    /// Builds the error for a rejected key. The plan rejects most such keys earlier, with a better message. This check
    /// rejects keys that the plan did not detect.
    fn refused(&self, relative: &[u8], reason: &str) -> Error {
        Error::KeyRefused {
            key: Key::new(relative.to_vec()).to_string(),
            place: self.path.display().to_string(),
            reason: reason.to_owned(),
        }
    }

    /// State of the file at a key; `None` if no regular file exists there.
    pub fn state(&self, relative: &[u8]) -> Result<Option<FileState>> {
        let (folder, name) = split(relative);
        match self.walk(folder, Missing::Fail) {
            Ok(folder) => state_at(&folder, name).map_err(|errno| self.error(relative, errno)),
            Err(Error::NotFound { .. } | Error::KeyRefused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Describes the entry at this key that a rename would replace: a file, a link or a special file. Returns `None` if
    /// no entry exists. Also returns `None` if a folder has that name or a link is on the path, because the rename
    /// itself then fails.
    pub fn in_place_of(&self, relative: &[u8]) -> Result<Option<&'static str>> {
        let (folder, name) = split(relative);
        let stat = match self.walk(folder, Missing::Fail) {
            Ok(folder) => rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW),
            Err(Error::NotFound { .. } | Error::KeyRefused { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Err(Errno::NOENT) | Ok(FileType::Directory) => Ok(None),
            Ok(FileType::RegularFile) => Ok(Some("a file")),
            Ok(FileType::Symlink) => Ok(Some("a symbolic link")),
            Ok(_) => Ok(Some("a special file")),
            Err(errno) => Err(self.error(relative, errno)),
        }
    }

    /// Gives a finished file its final name. Returns the folder, which the caller must sync so that the name survives a
    /// crash.
    pub fn adopt(&self, file: &OwnedFile, relative: &[u8], replace: Replace) -> Result<OwnedFd> {
        let (folder, name) = split(relative);
        if matches!(name, b"" | b"." | b"..") {
            return Err(self.refused(relative, "the key does not end in a file name"));
        }
        let folder = self.walk(folder, Missing::Make)?;
        let renamed = match file.rename(&folder, name, replace) {
            // The file system supports neither RENAME_NOREPLACE nor hard links (some FUSE systems). A check before the
            // rename is then the only protection.
            Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP)
                if replace == Replace::Nothing && self.in_place_of(relative)?.is_none() =>
            {
                file.rename(&folder, name, Replace::Existing(Proof::Covered))
            }
            renamed => renamed,
        };
        renamed.map_err(|errno| match errno {
            Errno::EXIST if matches!(self.in_place_of(relative), Ok(Some(_))) => Error::Precondition {
                place: self.place(relative),
                reason: "another program created this file while the stage ran".to_owned(),
            },
            Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY => Error::KeyRefused {
                key: Key::new(relative.to_vec()).to_string(),
                place: self.path.display().to_string(),
                reason: "a folder with this name exists".to_owned(),
            },
            errno => self.error(relative, errno),
        })?;
        Ok(folder)
    }

    /// Removes the temporary names that a killed stage left for a file that also has its final name. On a file system
    /// without a no-replace rename (NFS), a file gets its final name by a hard link, so for a moment it has two names.
    pub fn remove_linked(&self, parts: &OwnedFd, temporary: [&str; 2], relative: &[u8]) -> Result<()> {
        let (folder, name) = split(relative);
        let Some(folder) = self.folder(folder)? else { return Ok(()) };
        let removed = temporary.iter().try_for_each(|old| owned::remove_linked(parts, old, &folder, name));
        removed.map_err(|errno| self.error(relative, errno))
    }

    /// Converts an operating-system error. If the disk is full, adds the numbers of needed and free bytes.
    pub fn error(&self, relative: &[u8], errno: Errno) -> Error {
        self.io_error(relative, &errno.into(), 0)
    }

    /// Like `error`, but converts a `std::io::Error` that occurred while `need` bytes were written.
    pub fn io_error(&self, relative: &[u8], error: &std::io::Error, need: u64) -> Error {
        match Error::from_io(self.place(relative), error) {
            Error::NoSpace { .. } => Error::NoSpace {
                place: self.path.display().to_string(),
                need,
                free: rustix::fs::fstatvfs(&self.root).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
            },
            other => other,
        }
    }
}

fn state_of(stat: &rustix::fs::Stat) -> Option<FileState> {
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let mtime_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64);
    plain.then_some(FileState { size: stat.st_size as u64, mtime_ns })
}

/// State of the file with this name in an open folder.
pub(crate) fn state_at(folder: &OwnedFd, name: &[u8]) -> std::result::Result<Option<FileState>, Errno> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(state_of(&stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Disk space that one of Penstock's files occupies, in bytes; 0 if the file does not exist.
pub(crate) fn allocated_at(folder: &OwnedFd, name: &str) -> u64 {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| (stat.st_blocks as u64) * 512)
}

/// State of an open file.
pub(crate) fn state_of_file(file: &File) -> std::io::Result<FileState> {
    let stat = rustix::fs::fstat(file)?;
    state_of(&stat).ok_or_else(|| std::io::Error::other("is not a regular file"))
}

/// Opens or creates one of Penstock's files in an open folder, for reading and writing; does not follow links.
pub(crate) fn open_own(folder: &OwnedFd, name: &str) -> std::io::Result<File> {
    owned::open(folder, name, OFlags::RDWR | OFlags::CREATE)
}

/// Like [`open_own`], but every write appends to the file.
pub(crate) fn open_to_append(folder: &OwnedFd, name: &str) -> std::io::Result<File> {
    owned::open(folder, name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE)
}

/// Opens one of Penstock's files for writes that bypass the page cache; `None` if the file system does not support such
/// writes.
pub(crate) fn open_direct(folder: &OwnedFd, name: &str) -> std::io::Result<Option<File>> {
    let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(folder, name, flags, Mode::empty()) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Reserves disk space for the first `bytes` of a file without changing its size. If the file system does not support
/// reservations, the space is allocated as bytes are written.
pub(crate) fn reserve(file: &File, bytes: u64) -> std::io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens an existing file in an open folder for reading; does not follow links.
pub(crate) fn open_to_read(folder: &OwnedFd, name: &str) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(folder, name, flags, Mode::empty())?.into())
}

/// Sorted names of all entries in an open folder, of any file type.
pub(crate) fn names_in(folder: &OwnedFd) -> std::io::Result<Vec<String>> {
    let mut names: Vec<String> = rustix::fs::Dir::read_from(folder)?
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
        .filter(|name| name != "." && name != "..")
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use super::*;

    const OURS: Replace = Replace::Existing(Proof::Covered);

    #[test]
    fn dest_dir_does_not_follow_planted_links() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), inside.path().join("g0")).unwrap();
        std::fs::create_dir(inside.path().join("real")).unwrap();
        symlink(outside.path(), inside.path().join("real/link")).unwrap();
        let dest_dir = DestDir::open(inside.path()).unwrap();
        let parts = Arc::new(dest_dir.make_folder(b".penstock/stage/parts").unwrap());
        for key in [&b"g0/x"[..], b"real/link/x", b"g0/deep/x"] {
            let file = OwnedFile::lock(&parts, "t").unwrap();
            let error = dest_dir.adopt(&file, key, OURS).unwrap_err();
            assert_eq!(error.code(), "key");
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        assert_eq!(dest_dir.state(b"g0/x").unwrap(), None);
    }

    #[test]
    fn dest_dir_replaces_a_link_under_a_final_name_and_leaves_its_target() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let victim = outside.path().join("victim");
        std::fs::write(&victim, "kept").unwrap();
        symlink(&victim, inside.path().join("x")).unwrap();
        let dest_dir = DestDir::open(inside.path()).unwrap();
        let parts = Arc::new(dest_dir.make_folder(b"p").unwrap());
        let file = OwnedFile::lock(&parts, "t").unwrap();
        assert_eq!(dest_dir.in_place_of(b"x").unwrap(), Some("a symbolic link"));
        assert_eq!(dest_dir.adopt(&file, b"x", Replace::Nothing).unwrap_err().code(), "precondition");
        assert!(inside.path().join("x").is_symlink());
        dest_dir.adopt(&file, b"x", OURS).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
        assert_eq!(dest_dir.state(b"x").unwrap().unwrap().size, 0);
    }

    #[test]
    fn dest_dir_names_what_is_in_the_way() {
        let inside = tempfile::tempdir().unwrap();
        std::fs::write(inside.path().join("file"), "").unwrap();
        std::fs::create_dir_all(inside.path().join("folder/x")).unwrap();
        let dest_dir = DestDir::open(inside.path()).unwrap();
        let parts = Arc::new(dest_dir.make_folder(b"p").unwrap());
        let file = OwnedFile::lock(&parts, "t").unwrap();
        assert!(dest_dir.adopt(&file, b"file/x", OURS).unwrap_err().to_string().contains("is not a folder"));
        assert!(dest_dir.adopt(&file, b"folder", OURS).unwrap_err().to_string().contains("a folder with this name"));
        assert_eq!(DestDir::open(&inside.path().join("file")).unwrap_err().code(), "config");
    }

    #[test]
    fn dest_dir_does_not_climb() {
        let inside = tempfile::tempdir().unwrap();
        let dest_dir = DestDir::open(&inside.path().join("dst")).unwrap();
        let parts = Arc::new(dest_dir.make_folder(b"p").unwrap());
        let file = OwnedFile::lock(&parts, "t").unwrap();
        for key in [&b"../t"[..], b"a/../../t", b"..", b".", b"a/..", b""] {
            assert_eq!(dest_dir.adopt(&file, key, OURS).unwrap_err().code(), "key");
        }
        assert_eq!(std::fs::read_dir(inside.path()).unwrap().count(), 1);
    }
}
