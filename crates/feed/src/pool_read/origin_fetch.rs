// SPDX-License-Identifier: Apache-2.0
//! Whole objects from the bucket: each once for all who ask, within a budget, and into the pool again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use penstock_store::PutOptions;
use penstock_types::{Deadline, Error, Key, Metric, Result, lock};
use tokio::sync::{OnceCell, Semaphore};

use super::{GLANCE, Known, Shared};
use crate::memory_budget::{MemoryBudget, Reservation};

/// Bytes of objects that are fetched whole, or kept for others, at a time. A larger one is fetched whole only where the
/// bucket does not have it as the pool had it, and then alone. What goes back into the pool is [`REFILLS`] objects more.
pub(super) const AT_ONCE: u64 = 256 << 20;

/// So long an object of which a range was asked is kept for those who ask for other ranges.
const KEPT: Duration = Duration::from_secs(10);

/// Objects that are put back at a time; what comes meanwhile is put back when it is read again.
const REFILLS: usize = 4;

/// By when an object must have been put back.
const REFILL: Duration = Duration::from_secs(60);

/// One object's bytes, for all who wait for them.
type Cell = OnceCell<Bytes>;

/// Fetches from the bucket, and writes back to the pool, that are in progress.
#[derive(Debug)]
pub(super) struct Refetches {
    cells: Mutex<HashMap<Key, Weak<Cell>>>,
    /// The oldest first.
    kept: Mutex<VecDeque<(Arc<Cell>, Reservation)>>,
    budget: MemoryBudget,
    refills: Arc<Semaphore>,
}

impl Refetches {
    pub fn new(at_once: u64) -> Self {
        let (budget, refills) = (MemoryBudget::new(at_once), Arc::new(Semaphore::new(REFILLS)));
        Self { cells: Mutex::default(), kept: Mutex::default(), budget, refills }
    }

    /// The most bytes that an object may have which is fetched whole for some of its ranges.
    pub fn at_once(&self) -> u64 {
        self.budget.bytes()
    }

    /// Where an object's bytes come together; it is forgotten with its last holder.
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let mut cells = lock(&self.cells);
        if let Some(cell) = cells.get(key).and_then(Weak::upgrade) {
            return cell;
        }
        cells.retain(|_, cell| cell.strong_count() > 0);
        let cell = Arc::new(Cell::new());
        cells.insert(key.clone(), Arc::downgrade(&cell));
        cell
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(Arc<Cell>, Reservation)>> {
        lock(&self.kept)
    }

    /// Room for an object; what is only kept goes first, also what others begin to keep meanwhile.
    async fn room(&self, bytes: u64, deadline: Deadline) -> Result<Reservation> {
        let what = "an object that a pool has lost";
        let bytes = bytes.min(self.budget.bytes());
        let mut reserved = std::pin::pin!(self.budget.reserve(what, bytes));
        loop {
            while self.budget.free() < bytes && self.kept().pop_front().is_some() {}
            tokio::select! {
                biased;
                reservation = &mut reserved => return reservation,
                () = tokio::time::sleep(GLANCE) => deadline.check(what)?,
            }
        }
    }
}

impl Shared {
    /// The whole object from the bucket; those who ask meanwhile get the same bytes. It is kept a while for others where
    /// `is_kept`, and the pool gets it back where `is_put_back`.
    pub(super) async fn refetched(
        self: &Arc<Self>,
        key: &Key,
        known: &Known,
        (is_kept, is_put_back): (bool, bool),
        deadline: Deadline,
    ) -> Result<Bytes> {
        let bucket = self.bucket.as_ref().ok_or_else(|| Error::bug("a pool without a bucket refetches nothing"))?;
        let cell = self.refetches.cell(key);
        let mut room = None;
        let mine = &mut room;
        let fetch = move || async move {
            *mine = Some(self.refetches.room(known.size, deadline).await?);
            bucket.fetch(key, known, deadline).await
        };
        let bytes = cell.get_or_try_init(fetch).await?.clone();
        let Some(room) = room else { return Ok(bytes) };
        if is_kept {
            self.keep(cell.clone(), room);
        }
        if is_put_back && let Ok(permit) = self.refetches.refills.clone().try_acquire_owned() {
            let (shared, key, body) = (self.clone(), key.clone(), bytes.clone());
            // The cell goes along: a read before the pool has it again is answered from it.
            tokio::spawn(async move {
                let put = shared.pool.put(&key, vec![body], &PutOptions::default(), Deadline::within(REFILL)).await;
                if put.is_ok() {
                    shared.metrics.count(Metric::PoolRefills);
                    shared.health.came_back(&key);
                }
                drop((permit, cell));
            });
        }
        Ok(bytes)
    }

    fn keep(self: &Arc<Self>, cell: Arc<Cell>, room: Reservation) {
        let (shared, mine) = (Arc::downgrade(self), Arc::downgrade(&cell));
        self.refetches.kept().push_back((cell, room));
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            if let Some(shared) = shared.upgrade() {
                shared.refetches.kept().retain(|(cell, _)| !std::ptr::eq(Arc::as_ptr(cell), mine.as_ptr()));
            }
        });
    }
}
