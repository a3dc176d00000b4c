// SPDX-License-Identifier: Apache-2.0
//! Epoch prefetch: while an epoch ends, fetches the first objects of the next epoch. The next epoch then starts without
//! waiting for the store.
//!
//! Owns the data fetched between two epochs. Only the expected next epoch uses this data; any other epoch drops it. No
//! position, state or order depends on a prefetch. Two limits apply to the prefetched bytes. They are at most a
//! fraction of the bytes read in the current epoch, so a job that stops here has paid for little unused data. They must
//! also fit in the memory that the next epoch can spare.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_types::{Error, Result, lock};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::Feed;
use super::batch_bounds::Steps;
use super::batch_plan::Task;
use super::object_content::Content;
use super::read_scheduling::ReadScheduler;
use super::timing::Trace;
use crate::memory_budget::Reservation;

/// Limit of the prefetch: at most 1/16 of the bytes read in an epoch are prefetched for the next epoch.
const SHARE: u64 = 16;

/// Minimum number of reads in an epoch for a prefetch. An epoch with fewer reads ends before a prefetch can complete.
const MIN_READS: u64 = 32;

/// Result of a fetch: its content or error, and its timing trace.
pub(super) type Fetched = (Result<Content>, Trace);

/// A prefetch that no epoch has taken yet. Dropping it cancels the fetch.
struct Prefetched {
    task: Task,
    reserved: Reservation,
    fetch: Fetch,
}

/// A fetch in progress. Dropping it cancels the fetch.
pub(super) struct Fetch(JoinHandle<Fetched>);

impl Fetch {
    /// Waits for the fetch and returns its result. Returns an error if the fetch was aborted or panicked.
    pub async fn ended(mut self) -> Result<Fetched> {
        (&mut self.0).await.map_err(|error| Error::bug(format!("a fetch for the next epoch: {error}")))
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Prefetches of an epoch's first tasks, in the order in which the epoch needs them.
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
    /// Returns the next prefetch if it is for `task`. Otherwise, drops all remaining prefetches.
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
    /// Takes the prefetched data if it is for the epoch that starts with these parameters. Otherwise, drops the data.
    pub(super) fn take_prefetched(&self, epoch: u64, steps: Steps) -> Option<EpochPrefetch> {
        let ahead = lock(&self.ahead).take();
        ahead.filter(|ahead| ahead.epoch == epoch && ahead.steps == steps)
    }

    /// Starts fetches for the epoch after `epoch`. The run of `epoch` has already sent all of its requests: `reads`
    /// requests for `read` bytes in total.
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
        let tasks = self.tasks(epoch, self.batches(epoch, steps)?)?;
        for (task, reads) in ReadScheduler::new(self, tasks) {
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
                let claims = source.claim(object);
                async move {
                    let fetched = source.fetched(object, &reads, claims, timeout).await;
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
