// SPDX-License-Identifier: Apache-2.0
//! Node cache: a store wrapper that caches objects on a local disk, once for all processes of the node. Objects are
//! cached completely and as stored. If a run reads only ranges of an object, only these ranges are cached. Compressed
//! objects may be cached as transposed copies (`transcode`), which only callers that request them receive.
//!
//! Owns admission and eviction. The caller passes the order of the next reads ([`AccessPlan`]). A disk error makes
//! reads slower, but never loses a sample: if an entry may be invalid, the object is read from the store again.

mod directory;
mod entry;
mod eviction;
mod transcode;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use penstock_store::{BufferPool, Chunk, GetResult, Meta, ObjectRef, Store};
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Metrics, Result};

use directory::{EntryLock, Folder};
use entry::{Entry, Form, Name, Writer, disk_bytes};
use eviction::EvictionQueue;
pub use transcode::Transcode;
use transcode::Transcoder;

/// Part size for fetching a whole object when a read needs only ranges of the object. Several parts are fetched
/// concurrently. One connection to a public cloud reaches 50 to 90 MB/s (source: AWS and Azure performance guides).
const PART: u64 = 8 << 20;

/// Maximum number of concurrent parts per object.
const PARTS_IN_FLIGHT: usize = 8;

/// Polling interval while another task or process fetches an object: initial and maximum.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Data that an entry holds: an object, or a range of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Key of the object.
    pub key: Key,
    /// Range of the object; [`ByteRange::WHOLE`] for the whole object.
    pub range: ByteRange,
}

/// Range of an object that is cached in order to serve a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedRange {
    /// The cached range: the whole object, or a range that contains the read.
    pub range: ByteRange,
    /// Stored size of the object in bytes.
    pub size: u64,
}

impl CachedRange {
    fn bytes(&self) -> u64 {
        if self.range.is_whole() { self.size } else { self.range.len }
    }
}

/// Order of the next reads of a run, which eviction uses.
pub trait AccessPlan: Send + Sync + fmt::Debug {
    /// Current time, in the unit of `next_use`. All reads that are planned for earlier times are done.
    fn now(&self) -> u64;

    /// Time of this node's next read of `what`, not counting the current read. A larger value is later; `u64::MAX`
    /// means never.
    fn next_use(&self, what: &Extent) -> u64;

    /// Range to cache when `ranges` of an object are read. `None` if the object is not part of the run.
    fn keeps(&self, key: &Key, ranges: &[ByteRange]) -> Option<CachedRange>;

    /// All objects and ranges that the run may read. All other entries in the folder are evicted first.
    fn stretches(&self) -> Box<dyn Iterator<Item = (ObjectRef, ByteRange)> + '_>;
}

/// Store wrapper that caches objects on a local disk (see the module documentation).
#[derive(Debug)]
pub struct NodeCache {
    inner: Arc<dyn Store>,
    folder: Arc<Folder>,
    victims: Arc<EvictionQueue>,
    buffers: Arc<BufferPool>,
    metrics: Arc<Metrics>,
    transcoder: Arc<Transcoder>,
}

/// A read in progress: the requested ranges, and the name of the entry that serves them.
struct Read<'a> {
    object: &'a ObjectRef,
    ranges: &'a [ByteRange],
    name: Name,
    /// Range to cache; `None` if the object is not part of the run.
    keeps: Option<CachedRange>,
    deadline: Deadline,
}

impl Read<'_> {
    fn what(&self) -> Extent {
        Extent { key: self.object.key.clone(), range: self.keeps.map_or(ByteRange::WHOLE, |keeps| keeps.range) }
    }
}

/// Reserved bytes for an unfinished entry. Dropping the reservation releases the bytes, unless the entry was finished.
struct Admission {
    folder: Arc<Folder>,
    bytes: u64,
}

impl Admission {
    fn keep(mut self, turn: &EntryLock) -> std::io::Result<()> {
        turn.keep(&self.folder, self.bytes)?;
        self.bytes = 0;
        Ok(())
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // If the release fails, the count is too high until the next process that is alone in the folder corrects
            // it.
            let _ = self.folder.release(self.bytes);
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::bug(format!("the node cache: {error}")))
}

/// Collects all bytes of a one-range response.
async fn collected(got: GetResult) -> Result<Bytes> {
    let chunks: Vec<Chunk> = got.chunks.try_collect().await?;
    if let [one] = chunks.as_slice() {
        return Ok(one.bytes.clone());
    }
    let mut all = BytesMut::with_capacity(chunks.iter().map(|chunk| chunk.bytes.len()).sum());
    chunks.iter().for_each(|chunk| all.extend_from_slice(&chunk.bytes));
    Ok(all.freeze())
}

fn answer(meta: Meta, ranges: &[ByteRange], parts: Vec<Bytes>) -> GetResult {
    let chunks = parts.into_iter().zip(ranges).enumerate().filter(|(_, (bytes, _))| !bytes.is_empty());
    let chunks = chunks.map(|(range, (bytes, asked))| Ok(Chunk { range, offset: asked.start, bytes }));
    GetResult { meta, chunks: stream::iter(chunks.collect::<Vec<_>>()).boxed() }
}

impl NodeCache {
    /// Creates a cache of at most `limit_bytes` below `folder`, in front of the store `inner`. `transcode` states when
    /// compressed objects are cached as transposed copies.
    pub fn new(
        inner: Arc<dyn Store>,
        folder: &Path,
        limit_bytes: u64,
        future: Arc<dyn AccessPlan>,
        metrics: Arc<Metrics>,
        transcode: Transcode,
    ) -> Result<Self> {
        let folder = Folder::open(folder, limit_bytes)
            .map_err(|error| Error::from_io(folder.to_string_lossy().into_owned(), &error))?;
        let folder = Arc::new(folder);
        let transcoder = Arc::new(Transcoder::new(transcode, future.clone(), limit_bytes));
        let reads_planes = transcode != Transcode::Never;
        let victims = Arc::new(EvictionQueue::new(folder.clone(), inner.root().clone(), future, reads_planes));
        Ok(Self { inner, folder, victims, buffers: BufferPool::of_process(), metrics, transcoder })
    }

    /// Path of the cache folder.
    pub fn place(&self) -> PathBuf {
        self.folder.place().to_owned()
    }

    /// Counts a disk error and converts it to a cache miss. A miss costs a request to the store.
    fn doubt<T>(&self, found: std::io::Result<T>) -> Option<T> {
        found.inspect_err(|_| self.metrics.count(Metric::CacheFailures)).ok()
    }

    /// Calls `read` on an entry and returns its result. Returns `None` if no valid entry exists. A corrupt entry is
    /// removed.
    async fn entry<T: Send + 'static>(
        &self,
        name: Name,
        object: &ObjectRef,
        form: Form,
        read: impl FnOnce(Entry, &Arc<BufferPool>) -> std::io::Result<Option<T>> + Send + 'static,
    ) -> Result<Option<T>> {
        let (folder, root, object) = (self.folder.clone(), self.inner.root().clone(), object.clone());
        let buffers = self.buffers.clone();
        let found = blocking(move || {
            let file = folder.find(name)?;
            let found = Entry::open(file, &root, &object, form).map_or(Ok(None), |entry| read(entry, &buffers));
            if let Ok(None) = found {
                // The result of the removal does not matter: the checksum prevents any use of the corrupt entry.
                let _ = folder.remove(name);
            }
            Some(found)
        });
        let Some(found) = found.await?.and_then(|found| self.doubt(found)) else { return Ok(None) };
        if found.is_none() {
            self.metrics.count(Metric::CacheCorrupt);
        }
        Ok(found)
    }

    /// Counts a cache hit, and updates the entry's next use.
    fn hit(&self, name: Name, what: &Extent, bytes: usize) {
        self.metrics.count(Metric::CacheHits);
        self.metrics.add(Metric::CacheBytes, bytes as u64);
        self.victims.note(name, what);
    }

    /// Serves a read from the cache. Returns `None` if no valid entry exists.
    async fn kept(&self, read: &Read<'_>) -> Result<Option<GetResult>> {
        let (what, asked) = (read.what(), read.ranges.to_vec());
        let parts = self.entry(read.name, read.object, Form::Stored(what.range), move |entry, buffers| {
            let parts = asked.iter().map(|range| entry.read(*range, buffers));
            let parts = parts.collect::<std::io::Result<Option<Vec<Bytes>>>>()?;
            Ok(parts.map(|parts| (entry.meta, parts)))
        });
        let Some((meta, parts)) = parts.await? else { return Ok(None) };
        self.hit(read.name, &what, parts.iter().map(Bytes::len).sum());
        Ok(Some(answer(meta, read.ranges, parts)))
    }

    /// Acquires the lock that allows this process to fetch an object. Returns `None` if another process has fetched the
    /// object, or if the disk fails.
    async fn turn(&self, name: Name, deadline: Deadline) -> Result<Option<EntryLock>> {
        let mut pause = LOOK_AGAIN.0;
        loop {
            let folder = self.folder.clone();
            let (turn, is_there) = blocking(move || (folder.turn(name), folder.find(name).is_some())).await?;
            if is_there {
                turn.into_iter().flatten().for_each(|turn| turn.discard());
                return Ok(None);
            }
            match self.doubt(turn) {
                None => return Ok(None),
                Some(Some(turn)) => return Ok(Some(turn)),
                Some(None) => {}
            }
            deadline.check("the fetch of an object by another process of this node")?;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN.1);
        }
    }

    /// Reserves space for an entry. Evicts entries whose next use is later. Returns `None` if these evictions do not
    /// free enough space.
    async fn room(&self, what: Extent, bytes: u64) -> Result<Option<Admission>> {
        let (folder, victims, metrics) = (self.folder.clone(), self.victims.clone(), self.metrics.clone());
        let admitted = blocking(move || {
            let admitted = folder.admit(bytes, || {
                let victim = victims.later_than(&what)?;
                metrics.count(Metric::CacheEvictions);
                Some(victim)
            })?;
            std::io::Result::Ok(admitted.then(|| Admission { folder, bytes }))
        })
        .await?;
        Ok(self.doubt(admitted).flatten())
    }

    /// Fetches the range to cache into the folder, and serves the read from the fetched range.
    async fn fetch(&self, turn: EntryLock, read: &Read<'_>) -> Result<GetResult> {
        let Read { object, ranges, deadline, .. } = *read;
        let room = match read.keeps {
            Some(keeps) => self.room(read.what(), disk_bytes(keeps.bytes())).await?,
            None => None,
        };
        let (Some(keeps), Some(room)) = (read.keeps, room) else {
            turn.discard();
            self.metrics.count(Metric::CacheBypasses);
            return self.inner.get_ranges(object, ranges, deadline).await;
        };
        self.metrics.count(Metric::CacheMisses);
        let is_asked = ranges.len() == 1 && ranges[0] == keeps.range;
        let fetched = if is_asked || keeps.bytes() <= PART {
            self.fetch_at_once(turn, object, keeps, deadline, room).await
        } else {
            self.fetch_parts(turn, object, keeps, deadline, room).await.map(|meta| (meta, None))
        };
        let (meta, bytes) = fetched?;
        self.victims.note(read.name, &read.what());
        if let Some(bytes) = bytes {
            let (start, end) = (keeps.range.start, keeps.range.start + bytes.len() as u64);
            let cut = |range: &ByteRange| {
                let from = range.start.clamp(start, end);
                let to = range.start.saturating_add(range.len).clamp(from, end);
                bytes.slice((from - start) as usize..(to - start) as usize)
            };
            return Ok(answer(meta, ranges, ranges.iter().map(cut).collect()));
        }
        match self.kept(read).await? {
            Some(answer) => Ok(answer),
            None => self.inner.get_ranges(object, ranges, deadline).await,
        }
    }

    /// Fetches the range to cache in one request. Returns its bytes, from which the caller serves the read.
    async fn fetch_at_once(
        &self,
        turn: EntryLock,
        object: &ObjectRef,
        keeps: CachedRange,
        deadline: Deadline,
        room: Admission,
    ) -> Result<(Meta, Option<Bytes>)> {
        let got = self.inner.get_ranges(object, &[keeps.range], deadline).await?;
        let meta = got.meta.clone();
        let bytes = collected(got).await?;
        // An object whose size differs from the plan is not cached. The reader gets the object and reports the
        // difference.
        if meta.size != keeps.size || bytes.len() as u64 != keeps.bytes() {
            turn.discard();
            return Ok((meta, Some(bytes)));
        }
        let (root, written, meta_now, pinned) =
            (self.inner.root().clone(), bytes.clone(), meta.clone(), object.version.clone());
        let kept = blocking(move || {
            let keep = || {
                let mut writer = Writer::new(turn.file(), keeps.bytes());
                writer.write(0, &written)?;
                writer.finish(&root, &Meta { version: pinned, ..meta_now }, Form::Stored(keeps.range))?;
                room.keep(&turn)
            };
            keep().inspect_err(|_| turn.discard())
        })
        .await?;
        self.doubt(kept);
        Ok((meta, Some(bytes)))
    }

    /// Fetches the range to cache in concurrent parts, and writes each part when it arrives. Only the parts in flight
    /// are in memory.
    async fn fetch_parts(
        &self,
        turn: EntryLock,
        object: &ObjectRef,
        keeps: CachedRange,
        deadline: Deadline,
        room: Admission,
    ) -> Result<Meta> {
        let (first, size) = (keeps.range.start, keeps.bytes());
        let part = |start: u64| async move {
            let range = ByteRange::new(first + start, PART.min(size - start));
            let got = self.inner.get_ranges(object, &[range], deadline).await?;
            let meta = got.meta.clone();
            Ok::<_, Error>((start, meta, collected(got).await?))
        };
        let mut parts = stream::iter((0..size).step_by(PART as usize)).map(part).buffered(PARTS_IN_FLIGHT);
        let mut state = (turn, Vec::new(), None);
        let mut failed = None;
        while let Some((start, meta, bytes)) = parts.try_next().await? {
            let (turn, crcs, _) = state;
            let (written, result) = blocking(move || {
                let mut writer = Writer::resumed(turn.file(), size, crcs);
                let result = writer.write(start, &bytes);
                ((writer.into_crcs(), turn), result)
            })
            .await?;
            state = (written.1, written.0, Some(meta));
            if let Err(error) = result {
                failed = Some(error);
                break;
            }
        }
        drop(parts);
        let (turn, crcs, meta) = state;
        let meta = meta.ok_or_else(|| Error::bug("an object read in parts has no metadata"))?;
        let (root, meta_now, pinned) = (self.inner.root().clone(), meta.clone(), object.version.clone());
        let kept = blocking(move || {
            let keep = || match failed {
                Some(error) => Err(error),
                None => {
                    let meta_now = Meta { version: pinned, ..meta_now };
                    Writer::resumed(turn.file(), size, crcs).finish(&root, &meta_now, Form::Stored(keeps.range))?;
                    room.keep(&turn)
                }
            };
            keep().inspect_err(|_| turn.discard())
        })
        .await?;
        self.doubt(kept);
        Ok(meta)
    }
}

#[async_trait]
impl Store for NodeCache {
    penstock_store::delegate_store!(|this| this.inner; root, capabilities, list, head, put, uploads, delete);

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        deadline.check(&penstock_store::place(self.root(), &object.key))?;
        let keeps = self.victims.future().keeps(&object.key, ranges);
        let range = keeps.map_or(ByteRange::WHOLE, |keeps| keeps.range);
        let Some(name) = Name::of(self.root(), object, Form::Stored(range)) else {
            return self.inner.get_ranges(object, ranges, deadline).await;
        };
        let read = Read { object, ranges, name, keeps, deadline };
        if let Some(answer) = self.kept(&read).await? {
            return Ok(answer);
        }
        if let Some(turn) = self.turn(name, deadline).await? {
            return self.fetch(turn, &read).await;
        }
        match self.kept(&read).await? {
            Some(answer) => Ok(answer),
            None => self.inner.get_ranges(object, ranges, deadline).await,
        }
    }
}

#[cfg(test)]
mod tests;
