// SPDX-License-Identifier: Apache-2.0
//! Looks up the value of a field in a record.

use penstock_types::{Error, Result};

use super::field::Field;
use super::format::{Record, RecordId};
use super::value::Value;

/// Name of a value that every record has: a seed for the sample. It depends only on the seed of the order, the epoch
/// and the position.
const SEED: &str = "__seed__";

/// Result of looking up the value of a field in a record.
pub(crate) struct Named<'a> {
    /// The first value that is not missing.
    pub found: Option<Value<'a>>,
    /// The first value that is null or an empty list.
    pub absent: Option<Value<'a>>,
}

/// Looks up the value of a field by the names of the record values from which the field can be read.
pub(crate) fn named<'a>(record: &'a dyn Record, id: &RecordId<'_>, key: u64, field: &Field) -> Result<Named<'a>> {
    let mut named = Named { found: None, absent: None };
    for name in field.parts() {
        let part = match record.part(name).map_err(|error| in_record(error, id))? {
            None if name == SEED => Some(Value::Int((key >> 1) as i64)),
            part => part,
        };
        match part {
            Some(part) if part.is_absent() => named.absent = named.absent.or(Some(part)),
            None => {}
            found => {
                named.found = found;
                break;
            }
        }
    }
    Ok(named)
}

/// Adds the record's index to an error.
pub(crate) fn in_record(error: Error, id: &RecordId<'_>) -> Error {
    match error {
        Error::Corrupt { place: _, problem } => {
            Error::Corrupt { place: format!("{} record {}", id.place, id.record), problem }
        }
        Error::Mismatch { place: _, problem } => {
            Error::Mismatch { place: format!("{} record {}", id.place, id.record), problem }
        }
        Error::Unsupported { what, by } => {
            let record = format!("({} record {})", id.place, id.record);
            Error::Unsupported { what: what.replace(&format!("({})", id.place), &record), by }
        }
        other => other,
    }
}
