// SPDX-License-Identifier: Apache-2.0
//! Downloads the parts of a large object and writes them at their offsets in a file.
//!
//! Bytes are hashed and written piece by piece as they arrive, while they are still in the CPU cache. The buffers are
//! reused. If a stage has enough objects to keep the store busy, an object of moderate size is read in one request. The
//! digests are then computed and verified during this read, so nothing is read twice. Otherwise, the parts of an object
//! arrive concurrently, in any order.

use std::ops::Range;
use std::sync::Arc;

use penstock_codec::checksum::Crc32c;
use penstock_store::{GetResult, Meta};
use penstock_types::{ByteRange, Error, Result};
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::digests::StoredDigests;
use crate::plan::{Item, MAX_STREAMED, PART_BYTES};
use crate::to_folder::context::DownloadContext;
use crate::to_folder::part_files::{Part, PartialDownload};
use crate::to_folder::write_buffer::{WRITE_BUFFER_BYTES, WriteBuffer};
use penstock_dataset::detect_codec::HEAD_BYTES;
use penstock_dataset::manifest::Entry;

/// Maximum number of parts of one object in flight. Other objects use the remaining requests.
const PARTS_AT_ONCE: usize = 64;
/// Memory reserved per read: one write buffer, and the same amount for the buffers of the connection.
const ROOM: u64 = 2 * WRITE_BUFFER_BYTES as u64;

/// Transfer of the parts of one large object.
#[derive(Clone)]
pub(crate) struct PartTransfer {
    context: Arc<DownloadContext>,
    item: Arc<Item>,
    entry: Arc<Entry>,
    partial: Arc<PartialDownload>,
}

/// An object that was downloaded in one read.
pub(crate) struct Arrived {
    pub stored: StoredDigests,
    /// First bytes of the object.
    pub head: Vec<u8>,
    /// Metadata of the object, or the error if the object's bytes do not match the store's checksum.
    pub meta: Result<Meta>,
}

pub(crate) fn range_of(entry: &Entry, parts: &Range<u64>) -> ByteRange {
    let start = parts.start * PART_BYTES;
    ByteRange::new(start, (parts.end * PART_BYTES).min(entry.size) - start)
}

impl PartTransfer {
    pub fn new(context: &Arc<DownloadContext>, item: &Item, entry: &Entry, partial: &Arc<PartialDownload>) -> Self {
        let (item, entry) = (Arc::new(item.clone()), Arc::new(entry.clone()));
        Self { context: context.clone(), item, entry, partial: partial.clone() }
    }

    /// True if the whole object should be read in one request. The decision depends on the missing parts. Without range
    /// support in the store, only a whole read is possible.
    pub fn comes_whole(&self, missing: &[u64]) -> bool {
        if !self.context.reader.has_ranges() {
            return !missing.is_empty();
        }
        let is_fresh = missing.len() as u64 == self.entry.size.div_ceil(PART_BYTES);
        self.context.is_busy && is_fresh && self.entry.size <= MAX_STREAMED
    }

    /// Fetches the missing parts concurrently.
    pub async fn parts(self, missing: Vec<u64>) -> Result<()> {
        // Dropping the `JoinSet` cancels the parts in flight.
        let mut flying: JoinSet<Result<()>> = JoinSet::new();
        let mut missing = missing.into_iter();
        loop {
            while flying.len() < PARTS_AT_ONCE {
                let Some(at) = missing.next() else { break };
                flying.spawn(self.clone().part(at));
            }
            match flying.join_next().await {
                None => return Ok(()),
                Some(Ok(result)) => result?,
                Some(Err(join)) => return Err(Error::bug(format!("a part's task ended: {join}"))),
            }
        }
    }

    async fn part(self, at: u64) -> Result<()> {
        let _room = self.context.reader.room(ROOM).await?;
        let range = range_of(&self.entry, &(at..at + 1));
        let mut got = self.context.reader.get(&self.entry, range).await?;
        self.land(&mut got, at..at + 1, None).await
    }

    /// Fetches all parts in one request.
    pub async fn whole(self) -> Result<Arrived> {
        let parts = 0..self.entry.size.div_ceil(PART_BYTES);
        let _room = self.context.reader.room(ROOM).await?;
        let mut got = self.context.reader.get(&self.entry, ByteRange::WHOLE).await?;
        let (mut stored, mut head) = (StoredDigests::new(&self.entry.digests), Vec::with_capacity(HEAD_BYTES));
        let meta = match self.land(&mut got, parts, Some((&mut stored, &mut head))).await {
            Ok(()) => Ok(got.meta),
            Err(error @ Error::Corrupt { .. }) if stored.seal.bytes == self.entry.size => Err(error),
            Err(error) => return Err(error),
        };
        Ok(Arrived { stored, head, meta })
    }

    /// Writes the bytes of a response that covers `parts` to the file. With `whole`, the response covers all parts. The
    /// method then also computes the digests and collects the first bytes.
    async fn land(
        &self,
        got: &mut GetResult,
        parts: Range<u64>,
        mut whole: Option<(&mut StoredDigests, &mut Vec<u8>)>,
    ) -> Result<()> {
        let reader = &self.context.reader;
        let range = range_of(&self.entry, &parts);
        let (mut part, mut crc) = (parts.start, Crc32c::new());
        let mut piece = WriteBuffer::new().map_err(|error| Error::from_io("memory", &error))?;
        let mut at = range.start;
        while let Some(bytes) = reader.next(got).await? {
            let mut bytes = &bytes[..];
            if at + bytes.len() as u64 > range.end(self.entry.size) {
                // The store returned too many bytes. Stop before they overwrite the next part.
                return reader.check_length(&self.entry, range, at + bytes.len() as u64 - range.start);
            }
            if let Some((_, head)) = &mut whole {
                head.extend_from_slice(&bytes[..bytes.len().min(HEAD_BYTES - head.len())]);
            }
            while !bytes.is_empty() {
                let end = range_of(&self.entry, &(part..part + 1)).end(self.entry.size);
                let took = piece.fill(&bytes[..bytes.len().min((end - at) as usize)]);
                match &mut whole {
                    Some((stored, _)) => stored.update_in_part(&bytes[..took], &mut crc),
                    None => crc.update(&bytes[..took]),
                }
                bytes = &bytes[took..];
                at += took as u64;
                if at == end {
                    if let Some((stored, _)) = &mut whole {
                        stored.seal.end_part(&crc);
                    }
                    piece = self.write(piece, at, Some(Part { at: part, crc: crc.value() })).await?;
                    (part, crc) = (part + 1, Crc32c::new());
                } else if piece.is_full() {
                    piece = self.write(piece, at, None).await?;
                }
            }
        }
        reader.check_length(&self.entry, range, at - range.start)
    }

    /// Writes a piece that ends at offset `end`. If the piece completes a part, also records this part.
    async fn write(&self, mut piece: WriteBuffer, end: u64, part: Option<Part>) -> Result<WriteBuffer> {
        let this = self.clone();
        blocking(move || {
            let written = this.partial.write(&piece, end - piece.bytes().len() as u64, part);
            written.map_err(|error| {
                this.context.dest_dir.io_error(this.item.target.as_bytes(), &error, this.entry.size)
            })?;
            piece.clear();
            Ok(piece)
        })
        .await
    }
}
