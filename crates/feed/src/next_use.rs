// SPDX-License-Identifier: Apache-2.0
//! Next-use oracle for the node cache: computes from the sample order when this node will next read each object.
//!
//! The cache evicts the entry whose next use is the latest.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use penstock_codec::strip_suffix;
use penstock_store::ObjectRef;
use penstock_types::{ByteRange, Key, lock};

use super::batch_bounds::Steps;
use super::chunked_arrays::Blocks;
use super::read_sizes::asked;
use crate::cache::{AccessPlan, CachedRange, Extent};
use penstock_dataset::dataset_view::EpochView;
use penstock_dataset::manifest::{Entry, Manifest};
use penstock_dataset::order::Place;
use penstock_dataset::sampler::DatasetView;

/// Number of epochs to look ahead. In a job of many nodes, a node may read an object again only after several epochs.
const EPOCHS_AHEAD: u64 = 4;

/// Maximum number of records per object for which the oracle looks up each record. If an object has more records, the
/// oracle assumes that every node reads the object in the object's shuffle window.
const FEW_RECORDS: u64 = 16;

/// Computes when one node reads the objects of one dataset. A time is a position, counted over all epochs.
#[derive(Debug)]
pub(super) struct NextUse {
    /// Listing of the objects in the store.
    listing: Arc<Manifest>,
    /// Prefix of the listing's keys in the store.
    base: Key,
    /// Only for arrays: the ranges that the blocks read.
    readers: Option<Readers>,
    leaf: DatasetView,
    /// Batches that assign reads to ranks. If the sampler is a mixture or selects positions, the assignment is unknown,
    /// and this is `None`.
    steps: Option<Steps>,
    /// Ranks of this node.
    node: Range<u64>,
    epoch: AtomicU64,
    /// Position in the epoch up to which reads have started.
    front: AtomicU64,
    orders: Mutex<Vec<(u64, Arc<EpochView>)>>,
}

/// One range of an object that a block reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BlockRead {
    object: u32,
    start: u64,
    len: u64,
    block: u32,
}

impl BlockRead {
    fn range(&self) -> ByteRange {
        ByteRange::new(self.start, self.len)
    }
}

/// Ranges that the blocks of arrays read. They are stored in a sorted vector, because there may be millions of ranges.
#[derive(Debug)]
struct Readers {
    stretches: Vec<BlockRead>,
}

impl Readers {
    fn new(blocks: &Blocks, part: u64) -> Self {
        let mut stretches: Vec<BlockRead> = Vec::new();
        for (block, of) in blocks.blocks.iter().enumerate() {
            let read = |(object, range): (usize, ByteRange)| BlockRead {
                object: object as u32,
                start: range.start,
                len: range.len,
                block: block as u32,
            };
            stretches.extend(of.stretches(part).into_iter().map(read));
        }
        stretches.sort_unstable();
        Self { stretches }
    }

    /// Returns the blocks that read a range with the same start as `range`.
    fn of(&self, object: u64, range: ByteRange) -> impl Iterator<Item = u64> {
        let place = |read: &BlockRead| (u64::from(read.object), read.start);
        let first = self.stretches.partition_point(|read| place(read) < (object, range.start));
        let same = self.stretches[first..].iter().take_while(move |read| place(read) == (object, range.start));
        same.map(|read| u64::from(read.block))
    }
}

impl NextUse {
    /// Creates an oracle for the ranks `node`, in a job whose batches `steps` describes. The cursor and rank of `steps`
    /// are ignored.
    pub fn new(listing: Arc<Manifest>, base: Key, leaf: DatasetView, steps: Option<Steps>, node: Range<u64>) -> Self {
        let steps = steps.map(|steps| Steps { cursor: 0, ..steps });
        let (epoch, front, orders) = Default::default();
        Self { listing, base, readers: None, leaf, steps, node, epoch, front, orders }
    }

    /// Extends the oracle to arrays, which are read in ranges of at most `part` bytes.
    pub fn of_blocks(self, blocks: &Blocks, part: u64) -> Self {
        Self { readers: Some(Readers::new(blocks, part)), ..self }
    }

    fn entry(&self, key: &Key) -> Option<(u64, &Entry)> {
        let key = key.as_bytes().strip_prefix(self.base.as_bytes())?;
        let of =
            |entry: &Entry| (strip_suffix(entry.key.as_bytes()), entry.key.as_bytes()).cmp(&(strip_suffix(key), key));
        let found = self.listing.objects.binary_search_by(of).ok()?;
        Some((found as u64, &self.listing.objects[found]))
    }

    /// Records that the run of `epoch` has reached the position `front`.
    pub fn reached(&self, epoch: u64, front: u64) {
        // A loader has one run. With two runs at the same time, the cache would only evict less suitable entries.
        self.epoch.store(epoch, Ordering::Relaxed);
        self.front.store(front, Ordering::Relaxed);
    }

    fn epoch_order(&self, epoch: u64) -> Arc<EpochView> {
        let mut orders = lock(&self.orders);
        if let Some((_, order)) = orders.iter().find(|(number, _)| *number == epoch) {
            return order.clone();
        }
        let current = self.epoch.load(Ordering::Relaxed);
        orders.retain(|(number, _)| (current..=current + EPOCHS_AHEAD).contains(number));
        let order = Arc::new(self.leaf.epoch(epoch));
        orders.push((epoch, order.clone()));
        order
    }

    /// Returns the first position after `front` at which this node reads an object. Without `front`, the first position
    /// of the epoch.
    fn position(&self, epoch: u64, object: u64, front: Option<u64>) -> Option<u64> {
        let view = self.epoch_order(epoch);
        let order = &view.order;
        let records = order.counts().records(object);
        if records == 0 {
            return None;
        }
        let is_behind = |position: &u64| front.is_none_or(|front| *position > front);
        if records > FEW_RECORDS {
            let window = order.window(order.position(Place { object, record: 0 })).start;
            return Some(window).filter(is_behind);
        }
        let positions = (0..records).map(|record| order.position(Place { object, record })).filter(is_behind);
        positions.filter(|&position| self.is_ours(position)).min()
    }

    fn is_ours(&self, position: u64) -> bool {
        let Some(steps) = self.steps else { return true };
        let batch = position / steps.global_batch;
        if batch >= steps.count() {
            return false; // this batch is part of a dropped tail
        }
        let first = Steps { rank: self.node.start, ..steps }.slice(batch).start;
        let last = Steps { rank: self.node.end - 1, ..steps }.slice(batch).end;
        (first..last).contains(&position)
    }

    /// Time of the next read of the object that is number `object` of the sample order.
    fn next_read(&self, object: u64) -> u64 {
        let Some(object) = self.leaf.selected(object) else { return u64::MAX };
        let (epoch, front) = (self.epoch.load(Ordering::Relaxed), self.front.load(Ordering::Relaxed));
        (epoch..epoch.saturating_add(EPOCHS_AHEAD))
            .find_map(|at| {
                let position = self.position(at, object, (at == epoch).then_some(front))?;
                at.checked_mul(self.samples())?.checked_add(position)
            })
            .unwrap_or(u64::MAX - 1)
    }

    fn samples(&self) -> u64 {
        self.leaf.samples()
    }
}

impl AccessPlan for NextUse {
    fn now(&self) -> u64 {
        let (epoch, front) = (self.epoch.load(Ordering::Relaxed), self.front.load(Ordering::Relaxed));
        epoch.saturating_mul(self.samples()).saturating_add(front)
    }

    fn next_use(&self, what: &Extent) -> u64 {
        let Some((object, _)) = self.entry(&what.key) else { return u64::MAX };
        match &self.readers {
            None => self.next_read(object),
            Some(readers) => {
                readers.of(object, what.range).map(|block| self.next_read(block)).min().unwrap_or(u64::MAX)
            }
        }
    }

    fn keeps(&self, key: &Key, ranges: &[ByteRange]) -> Option<CachedRange> {
        let size = self.entry(key)?.1.size;
        match (&self.readers, ranges) {
            (None, _) => Some(CachedRange { range: ByteRange::WHOLE, size }),
            // A read of an array caches exactly the range that it reads.
            (Some(_), [range]) => Some(CachedRange { range: *range, size }),
            (Some(_), _) => None,
        }
    }

    fn stretches(&self) -> Box<dyn Iterator<Item = (ObjectRef, ByteRange)> + '_> {
        let object = |entry: &Entry| {
            let key = self.base.join(entry.key.as_bytes());
            ObjectRef { key, version: entry.version.clone() }
        };
        let Some(readers) = &self.readers else {
            return Box::new(self.listing.objects.iter().map(move |entry| (object(entry), ByteRange::WHOLE)));
        };
        Box::new(readers.stretches.iter().map(move |read| {
            let entry = &self.listing.objects[read.object as usize];
            (object(entry), asked(entry, read.range()))
        }))
    }
}
