// SPDX-License-Identifier: Apache-2.0
//! Read sizes: decides whether an object is read in one request or in parts.

use penstock_dataset::manifest::Entry;
use penstock_types::ByteRange;

/// Part size in bytes. An object larger than two parts is read in concurrent parts, because one connection to a public
/// cloud reaches only 50 to 90 MB/s (source: AWS and Azure performance guides).
pub(super) const PART: u64 = 8 << 20;

/// Maximum size of an object that is read in one request, in bytes.
pub const MAX_AT_ONCE: u64 = 2 * PART;

/// Number of requests that are needed to read a whole object of `size` bytes.
pub fn requests_of(size: u64) -> u64 {
    if size <= MAX_AT_ONCE { 1 } else { size.div_ceil(PART) }
}

/// Returns the range to request. If `range` covers the whole object, requests the object without a range. The store can
/// then verify the object's checksum.
pub(super) fn asked(entry: &Entry, range: ByteRange) -> ByteRange {
    if range.start == 0 && range.len == entry.size { ByteRange::WHOLE } else { range }
}
