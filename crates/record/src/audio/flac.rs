// SPDX-License-Identifier: Apache-2.0
//! FLAC: finds the frames, and decodes them with the crate `symphonia`.
//!
//! The frames are found here, because the crate's reader skips damaged frames and frames that differ from the header
//! (such as other channels), and rejects some files because of their metadata. This module checks the checksum of each
//! frame, and does not read metadata.

use memchr::memchr_iter;
use penstock_types::{Error, Result, with_separators};
use symphonia::core::audio::GenericAudioBufferRef;
use symphonia::core::checksum::{Crc8Ccitt, Crc16Ansi};
use symphonia::core::codecs::audio::well_known::CODEC_ID_FLAC;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::io::Monitor;
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};
use symphonia::default::codecs::FlacDecoder;

use super::{Info, Stream, damaged, scaled, tags, unsupported};

const NAME: &str = "FLAC";
/// Length of the block STREAMINFO, in bytes.
const STREAM_INFO: usize = 34;
const RATES: [u32; 12] = [0, 88_200, 176_400, 192_000, 8000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000];
const BITS: [u32; 8] = [0, 8, 12, 0, 16, 20, 24, 32];

/// Header of a frame.
#[derive(Debug, Clone, Copy)]
struct Header {
    /// Number of the frame, or of the frame's first sample.
    number: u64,
    is_by_sample: bool,
    samples: u64,
    channels: usize,
    /// True if one channel stores the difference of the two channels. The samples of this channel have one more bit.
    has_side: bool,
    /// Sample rate in Hz; 0 means the rate in STREAMINFO.
    rate: u32,
    /// Bits per sample; 0 means the number in STREAMINFO.
    bits: u32,
}

impl Header {
    /// Parses the header at the start of `bytes`; `None` if the bytes are not a frame header.
    fn of(bytes: &[u8]) -> Option<Self> {
        let &[0xff, sync @ 0xf8..=0xf9, sizes, kind, first] = bytes.first_chunk()? else { return None };
        let (block, rate, channels, bits) = (sizes >> 4, sizes & 15, kind >> 4, kind >> 1 & 7);
        if block == 0 || rate == 15 || channels > 10 || bits == 3 || kind & 1 == 1 {
            return None;
        }
        // The number is encoded as in UTF-8, but with up to 36 bits.
        let more = match first.leading_ones() {
            0 => 0,
            ones @ 2..=7 => ones as usize - 1,
            _ => return None,
        };
        let start = if more == 0 { first } else { first & (0x3f >> more) };
        let mut at = 5 + more;
        let number = bytes.get(5..at)?.iter().fold(u64::from(start), |sum, byte| sum << 6 | u64::from(byte & 0x3f));
        let mut take = |len: usize| {
            let taken = bytes.get(at..at + len)?;
            at += len;
            Some(taken.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
        };
        let samples = match block {
            1 => 192,
            2..=5 => 576 << (block - 2),
            6 => take(1)? + 1,
            7 => take(2)? + 1,
            _ => 256 << (block - 8),
        };
        let rate = match rate {
            12 => take(1)? * 1000,
            13 => take(2)?,
            14 => take(2)? * 10,
            _ => RATES[usize::from(rate)],
        };
        let mut crc = Crc8Ccitt::new(0);
        crc.process_buf_bytes(&bytes[..at]);
        (crc.crc() == *bytes.get(at)?).then(|| Self {
            number,
            is_by_sample: sync == 0xf9,
            samples: samples.into(),
            channels: if channels < 8 { usize::from(channels) + 1 } else { 2 },
            has_side: channels >= 8,
            rate,
            bits: BITS[usize::from(bits)],
        })
    }

    /// True if this frame can directly follow `last`. With `is_by_sample`, `number` counts samples; otherwise, frames.
    fn follows(&self, last: &Self, is_by_sample: bool) -> bool {
        self.number.checked_sub(last.number) == Some(if is_by_sample { last.samples } else { 1 })
    }
}

/// A frame: its offset in the file, the number of its first sample, and its header.
#[derive(Debug, Clone, Copy)]
struct Frame {
    offset: usize,
    start: u64,
    header: Header,
}

impl Frame {
    fn until(&self) -> u64 {
        self.start + self.header.samples
    }

    /// Returns the next frame if its header is at this offset.
    fn next(&self, offset: usize, bytes: &[u8]) -> Option<Self> {
        let header = Header::of(&bytes[offset..])?;
        Some(Self { offset, start: self.until(), header })
    }
}

/// Samples of a FLAC file.
pub(super) struct Flac<'a> {
    place: &'a str,
    bytes: &'a [u8],
    /// End of the audio; tags may follow.
    end: usize,
    rate: u32,
    channels: usize,
    bits: u32,
    max_block: u64,
    decoder: FlacDecoder,
    /// Number of samples.
    total: u64,
    /// True if frame headers contain the number of the first sample instead of the frame number.
    is_by_sample: bool,
    /// Next frame to decode.
    frame: Option<Frame>,
    /// Next sample to return.
    at: u64,
}

/// Opens a FLAC file. `bytes` begins with the magic number of FLAC.
pub(super) fn open<'a>(bytes: &'a [u8], place: &'a str) -> Result<(Info, Flac<'a>)> {
    let wrong = |problem: &str| damaged(NAME, place, problem);
    let (mut at, mut stated) = (4, None);
    loop {
        let Some(&[kind, a, b, c]) = bytes.get(at..).and_then(<[u8]>::first_chunk) else {
            return Err(wrong("it is cut off in its metadata"));
        };
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        at += 4;
        if kind & 127 == 0 && len == STREAM_INFO && stated.is_none() {
            stated = bytes.get(at..at + len);
        }
        at = (at + len).min(bytes.len());
        if kind >= 128 {
            break;
        }
    }
    let stated: &[u8; STREAM_INFO] =
        stated.and_then(<[u8]>::first_chunk).ok_or_else(|| wrong("it has no stream information"))?;
    let number = |range: std::ops::Range<usize>| stated[range].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let packed = number(10..18);
    let (rate, channels) = ((packed >> 44) as u32, (packed >> 41 & 7) as usize + 1);
    let mut params = AudioCodecParameters::new();
    params.for_codec(CODEC_ID_FLAC).with_extra_data(stated.as_slice().into());
    let mut flac = Flac {
        place,
        bytes,
        end: tags::end(bytes),
        rate,
        channels,
        bits: (packed >> 36 & 31) as u32 + 1,
        max_block: number(2..4),
        decoder: FlacDecoder::try_new(&params, &AudioDecoderOptions::default())
            .map_err(|problem| wrong(&problem.to_string()))?,
        total: packed & 0xf_ffff_ffff,
        is_by_sample: false,
        frame: memchr_iter(0xff, &bytes[at..]).find_map(|found| {
            let offset = at + found;
            Some(Frame { offset, start: 0, header: Header::of(&bytes[offset..])? })
        }),
        at: 0,
    };
    if let Some(Frame { header, .. }) = flac.frame.filter(|first| first.header.number > 0) {
        return Err(wrong(&format!("it begins with frame or sample {}, not 0", with_separators(header.number))));
    }
    flac.is_by_sample = flac.finds_numbers_of_samples();
    if flac.total == 0 {
        flac.total = flac.counted()?;
    }
    Ok((Info { rate, channels, frames: flac.total }, flac))
}

impl Flac<'_> {
    /// Returns whether frame headers contain the number of the frame's first sample. Old encoders write this number
    /// without setting the flag, so the number of the second frame decides. The checksum of the first frame locates the
    /// second one.
    fn finds_numbers_of_samples(&mut self) -> bool {
        let Some(first) = self.frame else { return false };
        if first.header.is_by_sample || self.end_of(&first).is_ok() {
            return first.header.is_by_sample;
        }
        self.is_by_sample = true;
        matches!(self.end_of(&first), Ok((_, Some(_))))
    }

    /// Rate and bits of a frame. If the frame does not state them, those of the file are used.
    fn format_of(&self, header: &Header) -> (u32, u32) {
        let or = |stated: u32, other: u32| if stated == 0 { other } else { stated };
        (or(header.rate, self.rate), or(header.bits, self.bits))
    }

    /// Counts the samples of a file whose header does not state their number.
    fn counted(&self) -> Result<u64> {
        let Some(mut frame) = self.frame else { return Ok(0) };
        loop {
            // The end of the last frame, or of a frame before a format change, can be located only by the checksum of
            // that frame.
            let next = match self.following(&frame) {
                Some(next) => next,
                None => match self.end_of(&frame)? {
                    (_, Some(next)) => next,
                    (_, None) => return Ok(frame.until()),
                },
            };
            self.check(&next.header)?;
            frame = next;
        }
    }

    /// Finds the next frame without computing the checksum of `frame`. The two headers must match, because the bytes
    /// inside a frame may look like a header.
    fn following(&self, frame: &Frame) -> Option<Frame> {
        let (start, format) = (frame.offset + 1, self.format_of(&frame.header));
        memchr_iter(0xff, &self.bytes[start..]).filter_map(|found| frame.next(start + found, self.bytes)).find(
            |Frame { header: next, .. }| {
                next.follows(&frame.header, self.is_by_sample) && self.format_of(next) == format
            },
        )
    }

    /// Finds the end of a frame by its checksum. Returns the end and the next frame, if any.
    fn end_of(&self, frame: &Frame) -> Result<(usize, Option<Frame>)> {
        let (mut crc, mut done) = (Crc16Ansi::new(0), frame.offset);
        let mut is_end = |end: usize| {
            let Some(checksum) = end.checked_sub(2) else { return false };
            let Some(unread) = self.bytes.get(done..checksum) else { return false };
            crc.process_buf_bytes(unread);
            done = checksum;
            self.bytes[checksum..end] == crc.crc().to_be_bytes()
        };
        let start = frame.offset + 2;
        for found in memchr_iter(0xff, self.bytes.get(start..self.end).unwrap_or_default()) {
            let Some(next) = frame.next(start + found, self.bytes).filter(|next| is_end(next.offset)) else { continue };
            // After the last sample, any bytes may follow.
            if frame.until() >= self.total && self.total > 0 {
                return Ok((next.offset, None));
            }
            if !next.header.follows(&frame.header, self.is_by_sample) {
                let problem = format!("samples from {} are missing", with_separators(next.start));
                return Err(damaged(NAME, self.place, &problem));
            }
            return Ok((next.offset, Some(next)));
        }
        let end = [self.end, self.bytes.len()].into_iter().find(|end| is_end(*end)).ok_or_else(|| {
            let (start, until) = (with_separators(frame.start), with_separators(frame.until()));
            damaged(NAME, self.place, &format!("samples {start} to {until} are damaged or cut off"))
        })?;
        Ok((end, None))
    }

    /// Checks that a frame has the format that the file states.
    fn check(&self, header: &Header) -> Result<()> {
        let changes = |from: u32, to: u32, what: &str| {
            Err(unsupported(&format!("a FLAC file that changes from {from} to {to} {what}"), self.place))
        };
        match header {
            Header { channels, .. } if *channels != self.channels => {
                changes(self.channels as u32, *channels as u32, "channels")
            }
            Header { rate, .. } if *rate != 0 && *rate != self.rate => changes(self.rate, *rate, "Hz"),
            Header { bits, .. } if *bits != 0 && *bits != self.bits => changes(self.bits, *bits, "bits per sample"),
            // The decoder computes with 32 bits, but the difference of two channels of 32 bits needs 33.
            Header { has_side: true, .. } if self.bits == 32 => {
                Err(unsupported("FLAC of 32 bits with joint stereo", self.place))
            }
            Header { samples, .. } if *samples > self.max_block => {
                let most = self.max_block;
                let problem = format!("its header states at most {most} samples per frame, but a frame has {samples}");
                Err(damaged(NAME, self.place, &problem))
            }
            _ => Ok(()),
        }
    }
}

impl Stream for Flac<'_> {
    fn seek(&mut self, sample: u64) -> Result<()> {
        self.at = sample;
        while let Some(frame) = self.frame.filter(|frame| frame.until() <= sample) {
            self.frame = Some(self.following(&frame).ok_or_else(|| {
                let (until, sample) = (with_separators(frame.until()), with_separators(sample));
                damaged(NAME, self.place, &format!("samples {until} to {sample} are missing or damaged"))
            })?);
        }
        Ok(())
    }

    fn read(&mut self, planes: &mut [Vec<f32>]) -> Result<bool> {
        let Some(frame) = self.frame.filter(|_| self.at < self.total) else { return Ok(false) };
        let (end, next) = self.end_of(&frame)?;
        self.check(&frame.header)?;
        let packet = PacketRef::new(0, Timestamp::new(0), Duration::new(0), &self.bytes[frame.offset..end]);
        let decoded = self.decoder.decode_ref(&packet).map_err(|problem| {
            let (start, until) = (with_separators(frame.start), with_separators(frame.until()));
            damaged(NAME, self.place, &format!("samples {start} to {until} cannot be decoded: {problem}"))
        })?;
        let GenericAudioBufferRef::S32(decoded) = decoded else {
            return Err(Error::bug("the FLAC decoder returned samples of another type"));
        };
        let until = self.total.min(frame.until());
        scaled(decoded, (self.at - frame.start) as usize..(until - frame.start) as usize, planes);
        (self.at, self.frame) = (until, next);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of 16 equal samples of 16 bits.
    fn frame(sync: u8, number: u8, kind: u8, value: i16) -> Vec<u8> {
        framed(&[0xff, sync, 0x64, kind, number, 15], kind, value)
    }

    /// Like `frame`, with a code for the sample rate.
    fn rated(number: u8, rate: u8) -> Vec<u8> {
        framed(&[0xff, 0xf8, 0x60 | rate, 8, number, 15], 8, 1)
    }

    fn framed(header: &[u8], kind: u8, value: i16) -> Vec<u8> {
        let mut frame = header.to_vec();
        let mut crc = Crc8Ccitt::new(0);
        crc.process_buf_bytes(&frame);
        frame.push(crc.crc());
        for _ in 0..=(kind >> 4) {
            frame.push(0);
            frame.extend(value.to_be_bytes());
        }
        let mut crc = Crc16Ansi::new(0);
        crc.process_buf_bytes(&frame);
        frame.extend(crc.crc().to_be_bytes());
        frame
    }

    /// A mono file of 8 kHz, whose second metadata block is nonsense.
    fn file(total: u16, frames: &[Vec<u8>]) -> Vec<u8> {
        let info = [&[0, 16, 0, 16][..], &[0; 6], &[1, 0xf4, 0, 0xf0, 0, 0], &total.to_be_bytes(), &[0; 16]].concat();
        [b"fLaC\0\0\0\x22", &info[..], &[0x85, 0, 0, 3, 255, 255, 255], &frames.concat()].concat()
    }

    fn read(bytes: &[u8], from: u64) -> Result<Vec<f32>> {
        let (_, mut flac) = open(bytes, "p")?;
        flac.seek(from)?;
        let mut planes = [Vec::new()];
        while flac.read(&mut planes)? {}
        Ok(planes[0].iter().map(|value| value * 32_768.0).collect())
    }

    #[test]
    fn frames_are_found_by_number_and_checksum() {
        let want: Vec<f32> = [1.0, 2.0, 3.0].iter().flat_map(|value| [*value; 16]).collect();
        let by_frame: Vec<_> = (0..3).map(|at| frame(0xf8, at, 8, i16::from(at) + 1)).collect();
        let by_sample: Vec<_> = (0..3).map(|at| frame(0xf9, 16 * at, 8, i16::from(at) + 1)).collect();
        let old: Vec<_> = (0..3).map(|at| frame(0xf8, 16 * at, 8, i16::from(at) + 1)).collect();
        let tag = [&b"TAG"[..], &[0; 125]].concat();
        for frames in [by_frame.clone(), by_sample, old] {
            for total in [0, 48] {
                let whole = file(total, &frames);
                for whole in [&whole, &[&whole[..], &tag].concat()] {
                    assert_eq!(read(whole, 0).unwrap(), want);
                    assert_eq!(read(whole, 30).unwrap(), want[30..]);
                }
            }
            // The last frame is repeated after the end.
            let longer = [&frames[..], &frames[2..]].concat();
            assert_eq!(read(&file(48, &longer), 0).unwrap(), want);
            assert!(read(&file(0, &longer), 0).is_err());
        }
        // Frame 20 is damaged, so frame 21 is not accepted as the frame after frame 19.
        let mut many: Vec<_> = (0..60).map(|at| frame(0xf8, at, 8, i16::from(at))).collect();
        assert_eq!(read(&file(0, &many), 700).unwrap().len(), 260);
        many[20][4] ^= 1;
        for (total, from) in [(0, 0), (960, 0), (960, 21 * 16), (960, 59 * 16)] {
            let error = read(&file(total, &many), from).unwrap_err().to_string();
            assert!(error.contains("damaged"), "{error}");
        }
        // Some frames state a rate and others do not.
        let mixed = |rate: u8| (0..40).map(|at| rated(at, if at % 2 == 0 { 0 } else { rate })).collect::<Vec<_>>();
        for total in [0, 240] {
            assert_eq!(read(&file(total, &mixed(4)), 99).unwrap().len(), if total == 0 { 541 } else { 141 });
            let error = read(&file(total, &mixed(5)), 0).unwrap_err().to_string();
            assert!(error.contains("changes from 8000 to 16000 Hz"), "{error}");
        }
        for (frames, problem) in [
            (vec![by_frame[0].clone(), by_frame[2].clone()], "samples from 16 are missing"),
            (by_frame[1..].to_vec(), "it begins with frame or sample 1, not 0"),
            (vec![by_frame[0].clone(), by_frame[1][..9].to_vec()], "samples 16 to 32 are damaged or cut off"),
            (vec![by_frame[0].clone(), frame(0xf8, 1, 0x18, 2)], "changes from 1 to 2 channels"),
            (vec![by_frame[0].clone(), frame(0xf8, 1, 10, 1)], "changes from 16 to 20 bits per sample"),
        ] {
            for total in [0, 48] {
                let error = read(&file(total, &frames), 0).unwrap_err().to_string();
                assert!(error.contains(problem), "{error}");
            }
        }
    }
}
