// SPDX-License-Identifier: Apache-2.0
//! WebDataset format: a record is a sequence of consecutive tar members with the same key. Each member is a value of
//! the record. The value's name is the member's extension.

use std::borrow::Cow;

use penstock_record::tar::{Members, Sample, Samples, sniff};
use penstock_types::{Error, Result};

use super::npy::array;
use super::{Each, Framing, Record, RecordId};
use crate::value::Value;
use penstock_dataset::record_index::Span;

/// Name of the value that contains a sample's key.
pub(super) const KEY: &str = "__key__";

/// Extensions of members that contain a number as text, as in WebDataset's own decoders.
const NUMBERS: [&str; 6] = ["cls", "cls2", "class", "count", "index", "id"];

#[derive(Debug)]
pub(super) struct Tar;

impl Framing for Tar {
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        for sample in Samples::new(content, place) {
            let sample = sample?;
            let bytes = content.get(sample.offset as usize..(sample.offset + sample.len) as usize);
            let bytes = bytes.ok_or_else(|| Error::corrupt(place, "ends inside a sample"))?;
            spans.push(Span { offset: sample.offset, len: sample.len, crc: self.crc(bytes) });
        }
        Ok(())
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        let mut samples = Samples::of(Members::at(bytes, id.offset, id.place));
        match (samples.next().transpose()?, sniff(bytes)) {
            (Some(sample), true) => each(&Files { bytes, base: id.offset, sample, place: id.place }),
            _ => Err(Error::corrupt(id.place, format!("has no sample at byte {}", id.offset))),
        }
    }

    fn whole<'a>(&self, _bytes: &'a [u8]) -> Option<&'a [u8]> {
        None
    }
}

struct Files<'a> {
    bytes: &'a [u8],
    base: u64,
    sample: Sample<'a>,
    place: &'a str,
}

impl Record for Files<'_> {
    fn may_lack_parts(&self) -> bool {
        true
    }

    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        if name == KEY {
            return Ok(Some(Value::Bytes(Cow::Borrowed(&self.sample.key))));
        }
        let Some(part) = self.sample.part(name) else { return Ok(None) };
        let start = (part.offset - self.base) as usize;
        let bytes = self.bytes.get(start..start + part.size as usize);
        let bytes = bytes.ok_or_else(|| Error::corrupt(self.place, format!("ends inside member `.{name}`")))?;
        Ok(Some(of_file(name, bytes, self.place)?))
    }

    fn names(&self) -> Vec<String> {
        let parts = self.sample.parts.iter().map(|part| part.ext.clone());
        std::iter::once(KEY.to_owned()).chain(parts).collect()
    }
}

/// Converts a file to a value by its extension: a number as text, a NumPy array, or bytes.
pub(super) fn of_file<'a>(name: &str, bytes: &'a [u8], place: &str) -> Result<Value<'a>> {
    let last = name.rsplit('.').next().unwrap_or(name);
    if NUMBERS.contains(&last) {
        Ok(Value::Digits(bytes))
    } else if last == "npy" {
        array(bytes, place).map(Value::Array)
    } else {
        Ok(Value::Bytes(Cow::Borrowed(bytes)))
    }
}
