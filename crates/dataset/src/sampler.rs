// SPDX-License-Identifier: Apache-2.0
//! The sampler: computes the sample order of an epoch over one or several datasets. Supports selections, takes, shards,
//! repeats and mixtures.
//!
//! Owns the mapping from a global position to (dataset, the dataset's epoch, the dataset's position); `order` maps
//! these to a record. The mapping is arithmetic: it draws no random numbers and keeps no state. The position in each
//! source follows from the global position, so a saved state is a single number. Saved states depend on this mapping,
//! as they do on `order`.

use std::ops::Range;
use std::sync::Arc;

use penstock_types::{Error, Result, with_separators};

use crate::order::{Counts, EpochOrder, Order, Permutation, Place, Shuffle};

/// Maximum sum of a mixture's weights, which are whole numbers.
pub const MAX_WEIGHT: u64 = 1 << 48;

/// Dataset of a sampler: its counts, its selected samples and their order.
#[derive(Debug, Clone)]
pub struct DatasetView {
    counts: Counts,
    order: Order,
    /// Location of the first selected sample.
    first: Place,
}

impl DatasetView {
    /// Creates a view of all samples of a dataset, or of those in `select` (indices in stored order). `shuffle` sets
    /// their order.
    pub fn new(counts: Counts, select: Option<Range<u64>>, shuffle: Option<Shuffle>) -> Result<Self> {
        let samples = counts.samples();
        let whole = select.as_ref().is_none_or(|range| *range == (0..samples));
        let (Some(range), false) = (select, whole) else {
            let order = Order::new(counts.clone(), shuffle);
            return Ok(Self { counts, order, first: Place { object: 0, record: 0 } });
        };
        if range.start > range.end || range.end > samples {
            let text = format!("{}..{} is not within the {} samples", range.start, range.end, with_separators(samples));
            return Err(Error::config("select", text));
        }
        let (selected, first) = selected(&counts, &range);
        Ok(Self { counts, order: Order::new(selected, shuffle), first })
    }

    /// Creates a view of all samples of a dataset in an existing order.
    pub fn from_order(order: Order) -> Self {
        Self { counts: order.counts().clone(), order, first: Place { object: 0, record: 0 } }
    }

    /// Number of records in each object of the dataset, including objects that are not selected.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Order of the selected samples.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Maximum number of samples in a shuffle window.
    pub fn window_samples(&self) -> u64 {
        let order = &self.order;
        order.window().saturating_mul(order.counts().most()).clamp(1, order.samples().max(1))
    }

    /// Index of a stored object among the objects that contain selected samples. `None` for other objects.
    pub fn selected(&self, object: u64) -> Option<u64> {
        object.checked_sub(self.first.object).filter(|&number| number < self.order.counts().objects())
    }

    fn stored(&self, place: Place) -> Place {
        let record = if place.object == 0 { place.record + self.first.record } else { place.record };
        Place { object: place.object + self.first.object, record }
    }
}

/// Returns how many selected samples each object contains, and the location of the first one. Leaves out the objects
/// before and after the selection.
fn selected(counts: &Counts, range: &Range<u64>) -> (Counts, Place) {
    if let Counts::Equal { each, .. } = *counts
        && each > 0
        && range.start.is_multiple_of(each)
        && range.end.is_multiple_of(each)
    {
        let objects = (range.end - range.start) / each;
        return (Counts::Equal { objects, each }, Place { object: range.start / each, record: 0 });
    }
    let (mut start, mut cut, mut first) = (0u64, Vec::new(), None);
    for object in 0..counts.objects() {
        let records = counts.records(object);
        let (from, to) = (start.max(range.start), (start + records).min(range.end));
        if from < to {
            first.get_or_insert(Place { object, record: from - start });
            cut.push(to - from);
        } else if first.is_some() && start < range.end {
            cut.push(0); // an empty object between selected ones keeps its number
        }
        start += records;
    }
    (Counts::of(&cut), first.unwrap_or(Place { object: 0, record: 0 }))
}

/// Kind of a sampler. Each kind maps its positions to positions of a dataset, or of the samplers that it contains.
#[derive(Debug, Clone)]
enum Step {
    DatasetView(usize),
    Range { of: Box<Sampler>, start: u64 },
    Repeat { of: Box<Sampler> },
    Mix { of: Vec<Sampler>, schedule: MixSchedule },
}

/// Maps the positions of an epoch to the samples of one or several [`DatasetView`]s.
#[derive(Debug, Clone)]
pub struct Sampler {
    step: Step,
    samples: u64,
    leaves: usize,
}

impl Sampler {
    /// Creates a sampler of one dataset, in the dataset's own order.
    pub fn leaf(leaf: &DatasetView) -> Self {
        Self { step: Step::DatasetView(0), samples: leaf.order.samples(), leaves: 1 }
    }

    /// Restricts each epoch to the positions in `range`, which is clipped to the epoch's end.
    pub fn range(self, range: Range<u64>) -> Self {
        let start = range.start.min(self.samples);
        let samples = range.end.clamp(start, self.samples) - start;
        Self { samples, leaves: self.leaves, step: Step::Range { of: Box::new(self), start } }
    }

    /// Joins `times` consecutive epochs into one.
    pub fn repeat(self, times: u64) -> Result<Self> {
        let samples = self.samples.checked_mul(times).filter(|_| times > 0).ok_or_else(|| {
            Error::config(
                "repeat",
                format!("{times} times {} samples is not a valid epoch length", with_separators(self.samples)),
            )
        })?;
        Ok(Self { samples, leaves: self.leaves, step: Step::Repeat { of: Box::new(self) } })
    }

    /// Mixes the samples of several samplers in proportion to `weights`, with `samples` per epoch. The next epoch
    /// continues each sampler from where it stopped. A sampler that reaches the end of its own epoch starts its next
    /// one. Leaves are numbered in the order of the samplers.
    pub fn mix(courses: Vec<Sampler>, weights: &[u64], samples: u64) -> Result<Self> {
        if courses.is_empty() || courses.len() != weights.len() {
            return Err(Error::config("mix", format!("{} datasets, but {} weights", courses.len(), weights.len())));
        }
        let sum = weights.iter().try_fold(0u64, |sum, &weight| sum.checked_add(weight));
        if weights.contains(&0) || sum.is_none_or(|sum| sum > MAX_WEIGHT) {
            return Err(Error::config("mix", "weights must be whole numbers of at least 1 with a sum of at most 2^48"));
        }
        if courses.iter().any(|course| course.samples == 0) {
            return Err(Error::config("mix", "a dataset without samples cannot be mixed"));
        }
        let leaves = courses.iter().map(|course| course.leaves).sum();
        Ok(Self { samples, leaves, step: Step::Mix { schedule: MixSchedule::new(weights), of: courses } })
    }

    /// Number of samples in an epoch.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Number of datasets (leaves) of the sampler.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// True if the sampler is a single dataset in its own order.
    pub fn is_plain(&self) -> bool {
        matches!(self.step, Step::DatasetView(_))
    }

    /// True if the sampler mixes several samplers.
    pub fn is_mixed(&self) -> bool {
        match &self.step {
            Step::DatasetView(_) => false,
            Step::Range { of, .. } | Step::Repeat { of } => of.is_mixed(),
            Step::Mix { .. } => true,
        }
    }

    /// Maximum number of positions over which one shuffle window is spread.
    pub fn span(&self, leaves: &[DatasetView]) -> u64 {
        match &self.step {
            Step::DatasetView(number) => leaves.get(*number).map_or(1, DatasetView::window_samples),
            Step::Range { of, .. } => of.span(leaves).min(self.samples.max(1)),
            Step::Repeat { of } => of.span(leaves),
            Step::Mix { of, schedule } => {
                let mut first = 0;
                let spans = of.iter().zip(&schedule.weights).map(|(course, &weight)| {
                    let span = course.span(leaves.get(first..).unwrap_or_default());
                    first += course.leaves;
                    // Add two for the rounding of the schedule at both ends of the window.
                    let spread = (u128::from(span) + 2) * u128::from(schedule.sum) / u128::from(weight) + 1;
                    u64::try_from(spread).unwrap_or(u64::MAX)
                });
                spans.max().unwrap_or(1)
            }
        }
    }

    /// Maps `position` of `epoch` to a leaf, the leaf's epoch and the leaf's position. `position` must be below
    /// [`Self::samples`].
    pub fn locate(&self, epoch: u64, position: u64) -> (usize, u64, u64) {
        match &self.step {
            Step::DatasetView(number) => (*number, epoch, position),
            Step::Range { of, start } => of.locate(epoch, start + position),
            Step::Repeat { of } => {
                let times = self.samples / of.samples.max(1);
                let inner = epoch.wrapping_mul(times).wrapping_add(position / of.samples.max(1));
                of.locate(inner, position % of.samples.max(1))
            }
            Step::Mix { of, schedule } => {
                let global = u128::from(epoch) * u128::from(self.samples) + u128::from(position);
                let (source, draw) = schedule.at(global);
                let samples = u128::from(of[source].samples);
                let (leaf, epoch, position) = of[source].locate((draw / samples) as u64, (draw % samples) as u64);
                (of[..source].iter().map(|course| course.leaves).sum::<usize>() + leaf, epoch, position)
            }
        }
    }
}

/// Schedule of a mixture: the source of each position. The sources form a binary tree; the left side of each node takes
/// ⌊(g·a + t/2) / t⌋ of the node's first g positions. Each source's position therefore has a closed form, which differs
/// from its exact share by at most 2.
#[derive(Debug, Clone)]
struct MixSchedule {
    weights: Vec<u64>,
    sum: u64,
}

impl MixSchedule {
    fn new(weights: &[u64]) -> Self {
        Self { weights: weights.to_vec(), sum: weights.iter().sum() }
    }

    /// Number of the first `g` positions that belong to a side with weight `a` out of `t`. Computes whole periods of
    /// `t` separately to avoid an overflow.
    fn left(g: u128, a: u64, t: u64) -> u128 {
        let (a, t) = (u128::from(a), u128::from(t));
        g / t * a + (g % t * a + t / 2) / t
    }

    /// Returns the source of position `g`, and the number of earlier positions with that source.
    fn at(&self, mut g: u128) -> (usize, u128) {
        let (mut sources, mut sum) = (0..self.weights.len(), self.sum);
        while sources.len() > 1 {
            let middle = sources.start + sources.len() / 2;
            let a: u64 = self.weights[sources.start..middle].iter().sum();
            let before = Self::left(g, a, sum);
            if Self::left(g + 1, a, sum) > before {
                (sources, sum, g) = (sources.start..middle, a, before);
            } else {
                (sources, sum, g) = (middle..sources.end, sum - a, g - before);
            }
        }
        (sources.start, g)
    }
}

/// Location of the sample at a position, and its shuffle window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Index of the sample's dataset (leaf).
    pub leaf: usize,
    /// Epoch of this leaf.
    pub epoch: u64,
    /// First position of the shuffle window, counted in the leaf's epoch.
    pub window: u64,
    /// Location of the record.
    pub place: Place,
}

/// Looks up the samples at positions. Caches data that neighbouring positions share: the epoch order and the shuffle
/// window of each leaf.
#[derive(Debug)]
pub struct SamplerCursor {
    course: Arc<Sampler>,
    leaves: Arc<[DatasetView]>,
    states: Vec<Option<EpochState>>,
}

#[derive(Debug)]
struct EpochState {
    epoch: u64,
    order: EpochOrder,
    window: Range<u64>,
    samples: Permutation,
}

impl SamplerCursor {
    /// Creates a cursor over a sampler with these leaves.
    pub fn new(course: Arc<Sampler>, leaves: Arc<[DatasetView]>) -> Result<Self> {
        if course.leaves != leaves.len() {
            return Err(Error::bug(format!("a sampler of {} datasets was given {}", course.leaves, leaves.len())));
        }
        Ok(Self { states: leaves.iter().map(|_| None).collect(), course, leaves })
    }

    /// Number of datasets (leaves) of the sampler.
    pub fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the sample at `position` of `epoch`. `position` must be below the sampler's number of samples.
    pub fn at(&mut self, epoch: u64, position: u64) -> Located {
        let (leaf, epoch, position) = self.course.locate(epoch, position);
        let state = match &mut self.states[leaf] {
            Some(state) if state.epoch == epoch => state,
            empty => {
                let order = self.leaves[leaf].order.epoch(epoch);
                empty.insert(EpochState { epoch, order, window: 0..0, samples: Permutation::identity(0) })
            }
        };
        if !state.window.contains(&position) {
            (state.window, state.samples) = state.order.window(position).parts();
        }
        let place = state.order.place(state.window.start + state.samples.at(position - state.window.start));
        Located { leaf, epoch, window: state.window.start, place: self.leaves[leaf].stored(place) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn leaf(counts: &[u64], seed: u64) -> DatasetView {
        DatasetView::new(Counts::of(counts), None, Some(Shuffle { seed, window: 3 })).unwrap()
    }

    fn places(course: &Sampler, leaves: &[DatasetView], epoch: u64) -> Vec<(usize, Place)> {
        let mut walk = SamplerCursor::new(Arc::new(course.clone()), leaves.into()).unwrap();
        let found = (0..course.samples()).map(|position| walk.at(epoch, position));
        found.map(|found| (found.leaf, found.place)).collect()
    }

    proptest! {
        #[test]
        fn prop_a_cursor_counts_what_went_to_its_source(
            weights in prop::collection::vec(1u64..1000, 1..9), from in 0u64..1 << 60,
        ) {
            let schedule = MixSchedule::new(&weights);
            let mut next: Vec<Option<u128>> = vec![None; weights.len()];
            for g in u128::from(from)..u128::from(from) + 3000 {
                let (state, draw) = schedule.at(g);
                prop_assert!(next[state].is_none_or(|want| want == draw));
                next[state] = Some(draw + 1);
                let share = (g + 1) as f64 * weights[state] as f64 / schedule.sum as f64;
                if from < 1 << 40 {
                    prop_assert!((draw as f64 + 1.0 - share).abs() < 2.0, "{draw} at {g}, share {share}");
                }
            }
        }

        #[test]
        fn prop_a_selection_holds_its_samples_and_no_others(
            counts in prop::collection::vec(0u64..6, 1..20), cut in (0u64..60, 0u64..60), seed: u64, window in 1u64..5,
        ) {
            let all = Counts::of(&counts);
            let samples = all.samples();
            let range = cut.0.min(cut.1).min(samples)..cut.0.max(cut.1).min(samples);
            let stored = Order::new(all.clone(), None).epoch(0);
            let want: HashSet<Place> = range.clone().map(|sample| stored.locate(sample)).collect();
            let leaf = DatasetView::new(all, Some(range.clone()), Some(Shuffle { seed, window })).unwrap();
            let found = places(&Sampler::leaf(&leaf), &[leaf], 4);
            prop_assert_eq!(found.len() as u64, range.end - range.start);
            prop_assert_eq!(found.into_iter().map(|(_, place)| place).collect::<HashSet<_>>(), want);
        }

        #[test]
        fn prop_shards_part_an_epoch_and_repeats_are_its_epochs(
            counts in prop::collection::vec(0u64..6, 1..20), seed: u64, shards in 1u64..7, times in 1u64..4, epoch in 0u64..5,
        ) {
            let leaf = leaf(&counts, seed);
            let whole = Sampler::leaf(&leaf);
            let samples = whole.samples();
            let mut parted = Vec::new();
            for shard in 0..shards {
                let range = samples * shard / shards..samples * (shard + 1) / shards;
                parted.extend(places(&whole.clone().range(range), std::slice::from_ref(&leaf), epoch));
            }
            prop_assert_eq!(parted, places(&whole, std::slice::from_ref(&leaf), epoch));
            let mut laps = Vec::new();
            for lap in 0..times {
                laps.extend(places(&whole, std::slice::from_ref(&leaf), epoch * times + lap));
            }
            prop_assert_eq!(places(&whole.repeat(times).unwrap(), &[leaf], epoch), laps);
        }

        #[test]
        fn prop_a_source_of_a_mixture_gives_its_own_epochs_one_after_another(
            counts in prop::collection::vec(prop::collection::vec(1u64..5, 1..6), 1..4), weights in prop::collection::vec(1u64..9, 4),
            samples in 1u64..80,
        ) {
            let leaves: Vec<DatasetView> = counts.iter().enumerate().map(|(at, counts)| leaf(counts, at as u64)).collect();
            let courses: Vec<Sampler> = leaves.iter().map(Sampler::leaf).collect();
            let mixed = Sampler::mix(courses.clone(), &weights[..leaves.len()], samples).unwrap();
            let mut own: Vec<Vec<Place>> = vec![Vec::new(); leaves.len()];
            for epoch in 0..3 {
                for (leaf, place) in places(&mixed, &leaves, epoch) {
                    own[leaf].push(place);
                }
            }
            for (at, own) in own.iter().enumerate() {
                let laps = (0..).flat_map(|epoch| places(&courses[at], std::slice::from_ref(&leaves[at]), epoch));
                prop_assert_eq!(own, &laps.take(own.len()).map(|(_, place)| place).collect::<Vec<_>>());
            }
        }
    }

    /// Saved states depend on the schedule, so it must not change without a new order version.
    #[test]
    fn schedule_stays_what_it_was() {
        let schedule = MixSchedule::new(&[7, 2, 1]);
        let states: Vec<usize> = (0..20).map(|g| schedule.at(g).0).collect();
        assert_eq!(states, GOLDEN);
    }
    const GOLDEN: [usize; 20] = [0, 1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 1, 0, 0, 0, 2, 0, 0, 1, 0];

    #[test]
    fn a_late_epoch_of_a_large_mixture_is_at_hand() {
        let leaf =
            DatasetView::new(Counts::Equal { objects: 1 << 40, each: 1 }, None, Some(Shuffle { seed: 1, window: 16 }));
        let leaves = [leaf.clone().unwrap(), leaf.unwrap()];
        let mixed = Sampler::mix(leaves.iter().map(Sampler::leaf).collect(), &[1, 2], u64::MAX).unwrap();
        let mut walk = SamplerCursor::new(Arc::new(mixed), leaves.as_slice().into()).unwrap();
        let seen: HashSet<(usize, Place)> =
            (0..1000).map(|at| walk.at(1 << 62, u64::MAX - 1000 + at)).map(|found| (found.leaf, found.place)).collect();
        assert_eq!(seen.len(), 1000);
    }

    #[test]
    fn impossible_courses_are_refused() {
        let leaf = leaf(&[2, 2], 1);
        let course = Sampler::leaf(&leaf);
        assert!(course.clone().repeat(0).is_err());
        assert!(course.clone().repeat(u64::MAX).is_err());
        assert!(Sampler::mix(vec![], &[], 1).is_err());
        assert!(Sampler::mix(vec![course.clone()], &[0], 1).is_err());
        assert!(Sampler::mix(vec![course.clone(), course.clone()], &[MAX_WEIGHT, 1], 1).is_err());
        assert!(Sampler::mix(vec![course.clone().range(3..3)], &[1], 1).is_err());
        assert!(DatasetView::new(leaf.counts.clone(), Some(2..9), None).is_err());
        assert_eq!(course.range(1..100).samples(), 3);
    }
}
