// SPDX-License-Identifier: Apache-2.0
//! Offset cache: stores the positions of records in large objects that have no index.
//!
//! When an object with framed records is first read completely, the offsets of its records are stored. From the next
//! epoch on, the object is read in parts. If an object consists of a header and very many rows, the row offsets are
//! computed from the header before the first epoch. The cache is only in memory and lives as long as its source. The
//! source pins the versions of its objects.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::format::HeadRows;
use penstock_dataset::record_index::Span;

/// Minimum object size in bytes. Smaller objects are always read completely.
const MIN_BYTES: u64 = 8 << 20;

/// Maximum number of objects in the dataset. For a larger dataset, the cache stores nothing.
const MAX_OBJECTS: usize = 1 << 16;

/// Maximum memory for all offsets, in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// Positions of the records of one object.
#[derive(Debug)]
enum Layout {
    Spans(Box<[Span]>),
    /// Rows of equal size, and the object's bytes before the first row.
    Rows(HeadRows, Bytes),
}

/// Cache of the record offsets of each object (see the module documentation).
#[derive(Debug)]
pub(crate) struct OffsetCache {
    /// One cell per object. Empty if the dataset has too many objects.
    layouts: Box<[OnceLock<Layout>]>,
    bytes: AtomicU64,
}

impl OffsetCache {
    /// Creates a cache for a dataset of `objects` objects.
    pub fn new(objects: usize) -> Self {
        let objects = if objects <= MAX_OBJECTS { objects } else { 0 };
        Self { layouts: (0..objects).map(|_| OnceLock::new()).collect(), bytes: AtomicU64::new(0) }
    }

    /// Stores the positions of all records of an object of `size` bytes. Stores nothing if the positions would exceed
    /// the memory limit.
    pub fn note(&self, object: u64, size: u64, spans: &[Span]) {
        if size >= MIN_BYTES && spans.len() >= 2 {
            self.keep(object, size_of_val(spans) as u64, || Layout::Spans(spans.into()));
        }
    }

    /// Stores the positions of an object's rows, and the header. `first` are the object's first bytes.
    pub fn note_rows(&self, object: u64, rows: HeadRows, first: &[u8]) {
        if let Some(head) = first.get(..rows.head as usize) {
            self.keep(object, rows.head, || Layout::Rows(rows, Bytes::copy_from_slice(head)));
        }
    }

    fn keep(&self, object: u64, bytes: u64, layout: impl FnOnce() -> Layout) {
        let Some(cell) = self.layouts.get(object as usize).filter(|cell| cell.get().is_none()) else { return };
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > MAX_BYTES || cell.set(layout()).is_err() {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    fn layout(&self, object: u64) -> Option<&Layout> {
        self.layouts.get(object as usize)?.get()
    }

    /// Returns the position of a record. Returns `None` if it is not stored.
    pub fn span(&self, object: u64, record: u64) -> Option<Span> {
        match self.layout(object)? {
            Layout::Spans(spans) => spans.get(record as usize).copied(),
            Layout::Rows(rows, _) => rows.span(record),
        }
    }

    /// Returns the object's bytes before its first row. Returns `None` if they are not stored.
    pub fn head(&self, object: u64) -> Option<&[u8]> {
        match self.layout(object)? {
            Layout::Spans(_) => None,
            Layout::Rows(_, head) => Some(head),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_known_and_has_bounds() {
        let spans = |count: u64| (0..count).map(|at| Span { offset: at, len: 1, crc: 0 }).collect::<Vec<Span>>();
        let learned = OffsetCache::new(3);
        learned.note(0, MIN_BYTES, &spans(3));
        assert_eq!((learned.span(0, 2), learned.span(0, 3)), (Some(spans(3)[2]), None));
        learned.note(0, MIN_BYTES, &spans(2));
        assert!(learned.span(0, 2).is_some(), "an object is learned of once");
        learned.note(1, MIN_BYTES - 1, &spans(3));
        learned.note(1, MIN_BYTES, &spans(1));
        learned.note(1, MIN_BYTES, &spans(MAX_BYTES / size_of::<Span>() as u64));
        assert_eq!(learned.span(1, 0), None);
        learned.note(1, MIN_BYTES, &spans(2));
        assert!(learned.span(1, 1).is_some(), "what was too much takes no room");
        learned.note(3, MIN_BYTES, &spans(2));
        assert_eq!(OffsetCache::new(MAX_OBJECTS + 1).span(0, 0), None);
    }

    #[test]
    fn rows_are_noted_with_their_head() {
        let learned = OffsetCache::new(2);
        let rows = HeadRows { head: 3, row: 4, count: 5 };
        learned.note_rows(0, rows, b"headrows");
        assert_eq!((learned.head(0), learned.span(0, 4)), (Some(&b"hea"[..]), rows.span(4)));
        assert_eq!((rows.span(4).unwrap().range(), learned.span(0, 5)), (19..23, None));
        learned.note_rows(1, rows, b"he");
        assert_eq!((learned.head(1), learned.span(1, 0)), (None, None));
    }
}
