// SPDX-License-Identifier: Apache-2.0
//! Arrow IPC: reads rows of a file or stream in memory, without copying the values.
//!
//! Files and streams are sequences of messages. A file also has a footer, which is needed only if the messages lack
//! the schema. The supported types are numbers, booleans, texts, binaries, dictionaries of these, lists, maps (lists
//! of keys and of values), and structs. The fields of a struct are named by their path (`image.bytes`), also in lists.
//! Dates and times are read as their integers. Compressed buffers are decompressed when they are used.
//!
//! Every size and offset is checked against the available bytes before it is used, so damaged files give
//! [`Error::Corrupt`].

mod flatbuffer;
mod schema;

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};

use bytes::Bytes;
use penstock_codec::{Codec, decompress_into};
use penstock_types::{DType, Error, Result, with_separators};

use flatbuffer::Table;
use schema::{BufferNumber, Level, List, Schema, schema};
pub use schema::{Column, Element};

/// First bytes of a file. A stream begins with its first message.
const MAGIC: &[u8] = b"ARROW1\0\0";

/// Maximum size of a message's metadata.
const MAX_METADATA: u64 = 256 << 20;

/// First bytes of a message, except in streams of versions before 0.15.
const MARKER: [u8; 4] = [0xff; 4];

/// A message: metadata, then a body.
#[derive(Debug)]
struct Message<'a> {
    metadata: Table<'a>,
    /// Position of the body.
    body: u64,
    /// Position after the body.
    end: u64,
}

/// Result of reading the start of a message.
enum Next<'a> {
    Message(Message<'a>),
    End,
    /// This many bytes from the start of the message are needed.
    Wants(u64),
}

/// Reads the message at byte `at` of an object of `size` bytes. `bytes` holds the object from byte `at` on.
fn message<'a>(bytes: &'a [u8], at: u64, size: u64, place: &str) -> Result<Next<'a>> {
    let damaged =
        |what: &str| Error::corrupt(place, format!("is damaged Arrow IPC: {what} at byte {}", with_separators(at)));
    let left = size.saturating_sub(at);
    let word = |at: usize| bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied();
    if left == 0 {
        return Ok(Next::End);
    }
    if left < 4 {
        return Err(damaged("the object ends inside a message"));
    }
    if (bytes.len() as u64) < left.min(8) {
        return Ok(Next::Wants(left.min(64 << 10)));
    }
    let (lead, len) = match (word(0), word(4)) {
        (Some(MARKER), Some(len)) => (8, u32::from_le_bytes(len)),
        (Some(len), _) if len != MARKER => (4, u32::from_le_bytes(len)),
        _ => return Err(damaged("the object ends inside a message")),
    };
    if len == 0 {
        return Ok(Next::End);
    }
    let len = u64::from(len);
    if len > MAX_METADATA || lead + len > left {
        return Err(damaged(&format!("a message states {} bytes", with_separators(len))));
    }
    let Some(metadata) = bytes.get(lead as usize..(lead + len) as usize) else { return Ok(Next::Wants(lead + len)) };
    let metadata = Table::root(metadata).ok_or_else(|| damaged("a message is not readable"))?;
    let body = u64::try_from(metadata.i64(3)).ok().filter(|&body| body <= left - lead - len);
    let body_len = body.ok_or_else(|| damaged("the object ends inside a message's body"))?;
    let body = at + lead + len;
    Ok(Next::Message(Message { metadata, body, end: body + body_len }))
}

/// Position of the first message of an object with these first bytes.
pub fn first_message(head: &[u8]) -> u64 {
    if head.starts_with(MAGIC) { MAGIC.len() as u64 } else { 0 }
}

/// The schema in the footer of a file.
fn footer_schema(content: &[u8]) -> Option<Schema> {
    let (rest, len) = content.strip_suffix(b"ARROW1")?.split_last_chunk::<4>()?;
    let len = usize::try_from(i32::from_le_bytes(*len)).ok()?;
    schema(&Table::root(rest.get(rest.len().checked_sub(len)?..)?)?.table(1)?)
}

/// Result of reading the start of a group of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextBatch {
    /// Number of rows, and position of the next message.
    Rows(u64, u64),
    /// No more messages.
    End,
    /// This many bytes from the start of the message are needed.
    Wants(u64),
}

/// Reads the number of rows of the message at byte `at` of an object of `size` bytes. `bytes` holds the object from
/// byte `at` on. A message that is not a record batch has no rows.
///
/// # Errors
/// [`Error::Corrupt`] if the message is damaged or truncated.
pub fn next_batch(bytes: &[u8], at: u64, size: u64, place: &str) -> Result<NextBatch> {
    Ok(match message(bytes, at, size, place)? {
        Next::End => NextBatch::End,
        Next::Wants(len) => NextBatch::Wants(len),
        Next::Message(message) => {
            let batch = message.metadata.table(2).filter(|_| message.metadata.u8(1) == 3);
            NextBatch::Rows(batch.map_or(Ok(0), |batch| rows(&batch, place))?, message.end)
        }
    })
}

fn rows(batch: &Table<'_>, place: &str) -> Result<u64> {
    let (rows, columns) = (batch.i64(0), batch.pairs(1));
    let damaged =
        |what: String| Error::corrupt(place, format!("is damaged Arrow IPC: a batch states {rows} rows{what}"));
    match columns.as_deref() {
        None => Err(damaged(", but its columns are not readable".to_owned())),
        Some([(column, _), ..]) if *column != rows => Err(damaged(format!(", but its first column has {column}"))),
        Some(_) => u64::try_from(rows).map_err(|_| damaged(String::new())),
    }
}

/// Positions of the buffers of a record batch or a dictionary.
#[derive(Debug, Default, Clone)]
struct Batch {
    rows: u64,
    /// Byte range of each buffer in the object.
    buffers: Vec<(usize, usize)>,
    /// Number of additional buffers of each view column.
    views: Vec<usize>,
    codec: Option<Codec>,
}

impl Batch {
    /// Parses the description of a batch whose body has this byte range. `None` if the description is damaged.
    fn parse(table: &Table<'_>, body: (u64, u64)) -> Option<Self> {
        let (from, to) = body;
        let buffer = |(offset, len): (i64, i64)| {
            let start = from.checked_add(u64::try_from(offset).ok()?)?;
            let end = start.checked_add(u64::try_from(len).ok()?).filter(|&end| end <= to)?;
            Some((usize::try_from(start).ok()?, usize::try_from(end).ok()?))
        };
        let buffers = table.pairs(2)?.into_iter().map(buffer).collect::<Option<_>>()?;
        let views = table.vector(4, 8)?.as_chunks::<8>().0;
        let views =
            views.iter().map(|count| usize::try_from(i64::from_le_bytes(*count)).ok()).collect::<Option<_>>()?;
        let codec = match table.table(3).map(|compression| compression.u8(0)) {
            None => None,
            Some(0) => Some(Codec::Lz4),
            Some(1) => Some(Codec::Zstd),
            Some(_) => return None,
        };
        Some(Self { rows: rows(table, "").ok()?, buffers, views, codec })
    }

    fn number(&self, buffer: BufferNumber) -> usize {
        let before = self.views.iter().take(buffer.views).fold(0usize, |sum, count| sum.saturating_add(*count));
        buffer.number.saturating_add(before)
    }
}

/// An Arrow IPC file or stream in memory.
pub struct File {
    content: Bytes,
    place: String,
    schema: Schema,
    batches: Vec<Batch>,
    /// For each dictionary: its number, the first batch that uses it, and its values.
    dictionaries: Vec<(i64, usize, Batch)>,
    /// Number of rows before each batch, followed by the total number of rows.
    starts: Vec<u64>,
}

impl File {
    /// Finds the messages of an object.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the object is damaged or truncated, [`Error::Unsupported`] for big-endian numbers and for
    /// delta dictionaries.
    pub fn open(content: Bytes, place: &str) -> Result<Self> {
        let size = content.len() as u64;
        let damaged = |what: &str| Error::corrupt(place, format!("is damaged Arrow IPC: {what}"));
        let unsupported =
            |what: &str| Error::Unsupported { what: format!("{what} ({place})"), by: "the Arrow reader".to_owned() };
        let (mut at, mut found) = (first_message(&content), content.is_empty().then(Schema::default));
        let (mut batches, mut dictionaries, mut starts) = (Vec::new(), Vec::new(), vec![0u64]);
        loop {
            let message = match message(content.get(at as usize..).unwrap_or_default(), at, size, place)? {
                Next::Message(message) => message,
                Next::End => break,
                Next::Wants(_) => return Err(damaged("the object ends inside a message")),
            };
            let body = (message.body, message.end);
            let header = message.metadata.table(2).ok_or_else(|| damaged("a message without a header"))?;
            match message.metadata.u8(1) {
                1 if header.i16(0, 0) != 0 => return Err(unsupported("Arrow IPC with big-endian numbers")),
                1 => found = Some(schema(&header).ok_or_else(|| damaged("its schema is not readable"))?),
                2 if header.u8(2) != 0 => return Err(unsupported("Arrow IPC with delta dictionaries")),
                kind @ (2 | 3) => {
                    let table = if kind == 2 { header.table(1) } else { Some(header) };
                    let batch = table.and_then(|table| Batch::parse(&table, body));
                    let batch = batch.ok_or_else(|| damaged("a record batch is not readable"))?;
                    if kind == 2 {
                        dictionaries.push((header.i64(0), batches.len(), batch));
                    } else {
                        let rows = starts.last().and_then(|rows| rows.checked_add(batch.rows));
                        starts.push(rows.ok_or_else(|| damaged("too many rows"))?);
                        batches.push(batch);
                    }
                }
                _ => return Err(unsupported("Arrow IPC with tensor messages")),
            }
            at = message.end;
        }
        let schema = found.or_else(|| footer_schema(&content)).ok_or_else(|| damaged("it has no schema"))?;
        Ok(Self { content, place: place.to_owned(), schema, batches, dictionaries, starts })
    }

    /// Number of rows.
    pub fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Number of rows before each record batch, followed by the total number of rows.
    pub fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// The columns, in stored order.
    pub fn columns(&self) -> &[Column] {
        &self.schema.columns
    }

    /// Opens a record batch. At most `limit` bytes of the batch's buffers are decompressed.
    pub fn batch(&self, number: usize, limit: u64) -> Reader<'_> {
        Reader::new(self, &self.batches[number], number, limit)
    }
}

/// A value of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// A null.
    Null,
    /// A number.
    Scalar(DType, Cow<'a, [u8]>),
    /// A byte string.
    Bytes(&'a [u8]),
    /// A list of numbers.
    List(DType, Cow<'a, [u8]>),
    /// A list of byte strings.
    Strings(Vec<&'a [u8]>),
    /// A list of lists. The first field holds the end of each list, for each level of inner lists. The second field
    /// holds the items of the innermost lists (`List` or `Strings`).
    Nested(Vec<Vec<usize>>, Box<Value<'a>>),
}

/// Reads the rows of a record batch or the values of a dictionary.
pub struct Reader<'a> {
    file: &'a File,
    batch: &'a Batch,
    number: usize,
    buffers: Vec<OnceCell<Result<Cow<'a, [u8]>>>>,
    /// Readers of dictionaries, by column.
    dictionaries: Vec<OnceCell<Box<Reader<'a>>>>,
    /// Number of bytes that may still be decompressed.
    left: Cell<u64>,
}

impl<'a> Reader<'a> {
    fn new(file: &'a File, batch: &'a Batch, number: usize, limit: u64) -> Self {
        let buffers = batch.buffers.iter().map(|_| OnceCell::new()).collect();
        let dictionaries = file.schema.columns.iter().map(|_| OnceCell::new()).collect();
        Self { file, batch, number, buffers, dictionaries, left: Cell::new(limit) }
    }

    fn damaged(&self, column: &Column) -> Error {
        Error::corrupt(&*self.file.place, format!("is damaged Arrow IPC: column `{}` is truncated", column.name))
    }

    fn buffer(&self, column: &Column, number: BufferNumber, more: usize) -> Result<&[u8]> {
        let number = self.batch.number(number).saturating_add(more);
        let (cell, range) =
            self.buffers.get(number).zip(self.batch.buffers.get(number)).ok_or_else(|| self.damaged(column))?;
        let load = || {
            let stored = self.file.content.get(range.0..range.1).ok_or_else(|| self.damaged(column))?;
            let Some(codec) = self.batch.codec.filter(|_| !stored.is_empty()) else { return Ok(Cow::Borrowed(stored)) };
            let (len, packed) = stored.split_first_chunk::<8>().ok_or_else(|| self.damaged(column))?;
            let len = match i64::from_le_bytes(*len) {
                -1 => return Ok(Cow::Borrowed(packed)),
                len => u64::try_from(len).map_err(|_| self.damaged(column))?,
            };
            let place = format!("{} column `{}`", self.file.place, column.name);
            if len > self.left.get() {
                return Err(Error::BudgetExceeded { what: place, need: len, budget: self.left.get() });
            }
            let mut out = Vec::new();
            decompress_into(codec, packed, &mut out, len, &place)?;
            if out.len() as u64 != len {
                return Err(self.damaged(column));
            }
            self.left.set(self.left.get() - len);
            Ok(Cow::Owned(out))
        };
        cell.get_or_init(load).as_deref().map_err(Clone::clone)
    }

    /// True if the validity buffer `number` marks `row` as valid. An empty buffer means that no row is null.
    fn is_valid(&self, column: &Column, number: BufferNumber, row: usize) -> Result<bool> {
        let bits = self.buffer(column, number, 0)?;
        if bits.is_empty() {
            return Ok(true);
        }
        bits.get(row / 8).map(|byte| byte >> (row % 8) & 1 == 1).ok_or_else(|| self.damaged(column))
    }

    /// Returns the value of a column in the row `row` of this batch.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the column's buffers are truncated, [`Error::Unsupported`] for an unsupported type,
    /// [`Error::Mismatch`] for a null inside a list.
    pub fn value(&self, column: usize, row: u64) -> Result<Value<'_>> {
        let number = column;
        let Some(column) = self.file.schema.columns.get(column) else { return Err(Error::bug("no such column")) };
        self.of_column(column, number, row)
    }

    fn of_column(&self, column: &'a Column, number: usize, row: u64) -> Result<Value<'_>> {
        let element = column.element.as_ref().map_err(|what| Error::Unsupported {
            what: format!("{what} (column `{}` of {})", column.name, self.file.place),
            by: "the Arrow reader".to_owned(),
        })?;
        let row = usize::try_from(row).ok().filter(|&row| (row as u64) < self.batch.rows);
        let row = row.ok_or_else(|| Error::bug("a row after the last of its batch"))?;
        // The validity buffers of a list and of the structs around the list are indexed by row, also for lists of fixed
        // length.
        for &validity in &column.validity {
            if !self.is_valid(column, validity, row)? {
                return Ok(Value::Null);
            }
        }
        let Some((innermost, outer)) = column.lists.split_last() else {
            return Ok(match self.item(column, number, *element, row)? {
                Item::Null => Value::Null,
                Item::Number(dtype, bytes) => Value::Scalar(dtype, bytes),
                Item::Bytes(bytes) => Value::Bytes(bytes),
            });
        };
        let (mut ends, mut range) = (Vec::new(), (row, row + 1));
        for (level, next) in outer.iter().zip(&column.lists[1..]) {
            range = self.items_of(column, level, range)?;
            // Lists of fixed length take no space in the file, so the file size does not limit their number.
            let need = ((range.1 - range.0) as u64).saturating_mul(size_of::<usize>() as u64);
            if need > self.left.get() {
                let what = format!("{} column `{}`", self.file.place, column.name);
                return Err(Error::BudgetExceeded { what, need, budget: self.left.get() });
            }
            self.check_items(column, level, range)?;
            let first = self.items_of(column, next, range)?.0;
            let end = |at| self.list(column, next, at).map(|(_, to)| to - first);
            ends.push((range.0..range.1).map(end).collect::<Result<Vec<_>>>()?);
        }
        let range = self.items_of(column, innermost, range)?;
        self.check_items(column, innermost, range)?;
        let items = self.items(column, number, *element, range)?;
        Ok(if outer.is_empty() { items } else { Value::Nested(ends, Box::new(items)) })
    }

    /// Returns the values of innermost lists, which are contiguous.
    fn items(
        &self,
        column: &'a Column,
        number: usize,
        element: Element,
        (from, to): (usize, usize),
    ) -> Result<Value<'_>> {
        if let (Element::Scalar(dtype), None) = (element, column.dictionary) {
            let size = dtype.size();
            let range = from.checked_mul(size).zip(to.checked_mul(size)).ok_or_else(|| self.damaged(column))?;
            let bytes =
                self.buffer(column, column.values, 0)?.get(range.0..range.1).ok_or_else(|| self.damaged(column))?;
            return Ok(Value::List(dtype, Cow::Borrowed(bytes)));
        }
        let (mut numbers, mut strings, mut kind) = (Vec::new(), Vec::new(), None);
        for at in from..to {
            match self.item(column, number, element, at)? {
                Item::Null => return Err(self.null_in_list(column)),
                Item::Number(dtype, bytes) => {
                    kind = Some(dtype);
                    numbers.extend_from_slice(&bytes);
                }
                Item::Bytes(bytes) => strings.push(bytes),
            }
        }
        Ok(match (kind, element) {
            (Some(dtype), _) | (None, Element::Scalar(dtype)) => Value::List(dtype, Cow::Owned(numbers)),
            (None, Element::Bits) => Value::List(DType::Bool, Cow::Owned(numbers)),
            _ => Value::Strings(strings),
        })
    }

    /// Checks that no item of these lists, and no struct around it, is null.
    fn check_items(&self, column: &Column, level: &Level, (from, to): (usize, usize)) -> Result<()> {
        for &validity in &level.items {
            if !self.buffer(column, validity, 0)?.is_empty() {
                for at in from..to {
                    if !self.is_valid(column, validity, at)? {
                        return Err(self.null_in_list(column));
                    }
                }
            }
        }
        Ok(())
    }

    fn null_in_list(&self, column: &Column) -> Error {
        Error::mismatch(&*self.file.place, format!("column `{}` contains a null in a list", column.name))
    }

    /// Start and end of the items of consecutive lists.
    fn items_of(&self, column: &Column, level: &Level, (from, to): (usize, usize)) -> Result<(usize, usize)> {
        if from == to {
            return Ok((0, 0)); // without lists, the buffer of offsets may be empty
        }
        Ok((self.list(column, level, from)?.0, self.list(column, level, to - 1)?.1))
    }

    /// Start and end of the items of a list.
    fn list(&self, column: &Column, level: &Level, at: usize) -> Result<(usize, usize)> {
        match level.list {
            List::Fixed(len) => {
                let from = at.checked_mul(len).ok_or_else(|| self.damaged(column))?;
                Ok((from, from.checked_add(len).ok_or_else(|| self.damaged(column))?))
            }
            list => self.bounds(column, level.offsets, list == List::Wide, at),
        }
    }

    /// Start and end of a value, as stated in the buffer of offsets.
    fn bounds(&self, column: &Column, offsets: BufferNumber, wide: bool, at: usize) -> Result<(usize, usize)> {
        let bytes = self.buffer(column, offsets, 0)?;
        let offset = |at: usize| {
            let value = if wide {
                i64::from_le_bytes(*bytes.get(at.checked_mul(8)?..)?.first_chunk()?)
            } else {
                i64::from(i32::from_le_bytes(*bytes.get(at.checked_mul(4)?..)?.first_chunk()?))
            };
            usize::try_from(value).ok()
        };
        let found = at.checked_add(1).and_then(|next| offset(at).zip(offset(next)));
        found.filter(|(from, to)| from <= to).ok_or_else(|| self.damaged(column))
    }

    fn item(&self, column: &'a Column, number: usize, element: Element, at: usize) -> Result<Item<'_>> {
        if let Some((dictionary, index)) = column.dictionary {
            return self.in_dictionary(column, number, dictionary, index, at);
        }
        let (values, damaged) = (column.values, || self.damaged(column));
        let fixed = |size: usize| {
            let bytes = self.buffer(column, values, 0)?;
            let range = at.checked_mul(size).zip(at.checked_add(1).and_then(|next| next.checked_mul(size)));
            range.and_then(|(from, to)| bytes.get(from..to)).ok_or_else(damaged)
        };
        Ok(match element {
            Element::Scalar(dtype) => Item::Number(dtype, Cow::Borrowed(fixed(dtype.size())?)),
            Element::Fixed(len) => Item::Bytes(fixed(len)?),
            Element::Bits => {
                let byte = self.buffer(column, values, 0)?.get(at / 8).ok_or_else(damaged)?;
                Item::Number(DType::Bool, Cow::Owned(vec![byte >> (at % 8) & 1]))
            }
            Element::Bytes { wide } => {
                let (from, to) = self.bounds(column, values, wide, at)?;
                // A column of empty strings may have no buffer of data.
                let data = self.buffer(column, values, 1)?;
                Item::Bytes(data.get(from..to).ok_or_else(damaged)?)
            }
            Element::Views => {
                let view = fixed(16)?;
                let word = |at: usize| {
                    view.get(at..)
                        .and_then(|rest| rest.first_chunk::<4>())
                        .map(|word| u32::from_le_bytes(*word) as usize)
                };
                let len = word(0).ok_or_else(damaged)?;
                if len <= 12 {
                    return Ok(Item::Bytes(view.get(4..4 + len).ok_or_else(damaged)?));
                }
                let (buffer, from) = word(8).zip(word(12)).ok_or_else(damaged)?;
                if buffer >= self.batch.views.get(values.views).copied().unwrap_or(0) {
                    return Err(damaged());
                }
                let data = self.buffer(column, values, 1 + buffer)?;
                Item::Bytes(data.get(from..from.saturating_add(len)).ok_or_else(damaged)?)
            }
        })
    }

    fn in_dictionary(
        &self,
        column: &'a Column,
        number: usize,
        dictionary: i64,
        index: DType,
        at: usize,
    ) -> Result<Item<'_>> {
        let size = index.size();
        let bytes =
            at.checked_mul(size).and_then(|from| self.buffer(column, column.values, 0).ok()?.get(from..)?.get(..size));
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes.ok_or_else(|| self.damaged(column))?);
        let at = u64::from_le_bytes(wide);
        let latest = |(id, first, _): &&(i64, usize, Batch)| *id == dictionary && *first <= self.number;
        // In a file, dictionaries may also follow the batches that use them.
        let found = self.file.dictionaries.iter().rev().find(latest);
        let found = found.or_else(|| self.file.dictionaries.iter().find(|(id, _, _)| *id == dictionary));
        let values = self.file.schema.dictionaries.iter().find(|(id, _)| *id == dictionary);
        let ((_, _, batch), (_, values)) = found.zip(values).ok_or_else(|| self.damaged(column))?;
        let cell = self.dictionaries.get(number).ok_or_else(|| Error::bug("a dictionary in a dictionary"))?;
        let reader = cell.get_or_init(|| Box::new(Reader::new(self.file, batch, self.number, self.left.get())));
        if at >= batch.rows {
            return Err(self.damaged(column));
        }
        Ok(match reader.of_column(values, number, at)? {
            Value::Scalar(dtype, bytes) => Item::Number(dtype, bytes),
            Value::Bytes(bytes) => Item::Bytes(bytes),
            _ => Item::Null,
        })
    }
}

/// A number or a byte string.
enum Item<'a> {
    Null,
    Number(DType, Cow<'a, [u8]>),
    Bytes(&'a [u8]),
}
