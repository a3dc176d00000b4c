// SPDX-License-Identifier: Apache-2.0
//! Records by their places, in any order: what a map-style dataset asks for, without a plan and without threads of its own.
//!
//! Owns one call's reads and a small cache of inflated objects. An object is the unit of reading; who asks for neighbours
//! together reads it once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::{Codec, GzipCheck, inflate_into_checked};
use penstock_types::{Deadline, Error, Result};

use super::Feed;
use super::decode::{Object, decode};
use super::plan::Want;
use super::slot::{Layout, Slot, Tensor};

/// Share of the memory budget that inflated objects may keep between calls.
const CACHED: u64 = 4;

/// Objects as they are once inflated, the ones used last.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    objects: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Least recently used first: few enough that a walk costs less than a hash of their keys.
    queue: VecDeque<((usize, u64), Bytes)>,
    bytes: u64,
}

impl Cache {
    fn get(&self, key: (usize, u64)) -> Option<Bytes> {
        let mut kept = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let seat = kept.queue.iter().position(|(held, _)| *held == key)?;
        let entry = kept.queue.remove(seat)?;
        kept.queue.push_back(entry.clone());
        Some(entry.1)
    }

    fn put(&self, key: (usize, u64), content: Bytes, limit: u64) {
        let mut kept = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
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

/// A record to gather: of which dataset of the course, which object, which of its records.
pub type Wanted = (usize, u64, u64);

impl Feed {
    /// The fields of these records, a row each in the order given. Objects that several rows need are read once.
    pub async fn gather(self: Arc<Self>, wanted: Vec<Wanted>) -> Result<Vec<Tensor>> {
        let layout = Arc::new(Layout::new(&self.fields, wanted.len())?);
        let slot = Arc::new(self.pool.take(&layout)?);
        let mut tasks: BTreeMap<(usize, u64), Vec<Want>> = BTreeMap::new();
        for (row, &(leaf, object, record)) in wanted.iter().enumerate() {
            let known = self.leaves.get(leaf).filter(|leaf| object < leaf.counts().objects());
            let records = known.map(|leaf| leaf.counts().records(object));
            if records.is_none_or(|records| record >= records) {
                return Err(Error::config("index", format!("no record {record} of object {object} of dataset {leaf}")));
            }
            tasks.entry((leaf, object)).or_default().push(Want { record, batch: 0, row: row as u32 });
        }
        stream::iter(tasks)
            .map(|((leaf, object), wants)| self.clone().gather_object(leaf, object, wants, slot.clone()))
            .buffer_unordered(self.max_in_flight)
            .try_collect::<()>()
            .await?;
        let rows = wanted.len();
        let fields = self.fields.iter().enumerate();
        Ok(fields.map(|(seat, field)| Tensor::new(slot.clone(), seat, &field.spec, rows)).collect())
    }

    async fn gather_object(self: Arc<Self>, leaf: usize, object: u64, wants: Vec<Want>, slot: Arc<Slot>) -> Result<()> {
        let source = self.sources[leaf].clone();
        let (fetched, cached) = match self.gathered.get((leaf, object)) {
            Some(content) => (content, true),
            None => (source.fetch(object, Deadline::within(self.deadline)).await?.bytes, false),
        };
        // Inflating takes milliseconds: not on a thread that others' sockets wait for.
        let decoding = tokio::task::spawn_blocking(move || {
            let place = || source.place(object);
            let content = match source.codec(object) {
                codec if cached || codec == Codec::None => fetched,
                codec => {
                    let mut inflated = Vec::new();
                    inflate_into_checked(codec, &fetched, &mut inflated, self.limit, GzipCheck::SizeOnly, &place())?;
                    Bytes::from(inflated)
                }
            };
            let records = self.leaves[leaf].counts().records(object);
            let described = Object { place: &place, codec: Codec::None, stored: &content, records, limit: self.limit };
            let fields = self.record_fields();
            decode(&described, &wants, fields, &|_| Some(&*slot), &mut Vec::new())?;
            if !cached {
                self.gathered.put((leaf, object), content, self.limit / CACHED);
            }
            Ok(())
        });
        decoding.await.map_err(|error| Error::bug(format!("gathering records: {error}")))?
    }
}
