// SPDX-License-Identifier: Apache-2.0
//! Chunks that several blocks use. The first block of a shuffle window that needs such a chunk reads it, and later
//! blocks reuse its stored bytes.
//!
//! A block claims its chunks before it is read. If the capacity is exceeded, the chunks with the oldest claims are
//! dropped first. If all chunks of a window fit in the capacity, none of them is dropped.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use bytes::Bytes;
use penstock_types::lock;
use tokio::sync::watch;

use super::chunked_arrays::Block;

/// Location of a chunk: index of its object in the listing, and offset in the object.
type ChunkId = (usize, u64);

/// How a block gets a stored chunk.
#[derive(Debug)]
pub(crate) enum Claim {
    /// The block reads the chunk. It publishes the chunk if other blocks use it, too.
    Read(Option<watch::Sender<Option<Bytes>>>),
    /// An earlier block reads the chunk. If that read fails, this block reads the chunk.
    Reuse(watch::Receiver<Option<Bytes>>),
}

/// Stored chunks that one block has read and another block may need soon.
#[derive(Debug, Default)]
pub(crate) struct SharedChunks {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// Maximum total size of the chunks in bytes; 0 disables reuse.
    capacity: u64,
    bytes: u64,
    /// For each chunk: its content or pending read, its size, and the number of its last claim.
    chunks: HashMap<ChunkId, (watch::Receiver<Option<Bytes>>, u64, u64)>,
    /// Chunks by the number of their last claim.
    by_claim: BTreeMap<u64, ChunkId>,
    next_claim: u64,
}

impl Held {
    fn touch(&mut self, id: ChunkId, before: Option<u64>) -> u64 {
        if let Some(before) = before {
            self.by_claim.remove(&before);
        }
        self.next_claim += 1;
        self.by_claim.insert(self.next_claim, id);
        self.next_claim
    }
}

impl SharedChunks {
    /// Sets the maximum total size of the stored chunks, in bytes.
    pub fn set_capacity(&self, bytes: u64) {
        lock(&self.held).capacity = bytes;
    }

    /// Claims the stored chunks of a block, in the order of [`Block::stored`]. Returns `None` if reuse is disabled.
    pub fn claim(&self, block: &Block) -> Option<Vec<Claim>> {
        let mut held = lock(&self.held);
        if held.capacity == 0 {
            return None;
        }
        let mut claims = Vec::with_capacity(block.pieces.len());
        for piece in &block.pieces {
            let Some(stored) = &piece.stored else { continue };
            if !piece.is_shared() {
                claims.push(Claim::Read(None));
                continue;
            }
            let (id, len) = ((stored.object, stored.range.start), stored.range.len);
            let known = held.chunks.get(&id).map(|(content, _, claim)| (content.clone(), *claim));
            // If a read has failed, the next block that needs the chunk reads it again.
            let usable =
                known.as_ref().filter(|(content, _)| content.borrow().is_some() || content.has_changed().is_ok());
            if let Some((content, _)) = usable {
                claims.push(Claim::Reuse(content.clone()));
                let claim = held.touch(id, known.map(|(_, claim)| claim));
                if let Some(entry) = held.chunks.get_mut(&id) {
                    entry.2 = claim;
                }
                continue;
            }
            let (publish, content) = watch::channel(None);
            let claim = held.touch(id, known.map(|(_, claim)| claim));
            if held.chunks.insert(id, (content, len, claim)).is_none() {
                held.bytes += len;
            }
            claims.push(Claim::Read(Some(publish)));
        }
        while held.bytes > held.capacity {
            let Some((_, id)) = held.by_claim.pop_first() else { break };
            if let Some((_, len, _)) = held.chunks.remove(&id) {
                held.bytes -= len;
            }
        }
        Some(claims)
    }
}

#[cfg(test)]
mod tests {
    use penstock_types::ByteRange;

    use super::*;
    use crate::chunked_arrays::{Extent, Piece, Stored};

    fn block(chunks: &[u64]) -> Block {
        let piece = |&start: &u64| Piece {
            column: 0,
            at: [start as usize].into(),
            stored: Some(Stored { object: 0, range: ByteRange::new(start, 10), steps: None }),
            group: Some(1),
        };
        Block {
            layout: 0,
            extent: Extent::Rows(0..1),
            pieces: chunks.iter().map(piece).collect(),
            place: String::new(),
        }
    }

    fn reads(claims: &[Claim]) -> Vec<bool> {
        claims.iter().map(|claim| matches!(claim, Claim::Read(_))).collect()
    }

    #[test]
    fn a_chunk_is_reused_until_the_capacity_drops_it() {
        let shared = SharedChunks::default();
        assert!(shared.claim(&block(&[0])).is_none());
        shared.set_capacity(20);
        let first = shared.claim(&block(&[0, 10])).unwrap();
        assert_eq!(reads(&first), [true, true]);
        // The chunk at 10 is reused, so the chunk at 0 has the oldest claim, and the chunk at 20 displaces it.
        let second = shared.claim(&block(&[10, 20])).unwrap();
        assert_eq!(reads(&second), [false, true]);
        let third = shared.claim(&block(&[10, 0])).unwrap();
        assert_eq!(reads(&third), [false, true]);
    }

    #[test]
    fn a_failed_read_is_repeated() {
        let shared = SharedChunks::default();
        shared.set_capacity(100);
        drop(shared.claim(&block(&[0])).unwrap());
        let mut again = shared.claim(&block(&[0])).unwrap();
        assert_eq!(reads(&again), [true]);
        let Some(Claim::Read(Some(publish))) = again.pop() else { panic!("no read") };
        publish.send_replace(Some(Bytes::from_static(b"0123456789")));
        drop(publish);
        assert_eq!(reads(&shared.claim(&block(&[0])).unwrap()), [false]);
    }
}
