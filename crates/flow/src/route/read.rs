// SPDX-License-Identifier: Apache-2.0
//! One read of a pool's object: it goes on where a way broke, by the next way.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream};
use futures::{StreamExt, TryStreamExt};
use penstock_store::{Chunk, GetResult, ObjectRef, Store};
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Result};

use super::{Known, Shared};

type Chunks = BoxStream<'static, Result<Chunk>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Own,
    Pool,
    Bucket,
}

impl Way {
    /// The counters of its reads and bytes.
    fn metrics(self) -> (Metric, Metric) {
        match self {
            Self::Own => (Metric::PoolOwnReads, Metric::PoolOwnBytes),
            Self::Pool => (Metric::PoolEngineReads, Metric::PoolEngineBytes),
            Self::Bucket => (Metric::PoolBucketReads, Metric::PoolBucketBytes),
        }
    }
}

/// How far a range has come.
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
    /// The places in `ranges` of the ranges of the request under way.
    running: Vec<usize>,
    way: Way,
    /// The others had their time to put the object back.
    has_waited: bool,
    deadline: Deadline,
}

impl Read {
    pub fn new(shared: Arc<Shared>, object: ObjectRef, size: u64, ranges: &[ByteRange], deadline: Deadline) -> Self {
        let ranges = ranges.iter().map(|range| Progress { at: range.start, end: range.end(size) }).collect();
        Self { shared, object, size, ranges, running: Vec::new(), way: Way::Own, has_waited: false, deadline }
    }

    /// What comes, by whichever ways.
    pub fn chunks(self) -> impl Stream<Item = Result<Chunk>> + Send + 'static {
        stream::try_unfold((self, None), |(read, chunks)| read.next(chunks))
    }

    async fn next(mut self, mut under_way: Option<Chunks>) -> Result<Option<(Chunk, (Self, Option<Chunks>))>> {
        loop {
            let step = match under_way.take() {
                None => self.begin().await.map(Some),
                Some(mut chunks) => match self.patiently(chunks.try_next()).await {
                    Ok(Some(chunk)) => {
                        let chunk = self.took(chunk)?;
                        return Ok(Some((chunk, (self, Some(chunks)))));
                    }
                    Ok(None) if self.rest().is_empty() => return Ok(None),
                    Ok(None) => Err(Error::Server {
                        place: penstock_store::place(self.shared.pool.root(), &self.object.key),
                        status: 0,
                        reason: "the answer ended early".to_owned(),
                    }),
                    Err(error) => Err(error),
                },
            };
            match step {
                Ok(chunks) => under_way = chunks,
                Err(error) => self.turn_away(error)?,
            }
        }
    }

    /// Counts a chunk in: its range is the caller's again.
    fn took(&mut self, mut chunk: Chunk) -> Result<Chunk> {
        let index = self.running.get(chunk.range).copied().ok_or_else(|| Error::bug("a chunk of no range"))?;
        self.ranges[index].at = chunk.offset + chunk.bytes.len() as u64;
        chunk.range = index;
        let health = &self.shared.health;
        if self.way == Way::Pool && !health.is_back(&self.object.key) {
            health.answered(self.known().and_then(|known| known.nodes.as_deref()));
        }
        self.shared.metrics.add(self.way.metrics().1, chunk.bytes.len() as u64);
        Ok(chunk)
    }

    /// What is still to come; the next request asks for it.
    fn rest(&mut self) -> Vec<ByteRange> {
        self.running = (0..self.ranges.len()).filter(|&i| self.ranges[i].at < self.ranges[i].end).collect();
        let range = |&i: &usize| {
            let Progress { at, end } = self.ranges[i];
            if at == 0 && end == self.size { ByteRange::WHOLE } else { ByteRange::new(at, end - at) }
        };
        self.running.iter().map(range).collect()
    }

    /// The engine is waited for as long as its copies may take, where there is another way behind it.
    async fn patiently<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let Some(known) = self.known().filter(|_| self.way == Way::Pool && self.shared.bucket.is_some()) else {
            return work.await;
        };
        let patience = known.patience();
        tokio::time::timeout(patience, work).await.unwrap_or_else(|_| {
            let reason = format!("no byte for {} s", patience.as_secs());
            Err(Error::Unreachable { place: self.shared.pool.root().to_string(), reason })
        })
    }

    fn known(&self) -> Option<&Known> {
        self.shared.known.get(&self.object.key)
    }

    async fn begin(&mut self) -> Result<Chunks> {
        let ranges = self.rest();
        if ranges.is_empty() {
            return Ok(stream::empty().boxed());
        }
        if self.way == Way::Own && self.own().is_none() {
            self.way = Way::Pool;
        }
        if self.way == Way::Pool
            && let Some(known) = self.known()
            && self.shared.is_lost(&self.object.key, known, self.object.version.as_ref()).await
        {
            self.way = Way::Bucket;
        }
        if self.way == Way::Bucket && !std::mem::replace(&mut self.has_waited, true) {
            let is_healed = self.shared.is_healed(&self.object.key, self.object.version.as_ref()).await;
            self.way = if is_healed { Way::Pool } else { Way::Bucket };
        }
        let chunks = match self.way {
            Way::Own => {
                let key = self.own().unwrap_or_default();
                self.of_size(self.shared.files.get_ranges(&ObjectRef::current(key), &ranges, self.deadline).await?)?
            }
            Way::Pool => self.patiently(self.asked_of_pool(&ranges)).await?,
            Way::Bucket => {
                let whole = self.shared.refetched(&self.object.key, self.size, self.deadline).await?;
                let cut = move |(range, asked): (usize, ByteRange)| {
                    let (start, end) = (asked.start as usize, asked.end(whole.len() as u64) as usize);
                    Ok(Chunk { range, offset: asked.start, bytes: piece(&whole, start, end) })
                };
                stream::iter(ranges.into_iter().enumerate().map(cut).collect::<Vec<_>>()).boxed()
            }
        };
        self.shared.metrics.count(self.way.metrics().0);
        Ok(chunks)
    }

    /// The node's own file, unless it was found gone.
    fn own(&self) -> Option<Key> {
        let own = self.known()?.own.clone()?;
        (!self.shared.health.is_file_gone(&own)).then_some(own)
    }

    /// An object that was put back has another version: its size is held then.
    async fn asked_of_pool(&self, ranges: &[ByteRange]) -> Result<Chunks> {
        let pool = &self.shared.pool;
        let got = match pool.get_ranges(&self.object, ranges, self.deadline).await {
            Err(Error::Changed { .. }) => {
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
            false => Err(Error::Changed {
                place: penstock_store::place(self.shared.pool.root(), &self.object.key),
                want: format!("of {} bytes", self.size),
                have: format!("one of {} bytes", got.meta.size),
            }),
        }
    }

    /// The next way, or the error where there is none.
    fn turn_away(&mut self, error: Error) -> Result<()> {
        if self.deadline.passed() {
            return Err(error);
        }
        let health = &self.shared.health;
        self.way = match self.way {
            Way::Own => {
                if let Some(own) = self.own() {
                    health.file_gone(&own);
                }
                Way::Pool
            }
            Way::Pool if self.shared.bucket.is_some() => {
                health.failed(self.known().and_then(|known| known.nodes.as_deref()));
                health.lost_again(&self.object.key);
                Way::Bucket
            }
            Way::Pool | Way::Bucket => return Err(error),
        };
        Ok(())
    }
}

fn piece(whole: &Bytes, start: usize, end: usize) -> Bytes {
    whole.slice(start.min(whole.len())..end.min(whole.len()))
}
