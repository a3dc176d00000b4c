// SPDX-License-Identifier: Apache-2.0
//! Subset: samples of a dataset that a filter or a selection has chosen, as one bit per stored sample.
//!
//! Owns the bits and the objects that contain chosen samples. All other objects are left out of the order. A shuffle
//! window of a sparse subset therefore mixes as many objects as a window of the whole dataset.

use penstock_types::{Error, Result, with_separators};

use crate::order::Counts;

/// First stored sample of each object.
#[derive(Debug, Clone)]
pub enum ObjectStarts {
    /// Number of samples in each object, if all objects have the same number.
    Equal(u64),
    /// First sample of each object.
    Each(Vec<u64>),
}

impl ObjectStarts {
    /// Computes the starts from the number of records in each object.
    pub fn of(counts: &Counts) -> Self {
        match counts {
            Counts::Equal { each, .. } => Self::Equal(*each),
            Counts::Each(counts) => Self::Each(
                counts
                    .iter()
                    .scan(0, |sum, count| {
                        let start = *sum;
                        *sum += count;
                        Some(start)
                    })
                    .collect(),
            ),
        }
    }

    /// Returns the first stored sample of an object.
    pub fn of_object(&self, object: u64) -> u64 {
        match self {
            Self::Equal(each) => object * each,
            Self::Each(starts) => starts[object as usize],
        }
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Self::Equal(_) => 0,
            Self::Each(starts) => starts.len() as u64 * 8,
        }
    }
}

/// Returns an error if a record number does not fit into 32 bits.
pub(crate) fn check_records(counts: &Counts) -> Result<()> {
    match u32::try_from(counts.most()) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::config(
            "select",
            format!("an object has {} records, but at most 2^32 - 1 are supported", with_separators(counts.most())),
        )),
    }
}

/// Chosen samples of a dataset.
#[derive(Debug)]
pub(crate) struct Subset {
    bits: Vec<u64>,
    /// Objects that contain chosen samples, in ascending order.
    objects: Vec<u64>,
    /// For each of `objects`, the first stored sample of the object, and the first sample after the object.
    ranges: Vec<(u64, u64)>,
}

impl Subset {
    /// Creates a subset, and returns the number of chosen samples in each of its objects.
    pub fn new(counts: &Counts, bits: Vec<u64>) -> Result<(Self, Counts)> {
        let samples = counts.samples();
        let beyond = !samples.is_multiple_of(64) && bits.last().is_some_and(|&last| last >> (samples % 64) != 0);
        if bits.len() as u64 != samples.div_ceil(64) || beyond {
            return Err(Error::config(
                "select",
                format!("a mask of {} words does not fit {} samples", bits.len(), with_separators(samples)),
            ));
        }
        check_records(counts)?;
        let mut subset = Self { bits, objects: Vec::new(), ranges: Vec::new() };
        let (mut chosen, mut start) = (Vec::new(), 0);
        for object in 0..counts.objects() {
            let end = start + counts.records(object);
            let ones = subset.words(start, end).map(|(_, word)| u64::from(word.count_ones())).sum();
            if ones > 0 {
                subset.objects.push(object);
                subset.ranges.push((start, end));
                chosen.push(ones);
            }
            start = end;
        }
        Ok((subset, Counts::of(&chosen)))
    }

    pub fn objects(&self) -> &[u64] {
        &self.objects
    }

    pub fn memory_bytes(&self) -> u64 {
        (self.bits.len() * 8 + self.objects.len() * 24) as u64
    }

    /// Words that overlap the samples `start..end`, each with the number of its first sample. The bits of samples
    /// outside this range are cleared.
    fn words(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        (start / 64..end.div_ceil(64)).map(move |at| {
            let (first, mut word) = (at * 64, self.bits[at as usize]);
            if first < start {
                word &= u64::MAX << (start - first);
            }
            if first + 64 > end {
                word &= u64::MAX >> (first + 64 - end);
            }
            (first, word)
        })
    }

    /// Appends the chosen records of an object. `object` is the index of the object in the subset.
    pub fn list(&self, object: usize, records: &mut Vec<u32>) {
        let (start, end) = self.ranges[object];
        for (first, mut word) in self.words(start, end) {
            while word != 0 {
                records.push((first + u64::from(word.trailing_zeros()) - start) as u32);
                word &= word - 1;
            }
        }
    }
}
