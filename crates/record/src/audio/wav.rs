// SPDX-License-Identifier: Apache-2.0
//! WAV (RIFF, RIFX, RF64): PCM of 8 to 32 bits, float, A-law and mu-law, also as WAVE_FORMAT_EXTENSIBLE.

use penstock_types::{Error, Result, with_separators};

use super::{Info, Stream, unsupported};

/// Frames per call of [`Stream::read`].
const BLOCK: usize = 4096;

const PCM: u16 = 1;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const EXTENSIBLE: u16 = 0xfffe;

/// Encoding of a sample.
#[derive(Debug, Clone, Copy)]
enum Encoding {
    U8,
    I16,
    I24,
    I32,
    F32,
    F64,
    ALaw,
    MuLaw,
}

/// Samples of a WAV file.
pub(super) struct Wav<'a> {
    samples: &'a [u8],
    encoding: Encoding,
    is_big: bool,
    channels: usize,
    next: usize,
}

/// True if the first bytes are those of a WAV file.
pub(super) fn is_wav(bytes: &[u8]) -> bool {
    matches!(bytes.get(..4), Some(b"RIFF" | b"RIFX" | b"RF64" | b"BW64")) && bytes.get(8..12) == Some(b"WAVE")
}

/// True for a size that a program writes as a placeholder if it cannot seek back to the header. The samples then extend
/// to the end of the file.
fn is_placeholder(size: u64) -> bool {
    size >= u64::from(u32::MAX - 0xfff) || (0x7fff_0000..=0x8000_0000).contains(&size)
}

fn number<const N: usize>(bytes: &[u8], at: usize, is_big: bool) -> Option<u64> {
    let mut wide = [0; 8];
    let found: &[u8; N] = bytes.get(at..)?.first_chunk()?;
    if is_big {
        wide[8 - N..].copy_from_slice(found);
        return Some(u64::from_be_bytes(wide));
    }
    wide[..N].copy_from_slice(found);
    Some(u64::from_le_bytes(wide))
}

pub(super) fn open<'a>(bytes: &'a [u8], place: &str) -> Result<(Info, Wav<'a>)> {
    let wrong = |problem: String| Error::corrupt(place, format!("is a damaged WAV: {problem}"));
    let is_big = bytes.starts_with(b"RIFX");
    let (mut at, mut format, mut long_size) = (12, None, None);
    loop {
        let (Some(name), Some(size)) = (bytes.get(at..at + 4), number::<4>(bytes, at + 4, is_big)) else {
            let found = if format.is_some() { "no samples" } else { "no format" };
            return Err(wrong(format!("it ends after {} bytes, with {found}", with_separators(bytes.len() as u64))));
        };
        let body = at + 8;
        match name {
            b"ds64" => long_size = number::<8>(bytes, body + 8, is_big),
            b"fmt " => format = Some(Format::read(bytes, body, is_big).ok_or_else(|| wrong("no format".to_owned()))?),
            b"data" => {
                let format = format.ok_or_else(|| wrong("its samples come before its format".to_owned()))?;
                let (encoding, channels) = format.check(place)?;
                let rest = &bytes[body..];
                let have = rest.len() as u64;
                let (size, may_be_short) = match long_size {
                    Some(long) if size == u64::from(u32::MAX) => (long, false),
                    // Size 0 is a placeholder if the file size in the header also ends before the samples.
                    _ if size == 0 && number::<4>(bytes, 4, is_big).is_some_and(|all| all <= at as u64) => (have, true),
                    _ => (size, is_placeholder(size)),
                };
                if have < size && !may_be_short {
                    let (size, have) = (with_separators(size), with_separators(have));
                    return Err(wrong(format!("it ends inside its samples (want {size} bytes, have {have})")));
                }
                let block = usize::from(format.block);
                let frames = size.min(have) as usize / block;
                let samples = &rest[..frames * block];
                let info = Info { rate: format.rate, channels, frames: frames as u64 };
                return Ok((info, Wav { samples, encoding, is_big, channels, next: 0 }));
            }
            _ => {}
        }
        // Chunks begin at even offsets.
        at = (body as u64 + size.next_multiple_of(2)).min(bytes.len() as u64) as usize;
    }
}

/// Content of the format chunk.
#[derive(Debug, Clone, Copy)]
struct Format {
    tag: u16,
    channels: u16,
    rate: u32,
    /// Bytes of a frame: one sample of each channel.
    block: u16,
    bits: u16,
}

impl Format {
    fn read(bytes: &[u8], at: usize, is_big: bool) -> Option<Self> {
        let short = |offset| number::<2>(bytes, at + offset, is_big).map(|value| value as u16);
        let mut tag = short(0)?;
        if tag == EXTENSIBLE {
            tag = number::<4>(bytes, at + 24, is_big)? as u16;
        }
        let rate = number::<4>(bytes, at + 4, is_big)? as u32;
        Some(Self { tag, channels: short(2)?, rate, block: short(12)?, bits: short(14)? })
    }

    fn check(&self, place: &str) -> Result<(Encoding, usize)> {
        let Self { tag, channels, block, bits, .. } = *self;
        let is_even = channels != 0 && block != 0 && block % channels == 0;
        if !is_even && matches!(tag, PCM | FLOAT | A_LAW | MU_LAW) {
            let problem = format!("is a damaged WAV: blocks of {block} bytes cannot hold {channels} channels");
            return Err(Error::corrupt(place, problem));
        }
        let bytes = if is_even { block / channels } else { 0 };
        let encoding = match (tag, bytes) {
            // If a sample is stored in more bytes than it needs, programs disagree about which of these bytes hold it.
            (PCM, _) if bits.div_ceil(8) != bytes => {
                return Err(unsupported(&format!("a WAV with samples of {bits} bits in {bytes} bytes"), place));
            }
            (PCM, 1) => Encoding::U8,
            (PCM, 2) => Encoding::I16,
            (PCM, 3) => Encoding::I24,
            (PCM, 4) => Encoding::I32,
            (FLOAT, 4) => Encoding::F32,
            (FLOAT, 8) => Encoding::F64,
            (A_LAW, 1) => Encoding::ALaw,
            (MU_LAW, 1) => Encoding::MuLaw,
            _ => {
                let name = match tag {
                    2 => "Microsoft ADPCM",
                    0x11 => "IMA ADPCM",
                    0x31 => "GSM 6.10",
                    0x50 | 0x55 => "MPEG",
                    _ => "other",
                };
                let what = format!("a WAV with {name} samples (format {tag:#06x}, {bits} bits)");
                return Err(unsupported(&what, place));
            }
        };
        Ok((encoding, usize::from(channels)))
    }
}

impl Encoding {
    fn size(self) -> usize {
        match self {
            Self::U8 | Self::ALaw | Self::MuLaw => 1,
            Self::I16 => 2,
            Self::I24 => 3,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Value of a little-endian sample.
    fn value(self, bytes: &[u8]) -> f32 {
        let int = |bytes: &[u8]| bytes.iter().rev().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
        match self {
            Self::U8 => (f32::from(bytes[0]) - 128.0) / 128.0,
            Self::I16 => f32::from(int(bytes) as u16 as i16) / 32_768.0,
            Self::I24 => ((int(bytes) << 8) as i32 >> 8) as f32 / 8_388_608.0,
            Self::I32 => int(bytes) as i32 as f32 / 2_147_483_648.0,
            Self::F32 => f32::from_bits(int(bytes)),
            Self::F64 => f64::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 8])) as f32,
            Self::ALaw => f32::from(a_law(bytes[0])) / 32_768.0,
            Self::MuLaw => f32::from(mu_law(bytes[0])) / 32_768.0,
        }
    }
}

/// Sample of ITU-T G.711 A-law, as 16 bits.
fn a_law(byte: u8) -> i16 {
    let byte = byte ^ 0x55;
    let (exponent, mantissa) = (byte >> 4 & 7, i16::from(byte & 15));
    let value = match exponent {
        0 => (mantissa << 4) + 8,
        _ => ((mantissa << 4) + 0x108) << (exponent - 1),
    };
    if byte & 0x80 == 0 { -value } else { value }
}

/// Sample of ITU-T G.711 mu-law, as 16 bits.
fn mu_law(byte: u8) -> i16 {
    let byte = !byte;
    let value = (((i16::from(byte & 15) << 3) + 0x84) << (byte >> 4 & 7)) - 0x84;
    if byte & 0x80 == 0 { value } else { -value }
}

impl Stream for Wav<'_> {
    fn seek(&mut self, frame: u64) -> Result<()> {
        self.next = frame as usize;
        Ok(())
    }

    fn read(&mut self, planes: &mut [Vec<f32>]) -> Result<bool> {
        let (encoding, size) = (self.encoding, self.encoding.size());
        let block = size * self.channels;
        let frames = BLOCK.min((self.samples.len() / block).saturating_sub(self.next));
        let samples = &self.samples[self.next * block..][..frames * block];
        for (channel, plane) in planes.iter_mut().enumerate() {
            let values = samples.chunks_exact(block).map(|frame| &frame[channel * size..][..size]);
            if self.is_big {
                plane.extend(values.map(|value| {
                    let mut little = [0; 8];
                    little[..size].copy_from_slice(value);
                    little[..size].reverse();
                    encoding.value(&little[..size])
                }));
            } else if let Encoding::I16 = encoding {
                plane.extend(values.map(|value| f32::from(i16::from_le_bytes([value[0], value[1]])) / 32_768.0));
            } else {
                plane.extend(values.map(|value| encoding.value(value)));
            }
        }
        self.next += frames;
        Ok(frames > 0)
    }
}
