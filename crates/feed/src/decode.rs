// SPDX-License-Identifier: Apache-2.0
//! Decodes the stored bytes of an object into rows of batches: decompresses the bytes, finds and checks the records,
//! and copies each value once.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;
use penstock_codec::{Codec, GzipCheck, decompress_into_checked};
use penstock_types::{Error, Result, now, with_separators};

use super::annotation_geometry::Annotated;
use super::annotation_kind::{Annotation, Follows};
use super::audio_fields::{self, Recording};
use super::batch_plan::RowRequest;
use super::batch_rows::{Row, Rows};
use super::decode_memory::PartHold;
use super::field::{Field, Kind};
use super::field_lookup::{Named, in_record, named};
use super::format::hive::Partitioned;
use super::format::{Record, RecordId};
use super::object_content::Content;
use super::source::Source;
use super::value::Value;
use penstock_dataset::record_index::Span;

/// An object to decode.
pub(crate) struct Object<'a> {
    pub source: &'a Source,
    /// Codec of `stored`. `Codec::None` if the bytes are already decompressed.
    pub codec: Codec,
    pub number: u64,
    pub place: &'a str,
    pub stored: &'a Content,
    /// Number of records that the object must contain. The sample order was computed from this number.
    pub records: u64,
    /// Maximum decompressed size in bytes.
    pub limit: u64,
    /// Memory reservation for the value that is being decompressed.
    pub memory: &'a PartHold<'a>,
    /// Returns the random key that determines the image crop in a row.
    pub key: &'a dyn Fn(&RowRequest) -> u64,
}

/// Result of decoding an object.
pub(crate) struct Decoded {
    pub inflated: Instant,
    /// Failed requests, each with its index in the task's requests and its error.
    pub bad: Vec<(usize, Error)>,
}

/// Function that returns the rows of a batch by batch number.
pub(crate) type RowsOf<'a, 'r> = &'a dyn Fn(u64) -> Option<&'r Rows>;

/// Decodes the requested records of an object into their rows. `rows` returns the rows of a batch. No other call may
/// write the same rows at the same time. Returns an error if no part of the object can be read.
pub(crate) fn decode(
    object: &Object<'_>,
    wants: &[RowRequest],
    fields: &[Field],
    rows: RowsOf<'_, '_>,
    scratch: &mut Vec<u8>,
) -> Result<Decoded> {
    let stored = match object.stored {
        Content::Whole(stored) | Content::Planes(stored) => stored,
        Content::Ranges(_) => {
            let cut = Cut { view: View::Ranges(object.stored), spans: Vec::new(), walked: Ok(()) };
            return Ok(Decoded { inflated: now(), bad: cut.each(object, wants, fields, rows) });
        }
    };
    let (place, framing) = (object.place, object.source.framing());
    let blocks = object.source.blocks();
    if let Some(blocks) = blocks {
        let name = |number: usize| object.source.listed_place(number);
        blocks.unpack(object.number, stored, scratch, object.limit, &name)?;
    } else if stored.is_empty() && !framing.may_be_empty() {
        return Err(Error::corrupt(place, "is empty (0 bytes), but must contain records"));
    }
    if framing.is_table() {
        return decode_table(object, stored, wants, fields, rows);
    }
    let content = match object.codec {
        Codec::None if blocks.is_some() => scratch.as_slice(),
        Codec::None => stored.as_ref(),
        codec => {
            object.stored.decompress_into(codec, framing, scratch, object.limit, place)?;
            scratch.as_slice()
        }
    };
    let inflated = now();
    let mut spans = Vec::new();
    let locator = object.source.locator();
    let walked = if locator.span(object.number, 0).is_some() {
        match framing.count_of_size(content.len() as u64, place).transpose()? {
            Some(count) if count != object.records => return Err(miscounted(place, count, object.records)),
            _ => Ok(()),
        }
    } else {
        let walked = match blocks {
            Some(blocks) => {
                blocks.spans(object.number, content, &mut spans);
                Ok(())
            }
            None => framing.spans(content, place, &mut spans),
        };
        if walked.is_ok() && spans.len() as u64 != object.records {
            return Err(miscounted(place, spans.len() as u64, object.records));
        }
        if walked.is_ok() {
            locator.note(object.number, content.len() as u64, &spans);
        }
        walked
    };
    let cut = Cut { view: View::Whole(content), spans, walked };
    Ok(Decoded { inflated, bad: cut.each(object, wants, fields, rows) })
}

/// Decodes the requested rows of a table.
fn decode_table(
    object: &Object<'_>,
    stored: &Bytes,
    wants: &[RowRequest],
    fields: &[Field],
    rows: RowsOf<'_, '_>,
) -> Result<Decoded> {
    let place = object.place;
    let content = match object.codec {
        Codec::None => stored.clone(),
        codec => {
            let mut inflated = Vec::new();
            decompress_into_checked(codec, stored, &mut inflated, object.limit, GzipCheck::Full, place)?;
            inflated.into()
        }
    };
    let inflated = now();
    let table = object.source.framing().table(content, place)?;
    if table.records() != object.records {
        return Err(miscounted(place, table.records(), object.records));
    }
    let mut sorted: Vec<usize> = (0..wants.len()).collect();
    sorted.sort_unstable_by_key(|&at| wants[at].record);
    let records: Vec<u64> = sorted.iter().map(|&at| wants[at].record).collect();
    let parts: Vec<&[String]> = fields.iter().flat_map(Field::part_groups).collect();
    for name in parts.iter().copied().flatten() {
        if let Some(time) = table.time(name) {
            object.source.check_time(name, time, object.number)?;
        }
    }
    let partitions = object.source.partition_values(object.number);
    let mut bad = Vec::new();
    table.each(&records, &parts, object.limit, &mut |at, record| {
        let want = &wants[sorted[at]];
        let id = RecordId { place, object: object.number, record: want.record, offset: 0, memory: object.memory };
        let written = record.and_then(|record| {
            let rows = rows(want.batch)
                .ok_or_else(|| Error::bug(format!("batch {} has no output rows to write to", want.batch)))?;
            let record = Partitioned { record, values: &partitions };
            fill(&record, None, &id, want.row, (object.key)(want), fields, rows)
        });
        bad.extend(written.err().map(|error| (sorted[at], error)));
    });
    Ok(Decoded { inflated, bad })
}

fn miscounted(place: &str, found: u64, counted: u64) -> Error {
    let (found, counted) = (with_separators(found), with_separators(counted));
    let problem = format!(
        "contains {found} records, but {counted} were expected: objects have different record counts, \
         or changed after they were counted"
    );
    Error::corrupt(place, problem)
}

/// Bytes of an object that contain its records.
enum View<'a> {
    /// The whole decompressed content.
    Whole(&'a [u8]),
    /// The ranges of an uncompressed object that were read.
    Ranges(&'a Content),
}

/// Content of an object, with the positions of its records.
struct Cut<'a> {
    view: View<'a>,
    /// Record positions found in the content. Empty if the positions were known before.
    spans: Vec<Span>,
    /// Error that ended the search for record positions.
    walked: Result<()>,
}

impl Cut<'_> {
    fn slice(&self, span: &Span) -> Option<&[u8]> {
        match &self.view {
            View::Whole(content) => content.get(span.offset as usize..usize::try_from(span.range().end).ok()?),
            View::Ranges(content) => content.slice(span),
        }
    }

    fn span(&self, object: &Object<'_>, record: u64) -> Result<Span> {
        if let Some(span) = self.spans.get(record as usize) {
            return Ok(*span);
        }
        self.walked.clone()?;
        let span = object.source.locator().span(object.number, record);
        span.ok_or_else(|| Error::bug(format!("{} has no record {record}", object.place)))
    }

    /// Reads every requested record into its row. Returns the failed requests.
    fn each(
        &self,
        object: &Object<'_>,
        wants: &[RowRequest],
        fields: &[Field],
        rows: RowsOf<'_, '_>,
    ) -> Vec<(usize, Error)> {
        let head = match (object.source.locator().head(object.number), self.span(object, 0)) {
            (Some(head), _) => head,
            (None, Ok(first)) => self.slice(&Span { offset: 0, len: first.offset, crc: 0 }).unwrap_or_default(),
            (None, Err(_)) => &[],
        };
        // Read the records in stored order, which is better for the CPU cache.
        let mut sorted: Vec<usize> = (0..wants.len()).collect();
        sorted.sort_unstable_by_key(|&at| wants[at].record);
        let read = |at: usize| {
            let want = &wants[at];
            let rows = rows(want.batch)
                .ok_or_else(|| Error::bug(format!("batch {} has no output rows to write to", want.batch)))?;
            self.read(object, head, want, fields, rows)
        };
        sorted.into_iter().filter_map(|at| read(at).err().map(|error| (at, error))).collect()
    }

    /// Reads one record into its row.
    fn read(&self, object: &Object<'_>, head: &[u8], want: &RowRequest, fields: &[Field], rows: &Rows) -> Result<()> {
        let (place, framing) = (object.place, object.source.framing());
        let span = self.span(object, want.record)?;
        let Some(bytes) = self.slice(&span) else {
            return Err(Error::corrupt(place, format!("ends inside record {}", want.record)));
        };
        // If records have no checksum of their own, the CRC in the record index is verified.
        if self.spans.is_empty() && span.crc != 0 && !framing.checks_itself() && framing.crc(bytes) != span.crc {
            let (at, is, want_crc) = (with_separators(span.offset), framing.crc(bytes), span.crc);
            let problem = format!(
                "has a damaged record {} (byte {at}: checksum is {is:#010x}, want {want_crc:#010x})",
                want.record
            );
            return Err(Error::corrupt(place, problem));
        }
        let (number, record, memory) = (object.number, want.record, object.memory);
        let id = RecordId { place, object: number, record, offset: span.offset, memory };
        let key = (object.key)(want);
        let whole = framing.whole(bytes);
        framing.read(bytes, head, id, &mut |record| fill(record, whole, &id, want.row, key, fields, rows))
    }
}

/// Writes every field of a record into the record's row. `whole` contains the bytes of the whole record. It is `None`
/// if the format stores a record's values separately.
pub(crate) fn fill(
    record: &dyn Record,
    whole: Option<&[u8]>,
    id: &RecordId<'_>,
    number: u32,
    key: u64,
    fields: &[Field],
    rows: &Rows,
) -> Result<()> {
    let place = || format!("{} record {}", id.place, id.record);
    let mut recordings: Vec<(usize, Recording)> = Vec::new();
    for (column, field) in fields.iter().enumerate() {
        if let Some(Follows { field: audio, annotation: Annotation::Audio(fact) }) = &field.follows {
            let found = recordings.iter().find(|(column, _)| column == audio);
            let value = found.map_or_else(Recording::default, |(_, recording)| *recording).value(*fact, field);
            // SAFETY: the plan assigns each row of each batch once, and a batch is delivered only after its last row.
            unsafe { rows.write(column, Row { number, key, place: id.place }, field, &value) }?;
            continue;
        }
        let Named { found, absent } = if field.kind == Kind::Record {
            Named { found: whole.map(|bytes| Value::Bytes(Cow::Borrowed(bytes))), absent: None }
        } else {
            named(record, id, key, field)?
        };
        let takes_nothing = match (&field.default, &absent) {
            // A default is used only if the value is null, or if the format allows missing values. If no record had the
            // value, a default would hide the user's mistake (see `unknown_columns`).
            (Some(_), absent) => absent.is_some() || record.takes_defaults(),
            // A missing list counts as empty. A missing value of any other kind is an error.
            (None, None) => {
                let is_list =
                    matches!(field.kind, Kind::Ragged(_) | Kind::Padded(..) | Kind::BytesList | Kind::Nested { .. });
                is_list && record.may_lack_parts()
            }
            (None, Some(_)) => false,
        };
        if found.is_none() && takes_nothing {
            // SAFETY: the plan assigns each row of each batch once, and a batch is delivered only after its last row.
            unsafe { rows.write_absent(column, number, field) };
            continue;
        }
        let Some(part) = found.or(absent) else {
            return Err(Error::mismatch(place(), missing(field, record)));
        };
        let part = match (&field.follows, &field.audio) {
            (None, None) => part,
            (None, Some(spec)) => {
                let (value, recording) = audio_fields::decoded(spec, field, &part, key, id)?;
                recordings.push((column, recording));
                value
            }
            (Some(follows), _) => {
                let annotated = Annotated { record, id, key, fields };
                annotated.value(field, follows, &part).map_err(|error| in_record(error, id))?
            }
        };
        let written = {
            let row = Row { number, key, place: id.place };
            // SAFETY: the plan assigns each row of each batch once, and a batch is delivered only after its last row.
            unsafe { rows.write(column, row, field, &part) }
        };
        written.map_err(|error| in_record(error, id))?;
    }
    Ok(())
}

/// Maximum number of available names that the error about a missing value lists.
const NAMES_SHOWN: usize = 12;

fn missing(field: &Field, record: &dyn Record) -> String {
    let names = record.names();
    let shown: Vec<String> = names
        .iter()
        .take(NAMES_SHOWN)
        .map(|name| {
            let part = record.part(name).ok().flatten();
            let what = part.map_or_else(|| "which cannot be read".to_owned(), |part| part.describe());
            format!("`{}` ({what})", name.chars().take(64).collect::<String>().escape_debug())
        })
        .collect();
    let more = names.len() - shown.len();
    let holds = match (shown.is_empty(), more) {
        (true, _) => "nothing".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} more", shown.join(", ")),
    };
    if field.kind == Kind::Record {
        return format!(
            "field `{}` requests the whole record, but in this format, a record consists of separate values: {holds}",
            field.name
        );
    }
    let asked = field.parts().join("`, `");
    let hint = match field.default.is_none() && record.takes_defaults() {
        true => "; give the field a default if not every file has the value",
        false => "",
    };
    format!("field `{}` is read from `{asked}`, but the record contains {holds}{hint}", field.name)
}
