// SPDX-License-Identifier: Apache-2.0
//! JSON lines format: a record is a line. Its values are the entries of the line's JSON object.

use std::borrow::Cow;
use std::cell::OnceCell;

use penstock_record::jsonl::{Json, Line, check_start, lines};
use penstock_types::Result;

use super::{Each, Framing, Record, RecordId, refuse_compressed};
use crate::field::{Kind, TextErrors};
use crate::value::Value;
use crate::value::json_numbers::Numbers;
use penstock_dataset::record_index::Span;

#[derive(Debug)]
pub(super) struct Jsonl;

impl Framing for Jsonl {
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        self.spans_from(0, content, place, spans)
    }

    fn spans_from(&self, start: u64, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        let mut head = 0;
        if start == 0 {
            refuse_compressed(content, place)?;
            head = check_start(content, place)?;
        }
        for line in lines(content, head) {
            let crc = self.crc(&content[line.clone()]);
            spans.push(Span { offset: line.start as u64, len: line.len() as u64, crc });
        }
        Ok(())
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        let place = format!("{} record {}", id.place, id.record);
        each(&Object { bytes, line: OnceCell::new(), place: &place })
    }

    fn proposes(&self, _name: &str, part: &Value<'_>) -> Option<Kind> {
        match part {
            Value::Text(_) | Value::Json(_) => Some(Kind::Text(TextErrors::Strict)),
            Value::Digits(text) => super::csv::number(text),
            _ => None,
        }
    }
}

/// A line. It is parsed only when a value is read, so `raw(record=True)` can read lines of any content.
struct Object<'a> {
    bytes: &'a [u8],
    line: OnceCell<Result<Line<'a>>>,
    place: &'a str,
}

impl<'a> Object<'a> {
    fn line(&self) -> Result<&Line<'a>> {
        self.line.get_or_init(|| Line::parse(self.bytes, self.place)).as_ref().map_err(Clone::clone)
    }
}

impl Record for Object<'_> {
    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let Some(value) = self.line()?.value(name, self.place)? else { return Ok(None) };
        Ok(Some(match value {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Numbers(Numbers::boolean(value)),
            Json::Number(text) => Value::Digits(text.as_bytes()),
            Json::Text(Cow::Borrowed(text)) => Value::Text(Cow::Borrowed(text.as_bytes())),
            Json::Text(Cow::Owned(text)) => Value::Text(Cow::Owned(text.into_bytes())),
            Json::Texts(texts) => Value::Strings(texts.into_iter().map(str::as_bytes).collect()),
            Json::Raw(text) => match Numbers::parse(text) {
                Some(numbers) if numbers.shape() == [0] => Value::Empty("[]"),
                Some(numbers) => Value::Numbers(numbers),
                None => Value::Json(text),
            },
        }))
    }

    fn names(&self) -> Vec<String> {
        self.line().map(Line::names).unwrap_or_default()
    }

    fn check(&self) -> Result<()> {
        self.line().map(|_| ())
    }

    fn may_lack_parts(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_in_the_middle_may_begin_with_a_damaged_line() {
        let spans = |start, content: &[u8]| -> Result<Vec<u64>> {
            let mut spans = Vec::new();
            Jsonl.spans_from(start, content, "p", &mut spans).map(|()| spans.iter().map(|span| span.len).collect())
        };
        assert_eq!(spans(9, b"[1]\n{}\n").unwrap(), [3, 2]);
        assert_eq!(spans(9, b"\xef\xbb\xbf{}\n").unwrap(), [5]);
        assert_eq!(spans(0, b"\xef\xbb\xbf{}\n").unwrap(), [2]);
        assert!(spans(0, b"[1]\n").is_err());
    }
}
