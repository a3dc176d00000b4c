// SPDX-License-Identifier: Apache-2.0
//! Runs one epoch, or the rest of one. Fetches run ahead on the tokio runtime. A few threads decompress objects and
//! decode records into the rows of batches. Batches are delivered in order.
//!
//! `batch_plan` decides what to read. Threads and requests end with the `EpochIter`.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use penstock_codec::Codec;
use penstock_types::{Error, Result, lock, now};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::batch_bounds::{Steps, Tail};
use super::batch_plan::{RowRequest, Task, Tasks};
use super::batch_rows::{Column, Rows};
use super::decode::{Decoded, Object, decode};
use super::decode_memory::Values;
use super::epoch_batches::EpochBatches;
use super::epoch_iter::{Delivered, EpochIter, EpochSource, Next};
use super::next_epoch_prefetch::EpochPrefetch;
use super::object_content::{Content, Reads};
use super::on_error::{ErrorLog, MAX_TRIES, OnError, Retries, is_about_data, substitute};
use super::read_scheduling::ReadScheduler;
use super::timing::{Busy, Trace};
use super::{Feed, WEIGHT};
use crate::memory_budget::{MemoryBudget, Reservation};

/// Interval at which a reservation checks whether memory can still become free.
const STUCK: Duration = Duration::from_millis(20);

/// A batch in progress.
struct Batch {
    rows: Rows,
    /// Number of rows on this rank.
    count: usize,
    /// Number of rows that are not filled yet.
    left: AtomicUsize,
    /// True if the columns or the error are set.
    is_ready: AtomicBool,
    /// Memory reservation of the batch, held until the batch is delivered.
    reserved: Mutex<Option<Reservation>>,
    outcome: Mutex<Outcome>,
}

#[derive(Default)]
struct Outcome {
    /// Row number and error of the failed row with the lowest number.
    error: Option<(u32, Error)>,
    /// Timing trace of the object that filled the last row.
    last: Option<Trace>,
    /// Rows that get no sample.
    dead: Vec<u32>,
    /// Final number of rows, and the columns. `None` until the batch is complete.
    done: Option<(usize, Vec<Column>)>,
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Arc<Batch>>,
    /// Error that ended the epoch. No further batch follows.
    failed: Option<Error>,
}

/// State shared by the consumer, the runtime's tasks and the decoding threads.
pub struct Shared {
    feed: Arc<Feed>,
    steps: Steps,
    batches: Arc<EpochBatches>,
    state: Mutex<State>,
    wake: Condvar,
    closed: AtomicBool,
    busy: Busy,
    error_log: ErrorLog,
    tries: Retries,
    runtime: Handle,
    epoch: u64,
}

impl Shared {
    fn fail(&self, error: Error) {
        lock(&self.state).failed.get_or_insert(error);
        self.wake.notify_all();
    }

    /// Marks these requests as done in all batches that wait for them. `bad` lists the requests (by index) whose rows
    /// get no sample.
    fn settle(&self, batches: &Batches, wants: &[RowRequest], trace: Trace, bad: &[(usize, Error)]) {
        for (at, error) in bad {
            let (want, skips) = (wants[*at], self.feed.on_error == OnError::Skip && is_about_data(error));
            let Some(batch) = batches.get(&want.batch) else { continue };
            let mut outcome = lock(&batch.outcome);
            if skips {
                self.error_log.skipped(error);
                outcome.dead.push(want.row);
            } else if outcome.error.as_ref().is_none_or(|(row, _)| want.row < *row) {
                outcome.error = Some((want.row, error.clone()));
            }
        }
        let mut complete = false;
        for group in wants.chunk_by(|a, b| a.batch == b.batch) {
            let Some(batch) = batches.get(&group[0].batch) else { continue };
            lock(&batch.outcome).last = Some(trace);
            if batch.left.fetch_sub(group.len(), Ordering::AcqRel) == group.len() {
                self.finish(batch);
                complete = true;
            }
        }
        if complete {
            // A consumer checks the state and then waits, under this lock. Take and release the lock, so that the
            // consumer does not miss the notification between the two.
            drop(lock(&self.state));
            self.wake.notify_all();
        }
    }

    /// Creates the columns of a batch after its last row is filled.
    fn finish(&self, batch: &Batch) {
        let mut outcome = lock(&batch.outcome);
        if outcome.error.is_none() {
            let mut rows = batch.count;
            outcome.dead.sort_unstable();
            if !outcome.dead.is_empty() {
                if self.steps.tail == Tail::Pad {
                    // Set failed rows to zero instead of removing them, because some frameworks require full batches.
                    // SAFETY: the last row was filled, and the batch is not delivered yet.
                    unsafe { batch.rows.clear(&outcome.dead) };
                } else {
                    // SAFETY: the last row was filled, and the batch is not delivered yet.
                    rows = unsafe { batch.rows.remove(&outcome.dead, rows) };
                }
            }
            match batch.rows.columns(&self.feed.fields, rows, &self.feed.loose) {
                Ok(columns) => outcome.done = Some((rows, columns)),
                Err(error) => outcome.error = Some((0, error)),
            }
        }
        self.feed.value_bytes.fetch_max(batch.rows.values().per_row(batch.count), Ordering::Relaxed);
        drop(outcome);
        batch.is_ready.store(true, Ordering::Release);
    }
}

/// Batches to which a task writes, by batch number.
type Batches = HashMap<u64, Arc<Batch>>;

/// Memory reservation of an object until the object is decoded. The `Arc` counts the objects in progress in this run.
struct Held(
    #[expect(dead_code, reason = "held for its drop")] Reservation,
    #[expect(dead_code, reason = "counted")] Arc<()>,
);

/// A fetched object in the queue of the decoding threads.
struct Job {
    task: Task,
    batches: Arc<Batches>,
    content: Result<Content>,
    trace: Trace,
    reserved: Arc<Held>,
    /// Number of substitutes that were already tried for these rows.
    tries: u32,
    /// Queue of the decoding threads. Substitutes are also sent to this queue.
    queue: Sender<Job>,
}

impl Job {
    /// Splits the work among several threads if the feed decodes images or audio and the object's records can be read
    /// one by one. Decoding one record takes about a millisecond, so a single thread would take long for a whole
    /// object.
    fn shared_among(self, feed: &Feed) -> Vec<Self> {
        let is_shared = feed.decodes_media && feed.patterns[self.task.leaf].is_partial && self.content.is_ok();
        let each = if is_shared { self.task.wants.len().div_ceil(feed.threads) } else { self.task.wants.len() };
        let Task { leaf, object, wants } = self.task;
        let share = |wants: &[RowRequest]| Self {
            task: Task { leaf, object, wants: wants.to_vec() },
            batches: self.batches.clone(),
            content: self.content.clone(),
            trace: self.trace,
            reserved: self.reserved.clone(),
            tries: self.tries,
            queue: self.queue.clone(),
        };
        wants.chunks(each.max(1)).map(share).collect()
    }
}

/// A running epoch of a dataset with known record counts.
pub type Run = EpochIter<Shared>;

impl Run {
    pub(super) fn over(feed: Arc<Feed>, runtime: &Handle, epoch: u64, steps: Steps) -> Result<Self> {
        let batches = feed.batches(epoch, steps)?;
        let tasks = feed.tasks(epoch, batches.clone())?;
        let ahead = feed.take_prefetched(epoch, steps);
        let (consumed, watched) = watch::channel(0u64);
        let (jobs, queue) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared {
            feed: feed.clone(),
            steps,
            batches,
            state: Mutex::default(),
            wake: Condvar::new(),
            closed: AtomicBool::new(false),
            busy: Busy::default(),
            error_log: ErrorLog::default(),
            tries: Retries::default(),
            runtime: runtime.clone(),
            epoch,
        });
        let work = {
            let shared = shared.clone();
            move || work(&shared, &queue)
        };
        let feeder = {
            let shared = shared.clone();
            async move {
                if let Err(error) = run_ahead(&shared, tasks, ahead, jobs, watched).await {
                    shared.fail(error);
                }
            }
        };
        EpochIter::start(shared, consumed, feed.threads, work, runtime, feeder)
    }
}

impl EpochSource for Shared {
    fn is_ready(&self, number: u64) -> bool {
        if !matches!(self.batches.slice(number), Ok(Some(slice)) if !slice.is_empty()) {
            return true;
        }
        let state = lock(&self.state);
        let complete = state.open.get(&number).is_some_and(|batch| batch.is_ready.load(Ordering::Acquire));
        complete || state.failed.is_some()
    }

    fn take(&self, number: u64, timeout: Duration) -> Result<(Next, Option<Trace>)> {
        let (batches, feed) = (&self.batches, &self.feed);
        let Some(slice) = batches.slice(number)? else { return Ok((Next::Done, None)) };
        let (rows, columns, trace) = if slice.is_empty() {
            // This rank has no sample in this batch. It returns an empty batch, because all ranks must take the same
            // number of steps.
            let none = Rows::new(feed.pool.take(&feed.layout)?, &feed.fields, 0, Values::limited(0));
            let none = none.of_bucket(slice.width());
            (0, none.columns(&feed.fields, 0, &feed.loose)?, None)
        } else {
            let Some(batch) = self.wait(number, timeout)? else { return Ok((Next::Waiting, None)) };
            let mut outcome = lock(&batch.outcome);
            if let Some((_, error)) = outcome.error.take() {
                return Err(error);
            }
            lock(&batch.reserved).take();
            let (rows, columns) = outcome.done.take().ok_or_else(|| Error::bug("a ready batch has no columns"))?;
            (rows, columns, outcome.last)
        };
        let cursor = batches.cursor_after(number)?;
        batches.forget_before(number + 1);
        Ok((Next::Batch(Delivered { number, rows, columns, cursor, positions: slice.positions() }), trace))
    }

    fn end(&self) {
        self.closed.store(true, Ordering::Release);
        self.tries.end();
        lock(&self.state).open.clear();
    }

    fn busy(&self) -> &Busy {
        &self.busy
    }

    fn error_log(&self) -> &ErrorLog {
        &self.error_log
    }
}

impl Shared {
    /// Position of a row in the sample order. For a repeated sample of a padded tail, the position is beyond the end of
    /// the order.
    fn position(&self, want: &RowRequest) -> Result<u64> {
        let slice = self.batches.slice(want.batch)?.ok_or_else(|| Error::bug("a row does not belong to any batch"))?;
        Ok(slice.position(u64::from(want.row)))
    }

    /// Waits for a batch to complete, and removes it from the open batches. Returns `None` after the timeout.
    fn wait(&self, number: u64, timeout: Duration) -> Result<Option<Arc<Batch>>> {
        let until = now() + timeout;
        let mut state = lock(&self.state);
        loop {
            if state.open.get(&number).is_some_and(|batch| batch.is_ready.load(Ordering::Acquire)) {
                return Ok(state.open.remove(&number));
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let left = until.saturating_duration_since(now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Starts fetches in the order in which they are needed. The memory budget, the maximum number of requests and the
/// read-ahead limit the fetches.
async fn run_ahead(
    shared: &Arc<Shared>,
    tasks: Tasks,
    mut ahead: Option<EpochPrefetch>,
    jobs: Sender<Job>,
    mut consumed: watch::Receiver<u64>,
) -> Result<()> {
    let feed = &shared.feed;
    let requests = Arc::new(Semaphore::new(feed.max_in_flight));
    // Number of reads so far, and their total size in bytes.
    let mut read = (0, 0);
    let mut open: HashMap<u64, Arc<Batch>> = HashMap::new();
    let in_progress = Arc::new(());
    let mut fetches = JoinSet::new();
    for (task, reads) in ReadScheduler::new(feed, tasks) {
        let first = task.first_batch();
        let position = shared.position(&task.wants[0])? % shared.steps.samples;
        let (leaf, epoch, position) = feed.course.locate(shared.epoch, position);
        feed.sources[leaf].reached(epoch, position);
        if consumed.wait_for(|&next| first <= next + feed.ahead_of(next)).await.is_err() {
            return Ok(()); // the consumer has closed the epoch
        }
        open.retain(|&number, _| number >= first);
        // Planned batches can have more open batches than the budget was computed for. If all objects read so far are
        // decoded and the consumer waits for this task, no memory will become free.
        let is_stuck = || feed.by.is_some() && *consumed.borrow() >= first && Arc::strong_count(&in_progress) == 1;
        let mut batches = HashMap::new();
        for group in task.wants.chunk_by(|a, b| a.batch == b.batch) {
            let number = group[0].batch;
            let batch = match open.get(&number) {
                Some(batch) => batch.clone(),
                None => {
                    let batch = open_batch(shared, number, is_stuck).await?;
                    lock(&shared.state).open.insert(number, batch.clone());
                    open.insert(number, batch.clone());
                    batch
                }
            };
            batches.insert(number, batch);
        }
        let early = ahead.as_mut().and_then(|ahead| ahead.take(&task));
        let permit = requests.clone().acquire_owned().await.map_err(|_| Error::bug("the semaphore is never closed"))?;
        let (early, reserved) = match early {
            Some((fetch, reserved)) => (Some(fetch), reserved),
            None => (None, reserve_unless(&feed.budget, "an object", reads.bytes, is_stuck).await?),
        };
        read = (read.0 + 1, read.1 + reads.bytes);
        while let Some(done) = fetches.try_join_next() {
            joined(done)?;
        }
        let claims = if early.is_some() { None } else { feed.sources[task.leaf].claim(task.object) };
        let (feed, queue, batches) = (feed.clone(), jobs.clone(), Arc::new(batches));
        let held = Arc::new(Held(reserved, in_progress.clone()));
        fetches.spawn(async move {
            let early = match early {
                Some(fetch) => fetch.ended().await.ok().filter(|(content, _)| content.is_ok()),
                None => None,
            };
            let (content, trace) = match early {
                Some(fetched) => fetched,
                None => feed.sources[task.leaf].fetched(task.object, &reads, claims, feed.object_timeout).await,
            };
            drop(permit);
            let job = Job { task, batches, content, trace, reserved: held, tries: 0, queue: queue.clone() };
            for job in job.shared_among(&feed) {
                // The send fails only after the threads have ended. At that time, no consumer is waiting.
                let _ = queue.send(job);
            }
        });
    }
    drop(ahead);
    if feed.prefetch_next_epoch {
        feed.prefetch_next_epoch(shared.epoch, shared.steps, read, &requests).await?;
    }
    while let Some(done) = fetches.join_next().await {
        joined(done)?;
    }
    Ok(())
}

fn joined(done: std::result::Result<(), tokio::task::JoinError>) -> Result<()> {
    done.map_err(|error| Error::bug(format!("a fetch ended unexpectedly: {error}")))
}

/// Reserves memory. Returns an empty reservation if no memory will become free (`is_stuck`).
async fn reserve_unless(
    budget: &MemoryBudget,
    what: &str,
    bytes: u64,
    is_stuck: impl Fn() -> bool,
) -> Result<Reservation> {
    let mut reserving = std::pin::pin!(budget.reserve(what, bytes));
    loop {
        match tokio::time::timeout(STUCK, &mut reserving).await {
            Ok(reserved) => return reserved,
            Err(_) if is_stuck() => return Ok(Reservation::default()),
            Err(_) => {}
        }
    }
}

async fn open_batch(shared: &Shared, number: u64, is_stuck: impl Fn() -> bool) -> Result<Arc<Batch>> {
    let feed = &shared.feed;
    let slice = shared.batches.slice(number)?.ok_or_else(|| Error::bug("a row does not belong to any batch"))?;
    let rows = slice.len() as usize;
    let reserved = reserve_unless(&feed.budget, "a batch", feed.batch_bytes(rows), is_stuck).await?;
    let slot = feed.pool.take(&feed.layout)?;
    if let Some(column) = feed.fields.iter().position(|field| field.name == WEIGHT && feed.weighted) {
        for row in 0..rows {
            let weight = if slice.position(row as u64) < shared.steps.samples { 1.0f32 } else { 0.0 };
            // SAFETY: the batch is not shared yet, and decoding never writes the column of weights.
            unsafe { slot.row(column, row) }.copy_from_slice(&weight.to_le_bytes());
        }
    }
    if let Some((column, numbers)) = feed.source_column() {
        for row in 0..rows {
            let (leaf, ..) = feed.course.locate(shared.epoch, slice.position(row as u64) % shared.steps.samples);
            // SAFETY: the batch is not shared yet, and decoding does not write this column.
            unsafe { slot.row(column, row) }.copy_from_slice(&numbers[leaf].to_le_bytes());
        }
    }
    Ok(Arc::new(Batch {
        rows: Rows::new(slot, &feed.fields, rows, Values::limited(feed.limit)).of_bucket(slice.width()),
        count: rows,
        is_ready: AtomicBool::new(false),
        left: AtomicUsize::new(rows),
        reserved: Mutex::new(Some(reserved)),
        outcome: Mutex::default(),
    }))
}

/// Main loop of a decoding thread.
fn work(shared: &Arc<Shared>, queue: &Receiver<Job>) {
    let feed = &shared.feed;
    let mut scratch = feed.scratch();
    while let Ok(mut job) = queue.recv() {
        if shared.closed.load(Ordering::Acquire) {
            break;
        }
        job.trace.began = now();
        let content = std::mem::replace(&mut job.content, Ok(Content::Whole(Bytes::new())));
        let decoded = content.and_then(|content| {
            let run = || decode_job(shared, &job, &content, &mut scratch);
            let place = || feed.sources[job.task.leaf].place(job.task.object);
            catch_unwind(AssertUnwindSafe(run))
                .unwrap_or_else(|_| Err(Error::bug(format!("decoding {} panicked", place()))))
        });
        job.trace.done = now();
        job.trace.inflated = decoded.as_ref().map_or(job.trace.done, |decoded| decoded.inflated);
        shared.busy.add(&job.trace);
        let (bad, whole) = match decoded {
            Ok(decoded) => (decoded.bad, false),
            Err(error) => ((0..job.task.wants.len()).map(|at| (at, error.clone())).collect(), true),
        };
        let (retried, bad) = if feed.on_error == OnError::Substitute && job.tries < MAX_TRIES {
            bad.into_iter().partition(|(_, error)| is_about_data(error))
        } else {
            (Vec::new(), bad)
        };
        if retried.is_empty() {
            drop(job.reserved);
            shared.settle(&job.batches, &job.task.wants, job.trace, &bad);
        } else {
            recover(shared, job, retried, &bad, whole);
        }
    }
    feed.give_scratch(scratch);
}

fn decode_job(shared: &Shared, job: &Job, content: &Content, scratch: &mut Vec<u8>) -> Result<Decoded> {
    let (number, feed) = (job.task.object, &shared.feed);
    let (source, leaf) = (&feed.sources[job.task.leaf], &feed.leaves[job.task.leaf]);
    let place = source.place(number);
    // The key depends only on the position, so it is the same for any number of ranks. Repeated samples of a padded
    // tail have different positions, and therefore different keys.
    let key = |want: &RowRequest| leaf.key_of(shared.epoch, shared.position(want).unwrap_or_default());
    let rows = |number: u64| job.batches.get(&number).map(|batch| &batch.rows);
    let codec = source.codec(number);
    let decode_within = |limit: u64, scratch: &mut Vec<u8>| {
        let object = Object {
            source,
            codec,
            number,
            place: &place,
            stored: content,
            records: leaf.counts().records(number),
            limit,
            memory: &feed.part_memory.hold(),
            key: &key,
        };
        decode(&object, &job.task.wants, feed.record_fields(), &rows, scratch)
    };
    // If the decompressed size of an object exceeds a thread's share of memory, only one thread at a time decodes such
    // an object. All threads together therefore use at most twice the budget.
    let share = (feed.scratch_bytes as u64).max(feed.limit / feed.threads as u64).min(feed.limit);
    let share = if codec == Codec::None { feed.limit } else { share };
    match decode_within(share, scratch) {
        Err(Error::Corrupt { .. } | Error::BudgetExceeded { .. }) if share < feed.limit => {
            let _alone = lock(&feed.large_object);
            let decoded = decode_within(feed.limit, scratch);
            *scratch = Vec::new();
            decoded
        }
        decoded => decoded,
    }
}

/// Fetches substitutes for the failed requests in `retried`. Marks the other requests of the task as done.
fn recover(shared: &Arc<Shared>, job: Job, retried: Vec<(usize, Error)>, bad: &[(usize, Error)], whole: bool) {
    let Job { task, batches, trace, reserved, tries, queue, .. } = job;
    let mut tasks: Vec<Task> = Vec::new();
    for (at, error) in &retried {
        if tries == 0 {
            shared.error_log.substituted(error);
        }
        let (object, want) = substitute(task.object, &task.wants[*at], &shared.feed.leaves[task.leaf], whole, tries);
        match tasks.iter_mut().find(|task| task.object == object) {
            Some(task) => task.wants.push(want),
            None => tasks.push(Task { leaf: task.leaf, object, wants: vec![want] }),
        }
    }
    for mut task in tasks {
        // A substitute takes no request permit, and uses the memory reservation of the object that it replaces. Waiting
        // here for a permit or for memory could deadlock. Bad samples are few, so the limits are exceeded only
        // slightly.
        task.wants.sort_unstable_by_key(|want| (want.batch, want.row));
        let (feed, batches, reserved, queue) = (shared.feed.clone(), batches.clone(), reserved.clone(), queue.clone());
        shared.tries.spawn(&shared.runtime, async move {
            let source = &feed.sources[task.leaf];
            let reads = Reads::of(source, task.object, &task.wants);
            let (content, trace) = source.fetched(task.object, &reads, None, feed.object_timeout).await;
            let job = Job { task, batches, content, trace, reserved, tries: tries + 1, queue: queue.clone() };
            let _ = queue.send(job);
        });
    }
    let gone: Vec<usize> = retried.iter().map(|(at, _)| *at).collect();
    let kept: Vec<usize> = (0..task.wants.len()).filter(|at| !gone.contains(at)).collect();
    let wants: Vec<RowRequest> = kept.iter().map(|&at| task.wants[at]).collect();
    let place = |at: usize| kept.iter().position(|&kept| kept == at);
    let bad: Vec<(usize, Error)> = bad.iter().filter_map(|(at, error)| Some((place(*at)?, error.clone()))).collect();
    shared.settle(&batches, &wants, trace, &bad);
}
