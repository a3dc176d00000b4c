// SPDX-License-Identifier: Apache-2.0
//! State shared by the consumer, the runtime's tasks and the decoding threads of an epoch.

use super::super::batch_rows::Rows;
use super::super::on_error::{ErrorLog, OnError, is_about_data};
use super::super::timing::{Busy, Trace};
use super::{Position, Unindexed};
use penstock_types::{Error, lock};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A batch under way.
pub(super) struct Open {
    pub rows: Arc<Rows>,
    /// Rows still missing.
    pub left: usize,
    /// Rows that it has; fewer than were asked for in an epoch's last.
    pub count: usize,
    /// Rows that no sample took.
    pub dead: Vec<u32>,
    /// Error of the lowest row that failed.
    pub error: Option<(u32, Error)>,
    pub last: Option<Trace>,
    /// Position in the epoch once it is delivered.
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
