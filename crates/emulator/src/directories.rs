// SPDX-License-Identifier: Apache-2.0
//! Cache of folders' names: a folder is read again only when its stamp has changed, so that a flat folder of 100,000 files is
//! read once, not once a page.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_types::{lock, unix_now};
use rustix::fs::{AtFlags, FileType, OFlags};

use crate::key_path::STATE;
use crate::object_metadata::Stamp;

/// Names kept in memory at most; beyond, the cache starts afresh.
const MAX_NAMES: usize = 2_000_000;

/// A folder changed so lately may change again within the same tick of its clock: not kept.
const SETTLED: Duration = Duration::from_millis(100);

/// Sorted names by folder; a folder's own name ends in `/`, which is how its keys sort.
#[derive(Default)]
pub(crate) struct Directories {
    kept: Mutex<HashMap<String, (Stamp, Names)>>,
}

type Names = Arc<Vec<Box<str>>>;

impl Directories {
    /// Names in the folder `base`; `open` opens it.
    pub(crate) fn names(
        &self,
        base: &str,
        open: impl FnOnce(&str, OFlags) -> rustix::io::Result<OwnedFd>,
    ) -> io::Result<Names> {
        let path = if base.is_empty() { "." } else { base };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let fd = match open(path, flags) {
            Ok(fd) => fd,
            // Removed, replaced or closed to us since its parent was read.
            Err(_) if !base.is_empty() => return Ok(Arc::default()),
            Err(error) => return Err(error.into()),
        };
        let stamp = Stamp::of(&rustix::fs::fstat(&fd)?);
        let mut kept = lock(&self.kept);
        if let Some((at, names)) = kept.get(base)
            && *at == stamp
        {
            return Ok(names.clone());
        }
        let names = Arc::new(read_names(&fd, base.is_empty())?);
        let age = unix_now().as_nanos() as i128 - i128::from(stamp.modified_ns);
        if age > SETTLED.as_nanos() as i128 {
            let held: usize = kept.values().map(|(_, names)| names.len() + 1).sum();
            if held + names.len() > MAX_NAMES {
                kept.clear();
            }
            kept.insert(base.to_owned(), (stamp, names.clone()));
        } else {
            kept.remove(base);
        }
        Ok(names)
    }
}

fn read_names(fd: &OwnedFd, is_root: bool) -> io::Result<Vec<Box<str>>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(fd)? {
        let entry = entry?;
        // S3 keys are UTF-8: a name that is not cannot be asked for.
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name == "." || name == ".." || (is_root && name == STATE) {
            continue;
        }
        let is_folder = match entry.file_type() {
            FileType::Directory => true,
            FileType::RegularFile | FileType::Symlink => false,
            FileType::Unknown => {
                let stat = rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW);
                stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
            }
            _ => continue,
        };
        names.push(if is_folder { format!("{name}/").into_boxed_str() } else { name.into() });
    }
    names.sort_unstable();
    Ok(names)
}
