// SPDX-License-Identifier: Apache-2.0
//! Arrow IPC format (files and streams, and the folders that Hugging Face's `save_to_disk` writes). A record is a row.
//! Its values are named by column path (for example, `image.bytes`).

use bytes::Bytes;
use penstock_record::arrow::{File, NextBatch, Reader, Value as Cell, first_message, next_batch};
use penstock_types::{Error, Result};

use super::{Each, EachRow, Framing, NextGroup, Record, RecordId, Table};
use crate::field::{Kind, TextErrors};
use crate::value::nested_lists::Nested;
use crate::value::{Array, Value};
use penstock_dataset::manifest::Manifest;
use penstock_dataset::record_index::Span;

/// File that `DatasetDict.save_to_disk` writes beside the folders of the splits.
const SPLITS: &[u8] = b"dataset_dict.json";

/// Files that Hugging Face's `save_to_disk` writes beside the data.
pub(super) const METADATA: [&[u8]; 3] = [b"state.json", b"dataset_info.json", SPLITS];

/// Returns an error for a folder that contains several splits, because the samples of splits must not be mixed.
pub(super) fn check_listing(manifest: &Manifest) -> Result<()> {
    if !manifest.objects.iter().any(|entry| entry.key.as_bytes() == SPLITS) {
        return Ok(());
    }
    let mut splits: Vec<String> = Vec::new();
    for entry in &manifest.objects {
        let key = entry.key.to_string();
        if let Some((split, name)) = key.split_once('/')
            && name.ends_with(".arrow")
            && !splits.iter().any(|known| known == split)
        {
            splits.push(split.to_owned());
        }
    }
    let (url, splits) = (&manifest.url, splits.join(", "));
    Err(Error::config("dataset", format!("{url} contains several splits ({splits}); open the folder of one split")))
}

#[derive(Debug)]
pub(super) struct Arrow;

impl Framing for Arrow {
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
        Ok(Box::new(Rows { file: File::open(content, place)? }))
    }

    fn next_group(&self, bytes: &[u8], at: u64, size: u64, place: &str) -> Option<Result<NextGroup>> {
        let skip = if at == 0 { first_message(bytes) } else { 0 };
        let rest = bytes.get(skip as usize..).unwrap_or_default();
        Some(next_batch(rest, at + skip, size, place).map(|next| match next {
            NextBatch::Rows(rows, next) => NextGroup::Rows(rows, next),
            NextBatch::End => NextGroup::End,
            NextBatch::Wants(len) => NextGroup::Wants(skip + len),
        }))
    }

    fn proposes(&self, _name: &str, part: &Value<'_>) -> Option<Kind> {
        matches!(part, Value::Text(_)).then_some(Kind::Text(TextErrors::Strict))
    }
}

struct Rows {
    file: File,
}

impl Table for Rows {
    fn records(&self) -> u64 {
        self.file.rows()
    }

    fn each(&self, records: &[u64], _parts: &[&[String]], limit: u64, each: EachRow<'_>) {
        let mut from = 0;
        for (number, bounds) in self.file.starts().windows(2).enumerate() {
            let len = records[from..].partition_point(|&record| record < bounds[1]);
            if len == 0 {
                continue;
            }
            let reader = self.file.batch(number, limit);
            for (at, record) in records[from..from + len].iter().enumerate() {
                each(from + at, Ok(&Row { file: &self.file, reader: &reader, row: record - bounds[0] }));
            }
            from += len;
        }
    }

    fn time(&self, name: &str) -> Option<&str> {
        self.file.columns().iter().find(|column| column.name == name)?.time.as_deref()
    }
}

/// Converts a value. `text` is true if byte strings are text.
fn value(cell: Cell<'_>, text: bool) -> Value<'_> {
    match cell {
        Cell::Null => Value::Null,
        Cell::Scalar(dtype, bytes) => Value::Array(Array { dtype, shape: Vec::new(), bytes }),
        Cell::Bytes(bytes) if text => Value::Text(bytes.into()),
        Cell::Bytes(bytes) => Value::Bytes(bytes.into()),
        Cell::List(dtype, bytes) => Value::List(Array { dtype, shape: vec![bytes.len() / dtype.size()], bytes }),
        Cell::Strings(strings) => Value::Strings(strings),
        Cell::Nested(ends, items) => Value::Nested(Nested { ends, items: Box::new(value(*items, text)) }),
    }
}

struct Row<'a> {
    file: &'a File,
    reader: &'a Reader<'a>,
    row: u64,
}

impl Record for Row<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let Some(number) = self.file.columns().iter().position(|column| column.name == name) else { return Ok(None) };
        let text = self.file.columns()[number].text;
        self.reader.value(number, self.row).map(|cell| Some(value(cell, text)))
    }

    fn takes_defaults(&self) -> bool {
        true
    }

    fn names(&self) -> Vec<String> {
        self.file.columns().iter().map(|column| column.name.clone()).collect()
    }
}
