// SPDX-License-Identifier: Apache-2.0
//! Where records lie in large objects that have no index, noted when an object is read for its records anyway: from the
//! next epoch on it is read in portions.
//!
//! Owns no file: what is learned lasts as long as its source, whose objects are pinned.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::format::Span;

/// Smaller objects are read whole in any case.
const LEAST_BYTES: u64 = 8 << 20;

/// More objects than this are not learned of.
const MOST_OBJECTS: usize = 1 << 16;

/// Bytes of memory for all that is learned.
const MOST_BYTES: u64 = 64 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Learned {
    /// By object; empty where there are too many.
    spans: Box<[OnceLock<Box<[Span]>>]>,
    bytes: AtomicU64,
}

impl Learned {
    /// Of so many objects.
    pub fn new(objects: usize) -> Self {
        let objects = if objects <= MOST_OBJECTS { objects } else { 0 };
        Self { spans: (0..objects).map(|_| OnceLock::new()).collect(), bytes: AtomicU64::new(0) }
    }

    /// Notes where all records of an object of `size` bytes lie. What there is no room for is not noted.
    pub fn note(&self, object: u64, size: u64, spans: &[Span]) {
        let Some(seat) = self.spans.get(object as usize) else { return };
        let bytes = size_of_val(spans) as u64;
        if size < LEAST_BYTES || spans.len() < 2 || seat.get().is_some() {
            return;
        }
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MOST_BYTES || seat.set(spans.into()).is_err() {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Where a record of an object lies, if that was noted.
    pub fn span(&self, object: u64, record: u64) -> Option<Span> {
        self.spans.get(object as usize)?.get()?.get(record as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_known_and_has_bounds() {
        let spans = |count: u64| (0..count).map(|at| Span { offset: at, len: 1, crc: 0 }).collect::<Vec<Span>>();
        let learned = Learned::new(3);
        learned.note(0, LEAST_BYTES, &spans(3));
        assert_eq!((learned.span(0, 2), learned.span(0, 3)), (Some(spans(3)[2]), None));
        learned.note(0, LEAST_BYTES, &spans(2));
        assert!(learned.span(0, 2).is_some(), "an object is learned of once");
        learned.note(1, LEAST_BYTES - 1, &spans(3));
        learned.note(1, LEAST_BYTES, &spans(1));
        learned.note(1, LEAST_BYTES, &spans(MOST_BYTES / size_of::<Span>() as u64));
        assert_eq!(learned.span(1, 0), None);
        learned.note(1, LEAST_BYTES, &spans(2));
        assert!(learned.span(1, 1).is_some(), "what was too much takes no room");
        learned.note(3, LEAST_BYTES, &spans(2));
        assert_eq!(Learned::new(MOST_OBJECTS + 1).span(0, 0), None);
    }
}
