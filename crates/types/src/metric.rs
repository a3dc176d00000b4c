// SPDX-License-Identifier: Apache-2.0
//! Registry of counters. It defines the name and the unit of every counter.

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
        /// A counter of the registry.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Metric { $($(#[doc = $doc])* $variant),+ }

        impl Metric {
            /// All counters, in the order in which the registry defines them.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant),+];

            /// Name in reports and JSON. The names of time counters end in `_s`.
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
    /// Number of objects deleted.
    Deletes = ("deletes", Count),
    /// Number of bytes that the caller requested.
    BytesRequested = ("bytes_requested", Bytes),
    /// Number of body bytes received, including the bytes of retries.
    BytesIn = ("bytes_in", Bytes),
    /// Number of bytes sent to a store.
    BytesSent = ("bytes_sent", Bytes),
    /// Number of requests sent again after a failure.
    Retries = ("retries", Count),
    /// Number of GETs that were sent a second time (hedged) because the first response was late.
    Hedges = ("hedges", Count),
    /// Number of hedged GETs for which the second request was answered first.
    HedgesWon = ("hedges_won", Count),
    /// Number of responses with status 429 or 503.
    Throttles = ("throttles", Count),
    /// Number of error responses other than 429 and 503.
    Errors = ("errors", Count),
    /// Time spent waiting because a store throttled.
    ThrottleWait = ("throttle_wait_s", Nanoseconds),
    /// Time from sending a GET to its first body byte, summed over all GETs.
    FirstByteWait = ("first_byte_s", Nanoseconds),
    /// Time from the first body byte to the last, summed over all GETs.
    Transfer = ("transfer_s", Nanoseconds),
    /// Number of reads served from the node cache.
    CacheHits = ("cache_hits", Count),
    /// Number of objects fetched into the node cache.
    CacheMisses = ("cache_misses", Count),
    /// Number of reads that bypassed the node cache, because all cached entries are needed sooner than the new one.
    CacheBypasses = ("cache_bypasses", Count),
    /// Number of bytes served from the node cache.
    CacheBytes = ("cache_bytes", Bytes),
    /// Number of entries evicted from the node cache.
    CacheEvictions = ("cache_evictions", Count),
    /// Number of objects for which the node cache stored a transposed copy.
    CacheTranscodes = ("cache_transcodes", Count),
    /// Number of corrupt node cache entries that were fetched again.
    CacheCorrupt = ("cache_corrupt", Count),
    /// Number of node cache reads and writes that failed because of its disk.
    CacheFailures = ("cache_failures", Count),
    /// Number of pool reads from files on this node.
    PoolOwnReads = ("pool_own_reads", Count),
    /// Number of bytes that pool reads read from files on this node.
    PoolOwnBytes = ("pool_own_bytes", Bytes),
    /// Number of pool reads through the engine's protocol, from this node or another one.
    PoolEngineReads = ("pool_engine_reads", Count),
    /// Number of bytes that pool reads read through the engine's protocol.
    PoolEngineBytes = ("pool_engine_bytes", Bytes),
    /// Number of reads from the origin store, because the pool had lost the object.
    PoolBucketReads = ("pool_bucket_reads", Count),
    /// Number of bytes read from the origin store, because the pool had lost the object. Counted in the pool's format.
    PoolBucketBytes = ("pool_bucket_bytes", Bytes),
    /// Number of lost objects that were written to the pool again.
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
