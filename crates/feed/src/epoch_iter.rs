// SPDX-License-Identifier: Apache-2.0
//! One pass as its consumer holds it: batches come out in order, and its threads and requests end when it is dropped.
//!
//! Knows nothing of what is read or how: that is the business of what is [`EpochSource`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_types::{Error, Result, now};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::batch_rows::Column;
use super::on_error::{ErrorCounts, ErrorLog};
use super::timing::{Busy, Trace, Waits};

/// A batch, delivered. Its memory is the holder's.
#[derive(Debug)]
pub struct Delivered {
    /// Its number, counted from the cursor.
    pub number: u64,
    /// Rows of this rank.
    pub rows: usize,
    /// The fields, in order; with a padded tail, last, the weights.
    pub columns: Vec<Column>,
    /// Position in the epoch once it is delivered: the same on every rank. A cursor, or of an unindexed epoch a
    /// [`super::Position`], packed.
    pub cursor: u64,
}

/// Result of [`EpochIter::next`].
#[derive(Debug)]
pub enum Next {
    /// The next batch.
    Batch(Delivered),
    /// Not there yet when the time was up.
    Waiting,
    /// There is none left.
    Done,
}

/// State that the consumer, the runtime's tasks and the decoding threads of a pass share.
pub trait EpochSource: Send + Sync + 'static {
    /// True when [`EpochSource::take`] of this batch would answer at once.
    fn is_ready(&self, number: u64) -> bool;
    /// This batch, waited for at most `patience`, and when its last rows came about.
    fn take(&self, number: u64, patience: Duration) -> Result<(Next, Option<Trace>)>;
    /// Tells the threads to end, and drops the batches that were not taken.
    fn end(&self);
    /// Time that the threads spent.
    fn busy(&self) -> &Busy;
    /// Counts of samples that could not be read, by how they were handled.
    fn mending(&self) -> &ErrorLog;
}

/// One pass. Dropping it ends its threads and requests.
pub struct EpochIter<S: EpochSource> {
    crew: Option<Threads<S>>,
    pid: u32,
    /// The times of a pass that has been closed.
    timing: (Waits, Busy),
    mended: ErrorCounts,
}

impl<S: EpochSource> std::fmt::Debug for EpochIter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpochIter").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// Who works on a pass, and how far its consumer is.
struct Threads<S> {
    shared: Arc<S>,
    consumed: watch::Sender<u64>,
    feeder: AbortHandle,
    threads: Vec<std::thread::JoinHandle<()>>,
    next: u64,
    waits: Waits,
    /// Since when the consumer has been waiting for the next batch.
    waiting: Option<Instant>,
}

impl<S: EpochSource> EpochIter<S> {
    /// Starts `feeder` on the runtime and as many threads that `work`. `consumed` gives the feeder the next batch.
    pub(super) fn start(
        shared: Arc<S>,
        consumed: watch::Sender<u64>,
        threads: usize,
        work: impl Fn() + Clone + Send + 'static,
        runtime: &Handle,
        feeder: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Self> {
        let threads = (0..threads)
            .map(|number| {
                std::thread::Builder::new()
                    .name(format!("penstock-dec-{number}"))
                    .spawn(work.clone())
                    .map_err(|error| Error::from_io("a decoding thread", &error))
            })
            .collect::<Result<Vec<_>>>()?;
        let feeder = runtime.spawn(feeder).abort_handle();
        let crew = Threads { shared, consumed, feeder, threads, next: 0, waits: Waits::default(), waiting: None };
        Ok(Self {
            crew: Some(crew),
            pid: std::process::id(),
            timing: Default::default(),
            mended: ErrorCounts::default(),
        })
    }

    fn crew(&mut self) -> Result<Option<&mut Threads<S>>> {
        if self.pid != std::process::id() {
            return Err(Error::config(
                "iterator",
                format!("it belongs to process {}; make a new one in this process with iter(loader)", self.pid),
            ));
        }
        Ok(self.crew.as_mut())
    }

    /// The next batch, waited for at most `patience`. After an error, and after the last batch, the pass is closed.
    pub fn next(&mut self, patience: Duration) -> Result<Next> {
        let Some(crew) = self.crew()? else { return Ok(Next::Done) };
        let next = crew.next(patience);
        if !matches!(next, Ok(Next::Batch(_) | Next::Waiting)) {
            self.close();
        }
        next
    }

    /// True when [`EpochIter::next`] would answer at once.
    pub fn is_ready(&mut self) -> Result<bool> {
        Ok(self.crew()?.is_none_or(|crew| crew.shared.is_ready(crew.next)))
    }

    /// Seconds that the consumer waited, by what it waited for, and seconds that the threads were busy.
    pub fn timing(&mut self) -> Result<(Waits, Busy)> {
        if let Some(crew) = self.crew()? {
            self.timing = (crew.waits, crew.shared.busy().snapshot());
        }
        Ok((self.timing.0, self.timing.1.snapshot()))
    }

    /// Counts of samples that could not be read, by how they were handled.
    pub fn mended(&mut self) -> Result<ErrorCounts> {
        if let Some(crew) = self.crew()? {
            self.mended = crew.shared.mending().snapshot();
        }
        Ok(self.mended.clone())
    }

    /// Ends threads and requests; waits for the threads, each at most one object's decode from its end.
    pub fn close(&mut self) {
        let Some(crew) = self.crew.take() else { return };
        if self.pid != std::process::id() {
            // The threads live in the parent; their locks may be held for ever here.
            std::mem::forget(crew);
            return;
        }
        crew.feeder.abort();
        crew.shared.end();
        drop(crew.consumed);
        for thread in crew.threads {
            // A panic there has been turned into an error already.
            let _ = thread.join();
        }
        self.timing = (crew.waits, crew.shared.busy().snapshot());
        self.mended = crew.shared.mending().snapshot();
    }
}

impl<S: EpochSource> Drop for EpochIter<S> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<S: EpochSource> Threads<S> {
    fn next(&mut self, patience: Duration) -> Result<Next> {
        let began = *self.waiting.get_or_insert_with(now);
        let (next, trace) = self.shared.take(self.next, patience)?;
        if matches!(next, Next::Batch(_)) {
            self.waits.attribute(began, now(), trace.as_ref());
            self.waiting = None;
            self.next += 1;
            self.consumed.send_replace(self.next);
        }
        Ok(next)
    }
}
