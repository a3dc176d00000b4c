// SPDX-License-Identifier: Apache-2.0
//! Pool of reusable buffers, whose memory is mapped directly from the kernel. Buffers are reused because each new page
//! costs a page fault, and these faults cost more than copying the bytes.
//!
//! This module owns the mappings and tracks which buffers are in use. Its callers decide what the buffers contain.

use std::collections::VecDeque;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

const PAGE: usize = 4096;

/// Mappings of at least this size are aligned for huge pages, and the kernel is advised to use huge pages for them.
/// With pages of 4 KiB, the page faults would cost as much as the copy.
const HUGE: usize = 2 << 20;

/// Maximum number of unused bytes that the pool retains. It is large enough that an object of 100 MB can reuse the
/// memory of the previous object.
const KEPT: usize = 128 << 20;

/// Anonymous memory of whole pages, zeroed by the kernel and unmapped when dropped. A mapping of at least one huge page
/// is aligned to a huge page.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// ID of the only process in which the memory is mapped. 0 if forked children also have the mapping.
    only_in: AtomicU32,
}

// SAFETY: only this value owns the memory, and the owner of this value controls access to the bytes.
unsafe impl Send for Mapping {}
// SAFETY: only this value owns the memory, and a shared reference exposes only the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps at least `bytes` bytes, or returns the error of the system.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // Extra space for the alignment. The unused part is unmapped below.
        let slack = if bytes >= HUGE { HUGE - PAGE } else { 0 };
        // SAFETY: a new anonymous private mapping touches no existing memory.
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
        // SAFETY: the result is inside the new mapping, because `before` is at most `slack`.
        let aligned = unsafe { start.byte_add(before) };
        for (at, rest) in [(start, before), (aligned.wrapping_byte_add(bytes), slack - before)] {
            if rest > 0 {
                // SAFETY: this unmaps whole pages at both ends of the new mapping. Nothing refers to these pages.
                unsafe { libc::munmap(at, rest) };
            }
        }
        advise_huge(aligned.cast(), bytes);
        let start = NonNull::new(aligned.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes, only_in: AtomicU32::new(0) })
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Hides the memory from forked children, so that a fork never makes this process's pages copy-on-write. The
    /// children see zeros or, if the system lacks `MADV_WIPEONFORK` (gVisor), no mapping.
    pub fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: this value owns these whole pages, and the call does not change their content in this process.
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
            return; // the child does not have the parent's mapping
        }
        // SAFETY: this value owns exactly this mapping, and nothing refers to the mapping any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Advises the kernel to use huge pages for the whole pages in a range of memory that has not been accessed.
pub fn advise_huge(start: *mut u8, bytes: usize) {
    let before = start.align_offset(PAGE);
    if bytes >= HUGE + before {
        let whole = (bytes - before) / PAGE * PAGE;
        // SAFETY: the range consists of whole pages that the caller owns. The call only gives advice to the kernel, so
        // its errors are ignored.
        unsafe { libc::madvise(start.wrapping_add(before).cast(), whole, libc::MADV_HUGEPAGE) };
    }
}

/// Pool of buffers. A dropped buffer returns to its pool. Each pool belongs to one process: a forked child creates a
/// new pool, so that it never waits for a lock that a thread of its parent holds. The child frees the buffers it
/// inherits.
#[derive(Debug)]
pub struct BufferPool {
    pid: u32,
    free: Mutex<Free>,
}

/// Unused buffers of a pool.
#[derive(Debug, Default)]
struct Free {
    /// Unused buffers in the order of their last use. The search starts at the last buffer, because its bytes may still
    /// be in the CPU cache.
    kept: VecDeque<Mapping>,
    bytes: usize,
}

impl Default for BufferPool {
    fn default() -> Self {
        Self { pid: std::process::id(), free: Mutex::default() }
    }
}

impl BufferPool {
    /// Returns the pool of this process. All readers share this pool, so that the retained memory does not grow with
    /// the number of readers.
    pub fn of_process() -> Arc<Self> {
        static OURS: AtomicPtr<Arc<BufferPool>> = AtomicPtr::new(std::ptr::null_mut());
        Self::in_place(&OURS)
    }

    /// Returns the pool in `place`. If `place` is empty or its pool belongs to the parent process, creates a new pool.
    fn in_place(place: &AtomicPtr<Arc<Self>>) -> Arc<Self> {
        let mut held = place.load(Ordering::Acquire);
        loop {
            // SAFETY: pools stored in `place` are never freed.
            if let Some(ours) = unsafe { held.as_ref() }.filter(|buffers| buffers.is_ours()) {
                return ours.clone();
            }
            let made = Arc::new(Self::default());
            let put = Box::into_raw(Box::new(made.clone()));
            match place.compare_exchange(held, put, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return made,
                Err(other) => {
                    // SAFETY: the box was created just above and is not shared.
                    drop(unsafe { Box::from_raw(put) });
                    held = other;
                }
            }
        }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns false in a forked child that inherited the pool.
    fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Returns a buffer of at least `bytes` bytes. Its content is arbitrary.
    pub fn take(self: &Arc<Self>, bytes: usize) -> io::Result<Buffer> {
        let found = self.is_ours().then(|| {
            let mut free = self.free();
            // Do not use a buffer of more than twice the size, because a larger request may need it.
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
        // Release the lock before the dropped buffers are unmapped.
        drop(free);
    }
}

/// Rounds up by at most a quarter, so that requests of similar sizes can reuse the same buffer.
fn rounded(bytes: usize) -> usize {
    bytes.checked_next_multiple_of((bytes.max(1).checked_next_power_of_two().unwrap_or(8) / 8).max(1)).unwrap_or(bytes)
}

/// Buffer from a pool. When dropped, it returns to the pool.
#[derive(Debug)]
pub struct Buffer {
    memory: Option<Mapping>,
    pool: Arc<BufferPool>,
}

impl Buffer {
    /// Returns the address of the first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.memory.as_ref().map_or(NonNull::dangling(), Mapping::start)
    }

    fn bytes(&self) -> usize {
        self.memory.as_ref().map_or(0, Mapping::bytes)
    }

    /// Returns a range of the buffer as read-only bytes.
    pub fn freeze(self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(self).slice(range)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has this length, was zeroed, and belongs only to this value.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.bytes()) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, was zeroed, and belongs only to this value, which is borrowed mutably.
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
        // SAFETY: this page was just mapped.
        unsafe { start.write(7) };
        ours.only_in.store(std::process::id() + 1, Ordering::Relaxed);
        drop(ours);
        // SAFETY: the page must still be mapped; if it is not, the test crashes as intended.
        assert_eq!(unsafe { start.read() }, 7);
        // SAFETY: nothing else uses this page.
        unsafe { libc::munmap(start.cast(), PAGE) };
    }

    #[test]
    fn memory_of_huge_pages_begins_at_one() {
        for bytes in [HUGE, HUGE + 1, 5 * HUGE - 9] {
            let memory = Mapping::new(bytes).unwrap();
            assert_eq!(memory.start().as_ptr() as usize % HUGE, 0);
            assert!(memory.bytes() >= bytes);
            // SAFETY: nothing else uses this memory, and the slice covers exactly the mapping.
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
