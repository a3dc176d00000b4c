// SPDX-License-Identifier: Apache-2.0
//! NumPy files. In a `.npy` file, either the whole file or each row of its array is a record. An `.npz` file is one
//! record of several arrays.

use std::borrow::Cow;

use penstock_record::npy::{self, Header};
use penstock_record::npz::Directory;
use penstock_types::{DType, Error, Result, TensorSpec, with_separators};

use super::{Each, Framing, HeadRows, Record, RecordId};
use crate::decode_memory::PartHold;
use crate::value::{Array, Value};
use penstock_dataset::record_index::Span;

/// Name of the value that contains the array of a `.npy` file.
const ARRAY: &str = "array";

/// Number of bytes that are read from the start of each object for its row count. NumPy's headers are much shorter.
pub(super) const HEAD: u64 = 4096;

/// Returns the elements of an array as little-endian elements in C order. `data` are the file's bytes after the header.
pub(super) fn elements<'a>(header: &Header, data: &'a [u8], place: &str) -> Result<Array<'a>> {
    let spec = sized(header, data, place)?;
    Ok(Array { dtype: spec.dtype, bytes: swapped(header, data), shape: spec.shape })
}

/// Parses a whole `.npy` file.
pub(super) fn array<'a>(bytes: &'a [u8], place: &str) -> Result<Array<'a>> {
    let header = npy::parse(bytes, place)?;
    elements(&header, &bytes[header.data_offset.min(bytes.len())..], place)
}

/// Returns the type and shape of the array. Returns an error if `data` does not have the matching length.
fn sized(header: &Header, data: &[u8], place: &str) -> Result<TensorSpec> {
    let spec = typed(header, place)?;
    let want = spec.size_bytes()?;
    if data.len() != want {
        let (want, have) = (with_separators(want as u64), with_separators(data.len() as u64));
        let problem = format!("has {have} bytes of elements, but its header declares {want} bytes");
        return Err(Error::corrupt(place, problem));
    }
    Ok(spec)
}

fn typed(header: &Header, place: &str) -> Result<TensorSpec> {
    if header.fortran_order {
        let shape: Vec<usize> = header.spec.shape.iter().rev().copied().collect();
        let what = format!("Fortran order ({place}, shape {shape:?}; save numpy.ascontiguousarray(array) instead)");
        return Err(Error::Unsupported { what, by: "the .npy reader".to_owned() });
    }
    let dtype = if header.boolean { DType::Bool } else { header.spec.dtype };
    Ok(TensorSpec { dtype, shape: header.spec.shape.clone() })
}

fn swapped<'a>(header: &Header, bytes: &'a [u8]) -> Cow<'a, [u8]> {
    if !header.big_endian {
        return Cow::Borrowed(bytes);
    }
    let mut bytes = bytes.to_vec();
    bytes.chunks_exact_mut(header.spec.dtype.size()).for_each(<[u8]>::reverse);
    Cow::Owned(bytes)
}

/// Returns the array of a whole `.npy` file. Uses the memory of `file` for the array.
fn inflated_array(mut file: Vec<u8>, place: &str) -> Result<Array<'static>> {
    let header = npy::parse(&file, place)?;
    let data = file.get(header.data_offset..).unwrap_or_default();
    let spec = sized(&header, data, place)?;
    file.drain(..header.data_offset);
    if header.big_endian {
        file.chunks_exact_mut(spec.dtype.size()).for_each(<[u8]>::reverse);
    }
    Ok(Array { dtype: spec.dtype, shape: spec.shape, bytes: Cow::Owned(file) })
}

/// Framing of `.npy` files.
#[derive(Debug)]
pub(super) struct Npy {
    pub rows: bool,
}

fn rows(header: &Header, place: &str) -> Result<HeadRows> {
    let spec = typed(header, place)?;
    let Some((&count, rest)) = spec.shape.split_first() else {
        return Err(Error::corrupt(place, "contains a single number, which has no rows"));
    };
    let row = TensorSpec { dtype: spec.dtype, shape: rest.to_vec() }.size_bytes()?;
    // Reject empty rows, because a header of 100 bytes could declare any number of them.
    if row == 0 && count > 0 {
        return Err(Error::corrupt(place, format!("has rows of 0 bytes (shape {:?})", spec.shape)));
    }
    Ok(HeadRows { head: header.data_offset as u64, row: row as u64, count: count as u64 })
}

impl Framing for Npy {
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        if !self.rows {
            spans.push(Span { offset: 0, len: content.len() as u64, crc: self.crc(content) });
            return Ok(());
        }
        let rows = rows(&npy::parse(content, place)?, place)?;
        for (number, span) in (0..rows.count).filter_map(|number| rows.span(number)).enumerate() {
            let Some(bytes) = content.get(span.offset as usize..span.range().end as usize) else {
                return Err(Error::corrupt(
                    place,
                    format!("ends inside row {number} of {}", with_separators(rows.count)),
                ));
            };
            spans.push(Span { crc: self.crc(bytes), ..span });
        }
        Ok(())
    }

    fn count_of_size(&self, _bytes: u64, _place: &str) -> Option<Result<u64>> {
        (!self.rows).then_some(Ok(1))
    }

    fn head_for_count(&self) -> Option<u64> {
        self.rows.then_some(HEAD)
    }

    fn rows_of_head(&self, head: &[u8], size: u64, place: &str) -> Result<HeadRows> {
        let rows = rows(&npy::parse(head, place)?, place)?;
        let want = rows.head + rows.count * rows.row;
        if want != size {
            let (want, have) = (with_separators(want), with_separators(size));
            return Err(Error::corrupt(place, format!("has {have} bytes, but its header declares {want} bytes")));
        }
        Ok(rows)
    }

    fn needs_head(&self) -> bool {
        self.rows
    }

    fn read(&self, bytes: &[u8], head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        let array = if self.rows {
            let header = npy::parse(head, id.place)?;
            let spec = typed(&header, id.place)?;
            let shape = spec.shape.get(1..).unwrap_or_default().to_vec();
            if (TensorSpec { dtype: spec.dtype, shape: shape.clone() }).size_bytes()? != bytes.len() {
                return Err(Error::corrupt(id.place, "has a header that does not match the size of its rows"));
            }
            Array { dtype: spec.dtype, shape, bytes: swapped(&header, bytes) }
        } else {
            array(bytes, id.place)?
        };
        each(&One(array))
    }
}

struct One<'a>(Array<'a>);

impl Record for One<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let array = || Array { dtype: self.0.dtype, shape: self.0.shape.clone(), bytes: Cow::Borrowed(&*self.0.bytes) };
        Ok((name == ARRAY).then(|| Value::Array(array())))
    }

    fn names(&self) -> Vec<String> {
        vec![ARRAY.to_owned()]
    }
}

/// Framing of `.npz` files.
#[derive(Debug)]
pub(super) struct Npz;

impl Framing for Npz {
    fn spans(&self, content: &[u8], _place: &str, spans: &mut Vec<Span>) -> Result<()> {
        spans.push(Span { offset: 0, len: content.len() as u64, crc: self.crc(content) });
        Ok(())
    }

    fn count_of_size(&self, _bytes: u64, _place: &str) -> Option<Result<u64>> {
        Some(Ok(1))
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        each(&Arrays { directory: Directory::parse(bytes, id.place)?, memory: id.memory })
    }

    fn inflates_parts(&self) -> bool {
        true
    }
}

struct Arrays<'a> {
    directory: Directory<'a>,
    memory: &'a PartHold<'a>,
}

impl Record for Arrays<'_> {
    fn takes_defaults(&self) -> bool {
        true
    }

    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let Some(entry) = self.directory.get(name) else { return Ok(None) };
        let place = self.directory.member(entry);
        self.memory.take(&place, if entry.deflated { entry.size } else { 0 })?;
        let content = self.directory.read(entry)?;
        // As in numpy.load, a member that is not an array is returned as bytes. Its CRC-32 matches, so the member is
        // not a damaged array.
        if !content.starts_with(npy::MAGIC) && !entry.name.ends_with(b".npy") {
            return Ok(Some(Value::Bytes(content)));
        }
        let array = match content {
            Cow::Borrowed(file) => array(file, &place)?,
            Cow::Owned(file) => inflated_array(file, &place)?,
        };
        Ok(Some(Value::Array(array)))
    }

    fn names(&self) -> Vec<String> {
        let stem = |name: &[u8]| String::from_utf8_lossy(name.strip_suffix(b".npy").unwrap_or(name)).into_owned();
        self.directory.entries().iter().map(|entry| stem(entry.name)).collect()
    }
}
