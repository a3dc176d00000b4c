// SPDX-License-Identifier: Apache-2.0
//! View of one dataset: the samples that its epochs contain, and their order. A view has all samples, a range, a subset
//! or weighted draws.
//!
//! Owns the mapping from a sample of the order to a stored record. `order` computes the order from the number of chosen
//! samples per object. A shuffle window of a subset therefore reads each object once, like a window of all samples.

use std::ops::Range;
use std::sync::Arc;

use penstock_types::{Error, Result, with_separators};

use crate::order::{Counts, EpochOrder, Order, Place, Shuffle};
use crate::subset::Subset;
use crate::weighted_draws::{EpochDraws, WeightedDraws};

/// View of one dataset: the counts, the chosen samples, and the order of these samples.
#[derive(Debug, Clone)]
pub struct DatasetView {
    counts: Counts,
    order: Order,
    chosen: Chosen,
}

#[derive(Debug, Clone)]
enum Chosen {
    /// Consecutive samples in stored order, starting with `first`.
    Range {
        first: Place,
    },
    Subset(Arc<Subset>),
    Weighted(Arc<WeightedDraws>),
}

/// Order of one epoch of a view.
#[derive(Debug, Clone)]
pub struct EpochView {
    /// Order of the epoch's samples. The order numbers only the objects that contain chosen samples.
    pub order: EpochOrder,
    draws: Option<EpochDraws>,
}

impl DatasetView {
    /// Creates a view of all samples of a dataset, or only of those in `select` (indices in stored order). `shuffle`
    /// determines the order of the samples.
    pub fn new(counts: Counts, select: Option<Range<u64>>, shuffle: Option<Shuffle>) -> Result<Self> {
        let samples = counts.samples();
        let whole = select.as_ref().is_none_or(|range| *range == (0..samples));
        let (Some(range), false) = (select, whole) else {
            return Ok(Self::from_order(Order::new(counts, shuffle)));
        };
        if range.start > range.end || range.end > samples {
            let text = format!("{}..{} is not within the {} samples", range.start, range.end, with_separators(samples));
            return Err(Error::config("select", text));
        }
        let (selected, first) = selected(&counts, &range);
        Ok(Self { counts, order: Order::new(selected, shuffle), chosen: Chosen::Range { first } })
    }

    /// Creates a view of all samples of a dataset in an existing order.
    pub fn from_order(order: Order) -> Self {
        let first = Place { object: 0, record: 0 };
        Self { counts: order.counts().clone(), order, chosen: Chosen::Range { first } }
    }

    /// Creates a view of the samples whose bit in `bits` is 1: bit `i % 64` of word `i / 64` for sample `i` in stored
    /// order. Bits beyond the last sample must be 0.
    pub fn subset(counts: Counts, bits: Vec<u64>, shuffle: Option<Shuffle>) -> Result<Self> {
        let (subset, chosen) = Subset::new(&counts, bits)?;
        Ok(Self { counts, order: Order::new(chosen, shuffle), chosen: Chosen::Subset(Arc::new(subset)) })
    }

    /// Creates a view of weighted draws. One epoch of the view is one pass of the draws. See [`WeightedDraws`].
    pub fn weighted(counts: Counts, draws: WeightedDraws, shuffle: Shuffle) -> Result<Self> {
        // Each epoch has its own order, with the number of draws from each object. The order created here only holds
        // the shuffle and the maximum number of draws.
        let most = draws.most_of(&counts)?;
        let order = Order::new(most, Some(shuffle));
        Ok(Self { counts, order, chosen: Chosen::Weighted(Arc::new(draws)) })
    }

    /// Number of records in each object of the dataset, including objects that are not selected.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Number of samples in an epoch.
    pub fn samples(&self) -> u64 {
        match &self.chosen {
            Chosen::Weighted(draws) => draws.samples(),
            Chosen::Range { .. } | Chosen::Subset(_) => self.order.samples(),
        }
    }

    /// Number of objects that an epoch reads; for weighted draws, the expected number.
    pub fn objects(&self) -> f64 {
        match &self.chosen {
            Chosen::Weighted(draws) => draws.expected_objects(),
            Chosen::Range { .. } | Chosen::Subset(_) => self.order.counts().objects() as f64,
        }
    }

    /// Size in bytes of the memory that holds the choice of samples.
    pub fn memory_bytes(&self) -> u64 {
        match &self.chosen {
            Chosen::Range { .. } => 0,
            Chosen::Subset(subset) => subset.memory_bytes(),
            Chosen::Weighted(draws) => draws.memory_bytes(),
        }
    }

    /// True if samples are not in stored order.
    pub fn is_shuffled(&self) -> bool {
        self.order.is_shuffled()
    }

    /// Number of objects whose samples are mixed; 1 without a shuffle.
    pub fn window(&self) -> u64 {
        self.order.window()
    }

    /// Random key for the sample at a position of an epoch. See [`Order::key_of`].
    pub fn key_of(&self, epoch: u64, position: u64) -> u64 {
        self.order.key_of(epoch, position)
    }

    /// Maximum number of samples in a shuffle window.
    pub fn window_samples(&self) -> u64 {
        self.window().saturating_mul(self.order.counts().most()).clamp(1, self.samples().max(1))
    }

    /// Index of a stored object among the objects that contain chosen samples. `None` for other objects.
    pub fn selected(&self, object: u64) -> Option<u64> {
        let found = |objects: &[u64]| objects.binary_search(&object).ok().map(|index| index as u64);
        match &self.chosen {
            Chosen::Range { first } => {
                object.checked_sub(first.object).filter(|&number| number < self.order.counts().objects())
            }
            Chosen::Subset(subset) => found(subset.objects()),
            Chosen::Weighted(draws) => found(draws.objects()),
        }
    }

    /// Returns the order of one epoch.
    pub fn epoch(&self, epoch: u64) -> EpochView {
        match (&self.chosen, self.order.shuffle()) {
            (Chosen::Weighted(draws), Some(shuffle)) => {
                let (order, draws) = draws.pass(shuffle, epoch);
                EpochView { order, draws: Some(draws) }
            }
            _ => EpochView { order: self.order.epoch(epoch), draws: None },
        }
    }

    /// Returns a chosen sample near `place`. If `stays` is true and the object of `place` has another chosen sample,
    /// returns the next one of that object. Otherwise, returns a sample of the next object that has chosen samples.
    pub fn neighbour(&self, place: Place, stays: bool) -> Place {
        let Some(number) = self.selected(place.object) else { return place };
        let records = self.records(number);
        if stays && records.len() > 1 {
            return Place { object: place.object, record: records.after(place.record) };
        }
        let objects = self.order.counts().objects();
        let others = (1..=objects).map(|step| (number + step) % objects);
        let found = others.map(|other| (other, self.records(other))).find(|(_, records)| records.len() > 0);
        found.map_or(place, |(number, records)| Place {
            object: match &self.chosen {
                Chosen::Range { first } => first.object + number,
                Chosen::Subset(subset) => subset.objects()[number as usize],
                Chosen::Weighted(draws) => draws.objects()[number as usize],
            },
            record: records.at(place.record),
        })
    }

    /// Chosen records of one object. `number` is the object's index among the objects that contain chosen samples.
    fn records(&self, number: u64) -> Records {
        let mut list = Vec::new();
        match &self.chosen {
            Chosen::Range { first } => {
                let first = if number == 0 { first.record } else { 0 };
                return Records::Run { first, len: self.order.counts().records(number) };
            }
            Chosen::Subset(subset) => subset.list(number as usize, &mut list),
            Chosen::Weighted(draws) => draws.list_possible(number as usize, &self.counts, &mut list),
        }
        Records::List(list)
    }

    /// Replaces the content of `records` with the stored records of a shuffle window, in the order of their offsets. A
    /// view of consecutive samples needs no list, so `records` is then empty.
    pub(crate) fn list_window(&self, view: &EpochView, window: &Range<u64>, records: &mut Vec<u32>) {
        records.clear();
        match (&self.chosen, &view.draws) {
            (Chosen::Subset(subset), _) => {
                for object in view.order.objects(window) {
                    subset.list(object as usize, records);
                }
            }
            (Chosen::Weighted(draws), Some(epoch)) => {
                for object in view.order.objects(window) {
                    draws.list(epoch, object as usize, &self.counts, records);
                }
            }
            _ => {}
        }
    }

    /// Converts a place in the order of chosen samples to a stored location. `record` is the entry of the place in the
    /// list of [`Self::list_window`], if the view has lists.
    pub(crate) fn stored(&self, place: Place, record: Option<u32>) -> Place {
        let listed = |objects: &[u64]| Place {
            object: objects[place.object as usize],
            record: record.map_or(0, u64::from), // a list has an entry for each sample of its window
        };
        match &self.chosen {
            Chosen::Range { first } => {
                let record = if place.object == 0 { place.record + first.record } else { place.record };
                Place { object: place.object + first.object, record }
            }
            Chosen::Subset(subset) => listed(subset.objects()),
            Chosen::Weighted(draws) => listed(draws.objects()),
        }
    }
}

/// Chosen records of one object.
enum Records {
    Run { first: u64, len: u64 },
    List(Vec<u32>),
}

impl Records {
    fn len(&self) -> u64 {
        match self {
            Self::Run { len, .. } => *len,
            Self::List(records) => records.len() as u64,
        }
    }

    /// Returns the chosen record at `index` modulo the number of chosen records.
    fn at(&self, index: u64) -> u64 {
        match self {
            Self::Run { first, len } => first + index % len,
            Self::List(records) => u64::from(records[(index % records.len() as u64) as usize]),
        }
    }

    /// Returns the chosen record after `record`; wraps around to the first one.
    fn after(&self, record: u64) -> u64 {
        match self {
            Self::Run { first, .. } => self.at(record + 1 - first),
            Self::List(records) => self.at(records.partition_point(|&chosen| u64::from(chosen) <= record) as u64),
        }
    }
}

/// Returns the number of selected samples in each object, and the location of the first selected sample. Leaves out the
/// objects before and after the selection.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{Sampler, SamplerCursor};
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    fn places(leaf: &DatasetView, epoch: u64) -> Vec<Place> {
        let course = Arc::new(Sampler::leaf(leaf));
        let mut walk = SamplerCursor::new(course, [leaf.clone()].as_slice().into()).unwrap();
        (0..leaf.samples()).map(|position| walk.at(epoch, position).place).collect()
    }

    fn bits(chosen: &[bool]) -> Vec<u64> {
        let word = |bits: &[bool]| bits.iter().rev().fold(0, |word, &bit| (word << 1) | u64::from(bit));
        chosen.chunks(64).map(word).collect()
    }

    fn stored(counts: &Counts) -> Vec<Place> {
        places(&DatasetView::new(counts.clone(), None, None).unwrap(), 0)
    }

    fn shuffles() -> impl Strategy<Value = Option<Shuffle>> {
        prop::option::of((any::<u64>(), 1u64..6).prop_map(|(seed, window)| Shuffle { seed, window }))
    }

    proptest! {
        #[test]
        fn prop_a_selection_holds_its_samples_and_no_others(
            counts in prop::collection::vec(0u64..6, 1..20), cut in (0u64..60, 0u64..60), seed: u64, window in 1u64..5,
        ) {
            let all = Counts::of(&counts);
            let samples = all.samples();
            let range = cut.0.min(cut.1).min(samples)..cut.0.max(cut.1).min(samples);
            let want: HashSet<Place> = stored(&all)[range.start as usize..range.end as usize].iter().copied().collect();
            let leaf = DatasetView::new(all, Some(range.clone()), Some(Shuffle { seed, window })).unwrap();
            let found = places(&leaf, 4);
            prop_assert_eq!(found.len() as u64, range.end - range.start);
            prop_assert_eq!(found.into_iter().collect::<HashSet<_>>(), want);
        }

        #[test]
        fn prop_a_subset_holds_its_samples_and_no_others(
            counts in prop::collection::vec(0u64..90, 1..20), choice in prop::collection::vec(any::<bool>(), 1800),
            shuffle in shuffles(), sparse: bool,
        ) {
            let all = Counts::of(&counts);
            let samples = all.samples() as usize;
            let chosen: Vec<bool> =
                (0..samples).map(|at| choice[at] && (!sparse || (choice[(at * 7 + 1) % 1800] && choice[at / 50]))).collect();
            let want: Vec<Place> =
                stored(&all).into_iter().zip(&chosen).filter_map(|(place, &is_chosen)| is_chosen.then_some(place)).collect();
            let leaf = DatasetView::subset(all.clone(), bits(&chosen), shuffle).unwrap();
            let found = places(&leaf, 4);
            if shuffle.is_none() {
                prop_assert_eq!(&found, &want);
            }
            prop_assert_eq!(found.len(), want.len());
            prop_assert_eq!(found.into_iter().collect::<HashSet<_>>(), want.iter().copied().collect::<HashSet<_>>());
            let objects: HashSet<u64> = want.iter().map(|place| place.object).collect();
            prop_assert_eq!(leaf.objects(), objects.len() as f64);
            prop_assert!((0..all.objects()).all(|object| leaf.selected(object).is_some() == objects.contains(&object)));
        }

        #[test]
        fn prop_a_subset_of_everything_has_the_order_of_everything(
            counts in prop::collection::vec(1u64..90, 1..20), shuffle in shuffles(), epoch: u64,
        ) {
            let all = Counts::of(&counts);
            let leaf = DatasetView::subset(all.clone(), bits(&vec![true; all.samples() as usize]), shuffle).unwrap();
            prop_assert_eq!(places(&leaf, epoch), places(&DatasetView::new(all, None, shuffle).unwrap(), epoch));
        }

        #[test]
        fn prop_draws_of_a_sample_are_its_share_rounded(
            objects in prop::collection::vec(prop::collection::vec(prop_oneof![Just(0u32), 1u32..9, Just(u32::MAX)], 0..40), 1..12),
            samples in 1u64..300, passes in 1u64..5, seed: u64, window in 1u64..5, epoch in 0u64..1000,
        ) {
            let all = Counts::of(&objects.iter().map(|object| object.len() as u64).collect::<Vec<_>>());
            let weights = objects.concat();
            let sum: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
            prop_assume!(sum > 0);
            let draws = WeightedDraws::new(&all, vec![(0, weights.clone())], samples, passes).unwrap();
            let leaf = DatasetView::weighted(all.clone(), draws, Shuffle { seed, window }).unwrap();
            let mut all_hits: HashMap<Place, u64> = HashMap::new();
            let share = |weight: u32, samples: u64| {
                let share = u128::from(samples) * u128::from(weight);
                (share / u128::from(sum)) as u64..=share.div_ceil(u128::from(sum)) as u64
            };
            for pass in 0..passes {
                let found = places(&leaf, epoch * passes + pass);
                prop_assert_eq!(found.len() as u64, samples);
                let mut hits: HashMap<Place, u64> = HashMap::new();
                found.iter().for_each(|place| *hits.entry(*place).or_default() += 1);
                found.iter().for_each(|place| *all_hits.entry(*place).or_default() += 1);
                for (place, &weight) in stored(&all).iter().zip(&weights) {
                    prop_assert!(share(weight, samples).contains(&hits.get(place).copied().unwrap_or(0)));
                }
            }
            for (place, &weight) in stored(&all).iter().zip(&weights) {
                let (hits, exact) = (all_hits.get(place).copied().unwrap_or(0), share(weight, samples * passes));
                prop_assert!(exact.contains(&hits), "{hits} of {exact:?}");
            }
        }
    }

    /// Over many epochs, each sample is drawn in proportion to its weight, and each pair of samples of equal weight is
    /// drawn together in some epochs.
    #[test]
    fn draws_are_unbiased() {
        let all = Counts::of(&[4, 1, 0, 3]);
        let weights = [1u32, 2, 3, 2, 4, 1, 2, 1];
        let draws = WeightedDraws::new(&all, vec![(0, weights.to_vec())], 4, 1).unwrap();
        let leaf = DatasetView::weighted(all.clone(), draws, Shuffle { seed: 5, window: 2 }).unwrap();
        let (epochs, names) = (8000, stored(&all));
        let mut hits: HashMap<Place, f64> = HashMap::new();
        (0..epochs).for_each(|epoch| {
            places(&leaf, epoch).into_iter().for_each(|place| *hits.entry(place).or_default() += 1.0);
        });
        for (place, weight) in names.iter().zip(weights) {
            let share = f64::from(weight) / 4.0;
            let limit = 5.0 * (share * (1.0 - share) * epochs as f64).sqrt() + 1e-9;
            assert!((hits[place] - share * epochs as f64).abs() <= limit, "{place:?}: {} of {share}", hits[place]);
        }
        let halves = WeightedDraws::new(&all, vec![(0, vec![7; 8])], 4, 1).unwrap();
        let leaf = DatasetView::weighted(all, halves, Shuffle { seed: 5, window: 2 }).unwrap();
        let mut pairs: HashMap<(Place, Place), f64> = HashMap::new();
        for epoch in 0..epochs {
            let mut drawn = places(&leaf, epoch);
            drawn.sort_unstable();
            for (at, &first) in drawn.iter().enumerate() {
                drawn[at + 1..].iter().for_each(|&second| *pairs.entry((first, second)).or_default() += 1.0);
            }
        }
        // An epoch draws 4 of the 8 samples, which are 6 of the 28 pairs. Because draws are spread evenly, two samples
        // of one object are drawn together somewhat less often than samples of two objects. Nevertheless, each pair
        // occurs.
        assert_eq!(pairs.len(), 28);
        assert!(pairs.values().all(|&hits| hits > epochs as f64 * 6.0 / 28.0 / 4.0), "{pairs:?}");
    }

    #[test]
    fn weights_of_a_later_epoch_replace_the_first_ones() {
        let all = Counts::of(&[3, 3]);
        let schedule = vec![(0, vec![1, 1, 1, 0, 0, 0]), (2, vec![0, 0, 0, 1, 1, 1])];
        let draws = WeightedDraws::new(&all, schedule, 3, 2).unwrap();
        let leaf = DatasetView::weighted(all, draws, Shuffle { seed: 5, window: 2 }).unwrap();
        let objects = |epoch| places(&leaf, epoch).into_iter().map(|place| place.object).collect::<Vec<_>>();
        assert_eq!([objects(0), objects(3), objects(4), objects(9)], [[0; 3], [0; 3], [1; 3], [1; 3]]);
    }

    #[test]
    fn neighbours_are_chosen_samples() {
        let all = Counts::of(&[3, 2, 0, 4]);
        let place = |object, record| Place { object, record };
        let run = DatasetView::new(all.clone(), Some(1..7), None).unwrap();
        assert_eq!(run.neighbour(place(0, 2), true), place(0, 1));
        assert_eq!(run.neighbour(place(0, 2), false), place(1, 0));
        assert_eq!(run.neighbour(place(3, 1), false), place(0, 2));
        let subset = DatasetView::subset(all.clone(), vec![0b1_0100_0101], None).unwrap();
        assert_eq!(subset.neighbour(place(0, 0), true), place(0, 2));
        assert_eq!(subset.neighbour(place(0, 2), true), place(0, 0));
        assert_eq!(subset.neighbour(place(0, 2), false), place(3, 1));
        assert_eq!(subset.neighbour(place(3, 1), true), place(3, 3));
        let draws = WeightedDraws::new(&all, vec![(0, vec![0, 1, 1, 0, 0, 0, 0, 0, 5])], 2, 1).unwrap();
        let weighted = DatasetView::weighted(all, draws, Shuffle { seed: 1, window: 2 }).unwrap();
        assert_eq!(weighted.neighbour(place(0, 1), true), place(0, 2));
        assert_eq!(weighted.neighbour(place(0, 1), false), place(3, 3));
    }

    #[test]
    fn impossible_views_are_refused() {
        let all = Counts::of(&[2, 2]);
        assert!(DatasetView::new(all.clone(), Some(2..9), None).is_err());
        assert!(DatasetView::subset(all.clone(), vec![], None).is_err());
        assert!(DatasetView::subset(all.clone(), vec![1 << 4], None).is_err());
        let refused = |schedule, samples| WeightedDraws::new(&all, schedule, samples, 1).is_err();
        assert!(refused(vec![], 1));
        assert!(refused(vec![(1, vec![1; 4])], 1));
        assert!(refused(vec![(0, vec![1; 3])], 1));
        assert!(refused(vec![(0, vec![0; 4])], 1));
        assert!(refused(vec![(0, vec![1; 4])], 0));
        assert!(refused(vec![(0, vec![1; 4]), (0, vec![1; 4])], 1));
    }
}
