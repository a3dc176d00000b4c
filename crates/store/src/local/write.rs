// SPDX-License-Identifier: Apache-2.0
//! Writes of local files: a temporary name, the bytes, fsync, the final name, fsync of the folder. A reader sees all or
//! nothing, also after a power cut.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use penstock_types::{Error, Key, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::Local;
use super::path::{meta, open_beneath};
use crate::owned::{self, OwnedFile, Proof, Replace};
use crate::{Meta, Precondition, PutOptions, checksum};

/// Prefix of temporary names, by which leftovers of a killed process are found.
const TEMPORARY: &str = ".penstock-tmp-";
/// Whoever calls `put` names the object that is replaced.
const NAMED: Replace = Replace::Existing(Proof::Named);

pub(super) fn put(store: &Local, key: &Key, parts: &[Bytes], options: &PutOptions) -> Result<Meta> {
    store.check_key(key)?;
    if options.encoding.is_some() {
        return Err(Error::Unsupported { what: "a Content-Encoding".to_owned(), by: "a local folder".to_owned() });
    }
    checksum::check_parts(options.checksum.as_ref(), parts, || store.place(key))?;
    let (dir, name) = parent(store, key)?;
    let dir = Arc::new(dir);
    let temporary = OwnedFile::create(&dir, TEMPORARY).map_err(|error| Error::from_io(store.place(key), &error))?;
    let file = temporary.file();
    let written = write(store, key, file, parts).and_then(|()| {
        rename(store, key, &dir, &temporary, &name, &options.precondition)?;
        rustix::fs::fsync(&dir).map_err(|errno| store.io(key, errno))
    });
    if let Err(error) = written {
        // Best effort: the first error is returned.
        temporary.remove();
        return Err(error);
    }
    let stat = rustix::fs::fstat(file).map_err(|errno| store.io(key, errno))?;
    Ok(meta(key.clone(), &stat))
}

fn write(store: &Local, key: &Key, file: &File, parts: &[Bytes]) -> Result<()> {
    for part in parts {
        let mut rest = &part[..];
        while !rest.is_empty() {
            match rustix::io::write(file, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC | Errno::DQUOT) => return Err(no_space(store, key, file, parts)),
                Err(errno) => return Err(store.io(key, errno)),
            }
        }
    }
    match rustix::fs::fsync(file) {
        Err(Errno::NOSPC | Errno::DQUOT) => Err(no_space(store, key, file, parts)),
        result => result.map_err(|errno| store.io(key, errno)),
    }
}

fn no_space(store: &Local, key: &Key, file: &File, parts: &[Bytes]) -> Error {
    let free = rustix::fs::fstatvfs(file).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    Error::NoSpace { place: store.place(key), need: parts.iter().map(|part| part.len() as u64).sum(), free }
}

/// Opens the folder of `key`, making the folders that are not there, and gives the last name.
fn parent(store: &Local, key: &Key) -> Result<(OwnedFd, Vec<u8>)> {
    // The root is the user's own choice, links and all; below it nothing leads out.
    std::fs::create_dir_all(&store.path).map_err(|error| Error::from_io(store.path.display().to_string(), &error))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut dir = rustix::fs::openat(store.open_root()?, c".", flags | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| store.io(key, errno))?;
    let mut names: Vec<&[u8]> = key.as_bytes().split(|&byte| byte == b'/').collect();
    let last = names.pop().unwrap_or_default().to_vec();
    let mut so_far = Vec::new();
    for name in names {
        so_far.extend_from_slice(name);
        // From the root each time: a link may lead to elsewhere in the folder, but not out of it.
        let open = || open_beneath(store.open_root()?.as_fd(), &so_far, flags, Mode::empty()).map_err(Step::Errno);
        let next = match open() {
            Err(Step::Errno(Errno::NOENT)) => match rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(0o777)) {
                Ok(()) => rustix::fs::fsync(&dir).map_err(Step::Errno).and_then(|()| open()),
                Err(Errno::EXIST) => open(),
                Err(errno) => Err(Step::Errno(errno)),
            },
            result => result,
        };
        dir = next.map_err(|step| match step {
            Step::Errno(Errno::NOTDIR) => store.refused(key, "a file is in the place of its folder"),
            Step::Errno(Errno::XDEV | Errno::LOOP) => store.refused(key, "a symbolic link in it leaves the folder"),
            Step::Errno(errno) => store.io(key, errno),
            Step::Error(error) => error,
        })?;
        so_far.push(b'/');
    }
    Ok((dir, last))
}

/// Why a folder on the way was not opened.
enum Step {
    Errno(Errno),
    Error(Error),
}

impl From<Error> for Step {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

fn rename(
    store: &Local,
    key: &Key,
    dir: &OwnedFd,
    temporary: &OwnedFile,
    name: &[u8],
    precondition: &Precondition,
) -> Result<()> {
    let as_error = |errno| match errno {
        Errno::ISDIR | Errno::NOTEMPTY => store.refused(key, "a folder is in its place"),
        Errno::NAMETOOLONG => store.refused(key, "a name in it is too long for this file system"),
        errno => store.io(key, errno),
    };
    let refuse = |reason: String| Error::Precondition { place: store.place(key), reason };
    match precondition {
        Precondition::None => temporary.rename(dir, name, NAMED).map_err(as_error),
        Precondition::Absent => temporary.rename(dir, name, Replace::Nothing).map_err(|errno| match errno {
            Errno::EXIST => refuse("an object of that key exists already".to_owned()),
            errno => as_error(errno),
        }),
        Precondition::Matches(want) => {
            rustix::fs::flock(dir, FlockOperation::LockExclusive).map_err(as_error)?;
            match store.standing(key)? {
                Some(have) if have == *want => temporary.rename(dir, name, NAMED).map_err(as_error),
                Some(have) => Err(refuse(format!("version {want} is no longer current, {have} is"))),
                None => Err(refuse(format!("version {want} is no longer there"))),
            }
        }
    }
}

pub(super) fn delete(store: &Local, key: &Key) -> Result<()> {
    store.check_key(key)?;
    let root = match store.open_root() {
        Ok(root) => root,
        Err(Error::NotFound { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let bytes = key.as_bytes();
    let (folder, name) = match bytes.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (&b"."[..], bytes),
    };
    let dir = match open_beneath(&root, folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(Errno::XDEV | Errno::LOOP) => return Err(store.refused(key, "a symbolic link in it leaves the folder")),
        Err(errno) => return Err(store.io(key, errno)),
    };
    match owned::remove_file(&dir, name, Proof::Named) {
        // A folder is not an object, so no object has that key.
        Ok(()) | Err(Errno::ISDIR | Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(store.io(key, errno)),
    }
}
