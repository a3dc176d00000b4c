// SPDX-License-Identifier: Apache-2.0
//! Batches of one epoch: the samples of each batch, its slices per rank, and the position after it. Batches have a
//! constant size, or follow the plans of a [`BatchBy`]. Plans are computed window by window. All users of the epoch
//! share the plans.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use penstock_dataset::order::Place;
use penstock_dataset::sampler::SamplerCursor;
use penstock_types::{Error, Result, lock, with_separators};

use super::batch_bounds::{Steps, Tail};
use super::batch_by::{BatchBy, PlannedBatch, WindowPlan};

/// Rows of one batch on this rank.
#[derive(Debug, Clone)]
pub(super) struct BatchSlice {
    /// Position of the batch's first row in the order of delivery.
    start: u64,
    /// Rows on this rank, counted from the batch's start.
    rows: Range<u64>,
    /// Number of samples in the epoch.
    samples: u64,
    planned: Option<(Arc<WindowPlan>, PlannedBatch)>,
}

impl BatchSlice {
    fn cut(start: u64, rows: u64, steps: &Steps, planned: Option<(Arc<WindowPlan>, PlannedBatch)>) -> Self {
        let cut = |rank: u64| (u128::from(rows) * u128::from(rank) / u128::from(steps.world)) as u64;
        Self { start, rows: cut(steps.rank)..cut(steps.rank + 1), samples: steps.samples, planned }
    }

    /// Number of rows on this rank.
    pub fn len(&self) -> u64 {
        self.rows.end - self.rows.start
    }

    /// True if this rank has no row in the batch.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Position, in the order of delivery, of a row of this rank.
    pub fn place(&self, row: u64) -> u64 {
        self.start + self.rows.start + row
    }

    /// Position, in the sample order, of a row of this rank. If the row repeats a sample in a padded tail, the result
    /// is the sample's position plus the number of samples in the epoch.
    pub fn position(&self, row: u64) -> u64 {
        let Some((plan, batch)) = &self.planned else { return self.place(row) };
        let position = plan.position(self.planned_at(batch, row));
        if self.rows.start + row < batch.len() { position } else { position + self.samples }
    }

    /// For planned batches: dataset and place of the record in a row of this rank.
    pub fn record(&self, row: u64) -> Option<(usize, Place)> {
        self.planned.as_ref().map(|(plan, batch)| plan.record(self.planned_at(batch, row)))
    }

    /// Index of the row's sample in the window's order of delivery. In a padded tail, the rows repeat the samples of
    /// the batch.
    fn planned_at(&self, batch: &PlannedBatch, row: u64) -> u32 {
        batch.positions.start + ((self.rows.start + row) % batch.len()) as u32
    }

    /// For planned batches: number of the planning window.
    pub fn window(&self) -> Option<u64> {
        self.planned.as_ref().map(|(plan, _)| plan.number)
    }

    /// For planned batches: maximum length of the batch's bucket.
    pub fn width(&self) -> Option<usize> {
        self.planned.as_ref().map(|(_, batch)| batch.width as usize)
    }

    /// For planned batches: positions of all rows of this rank. In other batches, positions are consecutive.
    pub fn positions(&self) -> Option<Vec<u64>> {
        self.planned.as_ref().map(|_| (0..self.len()).map(|row| self.position(row)).collect())
    }
}

/// Batches of an epoch. Batch numbers are counted from the cursor of `steps`.
#[derive(Debug)]
pub(super) struct EpochBatches {
    steps: Steps,
    planned: Option<Planned>,
}

#[derive(Debug)]
struct Planned {
    by: Arc<BatchBy>,
    epoch: u64,
    state: Mutex<Plans>,
}

/// Plans of consecutive windows. Each plan is stored with the number of its first batch.
#[derive(Debug)]
struct Plans {
    walk: SamplerCursor,
    kept: VecDeque<(u64, Arc<WindowPlan>)>,
    /// Number of the next window to plan, and number of that window's first batch.
    next: (u64, u64),
}

impl Plans {
    /// Adds the plan of the next window.
    fn push(&mut self, plan: WindowPlan, tail: Tail) {
        let (window, first) = self.next;
        self.next = (window + 1, first + plan.delivered(tail).len() as u64);
        self.kept.push_back((first, Arc::new(plan)));
    }
}

impl EpochBatches {
    /// Creates the batches of an epoch after `steps.cursor`. Without `by`, each batch has `steps.global_batch` samples.
    ///
    /// Returns an error if the cursor is not at the start of a planned batch.
    pub fn new(steps: Steps, by: Option<&Arc<BatchBy>>, epoch: u64) -> Result<Arc<Self>> {
        let Some(by) = by else { return Ok(Arc::new(Self { steps, planned: None })) };
        let is_spent = steps.cursor >= steps.samples;
        let number = if is_spent { steps.samples.div_ceil(by.window()) } else { steps.cursor / by.window() };
        let mut plans = Plans { walk: by.walk()?, kept: VecDeque::new(), next: (number, 0) };
        if !steps.cursor.is_multiple_of(by.window()) && !is_spent {
            let plan = by.plan(&mut plans.walk, epoch, number)?;
            let at = (steps.cursor - plan.start) as u32;
            let found = plan.delivered(Tail::Ragged).iter().position(|batch| batch.positions.start == at);
            let skipped = found.ok_or_else(|| {
                let cursor = with_separators(steps.cursor);
                let problem = format!(
                    "cursor {cursor} is not the start of a batch; use the same batch_by and lengths as when the state was \
                     saved"
                );
                Error::config("state", problem)
            })?;
            plans.push(plan.after(skipped), steps.tail);
        }
        let planned = Planned { by: by.clone(), epoch, state: Mutex::new(plans) };
        Ok(Arc::new(Self { steps, planned: Some(planned) }))
    }

    /// Returns the rows of batch `number` on this rank. Returns `None` after the last batch.
    pub fn slice(&self, number: u64) -> Result<Option<BatchSlice>> {
        match self.slice_from(number)? {
            Some((found, _)) if found != number => {
                Err(Error::bug(format!("the plan of batch {number} was already freed")))
            }
            found => Ok(found.map(|(_, slice)| slice)),
        }
    }

    /// Returns batch `number` and its rows on this rank. If the plan of that batch was freed, returns the first later
    /// batch that has a plan. Returns `None` after the last batch. A batch that is skipped in this way was delivered
    /// before its tasks were created, so it has no rows on this rank and needs no task.
    pub fn slice_from(&self, number: u64) -> Result<Option<(u64, BatchSlice)>> {
        let steps = &self.steps;
        let Some(planned) = &self.planned else {
            let batch = (number < steps.count()).then(|| steps.batch(number));
            let slice = batch.map(|batch| BatchSlice::cut(batch.start, batch.end - batch.start, steps, None));
            return Ok(slice.map(|slice| (number, slice)));
        };
        let Some((number, plan, batch)) = planned.batch_from(number, steps)? else { return Ok(None) };
        // Only partial batches are padded. With a token budget, even a full batch may have fewer samples than its
        // capacity.
        let is_padded = steps.tail == Tail::Pad && !batch.is_full;
        let rows = if is_padded { batch.capacity.max(batch.len()) } else { batch.len() };
        let start = plan.start + u64::from(batch.positions.start);
        Ok(Some((number, BatchSlice::cut(start, rows, steps, Some((plan, batch))))))
    }

    /// Position in the epoch after the delivery of batch `number`.
    pub fn cursor_after(&self, number: u64) -> Result<u64> {
        if self.planned.is_none() {
            return Ok(self.steps.cursor_after(number));
        }
        Ok(self.slice(number + 1)?.map_or(self.steps.samples, |slice| slice.start))
    }

    /// Frees the plans of windows that end before batch `number`.
    pub fn forget_before(&self, number: u64) {
        let Some(planned) = &self.planned else { return };
        let mut plans = lock(&planned.state);
        while plans.kept.get(1).is_some_and(|(first, _)| *first <= number) {
            plans.kept.pop_front();
        }
    }
}

impl Planned {
    fn batch_from(&self, number: u64, steps: &Steps) -> Result<Option<(u64, Arc<WindowPlan>, PlannedBatch)>> {
        let mut plans = lock(&self.state);
        let number = number.max(plans.kept.front().map_or(0, |(first, _)| *first));
        while number >= plans.next.1 && plans.next.0 * self.by.window() < steps.samples {
            let (window, _) = plans.next;
            let plan = self.by.plan(&mut plans.walk, self.epoch, window)?;
            plans.push(plan, steps.tail);
        }
        if number >= plans.next.1 {
            return Ok(None);
        }
        let at = plans.kept.partition_point(|(first, _)| *first <= number);
        let Some((first, plan)) = at.checked_sub(1).and_then(|at| plans.kept.get(at)) else {
            return Err(Error::bug(format!("the plan of batch {number} was already freed")));
        };
        let batch = plan.delivered(steps.tail).get((number - first) as usize).cloned();
        Ok(batch.map(|batch| (number, plan.clone(), batch)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_by::BatchRule;
    use penstock_dataset::order::Counts;
    use penstock_dataset::sampler::{DatasetView, Sampler};

    #[test]
    fn a_batch_without_rows_may_be_delivered_before_it_is_looked_up() {
        let leaf = DatasetView::new(Counts::Equal { objects: 1, each: 6 }, None, None).unwrap();
        let rule = BatchRule::Buckets { boundaries: vec![9], sizes: vec![2] };
        let by = BatchBy::new(rule, Sampler::leaf(&leaf), std::slice::from_ref(&leaf), vec![vec![1; 6]], Some(3));
        let steps = Steps { samples: 6, cursor: 2, global_batch: 1, rank: 0, world: 2, tail: Tail::Ragged };
        let batches = EpochBatches::new(steps, Some(&Arc::new(by.unwrap())), 0).unwrap();
        let found = |number| batches.slice_from(number).unwrap().map(|(number, slice)| (number, slice.len()));
        // The first window's last batch has no row on this rank, so the consumer takes the batch immediately.
        assert_eq!(found(0), Some((0, 0)));
        assert_eq!(found(1), Some((1, 1)));
        batches.forget_before(1);
        assert_eq!(found(0), Some((1, 1)));
        assert!(batches.slice(0).is_err());
        assert_eq!((found(2), found(3)), (Some((2, 0)), None));
        // A state without plans cannot occur. If it does, it must be an error, not the end of the epoch.
        lock(&batches.planned.as_ref().unwrap().state).kept.clear();
        assert!(matches!(batches.slice_from(2), Err(Error::Bug { .. })));
    }

    #[test]
    fn a_padded_tail_fills_only_the_rest_of_a_budget_and_resumes() {
        let leaf = DatasetView::new(Counts::Equal { objects: 1, each: 6 }, None, None).unwrap();
        let rule = BatchRule::Budget { tokens: 20, max_samples: 9, shares: 1 };
        let lengths = vec![vec![4, 4, 4, 8, 1, 2]];
        let course = Sampler::leaf(&leaf);
        let by = Arc::new(BatchBy::new(rule, course, std::slice::from_ref(&leaf), lengths, None).unwrap());
        let rows = |cursor: u64| -> Vec<u64> {
            let steps = Steps { samples: 6, cursor, global_batch: 1, rank: 0, world: 1, tail: Tail::Pad };
            let batches = EpochBatches::new(steps, Some(&by), 0).unwrap();
            (0..).map_while(|number| batches.slice(number).unwrap()).map(|slice| slice.len()).collect()
        };
        // Five samples of length 4 fit, but the sample of length 8 closes the first batch.
        assert_eq!(rows(0), vec![3, 2, 9]);
        assert_eq!(rows(3), vec![2, 9]);
        assert_eq!(rows(6), Vec::<u64>::new());
    }
}
