// SPDX-License-Identifier: Apache-2.0
//! Atomic replacement of Penstock's own small files in a destination: records, manifests and lists of failures.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_store::owned::{OwnedFile, Proof, Replace};
use penstock_types::{Error, Result};

/// Atomically replaces one of Penstock's small files in an open folder: readers see either the old or the new content.
pub(crate) fn replace_own(folder: &Arc<OwnedFd>, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = begin_replace(folder, name)?;
    temporary.file().write_all(bytes)?;
    end_replace(&temporary, folder, name)
}

/// Like `replace_own`, but `fill` writes the content, and `io` converts disk errors.
pub(crate) fn replace_own_with(
    folder: &Arc<OwnedFd>,
    name: &str,
    io: impl Fn(&std::io::Error) -> Error,
    fill: impl FnOnce(&mut File) -> Result<()>,
) -> Result<()> {
    let temporary = begin_replace(folder, name).map_err(|error| io(&error))?;
    let mut file = temporary.file().try_clone().map_err(|error| io(&error))?;
    fill(&mut file)?;
    end_replace(&temporary, folder, name).map_err(|error| io(&error))
}

fn begin_replace(folder: &Arc<OwnedFd>, name: &str) -> std::io::Result<OwnedFile> {
    let temporary = OwnedFile::lock_blocking(folder, &format!("{name}.tmp"))?;
    temporary.clear()?;
    Ok(temporary)
}

fn end_replace(temporary: &OwnedFile, folder: &OwnedFd, name: &str) -> std::io::Result<()> {
    temporary.file().sync_data()?;
    Ok(temporary.rename(folder, name.as_bytes(), Replace::Existing(Proof::Covered))?)
}
