// SPDX-License-Identifier: Apache-2.0
//! Batches by length: samples of similar length form a batch. The batch size is fixed per bucket, or follows from a
//! token budget.
//!
//! Owns the rule and the lengths, and computes the batches of one planning window. A planning window is a fixed number
//! of positions of the sample order. The batches of a window contain exactly the samples of the window, so a saved
//! state needs only a position.
//!
//! Each sample joins the open batch of its bucket. A batch is delivered when it is full (as in `tf.data`'s
//! `bucket_by_sequence_length`), so samples are delivered soon after their position, and objects are read once.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use penstock_dataset::ObjectStarts;
use penstock_dataset::order::{Counts, Place};
use penstock_dataset::sampler::{DatasetView, Located, Sampler, SamplerCursor};
use penstock_types::{Error, Result, lock, with_separators};
use serde::Deserialize;

use super::batch_bounds::{Steps, Tail};

/// Minimum size of a planning window in samples. Planning this many samples takes about 20 ms.
const MIN_WINDOW: u64 = 1 << 17;

/// Number of shuffle windows in a planning window. An object at the border of two planning windows is read twice.
const SHUFFLE_WINDOWS: u64 = 4;

/// Maximum size of a planning window in samples. Positions within the window fit in 32 bits.
const MAX_WINDOW: u64 = 1 << 31;

/// Rule by which samples form batches. All sizes refer to a batch over all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BatchRule {
    /// Each bucket has a fixed number of samples per batch.
    Buckets {
        /// Maximum length in each bucket, ascending. If `sizes` has one element more, the last bucket has no maximum.
        boundaries: Vec<u32>,
        /// Number of samples in a batch of each bucket.
        sizes: Vec<u64>,
    },
    /// A batch has as many samples as the budget allows. A batch has `shares` equal shares; in each share, the number
    /// of samples times the longest length is at most `tokens`.
    Budget {
        /// Maximum of (number of samples times longest length) in a share.
        tokens: u64,
        /// Maximum number of samples in a share.
        max_samples: u64,
        /// Number of shares in a batch. All shares have the same number of samples, except in a window's last batch.
        shares: u64,
    },
}

impl BatchRule {
    /// Parses the JSON that Python writes.
    pub fn from_json(json: &str) -> Result<Self> {
        serde_json::from_str(json).map_err(|error| Error::bug(format!("a batch rule: {error}")))
    }
}

/// Lengths of the samples of one dataset, in stored order.
#[derive(Debug)]
struct Lengths {
    lengths: Vec<u32>,
    starts: ObjectStarts,
}

impl Lengths {
    fn new(lengths: Vec<u32>, counts: &Counts) -> Result<Self> {
        if lengths.len() as u64 != counts.samples() {
            let samples = with_separators(counts.samples());
            let text = format!("{} lengths were given for {samples} samples", with_separators(lengths.len() as u64));
            return Err(Error::config("length", text));
        }
        Ok(Self { lengths, starts: ObjectStarts::of(counts) })
    }

    fn of(&self, place: Place) -> u32 {
        self.lengths[(self.starts.of_object(place.object) + place.record) as usize]
    }
}

/// Batching rule for the samples of a sampler, with the lengths of these samples.
#[derive(Debug)]
pub struct BatchBy {
    rule: BatchRule,
    /// Maximum length of each bucket, ascending.
    bounds: Vec<u32>,
    course: Arc<Sampler>,
    leaves: Arc<[DatasetView]>,
    lengths: Vec<Lengths>,
    window: u64,
    /// Shortest length of all samples.
    shortest: u32,
    longest: u32,
    mean_rows: u64,
    waiting_rows: u64,
    counted: Mutex<Option<((u64, Tail), u64)>>,
}

/// Maximum length of each bucket under a token budget. Each bucket ends 10 % above the previous one, as in
/// tensor2tensor's `batching_scheme`, so at most about 10 % of a batch is padding.
fn budget_bounds(tokens: u64) -> Vec<u32> {
    let most = u32::try_from(tokens).unwrap_or(u32::MAX);
    let mut bounds = vec![8.min(most)];
    while let Some(&last) = bounds.last()
        && last < most
    {
        bounds.push(last.saturating_add((last / 10).max(1)).min(most));
    }
    bounds
}

impl BatchBy {
    /// Creates the rule for a sampler. `lengths` has one element per dataset, with one length per sample in stored
    /// order. `window` is the size of a planning window in samples; the default is at least 131,072.
    ///
    /// Returns an error if the rule is inconsistent, or if a dataset does not have exactly one length per sample.
    pub fn new(
        rule: BatchRule,
        course: Sampler,
        leaves: &[DatasetView],
        lengths: Vec<Vec<u32>>,
        window: Option<u64>,
    ) -> Result<Self> {
        let bounds = match &rule {
            BatchRule::Buckets { boundaries, sizes } => {
                let mut bounds = boundaries.clone();
                if sizes.len() == bounds.len() + 1 {
                    bounds.push(u32::MAX);
                }
                let is_ascending = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
                if !is_ascending || bounds.len() != sizes.len() || sizes.is_empty() || sizes.contains(&0) {
                    return Err(Error::bug(format!("buckets of {boundaries:?} with sizes {sizes:?}")));
                }
                bounds
            }
            BatchRule::Budget { tokens, max_samples, shares } => {
                if *tokens == 0 || *max_samples == 0 || *shares == 0 {
                    return Err(Error::bug("the token budget, max_samples or shares is 0"));
                }
                budget_bounds(*tokens)
            }
        };
        if lengths.len() != leaves.len() {
            return Err(Error::config(
                "length",
                format!("{} datasets need one array of lengths each (got {} arrays)", leaves.len(), lengths.len()),
            ));
        }
        let lengths: Vec<Lengths> =
            lengths.into_iter().zip(leaves).map(|(of, leaf)| Lengths::new(of, leaf.counts())).collect::<Result<_>>()?;
        let all = || lengths.iter().flat_map(|of| of.lengths.iter().copied());
        let default = MIN_WINDOW.max(course.span(leaves).saturating_mul(SHUFFLE_WINDOWS));
        let mut by = Self {
            window: window.unwrap_or(default).clamp(1, MAX_WINDOW),
            shortest: all().min().unwrap_or(0),
            longest: all().max().unwrap_or(0),
            mean_rows: 1,
            waiting_rows: 0,
            rule,
            bounds,
            course: Arc::new(course),
            leaves: leaves.into(),
            lengths,
            counted: Mutex::default(),
        };
        let (mut batches, mut most) = (0.0, vec![0; by.bounds.len()]);
        for length in by.lengths.iter().flat_map(|of| of.lengths.iter().copied()) {
            let Some(bucket) = by.bucket(length) else { continue };
            let capacity = by.capacity(bucket, length);
            batches += 1.0 / capacity as f64;
            most[bucket] = capacity.max(most[bucket]);
        }
        by.waiting_rows = most.into_iter().fold(0, u64::saturating_add).min(by.window).min(by.course.samples());
        let samples = by.lengths.iter().map(|of| of.lengths.len()).sum::<usize>() as f64;
        by.mean_rows = if batches > 0.0 { (samples / batches).ceil() as u64 } else { 1 };
        Ok(by)
    }

    /// Size of a planning window in samples.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Average number of samples in a full batch over all ranks.
    pub fn mean_rows(&self) -> u64 {
        self.mean_rows
    }

    /// Maximum number of samples in a batch over all ranks.
    pub fn max_rows(&self, tail: Tail) -> u64 {
        let full = match &self.rule {
            BatchRule::Buckets { sizes, .. } => sizes.iter().copied().max().unwrap_or(1),
            BatchRule::Budget { .. } => self.capacity(0, self.shortest),
        };
        if tail == Tail::Pad { full } else { full.min(self.course.samples()) }
    }

    /// Maximum number of rows that one rank gets from a batch. Returns an error if a full batch can leave a rank
    /// without samples.
    pub(super) fn checked_rows(&self, steps: &Steps) -> Result<u64> {
        let least = self.least_rows();
        if least < steps.world {
            let which = match &self.rule {
                BatchRule::Buckets { .. } => "the smallest batch size of a bucket is",
                BatchRule::Budget { .. } => "the longest samples form batches of",
            };
            let text = format!("{which} {least}, which is fewer than the {} ranks", steps.world);
            return Err(Error::config("batch_by", text));
        }
        Ok(self.max_rows(steps.tail).div_ceil(steps.world))
    }

    /// Minimum number of samples in a full batch over all ranks.
    fn least_rows(&self) -> u64 {
        match &self.rule {
            BatchRule::Buckets { sizes, .. } => sizes.iter().copied().min().unwrap_or(1),
            BatchRule::Budget { .. } => self.capacity(0, self.longest.min(self.bounds.last().copied().unwrap_or(0))),
        }
    }

    /// Maximum number of samples that wait in open batches while other batches are delivered.
    pub fn waiting_rows(&self) -> u64 {
        self.waiting_rows
    }

    fn bucket(&self, length: u32) -> Option<usize> {
        let bucket = self.bounds.partition_point(|&bound| bound < length);
        (bucket < self.bounds.len()).then_some(bucket)
    }

    /// Maximum number of samples in a batch of this bucket, if `longest` is the length of the batch's longest sample.
    fn capacity(&self, bucket: usize, longest: u32) -> u64 {
        match &self.rule {
            BatchRule::Buckets { sizes, .. } => sizes[bucket],
            BatchRule::Budget { tokens, max_samples, shares } => {
                (tokens / u64::from(longest.max(1))).min(*max_samples).max(1).saturating_mul(*shares)
            }
        }
    }

    /// The size of every full batch is a multiple of this number.
    fn multiple(&self) -> usize {
        match self.rule {
            BatchRule::Buckets { .. } => 1,
            BatchRule::Budget { shares, .. } => usize::try_from(shares).unwrap_or(usize::MAX),
        }
    }

    fn length(&self, found: &Located) -> u32 {
        self.lengths[found.leaf].of(found.place)
    }

    /// Creates a cursor over the order of the samples.
    pub(super) fn walk(&self) -> Result<SamplerCursor> {
        SamplerCursor::new(self.course.clone(), self.leaves.clone())
    }

    /// Error for a sample that is too long for every bucket.
    pub fn too_long(&self, sample: &str, length: u32) -> Error {
        let text = match &self.rule {
            BatchRule::Buckets { boundaries, .. } => {
                let last = boundaries.last().copied().unwrap_or(0);
                format!("{sample} has length {length}, which exceeds the last boundary ({last})")
            }
            BatchRule::Budget { tokens, .. } => {
                format!("{sample} has length {length}, which exceeds the token budget of a batch ({tokens})")
            }
        };
        Error::config("batch_by", text)
    }

    /// Returns the first sample of an epoch that is too long for every bucket, with its length. Ignores samples that
    /// the epoch does not contain.
    pub fn first_too_long(&self, epoch: u64) -> Result<Option<(Located, u32)>> {
        if self.bucket(self.longest).is_some() {
            return Ok(None);
        }
        let mut walk = self.walk()?;
        let mut found = (0..self.course.samples()).map(|position| walk.at(epoch, position));
        let found = found.find(|found| self.bucket(self.length(found)).is_none());
        Ok(found.map(|found| (found, self.length(&found))))
    }

    /// Number of batches of an epoch. Plans the whole epoch in order to count them.
    pub fn count(&self, epoch: u64, tail: Tail) -> Result<u64> {
        let mut counted = lock(&self.counted);
        if let Some((of, count)) = *counted
            && of == (epoch, tail)
        {
            return Ok(count);
        }
        let (mut walk, mut count) = (self.walk()?, 0);
        for number in 0..self.course.samples().div_ceil(self.window) {
            count += self.plan(&mut walk, epoch, number)?.delivered(tail).len() as u64;
        }
        *counted = Some(((epoch, tail), count));
        Ok(count)
    }

    /// Plans the batches of an epoch's planning window `number`.
    pub(super) fn plan(&self, walk: &mut SamplerCursor, epoch: u64, number: u64) -> Result<WindowPlan> {
        let start = number * self.window;
        let samples = self.window.min(self.course.samples().saturating_sub(start));
        let mut made = Planner { by: self, order: Vec::with_capacity(samples as usize), batches: Vec::new() };
        let mut records = Vec::with_capacity(samples as usize);
        let mut open: Vec<Open> = (0..self.bounds.len()).map(Open::new).collect();
        for at in 0..samples {
            let found = walk.at(epoch, start + at);
            let length = self.length(&found);
            let bucket = self.bucket(length).ok_or_else(|| {
                let Place { object, record } = found.place;
                self.too_long(&format!("record {record} of object {object} (dataset {})", found.leaf), length)
            })?;
            made.add(&mut open[bucket], at as u32, length);
            records.push((found.leaf as u32, found.place.object as u32, found.place.record));
        }
        let mut rest = Open::new(0);
        for mut of in open {
            match self.rule {
                // The remaining samples of each bucket form a partial batch of their own.
                BatchRule::Buckets { .. } => made.emit(&mut of, usize::MAX, false),
                // The remaining samples of neighbouring buckets share batches.
                BatchRule::Budget { .. } => {
                    rest.bucket = of.bucket;
                    for (at, length) in of.rows {
                        made.add(&mut rest, at, length);
                    }
                }
            }
        }
        made.emit(&mut rest, usize::MAX, false);
        made.batches.sort_by_key(|batch| !batch.is_full);
        Ok(WindowPlan::new(number, start, records, made))
    }
}

/// A batch to which samples may still be added.
struct Open {
    bucket: usize,
    /// For each sample, its position within the window, and its length.
    rows: Vec<(u32, u32)>,
    longest: u32,
}

impl Open {
    fn new(bucket: usize) -> Self {
        Self { bucket, rows: Vec::new(), longest: 0 }
    }
}

struct Planner<'a> {
    by: &'a BatchBy,
    order: Vec<u32>,
    batches: Vec<PlannedBatch>,
}

impl Planner<'_> {
    fn add(&mut self, open: &mut Open, at: u32, length: u32) {
        let longest = open.longest.max(length);
        if open.rows.len() as u64 >= self.by.capacity(open.bucket, longest) {
            let multiple = self.by.multiple();
            self.emit(open, open.rows.len() / multiple * multiple, true);
        }
        open.longest = open.longest.max(length);
        open.rows.push((at, length));
        if open.rows.len() as u64 == self.by.capacity(open.bucket, open.longest) {
            self.emit(open, usize::MAX, true);
        }
    }

    /// Turns the first `rows` samples of an open batch into a batch. The other samples stay in the open batch.
    fn emit(&mut self, open: &mut Open, rows: usize, is_full: bool) {
        let rows = rows.min(open.rows.len());
        if rows == 0 {
            return;
        }
        let longest = open.rows[..rows].iter().map(|&(_, length)| length).max().unwrap_or(0);
        let (first, capacity) = (self.order.len() as u32, self.by.capacity(open.bucket, longest));
        self.order.extend(open.rows.drain(..rows).map(|(at, _)| at));
        let width = match &self.by.rule {
            BatchRule::Buckets { boundaries, .. } => boundaries.get(open.bucket).copied().unwrap_or(longest),
            BatchRule::Budget { .. } => longest,
        };
        self.batches.push(PlannedBatch { positions: first..self.order.len() as u32, capacity, width, is_full });
        open.longest = open.rows.iter().map(|&(_, length)| length).max().unwrap_or(0);
    }
}

/// A batch of a window's plan.
#[derive(Debug, Clone)]
pub(super) struct PlannedBatch {
    /// The samples of the batch, as a range of the window's order of delivery.
    pub positions: Range<u32>,
    /// Number of samples that the batch would have if it were full.
    pub capacity: u64,
    /// Maximum length of the batch's bucket. If the bucket has no maximum, or the rule is a budget, the longest length
    /// in the batch.
    pub width: u32,
    /// False for a partial batch at the window's end. The tail `drop` leaves out such a batch; the tail `pad` fills it.
    pub is_full: bool,
}

impl PlannedBatch {
    /// Number of samples, which is at least 1.
    pub fn len(&self) -> u64 {
        u64::from(self.positions.end - self.positions.start)
    }
}

/// Batches of one planning window.
#[derive(Debug)]
pub(super) struct WindowPlan {
    pub number: u64,
    /// Position of the window's first sample.
    pub start: u64,
    /// Dataset, object and record of each sample, in the sample order.
    records: Vec<(u32, u32, u64)>,
    /// Samples in the order of delivery, as positions within the window. Samples of partial batches are last.
    order: Vec<u32>,
    batches: Vec<PlannedBatch>,
}

impl WindowPlan {
    /// Creates the plan. The order of delivery follows the order of the batches.
    fn new(number: u64, start: u64, records: Vec<(u32, u32, u64)>, made: Planner<'_>) -> Self {
        let Planner { order: found, mut batches, .. } = made;
        let mut order = Vec::with_capacity(found.len());
        for batch in &mut batches {
            let first = order.len() as u32;
            order.extend_from_slice(&found[batch.positions.start as usize..batch.positions.end as usize]);
            batch.positions = first..order.len() as u32;
        }
        Self { number, start, records, order, batches }
    }

    /// Batches that are delivered: all batches or, with the tail `drop`, only the full ones.
    pub fn delivered(&self, tail: Tail) -> &[PlannedBatch] {
        let full = self.batches.partition_point(|batch| batch.is_full);
        &self.batches[..if tail == Tail::Drop { full } else { self.batches.len() }]
    }

    /// Leaves out the first `skipped` batches.
    pub fn after(mut self, skipped: usize) -> Self {
        self.batches.drain(..skipped.min(self.batches.len()));
        self
    }

    /// Position in the sample order of the sample that the window delivers at index `at`.
    pub fn position(&self, at: u32) -> u64 {
        self.start + u64::from(self.order[at as usize])
    }

    /// Dataset and place of the sample that the window delivers at index `at`.
    pub fn record(&self, at: u32) -> (usize, Place) {
        let (leaf, object, record) = self.records[self.order[at as usize] as usize];
        (leaf as usize, Place { object: u64::from(object), record })
    }
}
