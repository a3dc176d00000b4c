// SPDX-License-Identifier: Apache-2.0
//! Registry of counters: each name and unit is defined here once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Unit of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// Time, stored in nanoseconds.
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

            /// Name in reports and JSON; times end in `_s`.
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
    /// LIST pages requested.
    Lists = ("lists", Count),
    /// HEAD requests sent.
    Heads = ("heads", Count),
    /// PUT and multipart requests sent.
    Puts = ("puts", Count),
    /// Objects deleted.
    Deletes = ("deletes", Count),
    /// Bytes that the caller requested.
    BytesRequested = ("bytes_requested", Bytes),
    /// Body bytes received, including retries.
    BytesIn = ("bytes_in", Bytes),
    /// Bytes sent.
    BytesSent = ("bytes_sent", Bytes),
    /// Retried requests.
    Retries = ("retries", Count),
    /// GETs sent a second time because the first response was late.
    Hedges = ("hedges", Count),
    /// Second responses that arrived before the first.
    HedgesWon = ("hedges_won", Count),
    /// Responses 429 and 503.
    Throttles = ("throttles", Count),
    /// Other error responses.
    Errors = ("errors", Count),
    /// Time spent waiting because a store asked for it.
    ThrottleWait = ("throttle_wait_s", Nanoseconds),
    /// Time from sending a GET to its first body byte, summed over requests.
    FirstByteWait = ("first_byte_s", Nanoseconds),
    /// Time from the first body byte to the last, summed over requests.
    Transfer = ("transfer_s", Nanoseconds),
    /// Reads served from the node cache.
    CacheHits = ("cache_hits", Count),
    /// Objects fetched into the node cache.
    CacheMisses = ("cache_misses", Count),
    /// Reads that bypass the node cache, because every entry in it is needed sooner.
    CacheBypasses = ("cache_bypasses", Count),
    /// Bytes served from the node cache.
    CacheBytes = ("cache_bytes", Bytes),
    /// Entries evicted from the node cache.
    CacheEvictions = ("cache_evictions", Count),
    /// Objects that the node cache has transposed.
    CacheTranscodes = ("cache_transcodes", Count),
    /// Corrupt entries of the node cache, which were fetched again.
    CacheCorrupt = ("cache_corrupt", Count),
    /// Reads and writes of the node cache that its disk refused.
    CacheFailures = ("cache_failures", Count),
    /// Reads in a pool from this node's own files.
    PoolOwnReads = ("pool_own_reads", Count),
    /// Bytes of those reads.
    PoolOwnBytes = ("pool_own_bytes", Bytes),
    /// Reads in a pool through the engine's protocol, possibly from this node.
    PoolEngineReads = ("pool_engine_reads", Count),
    /// Bytes of those reads.
    PoolEngineBytes = ("pool_engine_bytes", Bytes),
    /// Reads of objects that a pool had lost, from its origin.
    PoolBucketReads = ("pool_bucket_reads", Count),
    /// Bytes of those reads, in the pool's form.
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
