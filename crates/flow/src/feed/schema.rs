// SPDX-License-Identifier: Apache-2.0
//! What the first record of a dataset (of its first object that is not empty) holds, and the fields that follow from it when none are said.

use std::sync::Arc;

use bytes::Bytes;
use penstock_codec::{Codec, inflate_into};
use penstock_record::example::Feature;
use penstock_types::{DType, Deadline, Error, Result, TensorSpec};

use super::count::no_record;
use super::field::{Field, Kind};
use super::format::{Record, RecordId};
use super::part::Part;
use super::source::Source;

/// Of an uncompressed object no more than this is read to see its first record.
const HEAD: u64 = 16 << 20;

/// What a compressed first object may inflate to while it is looked at.
const LIMIT: u64 = 8 << 30;

/// Bytes that a column of a table may take while its first row is looked at.
const MAX_CELL: u64 = 256 << 20;

/// A part of the first record.
#[derive(Debug, Clone)]
pub struct Seen {
    /// What it holds, in words with numbers.
    pub holds: String,
    /// The field that it becomes when none are said.
    pub field: Field,
}

/// The parts of the first record.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// Parts with a default field.
    pub seen: Vec<Seen>,
    /// Parts that no field reads, and why.
    pub left_out: Vec<(String, String)>,
}

/// Looks at the first record.
///
/// Errs with `Unsupported`, or `BudgetExceeded`, if no field reads any of its parts.
pub async fn schema(source: &Arc<Source>, deadline: Deadline) -> Result<Schema> {
    if let Some(blocks) = source.blocks() {
        let seen = |(name, spec): (&str, TensorSpec)| Seen {
            holds: format!("{} {:?}", spec.dtype, spec.shape),
            field: Field { name: name.to_owned(), of: Vec::new(), kind: Kind::Tensor(spec) },
        };
        return Ok(Schema { seen: blocks.parts().into_iter().map(seen).collect(), left_out: Vec::new() });
    }
    for object in 0..source.manifest().objects.len() as u64 {
        let codec = source.codec(object);
        let bytes = match codec {
            Codec::None if !source.framing().is_table() => source.head(object, HEAD, deadline).await?,
            _ => source.fetch(object, deadline).await?.bytes,
        };
        let source = source.clone();
        let found = tokio::task::spawn_blocking(move || look(&source, object, bytes)).await;
        if let Some(schema) = found.map_err(|error| Error::bug(format!("looking at a record: {error}")))?? {
            return Ok(schema);
        }
    }
    Err(no_record(source))
}

/// The parts of an object's first record; `None` if it holds no record.
fn look(source: &Source, object: u64, bytes: Bytes) -> Result<Option<Schema>> {
    let place = source.place(object);
    let content = match source.codec(object) {
        _ if bytes.is_empty() => bytes,
        Codec::None => bytes,
        codec => {
            let mut inflated = Vec::new();
            inflate_into(codec, &bytes, &mut inflated, LIMIT, &place)?;
            inflated.into()
        }
    };
    let framing = source.framing();
    let (mut schema, mut refused) = (Schema::default(), None);
    let mut note = |record: &dyn Record| {
        for name in record.names() {
            let part = match record.part(&name) {
                // What the first record has no value of says nothing of a field.
                Err(Error::Mismatch { .. }) => None,
                Err(error @ (Error::Unsupported { .. } | Error::BudgetExceeded { .. })) => {
                    schema.left_out.push((name, error.to_string()));
                    refused.get_or_insert(error);
                    continue;
                }
                found => found?,
            };
            if let Some(part) = part {
                let kind = framing.proposes(&name, &part).unwrap_or_else(|| proposed(&part));
                schema.seen.push(Seen { holds: part.describe(), field: Field { name, of: Vec::new(), kind } });
            }
        }
        match refused.take() {
            Some(error) if schema.seen.is_empty() => Err(error),
            _ => Ok(()),
        }
    };
    if framing.is_table() {
        let table = framing.table(content, &place)?;
        if table.records() == 0 {
            return Ok(None);
        }
        let mut looked = Ok(());
        table.each(&[0], &[], MAX_CELL, &mut |_, record| looked = record.and_then(&mut note));
        return looked.map(|()| Some(schema));
    }
    let mut spans = Vec::new();
    // Cut behind the first record it errs, and has told where that one lies.
    let walked = framing.spans(&content, &place, &mut spans);
    let first = match (spans.first(), walked) {
        (Some(first), _) => *first,
        (None, Err(error)) => return Err(error),
        (None, Ok(())) => return Ok(None),
    };
    let slice = |range: std::ops::Range<u64>| {
        content
            .get(range.start as usize..range.end as usize)
            .ok_or_else(|| Error::corrupt(&*place, "ends inside its first record"))
    };
    let (head, record) = (slice(0..first.offset)?, slice(first.range())?);
    let id = RecordId { place: &place, object, record: 0, offset: first.offset };
    framing.read(record, head, id, &mut note)?;
    Ok(Some(schema))
}

/// What a part becomes when nobody says: the first record's lengths are taken for all records'.
fn proposed(part: &Part<'_>) -> Kind {
    let spec = |dtype, shape: &[usize]| Kind::Tensor(TensorSpec { dtype, shape: shape.to_vec() });
    let row = |dtype, len: usize| if len == 1 { spec(dtype, &[]) } else { spec(dtype, &[len]) };
    match part {
        Part::Bytes(_) => Kind::Bytes,
        Part::Digits(_) | Part::Int(_) => spec(DType::I64, &[]),
        Part::Array(array) => spec(array.dtype, &array.shape),
        Part::List(array) => Kind::Ragged(TensorSpec { dtype: array.dtype, shape: Vec::new() }),
        Part::Feature(Feature::Bytes(values)) if values.len() == 1 => Kind::Bytes,
        Part::Feature(Feature::Bytes(_)) => Kind::Ragged(TensorSpec { dtype: DType::U8, shape: Vec::new() }),
        Part::Feature(Feature::Floats(values)) => row(DType::F32, values.len()),
        Part::Feature(Feature::Ints(values)) => row(DType::I64, values.len()),
        Part::Steps(steps) => {
            let dtype = match steps.steps().iter().flatten().next() {
                Some(Feature::Floats(_)) => DType::F32,
                Some(Feature::Ints(_)) => DType::I64,
                Some(Feature::Bytes(_)) | None => DType::U8,
            };
            Kind::Ragged(TensorSpec { dtype, shape: Vec::new() })
        }
    }
}
