// SPDX-License-Identifier: Apache-2.0
//! One pass of one rank over (what is left of) an epoch that nobody counted: streams run ahead in the order of objects,
//! windows are given rows as they come, a few threads decode them, and batches come out in order.
//!
//! Owns the threads and streams of the pass and ends them when it is dropped. A batch is opened only when those before it
//! are and the consumer is near, so what is open is bounded and the first of it can always be filled.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use penstock_types::{Error, Result, now};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};

use super::super::decode::fill;
use super::super::format::RecordId;
use super::super::mend::{Mended, Mending, OnError, is_about_data};
use super::super::rows::Rows;
use super::super::run::{Delivered, Next};
use super::super::timing::{Busy, Trace, Waits};
use super::windows::{Window, windows};
use super::{MOST_AHEAD, Position, Turns, Unindexed, stream_bytes};
use crate::budget::Reservation;

/// A batch under way.
struct Open {
    rows: Arc<Rows>,
    /// Rows still missing.
    left: usize,
    /// Rows that it has; fewer than were asked for in an epoch's last.
    count: usize,
    /// Rows that no sample took.
    dead: Vec<u32>,
    /// The error of the lowest row that has one.
    error: Option<(u32, Error)>,
    last: Option<Trace>,
    /// Where the epoch stands once it is delivered.
    end: Position,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, Open>,
    /// How many batches there are, once that is known.
    total: Option<u64>,
    failed: Option<Error>,
    closed: bool,
}

/// What the consumer, the runtime's tasks and the decoding threads share.
struct Shared {
    feed: Arc<Unindexed>,
    epoch: u64,
    state: Mutex<State>,
    wake: Condvar,
    busy: Busy,
    mending: Mending,
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `rows` rows of a batch have ended, `bad` of them without a sample.
    fn settle(&self, batch: u64, rows: usize, trace: Trace, bad: Vec<(u32, Error)>) {
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

/// Records of a window that belong to one batch.
struct Job {
    window: Arc<Held>,
    /// Index in the window, row.
    wants: Vec<(u64, u32)>,
    batch: u64,
    rows: Arc<Rows>,
    trace: Trace,
}

/// A window while it is decoded.
struct Held {
    window: Window,
    object: u64,
    place: String,
    /// One of as many as may be decoded at a time.
    _permit: OwnedSemaphorePermit,
}

/// A stream that is open.
struct Ahead {
    turn: u64,
    object: u64,
    windows: mpsc::Receiver<Result<Window>>,
    task: JoinHandle<()>,
    _reserved: Reservation,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
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
                let mut feeder = Feeder { shared: shared.clone(), jobs, consumed: watched, row: 0, at: position };
                if let Err(error) = feeder.run(position).await {
                    let mut state = shared.locked();
                    // The error takes the place of the batch that the next record would have been in.
                    state.open.remove(&(feeder.row / shared.feed.turns.batch));
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

/// Opens streams in the order of objects and gives their records rows.
struct Feeder {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
    consumed: watch::Receiver<u64>,
    /// The next row, counted from the first batch's first.
    row: u64,
    /// Behind the last row that was given.
    at: Position,
}

impl Feeder {
    async fn run(&mut self, from: Position) -> Result<()> {
        let feed = self.shared.feed.clone();
        let decoding = Arc::new(Semaphore::new(feed.threads + 1));
        let mut ahead: VecDeque<Ahead> = VecDeque::new();
        let mut turn = from.object;
        loop {
            while turn < feed.objects() && ahead.len() < MOST_AHEAD {
                let object = feed.object(self.shared.epoch, turn);
                let bytes = stream_bytes(&feed.source, object);
                // The first stream is waited for; the others take what is left.
                if !ahead.is_empty() && feed.budget.free() < bytes + 4096 {
                    break;
                }
                let reserved = feed.budget.reserve("the stream of an object", bytes).await?;
                let (out, found) = mpsc::channel(1);
                let task = tokio::spawn(windows(feed.source.clone(), object, feed.settings.deadline, out));
                ahead.push_back(Ahead { turn, object, windows: found, task, _reserved: reserved });
                turn += 1;
            }
            let Some(first) = ahead.front_mut() else { break };
            let (number, object) = (first.turn, first.object);
            match first.windows.recv().await {
                Some(Ok(window)) => {
                    let skip = if number == from.object { from.record } else { 0 };
                    let permit = decoding.clone().acquire_owned().await;
                    let permit = permit.map_err(|_| Error::bug("the semaphore is never closed"))?;
                    if !self.give(number, object, window, skip, permit).await? {
                        return Ok(()); // the consumer has gone
                    }
                }
                Some(Err(error)) => {
                    let skips = feed.settings.on_error == OnError::Skip && is_about_data(&error);
                    if !skips {
                        return Err(error);
                    }
                    // The rest of the object is left out; how many records that is, nobody knows.
                    self.shared.mending.skipped(&error);
                }
                None => {
                    ahead.pop_front();
                    self.at = self.at.max(Position { object: number + 1, record: 0 });
                }
            }
        }
        self.finish();
        Ok(())
    }

    /// Gives a window's records their rows; false when the consumer has gone.
    async fn give(
        &mut self,
        turn: u64,
        object: u64,
        window: Window,
        skip: u64,
        permit: OwnedSemaphorePermit,
    ) -> Result<bool> {
        let feed = self.shared.feed.clone();
        let (first, records) = (window.first, window.spans.len() as u64);
        let trace = Trace::fetched(window.sent, window.first_byte, window.arrived);
        let order = feed.records(self.shared.epoch, object, first, records);
        let place = feed.source.place(object);
        let held = Arc::new(Held { window, object, place, _permit: permit });
        let step = feed.turns.batch.div_ceil(feed.threads as u64).max(1);
        let mut at = skip.saturating_sub(first).min(records);
        while at < records {
            let (batch, row) = (self.row / feed.turns.batch, self.row % feed.turns.batch);
            let Some(rows) = self.open(batch).await? else { return Ok(false) };
            let count = (records - at).min(feed.turns.batch - row).min(step);
            let wants = (0..count).map(|next| (order.at(at + next), (row + next) as u32)).collect();
            at += count;
            self.row += count;
            self.at = Position { object: turn, record: first + at };
            if let Some(open) = self.shared.locked().open.get_mut(&batch) {
                open.end = self.at;
            }
            // Refused only when the threads are gone, and then nobody waits.
            let _ = self.jobs.send(Job { window: held.clone(), wants, batch, rows, trace });
        }
        Ok(true)
    }

    /// The rows of a batch, opened where it is not; `None` when the consumer has gone.
    async fn open(&mut self, batch: u64) -> Result<Option<Arc<Rows>>> {
        if let Some(open) = self.shared.locked().open.get(&batch) {
            return Ok(Some(open.rows.clone()));
        }
        let feed = &self.shared.feed;
        if self.consumed.wait_for(|&next| batch <= next + feed.read_ahead).await.is_err() {
            return Ok(None);
        }
        let count = feed.turns.batch as usize;
        let rows = Arc::new(Rows::new(feed.pool.take(&feed.layout)?, &feed.fields, count));
        let (dead, end) = (Vec::new(), Position::default());
        let open = Open { rows: rows.clone(), left: count, count, dead, error: None, last: None, end };
        self.shared.locked().open.insert(batch, open);
        Ok(Some(rows))
    }

    /// The epoch is over: its last batch has the rows that it has, or is left out.
    fn finish(&self) {
        let Turns { batch: size, drops_tail, .. } = self.shared.feed.turns;
        let (batch, rows) = (self.row / size, self.row % size);
        let mut state = self.shared.locked();
        if rows > 0 && drops_tail {
            state.open.remove(&batch);
        } else if rows > 0
            && let Some(open) = state.open.get_mut(&batch)
        {
            let missing = (size - rows) as usize;
            (open.left, open.count) = (open.left - missing, rows as usize);
        }
        let total = batch + u64::from(rows > 0 && !drops_tail);
        if let Some(open) = total.checked_sub(1).and_then(|last| state.open.get_mut(&last)) {
            open.end = self.at;
        }
        state.total = Some(total);
        self.shared.wake.notify_all();
    }
}

/// A decoding thread.
fn work(shared: &Arc<Shared>, queue: &Receiver<Job>) {
    while let Ok(mut job) = queue.recv() {
        if shared.locked().closed {
            break;
        }
        job.trace.began = now();
        job.trace.inflated = job.trace.began;
        let decoded = catch_unwind(AssertUnwindSafe(|| decode(shared, &job)));
        let bad = decoded.unwrap_or_else(|_| {
            let error = Error::bug(format!("decoding {} panicked", job.window.place));
            job.wants.iter().map(|&(_, row)| (row, error.clone())).collect()
        });
        job.trace.done = now();
        shared.busy.add(&job.trace);
        let (batch, rows, trace) = (job.batch, job.wants.len(), job.trace);
        // The rows are let go before the batch can be delivered.
        drop(job);
        shared.settle(batch, rows, trace, bad);
    }
}

/// Reads each wanted record into its row; those that could not be.
fn decode(shared: &Shared, job: &Job) -> Vec<(u32, Error)> {
    let feed = &shared.feed;
    let Held { window, object, place, .. } = &*job.window;
    let read = |&(index, row): &(u64, u32)| -> Result<()> {
        let span = window.spans.get(index as usize).ok_or_else(|| Error::bug("a window has no such record"))?;
        let bytes = usize::try_from(span.range().end).ok();
        let bytes = bytes.and_then(|end| window.content.get(span.offset as usize..end));
        let bytes = bytes.ok_or_else(|| Error::bug("a record is outside its window"))?;
        let (record, offset) = (window.first + index, window.base + span.offset);
        let id = RecordId { place, object: *object, record, offset };
        // Of the sample's place alone: the same on any number of ranks.
        let key = feed.keys.key_of(shared.epoch, (object << 40) ^ record);
        let framing = feed.source.framing();
        framing.read(bytes, &[], id, &mut |read| fill(read, &id, row, key, &feed.fields, &job.rows))
    };
    job.wants.iter().filter_map(|want| read(want).err().map(|error| (want.1, error))).collect()
}

impl Position {
    /// As one number that grows with it.
    pub fn packed(self) -> u64 {
        (self.object << 40) | self.record
    }

    /// The position that `packed` says.
    pub fn unpacked(packed: u64) -> Self {
        Self { object: packed >> 40, record: packed & ((1 << 40) - 1) }
    }
}
