// SPDX-License-Identifier: Apache-2.0
//! Weighted draws: the samples of an epoch, drawn in proportion to weights, and read window by window.
//!
//! Systematic sampling (Madow 1949): the weights form one line, in an order that is random in each epoch. Equidistant
//! points lie on this line, and each point draws the sample under it. An epoch therefore has an exact length. In each
//! epoch, a sample's number of draws is its exact share rounded down or up; the mean over epochs is the exact share.
//!
//! An epoch consists of passes over the objects. Each pass has its own order of the objects. Pass r of R has every R-th
//! point, starting with point r. The draws of an object in a pass lie in one shuffle window, so that the object is read
//! once for all of them. The sampler treats each pass as one epoch of the `DatasetView`. Saved states depend on these
//! draws.

use penstock_types::{Error, Result, with_separators};

use crate::order::{Counts, EpochOrder, Order, Permutation, Shuffle, key};
use crate::subset::{ObjectStarts, check_records};

/// Domain of the key that places the points of an epoch. The domains of shuffle windows are much smaller.
const POINTS: u64 = u64::MAX - 1;

/// Domain of the key that permutes the objects on the line of weights.
const LINE: u64 = u64::MAX - 2;

/// First domain of the keys that permute the samples of objects on the line.
const WITHIN: u64 = 1 << 62;

/// Weights of all stored samples, in force from one epoch until the next stage.
#[derive(Debug)]
struct Stage {
    /// First epoch of these weights.
    epoch: u64,
    weights: Vec<u32>,
    /// Sum of the weights in each object of `WeightedDraws::objects`.
    sums: Vec<u64>,
    total: u64,
}

/// Weighted draws of a dataset: the weights of all stored samples, and the number of samples per pass.
#[derive(Debug)]
pub struct WeightedDraws {
    stages: Vec<Stage>,
    samples: u64,
    passes: u64,
    starts: ObjectStarts,
    /// Objects with a positive weight in any stage, in ascending order.
    objects: Vec<u64>,
}

/// Positions of the objects on the line of weights in one pass.
#[derive(Debug, Clone)]
pub(crate) struct EpochDraws {
    stage: usize,
    shuffle: Shuffle,
    epoch: u64,
    /// Distance from the last point at or before an object's start to that start, for each object.
    offsets: Vec<u64>,
}

impl WeightedDraws {
    /// Creates draws of `samples` samples in each of the `passes` of an epoch. `schedule` lists weights of all stored
    /// samples, each with the first epoch in which they apply. The first epoch of the schedule is 0.
    pub fn new(counts: &Counts, schedule: Vec<(u64, Vec<u32>)>, samples: u64, passes: u64) -> Result<Self> {
        let error = |text: String| Err(Error::config("weights", text));
        check_records(counts)?;
        if schedule.first().is_none_or(|(epoch, _)| *epoch != 0) || !schedule.is_sorted_by(|a, b| a.0 < b.0) {
            return error("the epochs of a schedule must start at 0 and increase".to_owned());
        }
        if samples == 0 || passes == 0 || samples.checked_mul(passes).is_none_or(|all| all >= 1 << 48) {
            let samples = with_separators(samples);
            return error(format!(
                "an epoch must have 1 to 2^48 - 1 samples (got {passes} passes of {samples} samples)"
            ));
        }
        let (starts, stored) = (ObjectStarts::of(counts), counts.samples());
        let mut stages = Vec::with_capacity(schedule.len());
        for (epoch, weights) in schedule {
            if weights.len() as u64 != stored {
                let (have, want) = (with_separators(weights.len() as u64), with_separators(stored));
                return error(format!("got {have} weights, but the dataset has {want} samples"));
            }
            let sum = |object: u64| {
                let start = starts.of_object(object) as usize;
                weights[start..start + counts.records(object) as usize].iter().map(|&weight| u64::from(weight)).sum()
            };
            let sums: Vec<u64> = (0..counts.objects()).map(sum).collect();
            let total = sums.iter().try_fold(0u64, |total, &sum| total.checked_add(sum));
            let Some(total) = total.filter(|&total| total < 1 << 63) else {
                return error(format!("the sum of {} weights exceeds 2^63", with_separators(stored)));
            };
            if total == 0 {
                return error(format!("the weights of all {} samples are 0", with_separators(stored)));
            }
            stages.push(Stage { epoch, weights, sums, total });
        }
        let objects: Vec<u64> = (0..counts.objects())
            .filter(|&object| stages.iter().any(|stage| stage.sums[object as usize] > 0))
            .collect();
        for stage in &mut stages {
            stage.sums = objects.iter().map(|&object| stage.sums[object as usize]).collect();
        }
        Ok(Self { stages, samples, passes, starts, objects })
    }

    /// Number of samples in a pass.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Objects that may be drawn from, in ascending order.
    pub(crate) fn objects(&self) -> &[u64] {
        &self.objects
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        let stages = self.stages.iter().map(|stage| (stage.weights.len() * 4 + stage.sums.len() * 8) as u64);
        stages.sum::<u64>() + self.objects.len() as u64 * 8 + self.starts.memory_bytes()
    }

    /// Mean over the stages of the expected number of objects with at least one draw.
    pub(crate) fn expected_objects(&self) -> f64 {
        let expected = |stage: &Stage| {
            let each = self.samples as f64 / stage.total as f64;
            stage.sums.iter().map(|&sum| (sum as f64 * each).min(1.0)).sum::<f64>()
        };
        self.stages.iter().map(expected).sum::<f64>() / self.stages.len() as f64
    }

    /// Maximum number of draws from each object in any pass.
    pub(crate) fn most_of(&self, counts: &Counts) -> Result<Counts> {
        if counts.samples() != self.stages[0].weights.len() as u64 {
            return Err(Error::bug("weights of a dataset with other counts"));
        }
        let most = |at: usize| {
            let share = |stage: &Stage| {
                (u128::from(stage.sums[at]) * u128::from(self.samples)).div_ceil(u128::from(stage.total)) as u64
            };
            self.stages.iter().map(share).max().unwrap_or(0)
        };
        Ok(Counts::of(&(0..self.objects.len()).map(most).collect::<Vec<_>>()))
    }

    /// Returns the order of the draws of pass `pass`, counted over all epochs, and the state that [`Self::list`] needs.
    pub(crate) fn pass(&self, shuffle: Shuffle, pass: u64) -> (EpochOrder, EpochDraws) {
        let (epoch, turn) = (pass / self.passes, pass % self.passes);
        let number = self.stages.partition_point(|stage| stage.epoch <= epoch) - 1;
        let stage = &self.stages[number];
        let (total, samples, objects) = (u128::from(stage.total), u128::from(self.samples), self.objects.len());
        // Lengths are scaled: a weight w is w x samples long, so that neighbouring points are `total` apart.
        let first = (u128::from(key(shuffle.seed, epoch, POINTS)) * total) >> 64;
        let mut at = (first + u128::from(turn) * total / u128::from(self.passes)) % total;
        let line = Permutation::keyed(objects as u64, shuffle.seed, epoch, LINE);
        let (mut counts, mut offsets) = (vec![0; objects], vec![0; objects]);
        for index in 0..objects as u64 {
            let object = line.at(index) as usize;
            let start = at;
            at += u128::from(stage.sums[object]) * samples;
            offsets[object] = (start % total) as u64;
            counts[object] = (at / total - start / total) as u64;
        }
        let order = Order::new(Counts::Each(counts.into()), Some(shuffle)).epoch(pass);
        (order, EpochDraws { stage: number, shuffle, epoch, offsets })
    }

    /// Appends the drawn records of an object; `object` is an index in [`Self::objects`]. A record that is drawn
    /// several times is appended several times.
    pub(crate) fn list(&self, draws: &EpochDraws, object: usize, counts: &Counts, records: &mut Vec<u32>) {
        let stage = &self.stages[draws.stage];
        let (total, samples) = (u128::from(stage.total), u128::from(self.samples));
        let mut at = u128::from(draws.offsets[object]);
        if at + u128::from(stage.sums[object]) * samples < total {
            return; // no point lies on this object
        }
        let number = self.objects[object];
        let start = self.starts.of_object(number) as usize;
        let within = Permutation::keyed(counts.records(number), draws.shuffle.seed, draws.epoch, WITHIN + number);
        for index in 0..within.len() {
            let record = within.at(index);
            at += u128::from(stage.weights[start + record as usize]) * samples;
            while at >= total {
                records.push(record as u32);
                at -= total;
            }
        }
    }

    /// Appends the records of an object that may be drawn in some epoch. `object` is an index in [`Self::objects`].
    pub(crate) fn list_possible(&self, object: usize, counts: &Counts, records: &mut Vec<u32>) {
        let number = self.objects[object];
        let start = self.starts.of_object(number);
        let is_possible = |record: &u64| self.stages.iter().any(|stage| stage.weights[(start + record) as usize] > 0);
        records.extend((0..counts.records(number)).filter(is_possible).map(|record| record as u32));
    }
}
