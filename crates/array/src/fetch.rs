// SPDX-License-Identifier: Apache-2.0
//! Ranged reads of a planned batch: merges nearby ranges, sends many requests concurrently, and decodes the received
//! bytes on worker threads.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use penstock_store::{Buffer, BufferPool, ObjectRef, Store};
use penstock_types::{ByteRange, Deadline, Error, Result, lock};
use tokio::runtime::Handle;

/// Maximum size of a merged read in bytes.
const MAX_READ: u64 = 8 << 20;

/// Maximum total size of the requests in flight, in bytes.
const MAX_BYTES_IN_FLIGHT: u64 = 128 << 20;

/// A byte range that a batch needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Want {
    /// Index of the object.
    pub object: usize,
    /// Byte range in the object.
    pub range: ByteRange,
}

/// Limits for merging two ranges of an object into one request.
#[derive(Debug, Clone, Copy)]
pub struct MergePolicy {
    /// Gaps of up to this many bytes are always read, because reading the gap costs less than a second request.
    pub small_gap: u64,
    /// Maximum gap in bytes. Reading a gap costs its transfer time; skipping it costs the latency of a second request.
    /// At 90 MB/s, a latency of 20 ms corresponds to 1.8 MB.
    pub max_gap: u64,
    /// Maximum ratio of bytes read to bytes needed in a request.
    pub max_waste: f64,
    /// Maximum number of requests in flight.
    pub in_flight: usize,
}

impl MergePolicy {
    /// For local files: a read call costs about as much as the transfer of 16 KiB.
    pub const LOCAL: Self = Self { small_gap: 16 << 10, max_gap: 16 << 10, max_waste: 8.0, in_flight: 8 };
    /// For object stores.
    pub const REMOTE: Self = Self { small_gap: 16 << 10, max_gap: 512 << 10, max_waste: 1.2, in_flight: 64 };
}

/// Counters of the reads from an array since it was opened.
#[derive(Debug, Default)]
pub struct FetchStats {
    /// Requests sent.
    pub requests: AtomicU64,
    /// Bytes read from the store.
    pub bytes_read: AtomicU64,
    /// Bytes that the decoder needed.
    pub bytes_needed: AtomicU64,
    /// Bytes returned to the caller.
    pub bytes_returned: AtomicU64,
    /// Requests in flight now.
    pub in_flight: AtomicU64,
    /// Highest number of requests that were in flight at the same time.
    pub max_in_flight: AtomicU64,
}

/// One request, and the ranges that it reads.
struct Request {
    object: usize,
    range: ByteRange,
    wants: Vec<usize>,
}

/// Merges wanted ranges into requests, sorted by object and offset.
fn merged(wants: &[Want], policy: &MergePolicy) -> Vec<Request> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&number| (wants[number].object, wants[number].range.start));
    let mut requests: Vec<Request> = Vec::new();
    let mut needed = 0u64;
    for number in order {
        let Want { object, range } = wants[number];
        if let Some(last) = requests.last_mut()
            && last.object == object
        {
            let end = last.range.start + last.range.len;
            let new_end = end.max(range.start + range.len);
            let len = new_end - last.range.start;
            let needs = needed + range.len.min(new_end - end.min(new_end));
            let is_near = range.start <= end.saturating_add(policy.max_gap);
            let is_within = range.start + range.len <= end;
            let is_cheap =
                range.start <= end.saturating_add(policy.small_gap) || len as f64 <= policy.max_waste * needs as f64;
            if is_within || is_near && len <= MAX_READ && is_cheap {
                last.range.len = len;
                last.wants.push(number);
                needed = needs;
                continue;
            }
        }
        needed = range.len;
        requests.push(Request { object, range, wants: vec![number] });
    }
    requests
}

/// Reads a range. Errs with `Corrupt` if the object ends inside the range.
///
/// If the body arrives in pieces, the pieces are copied into one buffer, so that the transport can release its own
/// buffers early. The buffer comes from a pool, because new memory for each body would cause page faults.
pub(crate) async fn read(store: &dyn Store, object: &ObjectRef, range: ByteRange, deadline: Deadline) -> Result<Bytes> {
    let place = || penstock_store::place(store.root(), &object.key);
    let mut got = store.get_ranges(object, &[range], deadline).await?;
    let mut joined: Option<Buffer> = None;
    let mut have = 0;
    while let Some(chunk) = got.chunks.try_next().await? {
        let bytes = chunk.bytes;
        if have == 0 && bytes.len() as u64 == range.len {
            return Ok(bytes);
        }
        let memory = match &mut joined {
            Some(memory) => memory,
            None => {
                let memory = BufferPool::of_process().take(range.len as usize);
                joined.insert(memory.map_err(|error| Error::from_io(place(), &error))?)
            }
        };
        if let Some(slot) = memory.get_mut(have..have + bytes.len()) {
            slot.copy_from_slice(&bytes);
        }
        have += bytes.len();
    }
    match joined {
        Some(memory) if have as u64 == range.len => Ok(memory.freeze(0..have)),
        _ => {
            let (start, want) = (range.start, range.len);
            let text = format!("ends inside a read at byte {start} (want {want} bytes, have {have})");
            Err(Error::corrupt(place(), text))
        }
    }
}

/// Reads all `wants`. Calls `decode` with the index and the bytes of each want, in `threads` threads. The first error
/// ends the batch.
#[expect(
    clippy::too_many_arguments,
    reason = "the arguments of one batch: source, reads, limits and the decoder of the results"
)]
pub(crate) fn fetch(
    runtime: &Handle,
    store: &dyn Store,
    objects: &[ObjectRef],
    wants: &[Want],
    policy: &MergePolicy,
    threads: usize,
    deadline: Deadline,
    stats: &FetchStats,
    decode: &(dyn Fn(usize, &[u8]) -> Result<()> + Sync),
) -> Result<()> {
    let requests = merged(wants, policy);
    stats.requests.fetch_add(requests.len() as u64, Ordering::Relaxed);
    stats.bytes_needed.fetch_add(wants.iter().map(|want| want.range.len).sum(), Ordering::Relaxed);
    let largest = requests.iter().map(|request| request.range.len).max().unwrap_or(0);
    let in_flight = ((MAX_BYTES_IN_FLIGHT / largest.max(1)) as usize).clamp(1, policy.in_flight);
    let handle = |request: &Request, bytes: &Bytes| -> Result<()> {
        request.wants.iter().try_for_each(|&number| {
            let range = wants[number].range;
            let start = (range.start - request.range.start) as usize;
            decode(number, &bytes[start..start + range.len as usize])
        })
    };
    let get = async |request: Request| {
        let under_way = stats.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        stats.max_in_flight.fetch_max(under_way, Ordering::Relaxed);
        let got = read(store, &objects[request.object], request.range, deadline).await;
        stats.in_flight.fetch_sub(1, Ordering::Relaxed);
        let bytes = got?;
        stats.bytes_read.fetch_add(request.range.len, Ordering::Relaxed);
        Ok::<_, Error>((request, bytes))
    };
    if threads <= 1 || requests.len() <= 1 {
        return runtime.block_on(async {
            let mut arrived = stream::iter(requests).map(get).buffer_unordered(in_flight);
            while let Some((request, bytes)) = arrived.try_next().await? {
                handle(&request, &bytes)?;
            }
            Ok(())
        });
    }
    let failed: std::sync::Mutex<Option<Error>> = std::sync::Mutex::new(None);
    // The queue is bounded: while it is full, no further response is received.
    let (sender, receiver) = crossbeam_channel::bounded::<(Request, Bytes)>(2 * threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (receiver, failed) = (receiver.clone(), &failed);
            scope.spawn(move || {
                for (request, bytes) in receiver {
                    let done = if lock(failed).is_some() { Ok(()) } else { handle(&request, &bytes) };
                    if let Err(error) = done {
                        lock(failed).get_or_insert(error);
                    }
                }
            });
        }
        drop(receiver);
        runtime.block_on(async {
            let mut arrived = stream::iter(requests).map(get).buffer_unordered(in_flight);
            while let Some(item) = arrived.try_next().await? {
                if lock(&failed).is_some() || sender.send(item).is_err() {
                    break;
                }
            }
            drop(sender);
            Ok::<_, Error>(())
        })
    })?;
    lock(&failed).take().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(ranges: &[(usize, u64, u64)]) -> Vec<Want> {
        ranges.iter().map(|&(object, start, len)| Want { object, range: ByteRange::new(start, len) }).collect()
    }

    fn plan(ranges: &[(usize, u64, u64)], policy: &MergePolicy) -> Vec<(usize, u64, u64)> {
        merged(&wants(ranges), policy).iter().map(|each| (each.object, each.range.start, each.range.len)).collect()
    }

    #[test]
    fn test_merge_joins_near_ranges_of_one_object_only() {
        let policy = MergePolicy { small_gap: 0, max_gap: 10, max_waste: 2.0, in_flight: 1 };
        assert_eq!(
            plan(&[(0, 100, 10), (0, 0, 20), (0, 25, 5), (1, 30, 5)], &policy),
            [(0, 0, 30), (0, 100, 10), (1, 30, 5)]
        );
    }

    #[test]
    fn test_merge_wasteful_gap_is_not_read() {
        let policy = MergePolicy { small_gap: 0, max_gap: 1000, max_waste: 1.2, in_flight: 1 };
        assert_eq!(plan(&[(0, 0, 100), (0, 120, 100), (0, 400, 100)], &policy), [(0, 0, 220), (0, 400, 100)]);
    }

    #[test]
    fn test_merge_small_gaps_are_read_whatever_they_waste() {
        let policy = MergePolicy { small_gap: 50, max_gap: 1000, max_waste: 1.2, in_flight: 1 };
        assert_eq!(plan(&[(0, 0, 4), (0, 54, 4), (0, 109, 4)], &policy), [(0, 0, 58), (0, 109, 4)]);
    }

    #[test]
    fn test_merge_overlapping_and_contained_ranges_are_read_once() {
        let policy = MergePolicy { small_gap: 0, max_gap: 0, max_waste: 1.0, in_flight: 1 };
        assert_eq!(plan(&[(0, 0, 100), (0, 10, 20), (0, 50, 100)], &policy), [(0, 0, 150)]);
    }
}
