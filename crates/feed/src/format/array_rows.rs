// SPDX-License-Identifier: Apache-2.0
//! Records of chunked arrays: the rows of a decoded block, or the patches that are copied from a decoded block.

use std::borrow::Cow;
use std::sync::Arc;

use penstock_types::{Error, Result, TensorSpec};

use super::{Each, Framing, Record, RecordId};
use crate::chunked_arrays::{Blocks, Extent};
use crate::chunked_arrays::{FILE, ORIGIN, Patch};
use crate::value::{Array, Value};
use penstock_dataset::record_index::Span;

/// Framing of decoded blocks: rows of a fixed size, or patches.
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
    fn spans(&self, _content: &[u8], place: &str, _spans: &mut Vec<Span>) -> Result<()> {
        Err(Error::bug(format!("the record positions of {place} cannot be computed without its block")))
    }

    fn count_of_object(&self, object: u64) -> Option<u64> {
        self.blocks.blocks.get(object as usize).map(|block| block.records() as u64)
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        let block = &self.blocks.blocks[id.object as usize];
        if let Extent::Patches { numbers, .. } = &block.extent {
            let (box_shape, start) = self.blocks.patch_box(numbers);
            let (origin, file) = self.blocks.origin(id.object, id.record);
            let start = origin.iter().zip(start).map(|(&origin, start)| origin as usize - start).collect();
            return each(&Cut { parts: &self.parts, bytes, box_shape, start, origin, file });
        }
        if bytes.len() != self.blocks.row_bytes() {
            return Err(Error::bug(format!("{} has a row of unexpected size ({} bytes)", id.place, bytes.len())));
        }
        each(&Row { parts: &self.parts, bytes })
    }

    fn whole<'a>(&self, _bytes: &'a [u8]) -> Option<&'a [u8]> {
        None
    }
}

/// A record of patches: one patch of each array, in the decoded boxes of a block.
struct Cut<'a> {
    parts: &'a [(String, usize, TensorSpec)],
    bytes: &'a [u8],
    box_shape: Vec<usize>,
    /// Index of the patch's first element in the box.
    start: Vec<usize>,
    /// Index of the patch's first element in the array.
    origin: Vec<i64>,
    file: i64,
}

impl Record for Cut<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let elements: usize = self.box_shape.iter().product();
        let mut before = 0;
        for (known, _, spec) in self.parts {
            let size = elements * spec.dtype.size();
            if known != name {
                before += size;
                continue;
            }
            if name == ORIGIN {
                let bytes: Vec<u8> = self.origin.iter().flat_map(|index| index.to_le_bytes()).collect();
                let (dtype, shape) = (spec.dtype, spec.shape.clone());
                return Ok(Some(Value::Array(Array { dtype, shape, bytes: Cow::Owned(bytes) })));
            }
            if name == FILE {
                return Ok(Some(Value::Int(self.file)));
            }
            let Some(bytes) = self.bytes.get(before..before + size) else {
                return Err(Error::bug(format!("the box of `{name}` has too few bytes")));
            };
            let (dtype, shape, box_shape) = (spec.dtype, spec.shape.as_slice(), self.box_shape.as_slice());
            return Ok(Some(Value::Patch(Patch { dtype, shape, start: self.start.clone(), box_shape, bytes })));
        }
        Ok(None)
    }

    fn names(&self) -> Vec<String> {
        self.parts.iter().map(|(name, _, _)| name.clone()).collect()
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
