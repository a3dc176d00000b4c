// SPDX-License-Identifier: Apache-2.0
//! Parquet: reads rows of selected columns of one file in memory.
//!
//! Supports scalars, byte strings, fixed-size byte strings, lists of these types, and lists of lists. A column in a
//! struct is named by its path (`image.bytes`); the path of a list leaves out the two levels that the list adds. A null
//! list or string is read as empty. Any other null (a null scalar, or any null inside a list) is an error that names
//! the row. Decimals and 96-bit times are rejected.
//!
//! The `parquet` crate decodes values column by column, without Arrow. Pages are read by [`pages`], which enforces the
//! caller's memory limit. If the crate panics on a file, the file is reported as damaged.

mod codecs;
mod columns;
pub mod footer;
mod page_header;
mod pages;
mod thrift;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use ::parquet::data_type::DataType;
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use ::parquet::file::reader::ChunkReader;
use bytes::Bytes;
use penstock_types::{Error, Result, catch_panic, with_separators};

pub use columns::{Column, Element};
use columns::{describe, number_namesakes};
use pages::Pages;

/// Maximum number of rows that one call of the crate decodes. The memory limit is checked between calls.
const RUN: usize = 1024;

/// Approximate number of list levels that one call decodes; a call always decodes whole rows.
const LIST_RUN: usize = 64 << 10;

/// Values of one column in a range of rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// All values, concatenated, little-endian.
    pub data: Vec<u8>,
    /// For byte strings: the start offset of each value, then the end offset of the last one.
    pub strings: Vec<usize>,
    /// For lists: the index of each row's first item, then the total number of items. An item is a value or, in lists
    /// of lists, a list.
    pub rows: Vec<usize>,
    /// For lists of lists: one entry per level of inner lists, the outermost level first. An entry holds the index of
    /// each list's first item, then the total number of items.
    pub inner: Vec<Vec<usize>>,
    /// Numbers of the rows with a null that is not allowed, in ascending order, counted from the start of the file. The
    /// values of these rows are zero.
    pub nulls: Vec<u64>,
    /// Numbers of the rows with a null list or a null string, which is read as empty, in ascending order.
    pub empty: Vec<u64>,
}

impl Values {
    /// Size in bytes.
    pub fn size_bytes(&self) -> usize {
        let inner: usize = self.inner.iter().map(Vec::len).sum();
        let indexes = self.strings.len() + self.rows.len() + inner + self.nulls.len() + self.empty.len();
        self.data.len() + size_of::<u64>() * indexes
    }

    /// Start indices of the lists of a level.
    fn level(&mut self, level: usize) -> &mut Vec<usize> {
        if level == 0 { &mut self.rows } else { &mut self.inner[level - 1] }
    }

    /// Number of items read so far in the lists of a level.
    fn items(&self, level: usize, element: Element) -> usize {
        match (self.inner.get(level), element) {
            (Some(lists), _) => lists.len(),
            (None, Element::Bytes) => self.strings.len(),
            (None, Element::Scalar(dtype)) => self.data.len() / dtype.size(),
            (None, Element::Fixed(len)) => self.data.len() / len,
        }
    }

    /// Appends a byte string, unless the values would then exceed the memory limit.
    fn push(&mut self, bytes: &[u8], run: &Run<'_>) -> Result<()> {
        let need = self.data.len().saturating_add(bytes.len());
        if need > run.limit {
            return Err(run.over(need));
        }
        if need > self.data.capacity() {
            // Double the capacity, but not beyond the limit.
            let room = self.data.capacity().saturating_mul(2).min(run.limit).max(need) - self.data.len();
            self.data.try_reserve_exact(room).map_err(|_| run.over(need))?;
        }
        self.data.extend_from_slice(bytes);
        Ok(())
    }
}

/// A Parquet file in memory.
pub struct Table {
    file: Arc<Bytes>,
    metadata: ParquetMetaData,
    columns: Vec<Column>,
    /// First row of each row group, followed by the number of rows.
    groups: Vec<u64>,
    place: String,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("place", &self.place).field("columns", &self.columns).finish_non_exhaustive()
    }
}

impl Table {
    /// Parses the footer of the file `bytes`; `place` names the file in messages.
    pub fn open(bytes: Bytes, place: &str) -> Result<Self> {
        let metadata = footer::metadata(&bytes, bytes.len() as u64, place)?;
        let columns = columns_of(&metadata);
        let mut groups = vec![0u64];
        for group in metadata.row_groups() {
            let rows = u64::try_from(group.num_rows()).ok().and_then(|rows| rows.checked_add(*groups.last()?));
            groups.push(rows.ok_or_else(|| {
                Error::corrupt(place, "is damaged Parquet: the sum of its row groups is out of range")
            })?);
        }
        Ok(Self { file: Arc::new(bytes), metadata, columns, groups, place: place.to_owned() })
    }

    /// Columns of the file.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Index of the column with this name. If no column has this name, index of the column with this stored path.
    pub fn column(&self, name: &str) -> Option<usize> {
        let of_name = self.columns.iter().position(|column| column.name == name);
        of_name.or_else(|| {
            let mut of_path = (0..self.columns.len()).filter(|&at| self.columns[at].path == name);
            of_path.next().filter(|_| of_path.next().is_none())
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.groups.last().copied().unwrap_or(0)
    }

    /// First row of each row group, followed by the number of rows. A read within one group is cheapest.
    pub fn groups(&self) -> &[u64] {
        &self.groups
    }

    /// Reads `rows` of a column, at most `limit` bytes in total. Returns an error if a row contains a null that is not
    /// allowed.
    pub fn read(&self, column: usize, rows: Range<u64>, limit: usize) -> Result<Values> {
        let values = self.read_nulls(column, rows, limit)?;
        match values.nulls.first() {
            None => Ok(values),
            Some(row) => {
                let name = self.columns.get(column).map_or("", |column| column.name.as_str());
                let place = format!("column `{name}` of {}", self.place);
                Err(Error::corrupt(place, format!("is null in row {}", with_separators(*row))))
            }
        }
    }

    /// Like [`Table::read`], but reports rows with disallowed nulls in [`Values::nulls`] instead of returning an error.
    pub fn read_nulls(&self, column: usize, rows: Range<u64>, limit: usize) -> Result<Values> {
        let Some(Column { name, element, lists, .. }) = self.columns.get(column) else {
            return Err(Error::bug(format!("{} has no column {column}", self.place)));
        };
        let place = format!("column `{name}` of {}", self.place);
        let element = match element {
            Ok(element) => *element,
            Err(what) => {
                return Err(Error::Unsupported {
                    what: format!("{what} ({place})"),
                    by: "the Parquet reader".to_owned(),
                });
            }
        };
        if rows.start > rows.end || rows.end > self.rows() {
            return Err(Error::bug(format!("rows {rows:?} are outside {place}, which has {}", self.rows())));
        }
        let inner = vec![Vec::new(); lists.len().saturating_sub(1)];
        let mut values = Values { inner, ..Values::default() };
        for (group, bounds) in self.groups.windows(2).enumerate() {
            let wanted = rows.start.max(bounds[0])..rows.end.min(bounds[1]);
            if wanted.start < wanted.end {
                let within = wanted.start - bounds[0]..wanted.end - bounds[0];
                let run = Run { element, lists, first: bounds[0], rows: within, limit, place: &place };
                self.read_group(group, column, &run, &mut values)?;
            }
        }
        // Append the end offsets. The outermost level comes first, because its end offset is the number of lists of the
        // next level. If no rows were read, each level contains only its end offset.
        for level in 0..lists.len() {
            let items = values.items(level, element);
            values.level(level).push(items);
        }
        if element == Element::Bytes {
            values.strings.push(values.data.len());
        }
        Ok(values)
    }

    fn read_group(&self, group: usize, column: usize, run: &Run<'_>, values: &mut Values) -> Result<()> {
        let chunk = self.metadata.row_groups().get(group).and_then(|group| group.columns().get(column));
        let chunk =
            chunk.ok_or_else(|| Error::corrupt(run.place, "is damaged Parquet: a row group lacks the column"))?;
        let (descriptor, decoded) = (chunk.column_descr_ptr(), Arc::new(AtomicUsize::new(0)));
        let pages = Pages::new(self.file.clone(), chunk, run.limit, decoded.clone(), run.place)?;
        let levels = Levels { value: descriptor.max_def_level(), one_by_one: pages::may_be_prefixed(chunk), decoded };
        let reader = guarded(run.place, || Ok(get_column_reader(descriptor, Box::new(pages))))?;
        fn le<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N], size: usize) -> Result<()> {
            out.extend_from_slice(&bytes[..size]);
            Ok(())
        }
        let size = match run.element {
            Element::Scalar(dtype) => dtype.size(),
            Element::Bytes | Element::Fixed(_) => 0,
        };
        match reader {
            ColumnReader::BoolColumnReader(reader) => run.read(reader, &levels, values, |value, out| {
                out.data.push(u8::from(*value));
                Ok(())
            }),
            ColumnReader::Int32ColumnReader(reader) => {
                run.read(reader, &levels, values, |value, out| le(&mut out.data, value.to_le_bytes(), size))
            }
            ColumnReader::Int64ColumnReader(reader) => {
                run.read(reader, &levels, values, |value, out| le(&mut out.data, value.to_le_bytes(), size))
            }
            ColumnReader::FloatColumnReader(reader) => {
                run.read(reader, &levels, values, |value, out| le(&mut out.data, value.to_le_bytes(), size))
            }
            ColumnReader::DoubleColumnReader(reader) => {
                run.read(reader, &levels, values, |value, out| le(&mut out.data, value.to_le_bytes(), size))
            }
            ColumnReader::ByteArrayColumnReader(reader) => run.read(reader, &levels, values, |value, out| {
                out.strings.push(out.data.len());
                out.push(value.data(), run)
            }),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                run.read(reader, &levels, values, |value, out| out.push(value.data(), run))
            }
            ColumnReader::Int96ColumnReader(_) => Err(Error::bug("a column of 96-bit times was not rejected earlier")),
        }
    }
}

/// Settings of a read of one column in one row group.
struct Run<'a> {
    element: Element,
    /// See [`Column::lists`].
    lists: &'a [i16],
    /// Row number of the group's first row in the file.
    first: u64,
    rows: Range<u64>,
    limit: usize,
    place: &'a str,
}

/// Definition levels of a column, and state of its decoder.
struct Levels {
    /// Definition level at which a value is present.
    value: i16,
    /// True if values must be decoded one by one, because several decoded values may need far more memory than their
    /// page.
    one_by_one: bool,
    /// Bytes decoded from pages of lists since the caller last set it to 0; see [`Pages::new`].
    decoded: Arc<AtomicUsize>,
}

impl Run<'_> {
    fn over(&self, need: usize) -> Error {
        Error::BudgetExceeded { what: self.place.to_owned(), need: need as u64, budget: self.limit as u64 }
    }

    fn read<T: DataType>(
        &self,
        mut reader: ColumnReaderImpl<T>,
        levels: &Levels,
        values: &mut Values,
        write: impl Fn(&T::T, &mut Values) -> Result<()>,
    ) -> Result<()> {
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let ends = |have: u64| {
            let (have, want) = (with_separators(self.first + have), with_separators(self.first + self.rows.end));
            Error::corrupt(self.place, format!("is damaged Parquet: the rows end at row {have} (want {want})"))
        };
        if self.rows.start > 0 {
            let skipped = guarded(self.place, || reader.skip_records(count(self.rows.start)))? as u64;
            if skipped < self.rows.start {
                return Err(ends(skipped));
            }
        }
        let (mut defined, mut repeated, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
        let (mut at, mut row) = (self.rows.start, self.rows.start);
        let is_list = !self.lists.is_empty();
        let mut run = if is_list || levels.one_by_one { 1 } else { RUN };
        while at < self.rows.end {
            defined.clear();
            repeated.clear();
            decoded.clear();
            levels.decoded.store(0, Ordering::Relaxed);
            let want = count(self.rows.end - at).min(run);
            let (rows, found, level_count) = guarded(self.place, || {
                reader.read_records(want, Some(&mut defined), Some(&mut repeated), &mut decoded)
            })?;
            if rows == 0 {
                return Err(ends(at));
            }
            if is_list && !levels.one_by_one {
                run = if level_count < LIST_RUN { (run * 2).min(RUN) } else { (run / 2).max(1) };
            }
            let mut decoded = decoded[..found.min(decoded.len())].iter();
            let level_count = if levels.value > 0 || is_list { level_count } else { rows };
            for level in 0..level_count {
                let repeated = if is_list { repeated.get(level).map_or(0, |&level| level.max(0) as usize) } else { 0 };
                if repeated == 0 {
                    row += 1;
                    if is_list {
                        values.rows.push(values.items(0, self.element));
                    }
                } else if row == self.rows.start {
                    return Err(Error::corrupt(
                        self.place,
                        "is damaged Parquet: an item of a list comes before the start of the list",
                    ));
                }
                let defined = if levels.value > 0 { defined.get(level).copied().unwrap_or(0) } else { levels.value };
                if !self.begin(repeated, defined, row - 1, values) {
                    continue;
                }
                if defined == levels.value {
                    let value = decoded.next();
                    let lost = || Error::corrupt(self.place, "is damaged Parquet: a value is missing");
                    write(value.ok_or_else(lost)?, values)?;
                } else {
                    self.null(row - 1, values);
                }
            }
            at += rows as u64;
            if values.size_bytes() > self.limit {
                return Err(self.over(values.size_bytes()));
            }
        }
        Ok(())
    }

    /// Begins the inner lists of an item at repetition level `repeated`. Returns false if a list is empty or null, so
    /// that no value follows.
    fn begin(&self, repeated: usize, defined: i16, row: u64, values: &mut Values) -> bool {
        for (level, &has_item) in self.lists.iter().enumerate().skip(repeated.saturating_sub(1)) {
            if defined < has_item {
                if defined < has_item - 1 {
                    // The list is null, or a struct around the list is null.
                    let row = self.first + row;
                    let nulls = if level == 0 { &mut values.empty } else { &mut values.nulls };
                    if nulls.last() != Some(&row) {
                        nulls.push(row);
                    }
                }
                return false;
            }
            if level + 1 < self.lists.len() {
                let start = values.items(level + 1, self.element);
                values.level(level + 1).push(start);
            }
        }
        true
    }

    /// Records a null in a row of the group, and adds an empty or zero value in its place.
    fn null(&self, row: u64, values: &mut Values) {
        let row = self.first + row;
        let is_string = self.lists.is_empty() && self.element == Element::Bytes;
        let nulls = if is_string { &mut values.empty } else { &mut values.nulls };
        if nulls.last() != Some(&row) {
            nulls.push(row);
        }
        match self.element {
            Element::Bytes => values.strings.push(values.data.len()),
            Element::Scalar(dtype) => values.data.resize(values.data.len() + dtype.size(), 0),
            Element::Fixed(len) => values.data.resize(values.data.len() + len, 0),
        }
    }
}

/// Columns of the file with this metadata.
pub(crate) fn columns_of(metadata: &ParquetMetaData) -> Vec<Column> {
    let mut columns = describe(metadata.file_metadata().schema_descr());
    number_namesakes(&mut columns);
    columns
}

/// Creates a reader for a column chunk of `file`. The column must not contain lists. No page may need more than `limit`
/// bytes.
pub fn column_reader(
    file: Arc<impl ChunkReader + 'static>,
    chunk: &ColumnChunkMetaData,
    limit: usize,
    place: &str,
) -> Result<ColumnReader> {
    let pages = Pages::new(file, chunk, limit, Arc::default(), place)?;
    guarded(place, || Ok(get_column_reader(chunk.column_descr_ptr(), Box::new(pages))))
}

/// Calls the `parquet` crate; reports its errors and panics as damage to the file.
fn guarded<T>(place: &str, call: impl FnOnce() -> std::result::Result<T, ParquetError>) -> Result<T> {
    let damaged = |problem: &dyn std::fmt::Display| Error::corrupt(place, format!("is damaged Parquet: {problem}"));
    match catch_panic(call) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ParquetError::NYI(what))) => {
            Err(Error::Unsupported { what: format!("{what} ({place})"), by: "the Parquet reader".to_owned() })
        }
        Ok(Err(ParquetError::External(problem))) => Err(match problem.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(theirs) => damaged(&theirs),
        }),
        Ok(Err(ParquetError::General(problem) | ParquetError::EOF(problem))) => Err(damaged(&problem)),
        Ok(Err(problem)) => Err(damaged(&problem)),
        Err(_) => Err(damaged(&"its pages contradict each other")),
    }
}
