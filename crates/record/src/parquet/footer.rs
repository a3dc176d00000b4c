// SPDX-License-Identifier: Apache-2.0
//! Reads the end of a Parquet file: the length of its footer, its metadata, and its number of rows. Reads no page.

use ::parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use penstock_types::{Error, Result, with_separators};

use super::guarded;
use super::thrift::Input;

/// Size of the tail: the footer length and the magic bytes that follow the footer.
pub const TAIL: usize = 8;

/// Maximum footer size; a larger footer is rejected. The size grows with the number of column chunks (columns times row
/// groups); 64 MiB suffice for a million chunks.
const MAX_FOOTER: u64 = 64 << 20;

/// Maximum number of rows; a file that claims more is damaged. The limit ensures that totals over a large dataset fit
/// in 64 bits.
const MAX_ROWS: u64 = 1 << 40;

/// Reads the size of a file's footer, including the tail, from `end`, the last bytes of the file.
pub fn footer_len(end: &[u8], size: u64, place: &str) -> Result<u64> {
    let Some(tail) = end.last_chunk::<TAIL>() else {
        return Err(Error::corrupt(
            place,
            format!("is not a Parquet file: it has only {} bytes", with_separators(size)),
        ));
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
            format!(
                "is not a Parquet file, or is truncated: its last bytes are `{}` (want `PAR1`)",
                magic.escape_ascii()
            ),
        ));
    }
    if footer > len || footer > MAX_FOOTER {
        let (footer, len) = (with_separators(footer), with_separators(len));
        return Err(Error::corrupt(
            place,
            format!("is damaged Parquet: its footer has {footer} bytes, but the file has {len}"),
        ));
    }
    Ok(footer)
}

/// Parses the footer of a file. `end` holds the last bytes of the file, and must contain the whole footer.
pub fn metadata(end: &[u8], size: u64, place: &str) -> Result<ParquetMetaData> {
    let from = usize::try_from(footer_len(end, size, place)?).ok().and_then(|len| end.len().checked_sub(len));
    let footer = from.and_then(|from| end.get(from..end.len() - TAIL));
    let footer = footer.ok_or_else(|| Error::corrupt(place, "is damaged Parquet: its footer is truncated"))?;
    // Check the structure first, because the `parquet` crate allocates as many elements as a list claims to have.
    let mut walked = Input::new(footer);
    if let Err(problem) = walked.skip_struct() {
        return Err(Error::corrupt(place, format!("is damaged Parquet: its footer {problem}")));
    }
    guarded(place, || ParquetMetaDataReader::decode_metadata(footer)).map_err(|error| match error {
        // The structure of the footer is intact, so the error means that the `parquet` crate does not support its
        // content.
        Error::Corrupt { problem, .. } => {
            let problem = problem.trim_start_matches("is damaged Parquet: ");
            let what = format!("the footer of {place} ({problem})");
            Error::Unsupported { what, by: "the Parquet reader".to_owned() }
        }
        other => other,
    })
}

/// Reads the number of rows of a file. `end` holds the last bytes of the file, and must contain the whole footer.
pub fn rows_of_end(end: &[u8], size: u64, place: &str) -> Result<u64> {
    let metadata = metadata(end, size, place)?;
    let sum = metadata.row_groups().iter().try_fold(0u64, |sum, group| {
        u64::try_from(group.num_rows()).ok().and_then(|rows| sum.checked_add(rows)).filter(|sum| *sum <= MAX_ROWS)
    });
    sum.ok_or_else(|| Error::corrupt(place, "is damaged Parquet: the sum of its row groups is out of range"))
}

/// Reads the names and stored paths of a file's columns. `end` holds the last bytes of the file, and must contain the
/// whole footer.
pub fn columns_of_end(end: &[u8], size: u64, place: &str) -> Result<Vec<String>> {
    let columns = super::columns_of(&metadata(end, size, place)?);
    Ok(columns.into_iter().flat_map(|column| [column.name, column.path]).collect())
}
