// SPDX-License-Identifier: Apache-2.0
//! Memory straight from the system, and memory that is used again: fresh pages cost a fault each, which for bytes that are
//! only passed on is more than the bytes cost to copy.
//!
//! Owns mappings and who has them. What is read into them is the reader's business.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

const PAGE: usize = 4096;

/// From here on memory asks for huge pages, and begins at one: a page fault per 4 KiB would cost as much as the copy into it.
const HUGE: usize = 2 << 20;

/// Bytes of memory that are kept while they are unused: an object of 100 MB that is read whole is the next one's memory.
const KEPT: usize = 128 << 20;

/// Anonymous memory of whole pages, and at a huge page's beginning where it is as large as one. Zeroed without a pass
/// over it, given back at once when dropped.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// The one process that has it; 0 where forked children have it too.
    only_in: AtomicU32,
}

// SAFETY: the memory is owned by this value alone; who may touch which bytes is its holder's contract.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives no more than the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `bytes` of it, or what the system says.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // What a huge page's beginning may cost is given back below.
        let slack = if bytes >= HUGE { HUGE - PAGE } else { 0 };
        // SAFETY: a new anonymous private mapping touches no memory of ours.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes.saturating_add(slack),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = if slack > 0 { start.align_offset(HUGE) } else { 0 };
        // SAFETY: within the mapping just made: `before` is less than a huge page, of whole pages.
        let aligned = unsafe { start.byte_add(before) };
        for (at, rest) in [(start, before), (aligned.wrapping_byte_add(bytes), slack - before)] {
            if rest > 0 {
                // SAFETY: the two ends of the mapping just made, which nothing refers to.
                unsafe { libc::munmap(at, rest) };
            }
        }
        advise_huge(aligned.cast(), bytes);
        let start = NonNull::new(aligned.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes, only_in: AtomicU32::new(0) })
    }

    /// Its first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Forked children find zeros here from now on, or nothing at all where the system cannot do that (gVisor): no fork
    /// makes this process's pages copies on write.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: whole pages that this value owns; what they hold here does not change.
        let advise = |advice| unsafe { libc::madvise(self.start.as_ptr().cast(), self.bytes, advice) } == 0;
        if advise(libc::MADV_WIPEONFORK) {
            return Ok(());
        }
        self.only_in.store(std::process::id(), Ordering::Relaxed);
        if advise(libc::MADV_DONTFORK) { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let only_in = *self.only_in.get_mut();
        if only_in != 0 && only_in != std::process::id() {
            return; // what lies here now is another's
        }
        // SAFETY: this value owns exactly this mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Asks for huge pages wherever they fit into memory that was not touched yet.
pub fn advise_huge(start: *mut u8, bytes: usize) {
    let before = start.align_offset(PAGE);
    if bytes >= HUGE + before {
        let whole = (bytes - before) / PAGE * PAGE;
        // SAFETY: whole pages of memory that the caller owns; the call is advice and may be refused.
        unsafe { libc::madvise(start.wrapping_add(before).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

/// Buffers that come back when the holder of their bytes lets go. Belongs to one process: a forked child makes its own and
/// frees what it inherits, and waits for no lock that a thread of its parent may hold for ever.
#[derive(Debug)]
pub struct BufferPool {
    pid: u32,
    free: Mutex<Free>,
}

/// Memory that is unused now.
#[derive(Debug, Default)]
struct Free {
    /// The one used last is last: its bytes may be in the processor's cache still.
    kept: VecDeque<Mapping>,
    bytes: usize,
}

impl Default for BufferPool {
    fn default() -> Self {
        Self { pid: std::process::id(), free: Mutex::default() }
    }
}

impl BufferPool {
    /// Those of this process: one memory for all that reads in it, so that no more is kept where many read.
    pub fn of_process() -> Arc<Self> {
        static OURS: AtomicPtr<Arc<BufferPool>> = AtomicPtr::new(std::ptr::null_mut());
        Self::in_place(&OURS)
    }

    /// The pool in `place`, or a new one if there is none or it belongs to the parent process.
    fn in_place(place: &AtomicPtr<Arc<Self>>) -> Arc<Self> {
        let mut held = place.load(Ordering::Acquire);
        loop {
            // SAFETY: what was put there is never freed.
            if let Some(ours) = unsafe { held.as_ref() }.filter(|buffers| buffers.is_ours()) {
                return ours.clone();
            }
            let made = Arc::new(Self::default());
            let put = Box::into_raw(Box::new(made.clone()));
            match place.compare_exchange(held, put, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return made,
                Err(other) => {
                    // SAFETY: made just above, and not shared.
                    drop(unsafe { Box::from_raw(put) });
                    held = other;
                }
            }
        }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// False in a child that inherited it.
    fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// A buffer of at least `bytes`, which hold what they were last used for.
    pub fn take(self: &Arc<Self>, bytes: usize) -> io::Result<Buffer> {
        let found = self.is_ours().then(|| {
            let mut free = self.free();
            // Not one that is much larger: it would be missed where it fits.
            let fits = |memory: &Mapping| memory.bytes >= bytes && memory.bytes / 2 <= bytes.max(PAGE);
            let at = free.kept.iter().rposition(fits)?;
            let memory = free.kept.remove(at)?;
            free.bytes -= memory.bytes;
            Some(memory)
        });
        let memory = match found.flatten() {
            Some(memory) => memory,
            None => Mapping::new(rounded(bytes))?,
        };
        Ok(Buffer { memory: Some(memory), pool: self.clone() })
    }

    fn give(&self, memory: Mapping) {
        if !self.is_ours() || memory.bytes > KEPT {
            return;
        }
        let mut dropped = Vec::new();
        let mut free = self.free();
        free.bytes += memory.bytes;
        free.kept.push_back(memory);
        while free.bytes > KEPT {
            let Some(oldest) = free.kept.pop_front() else { break };
            free.bytes -= oldest.bytes;
            dropped.push(oldest);
        }
        // Unmapped when the lock is free again.
        drop(free);
    }
}

/// Up to a quarter more: what is nearly as large fits another time.
fn rounded(bytes: usize) -> usize {
    bytes.checked_next_multiple_of((bytes.max(1).checked_next_power_of_two().unwrap_or(8) / 8).max(1)).unwrap_or(bytes)
}

/// Memory of a pool, one holder's. Goes back to the pool when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    memory: Option<Mapping>,
    pool: Arc<BufferPool>,
}

impl Buffer {
    /// Its first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.memory.as_ref().map_or(NonNull::dangling(), Mapping::start)
    }

    fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, Mapping::bytes)
    }

    /// Some of its bytes, no longer written to.
    pub fn freeze(self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(self).slice(range)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is this long, zeroed when made, and this value's alone.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.bytes()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it has no other owner.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.bytes()) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_that_is_another_process_s_alone_is_left_to_it() {
        let ours = Mapping::new(PAGE).unwrap();
        ours.keep_from_children().unwrap();
        let start = ours.start().as_ptr();
        // SAFETY: just mapped.
        unsafe { start.write(7) };
        ours.only_in.store(std::process::id() + 1, Ordering::Relaxed);
        drop(ours);
        // SAFETY: still mapped, or this test ends here.
        assert_eq!(unsafe { start.read() }, 7);
        // SAFETY: it has no other owner.
        unsafe { libc::munmap(start.cast(), PAGE) };
    }

    #[test]
    fn memory_of_huge_pages_begins_at_one() {
        for bytes in [HUGE, HUGE + 1, 5 * HUGE - 9] {
            let memory = Mapping::new(bytes).unwrap();
            assert_eq!(memory.start().as_ptr() as usize % HUGE, 0);
            assert!(memory.bytes() >= bytes);
            // SAFETY: it has no other owner. Every byte is there, the mapping's ends are not.
            unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), memory.bytes()) }.fill(1);
        }
    }

    #[test]
    fn buffer_comes_back_when_its_last_bytes_are_let_go() {
        let pool = Arc::new(BufferPool::default());
        let mut buffer = pool.take(100_000).unwrap();
        let start = buffer.start();
        buffer[..5].copy_from_slice(b"bytes");
        let bytes = buffer.freeze(0..5);
        let part = bytes.slice(1..3);
        drop(bytes);
        assert_ne!(pool.take(100_000).unwrap().start(), start);
        assert_eq!(&part[..], b"yt");
        drop(part);
        assert_eq!(pool.take(99_000).unwrap().start(), start);
        assert!(pool.take(10_000).unwrap().bytes() < 20_000, "a large one is kept for what needs it");
    }

    #[test]
    fn pool_keeps_what_was_used_last_and_no_more_than_it_may() {
        let pool = Arc::new(BufferPool::default());
        let taken: Vec<Buffer> = (0..5).map(|_| pool.take(KEPT / 4).unwrap()).collect();
        let (first, last) = (taken[0].start(), taken[4].start());
        drop(taken);
        let kept: Vec<NonNull<u8>> = pool.free().kept.iter().map(Mapping::start).collect();
        assert!(kept.len() == 4 && !kept.contains(&first) && kept[3] == last);
        drop(pool.take(2 * KEPT).unwrap());
        let free = pool.free();
        assert_eq!((free.kept.len(), free.bytes), (4, KEPT));
    }

    #[test]
    fn forked_child_waits_for_no_lock_of_its_parent() {
        let inherited = Arc::new(BufferPool { pid: 0, free: Mutex::default() });
        let place = AtomicPtr::new(Box::into_raw(Box::new(inherited.clone())));
        let ours = BufferPool::in_place(&place);
        assert!(ours.is_ours() && Arc::ptr_eq(&ours, &BufferPool::in_place(&place)));
        assert!(Arc::ptr_eq(&BufferPool::of_process(), &BufferPool::of_process()));
        let (pool, (done, came)) = (inherited.clone(), std::sync::mpsc::channel());
        let held = inherited.free();
        std::thread::spawn(move || done.send(pool.take(100_000).map(drop)));
        assert!(came.recv_timeout(std::time::Duration::from_secs(20)).unwrap().is_ok());
        drop(held);
    }

    #[test]
    fn sizes_are_rounded_by_a_quarter_at_most() {
        for bytes in [0, 1, 4096, 100_000, 7 << 20, (8 << 20) + 1] {
            assert!(rounded(bytes) >= bytes && rounded(bytes) <= bytes + bytes / 4, "{bytes}");
        }
        assert_eq!(rounded(usize::MAX), usize::MAX);
    }
}
