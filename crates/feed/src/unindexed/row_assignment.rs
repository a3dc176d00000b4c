// SPDX-License-Identifier: Apache-2.0
//! Stream feeder of unindexed mode: assigns records to rows of batches. It opens streams in the order of objects, as
//! many ahead as the budget allows. When a window arrives, it assigns rows to the window's records.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_channel::Sender;
use penstock_types::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use super::super::batch_rows::Rows;
use super::super::decode_memory::Values;
use super::super::on_error::{OnError, is_about_data};
use super::super::timing::Trace;
use super::decode_workers::{Held, Job};
use super::object_stream::{Window, windows};
use super::shared_state::{Open, Shared};
use super::{MAX_AHEAD, Position, Turns, stream_bytes};
use crate::memory_budget::Reservation;

/// An open stream of one object's windows.
struct OpenStream {
    turn: u64,
    object: u64,
    windows: mpsc::Receiver<Result<Window>>,
    task: JoinHandle<()>,
    _reserved: Reservation,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens streams in the order of objects, and assigns rows to the records of the streams.
pub(super) struct Feeder {
    shared: Arc<Shared>,
    jobs: Sender<Job>,
    consumed: watch::Receiver<u64>,
    /// Number of the next row, counted from the first row of the epoch's first batch.
    row: u64,
    /// Position in the epoch after the last assigned row.
    at: Position,
}

impl Feeder {
    pub fn new(shared: Arc<Shared>, jobs: Sender<Job>, consumed: watch::Receiver<u64>, at: Position) -> Self {
        Self { shared, jobs, consumed, row: 0, at }
    }

    /// Index of the batch that contains the next row.
    pub fn batch(&self) -> u64 {
        self.row / self.shared.feed.turns.batch
    }

    pub async fn run(&mut self, from: Position) -> Result<()> {
        let feed = self.shared.feed.clone();
        let decoding = Arc::new(Semaphore::new(feed.threads + 1));
        let mut ahead: VecDeque<OpenStream> = VecDeque::new();
        let mut turn = from.object;
        loop {
            while turn < feed.objects() && ahead.len() < MAX_AHEAD {
                let object = feed.object(self.shared.epoch, turn);
                let bytes = stream_bytes(&feed.source, object);
                // Only the first stream waits for memory. Further streams are opened only if enough memory is free.
                if !ahead.is_empty() && feed.budget.free() < bytes + 4096 {
                    break;
                }
                let reserved = feed.budget.reserve("the stream of an object", bytes).await?;
                let (out, found) = mpsc::channel(1);
                let task = tokio::spawn(windows(feed.source.clone(), object, feed.settings.object_timeout, out));
                ahead.push_back(OpenStream { turn, object, windows: found, task, _reserved: reserved });
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
                        return Ok(()); // the consumer has closed the epoch
                    }
                }
                Some(Err(error)) => {
                    let skips = feed.settings.on_error == OnError::Skip && is_about_data(&error);
                    if !skips {
                        return Err(error);
                    }
                    // Skip the rest of the object. The number of skipped records is unknown.
                    self.shared.error_log.skipped(&error);
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

    /// Assigns rows to a window's records. Returns false if the consumer has closed the epoch.
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
        let held = Arc::new(Held { window, object, place, permit });
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
            // The send fails only after the threads have ended. At that time, no consumer is waiting.
            let _ = self.jobs.send(Job { window: held.clone(), wants, batch, rows, trace });
        }
        Ok(true)
    }

    /// Returns the rows of a batch. Opens the batch if it is not open. Returns `None` if the consumer has closed the
    /// epoch.
    async fn open(&mut self, batch: u64) -> Result<Option<Arc<Rows>>> {
        if let Some(open) = self.shared.locked().open.get(&batch) {
            return Ok(Some(open.rows.clone()));
        }
        let feed = &self.shared.feed;
        // If variable-length values turn out to be large, open fewer batches ahead.
        let values = feed.value_bytes.load(Ordering::Relaxed).saturating_mul(feed.turns.batch);
        let fit = (feed.memory_bytes / 2) / (feed.layout.bytes as u64).saturating_add(values).max(1);
        let ahead = feed.read_ahead.min(fit);
        if self.consumed.wait_for(|&next| batch <= next + ahead).await.is_err() {
            return Ok(None);
        }
        let count = feed.turns.batch as usize;
        let values = Values::limited(feed.memory_bytes);
        let rows = Arc::new(Rows::new(feed.pool.take(&feed.layout)?, &feed.fields, count, values));
        let (dead, end) = (Vec::new(), Position::default());
        let open = Open { rows: rows.clone(), left: count, count, dead, error: None, last: None, end };
        self.shared.locked().open.insert(batch, open);
        Ok(Some(rows))
    }

    /// Finishes the epoch. Delivers the last batch with the rows that it has, or drops the last batch.
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
