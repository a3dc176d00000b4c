// SPDX-License-Identifier: Apache-2.0
//! Source reader: reads the listed versions of a source's objects within one memory budget.
//!
//! Does the work that is the same for every destination: builds names, grants memory permits, checks sizes and digests,
//! reads damaged objects again, and counts bytes. `to_folder` and `to_store` write the bytes.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_store::{GetResult, Meta, ObjectRef, cheapest};
use penstock_types::{ByteRange, Deadline, Digest, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::digests::{StoredDigests, Verified};
use crate::opened_source::Source;
use crate::plan::PART_BYTES;
use crate::progress::Progress;
use penstock_dataset::manifest::Entry;

/// Unit in which memory is reserved. The semaphore counts in u32, so a count of bytes would overflow.
const MEMORY_UNIT: u64 = 64 << 10;

/// Maximum number of damaged reads of one object if the damaged bytes differ between the reads. Such damage comes from
/// the network, not from the store.
const MAX_DAMAGED_READS: u32 = 32;

/// Reads the objects of one source within a memory budget.
pub(crate) struct SourceReader {
    pub source: Source,
    pub progress: Arc<Progress>,
    pub deadline: Deadline,
    memory: Arc<Semaphore>,
    units: u32,
}

impl SourceReader {
    /// Creates a reader with a budget of `memory` bytes. Half of the budget holds data in flight; the other half is for
    /// decoded data.
    pub fn new(source: Source, memory: u64, progress: Arc<Progress>, deadline: Deadline) -> Self {
        let units = (memory / 2 / MEMORY_UNIT).clamp(1, u64::from(u32::MAX >> 4)) as u32;
        Self { source, progress, deadline, memory: Arc::new(Semaphore::new(units as usize)), units }
    }

    /// Total memory for data in flight, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        u64::from(self.units) * MEMORY_UNIT
    }

    /// Waits for a memory permit for `bytes`. A request above the budget waits for the whole budget.
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

    /// Returns the current metadata of an object. Returns an error if its size or version differs from the listing.
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

    /// Requests a range, or all bytes, of the listed object.
    pub async fn get(&self, entry: &Entry, range: ByteRange) -> Result<GetResult> {
        let got = self.source.store.get_ranges(&self.object_ref(entry), &[range], self.deadline).await?;
        match got.meta.size == entry.size {
            true => Ok(got),
            false => Err(self.changed(entry, got.meta.size)),
        }
    }

    /// Returns the next bytes of a response.
    pub async fn next(&self, got: &mut GetResult) -> Result<Option<Bytes>> {
        let chunk = got.chunks.try_next().await?;
        Ok(chunk.map(|chunk| {
            Progress::add(&self.progress.bytes_in, chunk.bytes.len() as u64);
            chunk.bytes
        }))
    }

    /// Reads a range that fits in memory.
    pub async fn range(&self, entry: &Entry, range: ByteRange) -> Result<Bytes> {
        let mut got = self.get(entry, range).await?;
        let mut bytes = Vec::with_capacity(range.len as usize);
        while let Some(chunk) = self.next(&mut got).await? {
            bytes.extend_from_slice(&chunk);
        }
        self.check_length(entry, range, bytes.len() as u64)?;
        Ok(bytes.into())
    }

    /// Returns an error if a ranged read returned more or fewer bytes than requested.
    pub fn check_length(&self, entry: &Entry, range: ByteRange, came: u64) -> Result<()> {
        match came == range.len {
            true => Ok(()),
            false => {
                let problem =
                    format!("returned {came} bytes from byte {} on (requested {} bytes)", range.start, range.len);
                Err(Error::corrupt(self.place(entry), problem))
            }
        }
    }

    /// Reads all bytes of an object into `bytes`, and returns the object's metadata. The inner result is `Err` if the
    /// bytes do not match the checksum.
    pub async fn whole(&self, entry: &Entry, bytes: &mut Vec<u8>) -> Result<Result<Meta>> {
        let mut got = self.get(entry, ByteRange::WHOLE).await?;
        bytes.clear();
        // An object above one part is read here only if its store does not support ranges. The listed size of the
        // object may then be wrong.
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

    /// Builds the error for an object whose size differs from the listing.
    pub fn changed(&self, entry: &Entry, size: u64) -> Error {
        Error::resized(self.place(entry), entry.size, size)
    }

    /// Compares the computed digests of stored bytes with the expected digests. Returns the expected digests that could
    /// be compared, without duplicates.
    pub fn check(&self, entry: &Entry, have: &[Digest], promised: &[Digest]) -> Result<Vec<Digest>> {
        let mut checked = Vec::new();
        for want in promised {
            match have.iter().find(|have| have.algorithm == want.algorithm) {
                Some(have) if have != want => {
                    let problem = format!("has the digest {have} (want {want})");
                    return Err(Error::corrupt(self.place(entry), problem));
                }
                Some(_) if !checked.contains(want) => checked.push(want.clone()),
                _ => {}
            }
        }
        Ok(checked)
    }

    /// Returns the verified digests of bytes that arrived in one read. The read itself has already checked the digest
    /// from the store. Returns an error if the bytes do not match a digest from the store or from a manifest.
    pub fn verified(&self, entry: &Entry, stored: &StoredDigests, meta: &Meta) -> Result<Verified> {
        let mut digests = stored.digests();
        let promised: Vec<Digest> = meta.digests.iter().chain(&entry.digests).cloned().collect();
        let mut checked = self.check(entry, &digests, &promised)?;
        if let Some(own) = cheapest(&meta.digests).filter(|own| !checked.contains(own)) {
            checked.push(own.clone());
        }
        digests.truncate(2); // CRC-32C and XXH3
        Ok(Verified { digests, checked, encoding: meta.encoding.clone() })
    }
}

/// Decides whether to read an object again after damaged bytes arrived.
pub(crate) struct DamageRetry<'a, S> {
    reader: &'a SourceReader,
    entry: &'a Entry,
    last: Option<S>,
    reads: u32,
}

impl<'a, S: PartialEq> DamageRetry<'a, S> {
    pub fn new(reader: &'a SourceReader, entry: &'a Entry) -> Self {
        Self { reader, entry, last: None, reads: 0 }
    }

    /// Records one damaged read; `seen` identifies the bytes. Returns an error if another read would not help. Another
    /// read would not help if the same bytes arrived twice, because the object itself is then damaged. The same holds
    /// if [`MAX_DAMAGED_READS`] reads were all damaged differently.
    pub fn again(&mut self, damage: Error, seen: S) -> Result<()> {
        self.reads += 1;
        // If there are mirrors, no longer read this object from the mirror that returned these bytes.
        if let Some(mirrors) = &self.reader.source.mirrors {
            mirrors.damaged(&self.reader.object_ref(self.entry).key);
        }
        let seen = Some(seen);
        if self.last == seen {
            return Err(damage);
        }
        if self.reads == MAX_DAMAGED_READS {
            let problem = format!("was damaged in {MAX_DAMAGED_READS} reads, each time differently");
            return Err(Error::corrupt(self.reader.place(self.entry), problem));
        }
        self.last = seen;
        Progress::add(&self.reader.progress.refetched, 1);
        Ok(())
    }
}
