// SPDX-License-Identifier: Apache-2.0
//! Write buffer: combines received bytes into large writes. The memory of the buffer is reused, and aligned for
//! O_DIRECT.

use std::io;

use penstock_store::{Buffer, BufferPool};

/// Buffer size in bytes. The size is small enough that a full buffer is still in the CPU cache when it is written, and
/// large enough that an object needs few write calls.
pub(crate) const WRITE_BUFFER_BYTES: usize = 512 << 10;
/// O_DIRECT requires memory, offsets and lengths to be multiples of the disk's block size. This alignment suffices for
/// every disk. The pool's memory has this alignment.
const ALIGNED: usize = 4096;

/// A buffer of at most [`WRITE_BUFFER_BYTES`] bytes. Dropping the buffer returns its memory to the process's pool.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    memory: Buffer,
    len: usize,
}

impl WriteBuffer {
    /// Creates an empty buffer.
    pub fn new() -> io::Result<Self> {
        Ok(Self { memory: BufferPool::of_process().take(WRITE_BUFFER_BYTES)?, len: 0 })
    }

    /// Copies bytes until the buffer is full; returns the number of bytes copied.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let took = bytes.len().min(WRITE_BUFFER_BYTES - self.len);
        self.memory[self.len..self.len + took].copy_from_slice(&bytes[..took]);
        self.len += took;
        took
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    pub fn is_full(&self) -> bool {
        self.len == WRITE_BUFFER_BYTES
    }

    /// True if the buffer can be written at `offset` with O_DIRECT.
    pub fn is_aligned(&self, offset: u64) -> bool {
        self.len.is_multiple_of(ALIGNED) && offset.is_multiple_of(ALIGNED as u64)
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_buffer_takes_what_it_has_room_for_and_is_aligned_when_full() {
        let mut buffer = WriteBuffer::new().unwrap();
        assert!(buffer.bytes().as_ptr().addr().is_multiple_of(ALIGNED));
        assert_eq!(buffer.fill(&[1; 1000]), 1000);
        assert!(!buffer.is_aligned(0) && !buffer.is_full());
        assert_eq!(buffer.fill(&vec![2; WRITE_BUFFER_BYTES]), WRITE_BUFFER_BYTES - 1000);
        assert_eq!(buffer.fill(&[3]), 0);
        assert_eq!((buffer.bytes()[999], buffer.bytes()[1000], buffer.bytes().len()), (1, 2, WRITE_BUFFER_BYTES));
        let after = WRITE_BUFFER_BYTES as u64;
        assert!(buffer.is_full() && buffer.is_aligned(after) && !buffer.is_aligned(after + 512));
        buffer.clear();
        assert!(buffer.bytes().is_empty());
    }
}
