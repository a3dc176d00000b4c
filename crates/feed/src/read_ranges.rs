// SPDX-License-Identifier: Apache-2.0
//! Byte ranges of an object that contain the records for a batch. If ranges do not pay off, the whole object is read.
//!
//! Reading ranges requires the positions of the records (from an index, or computed), and an object that is not
//! compressed. Nearby ranges are merged if the gap between them costs less than another request.

use super::batch_plan::RowRequest;
use super::source::Source;
use penstock_codec::Codec;
use penstock_dataset::record_index::Span;
use penstock_types::ByteRange;

use super::object_content::Reads;

/// Maximum gap, in bytes, that is read and discarded. At 90 MB/s per connection, a request latency of 20 ms corresponds
/// to 1.8 MB. The limit is lower, so that a typical mix of records discards fewer bytes than it uses.
const GAP: u64 = 512 << 10;

/// If the records need at least this percentage of an object, the whole object is read, in one request or in concurrent
/// parts.
const WHOLE_FROM: u64 = 75;

impl Reads {
    /// Returns a read of the whole object.
    pub fn whole(source: &Source, object: u64) -> Self {
        Self { ranges: None, bytes: source.entry(object).size }
    }

    /// Returns the reads of the ranges that these records need. If ranges do not pay off, returns a read of the whole
    /// object.
    pub fn of(source: &Source, object: u64, wants: &[RowRequest]) -> Self {
        let whole = Self::whole(source, object);
        if source.codec(object) != Codec::None {
            return whole;
        }
        let locator = source.locator();
        let Some(mut spans) = wants.iter().map(|want| locator.span(object, want.record)).collect::<Option<Vec<Span>>>()
        else {
            return whole;
        };
        if source.framing().needs_head() && locator.head(object).is_none() {
            let Some(first) = locator.span(object, 0) else { return whole };
            spans.push(Span { offset: 0, len: first.offset, crc: 0 });
        }
        spans.sort_unstable_by_key(|span| span.offset);
        let mut ranges: Vec<ByteRange> = Vec::new();
        for span in spans.iter().filter(|span| span.len > 0) {
            match ranges.last_mut() {
                Some(last) if span.offset <= last.start + last.len + GAP => {
                    last.len = last.len.max(span.offset + span.len - last.start);
                }
                _ => ranges.push(ByteRange::new(span.offset, span.len)),
            }
        }
        let bytes: u64 = ranges.iter().map(|range| range.len).sum();
        if bytes * 100 >= whole.bytes * WHOLE_FROM { whole } else { Self { ranges: Some(ranges), bytes } }
    }
}
