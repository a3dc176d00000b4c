// SPDX-License-Identifier: Apache-2.0
//! Timing: measures why the consumer waited for batches, and for how long the decoding threads were busy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Timestamps of one object, from its request to its decoded rows.
#[derive(Debug, Clone, Copy)]
pub struct Trace {
    sent: Instant,
    first_byte: Instant,
    fetched: Instant,
    pub began: Instant,
    pub inflated: Instant,
    pub done: Instant,
}

impl Trace {
    pub fn fetched(sent: Instant, first_byte: Instant, fetched: Instant) -> Self {
        Self { sent, first_byte, fetched, began: fetched, inflated: fetched, done: fetched }
    }
}

/// Returns the effective start of the transfer of several parts. It is the end of the last part minus the total time in
/// which at least one part was being transferred. All other time counts as latency, for example waiting for a response.
pub(crate) fn first_byte_of(parts: &mut [(Instant, Instant)], sent: Instant) -> Instant {
    parts.sort_unstable();
    let (mut flowing, mut until) = (Duration::ZERO, sent);
    for &(first_byte, done) in parts.iter() {
        flowing += done.saturating_duration_since(first_byte.max(until));
        until = until.max(done);
    }
    until.checked_sub(flowing).unwrap_or(sent)
}

/// Time for which the consumer waited for batches, by class. The class of a moment is the state, at that moment, of the
/// last object that the batch needed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// The object was requested, but no byte had arrived. Includes back-off after throttling.
    pub first_byte: Duration,
    /// The object's bytes were arriving.
    pub transfer: Duration,
    /// The object waited for a free decoding thread.
    pub queue: Duration,
    /// The object was being decompressed.
    pub inflate: Duration,
    /// The object's records were being checked and copied.
    pub decode: Duration,
    /// The object was not requested yet, or the batch was being delivered.
    pub other: Duration,
    /// Sum of all classes.
    pub total: Duration,
}

impl Waits {
    /// Adds the wait for a batch from `from` to `to`. `trace` contains the timestamps of the last object that the batch
    /// needed.
    pub(crate) fn attribute(&mut self, from: Instant, to: Instant, trace: Option<&Trace>) {
        let total = to.saturating_duration_since(from);
        self.total += total;
        let Some(trace) = trace else {
            self.other += total;
            return;
        };
        let overlap = |a: Instant, b: Instant| b.min(to).saturating_duration_since(a.max(from));
        let parts = [
            overlap(trace.sent, trace.first_byte),
            overlap(trace.first_byte, trace.fetched),
            overlap(trace.fetched, trace.began),
            overlap(trace.began, trace.inflated),
            overlap(trace.inflated, trace.done),
        ];
        self.first_byte += parts[0];
        self.transfer += parts[1];
        self.queue += parts[2];
        self.inflate += parts[3];
        self.decode += parts[4];
        self.other += total.saturating_sub(parts.iter().sum());
    }
}

/// Time for which the decoding threads were busy, summed over all threads.
#[derive(Debug, Default)]
pub struct Busy {
    inflate: AtomicU64,
    decode: AtomicU64,
}

impl Busy {
    pub(crate) fn add(&self, trace: &Trace) {
        let nanoseconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_nanos() as u64;
        self.inflate.fetch_add(nanoseconds(trace.began, trace.inflated), Ordering::Relaxed);
        self.decode.fetch_add(nanoseconds(trace.inflated, trace.done), Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Self {
        let copy = |value: &AtomicU64| AtomicU64::new(value.load(Ordering::Relaxed));
        Self { inflate: copy(&self.inflate), decode: copy(&self.decode) }
    }

    /// Time spent on decompression.
    pub fn inflate(&self) -> Duration {
        Duration::from_nanos(self.inflate.load(Ordering::Relaxed))
    }

    /// Time spent on finding, checking and copying records.
    pub fn decode(&self) -> Duration {
        Duration::from_nanos(self.decode.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use penstock_types::now;

    #[test]
    fn parts_that_waited_for_one_another_flowed_no_longer_than_their_bytes_came() {
        let start = now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let ms = |parts: &mut [(Instant, Instant)]| first_byte_of(parts, start).duration_since(start).as_millis();
        assert_eq!(ms(&mut [(at(10), at(30))]), 10);
        // Three sequential parts, each with 10 ms of latency and 20 ms of transfer.
        assert_eq!(ms(&mut [(at(10), at(30)), (at(40), at(60)), (at(70), at(90))]), 30);
        // Concurrent parts in any order; one is transferred within the time of another.
        assert_eq!(ms(&mut [(at(12), at(60)), (at(10), at(70)), (at(20), at(30))]), 10);
        assert_eq!(ms(&mut []), 0);
    }

    #[test]
    fn a_wait_is_parted_without_rest() {
        let start = now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let trace =
            Trace { sent: at(0), first_byte: at(10), fetched: at(30), began: at(35), inflated: at(60), done: at(70) };
        let mut waits = Waits::default();
        waits.attribute(at(5), at(72), Some(&trace));
        let ms = |d: Duration| d.as_millis();
        assert_eq!(
            [waits.first_byte, waits.transfer, waits.queue, waits.inflate, waits.decode, waits.other, waits.total]
                .map(ms),
            [5, 20, 5, 25, 10, 2, 67]
        );
        waits.attribute(at(100), at(103), Some(&trace));
        assert_eq!(ms(waits.other), 5);
    }
}
