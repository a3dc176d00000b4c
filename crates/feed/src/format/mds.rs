// SPDX-License-Identifier: Apache-2.0
//! MosaicML's MDS format: an `index.json` lists the shards. A record is a sample. Its values are the columns of the
//! sample.

use std::borrow::Cow;

use penstock_record::mds::{Column, Encoding, Shard, ShardInfo, parse_index, sample_columns};
use penstock_types::{Error, Result, TensorSpec};

use super::{Each, Framing, Record, RecordId};
use crate::field::Kind;
use crate::value::{Array, Value};
use penstock_dataset::manifest::Manifest;
use penstock_dataset::record_index::Span;

/// Name of the object that lists the shards and their columns.
pub(super) const INDEX: &str = "index.json";

/// Shards listed in an index.
#[derive(Debug)]
pub(super) struct Mds {
    /// Shard of each object, in the order of the manifest.
    shards: Vec<ShardInfo>,
}

/// Returns the object names that an index lists. `place` is the name of the index in error messages.
pub(super) fn names(index: &str, place: &str) -> Result<Vec<String>> {
    Ok(parse_index(index.as_bytes(), place)?.into_iter().map(|shard| shard.name).collect())
}

impl Mds {
    pub(super) fn new(index: &str, manifest: &Manifest) -> Result<Self> {
        let mut shards = parse_index(index.as_bytes(), INDEX)?;
        shards.sort_by(|a, b| a.name.cmp(&b.name));
        let of = |key: &[u8]| shards.iter().find(|shard| shard.name.as_bytes() == key).cloned();
        let missing = |key: &[u8]| Error::corrupt(INDEX, format!("does not list the shard `{}`", key.escape_ascii()));
        let found = manifest.objects.iter().map(|entry| {
            let key = entry.key.as_bytes();
            of(key).ok_or_else(|| missing(key))
        });
        Ok(Self { shards: found.collect::<Result<_>>()? })
    }
}

impl Framing for Mds {
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        let shard = Shard::new(content, place)?;
        for at in 0..shard.len() {
            let (offset, len) = shard.span(at);
            let bytes = content.get(offset as usize..(offset + len) as usize).unwrap_or_default();
            spans.push(Span { offset, len, crc: self.crc(bytes) });
        }
        Ok(())
    }

    fn count_of_object(&self, object: u64) -> Option<u64> {
        self.shards.get(object as usize).map(|shard| shard.samples)
    }

    fn columns_of_object(&self, object: u64) -> Option<Vec<String>> {
        let columns = &self.shards.get(object as usize)?.columns;
        Some(columns.iter().map(|column| column.name.clone()).collect())
    }

    /// Uses the type that the index declares for the column, whatever the first value is.
    fn proposes(&self, name: &str, _part: &Value<'_>) -> Option<Kind> {
        let column = self.shards.iter().flat_map(|shard| &shard.columns).find(|column| column.name == name)?;
        match column.encoding {
            Encoding::Text => Some(Kind::Bytes),
            Encoding::Digits(dtype) => Some(Kind::Tensor(TensorSpec { dtype, shape: Vec::new() })),
            _ => None,
        }
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        let Some(shard) = self.shards.get(id.object as usize) else {
            return Err(Error::bug(format!("{} is not a shard of its index", id.place)));
        };
        let place = format!("{} record {}", id.place, id.record);
        let parts = sample_columns(bytes, &shard.columns, &place)?;
        each(&Sample { bytes, columns: &shard.columns, parts, place: id.place })
    }
}

struct Sample<'a> {
    bytes: &'a [u8],
    columns: &'a [Column],
    parts: Vec<penstock_record::mds::ColumnSpan>,
    place: &'a str,
}

impl Record for Sample<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let Some(at) = self.columns.iter().position(|column| column.name == name) else { return Ok(None) };
        let part = &self.parts[at];
        let bytes = self.bytes.get(part.offset as usize..(part.offset + part.size) as usize).unwrap_or_default();
        Ok(Some(match &self.columns[at].encoding {
            Encoding::Bytes => Value::Bytes(Cow::Borrowed(bytes)),
            // The field decides whether the value is returned as stored bytes or as a number.
            Encoding::Text | Encoding::Digits(_) => Value::Digits(bytes),
            encoding => {
                let (spec, data) = encoding.tensor(bytes, self.place)?;
                Value::Array(Array { dtype: spec.dtype, shape: spec.shape, bytes: Cow::Borrowed(data) })
            }
        }))
    }

    fn takes_defaults(&self) -> bool {
        true
    }

    fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }
}
