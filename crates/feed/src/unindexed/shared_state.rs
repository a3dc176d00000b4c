// SPDX-License-Identifier: Apache-2.0
//! State of a running unindexed epoch. The consumer, the runtime's tasks and the decoding threads share it.

use super::super::batch_rows::Rows;
use super::super::on_error::{ErrorLog, OnError, is_about_data};
use super::super::timing::{Busy, Trace};
use super::{Position, Unindexed};
use penstock_types::{Error, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A batch in progress.
pub(super) struct Open {
    pub rows: Arc<Rows>,
    /// Number of rows that are not filled yet.
    pub left: usize,
    /// Number of rows in the batch. The last batch of an epoch may have fewer rows than `Turns::batch`.
    pub count: usize,
    /// Rows that get no sample.
    pub dead: Vec<u32>,
    /// Row number and error of the failed row with the lowest number.
    pub error: Option<(u32, Error)>,
    pub last: Option<Trace>,
    /// Position in the epoch after this batch.
    pub end: Position,
}

#[derive(Default)]
pub(super) struct State {
    pub open: BTreeMap<u64, Open>,
    /// Number of batches in the epoch. `None` until the number is known.
    pub total: Option<u64>,
    pub failed: Option<Error>,
    pub closed: bool,
}

/// State shared by the consumer, the runtime's tasks and the decoding threads.
pub struct Shared {
    pub(super) feed: Arc<Unindexed>,
    pub(super) epoch: u64,
    state: Mutex<State>,
    pub(super) wake: Condvar,
    pub(super) busy: Busy,
    pub(super) error_log: ErrorLog,
}

impl Shared {
    pub(super) fn new(feed: Arc<Unindexed>, epoch: u64) -> Self {
        let (state, wake) = (Mutex::default(), Condvar::new());
        Self { feed, epoch, state, wake, busy: Busy::default(), error_log: ErrorLog::default() }
    }

    pub(super) fn locked(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Records that `rows` rows of a batch are done. `bad` lists the rows that get no sample, with their errors.
    pub(super) fn settle(&self, batch: u64, rows: usize, trace: Trace, bad: Vec<(u32, Error)>) {
        let mut state = self.locked();
        let Some(open) = state.open.get_mut(&batch) else { return };
        for (row, error) in bad {
            if self.feed.settings.on_error == OnError::Skip && is_about_data(&error) {
                self.error_log.skipped(&error);
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
