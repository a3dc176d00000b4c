// SPDX-License-Identifier: Apache-2.0
//! Open-file-description locks on single bytes of a file. The kernel releases the locks when the process that holds
//! them dies. NFS supports these locks, and another process can test for a lock without taking it.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

/// Which locks of other processes a lock excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Excludes exclusive locks.
    Shared,
    /// Excludes all locks.
    Exclusive,
}

/// Tries to lock one byte without waiting. Returns false if another process holds a conflicting lock. If this file
/// already holds a lock on the byte, converts that lock in one step.
pub(crate) fn try_lock(file: &File, byte: u8, mode: Mode) -> Result<bool> {
    let kind = match mode {
        Mode::Shared => libc::F_RDLCK,
        Mode::Exclusive => libc::F_WRLCK,
    };
    let mut lock = lock_of(byte, kind);
    // SAFETY: fcntl reads the struct, which outlives the call, and the descriptor is open.
    let answer = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &mut lock) };
    if answer == 0 {
        return Ok(true);
    }
    let error = Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Releases the lock on one byte.
pub(crate) fn unlock(file: &File, byte: u8) -> Result<()> {
    let mut lock = lock_of(byte, libc::F_UNLCK);
    // SAFETY: fcntl reads the struct, which outlives the call, and the descriptor is open.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &mut lock) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// True if another open file has a lock on the byte.
pub(crate) fn is_locked(file: &File, byte: u8) -> Result<bool> {
    let mut lock = lock_of(byte, libc::F_WRLCK);
    // SAFETY: fcntl writes into the struct, which outlives the call, and the descriptor is open.
    let answer = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    if answer != 0 {
        return Err(Error::last_os_error());
    }
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn lock_of(byte: u8, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(byte),
        l_len: 1,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_excludes_others_is_visible_and_ends_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let open = || File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        let (one, two, three) = (open(), open(), open());
        assert!(try_lock(&one, 0, Mode::Exclusive).unwrap());
        assert!(!try_lock(&two, 0, Mode::Shared).unwrap());
        assert!(is_locked(&two, 0).unwrap() && !is_locked(&two, 1).unwrap());
        // After the conversion to a shared lock, another process can take a shared lock, but not an exclusive one.
        assert!(try_lock(&one, 0, Mode::Shared).unwrap() && try_lock(&two, 0, Mode::Shared).unwrap());
        assert!(!try_lock(&three, 0, Mode::Exclusive).unwrap());
        unlock(&two, 0).unwrap();
        drop(one);
        assert!(!is_locked(&two, 0).unwrap());
        assert!(try_lock(&three, 0, Mode::Exclusive).unwrap());
    }
}
