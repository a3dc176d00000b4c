// SPDX-License-Identifier: Apache-2.0
//! Lists a folder in the byte order of keys, one subfolder at a time. Memory holds only the names in the folders on the
//! path from the root to the current folder.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use futures::{Stream, StreamExt, TryStreamExt, stream};
use penstock_types::{Deadline, Error, Key, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::opened_file::{is_regular, meta};
use super::{Local, blocking};
use crate::Meta;
use crate::rooted::{FOLDER, open_beneath, refusal, split};

/// Maximum number of entries per batch from a blocking thread.
const BATCH: usize = 256;

struct Walk {
    store: Local,
    prefix: Key,
    after: Option<Key>,
    /// Open folders from the outermost to the current one. Each one has its remaining names in reverse order.
    folders: Vec<Folder>,
    began: bool,
}

struct Folder {
    /// Key of the folder, ending in `/`; empty for the root.
    key: Key,
    dir: OwnedFd,
    names: Vec<Name>,
}

/// Name of an entry. The names of folders end in `/`, so that names sort in the same order as keys.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Name(Vec<u8>);

pub(super) fn stream(
    store: Local,
    prefix: Key,
    after: Option<Key>,
    deadline: Deadline,
) -> impl Stream<Item = Result<Meta>> {
    let walk = Walk { store, prefix, after, folders: Vec::new(), began: false };
    stream::try_unfold(Some(walk), move |walk| async move {
        let Some(mut walk) = walk else { return Ok(None) };
        blocking("LIST", deadline, move || {
            let mut batch = Vec::with_capacity(BATCH);
            while batch.len() < BATCH {
                match walk.next()? {
                    Some(meta) => batch.push(meta),
                    None => return Ok(Some((batch, None))),
                }
            }
            Ok(Some((batch, Some(walk))))
        })
        .await
    })
    .map_ok(|batch: Vec<Meta>| stream::iter(batch).map(Ok))
    .try_flatten()
}

impl Walk {
    fn next(&mut self) -> Result<Option<Meta>> {
        if !self.began {
            self.began = true;
            self.begin()?;
        }
        while let Some(folder) = self.folders.last_mut() {
            let Some(Name(name)) = folder.names.pop() else {
                self.folders.pop();
                continue;
            };
            let key = folder.key.join(&name);
            if name.ends_with(b"/") {
                if self.may_hold(&key) {
                    self.enter(key, &name)?;
                }
            } else if key.as_bytes().starts_with(self.prefix.as_bytes())
                && self.after.as_ref().is_none_or(|after| key > *after)
                && let Some(meta) = self.object(key, &name)?
            {
                return Ok(Some(meta));
            }
        }
        Ok(None)
    }

    /// Opens the deepest folder that contains all keys with the prefix.
    fn begin(&mut self) -> Result<()> {
        let root = self.store.open_root()?;
        let prefix = self.prefix.as_bytes();
        let (folder, _) = split(prefix);
        if folder.is_empty() && !prefix.starts_with(b"/") {
            let dir =
                open_beneath(&root, b".", FOLDER, Mode::empty()).map_err(|e| self.store.io(&Key::default(), e))?;
            return self.push(Key::default(), dir);
        }
        let key = Key::new(folder.to_vec());
        if refusal(folder).is_some() {
            return Ok(()); // no file has such a key, so the listing is empty
        }
        match open_beneath(&root, folder, FOLDER, Mode::empty()) {
            Ok(dir) => self.push(key.join(b"/"), dir),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(Errno::XDEV | Errno::LOOP) => Err(self.store.leaves(&key)),
            Err(errno) => Err(self.store.io(&key, errno)),
        }
    }

    /// Returns true if a key below the folder may match the prefix and sort after the start key.
    fn may_hold(&self, folder: &Key) -> bool {
        let (key, prefix) = (folder.as_bytes(), self.prefix.as_bytes());
        (key.starts_with(prefix) || prefix.starts_with(key))
            && self.after.as_ref().is_none_or(|after| folder > after || after.as_bytes().starts_with(key))
    }

    fn enter(&mut self, key: Key, name: &[u8]) -> Result<()> {
        let parent = self.folders.last().ok_or_else(|| Error::bug("a folder without a parent"))?;
        let name = &name[..name.len() - 1];
        let flags = FOLDER | OFlags::NOFOLLOW;
        match rustix::fs::openat(&parent.dir, name, flags, Mode::empty()) {
            Ok(dir) => self.push(key, dir),
            Err(Errno::NOENT) => Ok(()), // the folder was removed after its parent was read
            Err(errno) => Err(self.store.io(&key, errno)),
        }
    }

    fn push(&mut self, key: Key, dir: OwnedFd) -> Result<()> {
        let io = |errno| self.store.io(&key, errno);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == FileType::Unknown {
                match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => kind = FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(io(errno)),
                }
            }
            let mut name = name.to_bytes().to_vec();
            match kind {
                FileType::Directory => name.push(b'/'),
                FileType::RegularFile | FileType::Symlink => {}
                _ => continue, // pipes, sockets and devices are not objects
            }
            names.push(Name(name));
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.folders.push(Folder { key, dir, names });
        Ok(())
    }

    /// Returns the metadata of a file. Returns `None` if the file no longer exists or is a dangling link.
    fn object(&self, key: Key, name: &[u8]) -> Result<Option<Meta>> {
        let parent = self.folders.last().ok_or_else(|| Error::bug("a file without a folder"))?;
        let text = CString::new(name).map_err(|_| Error::bug("a file name contains a NUL byte"))?;
        let stat = match rustix::fs::statat(&parent.dir, &text, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.store.io(&key, errno)),
        };
        if is_regular(&stat) {
            return Ok(Some(meta(key, &stat)));
        }
        match self.store.open_object(&key) {
            Ok(opened) => Ok(Some(opened.meta)),
            Err(Error::NotFound { .. }) => match rustix::fs::statat(&parent.dir, &text, AtFlags::empty()) {
                // A link to a folder is an error. Otherwise, the listing would silently omit the files below the link.
                Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                    let reason = "it is a symbolic link to a folder; use its target instead".to_owned();
                    Err(Error::System { place: self.store.place(&key), reason })
                }
                _ => Ok(None),
            },
            Err(error) => Err(error),
        }
    }
}
