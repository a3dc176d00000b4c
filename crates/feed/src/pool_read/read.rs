// SPDX-License-Identifier: Apache-2.0
//! Reads one object of a pool. If a source fails, the next source continues the read at the byte that was reached.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream};
use futures::{StreamExt, TryStreamExt};
use penstock_store::{Chunk, GetResult, ObjectRef, Store};
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Result};

use super::{ObjectState, Shared};

type Chunks = BoxStream<'static, Result<Chunk>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadPath {
    Own,
    Pool,
    OriginStore,
}

impl ReadPath {
    /// Metrics that count this path's reads and bytes.
    fn metrics(self) -> (Metric, Metric) {
        match self {
            Self::Own => (Metric::PoolOwnReads, Metric::PoolOwnBytes),
            Self::Pool => (Metric::PoolEngineReads, Metric::PoolEngineBytes),
            Self::OriginStore => (Metric::PoolBucketReads, Metric::PoolBucketBytes),
        }
    }
}

/// Progress of one range.
#[derive(Debug, Clone, Copy)]
struct Progress {
    at: u64,
    end: u64,
}

pub(super) struct Read {
    shared: Arc<Shared>,
    object: ObjectRef,
    size: u64,
    ranges: Vec<Progress>,
    /// Ranges of the current request, as indices into `ranges`.
    running: Vec<usize>,
    way: ReadPath,
    /// True if the read has already waited for other processes to put the object back.
    has_waited: bool,
    /// Last chunk from the current source. It is not delivered yet.
    held: Option<Chunk>,
    /// True if a chunk from the current source was delivered.
    has_given: bool,
    /// True if the pool has lost this object.
    is_lost: bool,
    deadline: Deadline,
}

impl Read {
    pub fn new(shared: Arc<Shared>, object: ObjectRef, size: u64, ranges: &[ByteRange], deadline: Deadline) -> Self {
        let ranges = ranges.iter().map(|range| Progress { at: range.start, end: range.end(size) }).collect();
        let [has_waited, has_given, is_lost] = [false; 3];
        let (running, way, held) = (Vec::new(), ReadPath::Own, None);
        Self { shared, object, size, ranges, running, way, has_waited, held, has_given, is_lost, deadline }
    }

    /// Streams the bytes. If a source fails, continues with the next source.
    pub fn chunks(self) -> impl Stream<Item = Result<Chunk>> + Send + 'static {
        stream::try_unfold((self, None), |(read, chunks)| read.next(chunks))
    }

    async fn next(mut self, mut under_way: Option<Chunks>) -> Result<Option<(Chunk, (Self, Option<Chunks>))>> {
        loop {
            let step = match under_way.take() {
                None => self.begin().await.map(Some),
                Some(mut chunks) => match chunks.try_next().await {
                    Ok(Some(chunk)) => match self.took(chunk)? {
                        Some(chunk) => return Ok(Some((chunk, (self, Some(chunks))))),
                        None => Ok(Some(chunks)),
                    },
                    Ok(None) if self.rest().is_empty() => return Ok(self.given().map(|last| (last, (self, None)))),
                    Ok(None) => Err(Error::Server {
                        place: penstock_store::place(self.shared.pool.root(), &self.object.key),
                        status: 0,
                        reason: "the response ended early".to_owned(),
                    }),
                    Err(error) => Err(error),
                },
            };
            match step {
                Ok(chunks) => under_way = chunks,
                Err(error) => {
                    let is_torn = self.has_given && matches!(error, Error::Changed { .. } | Error::Corrupt { .. });
                    self.turn_away(error.clone())?;
                    if is_torn {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Records the progress of a chunk, and returns the previous chunk. A chunk is held until the next chunk arrives or
    /// the source reports success. A change of the object or a wrong checksum is detected only after the last byte.
    fn took(&mut self, mut chunk: Chunk) -> Result<Option<Chunk>> {
        let index = self
            .running
            .get(chunk.range)
            .copied()
            .ok_or_else(|| Error::bug("a chunk does not belong to any requested range"))?;
        self.ranges[index].at = chunk.offset + chunk.bytes.len() as u64;
        chunk.range = index;
        let health = &self.shared.health;
        if self.way == ReadPath::Pool && !health.is_back(&self.object.key) {
            health.answered(self.known().and_then(|known| known.nodes.as_deref()));
        }
        let before = self.given();
        self.held = Some(chunk);
        Ok(before)
    }

    /// Returns the held chunk for delivery, and counts its bytes.
    fn given(&mut self) -> Option<Chunk> {
        let chunk = self.held.take()?;
        self.has_given = true;
        self.shared.metrics.add(self.way.metrics().1, chunk.bytes.len() as u64);
        Some(chunk)
    }

    /// Returns the rest of each unfinished range. The next request reads these ranges.
    fn rest(&mut self) -> Vec<ByteRange> {
        self.running = (0..self.ranges.len()).filter(|&i| self.ranges[i].at < self.ranges[i].end).collect();
        let range = |&i: &usize| {
            let Progress { at, end } = self.ranges[i];
            if at == 0 && end == self.size { ByteRange::WHOLE } else { ByteRange::new(at, end - at) }
        };
        self.running.iter().map(range).collect()
    }

    fn known(&self) -> Option<&ObjectState> {
        self.shared.known.get(&self.object.key)
    }

    async fn begin(&mut self) -> Result<Chunks> {
        let ranges = self.rest();
        if ranges.is_empty() {
            return Ok(stream::empty().boxed());
        }
        if self.way == ReadPath::Own && self.own().is_none() {
            self.way = ReadPath::Pool;
        }
        if self.way == ReadPath::Pool
            && let Some(known) = self.known()
            && self.shared.is_lost(&self.object, known, self.deadline).await
        {
            self.way = ReadPath::OriginStore;
        }
        if self.way == ReadPath::OriginStore && !std::mem::replace(&mut self.has_waited, true) {
            let is_healed = self.shared.is_healed(&self.object, self.deadline).await;
            self.way = if is_healed { ReadPath::Pool } else { ReadPath::OriginStore };
        }
        let chunks = match self.way {
            ReadPath::Own => {
                let key = self.own().unwrap_or_default();
                self.of_size(self.shared.files.get_ranges(&ObjectRef::current(key), &ranges, self.deadline).await?)?
            }
            ReadPath::Pool => self.asked_of_pool(&ranges).await?,
            ReadPath::OriginStore => self.asked_of_bucket(&ranges).await?,
        };
        self.shared.metrics.count(self.way.metrics().0);
        Ok(chunks)
    }

    /// Reads from the origin. If the object is large and the origin has the same bytes, streams the object. Otherwise,
    /// fetches the whole object and puts it back into the pool.
    async fn asked_of_bucket(&self, ranges: &[ByteRange]) -> Result<Chunks> {
        let (key, bucket) = (&self.object.key, self.shared.bucket.as_ref());
        let (Some(known), Some(bucket)) = (self.known(), bucket) else {
            return Err(Error::bug(
                "a read from the origin bucket was started for an object without a known location or without a bucket",
            ));
        };
        let is_part = ranges != [ByteRange::WHOLE];
        if self.size > self.shared.refetches.at_once()
            && let Some(got) = bucket.ranges(key, known, ranges, self.deadline).await?
        {
            return self.of_size(got);
        }
        // If the nodes are unknown, the pool's copy may be intact, and it is not replaced.
        let is_put_back = self.is_lost || known.nodes.is_some();
        let whole = self.shared.refetched(key, known, (is_part, is_put_back), self.deadline).await?;
        let cut = |(range, asked): (usize, &ByteRange)| {
            let (start, end) = (asked.start as usize, asked.end(whole.len() as u64) as usize);
            let part = whole.slice(start.min(whole.len())..end.min(whole.len()));
            // Copy a small part, so that it does not keep the whole object in memory.
            let bytes = if part.len() < whole.len() / 2 { Bytes::copy_from_slice(&part) } else { part };
            Ok(Chunk { range, offset: asked.start, bytes })
        };
        Ok(stream::iter(ranges.iter().enumerate().map(cut).collect::<Vec<_>>()).boxed())
    }

    /// Path of the object's file on this node. `None` if the file does not exist.
    fn own(&self) -> Option<Key> {
        let own = self.known()?.own.clone()?;
        (!self.shared.health.is_file_gone(&own)).then_some(own)
    }

    /// Reads from the pool. An object that was put back has another version, so only the object's size is checked.
    async fn asked_of_pool(&self, ranges: &[ByteRange]) -> Result<Chunks> {
        let pool = &self.shared.pool;
        let got = match pool.get_ranges(&self.object, ranges, self.deadline).await {
            Err(Error::Changed { .. }) if self.shared.bucket.is_some() => {
                self.shared.health.came_back(&self.object.key);
                pool.get_ranges(&ObjectRef::current(self.object.key.clone()), ranges, self.deadline).await
            }
            result => result,
        };
        self.of_size(got?)
    }

    fn of_size(&self, got: GetResult) -> Result<Chunks> {
        match got.meta.size == self.size {
            true => Ok(got.chunks),
            false => {
                let place = penstock_store::place(self.shared.pool.root(), &self.object.key);
                Err(Error::resized(place, self.size, got.meta.size))
            }
        }
    }

    /// Switches to the next source. Returns the error if no source remains. The held chunk is discarded, and its bytes
    /// are requested again.
    fn turn_away(&mut self, error: Error) -> Result<()> {
        if self.deadline.passed() {
            return Err(error);
        }
        let health = &self.shared.health;
        let next = match self.way {
            ReadPath::Own => {
                if let Some(own) = self.own() {
                    health.file_gone(&own);
                }
                ReadPath::Pool
            }
            ReadPath::Pool if self.shared.bucket.is_some() => {
                health.failed(self.known().and_then(|known| known.nodes.as_deref()), &error);
                health.lost_again(&self.object.key);
                self.is_lost = true;
                ReadPath::OriginStore
            }
            ReadPath::Pool | ReadPath::OriginStore => return Err(error),
        };
        if let Some(held) = self.held.take() {
            self.ranges[held.range].at = held.offset;
        }
        (self.way, self.has_given) = (next, false);
        Ok(())
    }
}
