// SPDX-License-Identifier: Apache-2.0
//! Batch plan: maps each row of each batch to a record and to the rank that reads it. The plan is computed on demand
//! from the sample order.
//!
//! Owns the batches, their slices per rank, the last batch of the epoch, and the grouping of a window's samples by
//! object. Reads no data.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use penstock_dataset::sampler::SamplerCursor;

use super::epoch_batches::{BatchSlice, EpochBatches};

/// Request for a record, which fills one row of one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRequest {
    /// Index of the record within its object.
    pub record: u64,
    /// Index of the batch, counted from the cursor.
    pub batch: u64,
    /// Index of the row in the batch.
    pub row: u32,
}

/// Task: one object, with all of its records that this rank needs within a shuffle window. The object is fetched and
/// decompressed once for all these records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Index of the sampler's dataset (leaf) that the object belongs to.
    pub leaf: usize,
    /// Index of the object in its dataset.
    pub object: u64,
    /// Requested rows, in ascending order of batches. Never empty.
    pub wants: Vec<RowRequest>,
}

impl Task {
    /// Index of the first batch that needs this task.
    pub fn first_batch(&self) -> u64 {
        self.wants[0].batch
    }
}

/// Key of a shuffle window: (leaf, epoch of the leaf, number of wraps of a padded tail, first position). A leaf is a
/// dataset of the sampler. For planned batches, the key identifies a planning window: (leaf, 0, 0, number of the
/// window).
type WindowKey = (usize, u64, u64, u64);

/// A task to which rows may still be added.
#[derive(Debug)]
struct Growing {
    task: Task,
    window: WindowKey,
    /// Position of the task's first row in the order of delivery.
    since: u64,
}

/// Iterator over the tasks of a rank, in the order of their first use. Buffers the tasks of all windows that overlap
/// the window of the first buffered task.
///
/// In a mixture, the window of one source extends over many batches, which are all open at the same time. `horizon`
/// limits the number of open batches: a record that is needed `horizon` or more rows after a task's first row goes into
/// a new task, which reads the object again. A sampler that lists positions may alternate between windows, so only the
/// horizon completes its tasks.
#[derive(Debug)]
pub struct Tasks {
    walk: SamplerCursor,
    epoch: u64,
    samples: u64,
    batches: Arc<EpochBatches>,
    horizon: u64,
    is_listed: bool,
    batch: u64,
    row: u64,
    /// Rows of `batch` on this rank; `None` until they are looked up.
    slice: Option<BatchSlice>,
    growing: VecDeque<Growing>,
    /// Index, among all tasks of the epoch, of the first task in `growing`.
    first: u64,
    slots: HashMap<(WindowKey, u64), u64>,
    /// Key and task index of the last lookup. If records are small, most consecutive positions are in the same object.
    last_slot: Option<((WindowKey, u64), u64)>,
    /// Current window of each leaf.
    at: Vec<Option<WindowKey>>,
    /// For planned batches: number of the current planning window.
    planned: Option<u64>,
}

impl Tasks {
    /// Creates the tasks of an epoch with `samples` samples. If the computation of the batches fails, the tasks end,
    /// and the consumer gets the error from `batches`.
    pub fn new(walk: SamplerCursor, epoch: u64, samples: u64, batches: Arc<EpochBatches>, horizon: u64) -> Self {
        let (at, is_listed) = (vec![None; walk.leaves()], walk.is_listed());
        Self {
            walk,
            epoch,
            samples,
            batches,
            horizon,
            is_listed,
            batch: 0,
            row: 0,
            slice: None,
            growing: VecDeque::new(),
            first: 0,
            slots: HashMap::new(),
            last_slot: None,
            at,
            planned: None,
        }
    }

    /// Returns this rank's next row as (position in the order of delivery, batch, row), without consuming it.
    fn peek(&mut self) -> Option<(u64, u64, u32)> {
        loop {
            if self.slice.is_none() {
                let (batch, slice) = self.batches.slice_from(self.batch).ok().flatten()?;
                (self.batch, self.slice) = (batch, Some(slice));
            }
            let slice = self.slice.as_ref()?;
            if self.row < slice.len() {
                return Some((slice.place(self.row), self.batch, self.row as u32));
            }
            (self.batch, self.row, self.slice) = (self.batch + 1, 0, None);
        }
    }

    /// Adds the next row to the task of its object. Returns false if no rows remain.
    fn grow(&mut self) -> bool {
        let Some((since, batch, row)) = self.peek() else { return false };
        let Some(slice) = &self.slice else { return false };
        self.row += 1;
        let (window, place) = match slice.window().zip(slice.record(u64::from(row))) {
            Some((number, (leaf, place))) => {
                self.planned = Some(number);
                ((leaf, 0, 0, number), place)
            }
            None => {
                // In a padded tail, positions beyond the epoch's end continue at the epoch's start.
                let found = self.walk.at(self.epoch, since % self.samples);
                let window = (found.leaf, found.epoch, since / self.samples, found.window);
                self.at[found.leaf] = Some(window);
                (window, found.place)
            }
        };
        let want = RowRequest { record: place.record, batch, row };
        let next = self.first + self.growing.len() as u64;
        let key = (window, place.object);
        let slot = match self.last_slot {
            Some((last, slot)) if last == key => slot,
            _ => *self.slots.entry(key).or_insert(next),
        };
        self.last_slot = Some((key, slot));
        if slot == next {
            let task = Task { leaf: window.0, object: place.object, wants: vec![want] };
            self.growing.push_back(Growing { task, window, since });
        } else {
            self.growing[(slot - self.first) as usize].task.wants.push(want);
        }
        true
    }

    /// True if the first task is complete: no row within the horizon can be added to it.
    fn is_ripe(&mut self) -> bool {
        let Some(Growing { window, since, .. }) = self.growing.front() else { return false };
        let (window, since) = (*window, *since);
        let is_over = match self.planned {
            Some(number) => number != window.3,
            None => !self.is_listed && self.at[window.0] != Some(window),
        };
        is_over || self.peek().is_some_and(|(place, ..)| place.saturating_sub(since) >= self.horizon)
    }
}

impl Iterator for Tasks {
    type Item = Task;

    fn next(&mut self) -> Option<Task> {
        while !self.is_ripe() && self.grow() {}
        let Growing { task, window, .. } = self.growing.pop_front()?;
        self.first += 1;
        let key = (window, task.object);
        self.slots.remove(&key);
        self.last_slot.take_if(|(last, _)| *last == key);
        Some(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_bounds::{Steps, Tail};
    use penstock_dataset::order::{Counts, Order, Place, Shuffle};
    use penstock_dataset::sampler::{DatasetView, Sampler};
    use proptest::prelude::*;

    fn tasks(order: &Order, epoch: u64, steps: Steps) -> Tasks {
        let leaf = DatasetView::from_order(order.clone());
        let walk = SamplerCursor::new(Arc::new(Sampler::leaf(&leaf)), [leaf].as_slice().into()).unwrap();
        Tasks::new(walk, epoch, steps.samples, EpochBatches::new(steps, None, epoch).unwrap(), u64::MAX)
    }

    fn tails() -> impl Strategy<Value = Tail> {
        prop::sample::select(vec![Tail::Ragged, Tail::Drop, Tail::Pad])
    }

    /// Samples of all ranks per batch: first the rows of rank 0, then those of rank 1, and so on.
    fn seen(order: &Order, epoch: u64, base: Steps) -> Vec<Vec<Place>> {
        let mut batches = vec![Vec::new(); base.count() as usize];
        for rank in 0..base.world {
            let steps = Steps { rank, ..base };
            let mut rows: Vec<Vec<Option<Place>>> =
                (0..steps.count()).map(|k| vec![None; (steps.slice(k).end - steps.slice(k).start) as usize]).collect();
            for task in tasks(order, epoch, steps) {
                assert!(task.wants.is_sorted_by_key(|want| want.batch));
                for want in task.wants {
                    let place = Place { object: task.object, record: want.record };
                    assert_eq!(rows[want.batch as usize][want.row as usize].replace(place), None);
                }
            }
            for (batch, rows) in batches.iter_mut().zip(rows) {
                batch.extend(rows.into_iter().map(|place| place.expect("every row is filled")));
            }
        }
        batches
    }

    proptest! {
        #[test]
        fn prop_any_world_sees_the_batches_of_one_rank(
            counts in prop::collection::vec(0u64..5, 1..20), seed: u64, window in 1u64..9,
            batch in 1u64..12, world in 1u64..7, tail in tails(),
        ) {
            let order = Order::new(Counts::of(&counts), Some(Shuffle { seed, window }));
            let samples = order.samples();
            let one = Steps { samples, cursor: 0, global_batch: batch, rank: 0, world: 1, tail };
            let reference = seen(&order, 2, one);
            prop_assert_eq!(&seen(&order, 2, Steps { world, ..one }), &reference);
            let flat: Vec<Place> = reference.concat();
            let epoch = order.epoch(2);
            let want = match tail {
                Tail::Ragged => samples,
                Tail::Drop => samples / batch * batch,
                Tail::Pad => samples.div_ceil(batch) * batch,
            };
            prop_assert_eq!(flat.len() as u64, want);
            for (position, place) in flat.iter().enumerate() {
                prop_assert_eq!(*place, epoch.locate(position as u64 % samples));
            }
        }

        #[test]
        fn prop_resume_with_another_world_and_batch_goes_on(
            counts in prop::collection::vec(1u64..5, 1..20), seed: u64,
            (batch, world) in (1u64..12, 1u64..5), (batch2, world2) in (1u64..12, 1u64..5), stop in 0u64..20,
        ) {
            let order = Order::new(Counts::of(&counts), Some(Shuffle { seed, window: 3 }));
            let first = Steps { samples: order.samples(), cursor: 0, global_batch: batch, rank: 0, world, tail: Tail::Ragged };
            let stop = stop.min(first.count());
            let cursor = if stop == 0 { 0 } else { first.cursor_after(stop - 1) };
            let mut flat = seen(&order, 0, first)[..stop as usize].concat();
            flat.extend(seen(&order, 0, Steps { cursor, global_batch: batch2, world: world2, ..first }).concat());
            let epoch = order.epoch(0);
            let reference: Vec<Place> = (0..order.samples()).map(|position| epoch.locate(position)).collect();
            prop_assert_eq!(flat, reference);
        }

        #[test]
        fn prop_listed_positions_are_filled_and_read_once_within_the_horizon(
            counts in prop::collection::vec(1u64..5, 1..20), list in prop::collection::vec(any::<u64>(), 1..60),
            (batch, world) in (1u64..12, 1u64..5),
        ) {
            let leaf = DatasetView::new(Counts::of(&counts), None, Some(Shuffle { seed: 5, window: 2 })).unwrap();
            let whole = leaf.samples();
            let list: Vec<u64> = list.iter().map(|position| position % whole).collect();
            let (course, samples) = (Sampler::leaf(&leaf).listed(list.clone().into()).unwrap(), list.len() as u64);
            let order = leaf.epoch(0).order;
            for rank in 0..world {
                let steps = Steps { samples, cursor: 0, global_batch: batch, rank, world, tail: Tail::Ragged };
                let walk = SamplerCursor::new(Arc::new(course.clone()), [leaf.clone()].as_slice().into()).unwrap();
                let (mut left, mut objects) = (0, std::collections::HashSet::new());
                let batches = EpochBatches::new(steps, None, 0).unwrap();
                for task in Tasks::new(walk, 0, samples, batches, u64::MAX) {
                    prop_assert!(objects.insert(task.object));
                    for want in task.wants {
                        let position = steps.slice(want.batch).start + u64::from(want.row);
                        let place = Place { object: task.object, record: want.record };
                        prop_assert_eq!(order.locate(list[position as usize]), place);
                        left += 1;
                    }
                }
                prop_assert_eq!(left, (0..steps.count()).map(|k| steps.slice(k).end - steps.slice(k).start).sum::<u64>());
            }
        }

        #[test]
        fn prop_a_mixture_fills_every_row_within_its_horizon(
            counts in prop::collection::vec(prop::collection::vec(1u64..5, 1..8), 1..4), weights in prop::collection::vec(1u64..9, 4),
            samples in 1u64..60, (batch, world) in (1u64..12, 1u64..5), horizon in 1u64..40, tail in tails(),
        ) {
            let shuffle = Some(Shuffle { seed: 5, window: 3 });
            let leaves: Vec<DatasetView> =
                counts.iter().map(|counts| DatasetView::new(Counts::of(counts), None, shuffle).unwrap()).collect();
            let course = Sampler::mix(leaves.iter().map(Sampler::leaf).collect(), &[(0, weights[..leaves.len()].to_vec())], samples).unwrap();
            let (course, leaves): (_, Arc<[DatasetView]>) = (Arc::new(course), leaves.into());
            let walk = || SamplerCursor::new(course.clone(), leaves.clone()).unwrap();
            for rank in 0..world {
                let steps = Steps { samples, cursor: 0, global_batch: batch, rank, world, tail };
                let mut rows: Vec<Vec<Option<(usize, Place)>>> =
                    (0..steps.count()).map(|k| vec![None; (steps.slice(k).end - steps.slice(k).start) as usize]).collect();
                let mut first = 0;
                for task in Tasks::new(walk(), 3, samples, EpochBatches::new(steps, None, 3).unwrap(), horizon) {
                    prop_assert!(task.first_batch() >= first);
                    first = task.first_batch();
                    for want in &task.wants {
                        prop_assert!((want.batch - first).saturating_sub(1) * batch < horizon);
                        let place = Place { object: task.object, record: want.record };
                        prop_assert_eq!(rows[want.batch as usize][want.row as usize].replace((task.leaf, place)), None);
                    }
                }
                let mut walk = walk();
                for (k, rows) in rows.iter().enumerate() {
                    for (row, position) in rows.iter().zip(steps.slice(k as u64)) {
                        let found = walk.at(3, position % samples);
                        prop_assert_eq!(*row, Some((found.leaf, found.place)));
                    }
                }
            }
        }

        #[test]
        fn prop_slices_differ_by_at_most_one(samples in 0u64..100, batch in 1u64..40, world in 1u64..50, tail in tails()) {
            let base = Steps { samples, cursor: 0, global_batch: batch, rank: 0, world, tail };
            for k in 0..base.count() {
                let sizes: Vec<u64> = (0..world)
                    .map(|rank| { let s = Steps { rank, ..base }.slice(k); s.end - s.start })
                    .collect();
                prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                prop_assert!(*sizes.iter().max().unwrap() <= base.max_rows());
                prop_assert_eq!(sizes.iter().sum::<u64>(), base.batch(k).end - base.batch(k).start);
            }
        }
    }

    #[test]
    fn an_object_is_fetched_once_in_a_window() {
        let order = Order::new(Counts::Equal { objects: 6, each: 10 }, Some(Shuffle { seed: 3, window: 3 }));
        let steps = Steps { samples: 60, cursor: 0, global_batch: 7, rank: 0, world: 1, tail: Tail::Ragged };
        assert_eq!(tasks(&order, 0, steps).count(), 6);
    }

    #[test]
    fn a_batch_beyond_the_samples_has_their_rows_and_ends_the_epoch() {
        let steps = Steps { samples: 5, cursor: 2, global_batch: u64::MAX, rank: 0, world: 2, tail: Tail::Ragged };
        assert_eq!((steps.count(), steps.batch(0), steps.cursor_after(0), steps.max_rows()), (1, 2..5, 5, 3));
    }

    #[test]
    fn more_ranks_than_samples_make_equal_steps_with_empty_slices() {
        let rows = |rank| {
            let steps = Steps { samples: 3, cursor: 0, global_batch: 8, rank, world: 8, tail: Tail::Ragged };
            assert_eq!(steps.count(), 1);
            let slice = steps.slice(0);
            slice.end - slice.start
        };
        assert_eq!((0..8).map(rows).collect::<Vec<_>>(), [0, 0, 1, 0, 0, 1, 0, 1]);
    }
}
