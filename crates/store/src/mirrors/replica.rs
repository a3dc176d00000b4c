// SPDX-License-Identifier: Apache-2.0
//! State of one mirror: its rate, its pause after failures, and the reason if it was excluded.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use penstock_types::{Deadline, Error, Key, Result, Stopwatch, now};
use serde::{Deserialize, Serialize};

use crate::{Chunk, Opened, Store};

/// Length of the first pause after a failure. The length doubles with each consecutive failure.
const REST: Duration = Duration::from_millis(500);
/// Maximum length of a pause after a failure.
const MAX_REST: Duration = Duration::from_secs(30);
/// Minimum weight of a mirror, as a share of the rate of the fastest mirror.
const MIN_WEIGHT: f64 = 0.02;
/// If a read is dropped after at least this time without a byte, it counts as failed.
const SILENT: Duration = Duration::from_secs(5);
/// Weight of the latest read in the moving average of a mirror's rate.
const NEWEST: f64 = 0.2;

/// Read statistics of one mirror.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MirrorReport {
    /// URL of the mirror, including its prefix.
    pub url: String,
    /// Number of reads sent to the mirror.
    pub reads: u64,
    /// Number of bytes received from the mirror.
    pub bytes: u64,
    /// Number of failed reads.
    pub errors: u64,
    /// Reason why the mirror was excluded, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Replica {
    pub store: Arc<dyn Store>,
    /// Prefix of the dataset's keys in this store.
    pub prefix: Key,
    pub url: String,
    tally: Arc<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    reads: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
    in_flight: AtomicU64,
    health: Mutex<Health>,
}

#[derive(Debug, Default)]
struct Health {
    left_out: Option<String>,
    rests_until: Option<Instant>,
    failures: u32,
    /// Moving average of the rate of a single read, in bytes per second. 0 until the first read has ended.
    rate: f64,
}

impl Replica {
    pub fn new(opened: Opened) -> Self {
        let url = opened.store.root().with_key(opened.store.root().key.join(opened.prefix.as_bytes())).to_string();
        Self { store: opened.store, prefix: opened.prefix, url, tally: Arc::default() }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.tally.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn root(&self) -> String {
        self.store.root().to_string()
    }

    /// Returns the key on this mirror of the object that has the key `key` on the first store. `first` is the dataset's
    /// prefix on the first store. Returns `None` for a key outside of the dataset.
    pub fn key_of(&self, first: &Key, key: &Key) -> Option<Key> {
        match key.strip_prefix(&first.as_folder()) {
            Some(tail) => Some(self.prefix.as_folder().join(tail.as_bytes())),
            None => (key == first).then(|| self.prefix.clone()),
        }
    }

    pub fn rests(&self) -> bool {
        self.health().rests_until.is_some_and(|until| now() < until)
    }

    pub fn is_left_out(&self) -> bool {
        self.health().left_out.is_some()
    }

    pub fn rate(&self) -> f64 {
        self.health().rate
    }

    /// Returns the weight for choosing this mirror: its rate divided by its load. The weight is never zero, because a
    /// slow mirror may become faster. A mirror without completed reads gets the rate of the fastest mirror.
    pub fn weight(&self, fastest: f64) -> f64 {
        let rate = match self.rate() {
            rate if rate > 0.0 => rate.max(fastest * MIN_WEIGHT),
            _ => fastest.max(1.0),
        };
        rate / (1.0 + self.tally.in_flight.load(Ordering::Relaxed) as f64)
    }

    pub fn away(&self) -> Error {
        Error::Unreachable {
            place: self.url.clone(),
            reason: "the mirror did not respond; requests to it are paused".to_owned(),
        }
    }

    pub fn fail(&self, _error: &Error) {
        self.tally.errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Pauses requests to this mirror after a failure.
    pub fn rest(&self, error: &Error) {
        self.fail(error);
        let mut health = self.health();
        let asked = match error {
            Error::Throttled { retry_after, .. } => retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let rest = REST.saturating_mul(1 << health.failures.min(8)).max(asked).min(MAX_REST);
        health.failures += 1;
        health.rests_until = Some(now() + rest);
    }

    pub fn rest_if_away(&self, error: &Error, deadline: Deadline) {
        if error.retryable() && !deadline.passed() {
            self.rest(error);
        }
    }

    /// Excludes the mirror permanently.
    pub fn leave_out(&self, why: String) {
        self.tally.errors.fetch_add(1, Ordering::Relaxed);
        self.health().left_out.get_or_insert(why);
    }

    /// Excludes the mirror, unless it is the first store, which defines the content of the dataset.
    pub fn leave_out_unless_first(&self, at: usize, why: String) {
        match at {
            0 => {
                self.tally.errors.fetch_add(1, Ordering::Relaxed);
            }
            _ => self.leave_out(why),
        }
    }

    pub fn report(&self) -> MirrorReport {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        MirrorReport {
            url: self.url.clone(),
            reads: read(&self.tally.reads),
            bytes: read(&self.tally.bytes),
            errors: read(&self.tally.errors),
            left_out: self.health().left_out.clone(),
        }
    }

    /// Records the start of a read.
    pub fn begin(&self) -> Reading {
        self.tally.reads.fetch_add(1, Ordering::Relaxed);
        self.tally.in_flight.fetch_add(1, Ordering::Relaxed);
        Reading {
            member: self.clone(),
            clock: Stopwatch::start(),
            last_answer: Stopwatch::start(),
            bytes: 0,
            is_over: false,
        }
    }
}

/// A read in flight. Dropping it ends the read and updates the statistics.
pub(super) struct Reading {
    member: Replica,
    clock: Stopwatch,
    /// Time since the last byte.
    last_answer: Stopwatch,
    bytes: u64,
    is_over: bool,
}

impl Reading {
    /// Passes chunks on and counts them. `of` is the key of the object if this mirror is not the first store. In this
    /// case, wrong bytes exclude the mirror.
    pub fn watched(
        self,
        chunks: BoxStream<'static, Result<Chunk>>,
        of: Option<Key>,
    ) -> BoxStream<'static, Result<Chunk>> {
        stream::try_unfold((self, chunks, of), |(mut reading, mut chunks, of)| async move {
            match chunks.try_next().await {
                Ok(Some(chunk)) => {
                    reading.last_answer = Stopwatch::start();
                    reading.bytes += chunk.bytes.len() as u64;
                    reading.member.tally.bytes.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
                    Ok(Some((chunk, (reading, chunks, of))))
                }
                Ok(None) => {
                    reading.is_over = true;
                    reading.ended();
                    Ok(None)
                }
                Err(error) => {
                    reading.is_over = true;
                    match (&error, &of) {
                        (Error::Corrupt { .. }, Some(_)) => reading.member.leave_out(error.to_string()),
                        _ if error.retryable() => reading.member.rest(&error),
                        _ => reading.member.fail(&error),
                    }
                    Err(error)
                }
            }
        })
        .boxed()
    }

    fn ended(&self) {
        let rate = self.bytes as f64 / self.clock.elapsed().as_secs_f64().max(1e-6);
        let mut health = self.member.health();
        health.failures = 0;
        health.rests_until = None;
        health.rate = if health.rate > 0.0 { health.rate * (1.0 - NEWEST) + rate * NEWEST } else { rate };
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // The caller has dropped a stalled read to use another mirror. Pause this mirror for later reads, too.
        if !self.is_over && self.last_answer.elapsed() >= SILENT {
            self.member.rest(&self.member.away());
        }
        self.member.tally.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}
