// SPDX-License-Identifier: Apache-2.0
//! The sampler: computes the sample order of an epoch over one or several datasets. Supports ranges, repeats, lists of
//! positions and mixtures.
//!
//! Owns the mapping from a global position to a dataset, an epoch of that dataset and a position in that epoch; `order`
//! maps these to a record. The mapping is a pure function and keeps no state. The position in each source follows from
//! the global position, so a saved state is a single number. Saved states depend on this mapping and on `order`.

use std::ops::Range;
use std::sync::Arc;

use penstock_types::{Error, Result, with_separators};

pub use crate::dataset_view::DatasetView;
use crate::dataset_view::EpochView;
use crate::order::{Permutation, Place};

/// Maximum sum of a mixture's weights, which are whole numbers.
pub const MAX_WEIGHT: u64 = 1 << 48;

/// Kind of a sampler. Each kind maps its positions to positions of a dataset, or of the samplers inside it.
#[derive(Debug, Clone)]
enum Step {
    DatasetView(usize),
    Range { of: Box<Sampler>, start: u64 },
    Repeat { of: Box<Sampler> },
    Listed { of: Box<Sampler>, positions: Arc<[u64]> },
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
        Self { step: Step::DatasetView(0), samples: leaf.samples(), leaves: 1 }
    }

    /// Restricts each epoch to the positions in `range`. A range beyond the end of the epoch is clipped.
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
                format!("{times} repeats of {} samples are not a valid epoch", with_separators(self.samples)),
            )
        })?;
        Ok(Self { samples, leaves: self.leaves, step: Step::Repeat { of: Box::new(self) } })
    }

    /// Restricts each epoch to the listed positions, in the order of the list. Every epoch has the same list.
    pub fn listed(self, positions: Arc<[u64]>) -> Result<Self> {
        if let Some(position) = positions.iter().find(|&&position| position >= self.samples) {
            let samples = with_separators(self.samples);
            return Err(Error::config(
                "select",
                format!("position {} is outside the {samples} samples", with_separators(*position)),
            ));
        }
        let (samples, leaves) = (positions.len() as u64, self.leaves);
        Ok(Self { samples, leaves, step: Step::Listed { positions, of: Box::new(self) } })
    }

    /// Mixes the samples of several samplers in proportion to weights, with `samples` per epoch. In the next epoch,
    /// each sampler continues where it stopped. A sampler that reaches the end of its own epoch starts its next own
    /// epoch. Leaves are numbered in the order of the samplers.
    ///
    /// `schedule` lists weights, each with the first position at which they apply. Positions are counted over all
    /// epochs, and the first one is 0. A weight may be 0 if the sampler has a positive weight elsewhere in the
    /// schedule.
    pub fn mix(courses: Vec<Sampler>, schedule: &[(u64, Vec<u64>)], samples: u64) -> Result<Self> {
        if courses.is_empty() {
            return Err(Error::config("mix", "at least one dataset is required"));
        }
        if courses.iter().any(|course| course.samples == 0) {
            return Err(Error::config("mix", "a dataset without samples cannot be mixed"));
        }
        let schedule = MixSchedule::new(courses.len(), schedule)?;
        let leaves = courses.iter().map(|course| course.leaves).sum();
        Ok(Self { samples, leaves, step: Step::Mix { schedule, of: courses } })
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
            Step::Range { of, .. } | Step::Repeat { of } | Step::Listed { of, .. } => of.is_mixed(),
            Step::Mix { .. } => true,
        }
    }

    /// True if the sampler lists positions, so that consecutive samples may alternate between shuffle windows.
    pub fn is_listed(&self) -> bool {
        match &self.step {
            Step::DatasetView(_) => false,
            Step::Range { of, .. } | Step::Repeat { of } => of.is_listed(),
            Step::Listed { .. } => true,
            Step::Mix { of, .. } => of.iter().any(Self::is_listed),
        }
    }

    /// Size of the lists of positions in memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        match &self.step {
            Step::DatasetView(_) => 0,
            Step::Range { of, .. } | Step::Repeat { of } => of.memory_bytes(),
            Step::Listed { of, positions } => positions.len() as u64 * 8 + of.memory_bytes(),
            Step::Mix { of, .. } => of.iter().map(Self::memory_bytes).sum(),
        }
    }

    /// Maximum number of positions over which the samples of one shuffle window are spread.
    pub fn span(&self, leaves: &[DatasetView]) -> u64 {
        match &self.step {
            Step::DatasetView(number) => leaves.get(*number).map_or(1, DatasetView::window_samples),
            Step::Range { of, .. } => of.span(leaves).min(self.samples.max(1)),
            Step::Repeat { of } => of.span(leaves),
            Step::Listed { .. } => self.samples.max(1),
            Step::Mix { of, schedule } => {
                let mut first = 0;
                let spans = of.iter().enumerate().map(|(source, course)| {
                    let span = course.span(leaves.get(first..).unwrap_or_default());
                    first += course.leaves;
                    schedule.spread(source, span)
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
            Step::Listed { of, positions } => of.locate(epoch, positions[position as usize]),
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

/// Schedule of a mixture: the source of each position.
#[derive(Debug, Clone)]
struct MixSchedule {
    /// One or more segments, in ascending order. The first segment starts at 0.
    segments: Vec<Segment>,
}

/// Positions of a mixture with the same weights. The sources form a binary tree. Let a node have the total weight t,
/// and its left side the weight a. The left side then takes ⌊(g·a + t/2) / t⌋ of the node's first g positions. The
/// position in each source therefore has a closed form, which differs from the exact share of the source by at most 2.
#[derive(Debug, Clone)]
struct Segment {
    start: u128,
    weights: Vec<u64>,
    sum: u64,
    /// Number of positions of each source before `start`.
    before: Vec<u128>,
}

impl MixSchedule {
    fn new(sources: usize, schedule: &[(u64, Vec<u64>)]) -> Result<Self> {
        let error = |text: String| Err(Error::config("mix", text));
        if schedule.first().is_none_or(|(start, _)| *start != 0) || !schedule.is_sorted_by(|a, b| a.0 < b.0) {
            return error("the positions of a schedule must start at 0 and increase".to_owned());
        }
        if (0..sources).any(|source| schedule.iter().all(|(_, weights)| weights.get(source).is_none_or(|&w| w == 0))) {
            return error("each dataset needs a weight of at least 1".to_owned());
        }
        let mut segments: Vec<Segment> = Vec::with_capacity(schedule.len());
        for (start, weights) in schedule {
            if weights.len() != sources {
                return error(format!("got {} weights for {sources} datasets", weights.len()));
            }
            let sum = weights.iter().try_fold(0u64, |sum, &weight| sum.checked_add(weight));
            let Some(sum) = sum.filter(|sum| (1..=MAX_WEIGHT).contains(sum)) else {
                return error("weights must be whole numbers with a sum of 1 to 2^48".to_owned());
            };
            let (start, mut before) = (u128::from(*start), vec![0; sources]);
            if let Some(last) = segments.last() {
                before.clone_from(&last.before);
                last.count(0..sources, last.sum, start - last.start, &mut before);
            }
            segments.push(Segment { start, weights: weights.clone(), sum, before });
        }
        Ok(Self { segments })
    }

    /// Returns the source of position `g`, and the number of earlier positions with that source.
    fn at(&self, g: u128) -> (usize, u128) {
        let segment = &self.segments[self.segments.partition_point(|segment| segment.start <= g) - 1];
        let (source, drawn) = segment.at(g - segment.start);
        (source, segment.before[source] + drawn)
    }

    /// Maximum number of positions over which `span` positions of a source are spread while its weight is above 0.
    fn spread(&self, source: usize, span: u64) -> u64 {
        let spans = self.segments.iter().filter(|segment| segment.weights[source] > 0).map(|segment| {
            // Add two, because the schedule is rounded at both ends of the window.
            let spread = (u128::from(span) + 2) * u128::from(segment.sum) / u128::from(segment.weights[source]) + 1;
            u64::try_from(spread).unwrap_or(u64::MAX)
        });
        spans.max().unwrap_or(1)
    }
}

impl Segment {
    /// Number of a node's first `g` positions that the left side takes. The left side has the weight `a`, and the node
    /// has the weight `t`. Computes whole periods of `t` separately to avoid an overflow.
    fn left(g: u128, a: u64, t: u64) -> u128 {
        let (a, t) = (u128::from(a), u128::from(t));
        g / t * a + (g % t * a + t / 2) / t
    }

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

    /// Adds the number of positions of each of `sources` among the first `g`. `sum` is the sum of the sources' weights.
    fn count(&self, sources: Range<usize>, sum: u64, g: u128, counts: &mut [u128]) {
        if sources.len() == 1 {
            counts[sources.start] += g;
        } else if sum > 0 {
            let middle = sources.start + sources.len() / 2;
            let a: u64 = self.weights[sources.start..middle].iter().sum();
            let left = Self::left(g, a, sum);
            self.count(sources.start..middle, a, left, counts);
            self.count(middle..sources.end, sum - a, g - left, counts);
        }
    }
}

/// Location of the sample at a position, and its shuffle window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Index of the sample's dataset (leaf).
    pub leaf: usize,
    /// Epoch of the dataset.
    pub epoch: u64,
    /// First position of the shuffle window, counted in the epoch of the dataset.
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
    view: EpochView,
    window: Range<u64>,
    samples: Permutation,
    /// Stored records of the window, if the view has lists.
    records: Vec<u32>,
}

impl SamplerCursor {
    /// Creates a cursor over a sampler with these datasets (leaves).
    pub fn new(course: Arc<Sampler>, leaves: Arc<[DatasetView]>) -> Result<Self> {
        if course.leaves != leaves.len() {
            return Err(Error::bug(format!("the sampler requires {} datasets (got {})", course.leaves, leaves.len())));
        }
        Ok(Self { states: leaves.iter().map(|_| None).collect(), course, leaves })
    }

    /// Number of datasets (leaves) of the sampler.
    pub fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// True if consecutive samples may alternate between shuffle windows.
    pub fn is_listed(&self) -> bool {
        self.course.is_listed()
    }

    /// Returns the sample at `position` of `epoch`. `position` must be below the sampler's number of samples.
    pub fn at(&mut self, epoch: u64, position: u64) -> Located {
        let (leaf, epoch, position) = self.course.locate(epoch, position);
        let view = &self.leaves[leaf];
        let state = match &mut self.states[leaf] {
            Some(state) if state.epoch == epoch => state,
            empty => empty.insert(EpochState {
                epoch,
                view: view.epoch(epoch),
                window: 0..0,
                samples: Permutation::identity(0),
                records: Vec::new(),
            }),
        };
        if !state.window.contains(&position) {
            (state.window, state.samples) = state.view.order.window(position).parts();
            view.list_window(&state.view, &state.window, &mut state.records);
        }
        let offset = state.samples.at(position - state.window.start);
        let place = state.view.order.place(state.window.start + offset);
        let place = view.stored(place, state.records.get(offset as usize).copied());
        Located { leaf, epoch, window: state.window.start, place }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Counts, Shuffle};
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
            let schedule = MixSchedule::new(weights.len(), &[(0, weights.clone())]).unwrap();
            let sum: u64 = weights.iter().sum();
            let mut next: Vec<Option<u128>> = vec![None; weights.len()];
            for g in u128::from(from)..u128::from(from) + 3000 {
                let (state, draw) = schedule.at(g);
                prop_assert!(next[state].is_none_or(|want| want == draw));
                next[state] = Some(draw + 1);
                let share = (g + 1) as f64 * weights[state] as f64 / sum as f64;
                if from < 1 << 40 {
                    prop_assert!((draw as f64 + 1.0 - share).abs() < 2.0, "{draw} at {g}, share {share}");
                }
            }
        }

        #[test]
        fn prop_a_schedule_counts_across_its_segments(
            starts in prop::collection::btree_set(1u64..500, 0..5), weights in prop::collection::vec(prop::collection::vec(0u64..5, 4), 6),
        ) {
            let starts: Vec<u64> = std::iter::once(0).chain(starts).collect();
            let rows = starts.iter().zip(&weights);
            let schedule: Vec<(u64, Vec<u64>)> = rows.map(|(&start, row)| (start, row.iter().map(|w| w + u64::from(start == 0)).collect())).collect();
            prop_assume!(schedule.iter().all(|(_, row)| row.iter().sum::<u64>() > 0));
            let mixed = MixSchedule::new(4, &schedule).unwrap();
            let mut drawn = [0u128; 4];
            for g in 0..600u64 {
                let (source, draw) = mixed.at(u128::from(g));
                prop_assert_eq!(draw, drawn[source]);
                drawn[source] += 1;
                let (_, row) = schedule.iter().rfind(|(start, _)| *start <= g).unwrap();
                prop_assert!(row[source] > 0);
            }
        }

        #[test]
        fn prop_a_listed_sampler_has_the_listed_positions_of_each_epoch(
            counts in prop::collection::vec(1u64..6, 1..20), seed: u64, list in prop::collection::vec(any::<u64>(), 0..60),
            epoch in 0u64..5,
        ) {
            let leaf = leaf(&counts, seed);
            let whole = places(&Sampler::leaf(&leaf), std::slice::from_ref(&leaf), epoch);
            let list: Arc<[u64]> = list.iter().map(|position| position % whole.len() as u64).collect();
            let listed = Sampler::leaf(&leaf).listed(list.clone()).unwrap();
            prop_assert!(listed.is_listed() && !listed.is_plain());
            let want: Vec<_> = list.iter().map(|&position| whole[position as usize]).collect();
            prop_assert_eq!(places(&listed, std::slice::from_ref(&leaf), epoch), want);
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
            let mixed = Sampler::mix(courses.clone(), &[(0, weights[..leaves.len()].to_vec())], samples).unwrap();
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
        let schedule = MixSchedule::new(3, &[(0, vec![7, 2, 1])]).unwrap();
        let states: Vec<usize> = (0..20).map(|g| schedule.at(g).0).collect();
        assert_eq!(states, GOLDEN);
    }
    const GOLDEN: [usize; 20] = [0, 1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 1, 0, 0, 0, 2, 0, 0, 1, 0];

    #[test]
    fn a_late_epoch_of_a_large_mixture_is_at_hand() {
        let leaf =
            DatasetView::new(Counts::Equal { objects: 1 << 40, each: 1 }, None, Some(Shuffle { seed: 1, window: 16 }));
        let leaves = [leaf.clone().unwrap(), leaf.unwrap()];
        let mixed = Sampler::mix(leaves.iter().map(Sampler::leaf).collect(), &[(0, vec![1, 2])], u64::MAX).unwrap();
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
        let mix = |courses: usize, schedule: &[(u64, Vec<u64>)]| {
            Sampler::mix(vec![course.clone(); courses], schedule, 1).is_err()
        };
        assert!(mix(0, &[(0, vec![])]));
        assert!(mix(1, &[]));
        assert!(mix(1, &[(0, vec![0])]));
        assert!(mix(2, &[(0, vec![MAX_WEIGHT, 1])]));
        assert!(mix(2, &[(0, vec![1])]));
        assert!(mix(2, &[(0, vec![1, 0])]));
        assert!(mix(2, &[(0, vec![1, 1]), (5, vec![0, 0])]));
        assert!(mix(2, &[(1, vec![1, 1])]));
        assert!(mix(2, &[(0, vec![1, 1]), (5, vec![1, 2]), (5, vec![2, 1])]));
        assert!(!mix(2, &[(0, vec![1, 0]), (5, vec![0, 1])]));
        assert!(Sampler::mix(vec![course.clone().range(3..3)], &[(0, vec![1])], 1).is_err());
        assert!(course.clone().listed([0, 4].into()).is_err());
        assert_eq!(course.range(1..100).samples(), 3);
    }
}
