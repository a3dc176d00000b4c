// SPDX-License-Identifier: Apache-2.0
//! Records of chunked arrays: each row of a decoded block is a record of fixed size.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_types::{Error, Result, TensorSpec};

use super::{Each, Framing, Record, RecordId};
use crate::chunked_arrays::Blocks;
use crate::value::{Array, Value};
use penstock_dataset::record_index::Span;

/// Framing of decoded blocks: their rows have a fixed size.
#[derive(Debug)]
pub(crate) struct Rows {
    blocks: Arc<Blocks>,
    parts: Vec<(String, usize, TensorSpec)>,
}

impl Rows {
    pub fn new(blocks: Arc<Blocks>) -> Result<Self> {
        let (mut parts, mut at) = (Vec::new(), 0);
        for (name, spec) in blocks.parts() {
            let size = spec.size_bytes()?;
            parts.push((name.to_owned(), at, spec));
            at += size;
        }
        Ok(Self { blocks, parts })
    }
}

impl Framing for Rows {
    fn spans(&self, content: &[u8], _place: &str, spans: &mut Vec<Span>) -> Result<()> {
        let len = self.blocks.row_bytes().max(1) as u64;
        let count = content.len() as u64 / len;
        spans.extend((0..count).map(|row| Span { offset: row * len, len, crc: 0 }));
        Ok(())
    }

    fn count_of_object(&self, object: u64) -> Option<u64> {
        self.blocks.blocks.get(object as usize).map(|block| block.rows.len() as u64)
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        if bytes.len() != self.blocks.row_bytes() {
            return Err(Error::bug(format!("{}: a row of {} bytes", id.place, bytes.len())));
        }
        each(&Row { parts: &self.parts, bytes })
    }
}

struct Row<'a> {
    parts: &'a [(String, usize, TensorSpec)],
    bytes: &'a [u8],
}

impl Record for Row<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let Some((_, start, spec)) = self.parts.iter().find(|(known, _, _)| known == name) else { return Ok(None) };
        let bytes = &self.bytes[*start..*start + spec.size_bytes()?];
        Ok(Some(Value::Array(Array { dtype: spec.dtype, shape: spec.shape.clone(), bytes: Cow::Borrowed(bytes) })))
    }

    fn names(&self) -> Vec<String> {
        self.parts.iter().map(|(name, _, _)| name.clone()).collect()
    }
}
