// SPDX-License-Identifier: Apache-2.0
//! Registry of counters, which defines each name and unit once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Unit of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Number of events.
    Count,
    /// Number of bytes.
    Bytes,
    /// Time, stored in nanoseconds.
    Nanoseconds,
}

macro_rules! metrics {
    ($($(#[doc = $doc:literal])* $variant:ident = ($name:literal, $unit:ident)),+ $(,)?) => {
        /// Name of a counter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Metric { $($(#[doc = $doc])* $variant),+ }

        impl Metric {
            /// All counters, in the order of the registry.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant),+];

            /// Name in reports and JSON; names of times end in `_s`.
            pub fn name(self) -> &'static str {
                match self { $(Metric::$variant => $name),+ }
            }

            /// Unit of the counter.
            pub fn unit(self) -> Unit {
                match self { $(Metric::$variant => Unit::$unit),+ }
            }
        }
    };
}

metrics! {
    /// Number of requests of any kind sent to a store.
    Requests = ("requests", Count),
    /// Number of GET requests sent.
    Gets = ("gets", Count),
    /// Number of LIST pages requested.
    Lists = ("lists", Count),
    /// Number of HEAD requests sent.
    Heads = ("heads", Count),
    /// Number of PUT and multipart requests sent.
    Puts = ("puts", Count),
    /// Objects deleted.
    Deletes = ("deletes", Count),
    /// Bytes that the caller requested.
    BytesRequested = ("bytes_requested", Bytes),
    /// Body bytes received, including retries.
    BytesIn = ("bytes_in", Bytes),
    /// Bytes sent to a store.
    BytesSent = ("bytes_sent", Bytes),
    /// Requests sent again after a failure.
    Retries = ("retries", Count),
    /// GETs sent a second time (hedged) because the first response was late.
    Hedges = ("hedges", Count),
    /// Hedged GETs whose second response arrived before the first.
    HedgesWon = ("hedges_won", Count),
    /// Responses with status 429 or 503.
    Throttles = ("throttles", Count),
    /// Error responses other than throttling.
    Errors = ("errors", Count),
    /// Time spent waiting because a store throttled.
    ThrottleWait = ("throttle_wait_s", Nanoseconds),
    /// Time from sending a GET to its first body byte, summed over requests.
    FirstByteWait = ("first_byte_s", Nanoseconds),
    /// Time from the first body byte to the last, summed over requests.
    Transfer = ("transfer_s", Nanoseconds),
    /// Reads served from the node cache.
    CacheHits = ("cache_hits", Count),
    /// Objects fetched into the node cache.
    CacheMisses = ("cache_misses", Count),
    /// Reads that bypass the node cache, because all of its entries are needed sooner.
    CacheBypasses = ("cache_bypasses", Count),
    /// Bytes served from the node cache.
    CacheBytes = ("cache_bytes", Bytes),
    /// Entries evicted from the node cache.
    CacheEvictions = ("cache_evictions", Count),
    /// Objects that the node cache has transposed.
    CacheTranscodes = ("cache_transcodes", Count),
    /// Corrupt entries of the node cache that were fetched again.
    CacheCorrupt = ("cache_corrupt", Count),
    /// Reads and writes of the node cache that failed on its disk.
    CacheFailures = ("cache_failures", Count),
    /// Pool reads that this node's own files served.
    PoolOwnReads = ("pool_own_reads", Count),
    /// Bytes of pool reads that this node's own files served.
    PoolOwnBytes = ("pool_own_bytes", Bytes),
    /// Pool reads through the engine's protocol, possibly served by this node.
    PoolEngineReads = ("pool_engine_reads", Count),
    /// Bytes of pool reads through the engine's protocol.
    PoolEngineBytes = ("pool_engine_bytes", Bytes),
    /// Reads from the origin of objects that the pool has lost.
    PoolBucketReads = ("pool_bucket_reads", Count),
    /// Bytes of objects that the pool has lost, read from the origin; counted in the pool's format.
    PoolBucketBytes = ("pool_bucket_bytes", Bytes),
    /// Lost objects that were written to the pool again.
    PoolRefills = ("pool_refills", Count),
}

/// A set of counters that several threads can update.
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
    /// Adds `amount` in the metric's unit (nanoseconds for times).
    pub fn add(&self, metric: Metric, amount: u64) {
        self.values[metric as usize].fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds one to a counter.
    pub fn count(&self, metric: Metric) {
        self.add(metric, 1);
    }

    /// Adds a duration to a time counter.
    pub fn time(&self, metric: Metric, took: Duration) {
        debug_assert_eq!(metric.unit(), Unit::Nanoseconds);
        self.add(metric, took.as_nanos() as u64);
    }

    /// Returns the current value of a counter.
    pub fn get(&self, metric: Metric) -> u64 {
        self.values[metric as usize].load(Ordering::Relaxed)
    }
}
