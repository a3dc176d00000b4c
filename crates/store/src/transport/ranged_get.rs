// SPDX-License-Identifier: Apache-2.0
//! Reads whole objects and ranges over HTTP, pinned to one version. Chunks of a body are passed on as they arrive.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use http::header::{self, HeaderValue};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use penstock_types::{ByteRange, Deadline, Error, Key, Result, Stopwatch};

use super::client::innermost;
use super::{Remote, within};
use crate::metered::timed;
use crate::{Chunk, GetResult, Meta, ObjectRef, Version, checksum};

/// Maximum number of bytes that one request reads for adjacent ranges. For more bytes, two connections are faster.
const JOINED: u64 = 8 << 20;
/// Maximum number of concurrent requests of one call.
const AT_ONCE: usize = 16;

/// Returns the Content-Length of a response.
pub(crate) fn length(remote: &dyn Remote, key: &Key, headers: &HeaderMap) -> Result<u64> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    length.ok_or_else(|| Error::Unsupported {
        what: format!("reading {} without a Content-Length in the response", remote.place(key)),
        by: "Penstock".to_owned(),
    })
}

/// Adjacent ranges that are read by one request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    start: u64,
    len: u64,
    /// Index and length of each range, in order. The lengths add up to `len`.
    members: VecDeque<(usize, u64)>,
}

/// Groups adjacent ranges. Keeps the order of the ranges.
fn grouped(ranges: &[ByteRange]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, range) in ranges.iter().enumerate().filter(|(_, range)| range.len > 0) {
        let joins = |group: &Group| {
            group.len != ByteRange::TO_END
                && range.len != ByteRange::TO_END
                && group.start.checked_add(group.len) == Some(range.start)
                && group.len.saturating_add(range.len) <= JOINED
        };
        match groups.last_mut().filter(|group| joins(group)) {
            Some(group) => {
                group.len += range.len;
                group.members.push_back((index, range.len));
            }
            None => {
                groups.push(Group { start: range.start, len: range.len, members: [(index, range.len)].into() });
            }
        }
    }
    groups
}

/// Reads ranges of one object with as few requests as possible.
pub(crate) async fn ranges(
    remote: &Arc<dyn Remote>,
    object: &ObjectRef,
    ranges: &[ByteRange],
    verifies: bool,
    deadline: Deadline,
) -> Result<GetResult> {
    let key = &object.key;
    let mut groups = grouped(ranges).into_iter();
    let Some(first) = groups.next() else {
        // All ranges are empty. Still check that the object exists and has the pinned version.
        let meta = remote.head(key, deadline).await?;
        check_pin(&**remote, key, object.version.as_ref(), &meta)?;
        check_starts(&**remote, key, ranges, meta.size)?;
        return Ok(GetResult { meta, chunks: stream::empty().boxed() });
    };
    let is_whole = ranges.len() == 1 && ranges[0].is_whole();
    let started = Stopwatch::start();
    let (meta, body, comes_whole) = get(remote, key, object.version.as_ref(), first, is_whole, deadline).await?;
    check_starts(&**remote, key, ranges, meta.size)?;
    if comes_whole {
        let chunks = timed(body.sliced(ranges, meta.size), started, remote.metrics().clone());
        return Ok(GetResult { meta, chunks });
    }
    let chunks = timed(body.chunks(), started, remote.metrics().clone());
    if is_whole {
        let chunks = match checksum::cheapest(&meta.digests).filter(|_| verifies) {
            Some(digest) => checksum::verified(chunks, digest, remote.place(key)),
            None => chunks,
        };
        return Ok(GetResult { meta, chunks });
    }
    // Pin the other requests to the version that the first request has found, even if the caller pinned no version.
    let (pin, size) = (meta.version.clone(), meta.size);
    let rest = groups.map(|group| {
        let (remote, key, pin) = (remote.clone(), key.clone(), pin.clone());
        stream::once(async move {
            let started = Stopwatch::start();
            let (meta, body, comes_whole) = get(&remote, &key, pin.as_ref(), group, false, deadline).await?;
            if meta.size != size || comes_whole {
                return Err(changed(&*remote, &key, pin.as_ref()));
            }
            Ok(timed(body.chunks(), started, remote.metrics().clone()))
        })
        .try_flatten()
        .boxed()
    });
    let streams: Vec<BoxStream<'static, Result<Chunk>>> = std::iter::once(chunks).chain(rest).collect();
    let chunks = match streams.len() {
        1 => streams.into_iter().next().unwrap_or_else(|| stream::empty().boxed()),
        _ => stream::iter(streams).flatten_unordered(AT_ONCE).boxed(),
    };
    Ok(GetResult { meta, chunks })
}

fn changed(remote: &dyn Remote, key: &Key, want: Option<&Version>) -> Error {
    Error::Changed {
        place: remote.place(key),
        want: want.map(ToString::to_string).unwrap_or_default(),
        have: "another".to_owned(),
    }
}

fn check_pin(remote: &dyn Remote, key: &Key, pin: Option<&Version>, meta: &Meta) -> Result<()> {
    match (pin, &meta.version) {
        (Some(want), Some(have)) if want != have => {
            Err(Error::Changed { place: remote.place(key), want: want.to_string(), have: have.to_string() })
        }
        _ => Ok(()),
    }
}

/// Returns an error if a range does not begin within the object.
fn check_starts(remote: &dyn Remote, key: &Key, ranges: &[ByteRange], size: u64) -> Result<()> {
    match ranges.iter().find(|range| range.start > size || (range.start == size && range.len > 0 && !range.is_whole()))
    {
        Some(range) => Err(Error::corrupt(
            remote.place(key),
            format!("has {size} bytes, but the range starts at byte {}", range.start),
        )),
        None => Ok(()),
    }
}

/// Sends one GET. Returns the metadata of the object and the body of the response. The flag is true if the body is the
/// whole object although only a part was requested.
async fn get(
    remote: &Arc<dyn Remote>,
    key: &Key,
    pin: Option<&Version>,
    group: Group,
    is_whole: bool,
    deadline: Deadline,
) -> Result<(Meta, Body, bool)> {
    let place = remote.place(key);
    let range = match (is_whole, group.len) {
        (true, _) => None,
        (false, ByteRange::TO_END) => Some(format!("bytes={}-", group.start)),
        (false, len) => Some(format!("bytes={}-{}", group.start, group.start.saturating_add(len - 1))),
    };
    let range = range.map(|text| HeaderValue::from_str(&text)).transpose();
    let range = range.map_err(|_| Error::bug("a range is not a header"))?;
    let answer = match remote.get(key, pin, range, deadline).await {
        Ok(answer) => answer,
        Err(Error::Changed { .. }) => return Err(changed(&**remote, key, pin)),
        // Not every store returns the size of the object with this error, so request it.
        Err(Error::Corrupt { .. }) => {
            let size = remote.head(key, deadline).await?.size;
            return Err(Error::corrupt(
                place,
                format!("has {size} bytes, but the range starts at byte {}", group.start),
            ));
        }
        Err(error) => return Err(error),
    };
    let (head, body) = answer.into_parts();
    let sent = length(&**remote, key, &head.headers)?;
    let (size, comes_whole) = match (is_whole, head.status) {
        (true, _) => (sent, false),
        (false, StatusCode::PARTIAL_CONTENT) => {
            let range = content_range(&head.headers).ok_or_else(|| match stated_size(&head.headers) {
                // Azurite returns such a header for a range that begins beyond the end of the object.
                Some(size) if group.start >= size => {
                    Error::corrupt(&place, format!("has {size} bytes, but the range starts at byte {}", group.start))
                }
                _ => odd(&place, "an invalid Content-Range"),
            });
            let (start, end, size) = range?;
            if start != group.start || end - start != sent || end != group.start.saturating_add(group.len).min(size) {
                return Err(odd(&place, "a range that was not requested"));
            }
            (size, false)
        }
        (false, StatusCode::OK) if remote.slices() => (sent, true),
        // A server without range support returns the whole object. This is correct if the range begins at 0 and is not
        // shorter than the object.
        (false, status) if group.start == 0 && sent <= group.len => {
            if status == StatusCode::OK {
                (sent, false)
            } else {
                return Err(odd(&place, "a status other than 206"));
            }
        }
        (false, _) => {
            let by = remote.shown().to_owned();
            return Err(Error::Unsupported { what: "a ranged read".to_owned(), by });
        }
    };
    let meta = remote.meta(key, size, &head.headers);
    // Some servers ignore If-Match, so compare the version here, too.
    check_pin(&**remote, key, pin, &meta)?;
    let meta = if is_whole { remote.vouched(meta, &head.headers, deadline).await? } else { meta };
    let at = if comes_whole { 0 } else { group.start };
    let shown = remote.shown().to_owned();
    Ok((meta, Body { body, at, left: sent, members: group.members, place, shown, deadline }, comes_whole))
}

pub(crate) fn odd(place: &str, what: &str) -> Error {
    Error::Server { place: place.to_owned(), status: 0, reason: format!("the response has {what}") }
}

/// Parses a Content-Range header. For example, `bytes 5-9/20` gives (5, 10, 20).
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, size) = text.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, end, size) = (first.parse().ok()?, last.parse::<u64>().ok()?.checked_add(1)?, size.parse().ok()?);
    (first < end && end <= size).then_some((first, end, size))
}

/// Returns the size of the object from a Content-Range header, and ignores the range in the header.
fn stated_size(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.parse().ok()
}

/// The body of a response that is being received.
struct Body {
    body: Incoming,
    at: u64,
    left: u64,
    members: VecDeque<(usize, u64)>,
    place: String,
    shown: String,
    deadline: Deadline,
}

impl Body {
    fn chunks(self) -> BoxStream<'static, Result<Chunk>> {
        stream::try_unfold(self, |mut body| async move {
            let bytes = body.next().await?;
            Ok(bytes.map(|bytes| (stream::iter(body.split(bytes)).map(Ok), body)))
        })
        .try_flatten()
        .boxed()
    }

    /// Cuts the ranges from a body that is the whole object, in one pass. Does not read the bytes after the last range.
    fn sliced(self, ranges: &[ByteRange], size: u64) -> BoxStream<'static, Result<Chunk>> {
        let wants: Vec<(usize, u64, u64)> =
            ranges.iter().enumerate().map(|(index, range)| (index, range.start, range.end(size))).collect();
        stream::try_unfold((self, wants), |(mut body, mut wants)| async move {
            wants.retain(|&(_, start, end)| end > start.max(body.at));
            if wants.is_empty() {
                return Ok(None);
            }
            let Some(bytes) = body.next().await? else { return Ok(None) };
            let (from, to) = (body.at, body.at + bytes.len() as u64);
            body.at = to;
            let cut = |&(range, start, end): &(usize, u64, u64)| {
                let (start, end) = (start.max(from), end.min(to));
                (start < end).then(|| {
                    let bytes = bytes.slice((start - from) as usize..(end - from) as usize);
                    Ok(Chunk { range, offset: start, bytes })
                })
            };
            let chunks: Vec<Result<Chunk>> = wants.iter().filter_map(cut).collect();
            Ok(Some((stream::iter(chunks), (body, wants))))
        })
        .try_flatten()
        .boxed()
    }

    /// Returns the next bytes from the network. Returns `None` after all bytes of the Content-Length have arrived.
    async fn next(&mut self) -> Result<Option<bytes::Bytes>> {
        loop {
            let frame = within(self.deadline, &self.place, async { Ok(self.body.frame().await) }).await?;
            let frame = match frame {
                Some(Ok(frame)) => frame,
                None if self.left == 0 => return Ok(None),
                broken => {
                    let cause = broken.and_then(|frame| Some(innermost(&frame.err()?)));
                    let cause = cause.unwrap_or_else(|| "the connection ended".to_owned());
                    return Err(Error::Unreachable {
                        place: self.shown.clone(),
                        reason: format!("the response for {} ended {} bytes early ({cause})", self.place, self.left),
                    });
                }
            };
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                self.left = self
                    .left
                    .checked_sub(data.len() as u64)
                    .ok_or_else(|| odd(&self.place, "more bytes than announced"))?;
                return Ok(Some(data));
            }
        }
    }

    /// Splits received bytes at the ends of the ranges. Does not copy them.
    fn split(&mut self, mut bytes: bytes::Bytes) -> Vec<Chunk> {
        let mut chunks = Vec::with_capacity(1);
        while !bytes.is_empty()
            && let Some((range, left)) = self.members.front_mut()
        {
            let piece = bytes.split_to((*left).min(bytes.len() as u64) as usize);
            let chunk = Chunk { range: *range, offset: self.at, bytes: piece };
            let len = chunk.bytes.len() as u64;
            self.at += len;
            if *left != ByteRange::TO_END {
                *left -= len;
            }
            if *left == 0 {
                self.members.pop_front();
            }
            chunks.push(chunk);
        }
        chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_grouped_joins_neighbours_and_nothing_else() {
        let ranges = [(0, 10), (10, 5), (20, 5), (25, 0), (25, 5), (5, ByteRange::TO_END)];
        let ranges = ranges.map(|(start, len)| ByteRange::new(start, len));
        let want = [
            Group { start: 0, len: 15, members: [(0, 10), (1, 5)].into() },
            Group { start: 20, len: 10, members: [(2, 5), (4, 5)].into() },
            Group { start: 5, len: ByteRange::TO_END, members: [(5, ByteRange::TO_END)].into() },
        ];
        assert_eq!(grouped(&ranges), want);
        let large = [ByteRange::new(0, JOINED), ByteRange::new(JOINED, 1)];
        assert_eq!(grouped(&large).len(), 2);
        assert_eq!(grouped(&[ByteRange::WHOLE]).len(), 1);
    }

    #[test]
    fn test_content_range_that_makes_no_sense_is_none() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_RANGE, HeaderValue::from_str(text).unwrap());
            content_range(&headers)
        };
        assert_eq!(of("bytes 5-9/20"), Some((5, 10, 20)));
        for text in ["bytes 9-5/20", "bytes 5-20/20", "bytes */20", "5-9/20", "bytes 5-18446744073709551615/20"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
