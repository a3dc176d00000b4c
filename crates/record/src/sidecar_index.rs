// SPDX-License-Identifier: Apache-2.0
//! Index files that other programs write beside the data: DALI's indexes for TFRecord and tar, and the shard lists of
//! WebDataset and wids.
//!
//! An index saves a scan of the object, but may be stale. Every span is therefore compared with the size of the object.
//! A reader that finds unexpected bytes at a span should report the index as stale and scan the object.

use penstock_types::{Error, Result, with_separators};
use serde::Deserialize;

use crate::tar::{Sample, SampleMember};
use crate::tfrecord::{FOOTER_LEN, HEADER_LEN, RecordSpan};

/// Parses an index written by DALI's `tfrecord2idx` (or by the tool of this name in the `tfrecord` package). The index
/// has one line `OFFSET LENGTH` per record, where LENGTH is the size of the frame. `object_len` is the size of the
/// TFRecord object; `place` names the index in messages.
pub fn parse_tfrecord_index(text: &[u8], object_len: u64, place: &str) -> Result<Vec<RecordSpan>> {
    let mut spans = Vec::new();
    let mut end = 0u64;
    for (number, line) in lines(text) {
        let mut words = Words::new(line);
        let (offset, len) = (words.number(), words.number());
        let (Some(offset), Some(len), true) = (offset, len, words.done()) else {
            return Err(wrong(place, number, line, "`OFFSET LENGTH`"));
        };
        let frame = (HEADER_LEN + FOOTER_LEN) as u64;
        if offset != end || len < frame || offset.checked_add(len).is_none_or(|end| end > object_len) {
            return Err(stale(place, number, offset, len, object_len));
        }
        end = offset + len;
        spans.push(RecordSpan { offset, len: len - frame });
    }
    if end != object_len {
        let (end, object) = (with_separators(end), with_separators(object_len));
        return Err(Error::corrupt(
            place,
            format!(
                "ends at byte {end}, but the object has {object} bytes: the index is stale or belongs to a different object"
            ),
        ));
    }
    Ok(spans)
}

/// Parses an index written by DALI's `wds2idx`. The first line has the version (`v1.0` to `v1.2`) and the number of
/// samples. Each sample has one line, which contains `EXT OFFSET SIZE NAME` (version 1.2) or `EXT OFFSET SIZE` (earlier
/// versions) for every part.
///
/// The index has the offsets of contents, but not those of headers. A sample's span is therefore assumed to begin one
/// block before its first part. The assumption is wrong only for members with long names.
pub fn parse_tar_index(text: &[u8], object_len: u64, place: &str) -> Result<Vec<Sample<'static>>> {
    let mut lines = lines(text);
    let (_, head) = lines.next().ok_or_else(|| Error::corrupt(place, "is not a DALI index: the file is empty"))?;
    let mut words = Words::new(head);
    let words_a_part = match words.word() {
        Some(b"v1.2") => 4,
        Some(b"v1.0" | b"v1.1") => 3,
        _ => return Err(wrong(place, 1, head, "`v1.2 SAMPLES`")),
    };
    let count = words.number().filter(|_| words.done()).ok_or_else(|| wrong(place, 1, head, "`v1.2 SAMPLES`"))?;
    let mut samples = Vec::new();
    for (number, line) in lines {
        let odd = || wrong(place, number, line, "`EXT OFFSET SIZE NAME` for each part");
        let (mut words, mut parts, mut key) = (Words::new(line), Vec::new(), None);
        while !words.done() {
            let ext = words.word().and_then(|ext| std::str::from_utf8(ext).ok()).ok_or_else(odd)?.to_lowercase();
            let (offset, size) = words.number().zip(words.number()).ok_or_else(odd)?;
            if words_a_part == 4 {
                let name = words.word().ok_or_else(odd)?;
                let stem = crate::tar::split_name(name).map_or(name, |(stem, _)| stem);
                key.get_or_insert_with(|| stem.to_vec());
            }
            if offset < 512 || offset.checked_add(size).is_none_or(|end| end > object_len) {
                return Err(stale(place, number, offset, size, object_len));
            }
            parts.push(SampleMember { ext, offset, size });
        }
        let (first, last) = parts.first().zip(parts.last()).ok_or_else(odd)?;
        let start = first.offset - 512;
        let end = (last.offset + last.size).checked_next_multiple_of(512).unwrap_or(object_len).min(object_len);
        let len = end.checked_sub(start).ok_or_else(odd)?;
        // Before version 1.2, the index contains no sample names.
        let key = key.unwrap_or_else(|| samples.len().to_string().into_bytes());
        samples.push(Sample { key: key.into(), offset: start, len, parts });
    }
    if samples.len() as u64 != count {
        let (have, want) = (with_separators(samples.len() as u64), with_separators(count));
        return Err(Error::corrupt(place, format!("lists {have} samples, but declares {want}")));
    }
    Ok(samples)
}

/// A shard in a list of shards.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ListedShard {
    /// URL, absolute or relative to the list.
    pub url: String,
    /// Number of samples.
    #[serde(rename = "nsamples")]
    pub samples: Option<u64>,
    /// Size in bytes.
    #[serde(rename = "filesize")]
    pub size: Option<u64>,
}

#[derive(Deserialize)]
struct ShardList {
    #[serde(default)]
    wids_version: Option<u64>,
    shardlist: Vec<ListedShard>,
}

/// Parses a shard list in the format of wids (`{"wids_version": 1, "shardlist": [{"url", "nsamples", ...}]}`).
pub fn parse_shard_list(json: &[u8], place: &str) -> Result<Vec<ListedShard>> {
    let list: ShardList = serde_json::from_slice(json)
        .map_err(|problem| Error::corrupt(place, format!("is not a list of shards: {problem}")))?;
    match list.wids_version {
        None | Some(1) => Ok(list.shardlist),
        Some(other) => {
            let what = format!("version {other} of wids ({place})");
            Err(Error::Unsupported { what, by: "the shard list reader".to_owned() })
        }
    }
}

/// Non-empty lines with their numbers, which start at 1.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = text.split(|&byte| byte == b'\n').enumerate();
    lines.map(|(at, line)| (at + 1, line.trim_ascii())).filter(|(_, line)| !line.is_empty())
}

struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn new(line: &'a [u8]) -> Self {
        Self(line.trim_ascii())
    }

    fn done(&self) -> bool {
        self.0.is_empty()
    }

    fn word(&mut self) -> Option<&'a [u8]> {
        let len = self.0.iter().position(u8::is_ascii_whitespace).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(len);
        self.0 = rest.trim_ascii_start();
        (!word.is_empty()).then_some(word)
    }

    fn number(&mut self) -> Option<u64> {
        let word = self.word()?;
        word.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(word).ok()?.parse().ok())?
    }
}

fn wrong(place: &str, number: usize, line: &[u8], want: &str) -> Error {
    let shown = line[..line.len().min(60)].escape_ascii();
    Error::corrupt(place, format!("is not an index: line {number} is `{shown}` (want {want})"))
}

fn stale(place: &str, number: usize, offset: u64, len: u64, object_len: u64) -> Error {
    let (offset, len, object) = (with_separators(offset), with_separators(len), with_separators(object_len));
    Error::corrupt(
        place,
        format!(
            "has {len} bytes at byte {offset} in line {number}, outside the object of {object} bytes: \
             the index is stale or belongs to a different object"
        ),
    )
}
