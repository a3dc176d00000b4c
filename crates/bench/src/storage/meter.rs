// SPDX-License-Identifier: Apache-2.0
//! Counters of each worker, and the state that all workers share. Only one worker writes each counter, so counting is a
//! plain store without contention.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use penstock_types::{Result, now};

use super::report::Total;
use super::spec::{Phase, StorageSpec};
use super::target::Target;
use crate::arrivals::wait_until;
use crate::content::Content;
use crate::cpu_usage::CpuTicks;
use crate::{Arrivals, Histogram};

/// Counters of one worker; other threads may read them. The alignment gives each worker its own cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Tally {
    entries: AtomicU64,
    ios: AtomicU64,
    bytes: AtomicU64,
}

/// State when the first worker ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct FirstEnd {
    pub(super) at: Instant,
    pub(super) total: Total,
    pub(super) machine: CpuTicks,
}

/// State that all workers of a phase share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) spec: StorageSpec,
    pub(super) phase: Phase,
    pub(super) target: Target,
    pub(super) content: Content,
    pub(super) tallies: Vec<Tally>,
    pub(super) stop: AtomicBool,
    pub(super) first: OnceLock<FirstEnd>,
}

impl Shared {
    pub(super) fn total(&self) -> Total {
        let mut total = Total::default();
        for tally in &self.tallies {
            total.entries += tally.entries.load(Ordering::Relaxed);
            total.ios += tally.ios.load(Ordering::Relaxed);
            total.bytes += tally.bytes.load(Ordering::Relaxed);
        }
        total
    }

    /// Called when a worker ends; records the state at the first such call.
    pub(super) fn ended(&self) -> Instant {
        let at = now();
        self.first.get_or_init(|| FirstEnd { at, total: self.total(), machine: CpuTicks::now() });
        at
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// One worker's histograms, arrival schedule and clock.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    pub(super) shared: &'a Shared,
    tally: &'a Tally,
    total: Total,
    pub(super) io: Histogram,
    pub(super) entry: Histogram,
    pub(super) service: Option<Histogram>,
    arrivals: Option<Arrivals>,
    start: Instant,
    /// Last clock reading. In a closed loop, this reading is both the end of one request and the start of the next.
    last: Instant,
    ios_left: u64,
    pub(super) verified_bytes: u64,
}

/// Intended and actual start times of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub(super) intended: Instant,
    pub(super) sent: Instant,
}

impl<'a> Meter<'a> {
    pub(super) fn new(shared: &'a Shared, worker: u32) -> Result<Self> {
        let start = now();
        let spec = &shared.spec;
        let arrivals = Arrivals::new(spec.arrivals, spec.rate, worker, spec.threads, spec.seed)?;
        Ok(Self {
            shared,
            tally: &shared.tallies[worker as usize],
            total: Total::default(),
            io: Histogram::default(),
            entry: Histogram::default(),
            service: arrivals.is_some().then(Histogram::default),
            arrivals,
            start,
            last: start,
            ios_left: spec.io_limit.unwrap_or(u64::MAX),
            verified_bytes: 0,
        })
    }

    /// Sets the start time, which all workers share.
    pub(super) fn begin_at(&mut self, start: Instant) {
        (self.start, self.last) = (start, start);
    }

    /// Reads the clock. Call it after work between two requests, so that the next request's latency does not include
    /// that work.
    pub(super) fn tick(&mut self) -> Instant {
        self.last = now();
        self.last
    }

    /// Returns the last clock reading.
    pub(super) fn last(&self) -> Instant {
        self.last
    }

    /// Returns true if the phase was stopped or this worker has reached its request limit.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.ios_left == 0 || self.shared.is_stopped()
    }

    pub(super) fn is_open(&self) -> bool {
        self.arrivals.is_some()
    }

    /// Takes the next request of an open loop if its start time is not after `at`. Otherwise, returns that start time
    /// as the error. In a closed loop, a request is always due.
    pub(super) fn due(&mut self, at: Instant) -> std::result::Result<Begun, Option<Instant>> {
        let Some(arrivals) = &mut self.arrivals else { return Ok(Begun { intended: self.last, sent: self.last }) };
        match self.start.checked_add(arrivals.peek()) {
            Some(intended) if intended <= at => {
                arrivals.take();
                Ok(Begun { intended, sent: at })
            }
            later => Err(later),
        }
    }

    /// Starts the next request: immediately in a closed loop, at its intended time in an open loop. Returns `None` if
    /// the worker must stop.
    #[inline]
    pub(super) fn begin(&mut self) -> Option<Begun> {
        if self.is_over() {
            return None;
        }
        if self.arrivals.is_none() {
            return Some(Begun { intended: self.last, sent: self.last });
        }
        let at = self.tick();
        match self.due(at) {
            Ok(begun) => Some(begun),
            Err(None) => None,
            Err(Some(later)) => {
                let shared = self.shared;
                wait_until(later, &|| shared.is_stopped()).then_some(())?;
                let at = self.tick().max(later);
                self.due(at).ok()
            }
        }
    }

    /// Counts a read or write that ended at `at`.
    #[inline]
    pub(super) fn io_done(&mut self, begun: Begun, at: Instant, bytes: u64) {
        self.last = at;
        self.io.record(at.saturating_duration_since(begun.intended));
        if let Some(service) = &mut self.service {
            service.record(at.saturating_duration_since(begun.sent));
        }
        self.ios_left -= 1;
        self.total.ios += 1;
        self.total.bytes += bytes;
        self.tally.ios.store(self.total.ios, Ordering::Relaxed);
        self.tally.bytes.store(self.total.bytes, Ordering::Relaxed);
    }

    /// Counts a completed file or folder that was started at `began`.
    pub(super) fn entry_done(&mut self, began: Instant) {
        let at = self.tick();
        self.entry.record(at.saturating_duration_since(began));
        self.total.entries += 1;
        self.tally.entries.store(self.total.entries, Ordering::Relaxed);
    }

    /// Counts a completed call of a metadata phase as one entry. The call also counts towards the request limit.
    pub(super) fn call_done(&mut self, begun: Begun) {
        let at = self.tick();
        if let Some(service) = &mut self.service {
            service.record(at.saturating_duration_since(begun.sent));
        }
        self.entry.record(at.saturating_duration_since(begun.intended));
        self.ios_left -= 1;
        self.total.entries += 1;
        self.tally.entries.store(self.total.entries, Ordering::Relaxed);
    }

    /// Returns the number of reads or writes that this worker may still send.
    pub(super) fn ios_left(&self) -> u64 {
        self.ios_left
    }

    pub(super) fn reached_io_limit(&self) -> bool {
        self.ios_left == 0
    }
}
