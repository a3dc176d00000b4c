// SPDX-License-Identifier: Apache-2.0
//! One pass of one rank over (what is left of) an epoch that nobody counted: streams run ahead in the order of objects,
//! windows are given rows as they come, a few threads decode them, and batches come out in order.
//!
//! Owns the threads and streams of the pass and ends them when it is dropped. A batch is opened only when those before it
//! are and the consumer is near, so what is open is bounded and the first of it can always be filled.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_types::{Error, Result, now};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::super::mend::{Mended, Mending, OnError, is_about_data};
use super::super::rows::Rows;
use super::super::run::{Delivered, Next};
use super::super::timing::{Busy, Trace, Waits};
use super::decoding::work;
use super::feeder::Feeder;
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
    failed: Option<Error>,
    pub closed: bool,
}

/// What the consumer, the runtime's tasks and the decoding threads share.
pub(super) struct Shared {
    pub feed: Arc<Unindexed>,
    pub epoch: u64,
    state: Mutex<State>,
    pub wake: Condvar,
    pub busy: Busy,
    pub mending: Mending,
}

impl Shared {
    pub fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `rows` rows of a batch have ended, `bad` of them without a sample.
    pub fn settle(&self, batch: u64, rows: usize, trace: Trace, bad: Vec<(u32, Error)>) {
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

/// One pass. Dropping it ends its threads and requests.
pub struct UnindexedRun {
    inner: Option<Inner>,
    pid: u32,
    timing: (Waits, Busy),
    mended: Mended,
}

impl std::fmt::Debug for UnindexedRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnindexedRun").field("pid", &self.pid).finish_non_exhaustive()
    }
}

struct Inner {
    shared: Arc<Shared>,
    consumed: watch::Sender<u64>,
    feeder: AbortHandle,
    threads: Vec<std::thread::JoinHandle<()>>,
    next: u64,
    waits: Waits,
    waiting: Option<Instant>,
}

impl UnindexedRun {
    pub(super) fn start(feed: Arc<Unindexed>, runtime: &Handle, epoch: u64, position: Position) -> Result<Self> {
        let (consumed, watched) = watch::channel(0u64);
        let (jobs, queue) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared {
            feed: feed.clone(),
            epoch,
            state: Mutex::default(),
            wake: Condvar::new(),
            busy: Busy::default(),
            mending: Mending::default(),
        });
        let threads = (0..feed.threads)
            .map(|number| {
                let (shared, queue) = (shared.clone(), queue.clone());
                std::thread::Builder::new()
                    .name(format!("penstock-dec-{number}"))
                    .spawn(move || work(&shared, &queue))
                    .map_err(|error| Error::from_io("a decoding thread", &error))
            })
            .collect::<Result<Vec<_>>>()?;
        let feeder = runtime.spawn({
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
        });
        let feeder = feeder.abort_handle();
        let inner = Inner { shared, consumed, feeder, threads, next: 0, waits: Waits::default(), waiting: None };
        Ok(Self { inner: Some(inner), pid: std::process::id(), timing: Default::default(), mended: Mended::default() })
    }

    fn inner(&mut self) -> Result<Option<&mut Inner>> {
        if self.pid != std::process::id() {
            return Err(Error::config(
                "iterator",
                format!("it belongs to process {}; make a new one in this process with iter(loader)", self.pid),
            ));
        }
        Ok(self.inner.as_mut())
    }

    /// The next batch, waited for at most `patience`; its cursor is a [`Position`], packed. After an error, and after the
    /// last batch, the pass is closed.
    pub fn next(&mut self, patience: Duration) -> Result<Next> {
        let Some(inner) = self.inner()? else { return Ok(Next::Done) };
        let next = inner.next(patience);
        if !matches!(next, Ok(Next::Batch(_) | Next::Waiting)) {
            self.close();
        }
        next
    }

    /// True when [`UnindexedRun::next`] would answer at once.
    pub fn is_ready(&mut self) -> Result<bool> {
        let Some(inner) = self.inner()? else { return Ok(true) };
        let state = inner.shared.locked();
        let is_there = state.open.get(&inner.next).is_some_and(|open| open.left == 0);
        Ok(is_there || state.failed.is_some() || state.total.is_some_and(|total| inner.next >= total))
    }

    /// As [`super::super::Run::timing`].
    pub fn timing(&mut self) -> Result<(Waits, Busy)> {
        if let Some(inner) = self.inner()? {
            self.timing = (inner.waits, inner.shared.busy.snapshot());
        }
        Ok((self.timing.0, self.timing.1.snapshot()))
    }

    /// What was done about samples that could not be read.
    pub fn mended(&mut self) -> Result<Mended> {
        if let Some(inner) = self.inner()? {
            self.mended = inner.shared.mending.snapshot();
        }
        Ok(self.mended.clone())
    }

    /// Ends threads and requests; waits for the threads, each at most a few records from its end.
    pub fn close(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if self.pid != std::process::id() {
            // The threads live in the parent; their locks may be held for ever here.
            std::mem::forget(inner);
            return;
        }
        inner.feeder.abort();
        {
            let mut state = inner.shared.locked();
            state.closed = true;
            state.open.clear();
        }
        drop(inner.consumed);
        for thread in inner.threads {
            // A panic there has been turned into an error already.
            let _ = thread.join();
        }
        self.timing = (inner.waits, inner.shared.busy.snapshot());
        self.mended = inner.shared.mending.snapshot();
    }
}

impl Drop for UnindexedRun {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn next(&mut self, patience: Duration) -> Result<Next> {
        let began = *self.waiting.get_or_insert_with(now);
        let feed = &self.shared.feed;
        let Some(mut open) = self.wait(patience)? else {
            let state = self.shared.locked();
            return Ok(match state.total {
                Some(total) if self.next >= total => Next::Done,
                _ => Next::Waiting,
            });
        };
        if let Some((_, error)) = open.error.take() {
            return Err(error);
        }
        open.dead.sort_unstable();
        // SAFETY: the last row is in, and the batch is out of the open ones.
        let rows = unsafe { open.rows.remove(&open.dead, open.count) };
        let columns = open.rows.columns(&feed.fields, rows, &feed.loose)?;
        self.waits.attribute(began, now(), open.last.as_ref());
        self.waiting = None;
        let number = self.next;
        self.next += 1;
        self.consumed.send_replace(self.next);
        Ok(Next::Batch(Delivered { number, rows, columns, cursor: open.end.packed() }))
    }

    /// The next batch once it is complete, taken from the open ones; `None` when the time is up or there is none.
    fn wait(&self, patience: Duration) -> Result<Option<Open>> {
        let until = now() + patience;
        let mut state = self.shared.locked();
        loop {
            if state.open.get(&self.next).is_some_and(|open| open.left == 0) {
                return Ok(state.open.remove(&self.next));
            }
            // An error belongs behind the batches that are under way.
            if let Some(error) = state.failed.clone().filter(|_| !state.open.contains_key(&self.next)) {
                return Err(error);
            }
            let left = until.saturating_duration_since(now());
            if left.is_zero() || state.total.is_some_and(|total| self.next >= total) {
                return Ok(None);
            }
            state = self.shared.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
