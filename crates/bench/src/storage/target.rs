// SPDX-License-Identifier: Apache-2.0
//! Checks the target path: a folder for a tree of files, or one file or block device that all threads share. If the
//! phase cannot run on the target, returns an error before any thread starts.

use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use penstock_store::owned::{self, Proof};
use penstock_types::{Error, Result, with_separators};
use rustix::fs::{Mode, OFlags};

use super::spec::{Phase, StorageSpec};
use super::tree::failed;

/// Kind of target path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A folder for a tree of files.
    Tree,
    /// A file or block device, with the number of bytes to use.
    Shared(u64),
}

/// Minimum alignment of O_DIRECT requests, in bytes.
const SECTOR: u64 = 512;

/// Examines the target path. Returns an error if the phase cannot run on it.
pub(super) fn find(spec: &StorageSpec, phase: Phase) -> Result<Target> {
    let place = spec.path.display().to_string();
    let facts = std::fs::metadata(&spec.path).map_err(|error| Error::from_io(&place, &error))?;
    if facts.is_dir() {
        if spec.direct && matches!(phase, Phase::Write | Phase::Read) {
            probe_direct(&spec.path, &place)?;
            aligned(spec, spec.file_size)?;
        }
        return Ok(Target::Tree);
    }
    let is_device = facts.file_type().is_block_device();
    if !is_device && !facts.is_file() {
        return Err(Error::config("PATH", format!("{place} is neither a folder, a file nor a block device")));
    }
    match phase {
        Phase::Read => {}
        Phase::Write if spec.write_shared => {}
        Phase::Write => {
            let what = if is_device { "a block device" } else { "a file" };
            let problem = format!(
                "{place} is {what}, and writing would destroy its content; to allow that, use --overwrite-device"
            );
            return Err(Error::config("--phases", problem));
        }
        phase => {
            let problem = format!("{} requires a folder, but {place} is not a folder", phase.name());
            return Err(Error::config("--phases", problem));
        }
    }
    let mut open = std::fs::OpenOptions::new();
    open.read(true).write(phase == Phase::Write);
    if is_device && phase == Phase::Write {
        // With `O_EXCL`, opening a block device that is mounted fails with `EBUSY`.
        open.custom_flags(libc::O_EXCL);
    }
    let file = open.open(&spec.path).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => {
            Error::Denied { place: place.clone(), reason: "the device is mounted or in use".to_owned() }
        }
        _ => Error::from_io(&place, &error),
    })?;
    let held = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|errno| failed(&place, errno))?;
    let size = if spec.file_size == 0 { held } else { spec.file_size };
    if held < size || held < spec.block_size {
        let want = with_separators(size.max(spec.block_size));
        return Err(Error::config(
            "PATH",
            format!("{place} has {} bytes, but {want} are needed", with_separators(held)),
        ));
    }
    // Use only whole blocks; ignore a partial block at the end.
    let size = if spec.file_size == 0 { size / spec.block_size * spec.block_size } else { size };
    if spec.direct {
        aligned(spec, size)?;
    }
    Ok(Target::Shared(size))
}

fn aligned(spec: &StorageSpec, size: u64) -> Result<()> {
    for (what, value) in [("--block-size", spec.block_size), ("--file-size", size)] {
        if !value.is_multiple_of(SECTOR) {
            let problem =
                format!("must be a multiple of {SECTOR} bytes with --direct (got {} bytes)", with_separators(value));
            return Err(Error::config(what, problem));
        }
    }
    Ok(())
}

/// Opens an unnamed file with O_DIRECT, to find out whether the file system supports O_DIRECT.
fn probe_direct(folder: &Path, place: &str) -> Result<()> {
    let direct = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let unnamed = rustix::fs::open(folder, direct | OFlags::TMPFILE, Mode::from_raw_mode(0o600));
    let probed = match unnamed {
        Ok(_) => return Ok(()),
        // The file system lacks unnamed files or O_DIRECT. Opening a named file shows which.
        Err(_) => {
            let here = std::fs::File::open(folder).map_err(|error| Error::from_io(place, &error))?;
            let name = format!(".penstock-bench-probe-{}", std::process::id());
            let flags = direct | OFlags::CREATE | OFlags::EXCL;
            let named = rustix::fs::openat(&here, &name, flags, Mode::from_raw_mode(0o600));
            if named.is_ok() {
                // If removing the file fails, an empty file remains, which does no harm.
                let _ = owned::remove_file(&here, &name, Proof::Made);
            }
            named
        }
    };
    match probed {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INVAL) => Err(Error::config(
            "--direct",
            format!("the file system of {place} does not support O_DIRECT; use --drop-caches without --direct"),
        )),
        Err(errno) => Err(failed(place, errno)),
    }
}
