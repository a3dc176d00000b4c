// SPDX-License-Identifier: Apache-2.0
//! Latency histogram with 128 buckets per power of two (log-linear). A bucket is less than 0.8 % wide, so its middle
//! differs by at most 0.4 % from any value in it. Histograms of several threads, phases or hosts are merged by adding
//! their counts; percentiles are never averaged.

use std::time::Duration;

use penstock_types::{Error, Result};
use serde::{Deserialize, Serialize};

/// Binary logarithm of the number of buckets per power of two: 7 gives 128 buckets, as in fio.
const BITS: u32 = 7;
const LINEAR: u64 = 1 << BITS;
/// Number of buckets that are needed for all values of a `u64`.
const BUCKETS: usize = (((64 - BITS) as usize) << BITS) + LINEAR as usize;

/// Histogram of latencies in nanoseconds. It occupies 58 KiB, and recording a value does not allocate memory.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into_boxed_slice(), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

fn index_of(value: u64) -> usize {
    if value < LINEAR {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - BITS;
    (((u64::from(shift) + 1) << BITS) + ((value >> shift) - LINEAR)) as usize
}

/// Returns the middle of a bucket, rounded down.
fn middle_of(index: usize) -> u64 {
    let index = index as u64;
    if index < LINEAR {
        return index;
    }
    let shift = (index >> BITS) - 1;
    ((LINEAR + (index & (LINEAR - 1))) << shift) + ((1 << shift) >> 1)
}

impl Histogram {
    /// Adds one latency.
    #[inline]
    pub fn record(&mut self, took: Duration) {
        // A `u64` of nanoseconds can hold 584 years.
        self.record_ns(took.as_nanos() as u64);
    }

    /// Adds one latency in nanoseconds.
    #[inline]
    pub fn record_ns(&mut self, value: u64) {
        self.counts[index_of(value)] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds all counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Number of recorded values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the quantile `share` (0 to 1) with an error of at most 0.4 %; 0 if the histogram is empty.
    pub fn at(&self, share: f64) -> u64 {
        if self.count == 0 {
            return 0;
        }
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        for (index, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle_of(index).clamp(self.min, self.max);
            }
        }
        self.max
    }

    /// Converts the histogram to the form that result rows contain.
    pub fn latency(&self) -> Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        let is_empty = self.count == 0;
        Latency {
            count: self.count,
            min_us: us(if is_empty { 0 } else { self.min }),
            mean_us: if is_empty { 0.0 } else { self.sum as f64 / self.count as f64 / 1e3 },
            p50_us: us(self.at(0.50)),
            p90_us: us(self.at(0.90)),
            p95_us: us(self.at(0.95)),
            p99_us: us(self.at(0.99)),
            p99_9_us: us(self.at(0.999)),
            max_us: us(self.max),
            sum_us: self.sum as f64 / 1e3,
            buckets: self.counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(at, &n)| (at as u32, n)).collect(),
        }
    }

    /// Rebuilds a histogram from a result row, so that it can be merged with other histograms. Returns `Corrupt` if the
    /// values contradict each other.
    pub fn of(latency: &Latency) -> Result<Self> {
        let mut made = Self::default();
        let mut count = 0u64;
        for &(index, n) in &latency.buckets {
            let bucket = made.counts.get_mut(index as usize).ok_or_else(|| {
                Error::corrupt(
                    "a latency histogram",
                    format!("has a bucket {index}, but the format has only {BUCKETS} buckets"),
                )
            })?;
            let sum = bucket.checked_add(n).and_then(|held| Some((held, count.checked_add(n)?)));
            let Some((held, all)) = sum else {
                return Err(Error::corrupt("a latency histogram", "counts more than 2^64 values"));
            };
            (*bucket, count) = (held, all);
        }
        if count != latency.count {
            let problem = format!("has a count of {} values, but its buckets contain {count}", latency.count);
            return Err(Error::corrupt("a latency histogram", problem));
        }
        if count > 0 {
            let ns = |us: f64| (us * 1e3).round() as u64;
            (made.min, made.max, made.sum) = (ns(latency.min_us), ns(latency.max_us), (latency.sum_us * 1e3) as u128);
        }
        made.count = count;
        Ok(made)
    }
}

/// Histogram in a result row: percentiles for readers, and buckets for merging.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Number of recorded values.
    pub count: u64,
    /// Smallest value.
    pub min_us: f64,
    /// Exact mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 95th percentile.
    pub p95_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// Largest value.
    pub max_us: f64,
    /// Exact sum of all values.
    pub sum_us: f64,
    /// Non-empty buckets as (index, count). Bucket i counts the values of exactly i ns for i < 128. For larger i, it
    /// begins at (128 + i mod 128) << (i / 128 - 1) ns.
    pub buckets: Vec<(u32, u64)>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prop_histogram_bucket_middle_is_within_half_a_percent(value in any::<u64>()) {
            let middle = middle_of(index_of(value));
            let off = middle.abs_diff(value) as f64 / (value.max(1)) as f64;
            prop_assert!(off <= 0.005, "{value} fell into {middle}");
        }

        #[test]
        fn prop_histogram_percentile_is_within_one_percent_of_the_sorted_one(
            mut values in proptest::collection::vec(1u64..1 << 45, 1..300), share in 0.0f64..=1.0,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|&value| histogram.record_ns(value));
            values.sort_unstable();
            let rank = ((share * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1];
            prop_assert!(histogram.at(share).abs_diff(exact) as f64 <= 0.01 * exact as f64);
        }

        #[test]
        fn prop_histogram_merged_from_rows_is_that_of_all_values(
            one in proptest::collection::vec(0u64..1 << 40, 0..100), other in proptest::collection::vec(0u64..1 << 40, 0..100),
        ) {
            let of = |values: &[u64]| {
                let mut made = Histogram::default();
                values.iter().for_each(|&value| made.record_ns(value));
                made
            };
            let text = serde_json::to_string(&of(&other).latency()).unwrap();
            let mut merged = of(&one);
            merged.merge(&Histogram::of(&serde_json::from_str(&text).unwrap()).unwrap());
            let all: Vec<u64> = one.iter().chain(&other).copied().collect();
            let (have, want) = (merged.latency(), of(&all).latency());
            prop_assert!((have.sum_us - want.sum_us).abs() <= 0.001 * (1.0 + want.sum_us));
            prop_assert_eq!((have.buckets, have.count, have.min_us, have.max_us), (want.buckets, want.count, want.min_us, want.max_us));
        }
    }

    #[test]
    fn test_histogram_row_that_cannot_be_ours_is_corrupt() {
        let mut row = Histogram::default().latency();
        row.buckets = vec![(BUCKETS as u32, 1)];
        assert_eq!(Histogram::of(&row).unwrap_err().code(), "corrupt");
        row.buckets = vec![(1, u64::MAX), (2, 1)];
        assert_eq!(Histogram::of(&row).unwrap_err().code(), "corrupt");
        row.buckets = vec![(1, 2)];
        assert_eq!(Histogram::of(&row).unwrap_err().code(), "corrupt");
    }
}
