// SPDX-License-Identifier: Apache-2.0
//! When this node reads each object next: the order, read backwards, for the node's cache.
//!
//! Owns no choice: the cache decides what gives way.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use penstock_store::ObjectRef;
use penstock_types::Key;

use super::plan::Steps;
use super::source::Source;
use crate::cache::Future;
use crate::order::{EpochOrder, Order, Place};

/// Epochs looked ahead: in a job of many nodes the next reader of an object may be another node for a while.
const EPOCHS_AHEAD: u64 = 4;

/// Records of an object that are looked up one by one. With more, some rank of every node reads it in its window.
const FEW_RECORDS: u64 = 16;

/// The times of one node's reads, as positions counted over all epochs.
#[derive(Debug)]
pub struct Schedule {
    source: Arc<Source>,
    order: Order,
    steps: Steps,
    /// The ranks of this node.
    node: Range<u64>,
    epoch: AtomicU64,
    /// The position of the epoch up to which reads have begun.
    front: AtomicU64,
    orders: Mutex<Vec<(u64, Arc<EpochOrder>)>>,
}

impl Schedule {
    /// For the ranks `node` of the job that `steps` describes (whose cursor and rank do not matter here).
    pub fn new(source: Arc<Source>, order: Order, steps: Steps, node: Range<u64>) -> Self {
        let (epoch, front, orders) = Default::default();
        Self { source, order, steps: Steps { cursor: 0, ..steps }, node, epoch, front, orders }
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
        let order = Arc::new(self.order.epoch(epoch));
        orders.push((epoch, order.clone()));
        order
    }

    /// The object's first position behind `front` that is of this node.
    fn position(&self, epoch: u64, object: u64, front: Option<u64>) -> Option<u64> {
        let (order, records) = (self.epoch_order(epoch), self.order.counts().records(object));
        let is_behind = |position: &u64| front.is_none_or(|front| *position > front);
        if records > FEW_RECORDS {
            return Some(order.window(order.position(Place { object, record: 0 })).start).filter(is_behind);
        }
        let positions = (0..records).map(|record| order.position(Place { object, record })).filter(is_behind);
        positions.filter(|&position| self.is_ours(position)).min()
    }

    fn is_ours(&self, position: u64) -> bool {
        let batch = position / self.steps.global_batch;
        if batch >= self.steps.count() {
            return false; // the tail is dropped
        }
        let first = Steps { rank: self.node.start, ..self.steps }.slice(batch).start;
        let last = Steps { rank: self.node.end - 1, ..self.steps }.slice(batch).end;
        (first..last).contains(&position)
    }
}

impl Future for Schedule {
    fn now(&self) -> u64 {
        let (epoch, front) = (self.epoch.load(Ordering::Relaxed), self.front.load(Ordering::Relaxed));
        epoch.saturating_mul(self.order.samples()).saturating_add(front)
    }

    fn next_use(&self, key: &Key) -> u64 {
        let Some(object) = self.source.object_of(key) else { return u64::MAX };
        let (epoch, front) = (self.epoch.load(Ordering::Relaxed), self.front.load(Ordering::Relaxed));
        (epoch..epoch.saturating_add(EPOCHS_AHEAD))
            .find_map(|at| {
                let position = self.position(at, object, (at == epoch).then_some(front))?;
                at.checked_mul(self.order.samples())?.checked_add(position)
            })
            .unwrap_or(u64::MAX - 1)
    }

    fn size(&self, key: &Key) -> Option<u64> {
        self.source.object_of(key).map(|object| self.source.entry(object).size)
    }

    fn objects(&self) -> Box<dyn Iterator<Item = ObjectRef> + '_> {
        Box::new((0..self.source.manifest().objects.len() as u64).map(|object| self.source.reference(object)))
    }
}
