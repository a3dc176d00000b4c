// SPDX-License-Identifier: Apache-2.0
//! TFRecord format: a record is a frame. The values of a record are the features of its tf.Example. A frame with
//! any other content has no values, and can only be read as a whole.

use penstock_codec::Codec;
use penstock_codec::checksum::crc32c_masked;
use penstock_record::magic;
use penstock_record::tf_example::{Example, find_feature};
use penstock_record::tf_sequence_example::{feature_list_names, find_feature_list};
use penstock_record::tfrecord::{FOOTER_LEN, FrameStream, Frames, HEADER_LEN, frame_len};
use penstock_types::{Error, Result, with_separators};

use super::{Each, Framing, Record, RecordId};
use crate::value::Value;
use penstock_dataset::record_index::Span;

/// Prefix of a name that selects a context feature, for the case that a feature list has the same name.
const CONTEXT: &str = "context/";
/// Prefix of a name that selects a feature list, for the case that a context feature has the same name.
const LISTS: &str = "feature_lists/";

#[derive(Debug)]
pub(super) struct TfRecord;

impl Framing for TfRecord {
    fn spans(&self, content: &[u8], place: &str, spans: &mut Vec<Span>) -> Result<()> {
        if !content.is_empty() {
            compressed(content, place)?;
        }
        for frame in Frames::new(content, place, false) {
            let frame = frame?;
            let len = frame_len(frame.payload.len() as u64);
            let end = (frame.offset + len) as usize;
            spans.push(Span { offset: frame.offset, len, crc: self.crc(&content[frame.offset as usize..end]) });
        }
        Ok(())
    }

    fn frames(&self, first: &[u8], place: &str) -> Option<Result<FrameStream>> {
        Some(if first.is_empty() { Ok(()) } else { compressed(first, place) }.map(|()| FrameStream::new(place)))
    }

    /// Returns the checksum that the frame contains. Computes nothing.
    fn crc(&self, bytes: &[u8]) -> u32 {
        bytes.last_chunk::<FOOTER_LEN>().map_or(0, |footer| u32::from_le_bytes(*footer))
    }

    fn checks_itself(&self) -> bool {
        true
    }

    fn read(&self, bytes: &[u8], _head: &[u8], id: RecordId<'_>, each: Each<'_>) -> Result<()> {
        let payload = payload(bytes);
        let stated = bytes.first_chunk::<8>().map_or(0, |length| u64::from_le_bytes(*length));
        if frame_len(stated) != bytes.len() as u64 {
            return Err(Error::corrupt(
                id.place,
                format!(
                    "has no record {} of {} bytes at byte {}: the index belongs to a different object",
                    id.record,
                    with_separators(bytes.len() as u64),
                    with_separators(id.offset)
                ),
            ));
        }
        let (want, is) = (self.crc(bytes), crc32c_masked(payload));
        if want != is {
            return Err(Error::corrupt(
                id.place,
                format!(
                    "has a damaged record {} (byte {}, payload of {} bytes: checksum is {is:#010x}, want {want:#010x})",
                    id.record,
                    with_separators(id.offset),
                    with_separators(payload.len() as u64)
                ),
            ));
        }
        each(&Features { payload, place: id.place })
    }

    fn whole<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        Some(payload(bytes))
    }
}

/// Payload of a frame.
fn payload(frame: &[u8]) -> &[u8] {
    frame.get(HEADER_LEN..frame.len().saturating_sub(FOOTER_LEN)).unwrap_or_default()
}

/// Returns an error if the content is compressed. TensorFlow's writer adds no suffix to the names of compressed files.
fn compressed(content: &[u8], place: &str) -> Result<()> {
    let codec = Codec::sniff(content);
    match magic::describe(content) {
        Some(magic::TFRECORD) => Ok(()),
        Some(magic::ZLIB) => Err(Error::Unsupported {
            what: format!("zlib compression ({place}; TensorFlow's compression_type=\"ZLIB\")"),
            by: "the TFRecord reader".to_owned(),
        }),
        _ if codec == Codec::None => Ok(()),
        _ => {
            let suffix = codec.suffix();
            let problem = format!(
                "{place} is compressed by {codec}, but its name does not end in `{suffix}`; set \
                 format=penstock.formats.tfrecord(compression=\"{codec}\")"
            );
            Err(Error::config("format", problem))
        }
    }
}

/// A tf.Example or a tf.SequenceExample. The context of a SequenceExample has the same encoding as the features of an
/// Example.
struct Features<'a> {
    payload: &'a [u8],
    place: &'a str,
}

impl Record for Features<'_> {
    fn may_lack_parts(&self) -> bool {
        true
    }

    fn part(&self, name: &str) -> Result<Option<Value<'_>>> {
        let list = |name: &str| Ok::<_, Error>(find_feature_list(self.payload, name, self.place)?.map(Value::Steps));
        let found = match (find_feature(self.payload, name)?.map(Value::Feature), list(name)?) {
            (Some(_), Some(_)) => {
                let problem = format!(
                    "`{name}` is both in the context and in the feature lists; use `{CONTEXT}{name}` or `{LISTS}{name}`"
                );
                return Err(Error::mismatch(self.place, problem));
            }
            (feature, list) => feature.or(list),
        };
        match (found, name.strip_prefix(CONTEXT), name.strip_prefix(LISTS)) {
            (Some(part), _, _) => Ok(Some(part)),
            (None, Some(name), _) => Ok(find_feature(self.payload, name)?.map(Value::Feature)),
            (None, None, Some(name)) => list(name),
            (None, None, None) => Ok(None),
        }
    }

    fn names(&self) -> Vec<String> {
        let parsed = Example::parse(self.payload, self.place);
        let mut names: Vec<String> = parsed
            .map(|example| example.features().iter().map(|(name, _)| (*name).to_owned()).collect())
            .unwrap_or_default();
        let lists = feature_list_names(self.payload, self.place).unwrap_or_default();
        for list in lists.into_iter().map(|name| String::from_utf8_lossy(name).into_owned()) {
            match names.iter_mut().find(|name| **name == list) {
                Some(name) => {
                    *name = format!("{CONTEXT}{list}");
                    names.push(format!("{LISTS}{list}"));
                }
                None => names.push(list),
            }
        }
        names
    }
}
