// SPDX-License-Identifier: Apache-2.0
//! Feed: reads the records of a dataset in the order of an epoch, and delivers them in batches. The consumer may hold
//! the memory of a batch for any length of time.
//!
//! Owns the path from the store to the batch: record counts, batch plan, fetches, decoding threads, batch memory, the
//! node cache and reads from a pool. The caller chooses the epoch, the position and the rank. Independent of Python.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod annotation_geometry;
mod annotation_kind;
mod audio_field_json;
mod audio_fields;
mod batch_bounds;
mod batch_buffer;
mod batch_by;
mod batch_plan;
mod batch_rows;
pub mod cache;
mod chunked_arrays;
mod cuda;
mod decode;
mod decode_memory;
mod epoch_batches;
mod epoch_iter;
mod epoch_run;
mod field;
mod field_lookup;
mod format;
mod image_field_json;
mod megatron_index_lookup;
mod memory_budget;
mod next_epoch_prefetch;
mod next_use;
mod object_content;
mod offset_cache;
mod on_error;
mod partial_counts;
mod pool_read;
mod random_access;
mod read_ranges;
mod read_scheduling;
mod read_sizes;
mod record_counts;
mod record_locator;
mod scan;
mod schema;
mod settings;
mod shared_chunks;
mod sidecar_indexes;
mod source;
mod timing;
mod unindexed;
mod unknown_columns;
mod value;
mod zarr_metadata_fetch;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_codec::Codec;
use penstock_types::{DType, Error, Result, lock};
use tokio::runtime::Handle;

pub use annotation_kind::{Annotation, AudioFact, Follows};
pub use batch_bounds::{Steps, Tail};
pub use batch_buffer::Tensor;
pub use batch_by::{BatchBy, BatchRule};
pub use batch_rows::Column;
pub use chunked_arrays::PatchSpec;
pub use cuda::CudaDevice;
pub use epoch_iter::{Delivered, EpochIter, Next};
pub use epoch_run::Run;
pub use field::{Field, Kind, PadTo, Padding, TextErrors};
pub use format::{ArrayBlocks, Column as FixedColumn, FormatSpec, Hdf5Array, Hdf5File, ZarrMetadata, keep_likely};
pub use memory_budget::{MemoryBudget, Reservation};
pub use on_error::{ErrorCounts, OnError};
pub use partial_counts::PartialCounts;
pub use pool_read::{Placement, Placements, PoolStore, Reader};
pub use random_access::RecordRef;
pub use read_sizes::{MAX_AT_ONCE, requests_of};
pub use record_counts::{CountSource, Counted, ExistingIndexes, count, kept, scan};
pub use schema::{Schema, Seen, schema};
pub use settings::FeedSettings;
pub use sidecar_indexes::{SidecarIndexes, indexes_in, without_indexes};
pub use source::Source;
pub use timing::{Busy, Waits};
pub use unindexed::{Position, Turns, Unindexed, UnindexedRun};
pub use unknown_columns::unknown_columns;

use batch_buffer::{Layout, Pool};
use batch_plan::Tasks;
use decode_memory::PartMemory;
use epoch_batches::EpochBatches;
use penstock_dataset::sampler::{DatasetView, Sampler, SamplerCursor};
use read_scheduling::{AccessPattern, read_ahead_for};

/// Name of the field that a padded tail adds. Its value is 1 for a sample, and 0 for a repeated sample.
pub const WEIGHT: &str = "weight";

/// Name of the field that contains, in a mixture, the number of the sample's source.
pub const SOURCE: &str = "source";

/// Default memory budget in bytes. The budget is larger if the batches need more.
const DEFAULT_MEMORY: u64 = 1 << 30;

/// Maximum number of positions to plan ahead if records are read one by one. Planning a position takes about 100 bytes
/// of memory and 1 µs.
const MAX_PLANNED: u64 = 1 << 21;

/// Maximum number of positions to plan ahead if records are read one by one in stored order. In stored order, a limit
/// below `MAX_PLANNED` does not cause a second read of any object.
const MAX_PLANNED_IN_ORDER: u64 = 1 << 20;

/// Number of spare slots of the pool for variable-length fields. The read-ahead does not determine the size of this
/// pool; a larger pool would waste memory.
const SPARE_SLOTS: usize = 4;

/// Assumed compression ratio if the fields do not determine the decompressed size. Text and integers rarely compress
/// much better.
const LIKELY_RATIO: u64 = 4;

/// A dataset with its order, fields and limits, ready to run. Threads and requests exist only during a [`Run`].
#[derive(Debug)]
pub struct Feed {
    sources: Vec<Arc<Source>>,
    leaves: Arc<[DatasetView]>,
    course: Arc<Sampler>,
    /// Batching rule; `None` for batches of a constant size.
    by: Option<Arc<BatchBy>>,
    /// Maximum distance, in positions, between records of one object that are read by the same task.
    horizon: u64,
    fields: Vec<Field>,
    /// True if the fields are images or audio. Decoding such a record takes as long as reading megabytes.
    decodes_media: bool,
    weighted: bool,
    /// For each source, its number in the field [`SOURCE`]. `None` if batches do not have this field.
    source_numbers: Option<Vec<i32>>,
    layout: Arc<Layout>,
    pool: Arc<Pool>,
    /// Pool of memory for fields of variable length.
    loose: Arc<Pool>,
    /// Maximum number of bytes that a batch takes from the budget. With this limit, all batches of a shuffle window
    /// fit.
    max_batch_bytes: u64,
    /// Number of bytes per row that variable-length fields take. The first value is the stored size of a sample; then
    /// it is the largest average of any batch so far.
    value_bytes: AtomicU64,
    /// True if variable-length fields may be many times larger than their stored size.
    inflates_values: bool,
    /// Maximum size of a read from an object whose records can be read one by one: a quarter of the budget.
    part: u64,
    /// Access pattern of each source.
    patterns: Vec<AccessPattern>,
    on_error: OnError,
    budget: MemoryBudget,
    scratches: Mutex<Vec<Vec<u8>>>,
    /// Estimated decompressed size of an object.
    scratch_bytes: usize,
    threads: usize,
    max_in_flight: usize,
    read_ahead: u64,
    limit: u64,
    object_timeout: Duration,
    prefetch_next_epoch: bool,
    /// Part of the budget for prefetching the next epoch, in bytes. The rest of the budget is enough for the first
    /// shuffle window of that epoch.
    ahead_bytes: u64,
    ahead: Mutex<Option<next_epoch_prefetch::EpochPrefetch>>,
    gathered: random_access::Cache,
    /// Memory for values that are decompressed one by one.
    part_memory: PartMemory,
    /// Lock for decompressing a large object. Only the holder of the lock may exceed a thread's share of memory.
    large_object: Mutex<()>,
}

impl Feed {
    /// Creates a feed. `steps` sets the shape of the batches; its cursor is ignored.
    ///
    /// `sources` and `leaves` each have one element per leaf of the sampler, in the order of the leaves.
    ///
    /// Returns `BudgetExceeded` if the budget is below the minimum. The minimum is the memory for the batches that
    /// overlap one shuffle window, for one stored object, and for the decompressed content of one thread.
    pub fn new(
        sources: Vec<Arc<Source>>,
        leaves: Vec<DatasetView>,
        course: Sampler,
        fields: Vec<Field>,
        steps: Steps,
        settings: &FeedSettings,
    ) -> Result<Arc<Self>> {
        Self::with_batches(sources, leaves, course, fields, steps, settings, None)
    }

    /// Like [`Self::new`], but the batches follow the rule `by`. With a rule, the global batch of `steps` is ignored.
    pub fn with_batches(
        sources: Vec<Arc<Source>>,
        leaves: Vec<DatasetView>,
        course: Sampler,
        mut fields: Vec<Field>,
        steps: Steps,
        settings: &FeedSettings,
        by: Option<Arc<BatchBy>>,
    ) -> Result<Arc<Self>> {
        steps.check()?;
        let (max_rows, mean_rows) = match &by {
            Some(by) => (by.checked_rows(&steps)?, by.mean_rows()),
            None => (steps.max_rows(), steps.global_batch),
        };
        if by.is_none() && fields.iter().any(Field::is_padded_to_bucket) {
            let text = "a field can be padded to its bucket only in a loader with batch_by";
            return Err(Error::config("fields", text));
        }
        if fields.is_empty() {
            return Err(Error::config("fields", "at least one field is required"));
        }
        if sources.len() != leaves.len() || course.leaves() != leaves.len() || steps.samples != course.samples() {
            return Err(Error::bug("the sources, leaves and sampler of a feed do not match"));
        }
        let rows = usize::try_from(max_rows).ok().filter(|&rows| u32::try_from(rows).is_ok());
        let rows = rows.ok_or_else(|| Error::config("batch", format!("a batch of {max_rows} rows is too large")))?;
        let usual_rows = max_rows.min(mean_rows.div_ceil(steps.world));
        let sample_bytes = Layout::new(&fields, 1)?.strides.iter().sum::<usize>() as u64;
        if let Some(numbers) = &settings.source_numbers {
            if numbers.len() != sources.len() {
                return Err(Error::bug(format!("{} source numbers for {} sources", numbers.len(), sources.len())));
            }
            if fields.iter().any(|field| field.name == SOURCE) {
                return Err(Error::config("fields", "`source` is reserved for the number of a sample's source"));
            }
            fields.push(Field::tensor(SOURCE, DType::I32, &[]));
        }
        let weighted = steps.tail == Tail::Pad;
        if weighted {
            if fields.iter().any(|field| field.columns().any(|name| name == WEIGHT)) {
                return Err(Error::config("fields", "`weight` is reserved for the field that tail=\"pad\" adds"));
            }
            fields.push(Field::tensor(WEIGHT, DType::F32, &[]));
        }
        let layout = Arc::new(Layout::new(&fields, rows)?);

        if settings.on_error == OnError::Skip && steps.tail == Tail::Drop {
            return Err(Error::config(
                "on_error",
                "skip cannot be used with tail=\"drop\", because it makes batches smaller; use on_error=\"substitute\" or \
                 tail=\"pad\"",
            ));
        }
        let is_padded = fields.iter().any(|field| matches!(field.kind, Kind::Padded(..)));
        let has_loose = fields.iter().any(|field| field.fixed().is_none());
        let loose_bytes = sources.iter().zip(&leaves).map(|(source, leaf)| source.stored_a_sample(leaf.counts())).max();
        let slot = layout.bytes as u64 + if has_loose { usual_rows * loose_bytes.unwrap_or(0) } else { 0 };
        let part = settings.memory_bytes.unwrap_or(DEFAULT_MEMORY) / 4;
        let patterns: Vec<AccessPattern> =
            sources.iter().zip(&leaves).map(|(source, leaf)| AccessPattern::of(source, leaf)).collect();
        let decodes_audio = fields.iter().any(|field| field.audio.is_some());
        let (mut stored, mut scratch, mut inflates) = (0, 0, decodes_audio);
        for ((source, leaf), grain) in sources.iter().zip(&leaves).zip(&patterns) {
            let objects = &source.manifest().objects;
            let largest = objects.iter().map(|entry| entry.size).max().unwrap_or(0);
            if let Some(blocks) = source.blocks() {
                (stored, scratch) = (stored.max(largest), scratch.max(blocks.max_work()));
                continue;
            }
            let compressed = (0..objects.len() as u64).any(|object| source.codec(object) != Codec::None);
            inflates |= compressed || source.framing().is_table() || source.framing().inflates_parts();
            // This is an estimate. The exact decompressed size of an object is not known yet, but its fields account
            // for nearly all of the size.
            let inflated = leaf.counts().most().saturating_mul(sample_bytes + 64).max(largest);
            let inflated = if has_loose { inflated.max(largest.saturating_mul(LIKELY_RATIO)) } else { inflated };
            // An object whose records can be read one by one is read in parts of at most this size.
            stored = stored.max(if grain.is_partial { largest.min(part) } else { largest });
            scratch = scratch.max(if compressed { inflated } else { 0 });
        }
        // Number of batches that `span` consecutive positions overlap. The first position may be the last sample of a
        // batch.
        let batches = |span: u64| match &by {
            None => (1 + (span.max(1) - 1).div_ceil(mean_rows)).min(steps.count().max(1)),
            // This is an average. If more batches are open, `run_ahead` exceeds the budget instead of waiting forever.
            Some(by) => 2 + span.saturating_add(by.waiting_rows()).div_ceil(mean_rows),
        };
        let span = course.span(&leaves).min(course.samples().max(1));
        // If the weights of a mixture differ, its windows extend over many batches. If these batches do not fit in half
        // of the budget, objects are read more than once.
        let room = (settings.memory_bytes.unwrap_or(DEFAULT_MEMORY) / 2).checked_div(slot + 4096).unwrap_or(1);
        let fits = room.saturating_sub(1).saturating_mul(mean_rows).max(1);
        // If all objects are read in ranges, planning further ahead would only delay the first batch.
        let planned = match patterns.iter().all(|grain| grain.is_partial) {
            true if leaves.iter().any(DatasetView::is_shuffled) => MAX_PLANNED,
            true => MAX_PLANNED_IN_ORDER,
            false => u64::MAX,
        };
        let spread = by.as_ref().map_or(span, |by| by.window());
        let is_spread = course.is_mixed() || course.is_listed();
        let horizon = if is_spread || planned < u64::MAX { spread.min(fits).min(planned) } else { u64::MAX };
        let spanned = batches(span.min(horizon));
        let pages = 4096 * (spanned + 2); // a reservation is a whole number of pages
        let need = spanned.saturating_mul(slot).saturating_add(stored).saturating_add(scratch).saturating_add(pages);
        let windows = leaves.iter().map(DatasetView::window);
        let shared: Vec<u64> =
            sources.iter().zip(windows).map(|(source, window)| source.shared_bytes(window)).collect();
        let shared_all = shared.iter().copied().fold(0, u64::saturating_add);
        let enough = need.saturating_add(shared_all).saturating_mul(2);
        let memory_bytes = settings.memory_bytes.unwrap_or_else(|| DEFAULT_MEMORY.max(enough));
        let inflates_parts = decodes_audio || sources.iter().any(|source| source.framing().inflates_parts());
        let parts = if inflates_parts { memory_bytes / 4 } else { 0 };
        let rest = memory_bytes.checked_sub(need).map(|rest| rest.saturating_sub(parts)).ok_or_else(|| Error::BudgetExceeded {
            what: format!(
                "a shuffle window of {} objects ({spanned} batches of {rows} samples of {sample_bytes} bytes), plus one \
                 object of {stored} bytes and {scratch} bytes to decompress it,",
                leaves.iter().map(DatasetView::window).max().unwrap_or(1)
            ),
            need,
            budget: memory_bytes,
        })?;
        // If memory is too small for all shared chunks, some chunks are read more than once in a shuffle window.
        let kept_chunks = shared_all.min(rest / 2);
        for (source, bytes) in sources.iter().zip(shared) {
            let share = u128::from(kept_chunks) * u128::from(bytes) / u128::from(shared_all.max(1));
            source.set_shared_bytes(share as u64);
        }
        let rest = rest - kept_chunks;
        let more_threads = rest.checked_div(scratch.max(1)).unwrap_or(0).min(settings.threads.max(1) as u64 - 1);
        let more_threads = if scratch == 0 { settings.threads.max(1) as u64 - 1 } else { more_threads };
        let rest = rest - more_threads * scratch;
        let threads = 1 + more_threads as usize;
        let most = settings.max_in_flight.max(1);
        let (max_in_flight, read_ahead) = read_ahead_for(&patterns, most, threads, usual_rows, slot, rest / 4);
        let read_ahead = settings.read_ahead.unwrap_or(read_ahead);
        // One spare slot per batch in progress. The memory of each delivered batch is then reused by the next batch.
        let spare = (rest / 4).checked_div(slot.max(1)).unwrap_or(0).min(read_ahead.saturating_add(2));
        let kept = ((1 + more_threads) * scratch).saturating_add(spare * slot).saturating_add(parts + kept_chunks);
        let budget = MemoryBudget::new(memory_bytes.saturating_sub(kept).max(need - scratch));
        let held = spanned.saturating_mul(slot).saturating_add(stored).saturating_add(pages);
        let ahead_bytes = budget.bytes().saturating_sub(held).min(budget.bytes() / 4);
        Ok(Arc::new(Self {
            sources,
            leaves: leaves.into(),
            course: Arc::new(course),
            by,
            horizon,
            decodes_media: decodes_audio || fields.iter().any(|field| matches!(field.kind, Kind::Image(_))),
            fields,
            weighted,
            source_numbers: settings.source_numbers.clone(),
            layout,
            pool: Pool::new(spare as usize, true),
            loose: Pool::new(if has_loose { SPARE_SLOTS } else { 0 }, false),
            max_batch_bytes: (budget.bytes().saturating_sub(stored + pages) / spanned).max(slot),
            value_bytes: AtomicU64::new(if has_loose { loose_bytes.unwrap_or(0) } else { 0 }),
            inflates_values: has_loose && (inflates || is_padded),
            part,
            patterns,
            on_error: settings.on_error,
            budget,
            scratches: Mutex::default(),
            scratch_bytes: usize::try_from(scratch).unwrap_or(0),
            threads,
            max_in_flight,
            read_ahead,
            limit: memory_bytes,
            object_timeout: settings.object_timeout,
            prefetch_next_epoch: settings.prefetch_next_epoch,
            ahead_bytes,
            ahead: Mutex::default(),
            gathered: random_access::Cache::default(),
            part_memory: PartMemory::new(parts, memory_bytes),
            large_object: Mutex::default(),
        }))
    }

    /// Creates a cursor over the order of the samples.
    pub fn walk(&self) -> Result<SamplerCursor> {
        SamplerCursor::new(self.course.clone(), self.leaves.clone())
    }

    /// Batches of an epoch that come after the cursor of `steps`.
    fn batches(&self, epoch: u64, steps: Steps) -> Result<Arc<EpochBatches>> {
        EpochBatches::new(steps, self.by.as_ref(), epoch)
    }

    /// Tasks that fill the batches of an epoch.
    fn tasks(&self, epoch: u64, batches: Arc<EpochBatches>) -> Result<Tasks> {
        Ok(Tasks::new(self.walk()?, epoch, self.course.samples(), batches, self.horizon))
    }

    /// Fields of a batch. With a padded tail, the last field is the weight.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Fields that are read from records: all fields except the source number and the weight.
    fn record_fields(&self) -> &[Field] {
        let others = usize::from(self.source_numbers.is_some()) + usize::from(self.weighted);
        &self.fields[..self.fields.len() - others]
    }

    /// Column number and values of the field [`SOURCE`]. `None` if batches do not have this field.
    fn source_column(&self) -> Option<(usize, &[i32])> {
        self.source_numbers.as_deref().map(|numbers| (self.record_fields().len(), numbers))
    }

    /// For each source: one sentence on whether and why its node cache creates transposed copies. `None` before the
    /// decision.
    pub fn transcoding(&self) -> Vec<Option<String>> {
        self.sources.iter().map(|source| source.transcoding()).collect()
    }

    /// Memory budget in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.limit
    }

    /// Number of decoding threads of a run.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Number of bytes that a batch of `rows` rows takes from the budget. The number is limited, so that the batches of
    /// a shuffle window, one object and its decompressed content fit in the budget together.
    fn batch_bytes(&self, rows: usize) -> u64 {
        let values = self.value_bytes.load(Ordering::Relaxed).saturating_mul(rows as u64);
        (self.layout.bytes as u64).saturating_add(values).min(self.max_batch_bytes)
    }

    /// Number of batches in progress after batch `next`. If batch sizes are known only after decoding, the number is
    /// small at first and doubles with each batch.
    fn ahead_of(&self, next: u64) -> u64 {
        if self.inflates_values { self.read_ahead.min(1 << next.min(32)) } else { self.read_ahead }
    }

    /// Starts `epoch` at the position `steps.cursor`.
    pub fn start(self: &Arc<Self>, runtime: &Handle, epoch: u64, steps: Steps) -> Result<Run> {
        steps.check()?;
        let is_even = self.by.is_none();
        if steps.samples != self.course.samples() || is_even && steps.max_rows() as usize > self.layout.rows {
            return Err(Error::bug("a feed was started with steps that do not match its number of samples or rows"));
        }
        Run::over(self.clone(), runtime, epoch, steps)
    }

    /// Returns a decompression buffer. The buffer may be empty or contain old data.
    fn scratch(&self) -> Vec<u8> {
        let kept = lock(&self.scratches).pop();
        kept.unwrap_or_else(|| {
            let mut scratch = Vec::new();
            // If the reservation fails, each decoder requests the memory that it needs, or returns an error.
            if scratch.try_reserve_exact(self.scratch_bytes).is_ok() {
                penstock_store::advise_huge(scratch.as_mut_ptr(), scratch.capacity());
            }
            scratch
        })
    }

    fn give_scratch(&self, scratch: Vec<u8>) {
        lock(&self.scratches).push(scratch);
    }
}

#[cfg(test)]
mod tests;
