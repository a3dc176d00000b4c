// SPDX-License-Identifier: Apache-2.0
//! Sample order of an epoch: a pure function from counts, seed, epoch and position to a sample.
//!
//! Owns the permutation and the mapping from a position to (object, record). Independent of bytes, ranks and batches.
//! Saved states depend on this order, so any change to it requires a new [`ORDER_VERSION`].

use std::sync::Arc;

/// Version of the order. Every saved state contains this version.
pub const ORDER_VERSION: u32 = 1;

/// Maximum number of elements for which a permutation is stored as a table. For so few elements, a Feistel network is
/// visibly uneven, and building the table costs no more than the rounds of the network.
const TABLE: u64 = 32;

/// Rounds of the Feistel network. Luby and Rackoff proved that 4 rounds with random functions cannot be distinguished
/// from a random permutation. With 8 rounds, the tests below find no bias.
const ROUNDS: usize = 8;

/// SplitMix64's finaliser (Stafford's mix 13): every input bit reaches every output bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Derives a key from a seed, an epoch and a domain. Each value is mixed before the next value is added, so that two
/// values cannot cancel each other.
pub(crate) fn key(seed: u64, epoch: u64, domain: u64) -> u64 {
    let golden = 0x9e37_79b9_7f4a_7c15_u64;
    mix(mix(mix(seed.wrapping_add(golden)) ^ epoch.wrapping_add(golden)).wrapping_add(golden) ^ domain)
}

/// Keyed permutation of `0..n` in O(1) memory: a balanced Feistel network over the next even number of bits. While the
/// result is not below `n`, the network is applied again. On average, the network is applied at most four times,
/// because its domain is less than four times `n`.
#[derive(Debug, Clone)]
pub struct Permutation {
    n: u64,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Identity,
    Table([u8; TABLE as usize]),
    Feistel { half: u32, keys: [u64; ROUNDS] },
}

impl Permutation {
    /// Returns the identity permutation of `0..n`.
    pub fn identity(n: u64) -> Self {
        Self { n, kind: Kind::Identity }
    }

    /// Returns the permutation of `0..n` for a seed, an epoch and a domain.
    pub fn keyed(n: u64, seed: u64, epoch: u64, domain: u64) -> Self {
        let mut state = key(seed, epoch, domain);
        let mut next = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        };
        let kind = if n <= TABLE {
            let mut table = [0u8; TABLE as usize];
            (0..n as usize).for_each(|at| table[at] = at as u8);
            for at in (1..n as usize).rev() {
                // Multiply and shift instead of taking a remainder. The bias at 64 bits is below 2^-58.
                let other = ((u128::from(next()) * (at as u128 + 1)) >> 64) as usize;
                table.swap(at, other);
            }
            Kind::Table(table)
        } else {
            let bits = 64 - (n - 1).leading_zeros();
            Kind::Feistel { half: bits.div_ceil(2), keys: std::array::from_fn(|_| next()) }
        };
        Self { n, kind }
    }

    /// Number of elements in the permutation.
    pub fn len(&self) -> u64 {
        self.n
    }

    /// True if the permutation has no elements.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// Returns the element at position `index`, which must be below `len()`.
    pub fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.n, "{index} is not below {}", self.n);
        match &self.kind {
            Kind::Identity => index,
            Kind::Table(table) => u64::from(table[index as usize]),
            Kind::Feistel { half, keys } => {
                let mask = (1u64 << half) - 1;
                let mut value = index;
                loop {
                    let (mut left, mut right) = (value >> half, value & mask);
                    for key in keys {
                        (left, right) = (right, left ^ (mix(right ^ key) & mask));
                    }
                    value = (left << half) | right;
                    if value < self.n {
                        return value;
                    }
                }
            }
        }
    }
}

impl Permutation {
    /// Returns the position of `value`, which must be below `len()`. Inverse of [`Self::at`], at the same cost.
    pub fn index_of(&self, value: u64) -> u64 {
        debug_assert!(value < self.n, "{value} is not below {}", self.n);
        match &self.kind {
            Kind::Identity => value,
            Kind::Table(table) => {
                table[..self.n as usize].iter().position(|&to| u64::from(to) == value).unwrap_or(0) as u64
            }
            Kind::Feistel { half, keys } => {
                let mask = (1u64 << half) - 1;
                let mut index = value;
                loop {
                    let (mut left, mut right) = (index >> half, index & mask);
                    for key in keys.iter().rev() {
                        (left, right) = (right ^ (mix(left ^ key) & mask), left);
                    }
                    index = (left << half) | right;
                    if index < self.n {
                        return index;
                    }
                }
            }
        }
    }
}

/// Number of records in each object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counts {
    /// The same number of records in each object. Every operation is O(1).
    Equal {
        /// Number of objects.
        objects: u64,
        /// Number of records in each object.
        each: u64,
    },
    /// Number of records of each object. Each epoch computes running sums of these numbers once.
    Each(Arc<[u64]>),
}

impl Counts {
    /// Creates counts from one number per object: `Equal` if all numbers are the same.
    pub fn of(counts: &[u64]) -> Self {
        match counts.first() {
            None => Self::Equal { objects: 0, each: 0 },
            Some(&each) if counts.iter().all(|&count| count == each) => {
                Self::Equal { objects: counts.len() as u64, each }
            }
            Some(_) => Self::Each(counts.into()),
        }
    }

    /// Number of objects.
    pub fn objects(&self) -> u64 {
        match self {
            Self::Equal { objects, .. } => *objects,
            Self::Each(counts) => counts.len() as u64,
        }
    }

    /// Total number of samples.
    pub fn samples(&self) -> u64 {
        match self {
            Self::Equal { objects, each } => objects * each,
            Self::Each(counts) => counts.iter().sum(),
        }
    }

    /// Number of records in one object.
    pub fn records(&self, object: u64) -> u64 {
        match self {
            Self::Equal { each, .. } => *each,
            Self::Each(counts) => counts[object as usize],
        }
    }

    /// Largest number of records in one object.
    pub fn most(&self) -> u64 {
        match self {
            Self::Equal { each, .. } => *each,
            Self::Each(counts) => counts.iter().copied().max().unwrap_or(0),
        }
    }
}

/// Settings of a shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shuffle {
    /// Seed of the order.
    pub seed: u64,
    /// Number of objects whose samples are mixed with each other, at least 1. These objects are adjacent in the epoch's
    /// order of objects.
    pub window: u64,
}

/// Maximum default shuffle window, in objects.
pub const DEFAULT_WINDOW: u64 = 16;

/// Default shuffle window: 16 objects, or fewer if objects hold many records, but at least 2. A window of 16 Ki samples
/// mixes well enough, and the feed may have to hold all decoded samples of a window.
///
/// The default depends only on the seed and on the counts of the first 16 objects of epoch 0. Every path and every rank
/// therefore computes the same window, and an epoch can start before the other objects are counted.
pub fn default_window(counts: &Counts, seed: u64) -> u64 {
    let objects = counts.objects();
    let blocks = Permutation::keyed(objects, seed, 0, 0);
    let most = (0..objects.min(DEFAULT_WINDOW)).map(|block| counts.records(blocks.at(block))).max();
    (16_384 / most.unwrap_or(0).max(1)).clamp(2, DEFAULT_WINDOW)
}

/// Sample order of a dataset in all epochs.
#[derive(Debug, Clone)]
pub struct Order {
    counts: Counts,
    shuffle: Option<Shuffle>,
}

/// Location of a sample in the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Index of the object in the dataset's sorted list of objects.
    pub object: u64,
    /// Index of the record within the object.
    pub record: u64,
}

impl Order {
    /// Creates the order of a dataset with these counts. Without `shuffle`, samples are in stored order.
    pub fn new(counts: Counts, shuffle: Option<Shuffle>) -> Self {
        let shuffle = shuffle.map(|shuffle| Shuffle { window: shuffle.window.max(1), ..shuffle });
        Self { counts, shuffle }
    }

    /// Number of records in each object of the dataset.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Number of samples in an epoch.
    pub fn samples(&self) -> u64 {
        self.counts.samples()
    }

    /// Number of objects whose samples are mixed; 1 without a shuffle.
    pub fn window(&self) -> u64 {
        self.shuffle.map_or(1, |shuffle| shuffle.window)
    }

    /// True if samples are not in stored order.
    pub fn is_shuffled(&self) -> bool {
        self.shuffle.is_some()
    }

    /// Settings of the shuffle; `None` for stored order.
    pub fn shuffle(&self) -> Option<Shuffle> {
        self.shuffle
    }

    /// Random key for the sample at a position of an epoch, used for example to crop an image. The key depends only on
    /// the seed, the epoch and the position.
    pub fn key_of(&self, epoch: u64, position: u64) -> u64 {
        mix(key(self.shuffle.map_or(0, |shuffle| shuffle.seed), epoch, u64::MAX) ^ mix(position))
    }

    /// Returns the order of one epoch. Costs O(1), or one pass over the counts if they differ.
    pub fn epoch(&self, epoch: u64) -> EpochOrder {
        let objects = self.counts.objects();
        let blocks = match self.shuffle {
            None => Permutation::identity(objects),
            Some(shuffle) => Permutation::keyed(objects, shuffle.seed, epoch, 0),
        };
        let starts = match &self.counts {
            Counts::Equal { .. } => None,
            Counts::Each(counts) => {
                let mut starts = Vec::with_capacity(counts.len() + 1);
                let mut sum = 0;
                starts.push(0);
                starts.extend((0..objects).map(|block| {
                    sum += counts[blocks.at(block) as usize];
                    sum
                }));
                Some(starts)
            }
        };
        EpochOrder { order: self.clone(), epoch, blocks, starts }
    }
}

/// Sample order of one epoch. A block is an object together with its position in the epoch's order of objects.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    order: Order,
    epoch: u64,
    blocks: Permutation,
    /// First position of each block, followed by the number of samples. `None` if all blocks have the same length.
    starts: Option<Vec<u64>>,
}

impl EpochOrder {
    fn start(&self, block: u64) -> u64 {
        match (&self.starts, &self.order.counts) {
            (Some(starts), _) => starts[block as usize],
            (None, counts) => block * counts.most(),
        }
    }

    /// Returns the block that holds the sample at `offset`. The offset counts the samples of the epoch before the
    /// windows are shuffled.
    fn block(&self, offset: u64) -> u64 {
        match &self.starts {
            Some(starts) => starts.partition_point(|&start| start <= offset) as u64 - 1,
            None => offset / self.order.counts.most(),
        }
    }

    /// Returns the shuffle window that contains a position, which must be below the number of samples.
    pub fn window(&self, position: u64) -> Window<'_> {
        let size = self.order.window();
        let number = self.block(position) / size;
        let first = number * size;
        let last = first.saturating_add(size).min(self.order.counts.objects());
        let (start, end) = (self.start(first), self.start(last));
        let samples = match self.order.shuffle {
            None => Permutation::identity(end - start),
            Some(shuffle) => Permutation::keyed(end - start, shuffle.seed, self.epoch, number + 1),
        };
        Window { epoch: self, start, end, samples }
    }

    /// Number of records in each object of this epoch.
    pub fn counts(&self) -> &Counts {
        &self.order.counts
    }

    /// Returns the objects of a window, in the epoch's order of objects. `window` holds the positions of the window.
    pub(crate) fn objects(&self, window: &std::ops::Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let end = window.end;
        let blocks = self.block(window.start)..self.order.counts.objects();
        blocks.take_while(move |&block| self.start(block) < end).map(|block| self.blocks.at(block))
    }

    /// Returns the location of the sample at a position, which must be below the number of samples.
    pub fn locate(&self, position: u64) -> Place {
        self.window(position).locate(position)
    }

    /// Returns the location of the sample at `offset`. The offset counts the samples of the epoch before the windows
    /// are shuffled.
    pub fn place(&self, offset: u64) -> Place {
        let block = self.block(offset);
        Place { object: self.blocks.at(block), record: offset - self.start(block) }
    }

    /// Returns the position of the sample at `place`, which must exist. Inverse of [`Self::locate`].
    pub fn position(&self, place: Place) -> u64 {
        let offset = self.start(self.blocks.index_of(place.object)) + place.record;
        let window = self.window(offset);
        window.start + window.samples.index_of(offset - window.start)
    }
}

/// Shuffle window: a run of positions whose samples are all stored in the same group of objects.
#[derive(Debug)]
pub struct Window<'a> {
    epoch: &'a EpochOrder,
    /// First position of the window.
    pub start: u64,
    /// Position after the window's last position.
    pub end: u64,
    samples: Permutation,
}

impl Window<'_> {
    /// Returns the location of the sample at a position of this window.
    pub fn locate(&self, position: u64) -> Place {
        self.epoch.place(self.start + self.samples.at(position - self.start))
    }

    /// Returns the window's positions and their permutation, for a caller that stores the epoch's order separately.
    pub fn parts(self) -> (std::ops::Range<u64>, Permutation) {
        (self.start..self.end, self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn order(counts: &[u64], seed: u64, window: u64) -> Order {
        Order::new(Counts::of(counts), Some(Shuffle { seed, window }))
    }

    fn sequence(order: &Order, epoch: u64) -> Vec<Place> {
        let epoch = order.epoch(epoch);
        (0..order.samples()).map(|position| epoch.locate(position)).collect()
    }

    proptest! {
        #[test]
        fn prop_permutation_is_a_bijection(n in 0u64..3000, seed: u64, epoch: u64, domain: u64) {
            let permutation = Permutation::keyed(n, seed, epoch, domain);
            let seen: HashSet<u64> = (0..n).map(|index| permutation.at(index)).collect();
            prop_assert_eq!(seen.len() as u64, n);
            prop_assert!(seen.iter().all(|&value| value < n));
            prop_assert!((0..n).all(|index| permutation.index_of(permutation.at(index)) == index));
        }

        #[test]
        fn prop_position_is_the_inverse_of_locate(counts in prop::collection::vec(0u64..9, 1..40), seed: u64, window in 1u64..50, epoch: u64) {
            let order = order(&counts, seed, window);
            let epoch = order.epoch(epoch);
            prop_assert!((0..order.samples()).all(|position| epoch.position(epoch.locate(position)) == position));
        }

        #[test]
        fn prop_epoch_holds_every_sample_once(counts in prop::collection::vec(0u64..9, 0..40), seed: u64, window in 1u64..50, epoch: u64) {
            let order = order(&counts, seed, window);
            let seen: HashSet<Place> = sequence(&order, epoch).into_iter().collect();
            prop_assert_eq!(seen.len() as u64, order.samples());
            prop_assert!(seen.iter().all(|place| place.record < counts[place.object as usize]));
        }

        #[test]
        fn prop_equal_counts_give_the_order_of_summed_ones(objects in 1u64..40, each in 1u64..9, seed: u64, window in 1u64..50) {
            let shuffle = Some(Shuffle { seed, window });
            let short = Order::new(Counts::Equal { objects, each }, shuffle);
            let long = Order::new(Counts::Each(vec![each; objects as usize].into()), shuffle);
            prop_assert_eq!(sequence(&short, 3), sequence(&long, 3));
        }

        #[test]
        fn prop_window_touches_at_most_its_object_count(counts in prop::collection::vec(1u64..9, 1..40), seed: u64, window in 1u64..9) {
            let order = order(&counts, seed, window);
            let epoch = order.epoch(0);
            let mut position = 0;
            while position < order.samples() {
                let found = epoch.window(position);
                prop_assert_eq!(found.start, position);
                let objects: HashSet<u64> = (found.start..found.end).map(|p| found.locate(p).object).collect();
                prop_assert!(objects.len() as u64 <= window);
                position = found.end;
            }
        }

        #[test]
        fn prop_one_key_bit_changes_about_half_of_the_places(bit in 0u32..64, seed: u64) {
            // Two unrelated permutations of n elements agree at 1 position on average. The probability that they agree
            // at 12 or more positions is 1 in 10^9.
            let (a, b) = (Permutation::keyed(1000, seed, 0, 0), Permutation::keyed(1000, seed ^ (1 << bit), 0, 0));
            prop_assert!((0..1000).filter(|&index| a.at(index) == b.at(index)).count() < 12);
            let (c, d) = (Permutation::keyed(1000, 0, seed, 0), Permutation::keyed(1000, 0, 0, seed | 1));
            prop_assert!((0..1000).filter(|&index| c.at(index) == d.at(index)).count() < 12);
        }
    }

    #[test]
    fn order_without_shuffle_is_the_order_of_storage() {
        let order = Order::new(Counts::of(&[2, 0, 1]), None);
        let place = |object, record| Place { object, record };
        assert_eq!(sequence(&order, 5), [place(0, 0), place(0, 1), place(2, 0)]);
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let order = order(&[3; 50], 7, 4);
        assert_ne!(sequence(&order, 0), sequence(&order, 1));
        assert_eq!(sequence(&order, 1), sequence(&order, 1));
        assert_ne!(sequence(&order, 0), sequence(&self::order(&[3; 50], 8, 4), 0));
    }

    /// Saved states depend on this order. If this test fails, [`ORDER_VERSION`] must be increased.
    #[test]
    fn order_of_version_1_stays_what_it_was() {
        let small = Permutation::keyed(10, 17, 0, 0);
        let large = Permutation::keyed(1_000_000_007, 17, 3, 1);
        let have: (Vec<_>, Vec<_>) =
            ((0..10).map(|i| small.at(i)).collect(), (0..6).map(|i| large.at(i * 123_456_789)).collect());
        assert_eq!(have, (GOLDEN_SMALL.to_vec(), GOLDEN_LARGE.to_vec()));
    }
    const GOLDEN_SMALL: [u64; 10] = [0, 6, 5, 3, 4, 1, 7, 8, 9, 2];
    const GOLDEN_LARGE: [u64; 6] = [459_948_786, 782_072_326, 433_871_941, 813_798_177, 454_535_400, 694_614_147];

    /// χ² test of the position that each of n elements is mapped to, over many seeds. Covers both kinds of permutation.
    #[test]
    fn every_place_is_equally_likely() {
        for n in [6u64, 31, 33, 64] {
            let seeds = 6000u64;
            let mut hits = vec![vec![0f64; n as usize]; n as usize];
            for seed in 0..seeds {
                let permutation = Permutation::keyed(n, seed, 1, 2);
                (0..n).for_each(|index| hits[index as usize][permutation.at(index) as usize] += 1.0);
            }
            let want = seeds as f64 / n as f64;
            let chi2: f64 = hits.iter().flatten().map(|have| (have - want).powi(2) / want).sum();
            // Each row and each column sums to `seeds`, which leaves (n - 1)² degrees of freedom. The limit is 5
            // standard deviations above the mean.
            let freedom = ((n - 1) * (n - 1)) as f64;
            assert!(chi2 < freedom + 5.0 * (2.0 * freedom).sqrt(), "n {n}: chi² {chi2:.0} of {freedom:.0}");
        }
    }

    /// All 24 orders of 4 elements are equally frequent. This test covers pairs of positions, not only single
    /// positions.
    #[test]
    fn every_order_of_four_is_equally_likely() {
        let mut hits = std::collections::HashMap::new();
        for seed in 0..24_000u64 {
            let permutation = Permutation::keyed(4, seed, 0, 0);
            *hits.entry([0, 1, 2, 3].map(|index| permutation.at(index))).or_insert(0f64) += 1.0;
        }
        assert_eq!(hits.len(), 24);
        let chi2: f64 = hits.values().map(|have| (have - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi2 < 23.0 + 5.0 * 46f64.sqrt(), "{chi2:.0}");
    }

    /// Neighbours in storage are not neighbours in the order: the serial correlation of a full shuffle is near zero.
    #[test]
    fn neighbours_are_parted() {
        let permutation = Permutation::keyed(10_000, 5, 0, 0);
        let values: Vec<f64> = (0..10_000).map(|index| permutation.at(index) as f64 / 10_000.0 - 0.5).collect();
        let correlation = values.windows(2).map(|w| w[0] * w[1]).sum::<f64>() / 9_999.0 * 12.0;
        assert!(correlation.abs() < 0.05, "{correlation}");
    }

    #[test]
    fn order_of_a_billion_samples_is_at_hand() {
        let order =
            Order::new(Counts::Equal { objects: 1_000_000_007, each: 1 }, Some(Shuffle { seed: 1, window: 16 }));
        let epoch = order.epoch(9);
        let seen: HashSet<u64> = (999_900_000..1_000_000_000).map(|position| epoch.locate(position).object).collect();
        assert_eq!(seen.len(), 100_000);
    }
}
