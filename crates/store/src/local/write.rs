// SPDX-License-Identifier: Apache-2.0
//! Writes local files. A write creates a temporary file, calls fsync, renames the file and calls fsync on the folder.
//! Readers therefore never see a partial object, even after a power failure.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::Bytes;
use penstock_types::{Error, Key, Result};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;

use super::Local;
use super::opened_file::meta;
use crate::owned::{self, OwnedFile, Proof, Replace};
use crate::rooted::{self, FOLDER, Links, Missing, split};
use crate::{Meta, Precondition, PutOptions, checksum};

/// Prefix of the names of temporary files. It identifies files that a killed process left behind.
const TEMPORARY: &str = ".penstock-tmp-";
/// Maximum number of bytes per write call. For larger writes, the kernel uses larger pages for the page cache. On a
/// virtual machine, the host may have reclaimed the memory of such pages. The first access to it then costs ten times
/// as much as the copy (decision 0420).
pub const WRITE_BYTES: usize = 64 << 10;
/// The write may replace an existing file, because the caller of `put` chose the key.
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
        rename(store, key, &dir, &temporary, name, &options.precondition)?;
        rustix::fs::fsync(&dir).map_err(|errno| store.io(key, errno))
    });
    if let Err(error) = written {
        // Ignore errors of this cleanup, because the error of the write is returned.
        temporary.remove();
        return Err(error);
    }
    let stat = rustix::fs::fstat(file).map_err(|errno| store.io(key, errno))?;
    Ok(meta(key.clone(), &stat))
}

fn write(store: &Local, key: &Key, file: &File, parts: &[Bytes]) -> Result<()> {
    for mut rest in parts.iter().flat_map(|part| part.chunks(WRITE_BYTES)) {
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

/// Opens the folder of `key`, creating missing folders. Returns the folder and the last name of the key.
fn parent<'key>(store: &Local, key: &'key Key) -> Result<(OwnedFd, &'key [u8])> {
    // Follow links in the path of the root, because the user chose this path. Below the root, links must not lead out
    // of the root.
    std::fs::create_dir_all(&store.path).map_err(|error| Error::from_io(store.path.display().to_string(), &error))?;
    let (folder, name) = split(key.as_bytes());
    let opened = rooted::open_folder(store.open_root()?, folder, Links::Beneath, Missing::MakeDurably);
    let folder = opened.map_err(|blocked| match blocked.errno {
        Errno::NOTDIR => store.refused(key, "a file exists where its folder should be"),
        Errno::XDEV | Errno::LOOP => store.refused(key, "a symbolic link in the path leads out of the folder"),
        errno => store.io(key, errno),
    })?;
    Ok((folder, name))
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
        Errno::ISDIR | Errno::NOTEMPTY => store.refused(key, "a folder with this name exists"),
        Errno::NAMETOOLONG => store.refused(key, "the key has a component that is too long for this file system"),
        errno => store.io(key, errno),
    };
    let refuse = |reason: String| Error::Precondition { place: store.place(key), reason };
    match precondition {
        Precondition::None => temporary.rename(dir, name, NAMED).map_err(as_error),
        Precondition::Absent => temporary.rename(dir, name, Replace::Nothing).map_err(|errno| match errno {
            Errno::EXIST => refuse("an object with this key already exists".to_owned()),
            errno => as_error(errno),
        }),
        Precondition::Matches(want) => {
            rustix::fs::flock(dir, FlockOperation::LockExclusive).map_err(as_error)?;
            match store.existing(key)? {
                Some(have) if have == *want => temporary.rename(dir, name, NAMED).map_err(as_error),
                Some(have) => Err(refuse(format!("version {want} is no longer current (now {have})"))),
                None => Err(refuse(format!("version {want} no longer exists"))),
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
    let (folder, name) = split(key.as_bytes());
    let folder = if folder.is_empty() { b"." } else { folder };
    let dir = match rooted::open_beneath(&root, folder, FOLDER, Mode::empty()) {
        Ok(dir) => dir,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
        Err(Errno::XDEV | Errno::LOOP) => {
            return Err(store.refused(key, "a symbolic link in the path leads out of the folder"));
        }
        Err(errno) => return Err(store.io(key, errno)),
    };
    match owned::remove_file(&dir, name, Proof::Named) {
        // A folder is not an object. Deleting its key is therefore not an error.
        Ok(()) | Err(Errno::ISDIR | Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(store.io(key, errno)),
    }
}
