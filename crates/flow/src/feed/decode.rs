// SPDX-License-Identifier: Apache-2.0
//! From the stored bytes of an object to rows of batches: inflate, frame, check, copy once.

use std::time::Instant;

use penstock_codec::{Codec, GzipCheck, inflate_into_checked};
use penstock_record::example::read_feature_into;
use penstock_record::tfrecord::Frames;
use penstock_types::{Error, Result, grouped, now};

use super::plan::Want;
use super::slot::{Field, Slot};

/// An object to decode.
pub(crate) struct Object<'a> {
    pub place: &'a dyn Fn() -> String,
    pub codec: Codec,
    pub stored: &'a [u8],
    /// Records that it must hold, by the counts the order was made from.
    pub records: u64,
    /// Bytes that it may inflate to.
    pub limit: u64,
}

/// Decodes what is wanted of an object into its rows, and says when it was inflated. `slot` gives the slot of a batch;
/// no other call may write to the same rows at the same time.
pub(crate) fn decode<'s>(
    object: &Object<'_>,
    wants: &[Want],
    fields: &[Field],
    slot: &dyn Fn(u64) -> Option<&'s Slot>,
    scratch: &mut Vec<u8>,
) -> Result<Instant> {
    let place = (object.place)();
    if object.stored.is_empty() {
        return Err(Error::corrupt(place, "is empty (0 bytes) where records were expected"));
    }
    let content = match object.codec {
        Codec::None => object.stored,
        // Every record's CRC-32C is checked below: gzip's CRC-32 of the same bytes would be one pass too many.
        codec => {
            inflate_into_checked(codec, object.stored, scratch, object.limit, GzipCheck::SizeOnly, &place)?;
            scratch.as_slice()
        }
    };
    let inflated = now();
    let mut sorted: Vec<&Want> = wants.iter().collect();
    sorted.sort_unstable_by_key(|want| want.record);
    let mut sorted = sorted.into_iter().peekable();
    let mut found = 0u64;
    for frame in Frames::new(content, &place, true) {
        let frame = frame?;
        while let Some(want) = sorted.next_if(|want| want.record == found) {
            let slot = slot(want.batch).ok_or_else(|| Error::bug(format!("batch {} has no slot", want.batch)))?;
            for (seat, field) in fields.iter().enumerate() {
                // SAFETY: the plan names each row of each batch once, and batches are delivered after their last row.
                let row = unsafe { slot.row(seat, want.row as usize) };
                read_feature_into(frame.payload, &field.name, &field.spec, row, &place)
                    .map_err(|error| in_record(error, found))?;
            }
        }
        found += 1;
    }
    if found != object.records {
        return Err(Error::corrupt(
            place,
            format!(
                "holds {} records where its count says {}: the dataset's objects differ, or changed since they were counted",
                grouped(found),
                grouped(object.records)
            ),
        ));
    }
    Ok(inflated)
}

/// Says which record an error is in.
fn in_record(error: Error, record: u64) -> Error {
    match error {
        Error::Corrupt { place, problem } => Error::Corrupt { place: format!("{place} record {record}"), problem },
        other => other,
    }
}
