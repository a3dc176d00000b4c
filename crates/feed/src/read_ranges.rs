// SPDX-License-Identifier: Apache-2.0
//! Byte ranges of an object that the records of a batch need, or the whole object.
//!
//! Ranges need the positions of records (an index, or arithmetic) and an object that is stored uncompressed. Nearby
//! ranges are merged if the gap between them costs less than another request.

use super::batch_plan::RowRequest;
use super::source::Source;
use penstock_codec::Codec;
use penstock_dataset::record_index::Span;
use penstock_types::ByteRange;

use super::object_content::Reads;

/// Maximum gap that is read and discarded: at 90 MB/s per connection, 20 ms of request latency equal 1.8 MB. With half
/// a MiB, the discarded bytes stay below the requested ones on the usual mix.
const GAP: u64 = 512 << 10;

/// From this percentage of an object on, all of it is read: one request, or concurrent parts.
const WHOLE_FROM: u64 = 75;

impl Reads {
    /// The whole of an object.
    pub fn whole(source: &Source, object: u64) -> Self {
        Self { ranges: None, bytes: source.entry(object).size }
    }

    /// Ranges that these records of an object need.
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
