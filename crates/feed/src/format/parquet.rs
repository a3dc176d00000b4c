// SPDX-License-Identifier: Apache-2.0
//! Parquet format: a record is a row. Its values are named by column path (for example, `image.bytes`). In each row
//! group, the requested columns are decoded from the first to the last requested row. If this takes too much memory or
//! fails, the columns are decoded in smaller pieces.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::ops::Range;

use bytes::Bytes;
use penstock_record::parquet::footer::{columns_of_end, footer_len, rows_of_end};
use penstock_record::parquet::{Element, Table as File, Values};
use penstock_types::{Error, Result};

use super::{Each, EachRow, Framing, Record, RecordId, Table, TrailerCount};
use crate::value::nested_lists::Nested;
use crate::value::{Array, Value};
use penstock_dataset::record_index::Span;

/// Maximum decoded size, in bytes, of the requested rows of a row group that are decoded in one piece. If they are
/// larger, they are decoded in groups of `STEP` requested rows.
const AT_ONCE: u64 = 256 << 20;
const STEP: usize = 1024;

#[derive(Debug)]
pub(super) struct Parquet;

impl Framing for Parquet {
    fn spans(&self, _content: &[u8], place: &str, _spans: &mut Vec<Span>) -> Result<()> {
        Err(Error::bug(format!("{place} is a table")))
    }

    fn read(&self, _bytes: &[u8], _head: &[u8], id: RecordId<'_>, _each: Each<'_>) -> Result<()> {
        Err(Error::bug(format!("{} is a table", id.place)))
    }

    fn is_table(&self) -> bool {
        true
    }

    fn table(&self, content: Bytes, place: &str) -> Result<Box<dyn Table>> {
        Ok(Box::new(Rows { file: File::open(content, place)?, place: place.to_owned() }))
    }

    fn count_of_end(&self, end: &[u8], size: u64, place: &str) -> Result<TrailerCount> {
        let footer = footer_len(end, size, place)?;
        if footer > end.len() as u64 {
            return Ok(TrailerCount::Wants(footer));
        }
        rows_of_end(end, size, place).map(TrailerCount::Count)
    }

    fn columns_of_end(&self, end: &[u8], size: u64, place: &str) -> Result<Option<Vec<String>>> {
        columns_of_end(end, size, place).map(Some)
    }
}

struct Rows {
    file: File,
    place: String,
}

/// Decoded columns of a range of rows.
struct Piece {
    first: u64,
    /// Decoded columns, as (column number in the file, values).
    columns: Vec<(usize, Values)>,
}

impl Rows {
    /// Decodes columns of a range of rows. An error includes the number of the column that could not be decoded.
    fn load(&self, columns: &[usize], rows: Range<u64>, limit: u64) -> std::result::Result<Piece, (usize, Error)> {
        let (mut left, mut found) = (usize::try_from(limit).unwrap_or(usize::MAX), Vec::new());
        for &column in columns {
            let values = self.file.read_nulls(column, rows.clone(), left).map_err(|error| (column, error))?;
            left = left.saturating_sub(values.data.len());
            found.push((column, values));
        }
        Ok(Piece { first: rows.start, columns: found })
    }

    fn give(&self, piece: &Piece, records: &[u64], from: usize, limit: u64, each: EachRow<'_>) {
        for (at, &row) in records.iter().enumerate() {
            let cells = Cells { rows: self, piece, row, limit, alone: OnceCell::new() };
            each(from + at, Ok(&cells));
        }
    }

    /// Passes the requested records of one row group to `each`. `from` is the index of the group's first requested
    /// record among all requested records.
    fn group(&self, records: &[u64], columns: &[usize], from: usize, limit: u64, each: EachRow<'_>) {
        let over = |records: &[u64]| records[0]..records[records.len() - 1] + 1;
        if let Ok(piece) = self.load(columns, over(records), limit.min(AT_ONCE)) {
            return self.give(&piece, records, from, limit, each);
        }
        for (step, some) in records.chunks(STEP).enumerate() {
            let from = from + step * STEP;
            if let Ok(piece) = self.load(columns, over(some), limit.min(AT_ONCE)) {
                self.give(&piece, some, from, limit, each);
                continue;
            }
            for (at, &row) in some.iter().enumerate() {
                match self.load(columns, row..row + 1, limit) {
                    Ok(piece) => self.give(&piece, &[row], from + at, limit, each),
                    Err((column, error)) => {
                        // To read a list, all earlier rows of the row group must be read. The later rows therefore
                        // cannot be read either.
                        if matches!(error, Error::Corrupt { .. }) && !self.file.columns()[column].lists.is_empty() {
                            let first = from + at;
                            let rest = records.len() - (step * STEP + at);
                            (first..first + rest).for_each(|at| each(at, Err(error.clone())));
                            return;
                        }
                        each(from + at, Err(error));
                    }
                }
            }
        }
    }
}

impl Table for Rows {
    fn records(&self) -> u64 {
        self.file.rows()
    }

    fn each(&self, records: &[u64], parts: &[&[String]], limit: u64, each: EachRow<'_>) {
        let column = |names: &&[String]| names.iter().find_map(|name| self.file.column(name));
        let mut columns: Vec<usize> = parts.iter().filter_map(column).collect();
        columns.sort_unstable();
        columns.dedup();
        let mut from = 0;
        for bounds in self.file.groups().windows(2) {
            let len = records[from..].partition_point(|&record| record < bounds[1]);
            if len > 0 {
                self.group(&records[from..from + len], &columns, from, limit, each);
                from += len;
            }
        }
    }

    fn time(&self, name: &str) -> Option<&str> {
        self.file.columns()[self.file.column(name)?].time.as_deref()
    }
}

/// A row of the table, as a record.
struct Cells<'a> {
    rows: &'a Rows,
    piece: &'a Piece,
    row: u64,
    limit: u64,
    /// Columns that were not requested in advance. They are decoded for this row only.
    alone: OnceCell<Vec<OnceCell<Result<Values>>>>,
}

impl Record for Cells<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let Some(column) = self.rows.file.column(name) else { return Ok(None) };
        if let Some((_, values)) = self.piece.columns.iter().find(|(number, _)| *number == column) {
            return self.cell(column, values, self.piece.first).map(Some);
        }
        let alone = self.alone.get_or_init(|| self.rows.file.columns().iter().map(|_| OnceCell::new()).collect());
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let values = alone[column].get_or_init(|| self.rows.file.read_nulls(column, self.row..self.row + 1, limit));
        self.cell(column, values.as_ref().map_err(Clone::clone)?, self.row).map(Some)
    }

    fn takes_defaults(&self) -> bool {
        true
    }

    fn names(&self) -> Vec<String> {
        self.rows.file.columns().iter().map(|column| column.name.clone()).collect()
    }
}

impl Cells<'_> {
    /// Returns this row's value of a column. `first` is the number of the first row in `values`.
    fn cell<'a>(&self, column: usize, values: &'a Values, first: u64) -> Result<Value<'a>> {
        let column = &self.rows.file.columns()[column];
        let (place, at) = (&self.rows.place, (self.row - first) as usize);
        let is_list = !column.lists.is_empty();
        if values.nulls.binary_search(&self.row).is_ok() {
            if !is_list {
                return Ok(Value::Null);
            }
            return Err(Error::mismatch(place.as_str(), format!("column `{}` contains a null", column.name)));
        }
        let Ok(element) = column.element else {
            return Err(Error::bug("a column without a supported element type was decoded"));
        };
        let lost =
            || Error::corrupt(place.as_str(), format!("is damaged Parquet: column `{}` is truncated", column.name));
        // For lists, follow the offsets of each level to find the range of the row's values.
        let (mut from, mut to, mut ends) = (at, at + 1, Vec::new());
        for (level, starts) in std::iter::once(&values.rows).chain(&values.inner).take(column.lists.len()).enumerate() {
            let bounds = starts.get(from..=to).ok_or_else(lost)?;
            (from, to) = (bounds[0], bounds[bounds.len() - 1]);
            if level > 0 {
                ends.push(bounds[1..].iter().map(|end| end - from).collect());
            }
        }
        let string = |at: usize| {
            let range = match element {
                Element::Fixed(len) => at * len..(at + 1) * len,
                _ => *values.strings.get(at)?..*values.strings.get(at + 1)?,
            };
            values.data.get(range)
        };
        let value = match element {
            Element::Scalar(dtype) => {
                let bytes = values.data.get(from * dtype.size()..to * dtype.size()).ok_or_else(lost)?;
                let (shape, bytes) = (if is_list { vec![to - from] } else { Vec::new() }, Cow::Borrowed(bytes));
                let array = Array { dtype, shape, bytes };
                if is_list { Value::List(array) } else { Value::Array(array) }
            }
            _ if is_list => {
                let strings: Option<Vec<&[u8]>> = (from..to).map(string).collect();
                Value::Strings(strings.ok_or_else(lost)?)
            }
            _ if column.text => Value::Text(Cow::Borrowed(string(at).ok_or_else(lost)?)),
            _ => Value::Bytes(Cow::Borrowed(string(at).ok_or_else(lost)?)),
        };
        let value = match ends.is_empty() {
            true => value,
            false => Value::Nested(Nested { ends, items: Box::new(value) }),
        };
        let is_null = values.empty.binary_search(&self.row).is_ok();
        Ok(if is_null { Value::NullAs(Box::new(value)) } else { value })
    }
}
