// SPDX-License-Identifier: Apache-2.0
//! Fetches whole lost objects from the origin and puts them back into the pool. Each object is fetched once for all
//! readers that wait for it, within a memory budget.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use bytes::Bytes;
use penstock_store::PutOptions;
use penstock_types::{Deadline, Error, Key, Metric, Result, lock};
use tokio::sync::{OnceCell, Semaphore};

use super::{GLANCE, ObjectState, Shared};
use crate::memory_budget::{MemoryBudget, Reservation};

/// Maximum total size, in bytes, of objects that are fetched completely or cached for other readers. A larger object is
/// fetched completely only if the origin has it in another form, and only while no other object is fetched. An object
/// that is being written to the pool ([`REFILLS`]) is not counted.
pub(super) const AT_ONCE: u64 = 256 << 20;

/// Time for which a whole object is cached after a range of it was requested. Readers of other ranges use the cached
/// object.
const KEPT: Duration = Duration::from_secs(10);

/// Maximum number of objects that are put back at the same time. An object above this limit is put back when it is read
/// again.
const REFILLS: usize = 4;

/// Time limit for putting an object back.
const REFILL: Duration = Duration::from_secs(60);

/// Bytes of one object, shared by all readers that wait for them.
type Cell = OnceCell<Bytes>;

/// Fetches from the origin and writes to the pool that are in progress.
#[derive(Debug)]
pub(super) struct Refetches {
    cells: Mutex<HashMap<Key, Weak<Cell>>>,
    /// Cached objects with their memory reservations, the oldest first.
    kept: Mutex<VecDeque<(Arc<Cell>, Reservation)>>,
    budget: MemoryBudget,
    refills: Arc<Semaphore>,
}

impl Refetches {
    pub fn new(at_once: u64) -> Self {
        let (budget, refills) = (MemoryBudget::new(at_once), Arc::new(Semaphore::new(REFILLS)));
        Self { cells: Mutex::default(), kept: Mutex::default(), budget, refills }
    }

    /// Maximum size, in bytes, of an object that is fetched completely to serve some of its ranges.
    pub fn at_once(&self) -> u64 {
        self.budget.bytes()
    }

    /// Returns the shared cell for an object's bytes. The cell is dropped when its last holder drops it.
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

    /// Reserves memory for an object. Drops cached objects until the memory is free, including objects that other
    /// readers add while this reader waits.
    async fn room(&self, bytes: u64, deadline: Deadline) -> Result<Reservation> {
        let what = "a lost object of a pool";
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
    /// Fetches the whole object from the origin. Concurrent readers share one fetch. If `is_kept`, the object is cached
    /// for a while. If `is_put_back`, it is put back into the pool.
    pub(super) async fn refetched(
        self: &Arc<Self>,
        key: &Key,
        known: &ObjectState,
        (is_kept, is_put_back): (bool, bool),
        deadline: Deadline,
    ) -> Result<Bytes> {
        let bucket = self.bucket.as_ref().ok_or_else(|| Error::bug("a pool without a bucket cannot refetch"))?;
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
            // The task holds the cell, which serves other reads until the pool has the object again.
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
