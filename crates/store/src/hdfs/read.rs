// SPDX-License-Identifier: Apache-2.0
//! Reads files. Blocks are immutable, so a file that was opened at a version returns the bytes of that version or an
//! error. If a read stalls, it is sent a second time, because the NameNode may then list another replica first. If a
//! replica sends nothing for a few seconds, the read switches to another replica. If all replicas time out, the read
//! starts again with a longer timeout.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use hdfs_native::file::FileReader;
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Result, Stopwatch};

use super::{ClientKind, Cluster, NAMENODE, error};
use crate::local::plan;
use crate::metered::timed;
use crate::{Chunk, GetResult, Meta, ObjectRef, Version};

/// If a read has returned nothing for this time, it is sent a second time. This time is far longer than the latency of
/// a disk and far shorter than `IDLE_TIMEOUT`.
const HEDGE: Duration = Duration::from_millis(400);
/// Maximum number of attempts to open a file. An attempt fails if the version of the file changes during the open.
const LOOKS: u32 = 4;

type Stream = BoxStream<'static, hdfs_native::Result<Bytes>>;

/// State of a read.
struct Reading {
    cluster: Arc<Cluster>,
    meta: Meta,
    place: String,
    reader: FileReader,
    kind: ClientKind,
    /// Ranges that remain to be read, as (index, start, end).
    left: VecDeque<(usize, u64, u64)>,
    /// Open stream of the first of the remaining ranges.
    stream: Option<Stream>,
    is_hedged: bool,
    deadline: Deadline,
}

pub(super) async fn get(
    cluster: &Arc<Cluster>,
    object: &ObjectRef,
    ranges: &[ByteRange],
    deadline: Deadline,
) -> Result<GetResult> {
    cluster.metrics.count(Metric::Requests);
    cluster.metrics.count(Metric::Gets);
    let started = Stopwatch::start();
    let (meta, reader) = open(cluster, &object.key, object.version.as_ref(), ClientKind::Fast).await?;
    let place = cluster.place(&object.key);
    let left = plan(ranges, meta.size, &place)?;
    let reading = Reading {
        cluster: cluster.clone(),
        meta: meta.clone(),
        place,
        reader,
        kind: ClientKind::Fast,
        left,
        stream: None,
        is_hedged: false,
        deadline,
    };
    let chunks = stream::try_unfold(reading, Reading::next).boxed();
    Ok(GetResult { meta, chunks: timed(chunks, started, cluster.metrics.clone()) })
}

/// Opens the blocks of one version: the pinned version, or a version that is current before and after the open.
async fn open(
    cluster: &Arc<Cluster>,
    key: &Key,
    pin: Option<&Version>,
    kind: ClientKind,
) -> Result<(Meta, FileReader)> {
    let (path, place) = (cluster.path(key)?, cluster.place(key));
    let client = cluster.client(kind).await?;
    let mut want = match pin {
        Some(version) => version.clone(),
        None => cluster.head(key).await?.version.unwrap_or_else(|| Version(String::new())),
    };
    for _ in 0..LOOKS {
        let reader = cluster.call(&place, NAMENODE, client.read(&path)).await?;
        // Versions never recur, so a version that is current before and after the open was current during the open.
        let meta = cluster.head(key).await?;
        let have = meta.version.clone().unwrap_or_else(|| Version(String::new()));
        if have == want && meta.size == reader.file_length() as u64 {
            return Ok((meta, reader));
        }
        if pin.is_some() {
            let have = if have == want { "a file that is being written".to_owned() } else { have.0 };
            return Err(Error::Changed { place, want: want.0, have });
        }
        want = have;
    }
    Err(Error::Changed { place, want: want.0, have: "a file that is being written".to_owned() })
}

impl Reading {
    async fn next(mut self) -> Result<Option<(Chunk, Self)>> {
        loop {
            let Some(&(range, at, end)) = self.left.front() else { return Ok(None) };
            let deadline = self.deadline;
            let step = self.step(at, end);
            let step = match deadline.instant() {
                Some(by) => tokio::time::timeout_at(by.into(), step).await.map_err(|_| deadline.error("GET"))?,
                None => step.await,
            };
            match step? {
                Some(bytes) if bytes.is_empty() => {}
                Some(mut bytes) => {
                    bytes.truncate((end - at) as usize);
                    let next = at + bytes.len() as u64;
                    match next < end {
                        true => self.left[0].1 = next,
                        false => {
                            self.left.pop_front();
                            self.stream = None;
                        }
                    }
                    return Ok(Some((Chunk { range, offset: at, bytes }, self)));
                }
                None => {
                    let reason = format!("the blocks end {} bytes early", end - at);
                    return Err(Error::Server { place: self.place, status: 0, reason });
                }
            }
        }
    }

    /// Returns the next bytes from offset `at`. If two reads were sent, takes the bytes of the faster read.
    async fn step(&mut self, at: u64, end: u64) -> Result<Option<Bytes>> {
        loop {
            let mut stream = self.stream.take().unwrap_or_else(|| bytes_of(&self.reader, at, end));
            let mut next = tokio::time::timeout(HEDGE, advance(&mut stream)).await.ok();
            if next.is_none() && !self.is_hedged {
                self.is_hedged = true;
                self.cluster.metrics.count(Metric::Requests);
                self.cluster.metrics.count(Metric::Gets);
                let second = second(&self.cluster, &self.meta, self.kind, at, end);
                let faster = match select(pin!(advance(&mut stream)), pin!(second)).await {
                    Either::Left((first, _)) => {
                        next = Some(first);
                        None
                    }
                    Either::Right((faster, _)) => faster,
                };
                if let Some((reader, stream, bytes)) = faster {
                    (self.reader, self.stream) = (reader, Some(stream));
                    return Ok(Some(bytes));
                }
            }
            let next = match next {
                Some(next) => next,
                None => advance(&mut stream).await,
            };
            let error = match next {
                Next::Bytes(bytes) => {
                    self.stream = Some(stream);
                    return Ok(Some(bytes));
                }
                Next::End => return Ok(None),
                Next::Panicked => return Err(error::odd(&self.place)),
                Next::Failed(error) => error,
            };
            if self.kind == ClientKind::Slow {
                return Err(error::of(&self.place, &self.cluster.root.to_string(), &error));
            }
            // All replicas failed or timed out. Open the file again, which fails if the file no longer exists.
            self.kind = ClientKind::Slow;
            let (_, reader) = open(&self.cluster, &self.meta.key, self.meta.version.as_ref(), ClientKind::Slow).await?;
            (self.reader, self.stream) = (reader, None);
        }
    }
}

fn bytes_of(reader: &FileReader, at: u64, end: u64) -> Stream {
    reader.read_range_stream(at as usize, (end - at) as usize).boxed()
}

enum Next {
    Bytes(Bytes),
    End,
    Failed(hdfs_native::HdfsError),
    /// The library panicked while it processed a response.
    Panicked,
}

async fn advance(stream: &mut Stream) -> Next {
    match AssertUnwindSafe(stream.next()).catch_unwind().await {
        Ok(Some(Ok(bytes))) => Next::Bytes(bytes),
        Ok(None) => Next::End,
        Ok(Some(Err(error))) => Next::Failed(error),
        Err(_) => Next::Panicked,
    }
}

/// Reads the same bytes a second time, probably from another replica. Returns the reader, its stream and the first
/// chunk. Returns `None` if the read fails or returns no bytes.
async fn second(
    cluster: &Arc<Cluster>,
    meta: &Meta,
    kind: ClientKind,
    at: u64,
    end: u64,
) -> Option<(FileReader, Stream, Bytes)> {
    let (_, reader) = open(cluster, &meta.key, meta.version.as_ref(), kind).await.ok()?;
    let mut stream = bytes_of(&reader, at, end);
    match advance(&mut stream).await {
        Next::Bytes(bytes) => Some((reader, stream, bytes)),
        Next::End | Next::Failed(_) | Next::Panicked => None,
    }
}
