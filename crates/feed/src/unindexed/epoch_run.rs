// SPDX-License-Identifier: Apache-2.0
//! One pass of one rank over (what is left of) an epoch that nobody counted: streams run ahead in the order of objects,
//! windows are given rows as they come, a few threads decode them, and batches come out in order.
//!
//! A batch is opened only when those before it
//! are and the consumer is near, so what is open is bounded and the first of it can always be filled.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_types::{Error, Result, lock, now};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::super::batch_rows::Rows;
use super::super::epoch_iter::{Delivered, EpochIter, EpochSource, Next};
use super::super::on_error::{ErrorLog, OnError, is_about_data};
use super::super::timing::{Busy, Trace};
use super::assign::Feeder;
use super::decode_workers::work;
use super::{Position, Unindexed};

/// A batch under way.
pub(super) struct Open {
    pub rows: Arc<Rows>,
    /// Rows still missing.
    pub left: usize,
    /// Rows that it has; fewer than were asked for in an epoch's last.
    pub count: usize,
    /// Rows that no sample took.
    pub dead: Vec<u32>,
    /// The error of the lowest row that has one.
    pub error: Option<(u32, Error)>,
    pub last: Option<Trace>,
    /// Where the epoch stands once it is delivered.
    pub end: Position,
}

#[derive(Default)]
pub(super) struct State {
    pub open: BTreeMap<u64, Open>,
    /// How many batches there are, once that is known.
    pub total: Option<u64>,
    pub failed: Option<Error>,
    pub closed: bool,
}

/// State that the consumer, the runtime's tasks and the decoding threads share.
pub struct Shared {
    pub(super) feed: Arc<Unindexed>,
    pub(super) epoch: u64,
    state: Mutex<State>,
    pub(super) wake: Condvar,
    pub(super) busy: Busy,
    pub(super) mending: ErrorLog,
}

impl Shared {
    pub(super) fn new(feed: Arc<Unindexed>, epoch: u64) -> Self {
        let (state, wake) = (Mutex::default(), Condvar::new());
        Self { feed, epoch, state, wake, busy: Busy::default(), mending: ErrorLog::default() }
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Notes that `rows` rows of a batch have ended, `bad` of them without a sample.
    pub(super) fn settle(&self, batch: u64, rows: usize, trace: Trace, bad: Vec<(u32, Error)>) {
        let mut state = self.locked();
        let Some(open) = state.open.get_mut(&batch) else { return };
        for (row, error) in bad {
            if self.feed.settings.on_error == OnError::Skip && is_about_data(&error) {
                self.mending.skipped(&error);
                open.dead.push(row);
            } else if open.error.as_ref().is_none_or(|(known, _)| row < *known) {
                open.error = Some((row, error));
            }
        }
        (open.left, open.last) = (open.left - rows, Some(trace));
        if open.left == 0 {
            self.wake.notify_all();
        }
    }
}

/// One pass over an epoch that nobody counted.
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
                    // The error takes the place of the batch that the next record would have been in.
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
            // An error belongs behind the batches that are under way.
            Some(open) => open.left == 0,
            None => state.failed.is_some() || state.total.is_some_and(|total| number >= total),
        }
    }

    fn take(&self, number: u64, patience: Duration) -> Result<(Next, Option<Trace>)> {
        let feed = &self.feed;
        let Some(mut open) = self.wait(number, patience)? else {
            let is_done = self.locked().total.is_some_and(|total| number >= total);
            return Ok((if is_done { Next::Done } else { Next::Waiting }, None));
        };
        if let Some((_, error)) = open.error.take() {
            return Err(error);
        }
        feed.value_bytes.fetch_max(open.rows.values().per_row(open.count), Ordering::Relaxed);
        open.dead.sort_unstable();
        // SAFETY: the last row is in, and the batch is out of the open ones.
        let rows = unsafe { open.rows.remove(&open.dead, open.count) };
        let columns = open.rows.columns(&feed.fields, rows, &feed.loose)?;
        Ok((Next::Batch(Delivered { number, rows, columns, cursor: open.end.packed() }), open.last))
    }

    fn end(&self) {
        let mut state = self.locked();
        state.closed = true;
        state.open.clear();
    }

    fn busy(&self) -> &Busy {
        &self.busy
    }

    fn mending(&self) -> &ErrorLog {
        &self.mending
    }
}

impl Shared {
    /// A batch once it is complete, taken from the open ones; `None` when the time is up or there is none.
    fn wait(&self, number: u64, patience: Duration) -> Result<Option<Open>> {
        let until = now() + patience;
        let mut state = self.locked();
        loop {
            if state.open.get(&number).is_some_and(|open| open.left == 0) {
                return Ok(state.open.remove(&number));
            }
            // An error belongs behind the batches that are under way.
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
