// SPDX-License-Identifier: Apache-2.0
//! Record locator: finds the byte range of a record in its object, and reports whether individual records of an object
//! can be read.
//!
//! A byte range comes from one of three sources, in order of preference: the dataset's index, a computation (for
//! fixed-size records), or the offsets stored when the object was read before. Ranges can be read only from objects
//! that are not compressed.

use penstock_codec::Codec;
use penstock_dataset::record_index::Span;

use super::source::Source;

/// Locates the records of a source.
#[derive(Clone, Copy)]
pub(crate) struct RecordLocator<'a> {
    source: &'a Source,
}

impl Source {
    /// Returns the locator of this source's records.
    pub(crate) fn locator(&self) -> RecordLocator<'_> {
        RecordLocator::new(self)
    }
}

impl<'a> RecordLocator<'a> {
    pub fn new(source: &'a Source) -> Self {
        Self { source }
    }

    /// Byte range of a record in its decompressed object. Returns `None` if the range is not known before the object is
    /// read.
    pub fn span(self, object: u64, record: u64) -> Option<Span> {
        let source = self.source;
        if source.framing().is_table() {
            return None;
        }
        let indexed = source.index().and_then(|index| index.span(object, record));
        let span = indexed.or_else(|| source.framing().span_of(record));
        let span = span.or_else(|| source.offsets().span(object, record))?;
        // An index file may be wrong, so a range beyond the object's end counts as unknown.
        let end = span.offset.checked_add(span.len)?;
        (self.is_compressed(object) || end <= source.entry(object).size).then_some(span)
    }

    /// Returns the object's bytes before its first record. Returns `None` if they are not stored.
    pub fn head(self, object: u64) -> Option<&'a [u8]> {
        self.source.offsets().head(object)
    }

    /// Stores the positions of the records of an object of `size` bytes that was read completely. Later epochs can then
    /// read the object in ranges.
    pub fn note(self, object: u64, size: u64, spans: &[Span]) {
        if !self.is_compressed(object) && self.source.blocks().is_none() {
            self.source.offsets().note(object, size, spans);
        }
    }

    /// True if single records of an object can be read.
    pub fn reads_ranges(self, object: u64) -> bool {
        !self.is_compressed(object) && self.span(object, 0).is_some()
    }

    /// True if single records of every object can be read.
    pub fn reads_ranges_of_all(self) -> bool {
        self.objects().all(|object| self.reads_ranges(object))
    }

    /// True if single records of every object can be read now, or after each object was read completely once.
    pub fn may_read_ranges_of_all(self) -> bool {
        let is_framed = self.source.blocks().is_none() && !self.source.framing().is_table();
        is_framed && self.objects().all(|object| !self.is_compressed(object))
    }

    fn is_compressed(self, object: u64) -> bool {
        self.source.codec(object) != Codec::None
    }

    fn objects(self) -> std::ops::Range<u64> {
        0..self.source.manifest().objects.len() as u64
    }
}
