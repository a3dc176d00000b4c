// SPDX-License-Identifier: Apache-2.0
//! Decoding threads of unindexed mode: they decode the records of windows into rows of batches.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::Receiver;
use penstock_types::{Error, Result, now};
use tokio::sync::OwnedSemaphorePermit;

use super::super::batch_rows::Rows;
use super::super::decode::fill;
use super::super::decode_memory::PartMemory;
use super::super::format::RecordId;
use super::super::timing::Trace;
use super::object_stream::Window;
use super::shared_state::Shared;

/// Decoding job: records of one window that belong to the same batch.
pub(super) struct Job {
    pub window: Arc<Held>,
    /// Requests as (index of the record in the window, row in the batch).
    pub wants: Vec<(u64, u32)>,
    pub batch: u64,
    pub rows: Arc<Rows>,
    pub trace: Trace,
}

/// A window that is being decoded.
pub(super) struct Held {
    pub window: Window,
    pub object: u64,
    pub place: String,
    /// Permit that limits the number of windows in memory for decoding.
    #[expect(dead_code, reason = "held for its drop")]
    pub permit: OwnedSemaphorePermit,
}

/// Main loop of a decoding thread.
pub(super) fn work(shared: &Arc<Shared>, queue: &Receiver<Job>) {
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
        // Release the rows here, because `settle` may allow the delivery of the batch.
        drop(job);
        shared.settle(batch, rows, trace, bad);
    }
}

/// Reads each requested record into its row. Returns the row and the error of each failed record.
fn decode(shared: &Shared, job: &Job) -> Vec<(u32, Error)> {
    let feed = &shared.feed;
    let Held { window, object, place, .. } = &*job.window;
    // No format of unindexed mode decompresses values one by one, so this reservation stays unused.
    let memory = PartMemory::new(0, feed.memory_bytes);
    let memory = memory.hold();
    let read = |&(index, row): &(u64, u32)| -> Result<()> {
        let span = window.spans.get(index as usize).ok_or_else(|| Error::bug("a window has no such record"))?;
        let bytes = usize::try_from(span.range().end).ok();
        let bytes = bytes.and_then(|end| window.content.get(span.offset as usize..end));
        let bytes = bytes.ok_or_else(|| Error::bug("a record is outside its window"))?;
        let (record, offset) = (window.first + index, window.base + span.offset);
        let id = RecordId { place, object: *object, record, offset, memory: &memory };
        // The key depends only on the location of the sample, so it is the same for any number of ranks.
        let key = feed.keys.key_of(shared.epoch, (object << 40) ^ record);
        let framing = feed.source.framing();
        let whole = framing.whole(bytes);
        framing.read(bytes, &[], id, &mut |read| fill(read, whole, &id, row, key, &feed.fields, &job.rows))
    };
    job.wants.iter().filter_map(|want| read(want).err().map(|error| (want.1, error))).collect()
}
