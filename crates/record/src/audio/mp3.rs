// SPDX-License-Identifier: Apache-2.0
//! MP3 (MPEG-1, 2 and 2.5 layer III): finds the frames, and decodes them with the crate `symphonia`.
//!
//! The frames are found here. The crate would estimate the length of a file without a Xing tag from its bit rate, and
//! stop at the estimated end. The encoder's delay and padding are removed, as in libsndfile, mpg123 and FFmpeg.

use penstock_types::{Error, Result, with_separators};
use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::codecs::audio::well_known::CODEC_ID_MP3;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};
use symphonia::default::codecs::MpaDecoder;

use super::{Info, Stream, append, tags, unsupported};

/// Delay of every decoder, in samples: 528 for the filter bank, plus one.
const DECODER_DELAY: u64 = 529;
/// Maximum distance of the first frame from the start (after ID3 tags), in bytes.
const MAX_JUNK: usize = 64 << 10;
/// Maximum number of bytes by which a frame's data may begin before the frame (bit reservoir).
const RESERVOIR: usize = 512;
/// Number of frames after which the overlap and the filter bank no longer depend on earlier frames.
const WARM_FRAMES: usize = 3;

const RATES: [u32; 3] = [44_100, 48_000, 32_000];
const KBPS_1: [usize; 15] = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
const KBPS_2: [usize; 15] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];

/// Header of a frame.
#[derive(Debug, Clone, Copy)]
struct Header {
    rate: u32,
    channels: usize,
    /// Samples in the frame.
    samples: u64,
    /// Size of the frame in bytes, including the header.
    len: usize,
    /// Size of the side information after the header, in bytes.
    side: usize,
}

impl Header {
    /// Parses a header of layer III; `None` if the bytes are not such a header, or the bit rate is free.
    fn of(bytes: &[u8]) -> Option<Self> {
        let &[0xff, b, c, d] = bytes.first_chunk()? else { return None };
        // Version: 3 is MPEG-1, 2 is MPEG-2, 0 is MPEG-2.5.
        let version = b >> 3 & 3;
        let (bits, rate) = (usize::from(c >> 4), usize::from(c >> 2 & 3));
        if b & 0xe6 != 0xe2 || version == 1 || bits == 0 || bits == 15 || rate == 3 {
            return None;
        }
        let is_1 = version == 3;
        let rate = RATES[rate] >> [2, 0, 1, 0][usize::from(version)];
        let channels = if d >> 6 == 3 { 1 } else { 2 };
        let kbps = if is_1 { KBPS_1[bits] } else { KBPS_2[bits] };
        let len = (if is_1 { 144 } else { 72 }) * kbps * 1000 / rate as usize + usize::from(c >> 1 & 1);
        let side = [[9, 17], [17, 32]][usize::from(is_1)][channels - 1];
        Some(Self { rate, channels, samples: if is_1 { 1152 } else { 576 }, len, side })
    }

    fn is_like(&self, other: &Self) -> bool {
        (self.rate, self.channels, self.samples) == (other.rate, other.channels, other.samples)
    }
}

/// True if a frame has mixed blocks (with long and short windows). The crate scales such blocks wrongly.
fn has_mixed_blocks(frame: &[u8], header: &Header) -> bool {
    let start = if frame.get(1).is_some_and(|b| b & 1 == 0) { 6 } else { 4 };
    let bit = |at: usize| frame.get(start + at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    // `before`: bits before the first granule. `step`: bits per channel of a granule. `flag`: bits of a channel before
    // its window switching flag.
    let (before, step, flag, granules) = match (header.samples, header.channels) {
        (1152, channels) => (if channels == 1 { 18 } else { 20 }, 59, 33, 2),
        (_, channels) => (8 + channels, 63, 38, 1),
    };
    (0..granules * header.channels).any(|at| {
        let flag = before + at * step + flag;
        [true, true, false, true].iter().zip(flag..).all(|(want, at)| bit(at) == *want)
    })
}

/// Content of a Xing or LAME tag.
#[derive(Debug, Clone, Copy, Default)]
struct Tag {
    frames: Option<u64>,
    /// Number of samples to remove at the start.
    skip: u64,
    /// Number of samples to remove at the end.
    cut: u64,
}

impl Tag {
    /// Parses the tag in the first frame; `None` if the frame holds audio.
    fn of(frame: &[u8], header: &Header) -> Option<Self> {
        if frame.get(36..40) == Some(b"VBRI") {
            let frames = frame.get(50..).and_then(<[u8]>::first_chunk).map(|n| u64::from(u32::from_be_bytes(*n)));
            return Some(Self { frames, ..Self::default() });
        }
        let mut rest = frame.get(4 + header.side..)?;
        if !rest.starts_with(b"Xing") && !rest.starts_with(b"Info") {
            return None;
        }
        let flags = u32::from_be_bytes(*rest.get(4..)?.first_chunk()?);
        rest = &rest[8..];
        let mut tag = Self::default();
        for (flag, len) in [(1, 4), (2, 4), (4, 100), (8, 4)] {
            if flags & flag != 0 {
                let Some((value, after)) = rest.split_at_checked(len) else { return Some(tag) };
                if flag == 1 {
                    tag.frames = value.first_chunk().map(|n| u64::from(u32::from_be_bytes(*n)));
                }
                rest = after;
            }
        }
        // The encoder's name, then delay and padding with 12 bits each.
        if let (Some(&[1..=255, ..]), Some(&[a, b, c])) = (rest.first_chunk::<9>(), rest.get(21..24)) {
            tag.skip = (u64::from(a) << 4 | u64::from(b) >> 4) + DECODER_DELAY;
            tag.cut = (u64::from(b & 15) << 8 | u64::from(c)).saturating_sub(DECODER_DELAY);
        }
        Some(tag)
    }
}

/// Offset of the first frame; `None` if no frame is found.
fn first_frame(bytes: &[u8]) -> Option<usize> {
    let start = tags::id3_len(bytes);
    let is_frame = |at: &usize| {
        let Some(header) = Header::of(&bytes[*at..]) else { return false };
        // Accept a frame that a similar frame follows, or a single frame at the very start or end of the audio.
        bytes.get(at + header.len..).is_some_and(|rest| match Header::of(rest) {
            Some(next) => next.is_like(&header),
            None => *at == start || rest.is_empty(),
        })
    };
    (start..bytes.len().min(start + MAX_JUNK)).find(is_frame)
}

/// True if the first bytes are those of an MP3 file.
pub(super) fn is_mp3(bytes: &[u8]) -> bool {
    bytes.starts_with(b"ID3") || first_frame(&bytes[..bytes.len().min(MAX_JUNK)]).is_some()
}

/// True if the bytes after the last frame are not audio, but tags or zeros.
fn is_tail(rest: &[u8]) -> bool {
    let tags: [&[u8]; 6] = [b"TAG", b"ID3", b"3DI", b"APETAGEX", b"LYRICSBEGIN", b"Lyrics3"];
    tags.iter().any(|tag| rest.starts_with(tag)) || rest.iter().all(|&byte| byte == 0)
}

/// Offsets of the frames with audio.
struct Frames<'a> {
    bytes: &'a [u8],
    starts: Vec<usize>,
}

impl<'a> Frames<'a> {
    fn len(&self) -> usize {
        self.starts.len()
    }

    fn get(&self, at: usize) -> &'a [u8] {
        let rest = &self.bytes[self.starts[at]..];
        &rest[..Header::of(rest).map_or(0, |header| header.len)]
    }
}

/// Samples of an MP3 file.
pub(super) struct Mp3<'a> {
    place: &'a str,
    frames: Frames<'a>,
    header: Header,
    decoder: MpaDecoder,
    /// Number of samples before the start of the recording.
    skip: u64,
    /// Number of samples of the recording.
    len: u64,
    /// Next frame to decode.
    next: usize,
    /// Next sample of the recording to return.
    at: u64,
}

pub(super) fn open<'a>(bytes: &'a [u8], place: &'a str) -> Result<(Info, Mp3<'a>)> {
    let wrong = |problem: String| Error::corrupt(place, format!("is a damaged MP3: {problem}"));
    let bytes = &bytes[..tags::end(bytes)];
    let all = with_separators(bytes.len() as u64);
    let mut at = first_frame(bytes).ok_or_else(|| wrong(format!("it has no MPEG frame in {all} bytes")))?;
    let mut frames = Frames { bytes, starts: Vec::new() };
    let first = Header::of(&bytes[at..]).ok_or_else(|| wrong("it has no MPEG frame".to_owned()))?;
    let tag = bytes.get(at..at + first.len).and_then(|frame| Tag::of(frame, &first));
    if tag.is_some() {
        at += first.len;
    }
    let stated = tag.and_then(|tag| tag.frames);
    while at < bytes.len() {
        let header = Header::of(&bytes[at..]);
        let Some(header) = header.filter(|header| header.is_like(&first)) else {
            if is_tail(&bytes[at..]) || stated.is_some_and(|stated| frames.len() as u64 >= stated) {
                break;
            }
            let problem = match Header::of(&bytes[at..]) {
                Some(Header { channels, rate, .. }) => {
                    let what = format!("an MP3 that changes to {channels} channels at {rate} Hz");
                    return Err(unsupported(&what, place));
                }
                None => format!("it has no MPEG frame at byte {} of {all}", with_separators(at as u64)),
            };
            return Err(wrong(problem));
        };
        if at + header.len > bytes.len() {
            if stated.is_some_and(|stated| frames.len() as u64 >= stated) {
                break;
            }
            let (have, want) = (bytes.len() - at, header.len);
            return Err(wrong(format!("it ends inside frame {} (want {want} bytes, have {have})", frames.len())));
        }
        frames.starts.push(at);
        at += header.len;
    }
    let (tag, count) = (tag.unwrap_or_default(), frames.len() as u64);
    if let Some(stated) = tag.frames.filter(|stated| *stated > count + 1) {
        return Err(wrong(format!("it ends after {} of {} frames", with_separators(count), with_separators(stated))));
    }
    let total = count * first.samples;
    // If a file has more frames than the tag states, it was joined from several files, so its end has no padding.
    let is_joined = tag.frames.is_some_and(|stated| stated < count);
    let (skip, cut) = (tag.skip, if is_joined { 0 } else { tag.cut });
    let len = total.saturating_sub(skip + cut);
    let mut params = AudioCodecParameters::new();
    params.for_codec(CODEC_ID_MP3);
    let decoder = MpaDecoder::try_new(&params, &AudioDecoderOptions::default().gapless(false))
        .map_err(|error| Error::bug(format!("the MP3 decoder cannot be created: {error}")))?;
    let info = Info { rate: first.rate, channels: first.channels, frames: len };
    Ok((info, Mp3 { place, frames, header: first, decoder, skip, len, next: 0, at: 0 }))
}

impl Mp3<'_> {
    /// Index of the frame at which decoding must start, so that the samples of frame `at` are the same as in a pass
    /// over all frames.
    fn warm_start(&self, at: usize) -> usize {
        let (mut start, mut bytes) = (at.saturating_sub(WARM_FRAMES), 0);
        while start > 0 && bytes < RESERVOIR {
            start -= 1;
            bytes += self.frames.get(start).len().saturating_sub(4 + 2 + self.header.side);
        }
        start
    }

    /// Decodes a frame. Even after an error, the decoder keeps the state that the next frames need.
    fn decoded(&mut self, at: usize) -> Result<GenericAudioBufferRef<'_>> {
        let (frame, place, header) = (self.frames.get(at), self.place, &self.header);
        let decoded = self.decoder.decode_ref(&packet(frame)).map_err(|error| {
            let (at, all) = (with_separators(at as u64), with_separators(self.frames.len() as u64));
            Error::corrupt(place, format!("is a damaged MP3: frame {at} of {all} cannot be decoded: {error}"))
        })?;
        if has_mixed_blocks(frame, header) {
            return Err(unsupported("an MP3 with mixed blocks", place));
        }
        Ok(decoded)
    }
}

impl Stream for Mp3<'_> {
    fn seek(&mut self, frame: u64) -> Result<()> {
        let at = ((frame + self.skip) / self.header.samples) as usize;
        self.next = self.warm_start(at);
        self.at = frame;
        self.decoder.reset();
        for warm in self.next..at.min(self.frames.len()) {
            // If earlier frames are missing, the decoder does not fail: it fills the bit reservoir with zeros.
            self.decoded(warm)?;
            self.next = warm + 1;
        }
        Ok(())
    }

    fn read(&mut self, planes: &mut [Vec<f32>]) -> Result<bool> {
        if self.at >= self.len || self.next >= self.frames.len() {
            return Ok(false);
        }
        let (number, skip, len, samples) = (self.next as u64, self.skip, self.len, self.header.samples);
        let at = self.at;
        let decoded = self.decoded(self.next)?;
        let GenericAudioBufferRef::F32(decoded) = decoded else {
            return Err(Error::bug("the MP3 decoder returned other samples than float32"));
        };
        // Position of the frame's first sample in the recording.
        let start = number * samples;
        let from = (at + skip).saturating_sub(start);
        let until = (len + skip - start).min(samples);
        append(decoded, from.min(until) as usize..until as usize, planes);
        self.at = (start + until).saturating_sub(skip).max(at);
        self.next += 1;
        Ok(true)
    }
}

fn packet(frame: &[u8]) -> PacketRef<'_> {
    PacketRef::new(0, Timestamp::new(0), Duration::new(0), frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_blocks_are_found_in_each_channel() {
        for (head, flags) in [([0xff, 0xfb, 0x50, 0xc0], vec![51, 110]), ([0xff, 0xf2, 0x50, 0], vec![48, 111])] {
            let header = Header::of(&head).unwrap();
            let start = if head[1] & 1 == 0 { 48 } else { 32 };
            for flag in flags {
                for (bits, want) in
                    [([1, 1, 0, 1], true), ([1, 1, 0, 0], false), ([1, 1, 1, 1], false), ([0, 1, 0, 1], false)]
                {
                    let mut frame = [&head[..], &[0; 40]].concat();
                    for (at, bit) in (start + flag..).zip(bits) {
                        frame[at / 8] |= bit << (7 - at % 8);
                    }
                    assert_eq!(has_mixed_blocks(&frame, &header), want, "{head:x?} {flag} {bits:?}");
                }
            }
        }
    }
}
