// SPDX-License-Identifier: Apache-2.0
//! Megatron-LM's token files: a record is a document of a `.bin` file. The position of the document comes from the
//! `.idx` file of the same name, which is imported as a record index.

use std::borrow::Cow;

use penstock_types::{DType, Error, Result, TensorSpec};

use super::fixed::TOKENS;
use super::{Each, Framing, Record, RecordId};
use crate::field::{Field, Kind};
use crate::value::{Array, Value};
use penstock_dataset::record_index::Span;

#[derive(Debug)]
pub(super) struct Megatron {
    pub dtype: DType,
}

impl Framing for Megatron {
    fn spans(&self, _content: &[u8], place: &str, _spans: &mut Vec<Span>) -> Result<()> {
        Err(Error::corrupt(place, "cannot be divided into documents, because no index (.idx) matches it"))
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        if !bytes.len().is_multiple_of(self.dtype.size()) {
            return Err(Error::corrupt(id.place, format!("ends inside document {}", id.record)));
        }
        each(&Document { dtype: self.dtype, bytes })
    }

    fn declares(&self) -> Option<Vec<Field>> {
        let spec = TensorSpec { dtype: self.dtype, shape: Vec::new() };
        Some(vec![Field::of_kind(TOKENS, Kind::Ragged(spec))])
    }
}

struct Document<'a> {
    dtype: DType,
    bytes: &'a [u8],
}

impl Record for Document<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let (dtype, shape) = (self.dtype, vec![self.bytes.len() / self.dtype.size()]);
        let array = Array { dtype, shape, bytes: Cow::Borrowed(self.bytes) };
        Ok((name == TOKENS).then_some(Value::List(array)))
    }

    fn names(&self) -> Vec<String> {
        vec![TOKENS.to_owned()]
    }
}
