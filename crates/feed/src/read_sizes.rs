// SPDX-License-Identifier: Apache-2.0
//! Sizes of reads: an object in one request or in parts.

use penstock_dataset::manifest::Entry;
use penstock_types::ByteRange;

/// An object above twice this is read in parts of this size, several at a time: one connection gives 50 to 90 MB/s on
/// the public clouds (reference: AWS and Azure performance guides), which is too little for one large object.
pub(super) const PART: u64 = 8 << 20;

/// An object of up to so many bytes is asked for in one request.
pub const LARGEST_AT_ONCE: u64 = 2 * PART;

/// Requests that reading the whole of an object of so many bytes takes.
pub fn requests_of(size: u64) -> u64 {
    if size <= LARGEST_AT_ONCE { 1 } else { size.div_ceil(PART) }
}

/// A stretch as it is asked for: an object of which all is wanted is asked for as a whole, and checked as one.
pub(super) fn asked(entry: &Entry, range: ByteRange) -> ByteRange {
    if range.start == 0 && range.len == entry.size { ByteRange::WHOLE } else { range }
}
