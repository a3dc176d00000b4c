// SPDX-License-Identifier: Apache-2.0
//! Source reader: reads one source at its pinned versions, within one memory budget.
//!
//! Owns what is the same wherever the bytes go: names, room in memory, the size that must be the listed one, and bytes
//! counted as they come. What becomes of them is the business of `object`, `parts` and `send`.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_codec::Codec;
use penstock_store::{GetResult, Meta, ObjectRef};
use penstock_types::{ByteRange, Deadline, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::plan::PART_BYTES;
use crate::progress::Progress;
use crate::source::Source;
use penstock_dataset::manifest::Entry;

/// The unit in which memory is handed out; the semaphore counts in u32.
const MEMORY_UNIT: u64 = 64 << 10;

/// See the module.
pub(crate) struct SourceReader {
    pub source: Source,
    pub progress: Arc<Progress>,
    pub deadline: Deadline,
    memory: Arc<Semaphore>,
    units: u32,
}

impl SourceReader {
    /// Half of the budget of `memory` bytes holds what is in flight; the other half is for what is made of it.
    pub fn new(source: Source, memory: u64, progress: Arc<Progress>, deadline: Deadline) -> Self {
        let units = (memory / 2 / MEMORY_UNIT).clamp(1, u64::from(u32::MAX >> 4)) as u32;
        Self { source, progress, deadline, memory: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// All of the room.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.units) * MEMORY_UNIT
    }

    /// Waits for room for `bytes`; all of the room where they are more than there is.
    pub async fn room(&self, bytes: u64) -> Result<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(MEMORY_UNIT).clamp(1, u64::from(self.units)) as u32;
        self.memory.clone().acquire_many_owned(units).await.map_err(|_| Error::Interrupted)
    }

    pub fn place(&self, entry: &Entry) -> String {
        format!("{}{}", self.source.url, entry.key)
    }

    pub fn object_ref(&self, entry: &Entry) -> ObjectRef {
        ObjectRef { key: self.source.prefix.join(entry.key.as_bytes()), version: entry.version.clone() }
    }

    pub fn has_ranges(&self) -> bool {
        self.source.store.capabilities().ranges
    }

    /// Current metadata of an object; an error if it is not the listed version.
    pub async fn head(&self, entry: &Entry) -> Result<Meta> {
        let meta = self.source.store.head(&self.object_ref(entry).key, self.deadline).await?;
        let (want, have) = (entry.version.as_ref(), meta.version.as_ref());
        match (want, have) {
            _ if meta.size != entry.size => Err(self.changed(entry, meta.size)),
            (Some(want), Some(have)) if want != have => {
                Err(Error::Changed { place: self.place(entry), want: want.to_string(), have: have.to_string() })
            }
            _ => Ok(meta),
        }
    }

    /// Asks for a range, or for all, of the object that was listed.
    pub async fn get(&self, entry: &Entry, range: ByteRange) -> Result<GetResult> {
        let got = self.source.store.get_ranges(&self.object_ref(entry), &[range], self.deadline).await?;
        match got.meta.size == entry.size {
            true => Ok(got),
            false => Err(self.changed(entry, got.meta.size)),
        }
    }

    /// The next bytes of an answer.
    pub async fn next(&self, got: &mut GetResult) -> Result<Option<Bytes>> {
        let chunk = got.chunks.try_next().await?;
        Ok(chunk.map(|chunk| {
            Progress::add(&self.progress.bytes_in, chunk.bytes.len() as u64);
            chunk.bytes
        }))
    }

    /// The bytes of a range that memory has room for.
    pub async fn range(&self, entry: &Entry, range: ByteRange) -> Result<Bytes> {
        let mut got = self.get(entry, range).await?;
        let mut bytes = Vec::with_capacity(range.len as usize);
        while let Some(chunk) = self.next(&mut got).await? {
            bytes.extend_from_slice(&chunk);
        }
        self.check_length(entry, range, bytes.len() as u64)?;
        Ok(bytes.into())
    }

    /// Errs where a range brought more or fewer bytes than it has.
    pub fn check_length(&self, entry: &Entry, range: ByteRange, came: u64) -> Result<()> {
        match came == range.len {
            true => Ok(()),
            false => {
                let problem = format!("gave {came} bytes at {} where {} were asked for", range.start, range.len);
                Err(Error::corrupt(self.place(entry), problem))
            }
        }
    }

    /// All bytes of an object in `bytes`, and what its store says of it: `Err` inside where bytes and checksum differ.
    pub async fn whole(&self, entry: &Entry, bytes: &mut Vec<u8>) -> Result<Result<Meta>> {
        let mut got = self.get(entry, ByteRange::WHOLE).await?;
        bytes.clear();
        // A size beyond a part comes only from a store without ranges, and may be a lie.
        bytes.reserve(entry.size.min(PART_BYTES) as usize);
        loop {
            match self.next(&mut got).await {
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(error @ Error::Corrupt { .. }) => return Ok(Err(error)),
                Err(error) => return Err(error),
            }
        }
        if bytes.len() as u64 != entry.size {
            let problem = format!("ended early (want {} bytes, have {} bytes)", entry.size, bytes.len());
            return Ok(Err(Error::corrupt(self.place(entry), problem)));
        }
        Ok(Ok(got.meta))
    }

    /// The object is not the one that was listed.
    pub fn changed(&self, entry: &Entry, size: u64) -> Error {
        Error::resized(self.place(entry), entry.size, size)
    }

    /// Whoever of several stores gave these bytes is left out.
    pub fn damaged(&self, entry: &Entry) {
        if let Some(mirrors) = &self.source.mirrors {
            mirrors.damaged(&self.object_ref(entry).key);
        }
    }
}

/// Maximum decompressed size of an object: the user's limit, or the highest ratio of its codec.
pub(crate) fn inflated_limit(codec: Codec, stored: u64, stated: Option<u64>) -> u64 {
    let ratio = match codec {
        Codec::None => 1,
        Codec::Gzip => 1_100,  // deflate cannot pass 1,032:1
        Codec::Lz4 => 300,     // LZ4 cannot pass 255:1
        Codec::Zstd => 50_000, // a frame of zeros at level 19 reaches about 30,000:1
    };
    stated.unwrap_or_else(|| stored.saturating_mul(ratio).saturating_add(1 << 20))
}
