// SPDX-License-Identifier: Apache-2.0
//! What the first record of a dataset (of its first object that is not empty) holds, and the fields that follow from it when none are said.

use std::sync::Arc;

use bytes::Bytes;
use penstock_codec::{Codec, Inflater, inflate_into};
use penstock_record::example::Feature;
use penstock_record::tfrecord::frame_len;
use penstock_types::{DType, Deadline, Error, Result, TensorSpec};

use super::count::no_record;
use super::field::{Field, Kind};
use super::format::{Framing, Record, RecordId, Span};
use super::memory::PartMemory;
use super::part::Part;
use super::source::Source;

/// Stored bytes that are read at a time to see an object's first record.
const STEP: u64 = 16 << 20;

/// Decompressed bytes that are searched for it at first; four times as many where they do not hold it.
const HEAD: usize = 1 << 20;

/// Decompressed bytes that are held of an object while it is looked at: the memory budget of a loader that has none of its own.
const MAX_HEAD: usize = 1 << 30;

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
        let found = if source.framing().is_table() {
            let (source, bytes) = (source.clone(), source.fetch(object, deadline).await?.bytes);
            spawn(move || look_at_table(&source, object, bytes)).await?
        } else {
            match first_record(source, object, deadline).await? {
                None => None,
                Some((content, span)) => {
                    let source = source.clone();
                    spawn(move || look(&source, object, &content, span)).await?
                }
            }
        };
        if let Some(schema) = found {
            return Ok(schema);
        }
    }
    Err(no_record(source))
}

async fn spawn<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Error::bug(format!("looking at a record: {error}")))?
}

/// An object's first bytes, and where its first record lies in them; `None` if it holds no record. Reads no more of it than
/// it must, and ends at the first bytes of what is no record.
async fn first_record(source: &Arc<Source>, object: u64, deadline: Deadline) -> Result<Option<(Vec<u8>, Span)>> {
    let size = source.entry(object).size;
    let place = source.place(object);
    let inflater = Inflater::new(source.codec(object), u64::MAX, &place);
    let mut head = Head { inflater, content: Vec::new(), target: HEAD, first: None, place };
    for at in (0..size).step_by(STEP as usize) {
        let stored = source.stretch(object, at, STEP.min(size - at), deadline).await?;
        let (framed, is_last) = (source.clone(), at + STEP >= size);
        head = spawn(move || head.push(&stored, is_last, framed.framing())).await?;
        if let Some(first) = head.first {
            return Ok(Some((head.content, first)));
        }
    }
    Ok(None)
}

/// Decompressed bytes that are searched for a first record.
struct Head {
    inflater: Inflater,
    content: Vec<u8>,
    /// How many are searched next.
    target: usize,
    first: Option<Span>,
    place: String,
}

impl Head {
    fn push(mut self, stored: &[u8], is_last: bool, framing: &dyn Framing) -> Result<Self> {
        let Self { mut inflater, mut content, mut target, mut first, place } = self;
        let mut failed = None;
        let pushed = inflater.push(stored, &mut |bytes| {
            let need = content.len() + bytes.len();
            if need > MAX_HEAD || content.try_reserve(bytes.len()).is_err() {
                let (what, need) = (format!("the first record of {place}"), need as u64);
                failed = Some(Error::BudgetExceeded { what, need, budget: MAX_HEAD as u64 });
                return Err(Error::bug("enough was decompressed"));
            }
            content.extend_from_slice(bytes);
            while content.len() >= target && first.is_none() && failed.is_none() {
                match found(&content, false, framing, &place) {
                    Ok(span) => first = span,
                    Err(error) => failed = Some(error),
                }
                target = target.saturating_mul(4);
            }
            // An error is the way to end the decompression early.
            if first.is_some() || failed.is_some() { Err(Error::bug("enough was decompressed")) } else { Ok(()) }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if first.is_none() {
            pushed?;
            if is_last {
                first = found(&content, true, framing, &place)?;
            }
        }
        self = Self { inflater, content, target, first, place };
        Ok(self)
    }
}

/// Where the first record lies that is whole in an object's first bytes, or in all of it.
fn found(content: &[u8], is_all: bool, framing: &dyn Framing, place: &str) -> Result<Option<Span>> {
    if let Some(frames) = framing.frames(content, place) {
        let (mut frames, mut first) = (frames?, None);
        // What is wrong behind the first record is not looked for.
        let pushed = frames.push(content, &mut |span, crc| {
            first.get_or_insert(Span { offset: span.offset, len: frame_len(span.len), crc });
        });
        return match first {
            Some(first) => Ok(Some(first)),
            None if is_all => pushed.and_then(|()| frames.finish()).map(|()| None),
            None => pushed.map(|()| None),
        };
    }
    if let Some(span) = framing.span_of(0).filter(|_| !is_all) {
        return Ok(Some(span).filter(|span| span.range().end <= content.len() as u64));
    }
    let mut spans = Vec::new();
    let walked = framing.spans(content, place, &mut spans);
    match spans.first() {
        // One that ends where the bytes end may go on behind them.
        Some(first) if is_all || spans.len() > 1 => Ok(Some(*first)),
        None if is_all => walked.map(|()| None),
        _ => Ok(None),
    }
}

/// The parts of a table's first row; `None` if it holds none.
fn look_at_table(source: &Source, object: u64, stored: Bytes) -> Result<Option<Schema>> {
    let place = source.place(object);
    let content = match source.codec(object) {
        _ if stored.is_empty() => stored,
        Codec::None => stored,
        codec => {
            let mut inflated = Vec::new();
            inflate_into(codec, &stored, &mut inflated, MAX_HEAD as u64, &place)?;
            inflated.into()
        }
    };
    let table = source.framing().table(content, &place)?;
    if table.records() == 0 {
        return Ok(None);
    }
    let (mut schema, mut looked) = (Schema::default(), Ok(()));
    table.each(&[0], &[], MAX_CELL, &mut |_, record| {
        looked = record.and_then(|record| note(record, source.framing(), &mut schema));
    });
    looked.map(|()| Some(schema))
}

/// The parts of an object's first record, which lies at `first` of its first bytes.
fn look(source: &Source, object: u64, content: &[u8], first: Span) -> Result<Option<Schema>> {
    let place = source.place(object);
    let slice = |range: std::ops::Range<u64>| {
        content
            .get(range.start as usize..range.end as usize)
            .ok_or_else(|| Error::corrupt(&*place, "ends inside its first record"))
    };
    let (head, record) = (slice(0..first.offset)?, slice(first.range())?);
    let memory = PartMemory::new(0, MAX_HEAD as u64);
    let id = RecordId { place: &place, object, record: 0, offset: first.offset, memory: &memory.hold() };
    let (framing, mut schema) = (source.framing(), Schema::default());
    framing.read(record, head, id, &mut |record| note(record, framing, &mut schema))?;
    Ok(Some(schema))
}

/// Notes the parts of a record. Errs if no field reads any of them.
fn note(record: &dyn Record, framing: &dyn Framing, schema: &mut Schema) -> Result<()> {
    let mut refused = None;
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
    match refused {
        Some(error) if schema.seen.is_empty() => Err(error),
        _ => Ok(()),
    }
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
