// SPDX-License-Identifier: Apache-2.0
//! The end of a Parquet file: how long its footer is, and how many rows that says there are. Reads no page.

use ::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use penstock_types::{Error, Result, with_separators};

use super::guarded;
use super::thrift::Input;

/// The footer's length and the magic behind it.
pub const TAIL: usize = 8;

/// A footer above this is refused: it is a matter of columns times row groups, and 64 MiB are a million of them.
const MAX_FOOTER: u64 = 64 << 20;

/// A file that says it has more rows is damaged: what follows would not fit 64 bits over a large dataset.
const MAX_ROWS: u64 = 1 << 40;

/// How many of a file's last bytes are its footer, the tail included, by the last bytes of it.
pub fn footer_len(end: &[u8], size: u64, place: &str) -> Result<u64> {
    let Some(tail) = end.last_chunk::<TAIL>() else {
        return Err(Error::corrupt(place, format!("is no Parquet: it has {} bytes", with_separators(size))));
    };
    let ([l0, l1, l2, l3, magic @ ..], len) = (*tail, size);
    if &magic == b"PARE" {
        let what = format!("an encrypted file ({place})");
        return Err(Error::Unsupported { what, by: "the Parquet reader".to_owned() });
    }
    let footer = u64::from(u32::from_le_bytes([l0, l1, l2, l3])) + TAIL as u64;
    if &magic != b"PAR1" {
        return Err(Error::corrupt(
            place,
            format!("is no Parquet, or cut short: it ends in `{}`", magic.escape_ascii()),
        ));
    }
    if footer > len || footer > MAX_FOOTER {
        let (footer, len) = (with_separators(footer), with_separators(len));
        return Err(Error::corrupt(place, format!("is damaged Parquet: its footer has {footer} bytes of {len}")));
    }
    Ok(footer)
}

/// Parses the footer of the file that ends in `end`, which holds the footer.
pub fn metadata(end: &[u8], size: u64, place: &str) -> Result<ParquetMetaData> {
    let from = usize::try_from(footer_len(end, size, place)?).ok().and_then(|len| end.len().checked_sub(len));
    let footer = from.and_then(|from| end.get(from..end.len() - TAIL));
    let footer = footer.ok_or_else(|| Error::corrupt(place, "is damaged Parquet: its footer is cut"))?;
    // Walked first: the crate makes room for as many parts as a list states.
    let mut walked = Input::new(footer);
    if let Err(problem) = walked.skip_struct() {
        return Err(Error::corrupt(place, format!("is damaged Parquet: its footer {problem}")));
    }
    guarded(place, || ParquetMetaDataReader::decode_metadata(footer)).map_err(|error| match error {
        // The bytes are whole, as far as they can be followed: it is the crate that does not know what they say.
        Error::Corrupt { problem, .. } => {
            let problem = problem.trim_start_matches("is damaged Parquet: ");
            let what = format!("the footer of {place} ({problem})");
            Error::Unsupported { what, by: "the Parquet reader".to_owned() }
        }
        other => other,
    })
}

/// Rows of the file that ends in `end`, which holds the footer.
pub fn rows_of_end(end: &[u8], size: u64, place: &str) -> Result<u64> {
    let metadata = metadata(end, size, place)?;
    let sum = metadata.row_groups().iter().try_fold(0u64, |sum, group| {
        u64::try_from(group.num_rows()).ok().and_then(|rows| sum.checked_add(rows)).filter(|sum| *sum <= MAX_ROWS)
    });
    sum.ok_or_else(|| Error::corrupt(place, "is damaged Parquet: its row groups have no sum"))
}
