// SPDX-License-Identifier: Apache-2.0
//! Random access: reads records by position, in any order, for map-style datasets. Needs neither a batch plan nor
//! threads of its own.
//!
//! Owns the reads of one call and a small cache of decompressed objects. If a call requests several records of an
//! object, the object is read only once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::Codec;
use penstock_types::{Deadline, Error, Result, lock};

use super::Feed;
use super::batch_buffer::Layout;
use super::batch_plan::RowRequest;
use super::batch_rows::{Column, Rows};
use super::decode::{Object, decode};
use super::decode_memory::Values;
use super::object_content::{Content, Reads};

/// Divisor of the memory budget: at most 1/4 of the budget caches decompressed objects between calls.
const CACHED: u64 = 4;

/// Cache of the most recently used decompressed objects.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    objects: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// Cached objects, with the least recently used one first. There are only a few objects, so a linear search costs
    /// less than hashing.
    queue: VecDeque<((usize, u64), Bytes)>,
    bytes: u64,
}

impl Cache {
    fn get(&self, key: (usize, u64)) -> Option<Bytes> {
        let mut kept = lock(&self.objects);
        let position = kept.queue.iter().position(|(held, _)| *held == key)?;
        let entry = kept.queue.remove(position)?;
        kept.queue.push_back(entry.clone());
        Some(entry.1)
    }

    fn put(&self, key: (usize, u64), content: Bytes, limit: u64) {
        let mut kept = lock(&self.objects);
        if content.len() as u64 > limit || kept.queue.iter().any(|(held, _)| *held == key) {
            return;
        }
        kept.bytes += content.len() as u64;
        kept.queue.push_back((key, content));
        while kept.bytes > limit {
            let Some((_, dropped)) = kept.queue.pop_front() else { break };
            kept.bytes -= dropped.len() as u64;
        }
    }
}

/// A record to read, as (dataset of the sampler, object, record).
pub type RecordRef = (usize, u64, u64);

impl Feed {
    /// Reads the fields of the records in `wanted`: one row per record, in the given order. An object is read once for
    /// all of its rows. The random crop in row i is the one that the sample at position `positions[i]` of `epoch` gets.
    pub async fn gather(
        self: Arc<Self>,
        wanted: Vec<RecordRef>,
        epoch: u64,
        positions: Arc<[u64]>,
    ) -> Result<Vec<Column>> {
        if positions.len() != wanted.len() {
            return Err(Error::bug(format!("{} records have {} positions", wanted.len(), positions.len())));
        }
        let layout = Arc::new(Layout::new(&self.fields, wanted.len())?);
        let values = Values::limited(self.limit);
        let slot = self.pool.take(&layout)?;
        if let Some((column, numbers)) = self.source_column() {
            for (row, &(leaf, ..)) in wanted.iter().enumerate() {
                let number = numbers.get(leaf).copied().unwrap_or(-1); // an unknown leaf is an error below
                // SAFETY: the rows are not shared yet, and decoding does not write this column.
                unsafe { slot.row(column, row) }.copy_from_slice(&number.to_le_bytes());
            }
        }
        let rows = Arc::new(Rows::new(slot, &self.fields, wanted.len(), values));
        let mut tasks: BTreeMap<(usize, u64), Vec<RowRequest>> = BTreeMap::new();
        for (row, &(leaf, object, record)) in wanted.iter().enumerate() {
            let known = self.leaves.get(leaf).filter(|leaf| object < leaf.counts().objects());
            let records = known.map(|leaf| leaf.counts().records(object));
            if records.is_none_or(|records| record >= records) {
                return Err(Error::config(
                    "index",
                    format!("dataset {leaf} has no record {record} in object {object}"),
                ));
            }
            tasks.entry((leaf, object)).or_default().push(RowRequest { record, batch: 0, row: row as u32 });
        }
        stream::iter(tasks)
            .map(|((leaf, object), wants)| {
                let (rows, positions) = (rows.clone(), positions.clone());
                self.clone().gather_object(leaf, object, wants, rows, epoch, positions)
            })
            .buffer_unordered(self.max_in_flight)
            .try_collect::<()>()
            .await?;
        rows.columns(&self.fields, wanted.len(), &self.loose)
    }

    async fn gather_object(
        self: Arc<Self>,
        leaf: usize,
        object: u64,
        wants: Vec<RowRequest>,
        rows: Arc<Rows>,
        epoch: u64,
        positions: Arc<[u64]>,
    ) -> Result<()> {
        let source = self.sources[leaf].clone();
        let deadline = Deadline::within(self.object_timeout);
        let (fetched, cached) = match self.gathered.get((leaf, object)) {
            Some(content) => (Content::Whole(content), true),
            None => {
                let reads = Reads::of(&source, object, &wants);
                (source.fetch_reads(object, &reads, deadline).await?.content, false)
            }
        };
        // Decompression takes milliseconds. It runs on a blocking thread, so that it does not delay the runtime's
        // network threads.
        let decoding = tokio::task::spawn_blocking(move || {
            let place = source.place(object);
            let content = match (fetched, source.codec(object)) {
                (fetched, codec) if !cached && codec != Codec::None => {
                    let mut inflated = Vec::new();
                    fetched.decompress_into(codec, source.framing(), &mut inflated, self.limit, &place)?;
                    Content::Whole(Bytes::from(inflated))
                }
                (content, _) => content,
            };
            let view = &self.leaves[leaf];
            let described = Object {
                source: &source,
                codec: Codec::None,
                number: object,
                place: &place,
                stored: &content,
                records: self.leaves[leaf].counts().records(object),
                limit: self.limit,
                memory: &self.part_memory.hold(),
                key: &|want| view.key_of(epoch, positions[want.row as usize]),
            };
            let decoded = decode(&described, &wants, self.record_fields(), &|_| Some(&*rows), &mut Vec::new())?;
            if let Some((_, error)) = decoded.bad.into_iter().min_by_key(|(at, _)| *at) {
                return Err(error);
            }
            if let (Content::Whole(content), false) = (content, cached) {
                self.gathered.put((leaf, object), content, self.limit / CACHED);
            }
            Ok(())
        });
        decoding.await.map_err(|error| Error::bug(format!("gathering records: {error}")))?
    }
}
