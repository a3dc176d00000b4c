// SPDX-License-Identifier: Apache-2.0
//! State that the workers of a phase share: keys, content, counters and statistics.

use super::keys::Keys;
use super::report::{ObjectEnds, ObjectSample, OperationTotal};
use super::spec::{ObjectSpec, Operation};
use super::stats::Stats;
use crate::content::Content;
use crate::cpu_usage::CpuTicks;
use bytes::Bytes;
use penstock_store::{Opened, Store};
use penstock_types::{Result, Timer, lock, now};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

/// Number of shards of the statistics. Workers lock different shards, so they rarely wait for one another.
const PLACES: usize = 8;

/// Running counters of one operation.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Live {
    pub(super) requests: AtomicU64,
    pub(super) bytes: AtomicU64,
}

/// Statistics by operation, in the order of [`Operation::ALL`].
pub(super) type Brought = [Stats; 6];

/// State that all workers share.
pub(super) struct Shared {
    pub(super) spec: ObjectSpec,
    pub(super) store: Arc<dyn Store>,
    pub(super) keys: Keys,
    pub(super) content: Content,
    pub(super) live: [Live; 6],
    pub(super) throttles: AtomicU64,
    /// Timer that wakes the workers of an open loop at the intended start of their requests.
    pub(super) timer: Timer,
    body: Bytes,
    pub(super) sent: AtomicU64,
    pub(super) workers: AtomicU64,
    pub(super) stats: Vec<Mutex<Brought>>,
    pub(super) first: OnceLock<ObjectEnds>,
}

impl Shared {
    pub(super) fn new(spec: ObjectSpec, opened: Opened) -> Result<Self> {
        let content = Content::new(spec.verify.unwrap_or(spec.seed), spec.compressible);
        let writes = spec.mix.iter().any(|share| matches!(share.operation, Operation::Put | Operation::Delete));
        let mut body = vec![0; if writes { spec.object_size as usize } else { 0 }];
        content.prepare(&mut body);
        Ok(Self {
            timer: Timer::start()?,
            keys: Keys::new(&spec, opened.prefix),
            store: opened.store,
            content,
            live: Default::default(),
            throttles: AtomicU64::new(0),
            body: body.into(),
            sent: AtomicU64::new(0),
            workers: AtomicU64::new(0),
            stats: (0..PLACES).map(|_| Mutex::default()).collect(),
            first: OnceLock::new(),
            spec,
        })
    }

    pub(super) fn stats(&self, number: u64, operation: Operation) -> impl std::ops::DerefMut<Target = Stats> {
        struct Held<'a>(MutexGuard<'a, Brought>, usize);
        impl std::ops::Deref for Held<'_> {
            type Target = Stats;
            fn deref(&self) -> &Stats {
                &self.0[self.1]
            }
        }
        impl std::ops::DerefMut for Held<'_> {
            fn deref_mut(&mut self) -> &mut Stats {
                &mut self.0[self.1]
            }
        }
        let place = &self.stats[number as usize % PLACES];
        Held(lock(place), operation as usize)
    }

    /// Counts one more request. Returns false if the request limit was already reached.
    pub(super) fn may_send(&self) -> bool {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed);
        self.spec.request_limit.is_none_or(|limit| sent < limit)
    }

    /// Returns the content of object `number`. With verification, the content of each object is generated in full.
    /// Otherwise, all objects share one body, and only their first 4 KiB differ.
    pub(super) fn body(&self, number: u64) -> Vec<Bytes> {
        if self.spec.verify.is_some() {
            let mut body = vec![0; self.body.len()];
            self.content.fill(&mut body, number, 0);
            return vec![body.into()];
        }
        let head = self.body.len().min(4096);
        let mut own = self.body[..head].to_vec();
        self.content.touch(&mut own, number);
        vec![own.into(), self.body.slice(head..)].into_iter().filter(|part: &Bytes| !part.is_empty()).collect()
    }

    pub(super) fn ends(&self, start: Instant, machine: CpuTicks) -> ObjectEnds {
        let totals = std::array::from_fn(|at| OperationTotal {
            requests: self.live[at].requests.load(Ordering::Relaxed),
            bytes: self.live[at].bytes.load(Ordering::Relaxed),
        });
        let seconds = now().saturating_duration_since(start).as_secs_f64();
        ObjectEnds { seconds, totals, cpu_percent: CpuTicks::now().percent_since(machine) }
    }

    pub(super) fn sample(&self, start: Instant) -> ObjectSample {
        let sum = |of: fn(&Live) -> &AtomicU64| self.live.iter().map(|live| of(live).load(Ordering::Relaxed)).sum();
        ObjectSample {
            t_s: now().saturating_duration_since(start).as_secs_f64(),
            requests: sum(|live| &live.requests),
            bytes: sum(|live| &live.bytes),
            throttles: self.throttles.load(Ordering::Relaxed),
            workers: self.workers.load(Ordering::Relaxed),
        }
    }
}
