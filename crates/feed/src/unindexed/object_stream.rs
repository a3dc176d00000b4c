// SPDX-License-Identifier: Apache-2.0
//! Streams one object as windows. A window is a run of whole records; all windows have about the same decompressed
//! size.
//!
//! The order of records depends on the windows. The end of a window must therefore depend only on the object's bytes,
//! not on the times at which they arrive or on the memory budget. The runtime fetches parts ahead. While an object is
//! streamed, one thread decompresses it and finds its records.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, stream};
use penstock_codec::{Codec, StreamDecoder, decompress_into};
use penstock_types::{Deadline, Error, Result, now, with_separators};
use tokio::sync::mpsc;

use super::super::scan::behind;
use super::super::source::Source;
use penstock_dataset::record_index::Span;

/// Window size in decompressed bytes: all records of a window start within this size. It is a constant, because it
/// affects the order of records.
pub(super) const WINDOW: u64 = if cfg!(test) { 1 << 10 } else { 32 << 20 };

/// Maximum size of a record in bytes.
const MAX_WINDOW: u64 = 256 << 20;

/// Part size in bytes. An object that is larger than one part is read in parts.
const PART: u64 = if cfg!(test) { 300 } else { 8 << 20 };

/// Maximum number of parts of one object that are in flight or waiting.
const PARTS_IN_FLIGHT: usize = 3;

/// Maximum number of bytes in memory of one object's parts: the parts in flight or waiting, and the part that is being
/// decompressed.
pub(super) const PARTS_AHEAD: u64 = (PARTS_IN_FLIGHT as u64 + 1) * PART;

/// A run of consecutive records of one object.
#[derive(Debug)]
pub(super) struct Window {
    /// Index of the first record in its object.
    pub first: u64,
    /// Offset of `content` in the object's decompressed bytes.
    pub base: u64,
    pub content: Vec<u8>,
    /// Positions of the records in `content`.
    pub spans: Vec<Span>,
    /// Time at which the object was requested.
    pub sent: Instant,
    /// Time at which the object's first byte arrived.
    pub first_byte: Instant,
    /// Time at which the last part before this window arrived.
    pub arrived: Instant,
}

/// Streams an object as windows. The stream ends at the end of the object, at the first error, or when the receiver is
/// dropped.
pub(super) async fn windows(source: Arc<Source>, object: u64, each: Duration, out: mpsc::Sender<Result<Window>>) {
    let (parts, arriving) = mpsc::channel(1);
    let place = source.place(object);
    let cutting = {
        let (source, place, out) = (source.clone(), place.clone(), out.clone());
        tokio::task::spawn_blocking(move || {
            let cutter = Cutter::new(&source, object, place, &out);
            if let Err(error) = cutter.run(arriving) {
                let _ = out.blocking_send(Err(error)); // fails only if the receiver was dropped
            }
        })
    };
    let size = source.entry(object).size;
    let fetches = (0..size.div_ceil(PART).max(1)).map(|part| {
        let (source, start) = (source.clone(), part * PART);
        async move { source.stretch(object, start, PART.min(size - start), Deadline::within(each)).await }
    });
    if size > 0 {
        let mut fetched = stream::iter(fetches).buffered(PARTS_IN_FLIGHT);
        while let Some(part) = fetched.next().await {
            let failed = part.is_err();
            if parts.send(part).await.is_err() || failed {
                break;
            }
        }
    }
    drop(parts);
    if cutting.await.is_err() {
        let _ = out.send(Err(Error::bug(format!("framing {place} panicked")))).await;
    }
}

/// Divides the bytes of an object into windows as they arrive.
struct Cutter<'a> {
    source: &'a Source,
    codec: Codec,
    is_one_part: bool,
    inflater: StreamDecoder,
    place: String,
    out: &'a mpsc::Sender<Result<Window>>,
    cut: Cut,
    sent: Instant,
    first_byte: Option<Instant>,
}

/// Decompressed bytes that are not divided into records yet.
struct Cut {
    pending: Vec<u8>,
    base: u64,
    first: u64,
    /// Number of bytes that are searched for records next.
    target: usize,
}

impl<'a> Cutter<'a> {
    fn new(source: &'a Source, object: u64, place: String, out: &'a mpsc::Sender<Result<Window>>) -> Self {
        // The decompressed size needs no limit, because only a limited part of the decompressed bytes is in memory at a
        // time.
        let codec = source.codec(object);
        let inflater = StreamDecoder::new(codec, u64::MAX, &place);
        let is_one_part = source.entry(object).size <= PART;
        let cut = Cut { pending: Vec::new(), base: 0, first: 0, target: WINDOW as usize };
        Self { source, codec, is_one_part, inflater, place, out, cut, sent: now(), first_byte: None }
    }

    fn run(mut self, mut arriving: mpsc::Receiver<Result<Bytes>>) -> Result<()> {
        let mut gone = false;
        while let Some(part) = arriving.blocking_recv() {
            let part = part?;
            let arrived = now();
            let first_byte = *self.first_byte.get_or_insert(arrived);
            let Self { source, inflater, place, out, cut, sent, codec, is_one_part, .. } = &mut self;
            // Decompression in one call costs half as much as decompression in pieces. If the call fails, the
            // decompression in pieces below reports the error.
            if *is_one_part && *codec != Codec::None {
                if decompress_into(*codec, &part, &mut cut.pending, WINDOW, place).is_ok() {
                    self.inflater = StreamDecoder::new(Codec::None, 0, &self.place);
                    continue;
                }
                cut.pending.clear();
            }
            inflater.push(&part, &mut |bytes| {
                cut.pending.extend_from_slice(bytes);
                while cut.pending.len() > cut.target && !gone {
                    let Some((content, spans)) = cut.next(source, place)? else { continue };
                    gone = !give(out, cut, content, spans, [*sent, first_byte, arrived]);
                }
                // If the receiver was dropped, an error ends the decompression early.
                if gone { Err(Error::bug("the receiver of windows was dropped")) } else { Ok(()) }
            })?;
        }
        let Self { source, inflater, place, out, mut cut, sent, first_byte, .. } = self;
        // An object of 0 bytes has no records.
        let Some(first_byte) = first_byte else { return Ok(()) };
        inflater.finish()?;
        let mut spans = Vec::new();
        let walked = source.framing().spans(&cut.pending, &place, &mut spans);
        // Before an error, send the whole records that precede it.
        if !spans.is_empty() {
            let content = std::mem::take(&mut cut.pending);
            let base = cut.base;
            give(out, &mut cut, content, spans, [sent, first_byte, now()]);
            cut.base = base;
        }
        walked.map_err(|error| behind(error, cut.base))
    }
}

impl Cut {
    /// Returns the records in the next `target` bytes, except the last record, which may continue beyond these bytes.
    /// Returns `None` if fewer than two records start within these bytes.
    fn next(&mut self, source: &Source, place: &str) -> Result<Option<(Vec<u8>, Vec<Span>)>> {
        let mut spans = Vec::new();
        let walked = source.framing().spans(&self.pending[..self.target], place, &mut spans);
        let end = spans.pop().map_or(0, |last| last.offset) as usize;
        if end == 0 {
            if self.target as u64 >= MAX_WINDOW {
                let most = with_separators(MAX_WINDOW);
                let problem =
                    format!("contains no complete record in {most} bytes from byte {} on", with_separators(self.base));
                return Err(walked.map_or_else(|error| behind(error, self.base), |()| Error::corrupt(place, problem)));
            }
            self.target *= 2;
            return Ok(None);
        }
        self.target = WINDOW as usize;
        let rest = self.pending.split_off(end);
        Ok(Some((std::mem::replace(&mut self.pending, rest), spans)))
    }
}

/// Sends a window. Returns false if the receiver was dropped.
fn give(
    out: &mpsc::Sender<Result<Window>>,
    cut: &mut Cut,
    content: Vec<u8>,
    spans: Vec<Span>,
    [sent, first_byte, arrived]: [Instant; 3],
) -> bool {
    let (first, base) = (cut.first, cut.base);
    cut.first += spans.len() as u64;
    cut.base += content.len() as u64;
    out.blocking_send(Ok(Window { first, base, content, spans, sent, first_byte, arrived })).is_ok()
}
