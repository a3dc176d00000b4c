// SPDX-License-Identifier: Apache-2.0
//! Streams one object as windows: runs of whole records with a fixed number of decompressed bytes.
//!
//! The end of a window is a function of the object's bytes alone, not of their arrival or the memory budget, because
//! the order of records follows from it. Parts are fetched ahead on the runtime; decompression and framing have their
//! own thread as long as the object lasts.

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

/// Inflated bytes in which a window's records begin; it enters the order, so it is no setting.
pub(super) const WINDOW: u64 = if cfg!(test) { 1 << 10 } else { 32 << 20 };

/// A record must lie within so much.
const MAX_WINDOW: u64 = 256 << 20;

/// Larger objects are read in parts of this size.
const PART: u64 = if cfg!(test) { 300 } else { 8 << 20 };

/// Parts of one object under way or waiting at a time.
const PARTS_IN_FLIGHT: usize = 3;

/// Maximum bytes held of an object's parts: these, and one being decompressed.
pub(super) const PARTS_AHEAD: u64 = (PARTS_IN_FLIGHT as u64 + 1) * PART;

/// Records of one object that follow each other.
#[derive(Debug)]
pub(super) struct Window {
    /// Number of the first in its object.
    pub first: u64,
    /// Where `content` begins in the object's inflated bytes.
    pub base: u64,
    pub content: Vec<u8>,
    /// Where they lie in `content`.
    pub spans: Vec<Span>,
    /// When the object was asked for, its first byte came, and its last part before this window did.
    pub sent: Instant,
    pub first_byte: Instant,
    pub arrived: Instant,
}

/// Passes over an object; ends when it does, at its first error, or when the receiver is gone.
pub(super) async fn windows(source: Arc<Source>, object: u64, each: Duration, out: mpsc::Sender<Result<Window>>) {
    let (parts, arriving) = mpsc::channel(1);
    let place = source.place(object);
    let cutting = {
        let (source, place, out) = (source.clone(), place.clone(), out.clone());
        tokio::task::spawn_blocking(move || {
            let cutter = Cutter::new(&source, object, place, &out);
            if let Err(error) = cutter.run(arriving) {
                let _ = out.blocking_send(Err(error)); // the receiver may be gone
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

/// Cuts arriving bytes into windows.
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

/// Decompressed bytes that are not cut into records yet.
struct Cut {
    pending: Vec<u8>,
    base: u64,
    first: u64,
    /// Number of bytes to frame next.
    target: usize,
}

impl<'a> Cutter<'a> {
    fn new(source: &'a Source, object: u64, place: String, out: &'a mpsc::Sender<Result<Window>>) -> Self {
        // An object that is a stream may inflate to anything: what is held of it is bounded.
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
            // At once costs half of what piece by piece does. What it refuses gets its words below.
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
                // The loop stops before the end of its object only if the rest is not needed.
                if gone { Err(Error::bug("a window without a receiver")) } else { Ok(()) }
            })?;
        }
        let Self { source, inflater, place, out, mut cut, sent, first_byte, .. } = self;
        // An object of 0 bytes holds no record.
        let Some(first_byte) = first_byte else { return Ok(()) };
        inflater.finish()?;
        let mut spans = Vec::new();
        let walked = source.framing().spans(&cut.pending, &place, &mut spans);
        // What is whole before an error is given first.
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
    /// The records of the next `target` bytes but the last, which may go on behind them; `None` where they hold no two.
    fn next(&mut self, source: &Source, place: &str) -> Result<Option<(Vec<u8>, Vec<Span>)>> {
        let mut spans = Vec::new();
        let walked = source.framing().spans(&self.pending[..self.target], place, &mut spans);
        let end = spans.pop().map_or(0, |last| last.offset) as usize;
        if end == 0 {
            if self.target as u64 >= MAX_WINDOW {
                let most = with_separators(MAX_WINDOW);
                let problem =
                    format!("contains no whole record in {most} bytes from byte {}", with_separators(self.base));
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

/// Sends a window; false if the receiver is gone.
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
