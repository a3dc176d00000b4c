// SPDX-License-Identifier: Apache-2.0
//! Epoch prefetch: fetches the first objects of the next epoch while this one ends, so that an epoch does not begin
//! with a wait for the store.
//!
//! Owns the data fetched between two epochs. Only the epoch that they were fetched for uses them; any other drops them,
//! so no position, state or order depends on them. Two limits apply: a share of what this epoch has read, so that a job
//! that stops here has paid little for unused data, and the memory that the next epoch can spare.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_types::{Error, Result, lock};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::Feed;
use super::batch_plan::{Steps, Task, Tasks};
use super::object_content::Content;
use super::read_split::ReadSplitter;
use super::timing::Trace;
use crate::memory_budget::Reservation;

/// Maximum share of the bytes read in an epoch that is read ahead for the next: one in 16.
const SHARE: u64 = 16;

/// An epoch of fewer reads is too short to hide a prefetch behind it.
const MIN_READS: u64 = 32;

/// Result of a fetch.
pub(super) type Fetched = (Result<Content>, Trace);

/// A fetch that no epoch waits for yet. Dropping it cancels it.
struct Prefetched {
    task: Task,
    reserved: Reservation,
    fetch: Fetch,
}

/// A fetch in progress.
pub(super) struct Fetch(JoinHandle<Fetched>);

impl Fetch {
    /// Fetched bytes. A lost fetch is an error like any other.
    pub async fn ended(mut self) -> Result<Fetched> {
        (&mut self.0).await.map_err(|error| Error::bug(format!("a fetch for the next epoch: {error}")))
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The first tasks of an epoch, in the order of need.
pub(super) struct EpochPrefetch {
    epoch: u64,
    steps: Steps,
    early: VecDeque<Prefetched>,
}

impl std::fmt::Debug for EpochPrefetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpochPrefetch")
            .field("epoch", &self.epoch)
            .field("tasks", &self.early.len())
            .finish_non_exhaustive()
    }
}

impl EpochPrefetch {
    /// The fetch of `task`, if it is the next one that was started; otherwise the started fetches are dropped.
    pub fn take(&mut self, task: &Task) -> Option<(Fetch, Reservation)> {
        let early = self.early.pop_front()?;
        if early.task != *task {
            self.early.clear();
            return None;
        }
        Some((early.fetch, early.reserved))
    }
}

impl Feed {
    /// Fetches for an epoch that starts with these parameters; all others are dropped.
    pub(super) fn take_prefetched(&self, epoch: u64, steps: Steps) -> Option<EpochPrefetch> {
        let ahead = lock(&self.ahead).take();
        ahead.filter(|ahead| ahead.epoch == epoch && ahead.steps == steps)
    }

    /// Starts to fetch for the epoch after `epoch`, whose run has read `read` bytes in `reads` requests and sends no
    /// more.
    pub(super) async fn prefetch_next_epoch(
        self: &Arc<Self>,
        epoch: u64,
        steps: Steps,
        (reads, read): (u64, u64),
        requests: &Arc<Semaphore>,
    ) -> Result<()> {
        let Some(epoch) = epoch.checked_add(1).filter(|_| reads >= MIN_READS) else { return Ok(()) };
        let steps = Steps { cursor: 0, ..steps };
        let mut room = self.ahead_bytes.min(read / SHARE);
        let tasks = Tasks::new(self.walk()?, epoch, steps, self.horizon);
        for (task, reads) in ReadSplitter::new(self, tasks) {
            let source = &self.sources[task.leaf];
            if reads.bytes > room {
                break;
            }
            room -= reads.bytes;
            let permit =
                requests.clone().acquire_owned().await.map_err(|_| Error::bug("the semaphore is never closed"))?;
            let reserved = self.budget.reserve("an object of the next epoch", reads.bytes).await?;
            let fetch = tokio::spawn({
                let (source, timeout, object) = (source.clone(), self.object_timeout, task.object);
                async move {
                    let fetched = source.fetched(object, &reads, timeout).await;
                    drop(permit);
                    fetched
                }
            });
            let early = Prefetched { task, reserved, fetch: Fetch(fetch) };
            let mut ahead = lock(&self.ahead);
            ahead.get_or_insert_with(|| EpochPrefetch { epoch, steps, early: VecDeque::new() }).early.push_back(early);
        }
        Ok(())
    }
}
