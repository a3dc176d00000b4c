// SPDX-License-Identifier: Apache-2.0
//! Changes files that this process owns: truncates, renames or removes them, each time with a proof of ownership.
//!
//! No other module of the core makes these system calls: clippy.toml forbids them. docs/concepts/ownership.md lists the
//! callers and their proofs. The strongest proof is an [`OwnedFile`]: this process holds an exclusive lock (`flock`) on
//! an inode, and a name that only Penstock uses still refers to this inode. The kernel releases the lock when the
//! process dies. The lock alone is not sufficient: before this process locked the inode, another process may have
//! renamed the file to its final name. If the change is authorised by another lock or by the user, the caller states that
//! with a [`Proof`].

#![allow(clippy::disallowed_methods, reason = "the one module that may call them")]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

/// Maximum number of attempts to open or create a file, if other processes keep moving or locking it.
const MAX_ATTEMPTS: u32 = 16;
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

/// Reason why this process may change a file although it does not hold the lock of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// This process holds another lock that covers the file: the lock of its node, of its launch or of its folder.
    Covered,
    /// This process created the file with `O_EXCL` and a random name.
    Made,
    /// The user named the file or its folder: for example, as an output, by `--overwrite`, or as a folder to serve.
    Named,
}

/// Existing entries that a rename may replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// No entry: the rename fails with `EEXIST` if the new name exists.
    Nothing,
    /// Any entry except a folder.
    Existing(Proof),
}

/// A locked file in an open folder. Only this process may change the file until the value is dropped.
#[derive(Debug)]
pub struct OwnedFile {
    file: File,
    folder: Arc<OwnedFd>,
    name: String,
}

/// Opens the parent folder of a path. Returns the folder and the name of the file.
pub fn parent_of(path: &Path) -> Result<(Arc<OwnedFd>, String)> {
    let invalid = || Error::new(ErrorKind::InvalidInput, "the path does not end in a file name");
    let name = path.file_name().ok_or_else(invalid)?.to_string_lossy().into_owned();
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((Arc::new(File::open(parent)?.into()), name))
}

/// Opens or creates a file for reading and writing, with a name that only Penstock uses. Symbolic links are not
/// followed. Returns `PermissionDenied` unless the entry is a regular file with a single hard link.
pub fn open(folder: impl AsFd, name: &str, flags: OFlags) -> Result<File> {
    // Without NONBLOCK, opening a pipe with this name would wait for the other end of the pipe.
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(folder.as_fd(), name, flags, FILE_MODE);
    // FUSE clients such as MooseFS's refuse to create a file that another node creates at the same time, also without EXCL.
    let opened = match open(flags) {
        Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => open(flags - OFlags::CREATE),
        opened => opened,
    };
    let file: File = opened.map_err(not_ours)?.into();
    check(&rustix::fs::fstat(&file)?)?;
    Ok(file)
}

/// Converts the error that occurs if a name that only Penstock uses is a symbolic link.
fn not_ours(errno: Errno) -> Error {
    match errno {
        Errno::LOOP => {
            Error::new(ErrorKind::PermissionDenied, "the path is a symbolic link, which Penstock did not create")
        }
        errno => errno.into(),
    }
}

/// Removes a file. A file that does not exist is not an error.
pub fn remove_file(folder: impl AsFd, name: impl rustix::path::Arg, _proof: Proof) -> std::result::Result<(), Errno> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Removes an empty folder.
pub fn remove_folder(folder: impl AsFd, name: impl rustix::path::Arg, _proof: Proof) -> std::result::Result<(), Errno> {
    rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)
}

/// Truncates or extends a file.
pub fn set_len(file: &File, bytes: u64, _proof: Proof) -> Result<()> {
    file.set_len(bytes)
}

/// Renames a file. Replaces an existing entry only if `replace` allows it.
pub fn rename(
    from: impl AsFd,
    old: &str,
    to: impl AsFd,
    new: &[u8],
    replace: Replace,
) -> std::result::Result<(), Errno> {
    if matches!(replace, Replace::Existing(_)) {
        return rustix::fs::renameat(from, old, to, new);
    }
    match rustix::fs::renameat_with(from.as_fd(), old, to.as_fd(), new, RenameFlags::NOREPLACE) {
        // The file system does not support NOREPLACE. Creating a hard link also fails if the new name exists.
        Err(Errno::INVAL | Errno::NOSYS) => {
            match rustix::fs::linkat(from.as_fd(), old, to.as_fd(), new, AtFlags::empty()) {
                // On NFS, the response of the server may have been lost although the server created the link.
                Err(Errno::EXIST) if is_linked(&from, old, &to, new)? => {}
                other => other?,
            }
            rustix::fs::unlinkat(from, old, AtFlags::empty())
        }
        other => other,
    }
}

/// Removes the old name of a file if its process was killed between the two steps of a rename by hard link.
pub fn remove_linked(from: impl AsFd, old: &str, to: impl AsFd, new: &[u8]) -> std::result::Result<(), Errno> {
    match is_linked(&from, old, &to, new)? {
        true => rustix::fs::unlinkat(from, old, AtFlags::empty()),
        false => Ok(()),
    }
}

/// Returns true if both names refer to the same regular file and the file has no other names.
fn is_linked(from: impl AsFd, old: &str, to: impl AsFd, new: &[u8]) -> std::result::Result<bool, Errno> {
    let stat =
        |folder: &dyn AsFd, name: &[u8]| match rustix::fs::statat(folder.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            stat => stat.map(Some),
        };
    let (Some(one), Some(other)) = (stat(&from, old.as_bytes())?, stat(&to, new)?) else { return Ok(false) };
    Ok(is_same(&one, &other) && one.st_nlink == 2 && FileType::from_raw_mode(one.st_mode) == FileType::RegularFile)
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_ino, one.st_dev) == (other.st_ino, other.st_dev)
}

/// Returns an error for entries that Penstock does not create: pipes, devices, and files with several hard links.
fn check(stat: &Stat) -> Result<()> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            "the path is not a regular file, so Penstock did not create it",
        ));
    }
    if stat.st_nlink > 1 {
        let links = stat.st_nlink;
        let problem = format!("the file has {links} hard links, so Penstock did not create it and does not change it");
        return Err(Error::new(ErrorKind::PermissionDenied, problem));
    }
    Ok(())
}

impl OwnedFile {
    /// Opens or creates a file and locks it. Returns `WouldBlock` while another process holds the lock.
    ///
    /// Symbolic links are not followed. Returns `PermissionDenied` unless the entry is a regular file with a single
    /// hard link.
    pub fn lock(folder: &Arc<OwnedFd>, name: &str) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        Self::open(folder, name, flags, FlockOperation::NonBlockingLockExclusive)
    }

    /// Like [`OwnedFile::lock`], but waits for the lock. Use it only for names that are locked during one small write.
    pub fn lock_blocking(folder: &Arc<OwnedFd>, name: &str) -> Result<Self> {
        Self::open(folder, name, OFlags::RDWR | OFlags::CREATE, FlockOperation::LockExclusive)
    }

    /// Like [`OwnedFile::lock`], but returns `NotFound` if the file does not exist.
    pub fn lock_existing(folder: &Arc<OwnedFd>, name: &str) -> Result<Self> {
        Self::open(folder, name, OFlags::RDWR, FlockOperation::NonBlockingLockExclusive)
    }

    /// Creates and locks a file whose name is `prefix` plus 16 hexadecimal digits.
    pub fn create(folder: &Arc<OwnedFd>, prefix: &str) -> Result<Self> {
        for _ in 0..MAX_ATTEMPTS {
            let name = format!("{prefix}{:016x}", rand::random::<u64>());
            let file = match open(folder, &name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                other => other?,
            };
            // A cleanup removes the files of dead processes and takes the same lock. If the new file is already locked,
            // that cleanup is about to remove it. If the file system has no locks, the random name is sufficient proof.
            let is_swept = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
            let this = Self { file, folder: folder.clone(), name };
            if !is_swept && this.is_named()? {
                return Ok(this);
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "no temporary name is free"))
    }

    fn open(folder: &Arc<OwnedFd>, name: &str, flags: OFlags, lock: FlockOperation) -> Result<Self> {
        // Without NONBLOCK, opening a pipe with this name would wait for the other end of the pipe.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        for _ in 0..MAX_ATTEMPTS {
            let file: File = rustix::fs::openat(folder, name, flags, FILE_MODE).map_err(not_ours)?.into();
            rustix::fs::flock(&file, lock)?;
            let stat = rustix::fs::fstat(&file)?;
            let this = Self { file, folder: folder.clone(), name: name.to_owned() };
            match this.named()? {
                Some(named) if is_same(&stat, &named) => {
                    check(&stat)?;
                    return Ok(this);
                }
                // Between the open and the lock, the previous holder renamed or removed the file. Try again.
                _ => {}
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Returns the metadata of the file that currently has this name.
    fn named(&self) -> Result<Option<Stat>> {
        match rustix::fs::statat(&*self.folder, &*self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn is_named(&self) -> Result<bool> {
        let stat = rustix::fs::fstat(&self.file)?;
        Ok(self.named()?.is_some_and(|named| is_same(&stat, &named)))
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the file's name in its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Truncates the file to zero bytes.
    pub fn clear(&self) -> Result<()> {
        // Most files are new, and truncating an empty file would cost more than this check.
        match self.file.metadata()?.len() {
            0 => Ok(()),
            _ => self.file.set_len(0),
        }
    }

    /// Truncates or extends the file.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes)
    }

    /// Renames the file. The lock is still held afterwards.
    pub fn rename(&self, to: impl AsFd, name: &[u8], replace: Replace) -> std::result::Result<(), Errno> {
        match self.is_named() {
            Ok(true) => rename(&*self.folder, &self.name, to, name, replace),
            Ok(false) => Err(Errno::STALE),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }

    /// Removes the file, unless it was renamed or removed before. Ignores errors: a later cleanup removes the file.
    pub fn remove(&self) {
        if self.is_named().unwrap_or(false) {
            let _ = rustix::fs::unlinkat(&*self.folder, &*self.name, AtFlags::empty());
        }
    }

    /// Removes another file in the same folder, which only the holder of this lock uses.
    pub fn remove_companion(&self, name: &str) {
        let _ = remove_file(&*self.folder, name, Proof::Covered);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    const OURS: Replace = Replace::Existing(Proof::Covered);

    fn folder(path: &Path) -> Arc<OwnedFd> {
        Arc::new(File::open(path).unwrap().into())
    }

    #[test]
    fn owned_file_stays_locked_until_after_its_rename() {
        let dir = tempfile::tempdir().unwrap();
        let at = folder(dir.path());
        let first = OwnedFile::lock(&at, "a.tmp").unwrap();
        first.file().write_all(b"whole").unwrap();
        assert_eq!(OwnedFile::lock(&at, "a.tmp").unwrap_err().kind(), ErrorKind::WouldBlock);
        first.rename(&at, b"a", OURS).unwrap();
        // The name can now be used for another file, which does not affect the first one.
        let second = OwnedFile::lock(&at, "a.tmp").unwrap();
        second.clear().unwrap();
        first.remove();
        drop(first);
        assert_eq!(std::fs::read(dir.path().join("a")).unwrap(), b"whole");
        assert!(dir.path().join("a.tmp").exists());
        second.remove();
        assert!(!dir.path().join("a.tmp").exists());
    }

    #[test]
    fn owned_file_whose_name_another_file_took_is_neither_renamed_nor_removed() {
        let dir = tempfile::tempdir().unwrap();
        let at = folder(dir.path());
        let ours = OwnedFile::lock(&at, "a.tmp").unwrap();
        // Simulate another machine, which does not see this lock.
        std::fs::rename(dir.path().join("a.tmp"), dir.path().join("elsewhere")).unwrap();
        std::fs::write(dir.path().join("a.tmp"), "theirs").unwrap();
        assert_eq!(ours.rename(&at, b"a", OURS), Err(Errno::STALE));
        ours.remove();
        assert_eq!(std::fs::read(dir.path().join("a.tmp")).unwrap(), b"theirs");
    }

    #[test]
    fn owned_file_is_never_a_link_or_a_second_name_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = folder(dir.path());
        let theirs = dir.path().join("theirs");
        std::fs::write(&theirs, "kept").unwrap();
        symlink(&theirs, dir.path().join("soft.tmp")).unwrap();
        std::fs::hard_link(&theirs, dir.path().join("hard.tmp")).unwrap();
        rustix::fs::mkfifoat(&*at, "pipe.tmp", Mode::from_raw_mode(0o600)).unwrap();
        for name in ["soft.tmp", "hard.tmp", "pipe.tmp"] {
            assert_eq!(OwnedFile::lock(&at, name).unwrap_err().kind(), ErrorKind::PermissionDenied, "{name}");
            assert!(OwnedFile::lock_existing(&at, name).is_err(), "{name}");
        }
        assert_eq!(OwnedFile::lock_existing(&at, "absent").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(std::fs::read(&theirs).unwrap(), b"kept");
    }

    #[test]
    fn rename_replaces_nothing_unless_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let at = folder(dir.path());
        std::fs::write(dir.path().join("theirs"), "kept").unwrap();
        symlink("nowhere", dir.path().join("link")).unwrap();
        let ours = OwnedFile::create(&at, "t-").unwrap();
        for taken in [&b"theirs"[..], b"link"] {
            assert_eq!(ours.rename(&at, taken, Replace::Nothing), Err(Errno::EXIST));
        }
        assert_eq!(std::fs::read(dir.path().join("theirs")).unwrap(), b"kept");
        assert!(dir.path().join("link").is_symlink());
        ours.rename(&at, b"free", Replace::Nothing).unwrap();
        assert!(dir.path().join("free").exists() && !dir.path().join(ours.name()).exists());
    }

    #[test]
    fn remove_linked_takes_one_of_two_names_of_one_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = folder(dir.path());
        let path = |name: &str| dir.path().join(name);
        for name in ["final", "other", "theirs"] {
            std::fs::write(path(name), name).unwrap();
        }
        symlink("final", path("soft.tmp")).unwrap();
        std::fs::hard_link(path("theirs"), path("hard.tmp")).unwrap();
        for name in ["soft.tmp", "hard.tmp", "other", "absent"] {
            remove_linked(&*at, name, &*at, b"final").unwrap();
        }
        std::fs::hard_link(path("final"), path("a.tmp")).unwrap();
        remove_linked(&*at, "a.tmp", &*at, b"absent").unwrap();
        assert!(["a.tmp", "soft.tmp", "hard.tmp", "other"].iter().all(|name| path(name).symlink_metadata().is_ok()));
        remove_linked(&*at, "a.tmp", &*at, b"final").unwrap();
        assert!(!path("a.tmp").exists() && path("final").exists());
    }

    #[test]
    fn created_file_has_a_name_of_its_own_and_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let at = folder(dir.path());
        let (one, two) = (OwnedFile::create(&at, "t-").unwrap(), OwnedFile::create(&at, "t-").unwrap());
        assert_ne!(one.name(), two.name());
        assert_eq!(OwnedFile::lock_existing(&at, one.name()).unwrap_err().kind(), ErrorKind::WouldBlock);
        one.remove();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn owned_files_of_many_threads_are_published_whole() {
        let dir = tempfile::tempdir().unwrap();
        let at = folder(dir.path());
        let body = vec![7u8; 64 << 10];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let Ok(file) = OwnedFile::lock(&at, "a.tmp") else { continue };
                        file.clear().unwrap();
                        file.file().write_all(&body).unwrap();
                        file.rename(&at, b"a", OURS).unwrap();
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..400 {
                    if let Ok(read) = std::fs::read(dir.path().join("a")) {
                        assert_eq!(read.len(), body.len());
                    }
                }
            });
        });
    }
}
