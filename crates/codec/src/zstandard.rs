// SPDX-License-Identifier: Apache-2.0
//! zstd (RFC 8878) decompression with the reference library. An object is a sequence of frames; skippable frames are
//! skipped, and other trailing bytes are an error. Windows of up to 128 MiB are supported (the library's own limit).
//! Dictionaries and formats before 1.0 are rejected.

use penstock_types::{Error, Result, with_separators};
use zstd::zstd_safe::{DCtx, InBuffer, OutBuffer, get_error_name, get_frame_content_size};

use crate::output::{OutputWindow, above_limit, reserve};

/// Maximum expansion of one byte: a block takes at least 4 bytes and holds at most 128 KiB of content. A frame header
/// that states a larger size is wrong.
const MAX_OF_ONE: u64 = 32 << 10;
/// Size of the buffer for decompressed bytes on their way to the sink: one block.
const STREAM_BUFFER: usize = 128 << 10;

/// Maximum size of a frame header in bytes.
const MAX_HEADER: usize = 18;

/// Decodes frames, counts them, and compares the decompressed size of each frame with the size in its header. The
/// library makes this comparison only if it receives the whole frame at once, or if the last block is not empty.
struct Frames {
    context: DCtx<'static>,
    /// Number of the current frame or, between frames, of the next one. The first frame has the number 1.
    frame: u64,
    inside: bool,
    /// The first bytes of the current frame.
    header: Vec<u8>,
    /// Decompressed bytes of the current frame so far.
    made: u64,
}

impl Frames {
    fn behind(frames: u64) -> Self {
        Self { context: DCtx::create(), frame: frames + 1, inside: false, header: Vec::new(), made: 0 }
    }

    /// Calls the decoder once and appends its output to `out`; returns the number of stored bytes consumed.
    fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, &'static str> {
        let before = out.len();
        let mut source = InBuffer::around(input);
        let mut sink = OutBuffer::around_pos(out, before);
        let hint = self.context.decompress_stream(&mut sink, &mut source).map_err(get_error_name)?;
        let moved = source.pos() > 0 || sink.pos() > before;
        self.made += (sink.pos() - before) as u64;
        let more = MAX_HEADER - self.header.len();
        self.header.extend_from_slice(&input[..source.pos().min(more)]);
        if hint == 0 {
            if moved {
                self.inside = true;
                if let Ok(Some(stated)) = get_frame_content_size(&self.header)
                    && stated != self.made
                {
                    return Err("size does not match the frame header");
                }
                self.header.clear();
                (self.frame, self.made) = (self.frame + 1, 0);
            }
            self.inside = false;
        } else if moved {
            self.inside = true;
        }
        Ok(source.pos())
    }

    fn problem(&self, reason: &str, bytes_in: u64, bytes_out: u64) -> String {
        let numbers = format!(
            "near stored byte {}: {reason}, inflated {} bytes so far",
            with_separators(bytes_in),
            with_separators(bytes_out)
        );
        match (self.inside, self.frame) {
            (false, 1) => format!("is not zstd ({numbers})"),
            (false, later) => format!("has bytes after zstd frame {} that are not zstd ({numbers})", later - 1),
            (true, frame) => format!("is damaged in zstd frame {frame} ({numbers})"),
        }
    }

    fn unfinished(&self) -> Option<String> {
        // Input without any frame is not valid zstd, so it counts as unfinished.
        (self.inside || self.frame == 1).then(|| format!("zstd frame {}", self.frame))
    }
}

/// Decompresses all frames of an object, including skippable frames, into `out`, which is empty on entry and may have
/// capacity. Returns the number of frames.
pub(crate) fn inflate_whole(input: &[u8], out: &mut Vec<u8>, limit: u64, place: &str) -> Result<u64> {
    let mut frames = Frames::behind(0);
    let mut at = 0;
    loop {
        let rest = &input[at..];
        if !frames.inside
            && let Ok(Some(size)) = get_frame_content_size(rest)
        {
            // If the whole output fits, the library decompresses in one pass, without its own window.
            let total = size.saturating_add(out.len() as u64);
            if total > limit {
                return Err(above_limit(limit, place));
            }
            let plausible = (rest.len() as u64).saturating_mul(MAX_OF_ONE).saturating_add(out.len() as u64);
            reserve(out, total.min(plausible), place)?;
        }
        let before = out.len();
        let used = frames
            .step(rest, out)
            .map_err(|reason| Error::corrupt(place, frames.problem(reason, at as u64, out.len() as u64)))?;
        at += used;
        // A reused buffer may have more capacity than the limit allows.
        if out.len() as u64 > limit {
            return Err(above_limit(limit, place));
        }
        if at == input.len() && !frames.inside && frames.frame > 1 {
            return Ok(frames.frame - 1);
        }
        if out.len() < out.capacity() {
            if at == input.len() {
                return Err(cut_short(&frames, at, out.len(), place));
            }
        } else if (out.len() as u64) < limit {
            let wanted = (out.capacity() as u64).saturating_mul(2).max(STREAM_BUFFER as u64);
            reserve(out, wanted.min(limit), place)?;
        } else if used == 0 && out.len() == before {
            // The output has reached the limit. One more call of the decoder shows whether the content is longer or the
            // input is truncated.
            let mut one_more = Vec::with_capacity(1);
            let _ = frames.step(&input[at..], &mut one_more);
            return Err(match one_more.is_empty() && at == input.len() {
                true => cut_short(&frames, at, out.len(), place),
                false => above_limit(limit, place),
            });
        }
    }
}

fn cut_short(frames: &Frames, bytes_in: usize, bytes_out: usize, place: &str) -> Error {
    let what = frames.unfinished().unwrap_or_else(|| "zstd".to_owned());
    Error::corrupt(
        place,
        format!(
            "ends inside {what} (have {} stored bytes, inflated {} bytes so far)",
            with_separators(bytes_in as u64),
            with_separators(bytes_out as u64)
        ),
    )
}

/// Streaming zstd decoder.
pub(crate) struct ZstdStream {
    frames: Frames,
    buffer: Vec<u8>,
}

impl ZstdStream {
    /// Creates a decoder that continues after `frames` whole frames.
    pub(crate) fn behind(frames: u64) -> Self {
        Self { frames: Frames::behind(frames), buffer: Vec::with_capacity(STREAM_BUFFER) }
    }

    pub(crate) fn push(&mut self, mut input: &[u8], outlet: &mut OutputWindow<'_>) -> Result<()> {
        if input.is_empty() {
            return Ok(());
        }
        loop {
            self.buffer.clear();
            let used = self
                .frames
                .step(input, &mut self.buffer)
                .map_err(|reason| outlet.corrupt(self.frames.problem(reason, outlet.bytes_in(), outlet.bytes_out())))?;
            outlet.took(used);
            input = &input[used..];
            outlet.emit(&self.buffer)?;
            // If the buffer is full, more output may be pending even if the input is used up.
            let more_behind = self.frames.inside && self.buffer.len() == self.buffer.capacity();
            if input.is_empty() && !more_behind {
                return Ok(());
            }
        }
    }

    /// Returns the name of the structure that would be incomplete if the stream ended here, if any.
    pub(crate) fn unfinished(&self) -> Option<String> {
        self.frames.unfinished()
    }
}
