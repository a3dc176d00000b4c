// SPDX-License-Identifier: Apache-2.0
//! Reads the headers and samples of selected traces with ranged reads.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use penstock_store::{ObjectRef, Store, place};
use penstock_types::{ByteRange, Deadline, Error, Key, Result, lock};
use tokio::runtime::Handle;

use super::TEXT_HEADER;
use super::ibm::ibm_to_f32_exact;
use super::layout::{Layout, Overrides};
use super::sample_format::{ByteOrder, SampleFormat, decode};
use crate::OutBuffer;
use crate::fetch::{FetchStats, MergePolicy, Want, fetch, read};

/// Maximum number of extended text headers that are searched for the end stanza.
const MAX_EXTENDED: u64 = 1000;

/// Target size, in bytes, of a run of consecutive traces, which one thread decodes.
const RUN_BYTES: u64 = 2 << 20;

/// An IBM word that `f32` cannot represent exactly, as (trace, sample, word).
pub type IbmException = (u64, u64, u32);

/// Output buffers for traces, in the order of the request. A part without a buffer (`None`) is not read.
#[derive(Debug, Clone, Copy)]
pub struct TraceBuffers<'a> {
    /// Header of each trace, of the layout's `header_bytes` (usually 240).
    pub headers: Option<OutBuffer<'a>>,
    /// Samples of each trace, as little-endian elements of the layout's type.
    pub samples: Option<OutBuffer<'a>>,
}

/// An open SEG-Y file, pinned to one version.
#[derive(Debug)]
pub struct SegyReader {
    store: Arc<dyn Store>,
    object: ObjectRef,
    place: String,
    layout: Layout,
    policy: MergePolicy,
    /// Read counters.
    pub stats: FetchStats,
}

impl SegyReader {
    /// Opens a file: reads its size and its file headers.
    ///
    /// Errs with `NotFound` if the file does not exist, and with `Corrupt` if it is not SEG-Y.
    pub async fn open(
        store: Arc<dyn Store>,
        key: Key,
        policy: MergePolicy,
        overrides: &Overrides,
        deadline: Deadline,
    ) -> Result<Self> {
        let meta = store.head(&key, deadline).await?;
        let place = place(store.root(), &key);
        let object = ObjectRef { key, version: meta.version };
        let bytes = |start: u64, len: u64| {
            let (store, object) = (store.clone(), object.clone());
            async move { read_range(&*store, &object, start, len, deadline).await }
        };
        let headers = bytes(0, Layout::HEADERS.min(meta.size)).await?;
        let mut extended = None;
        let (stated, is_assigned) = match headers.len() as u64 == Layout::HEADERS {
            true => Layout::stated_extended(&headers, overrides, &place)?,
            false => (0, false),
        };
        // If the file's revision lacks the field, the bytes after the file headers must begin like an extended header.
        let has_extended = stated != 0
            && Layout::HEADERS + TEXT_HEADER as u64 <= meta.size
            && (is_assigned || is_stanza(&bytes(Layout::HEADERS, STANZA.len() as u64).await?));
        if has_extended && stated == -1 {
            let mut count = 0;
            while extended.is_none() && count < MAX_EXTENDED {
                let start = Layout::HEADERS + TEXT_HEADER as u64 * count;
                if start + TEXT_HEADER as u64 > meta.size {
                    break;
                }
                count += 1;
                extended = is_last_stanza(&bytes(start, TEXT_HEADER as u64).await?).then_some(count);
            }
        } else if has_extended && !is_assigned {
            extended = u64::try_from(stated).ok();
        }
        let layout = Layout::parse(&headers, meta.size, overrides, extended, &place)?;
        Ok(Self { store, object, place, layout, policy, stats: FetchStats::default() })
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Version of the object, if its store has versions.
    pub fn version(&self) -> Option<&str> {
        self.object.version.as_ref().map(|version| version.0.as_str())
    }

    /// Reads `len` bytes of the file from `start`, or fewer if the file ends earlier.
    pub async fn bytes(&self, start: u64, len: u64, deadline: Deadline) -> Result<Bytes> {
        read_range(&*self.store, &self.object, start, len.min(self.layout.size.saturating_sub(start)), deadline).await
    }

    /// Reads the range `samples` of each of the `traces` into `out`. Traces are numbered in file order, and can be
    /// requested in any order. Returns the IBM words that `f32` cannot represent exactly, sorted.
    ///
    /// Errs with `Config` if the file does not have a requested trace or sample.
    pub fn read_traces(
        &self,
        runtime: &Handle,
        traces: &[u64],
        samples: Range<u64>,
        out: TraceBuffers<'_>,
        threads: usize,
        deadline: Deadline,
    ) -> Result<Vec<IbmException>> {
        let layout = &self.layout;
        if samples.start > samples.end || samples.end > layout.samples {
            let problem =
                format!("{}..{} is not within the {} samples of a trace", samples.start, samples.end, layout.samples);
            return Err(Error::config("samples", problem));
        }
        if let Some(trace) = traces.iter().find(|&&trace| trace >= layout.traces) {
            return Err(Error::config(
                "trace",
                format!("{trace} does not exist (the file has {} traces, numbered from 0)", layout.traces),
            ));
        }
        let format = layout.sample_format()?;
        let stored = format.size() as u64;
        let count = (samples.end - samples.start) as usize;
        let row = count * format.dtype().size();
        let header = layout.header_bytes as usize;
        for (buffer, size) in [(out.headers, header), (out.samples, row)] {
            if let Some(buffer) = buffer
                && buffer.len() != size * traces.len()
            {
                return Err(Error::bug(format!("{} bytes for {} traces of {size}", buffer.len(), traces.len())));
            }
        }
        // `len` bytes of each trace are read, beginning `skip` bytes after the start of the trace.
        let samples_at = layout.header_bytes + samples.start * stored;
        let (skip, end) = match (out.headers.is_some(), out.samples.is_some() && count > 0) {
            (false, false) => return Ok(Vec::new()),
            (true, false) => (0, layout.header_bytes),
            (false, true) => (samples_at, samples_at + count as u64 * stored),
            (true, true) => (0, samples_at + count as u64 * stored),
        };
        let len = end - skip;
        // If only headers are requested, the samples between them are read too, because one request per header would
        // cost more.
        let small_gap = if out.samples.is_none() { self.policy.max_gap } else { self.policy.small_gap };
        let policy = MergePolicy { small_gap, ..self.policy };
        // Consecutive traces are read as one range (a run) if the gaps between their requested bytes would be read
        // anyway.
        let is_dense = layout.trace_bytes - len <= policy.small_gap;
        let most = if is_dense { (RUN_BYTES / layout.trace_bytes).max(1) as usize } else { 1 };
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (at, &trace) in traces.iter().enumerate() {
            match runs.last_mut() {
                Some(run) if run.len() < most && traces[run.end - 1] + 1 == trace => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        let wants: Vec<Want> = runs
            .iter()
            .map(|run| {
                let start = layout.trace_start(traces[run.start]) + skip;
                let bytes = (run.len() as u64 - 1) * layout.trace_bytes + len;
                Want { object: 0, range: ByteRange::new(start, bytes) }
            })
            .collect();
        let exceptions = Mutex::new(Vec::new());
        let order = layout.byte_order;
        let decode_run = |number: usize, bytes: &[u8]| -> Result<()> {
            let mut found = Vec::new();
            for (at, slot) in runs[number].clone().enumerate() {
                let trace = &bytes[at * layout.trace_bytes as usize..][..len as usize];
                if let Some(out) = out.headers {
                    // SAFETY: each slot belongs to one run, so no two threads write the same bytes.
                    unsafe { out.part(slot * header, header)? }.copy_from_slice(&trace[..header]);
                }
                if let Some(out) = out.samples {
                    let words = &trace[(samples_at - skip) as usize..][..count * stored as usize];
                    // SAFETY: each slot belongs to one run, so no two threads write the same bytes.
                    decode(format, order, words, unsafe { out.part(slot * row, row)? })?;
                    if format == SampleFormat::Ibm {
                        exceptions_of(words, order, traces[slot], samples.start, &mut found);
                    }
                }
            }
            if !found.is_empty() {
                lock(&exceptions).append(&mut found);
            }
            Ok(())
        };
        let objects = std::slice::from_ref(&self.object);
        fetch(runtime, &*self.store, objects, &wants, &policy, threads, deadline, &self.stats, &decode_run)?;
        let mut exceptions = exceptions.into_inner().unwrap_or_default();
        exceptions.sort_unstable();
        let returned = (out.headers.map_or(0, |out| out.len()) + out.samples.map_or(0, |out| out.len())) as u64;
        self.stats.bytes_returned.fetch_add(returned, std::sync::atomic::Ordering::Relaxed);
        Ok(exceptions)
    }

    /// URL of the file, for messages.
    pub fn place(&self) -> &str {
        &self.place
    }
}

fn exceptions_of(words: &[u8], order: ByteOrder, trace: u64, first: u64, found: &mut Vec<IbmException>) {
    for (at, word) in words.as_chunks::<4>().0.iter().enumerate() {
        let word = if order == ByteOrder::Big { u32::from_be_bytes(*word) } else { u32::from_le_bytes(*word) };
        if !ibm_to_f32_exact(word) {
            found.push((trace, first + at as u64, word));
        }
    }
}

/// First characters of a stanza.
const STANZA: &[u8] = b"((";

/// True if these bytes begin a stanza, in ASCII or EBCDIC.
fn is_stanza(header: &[u8]) -> bool {
    header == STANZA || header == [0x4d, 0x4d]
}

/// True if an extended text header contains the stanza `((SEG: EndText))`, in ASCII or EBCDIC. Case and spaces do not
/// matter.
fn is_last_stanza(header: &[u8]) -> bool {
    let ascii: Vec<u8> = header.iter().filter(|&&byte| byte != b' ').map(u8::to_ascii_uppercase).collect();
    // In EBCDIC (code page 037), 0x40 is both the space and the bit that makes letters upper case.
    let ebcdic: Vec<u8> = header.iter().filter(|&&byte| byte != 0x40).map(|byte| byte | 0x40).collect();
    let end = [0x4d, 0x4d, 0xe2, 0xc5, 0xc7, 0x7a, 0xc5, 0xd5, 0xc4, 0xe3, 0xc5, 0xe7, 0xe3, 0x5d, 0x5d];
    ascii.windows(15).any(|bytes| bytes == b"((SEG:ENDTEXT))") || ebcdic.windows(15).any(|bytes| bytes == end)
}

async fn read_range(store: &dyn Store, object: &ObjectRef, start: u64, len: u64, deadline: Deadline) -> Result<Bytes> {
    if len == 0 {
        return Ok(Bytes::new());
    }
    read(store, object, ByteRange::new(start, len), deadline).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_last_stanza_is_found_in_any_spelling() {
        let ebcdic = [0x4d, 0x4d, 0xe2, 0xc5, 0xc7, 0x7a, 0x40, 0xc5, 0x95, 0x84, 0xe3, 0x85, 0xa7, 0xa3, 0x5d, 0x5d];
        for text in [&b"((SEG: EndText))"[..], b"..((  seg: endTEXt  ))..", &ebcdic] {
            assert!(is_last_stanza(text), "{text:?}");
        }
        assert!(!is_last_stanza(b"((SEG: EndTexts))"));
        assert!(!is_last_stanza(b"((SEG"));
    }
}
