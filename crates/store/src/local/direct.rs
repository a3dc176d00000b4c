// SPDX-License-Identifier: Apache-2.0
//! O_DIRECT reads through io_uring. One thread serves all reads of a folder.
//!
//! O_DIRECT reads suit data that does not fit into memory: they copy no bytes, evict no pages, and need no waiting
//! thread for each read. This module owns the ring and its thread. The kernel may provide no ring (too old, or
//! forbidden in a container), or the file system may not support O_DIRECT. In these cases, the caller reads through the
//! page cache.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use io_uring::{IoUring, opcode, types};
use penstock_types::{Error, Result};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::oneshot;

use crate::{Buffer, BufferPool};

/// Alignment of offsets, lengths and memory, in bytes. No current disk requires a larger alignment.
const ALIGN: u64 = 4096;

/// Number of bytes per kernel request. A range is read with many concurrent requests.
const PIECE: u64 = 512 << 10;

/// Maximum number of requests in flight in the kernel.
const DEPTH: usize = 64;

/// User data of the ring entry that wakes the thread.
const WAKE: u64 = u64::MAX;

/// Request to read one range. The ring's thread keeps this value alive until the kernel no longer accesses its memory,
/// even if the caller no longer waits for the result.
struct Ask {
    file: Arc<OwnedFd>,
    /// Aligned start offset. `len` is aligned too, so the range may extend beyond the end of the file.
    start: u64,
    len: u64,
    /// Number of bytes that must be read. If fewer bytes are read, the request fails.
    need: u64,
    buffer: Buffer,
    reply: oneshot::Sender<io::Result<Buffer>>,
}

/// Handle of a ring's thread.
#[derive(Debug)]
struct Ring {
    asks: Option<Sender<Ask>>,
    wake: Arc<OwnedFd>,
}

impl Ring {
    fn start() -> io::Result<Self> {
        let ring = IoUring::new(2 * DEPTH as u32)?;
        // SAFETY: the call accesses no memory of this process.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just created and is not shared.
        let wake = Arc::new(unsafe { OwnedFd::from_raw_fd(wake) });
        let (asks, inbox) = mpsc::channel();
        let driver = Driver { ring, inbox, wake: wake.clone(), asks: Vec::new(), queue: VecDeque::new(), in_flight: 0 };
        std::thread::Builder::new().name("penstock-uring".to_owned()).spawn(move || driver.run())?;
        Ok(Self { asks: Some(asks), wake })
    }

    fn send(&self, ask: Ask) {
        // If the thread has ended, the request is dropped, and its caller receives an error.
        let _ = self.asks.as_ref().map(|asks| asks.send(ask));
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.asks = None;
        // Wake the thread. It finds the channel closed, and ends as soon as the kernel no longer accesses its memory.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A request of which some pieces are still in the queue or in the kernel.
struct Active {
    ask: Ask,
    pieces_left: u64,
    error: Option<io::Error>,
}

/// State of the ring's thread.
struct Driver {
    ring: IoUring,
    inbox: Receiver<Ask>,
    wake: Arc<OwnedFd>,
    /// Active requests by number. The number of a completed request is used again.
    asks: Vec<Option<Active>>,
    /// Pieces to submit, as (request number, piece index).
    queue: VecDeque<(usize, u64)>,
    in_flight: usize,
}

impl Driver {
    fn run(mut self) {
        let (mut is_watching, mut is_open) = (false, true);
        while is_open || self.in_flight > 0 || !self.queue.is_empty() {
            while is_open {
                match self.inbox.try_recv() {
                    Ok(ask) => self.take(ask),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => is_open = false,
                }
            }
            if is_open && !is_watching {
                let watch = opcode::PollAdd::new(types::Fd(self.wake.as_raw_fd()), libc::POLLIN as u32).build();
                let watch = watch.user_data(WAKE);
                // SAFETY: the entry refers to no memory, and its descriptor lives as long as the ring.
                is_watching = unsafe { self.ring.submission().push(&watch) }.is_ok();
            }
            self.submit();
            if !is_open && self.in_flight == 0 {
                continue;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)) => {}
                Err(_) => {
                    // The ring has failed. Returning closes the channels, so the callers receive an error. Leak the
                    // buffers, because the kernel may still write to them.
                    self.asks.into_iter().flatten().for_each(|active| std::mem::forget(active.ask.buffer));
                    return;
                }
            }
            let done: Vec<(u64, i32)> =
                self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
            for (number, result) in done {
                if number == WAKE {
                    is_watching = false;
                    // Reset the wake-up counter with a non-blocking read. The requests themselves are in `inbox`.
                    let _ = rustix::io::read(&self.wake, &mut [0; 8]);
                } else {
                    self.in_flight -= 1;
                    self.ended((number >> 32) as usize, number & u64::from(u32::MAX), result);
                }
            }
        }
    }

    fn take(&mut self, ask: Ask) {
        let pieces = ask.len.div_ceil(PIECE);
        let active = Some(Active { ask, pieces_left: pieces, error: None });
        let number = match self.asks.iter().position(Option::is_none) {
            Some(free) => {
                self.asks[free] = active;
                free
            }
            None => {
                self.asks.push(active);
                self.asks.len() - 1
            }
        };
        self.queue.extend((0..pieces).map(|piece| (number, piece)));
    }

    /// Submits pieces to the kernel until `DEPTH` pieces are in flight.
    fn submit(&mut self) {
        while self.in_flight < DEPTH {
            let Some((number, piece)) = self.queue.pop_front() else { return };
            let Some(Active { ask, .. }) = &self.asks[number] else { continue };
            let at = piece * PIECE;
            let len = PIECE.min(ask.len - at) as u32;
            // SAFETY: the result is inside the buffer, which is at least as long as the request.
            let into = unsafe { ask.buffer.start().as_ptr().add(at as usize) };
            let read = opcode::Read::new(types::Fd(ask.file.as_raw_fd()), into, len).offset(ask.start + at).build();
            // SAFETY: the request keeps the file and the memory alive until this entry has completed. Nothing else
            // accesses the memory.
            if unsafe { self.ring.submission().push(&read.user_data((number as u64) << 32 | piece)) }.is_err() {
                self.queue.push_front((number, piece));
                return;
            }
            self.in_flight += 1;
        }
    }

    fn ended(&mut self, number: usize, piece: u64, result: i32) {
        let Some(active) = &mut self.asks[number] else { return };
        let want = PIECE.min(active.ask.need.saturating_sub(piece * PIECE));
        if result < 0 {
            active.error = Some(io::Error::from_raw_os_error(-result));
        } else if (result as u64) < want {
            active.error = Some(io::ErrorKind::UnexpectedEof.into());
        }
        active.pieces_left -= 1;
        if active.pieces_left > 0 {
            return;
        }
        if let Some(Active { ask, error, .. }) = self.asks[number].take() {
            // Sending fails if the caller no longer waits. The result is then dropped.
            let _ = ask.reply.send(error.map_or(Ok(ask.buffer), Err));
        }
    }
}

/// O_DIRECT reads of one folder. The first read starts the thread.
#[derive(Debug, Default)]
pub(super) struct Direct {
    ring: OnceLock<Option<Ring>>,
    /// True if a test read with O_DIRECT succeeded.
    works: OnceLock<bool>,
}

impl Direct {
    /// Returns true if this file can be read with O_DIRECT: the kernel provides a ring, and the file system supports
    /// the flag. The file then has the flag set and must not be used for other reads.
    pub fn takes(&self, file: &OwnedFd, buffers: &Arc<BufferPool>) -> bool {
        let set = |flags| rustix::fs::fcntl_setfl(file, flags);
        let Ok(flags) = rustix::fs::fcntl_getfl(file) else { return false };
        if self.ring.get_or_init(|| Ring::start().ok()).is_none() || set(flags | OFlags::DIRECT).is_err() {
            return false;
        }
        // Some file systems accept the flag, but reads then fail.
        let works = *self.works.get_or_init(|| {
            let Ok(mut buffer) = buffers.take(ALIGN as usize) else { return false };
            rustix::io::pread(file, &mut buffer.as_mut()[..ALIGN as usize], 0).is_ok()
        });
        if !works {
            let _ = set(flags);
        }
        works
    }

    /// Reads the bytes from `start` to `end` of a file with `size` bytes. [`Direct::takes`] must have accepted the
    /// file. Returns `UnexpectedEof` if the file is shorter than `size`.
    pub async fn read(
        &self,
        file: &Arc<OwnedFd>,
        start: u64,
        end: u64,
        size: u64,
        buffers: &Arc<BufferPool>,
    ) -> io::Result<Bytes> {
        let lost = || io::Error::from(io::ErrorKind::BrokenPipe);
        let ring = self.ring.get().and_then(Option::as_ref).ok_or_else(lost)?;
        let from = start / ALIGN * ALIGN;
        let len = end.next_multiple_of(ALIGN) - from;
        let buffer = buffers.take(len as usize)?;
        let (reply, answer) = oneshot::channel();
        ring.send(Ask { file: file.clone(), start: from, len, need: end.min(size) - from, buffer, reply });
        let buffer = answer.await.map_err(|_| lost())??;
        Ok(buffer.freeze((start - from) as usize..(end - from) as usize))
    }
}

/// Returns true if the byte at offset `at` is in the page cache. Copying it is then cheaper than reading the disk.
pub(super) fn is_cached(file: &OwnedFd, at: u64) -> bool {
    let mut byte = [0u8; 1];
    rustix::io::preadv2(file, &mut [io::IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT)
        .is_ok_and(|read| read == 1)
}

/// Method of reading local files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalReads {
    /// Threads that read through the page cache.
    Threads,
    /// O_DIRECT, if the kernel and the file system support it.
    Uring,
    /// O_DIRECT for datasets larger than half of the available memory. Such a dataset would evict its own pages from
    /// the page cache.
    Auto,
}

impl LocalReads {
    /// Chooses the method for a dataset of `bytes` bytes. `Auto` becomes `Threads` if the dataset is small enough that
    /// a second epoch can be read from memory.
    pub fn of(self, bytes: u64) -> Self {
        match self {
            Self::Auto if crate::memory_available().is_none_or(|free| bytes <= free / 2) => Self::Threads,
            other => other,
        }
    }
}

impl std::str::FromStr for LocalReads {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "pread" => Ok(Self::Threads),
            "uring" => Ok(Self::Uring),
            other => Err(Error::config("PENSTOCK_LOCAL_READS", format!("`{other}` is not one of auto, pread, uring"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[test]
    fn prop_ranges_past_the_page_cache_are_the_files_bytes() {
        // Use a directory on disk, because only new kernels support O_DIRECT on tmpfs.
        let dir = tempfile::tempdir_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")).unwrap();
        let bytes = noise(3 * PIECE as usize + 4321);
        std::fs::write(dir.path().join("a"), &bytes).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (direct, buffers) = (Direct::default(), Arc::new(BufferPool::default()));
        let file = Arc::new(OwnedFd::from(std::fs::File::open(dir.path().join("a")).unwrap()));
        assert!(direct.takes(&file, &buffers), "this machine gives a ring and its disk takes O_DIRECT");
        proptest!(|(start in 0..bytes.len(), len in 1usize..2_000_000)| {
            let end = (start + len).min(bytes.len());
            let read = direct.read(&file, start as u64, end as u64, bytes.len() as u64, &buffers);
            prop_assert_eq!(&runtime.block_on(read).unwrap()[..], &bytes[start..end]);
        });
        let size = bytes.len() as u64;
        let beyond = runtime.block_on(direct.read(&file, 0, size + 5000, size + 5000, &buffers)).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_ring_ends_with_its_folder_and_what_was_given_up() {
        let dir = tempfile::tempdir_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target")).unwrap();
        std::fs::write(dir.path().join("a"), noise(1 << 20)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (direct, buffers) = (Direct::default(), Arc::new(BufferPool::default()));
        let file = Arc::new(OwnedFd::from(std::fs::File::open(dir.path().join("a")).unwrap()));
        assert!(direct.takes(&file, &buffers));
        let wake = Arc::downgrade(&direct.ring.get().unwrap().as_ref().unwrap().wake);
        runtime.block_on(async {
            let read = direct.read(&file, 0, 1 << 20, 1 << 20, &buffers);
            futures::pin_mut!(read);
            let _ = futures::poll!(&mut read);
            // The read is dropped here while the kernel still processes it.
        });
        drop(direct);
        for _ in 0..1000 {
            if wake.upgrade().is_none() && Arc::strong_count(&file) == 1 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("the ring's thread has not ended in 5 s");
    }

    #[test]
    fn a_dataset_that_memory_holds_is_read_through_it() {
        assert_eq!(LocalReads::Auto.of(1 << 20), LocalReads::Threads);
        assert_eq!(LocalReads::Auto.of(u64::MAX), LocalReads::Auto);
        assert_eq!(LocalReads::Uring.of(1), LocalReads::Uring);
        assert!("odirect".parse::<LocalReads>().is_err());
    }
}
