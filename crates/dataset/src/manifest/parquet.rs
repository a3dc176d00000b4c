// SPDX-License-Identifier: Apache-2.0
//! Reads and writes a manifest as Parquet: one row per object, in columns that any tool can read. Used for up to 10^7
//! objects, for which a JSON file would be too large.
//!
//! A file written by Penstock contains a seal: the XXH3 of all following bytes. The seal is stored between the leading
//! magic and the first row group, where Parquet allows any bytes. A damaged or truncated file is therefore detected
//! before any part of it is used. Files written by other tools have no seal, and are used without this check. If the
//! Parquet reader cannot read a file, or panics on it, an error is returned.

use std::borrow::Borrow;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use ::parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArrayType, DataType, DoubleType, Int64Type};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::reader::ChunkReader;
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::{ColumnPath, Type};
use bytes::Bytes;
use penstock_record::parquet::column_reader;
use penstock_record::parquet::footer::{TAIL, footer_len, metadata};
use penstock_types::{Error, Key, Result, catch_panic};
use xxhash_rust::xxh3::Xxh3;

use super::columns::{Cell, Column, Kind, columns};
use super::{Entry, Head, MANIFEST_VERSION, Manifest, finished, other_version, pack_keys};

/// Magic bytes of a Parquet file.
pub(super) const MAGIC: &[u8; 4] = b"PAR1";
/// First bytes of the seal. 16 bytes of XXH3 follow.
const SEAL: &[u8; 8] = b"PENSTOCK";
/// Maximum number of wrong bits in a seal prefix that counts as damaged. With more wrong bits, the file counts as
/// written by another tool, because eight arbitrary bytes differ from the prefix in about half of their 64 bits.
const DAMAGED_SEAL: u32 = 8;
/// Offset of the first byte that the seal's digest covers.
const SEALED_FROM: usize = MAGIC.len() + SEAL.len() + 16;
/// Rows per row group. A writer holds one group in memory.
const GROUP: usize = 1 << 16;
/// Rows per read.
const BATCH: usize = 1 << 13;
/// Maximum decompressed page size in bytes. Writers create pages of about 1 MiB.
const MAX_PAGE: usize = 256 << 20;
/// Maximum rows per byte of file. Keys of distinct objects do not compress better than this.
const ROWS_A_BYTE: u64 = 16;

fn schema(columns: &[Column]) -> Result<Arc<Type>, ParquetError> {
    let fields = columns
        .iter()
        .map(|column| {
            let (physical, logical) = match column.kind {
                Kind::Bytes => (Physical::BYTE_ARRAY, None),
                Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                Kind::Count => (Physical::INT64, None),
                Kind::Real => (Physical::DOUBLE, None),
            };
            let repetition = if column.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
            let field = Type::primitive_type_builder(&column.name, physical)
                .with_repetition(repetition)
                .with_logical_type(logical);
            Ok(Arc::new(field.build()?))
        })
        .collect::<Result<Vec<_>, ParquetError>>()?;
    Ok(Arc::new(Type::group_type_builder("penstock_manifest").with_fields(fields).build()?))
}

/// Writer that hashes all bytes written to it, except the first `skip`.
struct Sealing<W> {
    inner: W,
    skip: usize,
    hash: Xxh3,
}

impl<W: Write> Write for Sealing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let wrote = self.inner.write(bytes)?;
        let skipped = self.skip.min(wrote);
        self.skip -= skipped;
        self.hash.update(&bytes[skipped..wrote]);
        Ok(wrote)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

/// Writes a manifest. The entries must be in manifest order.
pub(super) fn write<E: Borrow<Entry>>(
    out: &mut (impl Write + Seek + Send),
    head: &Head<'_>,
    entries: impl Iterator<Item = Result<E>>,
    place: &str,
) -> Result<()> {
    let bad = |error: ParquetError| match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(io) => Error::from_io(place, &io),
            Err(other) => Error::bug(format!("a manifest cannot be written as Parquet: {other}")),
        },
        other => Error::bug(format!("a manifest cannot be written as Parquet: {other}")),
    };
    let columns = columns();
    let mut facts = vec![
        KeyValue::new("penstock_manifest".to_owned(), MANIFEST_VERSION.to_string()),
        KeyValue::new("url".to_owned(), head.url.to_owned()),
        KeyValue::new("created_s".to_owned(), head.created_s.to_string()),
    ];
    if let Some(source) = head.source {
        facts.push(KeyValue::new("source".to_owned(), source.to_owned()));
    }
    if head.failed > 0 {
        facts.push(KeyValue::new("failed".to_owned(), head.failed.to_string()));
    }
    let level = ZstdLevel::try_new(3).map_err(bad)?;
    let mut properties = WriterProperties::builder()
        .set_created_by(format!("penstock {}", env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(facts));
    for column in &columns {
        // The other columns have mostly distinct values. The writer would build a dictionary for them and then discard
        // it.
        if !matches!(
            column.name.as_str(),
            "codec"
                | "format"
                | "encoding"
                | "origin_encoding"
                | "origin_decoded"
                | "origin_encoded"
                | "origin_transform"
        ) {
            properties = properties.set_column_dictionary_enabled(ColumnPath::from(column.name.as_str()), false);
        }
    }
    let begin = out.stream_position().map_err(|error| Error::from_io(place, &error))?;
    let sealing = Sealing { inner: &mut *out, skip: SEALED_FROM, hash: Xxh3::new() };
    let mut writer = SerializedFileWriter::new(sealing, schema(&columns).map_err(bad)?, Arc::new(properties.build()))
        .map_err(bad)?;
    let io = |error: std::io::Error| Error::from_io(place, &error);
    writer.write_all(SEAL).and_then(|()| writer.write_all(&[0; 16])).map_err(io)?;
    let mut entries = entries.peekable();
    while entries.peek().is_some() {
        let group: Vec<E> = entries.by_ref().take(GROUP).collect::<Result<_>>()?;
        write_group(&mut writer, &columns, &group).map_err(bad)?;
    }
    let sealing = writer.into_inner().map_err(bad)?;
    let seal = sealing.hash.digest128().to_be_bytes();
    out.seek(SeekFrom::Start(begin + (SEALED_FROM - seal.len()) as u64)).map_err(io)?;
    out.write_all(&seal).map_err(io)?;
    out.seek(SeekFrom::End(0)).map_err(io)?;
    Ok(())
}

fn write_group<W: Write + Send, E: Borrow<Entry>>(
    writer: &mut SerializedFileWriter<W>,
    columns: &[Column],
    group: &[E],
) -> Result<(), ParquetError> {
    let mut rows = writer.next_row_group()?;
    for column in columns {
        let Some(mut out) = rows.next_column()? else { break };
        let cells = group.iter().map(|entry| column.get(entry.borrow()));
        match column.kind {
            Kind::Bytes | Kind::Text => fill::<ByteArrayType>(&mut out, column, cells, |cell| match cell {
                Cell::Bytes(bytes) => Some(bytes.into()),
                _ => None,
            })?,
            Kind::Count => fill::<Int64Type>(&mut out, column, cells, |cell| match cell {
                Cell::Count(count) => Some(count as i64),
                _ => None,
            })?,
            Kind::Real => fill::<DoubleType>(&mut out, column, cells, |cell| match cell {
                Cell::Real(real) => Some(real),
                _ => None,
            })?,
        }
        out.close()?;
    }
    rows.close()?;
    Ok(())
}

fn fill<T: DataType>(
    out: &mut ::parquet::file::writer::SerializedColumnWriter<'_>,
    column: &Column,
    cells: impl Iterator<Item = Cell>,
    value: impl Fn(Cell) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    for cell in cells {
        let value = value(cell);
        levels.push(i16::from(value.is_some()));
        values.extend(value);
    }
    out.typed::<T>().write_batch(&values, (!column.required).then_some(&levels), None)?;
    Ok(())
}

/// Reads a manifest from a file that begins with [`MAGIC`].
pub(super) fn read(file: File, place: &str) -> Result<Manifest> {
    let io = |error: std::io::Error| Error::from_io(place, &error);
    let size = file.metadata().map_err(io)?.len();
    check_seal(&file, place)?;
    parse(file, size, place)
}

/// Reads a manifest from memory.
pub(super) fn read_bytes(bytes: &[u8], place: &str) -> Result<Manifest> {
    check_seal(bytes, place)?;
    parse(Bytes::copy_from_slice(bytes), bytes.len() as u64, place)
}

/// Returns an error if a sealed file does not match its seal.
fn check_seal(mut file: impl Read, place: &str) -> Result<()> {
    let io = |error: std::io::Error| Error::from_io(place, &error);
    let mut head = [0; SEALED_FROM];
    let mut have = 0;
    while have < head.len() {
        match file.read(&mut head[have..]).map_err(io)? {
            0 => return Err(Error::corrupt(place, format!("ends inside its header (have {have} bytes)"))),
            read => have += read,
        }
    }
    let wrong: u32 = head[MAGIC.len()..].iter().zip(SEAL).map(|(have, want)| (have ^ want).count_ones()).sum();
    if wrong > DAMAGED_SEAL {
        return Ok(());
    }
    let mut hash = Xxh3::new();
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block).map_err(io)? {
            0 => break,
            read => hash.update(&block[..read]),
        }
    }
    match wrong == 0 && hash.digest128().to_be_bytes() == head[SEALED_FROM - 16..] {
        true => Ok(()),
        false => Err(Error::corrupt(place, "is damaged or truncated: its bytes do not match its checksum")),
    }
}

fn parse(file: impl ChunkReader + 'static, size: u64, place: &str) -> Result<Manifest> {
    let no_manifest = |problem: String| Error::corrupt(place, format!("is not a Penstock manifest: {problem}"));
    // A hostile file may violate an assertion of the Parquet reader, which then panics.
    let parsed = catch_panic(|| parse_trusting(file, size, place));
    let parsed = parsed.unwrap_or_else(|_| Err("its Parquet data is invalid".to_owned()));
    let (Parsed { url, source, created_s, failed, version }, objects) = parsed.map_err(no_manifest)?;
    if !(1..=MANIFEST_VERSION).contains(&version) {
        return Err(other_version(version, place));
    }
    finished(Manifest { version: MANIFEST_VERSION, url, source, created_s, failed, objects }, place)
}

struct Parsed {
    version: u32,
    url: String,
    source: Option<String>,
    created_s: f64,
    failed: u64,
}

fn parse_trusting(file: impl ChunkReader + 'static, size: u64, place: &str) -> Result<(Parsed, Vec<Entry>), String> {
    let (text_of, ours) = (|error: ParquetError| error.to_string(), |error: Error| error.to_string());
    let end = |len: u64| {
        let len = len.min(size);
        file.get_bytes(size - len, len as usize).map_err(text_of)
    };
    let end = end(footer_len(&end(TAIL as u64)?, size, place).map_err(ours)?)?;
    let metadata = metadata(&end, size, place).map_err(ours)?;
    let file = Arc::new(file);
    let facts = metadata.file_metadata();
    let fact = |name: &str| {
        let pairs = facts.key_value_metadata()?;
        pairs.iter().find(|pair| pair.key == name)?.value.clone()
    };
    let version = fact("penstock_manifest").ok_or("`penstock_manifest` is missing")?;
    let head = Parsed {
        version: version.parse().map_err(|_| format!("`penstock_manifest` is `{version}`, not a version number"))?,
        url: fact("url").ok_or("`url` is missing")?,
        source: fact("source"),
        created_s: fact("created_s").and_then(|text| text.parse().ok()).filter(|s: &f64| s.is_finite()).unwrap_or(0.0),
        failed: fact("failed").and_then(|text| text.parse().ok()).unwrap_or(0),
    };
    if !(1..=MANIFEST_VERSION).contains(&head.version) {
        return Ok((head, Vec::new()));
    }
    let known = columns();
    // Find the file's column for each known column.
    let descriptor = facts.schema_descr_ptr();
    let mut places = Vec::new();
    for column in &known {
        match descriptor.columns().iter().position(|other| column.is_named(&other.path().string())) {
            Some(at) if descriptor.column(at).max_rep_level() != 0 || descriptor.column(at).max_def_level() > 1 => {
                return Err(format!("column `{}` contains lists", column.name));
            }
            Some(at) => places.push((column, at)),
            None if column.required => return Err(format!("column `{}` is missing", column.name)),
            None => {}
        }
    }
    let rows: i64 = metadata.row_groups().iter().map(|group| group.num_rows().max(0)).fold(0, i64::saturating_add);
    if rows as u64 > size.saturating_mul(ROWS_A_BYTE) || u32::try_from(rows).is_err() {
        return Err(format!("{size} bytes cannot contain {rows} objects"));
    }
    let mut objects: Vec<Entry> = Vec::new();
    for group in metadata.row_groups() {
        let begin = objects.len();
        let rows = group.num_rows().max(0) as usize;
        for (column, at) in &places {
            let is_first = column.name == "key";
            let mut row = begin;
            let mut take = |cell: Cell| -> Result<(), String> {
                if is_first {
                    objects.push(Entry::new(Key::default(), 0));
                }
                let entry = objects.get_mut(row).ok_or_else(|| format!("`{}` has too many cells", column.name))?;
                row += 1;
                column.set(entry, cell)
            };
            let chunk =
                group.columns().get(*at).ok_or_else(|| format!("`{}` is not in every row group", column.name))?;
            let cells = match column_reader(file.clone(), chunk, MAX_PAGE, place).map_err(ours)? {
                ColumnReader::ByteArrayColumnReader(cells) if matches!(column.kind, Kind::Bytes | Kind::Text) => {
                    drain(cells, rows, |value| Cell::Bytes(bytes_of(value.data())), &mut take)
                }
                ColumnReader::FixedLenByteArrayColumnReader(cells) if column.kind == Kind::Bytes => {
                    drain(cells, rows, |value| Cell::Bytes(bytes_of(value.data())), &mut take)
                }
                ColumnReader::Int64ColumnReader(cells) if column.kind == Kind::Count => {
                    drain(cells, rows, |value| Cell::Count(value as u64), &mut take)
                }
                ColumnReader::Int32ColumnReader(cells) if column.kind == Kind::Count => {
                    drain(cells, rows, |value| Cell::Count(value as u32 as u64), &mut take)
                }
                ColumnReader::DoubleColumnReader(cells) if column.kind == Kind::Real => {
                    drain(cells, rows, Cell::Real, &mut take)
                }
                _ => Err("wrong type".to_owned()),
            };
            cells.map_err(|problem| format!("column `{}`: {problem}", column.name))?;
            if row - begin != rows {
                return Err(format!("column `{}` has {} of {rows} cells", column.name, row - begin));
            }
        }
        pack_keys(&mut objects[begin..]);
    }
    Ok((head, objects))
}

fn bytes_of(value: &[u8]) -> Bytes {
    Bytes::copy_from_slice(value)
}

fn drain<T: DataType>(
    mut cells: ColumnReaderImpl<T>,
    rows: usize,
    cell: impl Fn(T::T) -> Cell,
    take: &mut impl FnMut(Cell) -> Result<(), String>,
) -> Result<(), String> {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut left = rows;
    while left > 0 {
        values.clear();
        levels.clear();
        let read = cells.read_records(left.min(BATCH), Some(&mut levels), None, &mut values);
        let (records, _, _) = read.map_err(|error| error.to_string())?;
        if records == 0 {
            return Ok(());
        }
        left -= records.min(left);
        let mut values = values.drain(..);
        if levels.is_empty() {
            values.try_for_each(|value| take(cell(value)))?;
            continue;
        }
        for &level in &levels {
            let value = if level == 0 { Some(Cell::Absent) } else { values.next().map(&cell) };
            take(value.ok_or("fewer values than declared")?)?;
        }
    }
    Ok(())
}
