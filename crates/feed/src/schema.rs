// SPDX-License-Identifier: Apache-2.0
//! Schema of a dataset: inspects the first records of the first object that has any, and derives the default fields.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use penstock_codec::{Codec, StreamDecoder, decompress_into};
use penstock_record::tf_example::Feature;
use penstock_record::tfrecord::frame_len;
use penstock_types::{DType, Deadline, Error, Result, TensorSpec, with_separators};

use super::decode_memory::PartMemory;
use super::field::{Field, Kind, TextErrors};
use super::format::{Framing, Record, RecordId};
use super::record_counts::no_record;
use super::source::Source;
use super::value::Value;
use penstock_dataset::record_index::Span;

/// Number of stored bytes per read, until the first record of an object is found.
const STEP: u64 = 16 << 20;

/// Number of decompressed bytes that are first searched for a record. If they contain no record, four times as many
/// bytes are searched. Later records are inspected only within these bytes.
const HEAD: usize = 1 << 20;

/// Maximum number of decompressed bytes of an object that are in memory during the inspection. The same as a loader's
/// default memory budget.
const MAX_HEAD: usize = 1 << 30;

/// Maximum number of records to inspect. All inspected records are within the object's first bytes.
const MAX_RECORDS: usize = 100;

/// Maximum number of decoded bytes. In the first row of a table, the limit is for each column; in the other rows, it is
/// for all columns together.
const MAX_CELL: u64 = 256 << 20;

/// Name of the default field that contains the whole record. It is used if records have no named values.
const RECORD: &str = "record";

/// A value found in the first records.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Description of the first value of this name, with its size.
    pub holds: String,
    /// Default field for the value.
    pub field: Field,
}

/// Values found in the first records.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// Values with a default field.
    pub seen: Vec<Seen>,
    /// Values that no field can read, as (name, reason).
    pub left_out: Vec<(String, String)>,
}

/// Inspects the first records of the first object that contains records.
///
/// Returns `Unsupported` or `BudgetExceeded` if no field can read any value of these records.
pub async fn schema(source: &Arc<Source>, deadline: Deadline) -> Result<Schema> {
    if let Some(blocks) = source.blocks() {
        let seen = |(name, spec): (&str, TensorSpec)| Seen {
            holds: format!("{} {:?}", spec.dtype, spec.shape),
            field: Field::of_kind(name, Kind::Tensor(spec)),
        };
        return Ok(Schema { seen: blocks.parts().into_iter().map(seen).collect(), left_out: Vec::new() });
    }
    if let Some(fields) = source.framing().declares() {
        let seen = |field: Field| Seen { holds: "as the index declares".to_owned(), field };
        return Ok(Schema { seen: fields.into_iter().map(seen).collect(), left_out: Vec::new() });
    }
    for object in 0..source.manifest().objects.len() as u64 {
        let found = if source.framing().is_table() {
            let (source, bytes) = (source.clone(), source.fetch(object, deadline).await?.bytes);
            spawn(move || look_at_table(&source, object, bytes)).await?
        } else {
            match start_of(source, object, deadline).await? {
                None => None,
                Some(start) => {
                    let source = source.clone();
                    Some(spawn(move || look(&source, object, &start)).await?)
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
    done.map_err(|error| Error::bug(format!("inspecting the first records: {error}")))?
}

/// First decompressed bytes of an object.
struct Start {
    content: Vec<u8>,
    /// True if `content` is the whole object.
    is_whole: bool,
    /// Position of the first record in `content`.
    first: Span,
}

/// Reads the first bytes of an object until they contain its first record. Returns `None` if the object has no record.
/// Reads no more bytes than necessary. Returns an error if the bytes do not start with a record.
async fn start_of(source: &Arc<Source>, object: u64, deadline: Deadline) -> Result<Option<Start>> {
    let size = source.entry(object).size;
    let place = source.place(object);
    let inflater = StreamDecoder::new(source.codec(object), u64::MAX, &place);
    let mut head = Head { inflater, content: Vec::new(), target: HEAD, first: None, is_whole: false, place };
    for at in (0..size).step_by(STEP as usize) {
        let stored = source.stretch(object, at, STEP.min(size - at), deadline).await?;
        let (framed, is_last) = (source.clone(), at + STEP >= size);
        head = spawn(move || head.push(&stored, is_last, framed.framing())).await?;
        if let Some(first) = head.first {
            return Ok(Some(Start { content: head.content, is_whole: head.is_whole, first }));
        }
    }
    Ok(None)
}

/// Decompressed bytes in which the first record is searched.
struct Head {
    inflater: StreamDecoder,
    content: Vec<u8>,
    /// Number of bytes that are searched next.
    target: usize,
    first: Option<Span>,
    /// True if `content` is the whole object.
    is_whole: bool,
    place: String,
}

impl Head {
    fn push(mut self, stored: &[u8], is_last: bool, framing: &dyn Framing) -> Result<Self> {
        let Self { mut inflater, mut content, mut target, mut first, mut is_whole, place } = self;
        let mut failed = None;
        let pushed = inflater.push(stored, &mut |bytes| {
            let need = content.len() + bytes.len();
            if need > MAX_HEAD || content.try_reserve(bytes.len()).is_err() {
                let (what, need) = (format!("the first record of {place}"), need as u64);
                failed = Some(Error::BudgetExceeded { what, need, budget: MAX_HEAD as u64 });
                return Err(Error::bug("decompression was stopped after the first record"));
            }
            content.extend_from_slice(bytes);
            while content.len() >= target && first.is_none() && failed.is_none() {
                match found(&content, false, framing, &place) {
                    Ok(span) => first = span,
                    Err(error) => failed = Some(error),
                }
                target = target.saturating_mul(4);
            }
            // An error from this closure ends the decompression early.
            if first.is_some() || failed.is_some() {
                Err(Error::bug("decompression was stopped after the first record"))
            } else {
                Ok(())
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if first.is_none() {
            pushed?;
            if is_last {
                is_whole = true;
                first = found(&content, true, framing, &place)?;
            }
        }
        self = Self { inflater, content, target, first, is_whole, place };
        Ok(self)
    }
}

/// Returns the position of the first whole record. `content` are the object's first bytes, or the whole object if
/// `is_all`.
fn found(content: &[u8], is_all: bool, framing: &dyn Framing, place: &str) -> Result<Option<Span>> {
    if let Some(frames) = framing.frames(content, place) {
        let (mut frames, mut first) = (frames?, None);
        // Errors after the first record are ignored.
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
        // A record that ends at the end of `content` may be incomplete, so a second record must follow.
        Some(first) if is_all || spans.len() > 1 => Ok(Some(*first)),
        None if is_all => walked.map(|()| None),
        _ => Ok(None),
    }
}

/// Inspects the first rows of a table. Returns `None` if the table has no rows.
fn look_at_table(source: &Source, object: u64, stored: Bytes) -> Result<Option<Schema>> {
    let place = source.place(object);
    let content = match source.codec(object) {
        _ if stored.is_empty() => stored,
        Codec::None => stored,
        codec => {
            let mut inflated = Vec::new();
            decompress_into(codec, &stored, &mut inflated, MAX_HEAD as u64, &place)?;
            inflated.into()
        }
    };
    let table = source.framing().table(content, &place)?;
    if table.records() == 0 {
        return Ok(None);
    }
    let (framing, mut survey, mut looked) = (source.framing(), Survey::default(), Ok(()));
    table.each(&[0], &[], MAX_CELL, &mut |_, record| {
        looked = record.and_then(|record| survey.add(framing, record));
    });
    looked?;
    // In the other rows, read only the columns that could be read in the first row.
    let columns: Vec<String> = survey.found.iter().map(|found| found.name.clone()).collect();
    let parts: Vec<&[String]> = columns.iter().map(std::slice::from_ref).collect();
    let rows: Vec<u64> = (1..table.records().min(MAX_RECORDS as u64)).collect();
    let mut reads = !columns.is_empty();
    if reads {
        table.each(&rows, &parts, MAX_CELL, &mut |_, record| {
            reads = reads && record.is_ok_and(|record| survey.add(framing, record).is_ok());
        });
    }
    let known: Vec<String> = survey.known.keys().cloned().collect();
    let mut schema = survey.schema(&place)?;
    for seen in &mut schema.seen {
        if let Some(time) = table.time(&seen.field.name) {
            seen.holds = format!("{time}, {}", seen.holds);
        }
    }
    for (name, kind, has_nulls, holds) in source.partitions().proposed() {
        if !known.iter().any(|column| column == name) {
            let field = Field::of_kind(name, kind);
            schema.seen.push(Seen { holds, field: if has_nulls { optional(field) } else { field } });
        }
    }
    Ok(Some(schema))
}

/// Inspects the first records of an object. `start` contains the object's first bytes and the position of its first
/// record.
fn look(source: &Source, object: u64, start: &Start) -> Result<Schema> {
    let (place, framing) = (source.place(object), source.framing());
    let first = start.first;
    let end = start.content.len().min(HEAD.max(first.range().end as usize));
    let content = &start.content[..end];
    let slice = |range: std::ops::Range<u64>| content.get(range.start as usize..range.end as usize);
    let head = slice(0..first.offset).ok_or_else(|| Error::corrupt(&*place, "ends inside its first record"))?;
    let mut spans = Vec::new();
    // All fixed-size records have the same layout, so one record is enough.
    if framing.span_of(0).is_none() {
        // Ignore an error after the first record: it is reported when the damaged record is read.
        let _ = framing.spans(content, &place, &mut spans);
        if !start.is_whole || end < start.content.len() {
            // The last record may be incomplete.
            spans.pop();
        }
    }
    let others = spans.into_iter().filter(|span| span.offset > first.offset).take(MAX_RECORDS - 1);
    let (mut survey, mut whole, memory) = (Survey::default(), None, PartMemory::new(0, MAX_HEAD as u64));
    for (number, span) in std::iter::once(first).chain(others).enumerate() {
        let memory = &memory.hold();
        let id = RecordId { place: &place, object, record: number as u64, offset: span.offset, memory };
        let read = slice(span.range()).ok_or_else(|| Error::corrupt(&*place, "ends inside its first record")).and_then(
            |bytes| {
                whole = whole.or(framing.whole(bytes).map(<[u8]>::len));
                framing.read(bytes, head, id, &mut |record| survey.add(framing, record))
            },
        );
        match read {
            Err(error) if number == 0 => return Err(error),
            Err(_) => break,
            Ok(()) => {}
        }
    }
    if survey.has_no_value()
        && let Some(len) = whole
    {
        // For example, TFRecords whose messages are not tf.Examples have no values. Some such messages can be parsed as
        // a tf.Example whose features have no values.
        let holds = format!("{} bytes", with_separators(len as u64));
        let field = Field::of_kind(RECORD, Kind::Record);
        return Ok(Schema { seen: vec![Seen { holds, field }], left_out: Vec::new() });
    }
    survey.schema(&place)
}

/// Values with the same name in several records.
struct Found {
    name: String,
    /// Description of the first value.
    holds: String,
    kind: Option<Kind>,
    /// Number of records that have the value.
    count: usize,
    /// Reason why no kind of field can read these values.
    refused: Option<Error>,
    /// True if a record has a feature list whose steps are all empty.
    has_empty_steps: bool,
}

/// Values that were found in several records.
#[derive(Default)]
struct Survey {
    records: usize,
    found: Vec<Found>,
    left_out: Vec<(String, Error)>,
    /// For each name, the value's index in `found`. `None` for a value that is left out.
    known: HashMap<String, Option<usize>>,
}

impl Survey {
    /// True if no record has any value. A value that no field can read also counts as a value.
    fn has_no_value(&self) -> bool {
        let is_null = |found: &Found| found.kind.is_none() && found.refused.is_none() && !found.has_empty_steps;
        self.left_out.is_empty() && self.found.iter().all(is_null)
    }

    fn add(&mut self, framing: &dyn Framing, record: &dyn Record) -> Result<()> {
        record.check()?;
        self.records += 1;
        for name in record.names() {
            if self.known.get(&name) == Some(&None) {
                continue;
            }
            let part = match record.part(&name) {
                Err(error @ (Error::Unsupported { .. } | Error::Mismatch { .. } | Error::BudgetExceeded { .. })) => {
                    self.known.entry(name.clone()).or_insert_with(|| {
                        self.left_out.push((name, error));
                        None
                    });
                    continue;
                }
                part => part?,
            };
            let Some(part) = part else { continue };
            let at = self.known.entry(name.clone()).or_insert_with(|| {
                let (name, holds) = (name.clone(), part.describe());
                self.found.push(Found { name, holds, kind: None, count: 0, refused: None, has_empty_steps: false });
                Some(self.found.len() - 1)
            });
            let Some(found) = at.map(|at| &mut self.found[at]) else { continue };
            if matches!(part, Value::Null | Value::Empty(_)) {
                found.count += usize::from(!part.is_absent());
                continue;
            }
            if matches!(&part, Value::Steps(steps) if steps.steps().iter().flatten().all(Feature::is_empty)) {
                found.has_empty_steps |= !part.is_absent();
                continue;
            }
            if found.kind.is_none() {
                found.holds = part.describe();
            }
            found.count += usize::from(!part.is_absent());
            let kind = framing.proposes(&name, &part).map_or_else(|| proposed(&part), Ok);
            match kind {
                Ok(kind) => {
                    let was_scalar = matches!(&found.kind, Some(Kind::Tensor(spec)) if spec.shape.is_empty());
                    let kind = found.kind.take().map_or(kind.clone(), |known| joined(known, &kind));
                    if was_scalar && matches!(kind, Kind::Ragged(_)) {
                        // The first value was one number, but this value shows that the values are lists.
                        found.holds = part.describe();
                    }
                    found.kind = Some(of_json(kind, &part));
                }
                Err(why) => {
                    let what = format!("{} ({why})", part.describe());
                    found.refused.get_or_insert(Error::Unsupported { what, by: "typed fields".to_owned() });
                }
            }
        }
        Ok(())
    }

    fn schema(self, place: &str) -> Result<Schema> {
        let mut schema = Schema::default();
        let mut refused = self.left_out;
        for Found { name, mut holds, kind, count, refused: why, has_empty_steps } in self.found {
            if let Some(error) = why {
                refused.push((name, error));
                continue;
            }
            let Some(kind) = kind else {
                if has_empty_steps {
                    let what = format!("{holds} (all steps are empty)");
                    refused.push((name, Error::Unsupported { what, by: "typed fields".to_owned() }));
                    continue;
                }
                schema.left_out.push((name, format!("null or empty in all {} inspected records", self.records)));
                continue;
            };
            let kind = match kind {
                Kind::Ragged(item) if has_empty_steps => lists_of(item.dtype),
                Kind::BytesList if has_empty_steps => Kind::Nested { item: None, depth: 2 },
                kind => kind,
            };
            let mut field = Field::of_kind(&name, kind);
            if count < self.records {
                holds = format!("{holds}; a value in {count} of {} records", self.records);
                field = optional(field);
            }
            schema.seen.push(Seen { holds, field });
        }
        schema.left_out.extend(refused.iter().map(|(name, error)| (name.clone(), error.to_string())));
        match refused.into_iter().next().map(|(_, error)| error) {
            _ if !schema.seen.is_empty() => Ok(schema),
            Some(error) => Err(error),
            None => {
                let problem = match schema.left_out.as_slice() {
                    [] => "its records have no named values".to_owned(),
                    [(name, why), ..] => format!("no value has a known type; for example, `{name}` is {why}"),
                };
                Err(Error::Unsupported { what: format!("{place} ({problem})"), by: "the default fields".to_owned() })
            }
        }
    }
}

/// Returns a kind that can read the values of both kinds, for example ragged for numbers of different lengths.
fn joined(known: Kind, other: &Kind) -> Kind {
    match (&known, other) {
        (Kind::Bytes | Kind::BytesList, Kind::BytesList) | (Kind::BytesList, Kind::Bytes) => Kind::BytesList,
        // Some texts in a column of text may look like numbers.
        (Kind::Text(_), Kind::Tensor(spec)) if spec.shape.is_empty() => known,
        (Kind::Tensor(spec), Kind::Text(errors)) if spec.shape.is_empty() => Kind::Text(*errors),
        // A JSON value may be a list of numbers in one record and another text in the next record.
        (Kind::Ragged(_), Kind::Text(errors)) => Kind::Text(*errors),
        (Kind::Tensor(a), Kind::Tensor(b)) if a.shape == b.shape && is_wider(b.dtype, a.dtype) => other.clone(),
        (Kind::Ragged(a), Kind::Ragged(b)) if a.shape == b.shape && is_wider(b.dtype, a.dtype) => other.clone(),
        (Kind::Ragged(a), Kind::Ragged(b)) if a.dtype == b.dtype && a.shape != b.shape => lists_of(a.dtype),
        (Kind::Nested { item: Some(a), depth: 2 }, Kind::Ragged(b))
        | (Kind::Ragged(b), Kind::Nested { item: Some(a), depth: 2 })
            if a.dtype == b.dtype =>
        {
            lists_of(a.dtype)
        }
        (Kind::BytesList, Kind::Nested { item: None, depth: 2 }) => other.clone(),
        // Arrays that differ only in their number of rows, for example boxes of shape [n, 4].
        (Kind::Tensor(a), Kind::Tensor(b))
            if known != *other && a.dtype == b.dtype && a.shape.len() > 1 && a.shape.get(1..) == b.shape.get(1..) =>
        {
            rows_of(a)
        }
        (Kind::Ragged(rows), Kind::Tensor(array)) | (Kind::Tensor(array), Kind::Ragged(rows))
            if rows.dtype == array.dtype && !rows.shape.is_empty() && array.shape.get(1..) == Some(&rows.shape[..]) =>
        {
            rows_of(array)
        }
        (Kind::Tensor(a) | Kind::Ragged(a), Kind::Tensor(b) | Kind::Ragged(b))
            if known != *other && a.dtype == b.dtype && a.shape.len() <= 1 && b.shape.len() <= 1 =>
        {
            Kind::Ragged(TensorSpec { dtype: a.dtype, shape: Vec::new() })
        }
        _ => known,
    }
}

/// Returns `kind`. If the value is a JSON list of numbers that `kind` cannot read, returns text instead. JSON lists of
/// lists of different lengths are text.
fn of_json(kind: Kind, part: &Value<'_>) -> Kind {
    let Value::Numbers(numbers) = part else { return kind };
    if numbers.shape().is_empty() {
        return kind;
    }
    let is_read = match &kind {
        Kind::Ragged(item) => numbers.elements() > 0 && numbers.shape().get(1..) == Some(item.shape.as_slice()),
        _ => false,
    };
    if is_read { kind } else { Kind::Text(TextErrors::Strict) }
}

/// True if a column of text or JSON that contains numbers of both types must be read as `wide`.
fn is_wider(wide: DType, narrow: DType) -> bool {
    matches!((narrow, wide), (DType::I64, DType::U64) | (DType::I64 | DType::U64, DType::F64))
}

/// Returns the field for a value that some records lack. For these records, the field is empty.
fn optional(field: Field) -> Field {
    match &field.kind {
        Kind::Tensor(spec) => Field { kind: rows_of(spec), ..field },
        Kind::Bytes | Kind::Text(_) => Field { default: Some([].into()), ..field },
        _ => field,
    }
}

/// Kind for arrays that differ from `array` only in their number of rows.
fn rows_of(array: &TensorSpec) -> Kind {
    Kind::Ragged(TensorSpec { dtype: array.dtype, shape: array.shape.get(1..).unwrap_or_default().to_vec() })
}

/// Kind for a feature list whose steps have different lengths.
fn lists_of(dtype: DType) -> Kind {
    Kind::Nested { item: Some(TensorSpec { dtype, shape: Vec::new() }), depth: 2 }
}

/// Returns the default kind of field for a value, on the assumption that all records have a value of the same length.
/// The error states why no kind can read the whole value.
fn proposed(part: &Value<'_>) -> Result<Kind, &'static str> {
    let spec = |dtype, shape: &[usize]| Kind::Tensor(TensorSpec { dtype, shape: shape.to_vec() });
    let row = |dtype, len: usize| if len == 1 { spec(dtype, &[]) } else { spec(dtype, &[len]) };
    Ok(match part {
        Value::Bytes(_) | Value::Text(_) | Value::Json(_) | Value::Null => Kind::Bytes,
        Value::NullAs(empty) => return proposed(empty),
        Value::Nested(nested) => match proposed(&nested.items)? {
            Kind::Ragged(item) => Kind::Nested { item: Some(item), depth: nested.ends.len() + 1 },
            _ => Kind::Nested { item: None, depth: nested.ends.len() + 1 },
        },
        Value::Strings(_) => Kind::BytesList,
        Value::Empty(_) => Kind::Text(TextErrors::Strict),
        Value::Numbers(numbers) if numbers.shape().is_empty() => spec(numbers.dtype(), &[]),
        Value::Numbers(numbers) => {
            let shape = numbers.shape().get(1..).unwrap_or_default().to_vec();
            Kind::Ragged(TensorSpec { dtype: numbers.dtype(), shape })
        }
        Value::Digits(_) | Value::Int(_) => spec(DType::I64, &[]),
        Value::Array(array) => spec(array.dtype, &array.shape),
        Value::Patch(patch) => spec(patch.dtype, patch.shape),
        Value::List(array) => Kind::Ragged(TensorSpec { dtype: array.dtype, shape: Vec::new() }),
        Value::Feature(Feature::Bytes(values)) if values.len() <= 1 => Kind::Bytes,
        Value::Feature(Feature::Bytes(_)) => Kind::BytesList,
        Value::Feature(Feature::Floats(values)) => row(DType::F32, values.len()),
        Value::Feature(Feature::Ints(values)) => row(DType::I64, values.len()),
        Value::Steps(steps) => {
            let lens: Vec<usize> = steps.steps().iter().map(|step| step.as_ref().map_or(0, Feature::len)).collect();
            let len = lens.first().copied().unwrap_or(0);
            let is_equal = len > 0 && lens.iter().all(|&other| other == len);
            let shape = if len == 1 { Vec::new() } else { vec![len] };
            match steps.steps().iter().flatten().next() {
                Some(Feature::Floats(_)) if is_equal => Kind::Ragged(TensorSpec { dtype: DType::F32, shape }),
                Some(Feature::Ints(_)) if is_equal => Kind::Ragged(TensorSpec { dtype: DType::I64, shape }),
                Some(Feature::Floats(_)) => lists_of(DType::F32),
                Some(Feature::Ints(_)) => lists_of(DType::I64),
                Some(Feature::Bytes(_)) if is_equal && len == 1 => Kind::BytesList,
                Some(Feature::Bytes(_)) => Kind::Nested { item: None, depth: 2 },
                None => return Err("all steps are empty"),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::json_numbers::Numbers;

    #[test]
    fn lists_of_json_whose_rows_differ_in_length_are_text() {
        let ragged = |shape: &[usize]| Kind::Ragged(TensorSpec { dtype: DType::I64, shape: shape.to_vec() });
        let text = Kind::Text(TextErrors::Strict);
        let pairs = Value::Numbers(Numbers::parse("[[1, 2], [3, 4]]").unwrap());
        assert_eq!(of_json(ragged(&[2]), &pairs), ragged(&[2]));
        assert_eq!(of_json(joined(ragged(&[3]), &ragged(&[2])), &pairs), text);
        assert_eq!(of_json(text.clone(), &pairs), text);
        assert_eq!(joined(ragged(&[2]), &text), text);
    }
}
