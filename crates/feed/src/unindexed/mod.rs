// SPDX-License-Identifier: Apache-2.0
//! Unindexed mode: reads datasets whose record counts are unknown. The objects of the dataset are permuted, and each of
//! W ranks streams every W-th object. Records are permuted within windows of limited size in bytes.
//!
//! Owns the sample order, and the position of one rank in this order: (object, record), for a given number of ranks. A
//! different number of ranks cannot continue from such a position, because the number of earlier records is unknown.
//! The number of batches is unknown, too.

mod decode_workers;
mod epoch_run;
mod object_stream;
mod row_assignment;
mod shared_state;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use penstock_codec::Codec;
use penstock_types::{Error, Result};
use tokio::runtime::Handle;

use super::batch_buffer::{Layout, Pool};
use super::field::Field;
use super::format::FormatSpec;
use super::source::Source;
use super::{DEFAULT_MEMORY, FeedSettings, LIKELY_RATIO, OnError, SPARE_SLOTS};
use crate::memory_budget::MemoryBudget;
use penstock_dataset::order::{Counts, Order, Permutation, Shuffle};

pub use epoch_run::UnindexedRun;
use object_stream::{PARTS_AHEAD, WINDOW};

/// Maximum number of objects that are streamed concurrently.
const MAX_AHEAD: usize = 16;

/// Progress of a rank in an epoch: the number of finished objects, and the number of finished records in the first
/// unfinished object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Position {
    /// Number of objects that this rank has finished, in the order of the epoch.
    pub object: u64,
    /// Number of finished records in the first unfinished object, in the order of the epoch.
    pub record: u64,
}

impl Position {
    /// Packs the position into one number. The number increases during the epoch.
    pub fn packed(self) -> u64 {
        (self.object << 40) | self.record
    }

    /// Unpacks a position from [`Position::packed`].
    pub fn unpacked(packed: u64) -> Self {
        Self { object: packed >> 40, record: packed & ((1 << 40) - 1) }
    }
}

/// Part of an epoch that a rank reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turns {
    /// Number of samples per batch of this rank.
    pub batch: u64,
    /// Rank of this process.
    pub rank: u64,
    /// Number of ranks.
    pub world: u64,
    /// True to drop the last batch if it is not full.
    pub drops_tail: bool,
}

/// An unindexed dataset with its order, fields and limits, ready to run.
#[derive(Debug)]
pub struct Unindexed {
    source: Arc<Source>,
    /// Seed of the shuffle; `None` for stored order.
    seed: Option<u64>,
    fields: Vec<Field>,
    turns: Turns,
    layout: Arc<Layout>,
    pool: Arc<Pool>,
    loose: Arc<Pool>,
    settings: FeedSettings,
    threads: usize,
    read_ahead: u64,
    /// Memory budget of the open streams.
    budget: MemoryBudget,
    memory_bytes: u64,
    /// Order that provides only the random keys of image crops. Its counts are not used.
    keys: Order,
    /// Number of bytes per row that variable-length fields take: the largest average of any batch so far.
    value_bytes: AtomicU64,
}

impl Unindexed {
    /// Creates a feed with `turns.batch` rows per batch.
    ///
    /// Returns `BudgetExceeded` if the budget is below the minimum: the batches in progress, one window per thread, and
    /// the stream of one object.
    pub fn new(
        source: Arc<Source>,
        seed: Option<u64>,
        fields: Vec<Field>,
        turns: Turns,
        settings: FeedSettings,
    ) -> Result<Arc<Self>> {
        if !matches!(source.format(), FormatSpec::TfRecord { .. } | FormatSpec::Tar {} | FormatSpec::Jsonl {}) {
            return Err(Error::Unsupported {
                what: format!("format {}", source.format().name()),
                by: "unindexed mode, which supports only TFRecord, tar and JSON lines".to_owned(),
            });
        }
        if turns.world == 0 || turns.rank >= turns.world {
            let problem = format!("must be less than the number of ranks ({} ranks, got {})", turns.world, turns.rank);
            return Err(Error::config("rank", problem));
        }
        if fields.is_empty() {
            return Err(Error::config("fields", "at least one field is required"));
        }
        if settings.on_error == OnError::Substitute {
            let problem = "substitute requires record counts; for an unindexed dataset, use skip or raise";
            return Err(Error::config("on_error", problem));
        }
        let rows = usize::try_from(turns.batch).ok().filter(|&rows| rows > 0 && u32::try_from(rows).is_ok());
        let rows = rows.ok_or_else(|| Error::config("batch", format!("{} is not a valid batch size", turns.batch)))?;
        let layout = Arc::new(Layout::new(&fields, rows)?);
        let has_loose = fields.iter().any(|field| field.fixed().is_none());
        let read_ahead = settings.read_ahead.unwrap_or(2).max(1);
        let batches = (layout.bytes as u64 + 4096).saturating_mul(read_ahead + 2);
        let threads = settings.threads.max(1);
        let objects = &source.manifest().objects;
        let stream = (0..objects.len() as u64).map(|object| stream_bytes(&source, object)).max().unwrap_or(0);
        let windows = WINDOW.min(stream).saturating_mul(threads as u64 + 1);
        let need = batches.saturating_add(windows).saturating_add(stream);
        let memory_bytes = settings.memory_bytes.unwrap_or_else(|| DEFAULT_MEMORY.max(need.saturating_mul(2)));
        let rest = memory_bytes.checked_sub(need).ok_or_else(|| Error::BudgetExceeded {
            what: format!(
                "{} batches of {rows} samples, windows of {WINDOW} bytes for {threads} threads and the stream of one object",
                read_ahead + 2
            ),
            need,
            budget: memory_bytes,
        })?;
        let shuffle = seed.map(|seed| Shuffle { seed, window: 1 });
        Ok(Arc::new(Self {
            keys: Order::new(Counts::Equal { objects: objects.len() as u64, each: 1 }, shuffle),
            source,
            seed,
            fields,
            turns,
            layout,
            pool: Pool::new(SPARE_SLOTS, true),
            loose: Pool::new(if has_loose { SPARE_SLOTS } else { 0 }, false),
            settings,
            threads,
            read_ahead,
            budget: MemoryBudget::new(stream + rest),
            memory_bytes,
            value_bytes: AtomicU64::new(0),
        }))
    }

    /// Fields of a batch.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Memory budget in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Number of decoding threads of a run.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Number of objects that this rank reads in an epoch.
    pub fn objects(&self) -> u64 {
        let Turns { rank, world, .. } = self.turns;
        (self.source.manifest().objects.len() as u64).saturating_sub(rank).div_ceil(world)
    }

    /// Starts an epoch at `position`.
    pub fn start(self: &Arc<Self>, runtime: &Handle, epoch: u64, position: Position) -> Result<UnindexedRun> {
        if position.object > self.objects() {
            let problem = format!(
                "object {} is beyond the end of this rank's share ({} objects)",
                position.object,
                self.objects()
            );
            return Err(Error::config("state", problem));
        }
        UnindexedRun::over(self.clone(), runtime, epoch, position)
    }

    /// Returns the object that is number `turn` among this rank's objects of an epoch.
    fn object(&self, epoch: u64, turn: u64) -> u64 {
        let objects = self.source.manifest().objects.len() as u64;
        let order = match self.seed {
            Some(seed) => Permutation::keyed(objects, seed, epoch, 0),
            None => Permutation::identity(objects),
        };
        order.at(turn * self.turns.world + self.turns.rank)
    }

    /// Returns the order of a window of `records` records of an object. `first` is the first record of the window. The
    /// order is the same for any number of ranks.
    fn records(&self, epoch: u64, object: u64, first: u64, records: u64) -> Permutation {
        match self.seed {
            // All windows get different permutations if every object has fewer than 2^40 records and the dataset has
            // fewer than 2^24 objects.
            Some(seed) => Permutation::keyed(records, seed, epoch, ((object + 1) << 40) ^ first),
            None => Permutation::identity(records),
        }
    }
}

/// Maximum memory, in bytes, of an object's stream: parts in flight, decompression buffer, and one finished window.
fn stream_bytes(source: &Source, object: u64) -> u64 {
    let size = source.entry(object).size;
    let ratio = if source.codec(object) == Codec::None { 1 } else { LIKELY_RATIO };
    size.min(PARTS_AHEAD) + (2 * WINDOW).min(size.saturating_mul(ratio))
}

#[cfg(test)]
mod tests;
