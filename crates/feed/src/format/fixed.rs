// SPDX-License-Identifier: Apache-2.0
//! Fixed-size records: records of concatenated columns, and windows of a flat file of tokens. The position of a record
//! is computed from the record's index.

use std::borrow::Cow;

use penstock_types::{DType, Error, Result, TensorSpec, with_separators};
use serde::{Deserialize, Serialize};

use super::{Each, Framing, Record, RecordId};
use crate::value::{Array, Value, get_int};
use penstock_dataset::record_index::Span;

/// Column of a fixed-size record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Element type, such as `float32`.
    pub dtype: String,
    /// Shape of one sample of the column.
    #[serde(default)]
    pub shape: Vec<usize>,
}

/// Fixed-size records that consist of concatenated columns.
#[derive(Debug)]
pub(super) struct Fixed {
    header: u64,
    record: u64,
    columns: Vec<(String, usize, TensorSpec)>,
}

impl Fixed {
    pub(super) fn new(header: u64, columns: &[Column]) -> Result<Self> {
        let mut at = 0usize;
        let mut found = Vec::new();
        for column in columns {
            let spec = TensorSpec { dtype: column.dtype.parse()?, shape: column.shape.clone() };
            let start = at;
            at = at
                .checked_add(spec.size_bytes()?)
                .ok_or_else(|| Error::config("format", "records are larger than the address space"))?;
            found.push((column.name.clone(), start, spec));
        }
        if at == 0 {
            return Err(Error::config(
                "format",
                "a fixed-size record must have at least one column of at least 1 byte",
            ));
        }
        Ok(Self { header, record: at as u64, columns: found })
    }
}

/// Number of windows of `whole` bytes that fit after a header, if they start `step` bytes apart.
fn fit(bytes: u64, header: u64, step: u64, whole: u64) -> u64 {
    bytes.checked_sub(header).filter(|&rest| rest >= whole).map_or(0, |rest| (rest - whole) / step + 1)
}

impl Framing for Fixed {
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        let count = self.count_of_size(content.len() as u64, place).unwrap_or(Ok(0))?;
        spans.extend((0..count).filter_map(|record| self.span_of(record)));
        Ok(())
    }

    fn count_of_size(&self, bytes: u64, place: &str) -> Option<Result<u64>> {
        let rest = bytes.saturating_sub(self.header);
        if bytes < self.header || !rest.is_multiple_of(self.record) {
            return Some(Err(Error::corrupt(
                place,
                format!(
                    "has {} bytes, but needs a header of {} bytes and whole records of {} bytes",
                    with_separators(bytes),
                    with_separators(self.header),
                    with_separators(self.record)
                ),
            )));
        }
        Some(Ok(rest / self.record))
    }

    fn span_of(&self, record: u64) -> Option<Span> {
        Some(Span { offset: self.header + record * self.record, len: self.record, crc: 0 })
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        if bytes.len() as u64 != self.record {
            return Err(Error::corrupt(id.place, format!("ends inside record {}", id.record)));
        }
        each(&Row { columns: &self.columns, bytes })
    }
}

struct Row<'a> {
    columns: &'a [(String, usize, TensorSpec)],
    bytes: &'a [u8],
}

impl Record for Row<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let Some((_, start, spec)) = self.columns.iter().find(|(known, _, _)| known == name) else { return Ok(None) };
        let bytes = &self.bytes[*start..*start + spec.size_bytes()?];
        Ok(Some(Value::Array(Array { dtype: spec.dtype, shape: spec.shape.clone(), bytes: Cow::Borrowed(bytes) })))
    }

    fn names(&self) -> Vec<String> {
        self.columns.iter().map(|(name, _, _)| name.clone()).collect()
    }
}

/// Name of the value that contains tokens.
pub(super) const TOKENS: &str = "tokens";
/// Name of the value that contains a document number for each token. The documents of a window are counted from 1.
const SEGMENT_IDS: &str = "segment_ids";
/// Name of the value that contains, for each token, its index in its document. If a document starts before the window,
/// the index is counted from the start of the window.
const POSITION_IDS: &str = "position_ids";

/// Windows of a flat file of tokens.
#[derive(Debug)]
pub(super) struct Tokens {
    header: u64,
    dtype: DType,
    length: u64,
    stride: u64,
    /// Token that ends a document. If it is set, windows also have segment and position numbers.
    eos: Option<i64>,
}

impl Tokens {
    pub(super) fn new(header: u64, dtype: &str, length: u64, stride: u64, eos: Option<i64>) -> Result<Self> {
        let dtype: DType = dtype.parse()?;
        if length == 0 || stride == 0 || length.max(stride) > 1 << 40 {
            return Err(Error::config(
                "format",
                format!("length and stride must be 1 to 2^40 (got length {length}, stride {stride})"),
            ));
        }
        if matches!(dtype, DType::F16 | DType::F32 | DType::F64) && eos.is_some() {
            return Err(Error::config("format", format!("eos requires tokens of an integer type, not {dtype}")));
        }
        Ok(Self { header, dtype, length, stride, eos })
    }
}

impl Framing for Tokens {
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        let count = self.count_of_size(content.len() as u64, place).unwrap_or(Ok(0))?;
        spans.extend((0..count).filter_map(|record| self.span_of(record)));
        Ok(())
    }

    fn count_of_size(&self, bytes: u64, place: &str) -> Option<Result<u64>> {
        let size = self.dtype.size() as u64;
        if bytes < self.header || !(bytes - self.header).is_multiple_of(size) {
            let (bytes, header) = (with_separators(bytes), with_separators(self.header));
            let problem =
                format!("has {bytes} bytes, but needs a header of {header} bytes and whole {} values", self.dtype);
            return Some(Err(Error::corrupt(place, problem)));
        }
        Some(Ok(fit(bytes, self.header, self.stride * size, self.length * size)))
    }

    fn span_of(&self, record: u64) -> Option<Span> {
        let size = self.dtype.size() as u64;
        Some(Span { offset: self.header + record * self.stride * size, len: self.length * size, crc: 0 })
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        if bytes.len() as u64 != self.length * self.dtype.size() as u64 {
            return Err(Error::corrupt(id.place, format!("ends inside window {}", id.record)));
        }
        each(&Window { dtype: self.dtype, bytes, eos: self.eos })
    }
}

struct Window<'a> {
    dtype: DType,
    bytes: &'a [u8],
    eos: Option<i64>,
}

impl Window<'_> {
    /// Returns `of(document number, index in the document)` as int32 for each token.
    fn documents(&self, eos: i64, of: impl Fn(i32, i32) -> i32) -> Value<'_> {
        let (mut segment, mut position) = (1, 0);
        let mut bytes = Vec::with_capacity(self.bytes.len() / self.dtype.size() * 4);
        for token in self.bytes.chunks_exact(self.dtype.size()) {
            bytes.extend(of(segment, position).to_le_bytes());
            position += 1;
            if get_int(self.dtype, token) == i128::from(eos) {
                (segment, position) = (segment + 1, 0);
            }
        }
        Value::Array(Array { dtype: DType::I32, shape: vec![bytes.len() / 4], bytes: Cow::Owned(bytes) })
    }
}

impl Record for Window<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let shape = vec![self.bytes.len() / self.dtype.size()];
        let array = Array { dtype: self.dtype, shape, bytes: Cow::Borrowed(self.bytes) };
        Ok(match (name, self.eos) {
            (TOKENS, _) => Some(Value::Array(array)),
            (SEGMENT_IDS, Some(eos)) => Some(self.documents(eos, |segment, _| segment)),
            (POSITION_IDS, Some(eos)) => Some(self.documents(eos, |_, position| position)),
            _ => None,
        })
    }

    fn names(&self) -> Vec<String> {
        let ids = [SEGMENT_IDS, POSITION_IDS].iter().filter(|_| self.eos.is_some());
        std::iter::once(&TOKENS).chain(ids).map(|name| (*name).to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, dtype: &str, shape: &[usize]) -> Column {
        Column { name: name.into(), dtype: dtype.into(), shape: shape.to_vec() }
    }

    #[test]
    fn records_of_one_size_are_counted_by_it() {
        let fixed = Fixed::new(4, &[column("label", "uint8", &[]), column("x", "int16", &[3])]).unwrap();
        assert_eq!(fixed.count_of_size(4 + 7 * 5, "p").unwrap().unwrap(), 5);
        assert_eq!(fixed.count_of_size(4, "p").unwrap().unwrap(), 0);
        let error = fixed.count_of_size(4 + 7 * 5 + 1, "p").unwrap().unwrap_err().to_string();
        assert_eq!(error, "p has 40 bytes, but needs a header of 4 bytes and whole records of 7 bytes");
        assert!(fixed.count_of_size(3, "p").unwrap().is_err());
        assert!(Fixed::new(0, &[]).is_err());
    }

    #[test]
    fn windows_overlap_and_the_rest_is_left_out() {
        let tokens = Tokens::new(0, "uint16", 5, 4, None).unwrap();
        let counts: Vec<u64> = (0..14).map(|n| tokens.count_of_size(2 * n, "p").unwrap().unwrap()).collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]);
        assert_eq!(tokens.span_of(2).unwrap().range(), 16..26);
        assert!(tokens.count_of_size(3, "p").unwrap().is_err());
    }
}
