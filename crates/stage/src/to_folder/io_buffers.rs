// SPDX-License-Identifier: Apache-2.0
//! Memory that bytes pass through on their way from a connection to the disk: used again from object to object, since
//! fresh memory costs more to fault in than the bytes cost to copy, and aligned as writes past the page cache want it.

use std::sync::{Mutex, PoisonError};

/// Bytes of a piece: they are still in the processor's cache when they are written, and few calls write an object.
pub(crate) const IO_BUFFER_BYTES: usize = 512 << 10;
/// Bytes of one write through the page cache. A kernel that gets more at once takes larger pages for it: on a virtual
/// machine it may have given those back to its host, and touching them again costs ten times the copy (decision 0420).
pub(crate) const CACHED: usize = 64 << 10;
/// What memory, offsets and lengths of writes past the page cache are multiples of: no disk wants more.
const ALIGNED: usize = 4096;

/// The pieces that nobody uses now; there are no more than were ever in use at once.
#[derive(Debug, Default)]
pub(crate) struct IoBuffers(Mutex<Vec<IoBuffer>>);

impl IoBuffers {
    /// An empty piece.
    pub fn take(&self) -> IoBuffer {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_else(IoBuffer::new)
    }

    pub fn give(&self, mut piece: IoBuffer) {
        piece.clear();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
    }
}

/// Room for [`IO_BUFFER_BYTES`] bytes that begins at a multiple of [`ALIGNED`].
#[derive(Debug)]
pub(crate) struct IoBuffer {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
}

impl IoBuffer {
    fn new() -> Self {
        let memory = vec![0; IO_BUFFER_BYTES + ALIGNED];
        let begin = memory.as_ptr().align_offset(ALIGNED);
        // An offset that cannot be told is none: such a piece is not aligned, and is written through the page cache.
        Self { memory, begin: if begin < ALIGNED { begin } else { 0 }, len: 0 }
    }

    /// Takes as many of `bytes` as there is room for, and says how many.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let took = bytes.len().min(IO_BUFFER_BYTES - self.len);
        let at = self.begin + self.len;
        self.memory[at..at + took].copy_from_slice(&bytes[..took]);
        self.len += took;
        took
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + self.len]
    }

    pub fn is_full(&self) -> bool {
        self.len == IO_BUFFER_BYTES
    }

    /// Whether its bytes may be written past the page cache at `offset`.
    pub fn is_aligned(&self, offset: u64) -> bool {
        let begins = self.bytes().as_ptr().addr().is_multiple_of(ALIGNED);
        begins && self.len.is_multiple_of(ALIGNED) && offset.is_multiple_of(ALIGNED as u64)
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn piece_takes_what_it_has_room_for_and_is_aligned_when_full() {
        let pieces = IoBuffers::default();
        let mut piece = pieces.take();
        assert_eq!(piece.fill(&[1; 1000]), 1000);
        assert!(!piece.is_aligned(0) && !piece.is_full());
        assert_eq!(piece.fill(&vec![2; IO_BUFFER_BYTES]), IO_BUFFER_BYTES - 1000);
        assert_eq!(piece.fill(&[3]), 0);
        assert_eq!((piece.bytes()[999], piece.bytes()[1000], piece.bytes().len()), (1, 2, IO_BUFFER_BYTES));
        assert!(
            piece.is_full()
                && piece.is_aligned(IO_BUFFER_BYTES as u64)
                && !piece.is_aligned(IO_BUFFER_BYTES as u64 + 512)
        );
        pieces.give(piece);
        assert!(pieces.take().bytes().is_empty());
    }
}
