// SPDX-License-Identifier: Apache-2.0
//! One pass over (what is left of) an epoch: fetches run ahead on the runtime, a few threads inflate and decode into the
//! final rows, and batches come out in order.
//!
//! Owns the threads and requests of the pass and ends them when it is dropped. Who reads what is `plan`'s business.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use penstock_types::{Deadline, Error, Result, now};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};

use super::decode::{Object, decode};
use super::plan::{Steps, Task, Tasks, Want};
use super::slot::{Slot, Tensor};
use super::timing::{Busy, Trace, Waits};
use super::{Feed, WEIGHT};
use crate::budget::Reservation;

/// A batch under way.
struct Batch {
    slot: Arc<Slot>,
    /// Rows still missing.
    left: AtomicUsize,
    /// Its bytes of the budget, until it is delivered.
    reserved: Mutex<Option<Reservation>>,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    /// The error of the lowest row that has one.
    error: Option<(u32, Error)>,
    /// When the last rows came about.
    last: Option<Trace>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Arc<Batch>>,
    /// Why no further batch will come, where the pass itself failed.
    failed: Option<Error>,
}

/// What the consumer, the runtime's tasks and the decoding threads share.
struct Shared {
    feed: Arc<Feed>,
    steps: Steps,
    state: Mutex<State>,
    wake: Condvar,
    closed: AtomicBool,
    busy: Busy,
}

impl Shared {
    fn fail(&self, error: Error) {
        locked(&self.state).failed.get_or_insert(error);
        self.wake.notify_all();
    }

    /// Notes the end of a task in every batch that waits for it.
    fn settle(&self, job_batches: &HashMap<u64, Arc<Batch>>, wants: &[Want], trace: Trace, error: Option<&Error>) {
        let mut complete = false;
        for group in wants.chunk_by(|a, b| a.batch == b.batch) {
            let Some(batch) = job_batches.get(&group[0].batch) else { continue };
            {
                let mut outcome = locked(&batch.outcome);
                if let Some(error) = error
                    && outcome.error.as_ref().is_none_or(|(row, _)| group[0].row < *row)
                {
                    outcome.error = Some((group[0].row, error.clone()));
                }
                outcome.last = Some(trace);
            }
            complete |= batch.left.fetch_sub(group.len(), Ordering::AcqRel) == group.len();
        }
        if complete {
            // Taken and let go, so that a consumer between its look and its wait does not miss the call.
            drop(locked(&self.state));
            self.wake.notify_all();
        }
    }
}

/// An object on its way to the decoding threads.
struct Job {
    task: Task,
    batches: HashMap<u64, Arc<Batch>>,
    bytes: Result<Bytes>,
    trace: Trace,
    reserved: Reservation,
}

/// A batch, delivered. Its memory is the holder's.
#[derive(Debug)]
pub struct Delivered {
    /// Its number, counted from the cursor.
    pub number: u64,
    /// Rows of this rank.
    pub rows: usize,
    /// The fields, in order; with a padded tail, last, the weights.
    pub tensors: Vec<Tensor>,
    /// The epoch's cursor once it is delivered: the same on every rank.
    pub cursor: u64,
}

/// What [`Run::next`] found.
#[derive(Debug)]
pub enum Next {
    /// The next batch.
    Batch(Delivered),
    /// Not there yet when the time was up.
    Waiting,
    /// There is none left.
    Done,
}

/// One pass. Dropping it ends its threads and requests.
pub struct Run {
    inner: Option<Inner>,
    pid: u32,
    /// The times of a pass that has been closed.
    timing: (Waits, Busy),
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("pid", &self.pid).finish_non_exhaustive()
    }
}

struct Inner {
    shared: Arc<Shared>,
    consumed: watch::Sender<u64>,
    feeder: AbortHandle,
    threads: Vec<std::thread::JoinHandle<()>>,
    next: u64,
    waits: Waits,
    /// Since when the consumer has been waiting for the next batch.
    waiting: Option<Instant>,
}

impl Run {
    pub(super) fn start(feed: Arc<Feed>, runtime: &Handle, epoch: u64, steps: Steps) -> Result<Self> {
        let tasks = Tasks::new(feed.walk()?, epoch, steps, feed.horizon);
        let (consumed, watched) = watch::channel(0u64);
        let (jobs, queue) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared {
            feed: feed.clone(),
            steps,
            state: Mutex::default(),
            wake: Condvar::new(),
            closed: AtomicBool::new(false),
            busy: Busy::default(),
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
                if let Err(error) = run_ahead(&shared, tasks, jobs, watched).await {
                    shared.fail(error);
                }
            }
        });
        let feeder = feeder.abort_handle();
        let inner = Inner { shared, consumed, feeder, threads, next: 0, waits: Waits::default(), waiting: None };
        Ok(Self { inner: Some(inner), pid: std::process::id(), timing: Default::default() })
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

    /// The next batch, waited for at most `patience`. After an error, and after the last batch, the pass is closed.
    pub fn next(&mut self, patience: Duration) -> Result<Next> {
        let Some(inner) = self.inner()? else { return Ok(Next::Done) };
        match inner.next(patience) {
            Ok(Next::Done) => {
                self.close();
                Ok(Next::Done)
            }
            Ok(next) => Ok(next),
            Err(error) => {
                self.close();
                Err(error)
            }
        }
    }

    /// True when [`Run::next`] would answer at once.
    pub fn is_ready(&mut self) -> Result<bool> {
        let Some(inner) = self.inner()? else { return Ok(true) };
        let (steps, number) = (inner.shared.steps, inner.next);
        if number >= steps.count() || steps.slice(number).is_empty() {
            return Ok(true);
        }
        let state = locked(&inner.shared.state);
        let complete = state.open.get(&number).is_some_and(|batch| batch.left.load(Ordering::Acquire) == 0);
        Ok(complete || state.failed.is_some())
    }

    /// Seconds that the consumer waited, by what it waited for, and seconds that the threads were busy.
    pub fn timing(&mut self) -> Result<(Waits, Busy)> {
        if let Some(inner) = self.inner()? {
            self.timing = (inner.waits, inner.shared.busy.snapshot());
        }
        Ok((self.timing.0, self.timing.1.snapshot()))
    }

    /// Ends threads and requests; waits for the threads, each at most one object's decode from its end.
    pub fn close(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if self.pid != std::process::id() {
            // The threads live in the parent; their locks may be held for ever here.
            std::mem::forget(inner);
            return;
        }
        inner.shared.closed.store(true, Ordering::Release);
        inner.feeder.abort();
        locked(&inner.shared.state).open.clear();
        for thread in inner.threads {
            // A panic there has been turned into an error already.
            let _ = thread.join();
        }
        self.timing = (inner.waits, inner.shared.busy.snapshot());
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.close();
    }
}

impl Inner {
    fn next(&mut self, patience: Duration) -> Result<Next> {
        let steps = self.shared.steps;
        if self.next >= steps.count() {
            return Ok(Next::Done);
        }
        let began = *self.waiting.get_or_insert_with(now);
        let slice = steps.slice(self.next);
        let rows = (slice.end - slice.start) as usize;
        let (slot, trace) = if rows == 0 {
            // Other ranks have the samples; all ranks make the same steps.
            (Arc::new(self.shared.feed.pool.take(&self.shared.feed.layout)?), None)
        } else {
            let Some(batch) = self.wait(patience)? else { return Ok(Next::Waiting) };
            let mut outcome = locked(&batch.outcome);
            if let Some((_, error)) = outcome.error.take() {
                return Err(error);
            }
            locked(&batch.reserved).take();
            (batch.slot.clone(), outcome.last)
        };
        self.waits.attribute(began, now(), trace.as_ref());
        self.waiting = None;
        let number = self.next;
        self.next += 1;
        self.consumed.send_replace(self.next);
        let fields = self.shared.feed.fields.iter().enumerate();
        let tensors = fields.map(|(seat, field)| Tensor::new(slot.clone(), seat, &field.spec, rows)).collect();
        Ok(Next::Batch(Delivered { number, rows, tensors, cursor: steps.cursor_after(number) }))
    }

    /// The next batch once it is complete, taken from the open ones; `None` when the time is up.
    fn wait(&self, patience: Duration) -> Result<Option<Arc<Batch>>> {
        let until = now() + patience;
        let mut state = locked(&self.shared.state);
        loop {
            if state.open.get(&self.next).is_some_and(|batch| batch.left.load(Ordering::Acquire) == 0) {
                return Ok(state.open.remove(&self.next));
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.shared.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Starts fetches in the order of need, within the budget, the requests' limit and the read-ahead.
async fn run_ahead(
    shared: &Arc<Shared>,
    tasks: Tasks,
    jobs: Sender<Job>,
    mut consumed: watch::Receiver<u64>,
) -> Result<()> {
    let feed = &shared.feed;
    let requests = Arc::new(Semaphore::new(feed.max_in_flight));
    let mut open: HashMap<u64, Arc<Batch>> = HashMap::new();
    let mut fetches = JoinSet::new();
    for task in tasks {
        let first = task.first_batch();
        if consumed.wait_for(|&next| first <= next + feed.read_ahead).await.is_err() {
            return Ok(()); // the consumer has gone
        }
        open.retain(|&number, _| number >= first);
        let mut batches = HashMap::new();
        for group in task.wants.chunk_by(|a, b| a.batch == b.batch) {
            let number = group[0].batch;
            let batch = match open.get(&number) {
                Some(batch) => batch.clone(),
                None => {
                    let batch = open_batch(shared, number).await?;
                    locked(&shared.state).open.insert(number, batch.clone());
                    open.insert(number, batch.clone());
                    batch
                }
            };
            batches.insert(number, batch);
        }
        let permit = requests.clone().acquire_owned().await.map_err(|_| Error::bug("the semaphore is never closed"))?;
        let size = feed.sources[task.leaf].entry(task.object).size;
        let reserved = feed.budget.reserve("an object", size).await?;
        while let Some(done) = fetches.try_join_next() {
            joined(done)?;
        }
        let (feed, jobs) = (feed.clone(), jobs.clone());
        fetches.spawn(async move {
            let sent = now();
            let found = feed.sources[task.leaf].fetch(task.object, Deadline::within(feed.deadline)).await;
            drop(permit);
            let (bytes, trace) = match found {
                Ok(found) => (Ok(found.bytes), Trace::fetched(found.sent, found.first_byte, found.done)),
                Err(error) => (Err(error), Trace::fetched(sent, now(), now())),
            };
            // Refused only when the threads are gone, and then nobody waits.
            let _ = jobs.send(Job { task, batches, bytes, trace, reserved });
        });
    }
    while let Some(done) = fetches.join_next().await {
        joined(done)?;
    }
    Ok(())
}

fn joined(done: std::result::Result<(), tokio::task::JoinError>) -> Result<()> {
    done.map_err(|error| Error::bug(format!("a fetch: {error}")))
}

async fn open_batch(shared: &Shared, number: u64) -> Result<Arc<Batch>> {
    let (feed, steps) = (&shared.feed, &shared.steps);
    let reserved = feed.budget.reserve("a batch", feed.layout.bytes as u64).await?;
    let slot = Arc::new(feed.pool.take(&feed.layout)?);
    let slice = steps.slice(number);
    let rows = (slice.end - slice.start) as usize;
    if let Some(seat) = feed.fields.iter().position(|field| field.name == WEIGHT && feed.weighted) {
        for row in 0..rows {
            let weight = if slice.start + (row as u64) < steps.samples { 1.0f32 } else { 0.0 };
            // SAFETY: the batch is not shared yet, and no record is decoded into its weights.
            unsafe { slot.row(seat, row) }.copy_from_slice(&weight.to_le_bytes());
        }
    }
    Ok(Arc::new(Batch {
        slot,
        left: AtomicUsize::new(rows),
        reserved: Mutex::new(Some(reserved)),
        outcome: Mutex::default(),
    }))
}

/// A decoding thread.
fn work(shared: &Shared, queue: &Receiver<Job>) {
    let feed = &shared.feed;
    let mut scratch = feed.scratch();
    while let Ok(mut job) = queue.recv() {
        if shared.closed.load(Ordering::Acquire) {
            break;
        }
        job.trace.began = now();
        let object = job.task.object;
        let (source, leaf) = (&feed.sources[job.task.leaf], &feed.leaves[job.task.leaf]);
        let decoded = std::mem::replace(&mut job.bytes, Ok(Bytes::new())).and_then(|bytes| {
            let place = || source.place(object);
            let records = leaf.counts().records(object);
            let described =
                Object { place: &place, codec: source.codec(object), stored: &bytes, records, limit: feed.limit };
            let slot = |number: u64| job.batches.get(&number).map(|batch| &*batch.slot);
            let run = || decode(&described, &job.task.wants, feed.record_fields(), &slot, &mut scratch);
            catch_unwind(AssertUnwindSafe(run))
                .unwrap_or_else(|_| Err(Error::bug(format!("decoding {} panicked", source.place(object)))))
        });
        job.trace.done = now();
        job.trace.inflated = decoded.as_ref().copied().unwrap_or(job.trace.done);
        shared.busy.add(&job.trace);
        drop(job.reserved);
        shared.settle(&job.batches, &job.task.wants, job.trace, decoded.as_ref().err());
    }
    feed.give_scratch(scratch);
}
