// SPDX-License-Identifier: Apache-2.0
//! The registry of counters: a name and a unit are defined here once, and nowhere else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Unit of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Time, held in nanoseconds.
    Nanoseconds,
}

macro_rules! metrics {
    ($($(#[doc = $doc:literal])* $variant:ident = ($name:literal, $unit:ident)),+ $(,)?) => {
        /// A counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Metric { $($(#[doc = $doc])* $variant),+ }

        impl Metric {
            /// Every counter, in the order of the registry.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant),+];

            /// Its name in reports and JSON; a time ends in `_s` there.
            pub fn name(self) -> &'static str {
                match self { $(Metric::$variant => $name),+ }
            }

            /// Its unit.
            pub fn unit(self) -> Unit {
                match self { $(Metric::$variant => Unit::$unit),+ }
            }
        }
    };
}

metrics! {
    /// Requests of any kind sent to a store.
    Requests = ("requests", Count),
    /// GET requests sent.
    Gets = ("gets", Count),
    /// LIST pages asked for.
    Lists = ("lists", Count),
    /// HEAD requests sent.
    Heads = ("heads", Count),
    /// PUT and multipart requests sent.
    Puts = ("puts", Count),
    /// Objects deleted.
    Deletes = ("deletes", Count),
    /// Bytes that the caller asked for.
    BytesRequested = ("bytes_requested", Bytes),
    /// Body bytes that crossed the wire inwards, retries included.
    BytesIn = ("bytes_in", Bytes),
    /// Bytes sent.
    BytesSent = ("bytes_sent", Bytes),
    /// Requests sent again.
    Retries = ("retries", Count),
    /// GETs asked a second time because the first answer was late.
    Hedges = ("hedges", Count),
    /// Second answers that came before the first.
    HedgesWon = ("hedges_won", Count),
    /// Answers 429 and 503.
    Throttles = ("throttles", Count),
    /// Other errors answered.
    Errors = ("errors", Count),
    /// Time spent waiting because a store asked us to slow down.
    ThrottleWait = ("throttle_wait_s", Nanoseconds),
    /// Time from sending a GET to its first body byte, summed over requests.
    FirstByteWait = ("first_byte_s", Nanoseconds),
    /// Time from the first body byte to the last, summed over requests.
    Transfer = ("transfer_s", Nanoseconds),
    /// Reads answered from the node's cache.
    CacheHits = ("cache_hits", Count),
    /// Objects fetched into the node's cache.
    CacheMisses = ("cache_misses", Count),
    /// Reads past the node's cache, where nothing in it is needed later than what is read.
    CacheBypasses = ("cache_bypasses", Count),
    /// Bytes answered from the node's cache.
    CacheBytes = ("cache_bytes", Bytes),
    /// Entries evicted from the node's cache.
    CacheEvictions = ("cache_evictions", Count),
    /// Objects that the node's cache has transcoded into planes.
    CacheTranscodes = ("cache_transcodes", Count),
    /// Entries of the node's cache that were not what was written there, and were fetched again.
    CacheCorrupt = ("cache_corrupt", Count),
    /// Reads and writes of the node's cache that its disk refused.
    CacheFailures = ("cache_failures", Count),
    /// Reads in a pool of this node's own files.
    PoolOwnReads = ("pool_own_reads", Count),
    /// Their bytes.
    PoolOwnBytes = ("pool_own_bytes", Bytes),
    /// Reads in a pool by the engine's protocol, which may end on this node too.
    PoolEngineReads = ("pool_engine_reads", Count),
    /// Their bytes.
    PoolEngineBytes = ("pool_engine_bytes", Bytes),
    /// Reads of what a pool had lost, from the bucket.
    PoolBucketReads = ("pool_bucket_reads", Count),
    /// Their bytes, as the pool had them.
    PoolBucketBytes = ("pool_bucket_bytes", Bytes),
    /// Lost objects that were put into the pool again.
    PoolRefills = ("pool_refills", Count),
}

/// A set of counters that any thread may add to.
#[derive(Debug)]
pub struct Metrics {
    values: Vec<AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { values: Metric::ALL.iter().map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Metrics {
    /// Adds `amount` (in the metric's unit; nanoseconds for times).
    pub fn add(&self, metric: Metric, amount: u64) {
        self.values[metric as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds one.
    pub fn count(&self, metric: Metric) {
        self.add(metric, 1);
    }

    /// Adds a time.
    pub fn time(&self, metric: Metric, took: Duration) {
        debug_assert_eq!(metric.unit(), Unit::Nanoseconds);
        self.add(metric, took.as_nanos() as u64);
    }

    /// The value now.
    pub fn get(&self, metric: Metric) -> u64 {
        self.values[metric as usize].load(Ordering::Relaxed)
    }
}
