// SPDX-License-Identifier: Apache-2.0
//! Runs one rank's epoch, or the rest of it, in unindexed mode. Objects are streamed ahead in the order of the epoch.
//! When a window of records arrives, its records are assigned to rows. A few threads decode the windows, and batches
//! are delivered in order.
//!
//! A batch is opened only after all earlier batches, and only if the consumer will need it soon. The number of open
//! batches is therefore limited, and the first open batch can always be filled.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use penstock_types::{Result, now};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::super::epoch_iter::{Delivered, EpochIter, EpochSource, Next};
use super::super::on_error::ErrorLog;
use super::super::timing::{Busy, Trace};
use super::decode_workers::work;
use super::row_assignment::Feeder;
use super::shared_state::{Open, Shared};
use super::{Position, Unindexed};

/// A running epoch of an unindexed dataset.
pub type UnindexedRun = EpochIter<Shared>;

impl UnindexedRun {
    pub(super) fn over(feed: Arc<Unindexed>, runtime: &Handle, epoch: u64, position: Position) -> Result<Self> {
        let (consumed, watched) = watch::channel(0u64);
        let (jobs, queue) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared::new(feed.clone(), epoch));
        let work = {
            let shared = shared.clone();
            move || work(&shared, &queue)
        };
        let feeder = {
            let shared = shared.clone();
            async move {
                let mut feeder = Feeder::new(shared.clone(), jobs, watched, position);
                if let Err(error) = feeder.run(position).await {
                    let mut state = shared.locked();
                    // The consumer gets the error instead of the batch that would contain the next record.
                    state.open.remove(&(feeder.batch()));
                    state.failed = Some(error);
                }
                shared.wake.notify_all();
            }
        };
        EpochIter::start(shared, consumed, feed.threads, work, runtime, feeder)
    }
}

impl EpochSource for Shared {
    fn is_ready(&self, number: u64) -> bool {
        let state = self.locked();
        match state.open.get(&number) {
            // The consumer gets an error only after the batches in progress.
            Some(open) => open.left == 0,
            None => state.failed.is_some() || state.total.is_some_and(|total| number >= total),
        }
    }

    fn take(&self, number: u64, timeout: Duration) -> Result<(Next, Option<Trace>)> {
        let feed = &self.feed;
        let Some(mut open) = self.wait(number, timeout)? else {
            let is_done = self.locked().total.is_some_and(|total| number >= total);
            return Ok((if is_done { Next::Done } else { Next::Waiting }, None));
        };
        if let Some((_, error)) = open.error.take() {
            return Err(error);
        }
        feed.value_bytes.fetch_max(open.rows.values().per_row(open.count), Ordering::Relaxed);
        open.dead.sort_unstable();
        // SAFETY: the last row was filled, and the batch was removed from the open batches.
        let rows = unsafe { open.rows.remove(&open.dead, open.count) };
        let columns = open.rows.columns(&feed.fields, rows, &feed.loose)?;
        Ok((Next::Batch(Delivered { number, rows, columns, cursor: open.end.packed(), positions: None }), open.last))
    }

    fn end(&self) {
        let mut state = self.locked();
        state.closed = true;
        state.open.clear();
    }

    fn busy(&self) -> &Busy {
        &self.busy
    }

    fn error_log(&self) -> &ErrorLog {
        &self.error_log
    }
}

impl Shared {
    /// Waits for a batch to complete, and removes it from the open batches. Returns `None` after the timeout, or if the
    /// epoch has no batch `number`.
    fn wait(&self, number: u64, timeout: Duration) -> Result<Option<Open>> {
        let until = now() + timeout;
        let mut state = self.locked();
        loop {
            if state.open.get(&number).is_some_and(|open| open.left == 0) {
                return Ok(state.open.remove(&number));
            }
            // The consumer gets an error only after the batches in progress.
            if let Some(error) = state.failed.clone().filter(|_| !state.open.contains_key(&number)) {
                return Err(error);
            }
            let left = until.saturating_duration_since(now());
            if left.is_zero() || state.total.is_some_and(|total| number >= total) {
                return Ok(None);
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
