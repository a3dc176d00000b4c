// SPDX-License-Identifier: Apache-2.0
//! Iterator over a running epoch: returns batches in order. Dropping the iterator ends the epoch's threads and
//! requests.
//!
//! Does not depend on how the data is read: an [`EpochSource`] reads the data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_types::{Error, Result, now};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::batch_rows::Column;
use super::on_error::{ErrorCounts, ErrorLog};
use super::timing::{Busy, Trace, Waits};

/// A delivered batch. The batch's memory belongs to the holder of this value.
#[derive(Debug)]
pub struct Delivered {
    /// Index of the batch, counted from the cursor.
    pub number: u64,
    /// Number of rows on this rank.
    pub rows: usize,
    /// One column per field, in the order of the fields. With a padded tail, the last column contains the weights.
    pub columns: Vec<Column>,
    /// Position in the epoch after this batch, which is the same on every rank. In an epoch without record counts, the
    /// packed [`super::Position`] of this rank.
    pub cursor: u64,
    /// For planned batches: position of each row in the sample order. In other batches, positions are consecutive.
    pub positions: Option<Vec<u64>>,
}

/// Result of [`EpochIter::next`].
#[derive(Debug)]
pub enum Next {
    /// The next batch.
    Batch(Delivered),
    /// The batch was not ready within the timeout.
    Waiting,
    /// No batches remain.
    Done,
}

/// State of an epoch, shared by the consumer, the runtime's tasks and the decoding threads.
pub trait EpochSource: Send + Sync + 'static {
    /// True if [`EpochSource::take`] would return this batch without waiting.
    fn is_ready(&self, number: u64) -> bool;
    /// Waits at most `timeout` for this batch. Returns the batch with the timing trace of its last rows.
    fn take(&self, number: u64, timeout: Duration) -> Result<(Next, Option<Trace>)>;
    /// Stops the threads, and drops the batches that were not taken.
    fn end(&self);
    /// Time for which the decoding threads were busy.
    fn busy(&self) -> &Busy;
    /// Log of unreadable samples.
    fn error_log(&self) -> &ErrorLog;
}

/// A running epoch. Dropping it ends the epoch's threads and requests.
pub struct EpochIter<S: EpochSource> {
    running: Option<Threads<S>>,
    pid: u32,
    /// Wait and busy times, stored here when the epoch is closed.
    timing: (Waits, Busy),
    error_counts: ErrorCounts,
}

impl<S: EpochSource> std::fmt::Debug for EpochIter<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpochIter").field("pid", &self.pid).finish_non_exhaustive()
    }
}

/// Threads of an epoch, and the progress of its consumer.
struct Threads<S> {
    shared: Arc<S>,
    consumed: watch::Sender<u64>,
    feeder: AbortHandle,
    threads: Vec<std::thread::JoinHandle<()>>,
    next: u64,
    waits: Waits,
    /// Time at which the consumer started to wait for the next batch.
    waiting: Option<Instant>,
}

impl<S: EpochSource> EpochIter<S> {
    /// Starts `feeder` on the runtime, and `threads` threads that run `work`. Through `consumed`, the feeder receives
    /// the number of the batch that the consumer takes next.
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
        let running = Threads { shared, consumed, feeder, threads, next: 0, waits: Waits::default(), waiting: None };
        Ok(Self {
            running: Some(running),
            pid: std::process::id(),
            timing: Default::default(),
            error_counts: ErrorCounts::default(),
        })
    }

    fn running(&mut self) -> Result<Option<&mut Threads<S>>> {
        if self.pid != std::process::id() {
            return Err(Error::config(
                "iterator",
                format!("belongs to process {}; create a new one in this process with iter(loader)", self.pid),
            ));
        }
        Ok(self.running.as_mut())
    }

    /// Waits at most `timeout` for the next batch. Closes the epoch after an error, and after the last batch.
    pub fn next(&mut self, timeout: Duration) -> Result<Next> {
        let Some(running) = self.running()? else { return Ok(Next::Done) };
        let next = running.next(timeout);
        if !matches!(next, Ok(Next::Batch(_) | Next::Waiting)) {
            self.close();
        }
        next
    }

    /// True if [`EpochIter::next`] would return without waiting.
    pub fn is_ready(&mut self) -> Result<bool> {
        Ok(self.running()?.is_none_or(|running| running.shared.is_ready(running.next)))
    }

    /// Returns the time for which the consumer waited, by cause, and the time for which the threads were busy.
    pub fn timing(&mut self) -> Result<(Waits, Busy)> {
        if let Some(running) = self.running()? {
            self.timing = (running.waits, running.shared.busy().snapshot());
        }
        Ok((self.timing.0, self.timing.1.snapshot()))
    }

    /// Returns the number of unreadable samples, by how they were handled.
    pub fn error_counts(&mut self) -> Result<ErrorCounts> {
        if let Some(running) = self.running()? {
            self.error_counts = running.shared.error_log().snapshot();
        }
        Ok(self.error_counts.clone())
    }

    /// Ends the epoch's threads and requests. Waits for the threads to exit, which takes at most the time to decode one
    /// object.
    pub fn close(&mut self) {
        let Some(running) = self.running.take() else { return };
        if self.pid != std::process::id() {
            // In a forked child, the epoch's threads do not exist, so the locks that they hold may never be released.
            std::mem::forget(running);
            return;
        }
        running.feeder.abort();
        running.shared.end();
        drop(running.consumed);
        for thread in running.threads {
            // A panic of a thread has already been reported as an error.
            let _ = thread.join();
        }
        self.timing = (running.waits, running.shared.busy().snapshot());
        self.error_counts = running.shared.error_log().snapshot();
    }
}

impl<S: EpochSource> Drop for EpochIter<S> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<S: EpochSource> Threads<S> {
    fn next(&mut self, timeout: Duration) -> Result<Next> {
        let began = *self.waiting.get_or_insert_with(now);
        let (next, trace) = self.shared.take(self.next, timeout)?;
        if matches!(next, Next::Batch(_)) {
            self.waits.attribute(began, now(), trace.as_ref());
            self.waiting = None;
            self.next += 1;
            self.consumed.send_replace(self.next);
        }
        Ok(next)
    }
}
