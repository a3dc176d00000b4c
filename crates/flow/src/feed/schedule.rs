// SPDX-License-Identifier: Apache-2.0
//! When this node reads each object next: the order, read backwards, for the node's cache.
//!
//! Owns no choice: the cache decides what gives way.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use penstock_codec::strip_suffix;
use penstock_store::ObjectRef;
use penstock_types::Key;

use super::plan::Steps;
use crate::cache::Future;
use crate::course::Leaf;
use crate::manifest::{Entry, Manifest};
use crate::order::{EpochOrder, Place};

/// Epochs looked ahead: in a job of many nodes the next reader of an object may be another node for a while.
const EPOCHS_AHEAD: u64 = 4;

/// Records of an object that are looked up one by one. With more, some rank of every node reads it in its window.
const FEW_RECORDS: u64 = 16;

/// The times of one node's reads of one dataset, as positions counted over all epochs.
#[derive(Debug)]
pub(super) struct Schedule {
    manifest: Arc<Manifest>,
    /// What the manifest's keys are below.
    base: Key,
    leaf: Leaf,
    /// Which rank reads what; `None` where a mixture or a selection of positions stands between.
    steps: Option<Steps>,
    /// The ranks of this node.
    node: Range<u64>,
    epoch: AtomicU64,
    /// The position of the epoch up to which reads have begun.
    front: AtomicU64,
    orders: Mutex<Vec<(u64, Arc<EpochOrder>)>>,
}

impl Schedule {
    /// For the ranks `node` of the job that `steps` describes (whose cursor and rank do not matter here).
    pub fn new(manifest: Arc<Manifest>, base: Key, leaf: Leaf, steps: Option<Steps>, node: Range<u64>) -> Self {
        let steps = steps.map(|steps| Steps { cursor: 0, ..steps });
        let (epoch, front, orders) = Default::default();
        Self { manifest, base, leaf, steps, node, epoch, front, orders }
    }

    fn entry(&self, key: &Key) -> Option<(u64, &Entry)> {
        let key = key.as_bytes().strip_prefix(self.base.as_bytes())?;
        let of =
            |entry: &Entry| (strip_suffix(entry.key.as_bytes()), entry.key.as_bytes()).cmp(&(strip_suffix(key), key));
        let found = self.manifest.objects.binary_search_by(of).ok()?;
        Some((found as u64, &self.manifest.objects[found]))
    }

    /// A pass over `epoch` begins, or has come to read what stands at `front`.
    pub fn reached(&self, epoch: u64, front: u64) {
        // Two passes at once, which a loader does not make, would cost a poor choice and nothing else.
        self.epoch.store(epoch, Ordering::Relaxed);
        self.front.store(front, Ordering::Relaxed);
    }

    fn epoch_order(&self, epoch: u64) -> Arc<EpochOrder> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = orders.iter().find(|(number, _)| *number == epoch) {
            return order.clone();
        }
        let current = self.epoch.load(Ordering::Relaxed);
        orders.retain(|(number, _)| (current..=current + EPOCHS_AHEAD).contains(number));
        let order = Arc::new(self.leaf.order().epoch(epoch));
        orders.push((epoch, order.clone()));
        order
    }

    /// The first position of an object behind `front` that is read by this node.
    fn position(&self, epoch: u64, object: u64, front: Option<u64>) -> Option<u64> {
        let records = self.leaf.order().counts().records(object);
        if records == 0 {
            return None;
        }
        let order = self.epoch_order(epoch);
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
            return false; // the tail is dropped
        }
        let first = Steps { rank: self.node.start, ..steps }.slice(batch).start;
        let last = Steps { rank: self.node.end - 1, ..steps }.slice(batch).end;
        (first..last).contains(&position)
    }

    fn samples(&self) -> u64 {
        self.leaf.order().samples()
    }
}

impl Future for Schedule {
    fn now(&self) -> u64 {
        let (epoch, front) = (self.epoch.load(Ordering::Relaxed), self.front.load(Ordering::Relaxed));
        epoch.saturating_mul(self.samples()).saturating_add(front)
    }

    fn next_use(&self, key: &Key) -> u64 {
        let Some(object) = self.entry(key).and_then(|(object, _)| self.leaf.selected(object)) else { return u64::MAX };
        let (epoch, front) = (self.epoch.load(Ordering::Relaxed), self.front.load(Ordering::Relaxed));
        (epoch..epoch.saturating_add(EPOCHS_AHEAD))
            .find_map(|at| {
                let position = self.position(at, object, (at == epoch).then_some(front))?;
                at.checked_mul(self.samples())?.checked_add(position)
            })
            .unwrap_or(u64::MAX - 1)
    }

    fn size(&self, key: &Key) -> Option<u64> {
        self.entry(key).map(|(_, entry)| entry.size)
    }

    fn objects(&self) -> Box<dyn Iterator<Item = ObjectRef> + '_> {
        Box::new(
            self.manifest
                .objects
                .iter()
                .map(|entry| ObjectRef { key: self.base.join(entry.key.as_bytes()), version: entry.version.clone() }),
        )
    }
}
