// SPDX-License-Identifier: Apache-2.0
//! CSV format: a record is a row. Its values are the cells, which have the names in the header. A cell has no type of
//! its own: the field decides whether the cell is a number or a text.

use std::cell::OnceCell;
use std::sync::{Arc, Mutex};

use penstock_record::csv::{Cells, cells, rows};
use penstock_types::{DType, Error, Result, TensorSpec, lock, with_separators};

use super::{Each, Framing, Record, RecordId, refuse_compressed};
use crate::field::{Kind, TextErrors};
use crate::value::Value;
use penstock_dataset::manifest::Manifest;
use penstock_dataset::record_index::Span;

/// A header and the column names that it contains.
type Header = (Vec<u8>, Arc<[String]>);

/// Delimited text, with or without a header.
#[derive(Debug)]
pub(super) struct Csv {
    delimiter: u8,
    has_header: bool,
    /// Names given by the user. They replace the names in the header.
    names: Option<Arc<[String]>>,
    /// The header that was read last. Usually, all objects have the same header.
    header: Mutex<Option<Header>>,
}

impl Csv {
    pub(super) fn new(
        delimiter: Option<&str>,
        has_header: bool,
        names: &[String],
        manifest: &Manifest,
    ) -> Result<Self> {
        let first = manifest.objects.first().map_or(&[][..], |entry| entry.logical_name());
        let by_name = if first.to_ascii_lowercase().ends_with(b".tsv") { b'\t' } else { b',' };
        let delimiter = match delimiter.map(str::as_bytes) {
            None => by_name,
            Some(&[byte]) if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => byte,
            Some(_) => {
                return Err(Error::config(
                    "format",
                    "the delimiter must be one ASCII character, but not a quote or a line break",
                ));
            }
        };
        if !has_header && names.is_empty() {
            return Err(Error::config("format", "a CSV without a header needs the names of its columns"));
        }
        let names = (!names.is_empty()).then(|| names.into());
        Ok(Self { delimiter, has_header, names, header: Mutex::default() })
    }

    /// Column names of an object. `head` are the object's bytes before its first record.
    fn names(&self, head: &[u8], place: &str) -> Result<Arc<[String]>> {
        if let Some(names) = &self.names {
            return Ok(names.clone());
        }
        let mut known = lock(&self.header);
        if let Some((bytes, names)) = &*known
            && bytes == head
        {
            return Ok(names.clone());
        }
        let header = cells(head, self.delimiter, place)?;
        let mut names: Vec<String> = Vec::with_capacity(header.len());
        for cell in (0..header.len()).filter_map(|cell| header.get(cell)) {
            let name =
                std::str::from_utf8(cell).map_err(|_| Error::corrupt(place, "has a header that is not UTF-8"))?;
            if names.iter().any(|known| known == name) {
                let problem = format!(
                    "has two columns with the name `{name}`; set other names with penstock.formats.csv(columns=[...])"
                );
                return Err(Error::corrupt(place, problem));
            }
            names.push(name.to_owned());
        }
        let names: Arc<[String]> = names.into();
        *known = Some((head.to_vec(), names.clone()));
        Ok(names)
    }
}

impl Framing for Csv {
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        self.spans_from(0, content, place, spans)
    }

    fn spans_from(&self, start: u64, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        if start == 0 {
            refuse_compressed(content, place)?;
        }
        let header = usize::from(self.has_header && start == 0);
        for row in rows(content, self.delimiter).skip(header) {
            let crc = self.crc(&content[row.clone()]);
            spans.push(Span { offset: row.start as u64, len: row.len() as u64, crc });
        }
        Ok(())
    }

    fn whole<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        // Before the row, a span can contain the line ends of blank lines, or the `\n` of the previous row's `\r\n`.
        // The span ends with the row's own `\n` or `\r`.
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let row = &bytes[bytes.iter().take_while(|&byte| is_line_end(byte)).count()..];
        Some(if row.last().is_some_and(is_line_end) { &row[..row.len() - 1] } else { row })
    }

    fn needs_head(&self) -> bool {
        self.has_header && self.names.is_none()
    }

    fn read(&self, bytes: &[u8], head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        let place = format!("{} record {}", id.place, id.record);
        let names = self.names(head, id.place)?;
        each(&Row { names: &names, bytes, delimiter: self.delimiter, place: &place, cells: OnceCell::new() })
    }

    fn proposes(&self, _name: &str, part: &Value<'_>) -> Option<Kind> {
        match part {
            Value::Digits(text) => Some(number(text).unwrap_or(Kind::Text(TextErrors::Strict))),
            _ => None,
        }
    }
}

/// Kind of a field for a number that is given as text: int64, uint64 or float64. Returns `None` for other texts, and
/// for numbers with leading zeros, which are usually codes.
pub(super) fn number(text: &[u8]) -> Option<Kind> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let digits = text.trim_start_matches(['-', '+']);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    let is_code = digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit();
    let dtype = match text {
        _ if !is_number || is_code => return None,
        text if text.parse::<i64>().is_ok() => DType::I64,
        text if text.parse::<u64>().is_ok() => DType::U64,
        text if text.parse::<f64>().is_ok() => DType::F64,
        _ => return None,
    };
    Some(Kind::Tensor(TensorSpec { dtype, shape: Vec::new() }))
}

/// A row. It is divided into cells only when a value is read, so `raw(record=True)` can read rows of any content.
struct Row<'a> {
    names: &'a [String],
    bytes: &'a [u8],
    delimiter: u8,
    place: &'a str,
    cells: OnceCell<Result<Cells>>,
}

impl Row<'_> {
    fn cells(&self) -> Result<&Cells> {
        let parse = || {
            let cells = cells(self.bytes, self.delimiter, self.place)?;
            if self.names.len() == cells.len() {
                return Ok(cells);
            }
            let (have, want) = (with_separators(cells.len() as u64), with_separators(self.names.len() as u64));
            Err(Error::corrupt(self.place, format!("has {have} cells, but there are {want} columns")))
        };
        self.cells.get_or_init(parse).as_ref().map_err(Clone::clone)
    }
}

impl Record for Row<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let cells = self.cells()?;
        let Some(at) = self.names.iter().position(|known| known == name) else { return Ok(None) };
        Ok(cells.get(at).map(|cell| if cell.is_empty() { Value::Empty("") } else { Value::Digits(cell) }))
    }

    fn names(&self) -> Vec<String> {
        self.names.to_vec()
    }

    fn check(&self) -> Result<()> {
        self.cells().map(|_| ())
    }

    fn takes_defaults(&self) -> bool {
        true
    }
}
