// SPDX-License-Identifier: Apache-2.0
//! What is read of an object for the records that are wanted of it: all of it, or ranges.
//!
//! Ranges need to know where records lie (an index, or arithmetic) and an object that is stored as it is. Neighbours are
//! read together where the gap between them costs less than another request would.

use bytes::Bytes;
use penstock_codec::{Codec, GzipCheck, decompress_into_checked, restore_transposed};
use penstock_types::{ByteRange, Error, Result};

use super::batch_plan::RowRequest;
use super::format::Framing;
use super::source::Source;
use penstock_dataset::record_index::Span;

/// A gap that is read and thrown away: at 90 MB/s a connection, 20 ms of a request's latency are 1.8 MB; half of that
/// keeps what is read for nothing below what is wanted on the usual mix.
const GAP: u64 = 512 << 10;

/// From this share of an object on, in percent, all of it is read: one request, or parts side by side.
const WHOLE_FROM: u64 = 75;

/// Ranges to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Ascending ranges that do not touch; `None` for the whole object.
    pub ranges: Option<Vec<ByteRange>>,
    /// Bytes in all.
    pub bytes: u64,
}

/// Bytes that were read.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// The whole object, as stored.
    Whole(Bytes),
    /// The whole object in planes, from the node's cache.
    Planes(Bytes),
    /// Ranges by where they begin, ascending.
    Ranges(Vec<(u64, Bytes)>),
}

/// How gzip's own CRC-32 is looked at: where every record's checksum is, it would be one pass too many over the same bytes.
pub(super) fn gzip_check(framing: &dyn Framing) -> GzipCheck {
    if framing.checks_itself() { GzipCheck::SizeOnly } else { GzipCheck::Full }
}

impl Content {
    /// The bytes of a span of the content as it is stored.
    pub fn slice(&self, span: &Span) -> Option<&[u8]> {
        let (start, bytes) = match self {
            Self::Whole(bytes) => (0, bytes),
            Self::Planes(_) => return None,
            Self::Ranges(ranges) => {
                let at = ranges.partition_point(|(start, _)| *start <= span.offset).checked_sub(1)?;
                (ranges[at].0, &ranges[at].1)
            }
        };
        let from = usize::try_from(span.offset - start).ok()?;
        bytes.get(from..from.checked_add(usize::try_from(span.len).ok()?)?)
    }

    /// Inflates an object that came whole into `out`: at most `limit` bytes.
    pub fn decompress_into(
        &self,
        codec: Codec,
        framing: &dyn Framing,
        out: &mut Vec<u8>,
        limit: u64,
        place: &str,
    ) -> Result<()> {
        match self {
            Self::Whole(stored) => decompress_into_checked(codec, stored, out, limit, gzip_check(framing), place),
            Self::Planes(planes) => restore_transposed(planes, out, limit, place),
            Self::Ranges(_) => Err(Error::bug(format!("ranges of {place}, which is compressed, were read"))),
        }
    }
}

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
