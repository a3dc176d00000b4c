// SPDX-License-Identifier: Apache-2.0
//! Content that was read from an object: the whole object, or ranges of it.

use bytes::Bytes;
use penstock_codec::{Codec, GzipCheck, decompress_into_checked, restore_transposed};
use penstock_types::{ByteRange, Error, Result};

use super::format::Framing;
use penstock_dataset::record_index::Span;

/// Ranges of an object to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Ascending ranges that do not touch each other. `None` for the whole object.
    pub ranges: Option<Vec<ByteRange>>,
    /// Total size of the ranges in bytes.
    pub bytes: u64,
}

/// Bytes that were read from an object.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// The whole object, as stored.
    Whole(Bytes),
    /// The whole object, as a transposed copy from the node cache.
    Planes(Bytes),
    /// Ranges as (offset, bytes), in ascending order.
    Ranges(Vec<(u64, Bytes)>),
}

/// States how gzip's own CRC-32 is verified. Verifying it takes a second pass over the bytes, so it is not verified if
/// every record has a checksum of its own.
pub(super) fn gzip_check(framing: &dyn Framing) -> GzipCheck {
    if framing.checks_itself() { GzipCheck::SizeOnly } else { GzipCheck::Full }
}

impl Content {
    /// Returns the stored bytes of a span. Returns `None` if these bytes were not read.
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

    /// Decompresses a whole object into `out`. Returns an error if the result has more than `limit` bytes.
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
            Self::Ranges(_) => {
                Err(Error::bug(format!("ranges of {place}, which is compressed, cannot be decompressed")))
            }
        }
    }
}
