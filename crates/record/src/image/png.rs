// SPDX-License-Identifier: Apache-2.0
//! PNG decoding by the `png` crate: every colour type and depth, as pixels or as labels.

use std::io::Cursor;

use penstock_types::{Error, Result, with_separators};
use png::{BitDepth, ColorType, Decoder, Info, Limits, Reader, Transformations};

use super::labels::{Labels, coloured, unpacked};
use super::pixels::{Format, Pixels, reserve};
use super::{Kind, Probe};

/// Maximum bytes of chunks other than pixel data.
const MAX_BESIDES: usize = 16 << 20;

/// Reads the header chunk.
pub(super) fn probe(bytes: &[u8], place: &str) -> Result<Probe> {
    let header =
        bytes.get(..24).filter(|header| header.starts_with(b"\x89PNG\r\n\x1a\n") && &header[12..16] == b"IHDR");
    let Some([.., w3, w2, w1, w0, h3, h2, h1, h0]) = header else {
        let len = with_separators(bytes.len() as u64);
        return Err(Error::corrupt(place, format!("is a damaged PNG: its {len} bytes do not begin with a header")));
    };
    let (width, height) = (u32::from_be_bytes([*w3, *w2, *w1, *w0]), u32::from_be_bytes([*h3, *h2, *h1, *h0]));
    Ok(Probe { width, height, kind: Kind::Png, orientation: 1 })
}

/// Decodes the whole image into `pixels`.
pub(super) fn decode(bytes: &[u8], probe: &Probe, format: Format, pixels: &mut Pixels, place: &str) -> Result<()> {
    let reduce = if format.is_wide { Transformations::EXPAND } else { Transformations::normalize_to_color8() };
    let mut reader = open(bytes, reduce, place)?;
    let (color, depth) = reader.output_color_type();
    let (count, stored) = (probe.width as usize * probe.height as usize, color.samples());
    pixels.set_whole(probe.width, probe.height);
    if depth != BitDepth::Sixteen {
        let room = pixels.room(stored, count, format, place)?;
        frame(&mut reader, probe, room, place)?;
        return pixels.convert(stored, count, format, place);
    }
    let mut raw = std::mem::take(&mut pixels.raw);
    reserve(&mut raw, count * stored * 2, place)?;
    frame(&mut reader, probe, &mut raw[..count * stored * 2], place)?;
    let values = big_endian(&raw[..count * stored * 2]);
    pixels.raw = raw;
    pixels.convert_wide(&values, stored, format, place)
}

/// Decodes the labels of a mask: palette indices or grey values, as stored.
pub(super) fn labels(bytes: &[u8], probe: &Probe, place: &str) -> Result<Labels> {
    let mut reader = open(bytes, Transformations::IDENTITY, place)?;
    let (color, depth) = reader.output_color_type();
    if matches!(color, ColorType::Rgb | ColorType::Rgba) {
        return Err(coloured("the colours of a PNG", place));
    }
    let (width, height) = (probe.width as usize, probe.height as usize);
    let bits = depth as usize;
    let line = (width * color.samples() * bits).div_ceil(8);
    let mut raw = Vec::new();
    reserve(&mut raw, line * height, place)?;
    frame(&mut reader, probe, &mut raw, place)?;
    if color == ColorType::GrayscaleAlpha {
        raw = raw.chunks_exact(bits / 8 * 2).flat_map(|pixel| &pixel[..bits / 8]).copied().collect();
    }
    Ok(match bits {
        8 => Labels::U8(raw),
        16 => Labels::U16(big_endian(&raw)),
        bits => Labels::U8(unpacked(&raw, width, line, bits)),
    })
}

fn big_endian(bytes: &[u8]) -> Vec<u16> {
    bytes.as_chunks::<2>().0.iter().map(|&value| u16::from_be_bytes(value)).collect()
}

fn damaged(problem: &png::DecodingError, place: &str) -> Error {
    Error::corrupt(place, format!("is a damaged PNG: {problem}"))
}

fn open<'a>(bytes: &'a [u8], transformations: Transformations, place: &str) -> Result<Reader<Cursor<&'a [u8]>>> {
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: MAX_BESIDES });
    decoder.set_transformations(transformations);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let reader = decoder.read_info().map_err(|problem| damaged(&problem, place))?;
    check_palette(reader.info(), place)?;
    Ok(reader)
}

/// Decodes the first frame into `room`, which has exactly the size of the frame.
fn frame(reader: &mut Reader<Cursor<&[u8]>>, probe: &Probe, room: &mut [u8], place: &str) -> Result<()> {
    let info = reader.next_frame(room).map_err(|problem| damaged(&problem, place))?;
    if (info.width, info.height) != (probe.width, probe.height) {
        return Err(Error::corrupt(place, format!("is a damaged PNG: its frame is {} x {}", info.width, info.height)));
    }
    Ok(())
}

/// Returns an error for an invalid palette, which the `png` crate would accept and then panic on.
fn check_palette(info: &Info<'_>, place: &str) -> Result<()> {
    let Some(palette) = info.palette.as_ref().filter(|_| info.color_type == ColorType::Indexed) else { return Ok(()) };
    let (colours, rest) = (palette.len() / 3, palette.len() % 3);
    let alphas = info.trns.as_ref().map_or(0, |trns| trns.len());
    if colours == 0 || colours > 256 || rest != 0 || alphas > colours {
        let problem = format!("is a damaged PNG: its palette has {} bytes and {alphas} alpha values", palette.len());
        return Err(Error::corrupt(place, problem));
    }
    Ok(())
}
