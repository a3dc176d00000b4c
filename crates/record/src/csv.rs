// SPDX-License-Identifier: Apache-2.0
//! Delimited text (CSV, TSV) as RFC 4180 describes it: quoted cells may contain delimiters, quotes and line ends. Empty
//! lines are not rows.

use std::ops::Range;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use penstock_types::{Error, Result, with_separators};

/// Maximum number of cells in a row.
const MAX_CELLS: usize = 1 << 20;

/// Cells of a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cells {
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl Cells {
    /// Number of cells.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True if the row has no cells.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Content of a cell, without its quotes.
    pub fn get(&self, cell: usize) -> Option<&[u8]> {
        let start = if cell == 0 { 0 } else { *self.ends.get(cell - 1)? };
        self.text.get(start..*self.ends.get(cell)?)
    }
}

fn reader(delimiter: u8) -> Reader {
    ReaderBuilder::new().delimiter(delimiter).build()
}

/// Returns the byte range of each row. A range includes the line ends before and after its row. `content` must begin at
/// the start of a row.
pub fn rows(content: &[u8], delimiter: u8) -> impl Iterator<Item = Range<usize>> + use<'_> {
    let mut reader = reader(delimiter);
    // The reader (`csv-core`) removes a byte-order mark.
    let mut at = 0;
    let (mut text, mut ends) = (vec![0; 4096], vec![0; 256]);
    std::iter::from_fn(move || {
        let start = at;
        loop {
            // The cells are not used here, so each call overwrites the cells of the previous call.
            let (result, read, _, _) = reader.read_record(&content[at..], &mut text, &mut ends);
            at += read;
            match result {
                ReadRecordResult::Record => return Some(start..at),
                ReadRecordResult::End => return None,
                ReadRecordResult::InputEmpty | ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {}
            }
        }
    })
}

/// Splits a row into cells. `place` names the row in error messages.
///
/// # Errors
/// [`Error::Corrupt`] if a quote is not closed, or the row has more than 1,048,576 cells.
pub fn cells(row: &[u8], delimiter: u8, place: &str) -> Result<Cells> {
    let mut reader = reader(delimiter);
    let mut cells = Cells { text: vec![0; row.len().max(1)], ends: vec![0; 16] };
    let (mut at, mut written, mut ended) = (0, 0, 0);
    loop {
        let is_end = at == row.len();
        // At the end of the row, pass a line end: an empty input would complete even a row with an open quote.
        let input = if is_end { &b"\n"[..] } else { &row[at..] };
        let (result, read, wrote, ends) =
            reader.read_record(input, &mut cells.text[written..], &mut cells.ends[ended..]);
        (written, ended) = (written + wrote, ended + ends);
        if !is_end {
            at += read;
        }
        match result {
            ReadRecordResult::InputEmpty if is_end => {
                return Err(Error::corrupt(place, "has a quote that is not closed"));
            }
            ReadRecordResult::InputEmpty => {}
            ReadRecordResult::OutputFull => cells.text.resize(cells.text.len() * 2, 0),
            ReadRecordResult::OutputEndsFull if ended < MAX_CELLS => cells.ends.resize(cells.ends.len() * 2, 0),
            ReadRecordResult::OutputEndsFull => {
                let most = with_separators(MAX_CELLS as u64);
                return Err(Error::corrupt(place, format!("has more than {most} cells")));
            }
            ReadRecordResult::Record | ReadRecordResult::End => break,
        }
    }
    cells.text.truncate(written);
    cells.ends.truncate(ended);
    Ok(cells)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(content: &[u8]) -> Vec<Vec<String>> {
        let text = |cell: &[u8]| String::from_utf8_lossy(cell).into_owned();
        let row = |range: Range<usize>| {
            let cells = cells(&content[range], b',', "p").unwrap();
            (0..cells.len()).map(|cell| text(cells.get(cell).unwrap())).collect()
        };
        rows(content, b',').map(row).collect()
    }

    #[test]
    fn quoted_cells_may_contain_anything() {
        let content = b"\xef\xbb\xbfa,b\r\n\r\n\"x, \"\"y\"\"\nz\",2\n5\" pipe,\n,\n";
        let want = [["a", "b"], ["x, \"y\"\nz", "2"], ["5\" pipe", ""], ["", ""]];
        assert_eq!(parsed(content), want);
        assert_eq!(parsed(b""), Vec::<Vec<String>>::new());
        assert_eq!(parsed(b"a"), [["a"]]);
        assert_eq!(parsed(b"1,\"a\""), [["1", "a"]]);
        for damaged in [&b"\"a\nb"[..], b"1,\"", b"\"a\"\"\n"] {
            assert_eq!(rows(damaged, b',').count(), 1);
            let error = cells(damaged, b',', "p").unwrap_err().to_string();
            assert!(error.starts_with("p has a quote that is not closed"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn prop_rows_cover_any_bytes_and_agree_with_one_pass(content: Vec<u8>) {
            let ranges: Vec<_> = rows(&content, b',').collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            for range in ranges {
                let Ok(cells) = cells(&content[range.clone()], b',', "p") else {
                    prop_assert_eq!(range.end, content.len(), "only the last row can have a quote that is not closed");
                    continue;
                };
                prop_assert!(!cells.is_empty(), "{range:?}");
            }
        }

        #[test]
        fn prop_written_rows_are_read_back(
            table in prop::collection::vec(prop::collection::vec("[a,\" \n]{0,5}", 2..4), 0..6),
        ) {
            let quoted = |cell: &String| format!("\"{}\"", cell.replace('"', "\"\""));
            let lines: Vec<String> = table.iter().map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(",")).collect();
            prop_assert_eq!(parsed((lines.join("\n") + "\n").as_bytes()), table);
        }
    }
}
