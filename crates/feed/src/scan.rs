// SPDX-License-Identifier: Apache-2.0
//! Scan: finds the positions of all records of an object in one pass over its bytes.
//!
//! The memory is limited. An object with at most [`WHOLE`] stored and decompressed bytes is held in memory. A larger
//! object is streamed. For TFRecords and fixed-size records, the stream needs no buffer. For other formats, it buffers
//! a window of whole records.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, stream};
use penstock_codec::{Codec, StreamDecoder, decompress_into, gzip_size_hint};
use penstock_record::magic;
use penstock_record::tfrecord::{FrameStream, frame_len};
use penstock_types::{Deadline, Error, Result, with_separators};
use tokio::sync::mpsc;

use super::format::Framing;
use super::read_sizes::PART;
use super::source::Source;
use penstock_dataset::record_index::Span;

/// Maximum stored size and maximum decompressed size, in bytes, of an object that is held in memory. Four objects are
/// scanned at a time.
const WHOLE: u64 = if cfg!(test) { 4 << 10 } else { 128 << 20 };

/// Maximum decompressed size of an object. It limits the number of records in a small compressed file.
const MAX_INFLATED: u64 = 8 << 30;

/// Maximum number of concurrent parts per object.
const PARTS_IN_FLIGHT: usize = 4;

/// Number of bytes that are first searched for records. The number is doubled until two records start within these
/// bytes.
const WINDOW: usize = if cfg!(test) { 1 << 10 } else { 32 << 20 };

/// Maximum size of a record in an uncompressed object (for a tar: of a sample plus the start of the next sample).
const MAX_PLAIN_WINDOW: usize = 4 << 30;
/// Maximum size of a record in a compressed object.
const MAX_COMPRESSED_WINDOW: usize = 1 << 30;

/// Result of scanning an object.
#[derive(Debug, Default)]
pub(super) struct Scanned {
    /// Decompressed size of the object in bytes.
    pub size: u64,
    /// Number of records in the object.
    pub records: u64,
    /// Positions of the records. Empty if the positions can be computed.
    pub spans: Vec<Span>,
}

impl Scanned {
    /// Returns the position of each record.
    pub fn each(self, framing: &dyn Framing) -> impl Iterator<Item = Span> {
        let arithmetic = if self.spans.is_empty() { self.records } else { 0 };
        self.spans.into_iter().chain((0..arithmetic).filter_map(|record| framing.span_of(record)))
    }
}

/// Scans an object. An object of 0 bytes has no records, whatever its codec.
pub(super) async fn scan_object(source: &Arc<Source>, object: u64, deadline: Deadline) -> Result<Scanned> {
    let (size, framed) = (source.entry(object).size, source.clone());
    if size == 0 {
        return Ok(Scanned::default());
    }
    if size <= WHOLE {
        let stored = source.fetch(object, deadline).await?.bytes;
        let scan = move || whole(&framed, object, &stored);
        return tokio::task::spawn_blocking(scan).await.map_err(joined)?;
    }
    let (parts, mut arriving) = mpsc::channel::<Result<Bytes>>(1);
    let scanning = tokio::task::spawn_blocking(move || {
        let mut pass = ObjectScan::new(&framed, object);
        while let Some(part) = arriving.blocking_recv() {
            pass.push(&part?)?;
        }
        pass.finish()
    });
    let mut fetched = stream::iter((0..size).step_by(PART as usize))
        .map(|start| source.stretch(object, start, PART.min(size - start), deadline))
        .buffered(PARTS_IN_FLIGHT);
    while let Some(part) = fetched.next().await {
        let failed = part.is_err();
        if parts.send(part).await.is_err() || failed {
            break;
        }
    }
    drop(parts);
    scanning.await.map_err(joined)?
}

fn joined(error: tokio::task::JoinError) -> Error {
    Error::bug(format!("scanning an object: {error}"))
}

/// Scans an object whose stored bytes are in memory.
fn whole(source: &Source, object: u64, stored: &[u8]) -> Result<Scanned> {
    let (codec, mut inflated) = (source.codec(object), Vec::new());
    let place = source.place(object);
    // Decompression in one call costs half as much as decompression in pieces. An object that is damaged or too large
    // for one call is decompressed in pieces.
    let is_likely = match (codec, stored.last_chunk()) {
        (Codec::Gzip, Some(last)) => gzip_size_hint(*last) <= WHOLE,
        _ => true,
    };
    let content = match codec {
        Codec::None => stored,
        codec if is_likely && decompress_into(codec, stored, &mut inflated, WHOLE, &place).is_ok() => {
            inflated.as_slice()
        }
        _ => {
            let mut pass = ObjectScan::new(source, object);
            pass.push(stored)?;
            return pass.finish();
        }
    };
    let mut spans = Vec::new();
    source.framing().spans(content, &place, &mut spans)?;
    Ok(Scanned { size: content.len() as u64, records: spans.len() as u64, spans })
}

/// Scan of one object.
struct ObjectScan<'a> {
    inflater: StreamDecoder,
    records: Records<'a>,
}

/// Records found so far in the decompressed bytes of an object.
struct Records<'a> {
    framing: &'a dyn Framing,
    place: String,
    spans: Vec<Span>,
    size: u64,
    /// Maximum size of the window in bytes.
    max: usize,
    holding: Holding,
}

/// Decompressed bytes that are held in memory between two pieces of input.
enum Holding {
    /// The first bytes of the object, until they are sufficient to choose one of the other variants.
    First(Vec<u8>),
    /// A reader of frames. It holds at most the header of one frame.
    Frames(Box<FrameStream>),
    /// No bytes, because all records have the same size.
    Sized,
    /// Bytes whose last record may continue in the next piece of input.
    Window(Window),
}

impl<'a> ObjectScan<'a> {
    fn new(source: &'a Source, object: u64) -> Self {
        let (codec, place) = (source.codec(object), source.place(object));
        let (limit, max) = match codec {
            Codec::None => (u64::MAX, MAX_PLAIN_WINDOW),
            _ => (MAX_INFLATED, MAX_COMPRESSED_WINDOW),
        };
        let inflater = StreamDecoder::new(codec, limit, &place);
        let framing = source.framing();
        let holding = if framing.span_of(0).is_some() { Holding::Sized } else { Holding::First(Vec::new()) };
        Self { inflater, records: Records { framing, place, spans: Vec::new(), size: 0, max, holding } }
    }

    fn push(&mut self, stored: &[u8]) -> Result<()> {
        let Self { inflater, records } = self;
        inflater.push(stored, &mut |bytes| records.push(bytes))
    }

    fn finish(self) -> Result<Scanned> {
        let Self { inflater, records } = self;
        inflater.finish()?;
        records.finish()
    }
}

impl Records<'_> {
    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.size += bytes.len() as u64;
        let spans = &mut self.spans;
        match &mut self.holding {
            Holding::Sized => Ok(()),
            Holding::First(first) => {
                first.extend_from_slice(bytes);
                if first.len() >= magic::HEAD_LEN { self.begin() } else { Ok(()) }
            }
            Holding::Frames(frames) => frames.push(bytes, &mut |span, crc| {
                spans.push(Span { offset: span.offset, len: frame_len(span.len), crc });
            }),
            Holding::Window(window) => {
                window.hold(bytes, &self.place)?;
                while window.pending.len() > window.target {
                    window.cut(self.framing, &self.place, self.max, spans)?;
                }
                Ok(())
            }
        }
    }

    /// Chooses, from the object's first bytes, how later bytes are held.
    fn begin(&mut self) -> Result<()> {
        let Holding::First(first) = &mut self.holding else { return Ok(()) };
        let first = std::mem::take(first);
        self.holding = match self.framing.frames(&first, &self.place) {
            Some(frames) => Holding::Frames(Box::new(frames?)),
            None => Holding::Window(Window { pending: Vec::new(), base: 0, target: WINDOW }),
        };
        self.size -= first.len() as u64;
        self.push(&first)
    }

    fn finish(mut self) -> Result<Scanned> {
        self.begin()?;
        let Self { framing, place, mut spans, size, holding, .. } = self;
        match holding {
            Holding::First(_) => {}
            Holding::Sized => {
                let records = framing.count_of_size(size, &place).transpose()?;
                let records = records.ok_or_else(|| {
                    Error::bug(format!("the record count of {place} cannot be computed from its size"))
                })?;
                return Ok(Scanned { size, records, spans });
            }
            Holding::Frames(frames) => frames.finish()?,
            Holding::Window(window) => {
                let walked = window.spans(framing, &place, window.pending.len(), &mut spans);
                walked.map_err(|error| behind(error, window.base))?;
            }
        }
        Ok(Scanned { size, records: spans.len() as u64, spans })
    }
}

/// Window of decompressed bytes whose last record may be incomplete.
struct Window {
    pending: Vec<u8>,
    /// Offset of the window in the object.
    base: u64,
    /// Number of bytes of the window that are searched next.
    target: usize,
}

impl Window {
    fn hold(&mut self, bytes: &[u8], place: &str) -> Result<()> {
        let (need, room) = (self.pending.len() + bytes.len(), self.pending.capacity());
        // Reserve the exact size, instead of doubling the capacity: `target` determines the size of the window.
        if need > room && self.pending.try_reserve_exact(need.max(self.target) - self.pending.len()).is_err() {
            let what = format!("scanning {place}");
            return Err(Error::BudgetExceeded { what, need: need as u64, budget: room as u64 });
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends the positions of the records in the first `len` bytes of the window.
    fn spans(&self, framing: &dyn Framing, place: &str, len: usize, spans: &mut Vec<Span>) -> Result<()> {
        let from = spans.len();
        let walked = framing.spans_from(self.base, &self.pending[..len], place, spans);
        spans[from..].iter_mut().for_each(|span| span.offset += self.base);
        walked
    }

    /// Finds the records in the first `target` bytes, and drops the bytes of these records. Keeps the last record,
    /// because it may continue beyond the `target` bytes.
    fn cut(&mut self, framing: &dyn Framing, place: &str, max: usize, spans: &mut Vec<Span>) -> Result<()> {
        let from = spans.len();
        let walked = self.spans(framing, place, self.target, spans);
        let end = if spans.len() > from { spans.pop().map_or(0, |last| last.offset - self.base) } else { 0 };
        if end == 0 {
            if self.target >= max {
                let (max, base) = (with_separators(max as u64), with_separators(self.base));
                let problem = format!("contains no complete record in {max} bytes from byte {base} on");
                let error = walked.err().map(|error| behind(error, self.base));
                return Err(error.unwrap_or_else(|| Error::corrupt(place, problem)));
            }
            self.target = self.target.saturating_mul(2).min(max);
            return Ok(());
        }
        self.pending.drain(..end as usize);
        (self.base, self.target) = (self.base + end, WINDOW);
        Ok(())
    }
}

/// Adds to an error message that its offsets are counted from byte `at`.
pub(super) fn behind(error: Error, at: u64) -> Error {
    match error {
        Error::Corrupt { place, problem } if at > 0 => {
            Error::Corrupt { place, problem: format!("{problem}, counted from byte {}", with_separators(at)) }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use penstock_codec::compress;
    use penstock_record::tfrecord::write_frame;
    use penstock_store::{Memory, PutOptions, Store};
    use penstock_types::{Key, Metrics};
    use proptest::prelude::*;

    use super::super::FormatSpec;
    use super::*;
    use penstock_dataset::manifest::index;

    fn tar(sizes: &[usize]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (number, &size) in sizes.iter().enumerate() {
            let mut header = tar::Header::new_ustar();
            header.set_size(size as u64);
            let content = vec![number as u8; size];
            archive.append_data(&mut header, format!("{number:04}.bin"), content.as_slice()).unwrap();
        }
        archive.into_inner().unwrap()
    }

    fn tfrecord(sizes: &[usize]) -> Vec<u8> {
        let mut bytes = Vec::new();
        sizes.iter().for_each(|&size| write_frame(&vec![7; size], &mut bytes));
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// `WHOLE` and `WINDOW` are small in tests, so most objects are scanned in pieces, and a few in one read.
        #[test]
        fn prop_scan_in_pieces_finds_what_the_whole_object_holds(
            sizes in prop::collection::vec(0..3000usize, 0..12), is_tar: bool, codec in 0..4usize, cut in prop::option::of(0..100usize),
        ) {
            let (name, mut content) = if is_tar { ("a.tar", tar(&sizes)) } else { ("a.tfrecord", tfrecord(&sizes)) };
            content.truncate(content.len() - cut.unwrap_or(0).min(content.len()));
            let codec = Codec::ALL[codec];
            let stored = compress(codec, &content, codec.default_level()).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let store = Arc::new(Memory::named(&format!("scan-{name}-{codec}")));
            let (scanned, want) = runtime.block_on(async {
                let key = Key::from(format!("{name}{}", codec.suffix()).as_str());
                let options = PutOptions::default();
                store.put(&key, vec![Bytes::from(stored)], &options, Deadline::NEVER).await.unwrap();
                let listed = index(&*store, &Key::default(), store.root(), Deadline::NEVER).await.unwrap();
                let format = if is_tar { FormatSpec::Tar {} } else { FormatSpec::TFRECORD };
                let metrics = Arc::<Metrics>::default();
                let source = Arc::new(Source::of_format(store, Key::default(), listed, metrics, format).unwrap());
                let mut spans = Vec::new();
                let walked = source.framing().spans(&content, &source.place(0), &mut spans);
                (scan_object(&source, 0, Deadline::NEVER).await, walked.map(|()| spans))
            });
            match (scanned, want) {
                (Ok(scanned), Ok(want)) => {
                    prop_assert_eq!(scanned.records, want.len() as u64);
                    prop_assert_eq!(scanned.size, content.len() as u64);
                    prop_assert_eq!(scanned.spans, want);
                }
                (scanned, want) => prop_assert_eq!(scanned.is_err(), want.is_err()),
            }
        }
    }
}
