// SPDX-License-Identifier: Apache-2.0
//! Audio: decodes WAV, FLAC, MP3 and Ogg Vorbis, mixes the channels, resamples, and cuts clips.
//!
//! The output depends only on the bytes, the [`AudioSpec`] and a key. The caller computes the key from seed, epoch and
//! sample, so the same sample gets the same clip for any world size. For a clip, only the clip's part of the file and a
//! few frames before that part are decoded. The clip has the same values as that part of the whole recording.
//!
//! Samples are processed as float32 in -1..1: 16-bit integers are divided by 32,768, as in libsndfile and torchaudio.
//! Files that end early, and headers that state impossible sizes, are errors. FLAC and Ogg have checksums that detect
//! any damage. In WAV and MP3, only damage to headers and to the frame structure is detected.

mod flac;
mod mp3;
mod ogg;
mod ogg_pages;
mod resample;
mod tags;
mod wav;

use std::ops::Range;

use penstock_types::{DType, Error, Result, catch_panic, with_separators};
use symphonia::core::audio::{Audio, AudioBuffer};

use self::resample::{Rates, Resampler};
use crate::magic;

/// Maximum sample rate, in Hz.
const MAX_RATE: u32 = 768_000;
/// Maximum number of samples per byte: a FLAC frame of at least 11 bytes has at most 65,535 samples.
const MAX_EXPANSION: u64 = 6000;
/// Maximum number of samples that are resampled at once. This maximum bounds the memory that is used besides the
/// output.
const MAX_STEP: u64 = 1 << 16;
/// Changes the key, so that clips and images use different random numbers.
const STREAM: u64 = 0x6175_6469_6f00_0000;

/// Settings that turn a recording into a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct AudioSpec {
    /// Sample rate of the output, in Hz; `None` keeps the rate of the file.
    pub sample_rate: Option<u32>,
    /// Channels of the output. 1 is the mean of all channels. For any other number, a file must have this number of
    /// channels or a single channel.
    pub channels: usize,
    /// Element type: float32, or int16 (multiplied by 32,768, rounded and clamped).
    pub dtype: DType,
    /// Part of the recording; `None` for the whole recording.
    pub clip: Option<ClipSpec>,
    /// Maximum duration, in seconds, of a recording that is decoded whole.
    pub max_seconds: f64,
    /// True to find only the number of samples, from the file's headers.
    pub measures: bool,
}

/// A part of fixed length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipSpec {
    /// Length of the output in samples. A shorter recording is padded with zeros at its end.
    pub samples: usize,
    /// Where the clip begins.
    pub start: Start,
}

/// Start of a clip.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// At this time, in seconds.
    At(f64),
    /// At random, so that the clip lies inside the recording.
    Random,
}

impl AudioSpec {
    /// Checks the settings. Must be called once after the spec is created.
    pub fn check(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::config("audio", problem));
        match self {
            Self { sample_rate: Some(rate), .. } if !(1..=MAX_RATE).contains(rate) => {
                wrong(format!("sample_rate {rate} is not between 1 and {} Hz", with_separators(MAX_RATE.into())))
            }
            Self { channels, .. } if !(1..=255).contains(channels) => {
                wrong(format!("channels {channels} is not between 1 and 255"))
            }
            Self { dtype, .. } if !matches!(dtype, DType::F32 | DType::I16) => {
                wrong(format!("dtype {dtype} is neither float32 nor int16"))
            }
            Self { sample_rate: None, clip: Some(_), .. } => wrong("a clip needs a sample_rate".to_owned()),
            Self { clip: Some(ClipSpec { samples: 0, .. }), .. } => wrong("a clip has no samples".to_owned()),
            Self { clip: Some(ClipSpec { start: Start::At(at), .. }), .. } if !(0.0..1e9).contains(at) => {
                wrong(format!("start {at} is not a time in seconds"))
            }
            Self { max_seconds, .. } if !(0.0..=1e9).contains(max_seconds) => {
                wrong(format!("max_seconds {max_seconds} is not a duration in seconds"))
            }
            _ => Ok(()),
        }
    }
}

/// A decoded recording.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// Samples in C order. The axes are channels and time for a clip, and time and channels for a whole recording.
    pub bytes: Vec<u8>,
    /// Number of samples (of one channel) that come from the recording; the others are padding.
    pub samples: usize,
    /// Sample rate of the file.
    pub rate: u32,
}

/// Properties that the headers of a file state.
struct Info {
    rate: u32,
    channels: usize,
    /// Number of samples of one channel.
    frames: u64,
}

/// Samples of a file, in order.
trait Stream {
    /// Moves to a sample. Called once, before the first `read`.
    fn seek(&mut self, frame: u64) -> Result<()>;

    /// Appends the next samples, one plane per channel in float32. Returns false at the end.
    fn read(&mut self, planes: &mut [Vec<f32>]) -> Result<bool>;
}

fn append(decoded: &AudioBuffer<f32>, range: Range<usize>, planes: &mut [Vec<f32>]) {
    for (plane, to) in decoded.iter_planes().zip(planes) {
        to.extend_from_slice(&plane[range.clone()]);
    }
}

/// Appends samples of 32 bits as floats in -1..1.
fn scaled(decoded: &AudioBuffer<i32>, range: Range<usize>, planes: &mut [Vec<f32>]) {
    for (plane, to) in decoded.iter_planes().zip(planes) {
        to.extend(plane[range.clone()].iter().map(|&value| value as f32 / 2_147_483_648.0));
    }
}

fn damaged(name: &str, place: &str, problem: &str) -> Error {
    Error::corrupt(place, format!("is a damaged {name} file: {problem}"))
}

fn unsupported(what: &str, place: &str) -> Error {
    Error::mismatch(
        place,
        format!("is {what}, which penstock.audio does not read (it reads WAV, FLAC, MP3 and Ogg Vorbis)"),
    )
}

/// Name of an unsupported audio format.
fn other_kind(bytes: &[u8]) -> Option<&'static str> {
    Some(match bytes {
        [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F' | b'C', ..] => "an AIFF file",
        [b'.', b's', b'n', b'd', ..] | [b'd', b'n', b's', b'.', ..] => "a Sun AU file",
        [b'c', b'a', b'f', b'f', ..] => "a Core Audio file",
        [b'r', b'i', b'f', b'f', 0x2e, 0x91, ..] => "a Wave64 file",
        [b'w', b'v', b'p', b'k', ..] => "a WavPack file",
        [b'M', b'A', b'C', b' ', ..] => "a Monkey's Audio file",
        [b'M', b'P', b'C', b'K', ..] | [b'M', b'P', b'+', ..] => "a Musepack file",
        [b'D', b'S', b'D', b' ', ..] => "a DSD file",
        [b'T', b'T', b'A', b'1', ..] => "a True Audio file",
        [_, _, _, _, b'f', b't', b'y', b'p', b'M', b'4', b'A' | b'B', ..] => "an MP4 file with AAC or ALAC",
        [b'A', b'D', b'I', b'F', ..] | [0xff, 0xf0 | 0xf1 | 0xf9, ..] => "AAC",
        // Layers II and I of MPEG-1, 2 and 2.5.
        [0xff, b, c, ..] if b & 0xe0 == 0xe0 && matches!(b & 6, 4 | 6) && b & 0x18 != 8 && c & 0xf0 != 0xf0 => {
            "MPEG audio of layer I or II"
        }
        _ => return None,
    })
}

fn open<'a>(bytes: &'a [u8], place: &'a str) -> Result<(Info, Box<dyn Stream + 'a>)> {
    fn boxed<'a, S: Stream + 'a>((info, stream): (Info, S)) -> (Info, Box<dyn Stream + 'a>) {
        (info, Box::new(stream))
    }
    let after_id3 = bytes.get(tags::id3_len(bytes)..).unwrap_or_default();
    match bytes {
        [] => Err(Error::corrupt(place, "is empty (0 bytes), but should be audio")),
        _ if wav::is_wav(bytes) => wav::open(bytes, place).map(boxed),
        [b'O', b'g', b'g', b'S', ..] => ogg::open(bytes, place).map(boxed),
        _ if after_id3.starts_with(b"fLaC") => flac::open(after_id3, place).map(boxed),
        _ if let Some(kind) = other_kind(after_id3) => Err(unsupported(kind, place)),
        _ if mp3::is_mp3(bytes) => mp3::open(bytes, place).map(boxed),
        _ => match magic::describe(bytes) {
            Some(kind @ (magic::WAV | magic::FLAC | magic::OGG | magic::MP3)) => {
                Err(Error::corrupt(place, format!("is {kind} whose first bytes are damaged")))
            }
            Some(kind) => Err(unsupported(kind, place)),
            None => {
                let head = bytes.first_chunk::<8>().map_or(bytes, |head| head);
                Err(Error::corrupt(place, format!("is not audio in a known format (first bytes {head:02x?})")))
            }
        },
    }
}

/// Decodes a recording. Calls `reserve` with the size of the result in bytes before the result is allocated.
///
/// # Errors
/// `Corrupt` if the bytes are damaged, or state more samples than they can hold. `Mismatch` if the number of channels
/// or the duration does not fit the spec, or the format is not supported. `BudgetExceeded` or another error of
/// `reserve`.
pub fn decode(
    bytes: &[u8],
    spec: &AudioSpec,
    key: u64,
    place: &str,
    reserve: impl FnOnce(u64) -> Result<()>,
) -> Result<Decoded> {
    catch_panic(|| decode_file(bytes, spec, key, place, reserve))
        .unwrap_or_else(|_| Err(Error::corrupt(place, "is damaged audio: its decoder panicked")))
}

fn decode_file(
    bytes: &[u8],
    spec: &AudioSpec,
    key: u64,
    place: &str,
    reserve: impl FnOnce(u64) -> Result<()>,
) -> Result<Decoded> {
    let (info, mut stream) = open(bytes, place)?;
    let Info { rate, channels, frames } = info;
    if !(1..=MAX_RATE).contains(&rate) || !(1..=255).contains(&channels) {
        let problem =
            format!("is damaged audio: its header states {} channels at {} Hz", channels, with_separators(rate.into()));
        return Err(Error::corrupt(place, problem));
    }
    if frames == 0 {
        return Err(Error::corrupt(place, "contains 0 audio samples"));
    }
    if frames > (bytes.len() as u64).saturating_mul(MAX_EXPANSION) {
        let (frames, bytes) = (with_separators(frames), with_separators(bytes.len() as u64));
        return Err(Error::corrupt(place, format!("is damaged audio: it states {frames} samples in {bytes} bytes")));
    }
    if spec.channels != channels && spec.channels != 1 && channels != 1 {
        let problem = format!(
            "has {channels} channels, but the field needs {} (channels=1 accepts and mixes any number)",
            spec.channels
        );
        return Err(Error::mismatch(place, problem));
    }
    let to = spec.sample_rate.unwrap_or(rate);
    let rates = Rates::new(rate, to)
        .map_err(|why| Error::mismatch(place, format!("has {rate} Hz, which cannot be resampled to {to} Hz: {why}")))?;
    let outputs = range(spec, key, &info, rates.output_len(frames), place)?;
    let samples = (outputs.end - outputs.start) as usize;
    if spec.measures {
        return Ok(Decoded { bytes: Vec::new(), samples, rate });
    }
    let len = spec.clip.map_or(samples, |clip| clip.samples) * spec.channels;
    reserve((len * spec.dtype.size()) as u64)?;
    let mut output = Output { bytes: vec![0; len * spec.dtype.size()], spec, at: 0 };
    let resampler = Resampler::new(rates);
    let inputs = resampler.inputs(&outputs, frames);
    stream.seek(inputs.start)?;
    let (mut planes, mut mixed) = (vec![Vec::new(); channels], vec![Vec::new(); spec.channels]);
    let (mut base, mut next, mut block) = (inputs.start, outputs.start, Vec::new());
    while next < outputs.end {
        let is_read = base + (mixed[0].len() as u64) < inputs.end && stream.read(&mut planes)?;
        mix(&mut planes, &mut mixed);
        let have = base + mixed[0].len() as u64;
        let is_end = have >= frames || have >= inputs.end;
        loop {
            let step = next..outputs.end.min(next + MAX_STEP);
            for (channel, input) in mixed.iter().enumerate() {
                block.clear();
                next = resampler.process(input, base, step.clone(), is_end, &mut block);
                output.put(channel, &block);
            }
            output.at += (next - step.start) as usize;
            if next < step.end || next == outputs.end {
                break;
            }
        }
        if !is_read && next < outputs.end {
            let (have, frames) = (with_separators(have), with_separators(frames));
            return Err(Error::corrupt(place, format!("is damaged audio: it ends after {have} of {frames} samples")));
        }
        if next < outputs.end {
            let needed = resampler.inputs(&(next..outputs.end), frames).start.clamp(base, have);
            mixed.iter_mut().for_each(|plane| drop(plane.drain(..(needed - base) as usize)));
            base = needed;
        }
    }
    Ok(Decoded { bytes: output.bytes, samples, rate })
}

/// Range of output samples, out of `total`, that the spec requests.
fn range(spec: &AudioSpec, key: u64, info: &Info, total: u64, place: &str) -> Result<Range<u64>> {
    let seconds = info.frames as f64 / f64::from(info.rate);
    let Some(ClipSpec { samples, start }) = spec.clip else {
        if seconds > spec.max_seconds {
            let problem = format!("has {seconds:.3} s of audio, more than max_seconds {}", spec.max_seconds);
            return Err(Error::mismatch(place, problem));
        }
        return Ok(0..total);
    };
    let samples = samples as u64;
    let start = match start {
        Start::Random => {
            let choices = total.saturating_sub(samples) + 1;
            ((u128::from(random_bits(key ^ STREAM)) * u128::from(choices)) >> 64) as u64
        }
        Start::At(at) => {
            let start = (at * f64::from(spec.sample_rate.unwrap_or(info.rate))).round() as u64;
            if start >= total {
                let problem = format!("has {seconds:.3} s of audio, but its clip starts at {at} s");
                return Err(Error::mismatch(place, problem));
            }
            start
        }
    };
    Ok(start..total.min(start + samples))
}

/// SplitMix64's output function.
fn random_bits(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Moves samples of the file's channels to the channels of the output: all to one, one to all, or each to its own.
fn mix(planes: &mut [Vec<f32>], mixed: &mut [Vec<f32>]) {
    if let [mono] = planes {
        mixed.iter_mut().for_each(|to| to.extend_from_slice(mono));
    } else if let [to] = mixed {
        let start = to.len();
        to.extend_from_slice(&planes[0]);
        for plane in &planes[1..] {
            to[start..].iter_mut().zip(plane).for_each(|(sum, value)| *sum += value);
        }
        let count = planes.len() as f32;
        to[start..].iter_mut().for_each(|sum| *sum /= count);
    } else {
        planes.iter().zip(mixed).for_each(|(plane, to)| to.extend_from_slice(plane));
    }
    planes.iter_mut().for_each(Vec::clear);
}

/// Bytes of the result, which are written in pieces.
struct Output<'a> {
    bytes: Vec<u8>,
    spec: &'a AudioSpec,
    /// Number of samples (of one channel) written so far.
    at: usize,
}

impl Output<'_> {
    fn put(&mut self, channel: usize, values: &[f32]) {
        let size = self.spec.dtype.size();
        let (start, step) = match self.spec.clip {
            Some(clip) => (channel * clip.samples + self.at, 1),
            None => (self.at * self.spec.channels + channel, self.spec.channels),
        };
        let slots = self.bytes.chunks_exact_mut(size).skip(start).step_by(step);
        for (slot, value) in slots.zip(values) {
            match self.spec.dtype {
                DType::I16 => slot.copy_from_slice(&((value * 32_768.0).round() as i16).to_le_bytes()),
                _ => slot.copy_from_slice(&value.to_le_bytes()),
            }
        }
    }
}
