// SPDX-License-Identifier: Apache-2.0
//! Cache of directory listings. A folder is read again only if its stamp has changed. A flat folder of 100,000 files is
//! therefore read once, not once for each page of a listing.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_types::{lock, unix_now};
use rustix::fs::{AtFlags, FileType, OFlags};

use crate::key_path::STATE;
use crate::object_metadata::Stamp;

/// Maximum number of cached names. If a folder would exceed it, the whole cache is cleared first.
const MAX_NAMES: usize = 2_000_000;

/// A folder that changed more recently than this is not cached. A second change within one tick of the file system's
/// clock would not change the folder's stamp.
const SETTLED: Duration = Duration::from_millis(100);

/// Cache of sorted names by folder. Names of folders end in `/`, so that the names sort in the same order as keys.
#[derive(Default)]
pub(crate) struct Directories {
    kept: Mutex<HashMap<String, (Stamp, Names)>>,
}

type Names = Arc<Vec<Box<str>>>;

impl Directories {
    /// Returns the sorted names in the folder `base`. Calls `open` to open the folder.
    pub(crate) fn names(
        &self,
        base: &str,
        open: impl FnOnce(&str, OFlags) -> rustix::io::Result<OwnedFd>,
    ) -> io::Result<Names> {
        let path = if base.is_empty() { "." } else { base };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let fd = match open(path, flags) {
            Ok(fd) => fd,
            // After the parent was read, the folder was removed or replaced, or its permissions changed.
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
        // S3 keys are UTF-8, so no request can refer to this file.
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
