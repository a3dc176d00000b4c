// SPDX-License-Identifier: Apache-2.0
//! Resolves relative paths below an open folder. Neither a key nor a symbolic link can lead out of this folder.
//!
//! Callers choose how to treat symbolic links in a path ([`Links`]). This module opens and creates folders. It does not
//! read, write or remove files.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Maximum length of a file name on Linux file systems.
const NAME_MAX: usize = 255;

/// Flags for opening a folder that will be listed or synced.
pub const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Permissions of a new folder, before the umask.
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);

/// False after the first call showed that the kernel does not support openat2 (before Linux 5.6).
static HAS_OPENAT2: AtomicBool = AtomicBool::new(true);

/// Policy for symbolic links in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Follow a link if its target is below the folder. Other links cause the error `XDEV`.
    Beneath,
    /// Follow no links. A link causes the error `LOOP` or `NOTDIR`.
    Refused,
}

/// Policy for folders that do not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// Return the error `NOENT`.
    Fail,
    /// Create missing folders.
    Make,
    /// Create missing folders and sync their parents, so that the new folders survive a power failure.
    MakeDurably,
}

/// Error from opening a folder.
#[derive(Debug, Clone, Copy)]
pub struct Blocked {
    /// Error number of the system call.
    pub errno: Errno,
    /// Length in bytes of the path up to and including the name at which the error occurred.
    pub walked: usize,
    /// If the error is `LOOP` or `NOTDIR`: the type of the entry, which is not a folder.
    pub entry: Option<FileType>,
}

/// Returns the reason why `key` cannot be a path below a folder. Returns `None` if it can.
pub fn refusal(key: &[u8]) -> Option<&'static str> {
    if key.is_empty() {
        return Some("the key is empty");
    }
    key.split(|&byte| byte == b'/').find_map(|name| match name {
        b"" if key.starts_with(b"/") => Some("the key begins with `/`"),
        b"" => Some("the key has an empty component"),
        b"." | b".." => Some("the key has a `.` or `..` component"),
        name if name.contains(&0) => Some("the key contains a NUL byte"),
        name if name.len() > NAME_MAX => Some("the key has a component of more than 255 bytes"),
        _ => None,
    })
}

/// Splits a path into its folder (possibly empty) and its last name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(cut) => (&path[..cut], &path[cut + 1..]),
        None => (b"", path),
    }
}

/// Opens `path` below `root`. The path is `.`, or relative with names that [`refusal`] accepts. Links are followed if
/// their target is below `root`.
pub fn open_beneath(root: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let text = CString::new(path).map_err(|_| Errno::INVAL)?;
    if HAS_OPENAT2.load(Ordering::Relaxed) {
        // EAGAIN means that another process renamed something during the lookup. After 16 attempts, return the error.
        for _ in 0..16 {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            match rustix::fs::openat2(&root, &text, flags | OFlags::CLOEXEC, mode, resolve) {
                Err(Errno::AGAIN) => {}
                Err(Errno::NOSYS) => {
                    HAS_OPENAT2.store(false, Ordering::Relaxed);
                    return open_by_names(root, path, flags, mode);
                }
                // Some sandboxes forbid openat2 with this error. If the file itself is inaccessible, the fallback
                // returns the same error.
                Err(Errno::PERM) => return open_by_names(root, path, flags, mode),
                result => return result,
            }
        }
        return Err(Errno::AGAIN);
    }
    open_by_names(root, path, flags, mode)
}

/// Like [`open_beneath`], but without openat2. Opens one name of the path after another, and follows no symbolic links.
fn open_by_names(root: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let mut at = rustix::fs::openat(&root, c".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
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

/// Opens the folder `path` below `root`, one name after another. An empty path opens `root` itself. Returns `XDEV` for
/// the names `.` and `..`.
pub fn open_folder(root: impl AsFd, path: &[u8], links: Links, missing: Missing) -> Result<OwnedFd, Blocked> {
    let open = |at: &OwnedFd, walked: &[u8], name: &[u8]| match links {
        // Resolve the path from the root each time, because a link may lead to another folder below the root.
        Links::Beneath => open_beneath(&root, walked, FOLDER, Mode::empty()),
        Links::Refused => rustix::fs::openat(at, name, FOLDER | OFlags::NOFOLLOW, Mode::empty()),
    };
    let mut at = rustix::fs::openat(&root, c".", FOLDER, Mode::empty()).map_err(|errno| Blocked {
        errno,
        walked: 0,
        entry: None,
    })?;
    let mut walked = 0;
    for name in path.split(|&byte| byte == b'/') {
        walked += name.len() + usize::from(walked > 0);
        if name.is_empty() {
            continue;
        }
        let below = match open(&at, &path[..walked], name) {
            _ if matches!(name, b"." | b"..") => Err(Errno::XDEV),
            Err(Errno::NOENT) if missing != Missing::Fail => {
                make(&at, name, missing).and_then(|()| open(&at, &path[..walked], name))
            }
            result => result,
        };
        at = below.map_err(|errno| {
            let stat = || rustix::fs::statat(&at, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            let is_other = matches!(errno, Errno::LOOP | Errno::NOTDIR);
            let entry = is_other.then(stat).flatten().map(|stat| FileType::from_raw_mode(stat.st_mode));
            Blocked { errno, walked, entry }
        })?;
    }
    Ok(at)
}

fn make(at: &OwnedFd, name: &[u8], missing: Missing) -> Result<(), Errno> {
    match rustix::fs::mkdirat(at, name, FOLDER_MODE) {
        Ok(()) if missing == Missing::MakeDurably => rustix::fs::fsync(at),
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn root(dir: &tempfile::TempDir) -> OwnedFd {
        rustix::fs::open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn refusal_of_keys_that_no_folder_holds_says_why() {
        for key in [&b""[..], b"/a", b"a//b", b"a/", b"..", b"a/../b", b"./a", b"a\0b", &[b'n'; 256]] {
            assert!(refusal(key).is_some(), "{key:?}");
        }
        for key in [&b"a"[..], b"a/b", b"..a/b..", b"...", b"a b+c%20", b"\xff", &[b'n'; 255]] {
            assert!(refusal(key).is_none(), "{key:?}");
        }
    }

    #[test]
    fn open_by_names_follows_no_link_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/file"), b"x").unwrap();
        symlink("/etc", dir.path().join("out")).unwrap();
        for open in [open_by_names, open_beneath] {
            assert!(open(root(&dir), b"a/file", OFlags::RDONLY, Mode::empty()).is_ok());
            assert!(open(root(&dir), b"out/passwd", OFlags::RDONLY, Mode::empty()).is_err());
        }
    }

    #[test]
    fn open_folder_follows_links_beneath_the_root_only_where_asked() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("real/below")).unwrap();
        symlink("real", dir.path().join("inside")).unwrap();
        symlink("/etc", dir.path().join("outside")).unwrap();
        std::fs::write(dir.path().join("file"), b"x").unwrap();
        let open = |path: &[u8], links| open_folder(root(&dir), path, links, Missing::Make);
        for (path, links, errno, entry) in [
            (&b"inside/below"[..], Links::Refused, Errno::NOTDIR, Some(FileType::Symlink)),
            (b"outside/new", Links::Refused, Errno::NOTDIR, Some(FileType::Symlink)),
            (b"outside/new", Links::Beneath, Errno::XDEV, None),
            (b"file/new", Links::Refused, Errno::NOTDIR, Some(FileType::RegularFile)),
            (b"file/new", Links::Beneath, Errno::NOTDIR, Some(FileType::RegularFile)),
            (b"real/..", Links::Beneath, Errno::XDEV, None),
            (b"real/./below", Links::Refused, Errno::XDEV, None),
        ] {
            let blocked = open(path, links).unwrap_err();
            assert_eq!((blocked.errno, blocked.entry), (errno, entry), "{}", path.escape_ascii());
        }
        open(b"inside/below/new", Links::Beneath).unwrap();
        open(b"real/other/new", Links::Refused).unwrap();
        open(b"", Links::Refused).unwrap();
        assert!(dir.path().join("real/below/new").is_dir() && dir.path().join("real/other/new").is_dir());
        let blocked = open_folder(root(&dir), b"real/absent/x", Links::Refused, Missing::Fail).unwrap_err();
        assert_eq!((blocked.errno, blocked.walked), (Errno::NOENT, b"real/absent".len()));
    }
}
