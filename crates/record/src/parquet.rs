// SPDX-License-Identifier: Apache-2.0
//! Parquet: rows of chosen columns of one file in memory.
//!
//! Read are scalars, byte strings, fixed-size byte strings, and lists of scalars or byte strings; a column in a struct is
//! named by its path (`image.bytes`), a list by what precedes its own two levels. A null list or string is empty; a null
//! scalar is an error that names its row. Refused: lists of lists, decimals, 96-bit times, unsigned 32- and 64-bit
//! integers, which tensors here have no type for. Pages are inflated by Snappy, gzip, LZ4 and zstd; Brotli is refused.
//!
//! The `parquet` crate does the reading, by columns and without Arrow. A file that makes it panic is answered as damaged.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::DataType;
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, SerializedFileReader};
use ::parquet::schema::types::ColumnDescriptor;
use bytes::Bytes;
use penstock_types::{DType, Error, Result, grouped};

/// Rows asked of a column at once: what a decoded value may cost is checked this often.
const RUN: usize = 1024;

/// Pages of no values in a row (pyarrow writes one now and then): the crate stops at each as if at the end.
const MOST_EMPTY: usize = 64;

/// What a column's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// Numbers; booleans are uint8.
    Scalar(DType),
    /// Byte strings of any length.
    Bytes,
    /// Byte strings of this length.
    Fixed(usize),
}

/// A column of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its path, with dots, without a list's own levels.
    pub name: String,
    /// What a value is, or what is refused.
    pub element: std::result::Result<Element, String>,
    /// True when a row holds a list of values.
    pub list: bool,
}

/// Values of some rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values {
    /// All values, one behind another, little-endian.
    pub data: Vec<u8>,
    /// Of byte strings: where each begins, and the end.
    pub strings: Vec<usize>,
    /// Of lists: at which value each row begins, and the end.
    pub rows: Vec<usize>,
    /// Rows of the file, ascending, that are null or hold a null where none may be; zero stands in their place.
    pub nulls: Vec<u64>,
}

/// A file.
pub struct Table {
    reader: SerializedFileReader<Bytes>,
    columns: Vec<Column>,
    /// Of each column: its innermost level may be missing.
    nullable: Vec<bool>,
    /// Where each row group begins, and the end.
    groups: Vec<u64>,
    place: String,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("place", &self.place).field("columns", &self.columns).finish_non_exhaustive()
    }
}

impl Table {
    /// Reads the footer of the file `bytes`; `place` names it in messages.
    pub fn open(bytes: Bytes, place: &str) -> Result<Self> {
        let reader = guarded(place, || SerializedFileReader::new(bytes))?;
        let metadata = reader.metadata();
        let columns = metadata.file_metadata().schema_descr().columns().iter().map(|column| describe(column)).collect();
        let optional = |column: &ColumnDescriptor| column.self_type().is_optional();
        let nullable =
            metadata.file_metadata().schema_descr().columns().iter().map(|column| optional(column)).collect();
        let mut groups = vec![0u64];
        for group in metadata.row_groups() {
            let rows = u64::try_from(group.num_rows()).ok().and_then(|rows| rows.checked_add(*groups.last()?));
            groups.push(rows.ok_or_else(|| Error::corrupt(place, "is damaged Parquet: its row groups have no sum"))?);
        }
        Ok(Self { reader, columns, nullable, groups, place: place.to_owned() })
    }

    /// Its columns.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// The number of the column of that name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// Rows in it.
    pub fn rows(&self) -> u64 {
        self.groups.last().copied().unwrap_or(0)
    }

    /// Where row groups begin, and the end: reading within one is cheapest.
    pub fn groups(&self) -> &[u64] {
        &self.groups
    }

    /// Values of `column` in `rows`, of at most `limit` bytes in all. Errs where one is null that may not be.
    pub fn read(&self, column: usize, rows: Range<u64>, limit: usize) -> Result<Values> {
        let values = self.read_nulls(column, rows, limit)?;
        match values.nulls.first() {
            None => Ok(values),
            Some(row) => {
                let name = self.columns.get(column).map_or("", |column| column.name.as_str());
                let place = format!("column `{name}` of {}", self.place);
                Err(Error::corrupt(place, format!("is null in row {}", grouped(*row))))
            }
        }
    }

    /// As [`Table::read`], but that nulls are named in the answer.
    pub fn read_nulls(&self, column: usize, rows: Range<u64>, limit: usize) -> Result<Values> {
        let Some(Column { name, element, list }) = self.columns.get(column) else {
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
            return Err(Error::bug(format!("rows {rows:?} of {place}, which has {}", self.rows())));
        }
        let mut values = Values::default();
        for (group, bounds) in self.groups.windows(2).enumerate() {
            let wanted = rows.start.max(bounds[0])..rows.end.min(bounds[1]);
            if wanted.start < wanted.end {
                let within = wanted.start - bounds[0]..wanted.end - bounds[0];
                let nullable_element = self.nullable[column];
                let run = Run {
                    element,
                    list: *list,
                    nullable_element,
                    first: bounds[0],
                    rows: within,
                    limit,
                    place: &place,
                };
                self.read_group(group, column, &run, &mut values)?;
            }
        }
        // The ends; where nothing was read they are all there is.
        if element == Element::Bytes {
            values.strings.push(values.data.len());
        }
        if *list {
            let count = match element {
                Element::Bytes => values.strings.len() - 1,
                Element::Scalar(dtype) => values.data.len() / dtype.size(),
                Element::Fixed(len) => values.data.len() / len,
            };
            values.rows.push(count);
        }
        Ok(values)
    }

    fn read_group(&self, group: usize, column: usize, run: &Run<'_>, values: &mut Values) -> Result<()> {
        let reader = guarded(run.place, || self.reader.get_row_group(group)?.get_column_reader(column))?;
        let descriptor = self.reader.metadata().file_metadata().schema_descr().column(column);
        let most = descriptor.max_def_level();
        fn le<const N: usize>(out: &mut Vec<u8>, bytes: [u8; N], size: usize) {
            out.extend_from_slice(&bytes[..size]);
        }
        let size = match run.element {
            Element::Scalar(dtype) => dtype.size(),
            Element::Bytes | Element::Fixed(_) => 0,
        };
        match reader {
            ColumnReader::BoolColumnReader(reader) => {
                run.read(reader, most, values, |value, out| out.data.push(u8::from(*value)))
            }
            ColumnReader::Int32ColumnReader(reader) => {
                run.read(reader, most, values, |value, out| le(&mut out.data, value.to_le_bytes(), size))
            }
            ColumnReader::Int64ColumnReader(reader) => {
                run.read(reader, most, values, |value, out| le(&mut out.data, value.to_le_bytes(), size))
            }
            ColumnReader::FloatColumnReader(reader) => {
                run.read(reader, most, values, |value, out| le(&mut out.data, value.to_le_bytes(), size))
            }
            ColumnReader::DoubleColumnReader(reader) => {
                run.read(reader, most, values, |value, out| le(&mut out.data, value.to_le_bytes(), size))
            }
            ColumnReader::ByteArrayColumnReader(reader) => run.read(reader, most, values, |value, out| {
                out.strings.push(out.data.len());
                out.data.extend_from_slice(value.data());
            }),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => {
                run.read(reader, most, values, |value, out| out.data.extend_from_slice(value.data()))
            }
            ColumnReader::Int96ColumnReader(_) => Err(Error::bug("96-bit times are refused before")),
        }
    }
}

/// What is read of one row group.
struct Run<'a> {
    element: Element,
    list: bool,
    /// True when a list may hold nulls.
    nullable_element: bool,
    /// The group's first row in the file.
    first: u64,
    rows: Range<u64>,
    limit: usize,
    place: &'a str,
}

impl Run<'_> {
    fn read<T: DataType>(
        &self,
        mut reader: ColumnReaderImpl<T>,
        most: i16,
        values: &mut Values,
        write: impl Fn(&T::T, &mut Values),
    ) -> Result<()> {
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let ends = |have: u64| {
            let (have, want) = (grouped(self.first + have), grouped(self.first + self.rows.end));
            Error::corrupt(self.place, format!("is damaged Parquet: it ends at row {have}, want {want}"))
        };
        let (mut defined, mut repeated, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
        let (mut skipped, mut empty) = (0, 0);
        while skipped < self.rows.start {
            let left = count(self.rows.start - skipped);
            let rows = guarded(self.place, || match self.list {
                // Of lists the crate (60.1) loses rows at pages of no values when it skips: they are read.
                true => {
                    defined.clear();
                    repeated.clear();
                    decoded.clear();
                    let levels = (Some(&mut defined), Some(&mut repeated));
                    reader.read_records(left.min(RUN), levels.0, levels.1, &mut decoded).map(|(rows, ..)| rows)
                }
                false => reader.skip_records(left),
            })?;
            empty = if rows == 0 { empty + 1 } else { 0 };
            if empty > MOST_EMPTY {
                return Err(ends(skipped));
            }
            skipped += rows as u64;
        }
        let (mut at, mut row) = (self.rows.start, self.rows.start);
        while at < self.rows.end {
            defined.clear();
            repeated.clear();
            decoded.clear();
            let want = count(self.rows.end - at).min(RUN);
            let (rows, found, levels) = guarded(self.place, || {
                reader.read_records(want, Some(&mut defined), Some(&mut repeated), &mut decoded)
            })?;
            // Levels without a row are the beginning of one that goes on behind an empty page.
            empty = if rows == 0 && levels == 0 { empty + 1 } else { 0 };
            if empty > MOST_EMPTY {
                return Err(ends(at));
            }
            let mut decoded = decoded[..found.min(decoded.len())].iter();
            let level_count = if most > 0 || self.list { levels } else { rows };
            for level in 0..level_count {
                let first_of_row = !self.list || repeated.get(level).is_none_or(|&level| level == 0);
                if first_of_row {
                    row += 1;
                    if self.list {
                        values.rows.push(self.made(values));
                    }
                } else if row == self.rows.start {
                    return Err(Error::corrupt(self.place, "is damaged Parquet: a list goes on that never began"));
                }
                if most > 0 && defined.get(level).is_some_and(|&level| level < most) {
                    // In a list an empty or null one; elsewhere a null.
                    match (self.list, self.element) {
                        (true, _) if !self.is_null_element(&defined, level, most) => {}
                        (false, Element::Bytes) => values.strings.push(values.data.len()),
                        (_, element) => {
                            values.nulls.push(self.first + row - 1);
                            match element {
                                Element::Bytes => values.strings.push(values.data.len()),
                                Element::Scalar(dtype) => values.data.resize(values.data.len() + dtype.size(), 0),
                                Element::Fixed(len) => values.data.resize(values.data.len() + len, 0),
                            }
                        }
                    }
                    continue;
                }
                let value = decoded
                    .next()
                    .ok_or_else(|| Error::corrupt(self.place, "is damaged Parquet: a value is missing"))?;
                write(value, values);
            }
            at += rows as u64;
            if values.data.len() > self.limit {
                let (what, need, budget) = (self.place.to_owned(), values.data.len() as u64, self.limit as u64);
                return Err(Error::BudgetExceeded { what, need, budget });
            }
        }
        Ok(())
    }

    /// Values made so far.
    fn made(&self, values: &Values) -> usize {
        match self.element {
            Element::Bytes => values.strings.len(),
            Element::Scalar(dtype) => values.data.len() / dtype.size(),
            Element::Fixed(len) => values.data.len() / len,
        }
    }

    /// A list's element is null, not the list: only the innermost level is missing.
    fn is_null_element(&self, defined: &[i16], level: usize, most: i16) -> bool {
        self.nullable_element && defined.get(level).is_some_and(|&level| level == most - 1)
    }
}

/// A call of the `parquet` crate: its errors, and its panics, are the file's damage.
pub(crate) fn guarded<T>(place: &str, call: impl FnOnce() -> std::result::Result<T, ParquetError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ParquetError::NYI(what))) => {
            Err(Error::Unsupported { what: format!("{what} ({place})"), by: "the Parquet reader".to_owned() })
        }
        Ok(Err(problem)) => Err(Error::corrupt(place, format!("is damaged Parquet: {problem}"))),
        Err(_) => Err(Error::corrupt(place, "is damaged Parquet: no reader survives it")),
    }
}

fn describe(column: &ColumnDescriptor) -> Column {
    let list = column.max_rep_level() > 0;
    let mut path: Vec<&str> = column.path().parts().iter().map(String::as_str).collect();
    // `x.list.element`, and what older writers call the two.
    if list
        && path.len() >= 3
        && let [.., "list" | "bag" | "array", "element" | "item" | "array_element"] = path[..]
    {
        path.truncate(path.len() - 2);
    }
    let element = if column.max_rep_level() > 1 { Err("a list of lists".to_owned()) } else { element(column) };
    Column { name: path.join("."), element, list }
}

fn element(column: &ColumnDescriptor) -> std::result::Result<Element, String> {
    let (logical, converted) = (column.logical_type_ref(), column.converted_type());
    if matches!(logical, Some(LogicalType::Decimal { .. })) || converted == ConvertedType::DECIMAL {
        return Err("a decimal number".to_owned());
    }
    let scalar = |dtype| Ok(Element::Scalar(dtype));
    match column.physical_type() {
        Physical::BOOLEAN => scalar(DType::U8),
        Physical::INT32 => match converted {
            ConvertedType::INT_8 => scalar(DType::I8),
            ConvertedType::UINT_8 => scalar(DType::U8),
            ConvertedType::INT_16 => scalar(DType::I16),
            ConvertedType::UINT_16 => scalar(DType::U16),
            ConvertedType::UINT_32 => Err("uint32".to_owned()),
            _ => scalar(DType::I32),
        },
        Physical::INT64 if converted == ConvertedType::UINT_64 => Err("uint64".to_owned()),
        Physical::INT64 => scalar(DType::I64),
        Physical::INT96 => Err("a 96-bit time".to_owned()),
        Physical::FLOAT => scalar(DType::F32),
        Physical::DOUBLE => scalar(DType::F64),
        Physical::BYTE_ARRAY => Ok(Element::Bytes),
        Physical::FIXED_LEN_BYTE_ARRAY => match (logical, usize::try_from(column.type_length())) {
            (Some(LogicalType::Float16), Ok(2)) => scalar(DType::F16),
            (_, Ok(len)) if len > 0 => Ok(Element::Fixed(len)),
            _ => Err("byte strings of no length".to_owned()),
        },
    }
}
