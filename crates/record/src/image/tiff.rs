// SPDX-License-Identifier: Apache-2.0
//! TIFF decoding by the crate `tiff`: the first page, as grey, RGB or RGBA of 8 or 16 bits, or as labels. Supports
//! strips and tiles that are uncompressed, or compressed by Deflate, LZW or PackBits.

use std::io::Cursor;

use penstock_types::{Error, Result, catch_panic};
use tiff::decoder::{Decoder, DecodingResult, Limits};
use tiff::tags::Tag;
use tiff::{ColorType, TiffError};

use super::labels::{Labels, coloured};
use super::pixels::{Format, Pixels};
use super::{Kind, Probe, exif};

fn failed(problem: TiffError, place: &str) -> Error {
    match problem {
        TiffError::UnsupportedError(what) => unsupported(&what.to_string(), place),
        problem => undecodable(&problem.to_string(), place),
    }
}

/// Error for a file that is damaged or not supported. The decoder does not report which of the two is the case.
fn undecodable(problem: &str, place: &str) -> Error {
    let text =
        format!("cannot be decoded as TIFF: {problem} (if another program can read the image, convert it to PNG)");
    Error::corrupt(place, text)
}

fn unsupported(what: &str, place: &str) -> Error {
    Error::Unsupported {
        what: format!("TIFF: {what} ({place})"),
        by: format!("{} (grey, RGB or RGBA of 8 or 16 bits)", super::DECODING),
    }
}

fn open<'a>(bytes: &'a [u8], max_bytes: usize, place: &str) -> Result<Decoder<Cursor<&'a [u8]>>> {
    let mut limits = Limits::default();
    limits.decoding_buffer_size = max_bytes;
    Ok(Decoder::new(Cursor::new(bytes)).map_err(|problem| failed(problem, place))?.with_limits(limits))
}

/// Reads size and orientation.
pub(super) fn probe(bytes: &[u8], place: &str) -> Result<Probe> {
    let mut decoder = open(bytes, 0, place)?;
    let (width, height) = decoder.dimensions().map_err(|problem| failed(problem, place))?;
    Ok(Probe { width, height, kind: Kind::Tiff, orientation: exif::of_tiff(bytes).unwrap_or(1) })
}

/// Decodes the whole image. Returns the values and the colour type of the image.
fn read(bytes: &[u8], probe: &Probe, place: &str) -> Result<(DecodingResult, ColorType)> {
    let count = probe.width as usize * probe.height as usize;
    let mut decoder = open(bytes, count.saturating_mul(8), place)?;
    let color = decoder.colortype().map_err(|problem| failed(problem, place))?;
    let mut tag = |name| decoder.find_tag_unsigned_vec::<u16>(name).map_err(|problem| failed(problem, place));
    let mut first = |name| Ok::<_, Error>(tag(name)?.and_then(|values| values.first().copied()).unwrap_or(1));
    if first(Tag::FillOrder)? == 2 {
        return Err(unsupported("fill order 2, with reversed bits", place));
    }
    if first(Tag::PlanarConfiguration)? == 2 && first(Tag::SamplesPerPixel)? > 1 {
        return Err(unsupported("samples in separate planes", place));
    }
    let has_alpha = matches!(color, ColorType::RGBA(_) | ColorType::GrayA(_));
    let is_premultiplied = has_alpha && tag(Tag::ExtraSamples)?.is_some_and(|extra| extra.first() == Some(&1));
    let mut values = DecodingResult::U8(Vec::new());
    catch_panic(|| decoder.read_image_to_buffer(&mut values))
        .map_err(|_| undecodable("the decoder panicked", place))?
        .map_err(|problem| failed(problem, place))?;
    let stored = if matches!(color, ColorType::RGBA(_)) { 4 } else { 2 };
    match &mut values {
        DecodingResult::U8(values) if is_premultiplied => divide_by_alpha(values, stored, u8::MAX),
        DecodingResult::U16(values) if is_premultiplied => divide_by_alpha(values, stored, u16::MAX),
        _ => {}
    }
    Ok((values, color))
}

/// Converts premultiplied colours back by dividing them by their alpha.
fn divide_by_alpha<T: Copy + Into<u32> + TryFrom<u32>>(values: &mut [T], stored: usize, most: T) {
    let wide = |value: T| -> u32 { value.into() };
    for pixel in values.chunks_exact_mut(stored) {
        let Some((&mut alpha, colours)) = pixel.split_last_mut() else { continue };
        if wide(alpha) != 0 {
            for colour in colours {
                *colour = T::try_from(wide(*colour) * wide(most) / wide(alpha)).unwrap_or(most);
            }
        }
    }
}

/// Decodes the whole image into `pixels`.
pub(super) fn decode(bytes: &[u8], probe: &Probe, format: Format, pixels: &mut Pixels, place: &str) -> Result<()> {
    let (values, color) = read(bytes, probe, place)?;
    let count = probe.width as usize * probe.height as usize;
    let stored = match color {
        ColorType::Gray(1 | 2 | 4 | 8 | 16) => 1,
        ColorType::GrayA(8 | 16) => 2,
        ColorType::RGB(8 | 16) => 3,
        ColorType::RGBA(8 | 16) => 4,
        other => return Err(unsupported(&format!("{other:?}"), place)),
    };
    pixels.set_whole(probe.width, probe.height);
    match values {
        DecodingResult::U8(values) => {
            let room = pixels.room(stored, count, format, place)?;
            match color {
                ColorType::Gray(bits @ (1 | 2 | 4)) => {
                    let most = (1u16 << bits) - 1;
                    let labels = unpacked(&values, probe, bits, place)?;
                    room.iter_mut().zip(labels).for_each(|(to, value)| *to = (u16::from(value) * 255 / most) as u8);
                }
                _ => room.copy_from_slice(exactly(&values, count * stored, place)?),
            }
            pixels.convert(stored, count, format, place)
        }
        DecodingResult::U16(values) => {
            pixels.convert_wide(exactly(&values, count * stored, place)?, stored, format, place)
        }
        _ => Err(unsupported(&format!("{color:?} pixels that are not unsigned integers"), place)),
    }
}

/// Decodes the labels of a mask: grey values of any integer type.
pub(super) fn labels(bytes: &[u8], probe: &Probe, place: &str) -> Result<Labels> {
    let (values, color) = read(bytes, probe, place)?;
    let count = probe.width as usize * probe.height as usize;
    let ColorType::Gray(bits) = color else { return Err(coloured(&format!("{color:?}"), place)) };
    fn wide<T: Copy + Into<i64>>(values: &[T], count: usize, place: &str) -> Result<Labels> {
        Ok(Labels::I64(exactly(values, count, place)?.iter().map(|&value| value.into()).collect()))
    }
    match values {
        DecodingResult::U8(values) if bits < 8 => Ok(Labels::U8(unpacked(&values, probe, bits, place)?)),
        DecodingResult::U8(values) => Ok(Labels::U8(exactly(&values, count, place)?.to_vec())),
        DecodingResult::U16(values) => Ok(Labels::U16(exactly(&values, count, place)?.to_vec())),
        DecodingResult::U32(values) => wide(&values, count, place),
        DecodingResult::I8(values) => wide(&values, count, place),
        DecodingResult::I16(values) => wide(&values, count, place),
        DecodingResult::I32(values) => wide(&values, count, place),
        DecodingResult::I64(values) => wide(&values, count, place),
        _ => Err(unsupported("labels that are not integers of up to 32 bits", place)),
    }
}

fn exactly<'a, T>(values: &'a [T], len: usize, place: &str) -> Result<&'a [T]> {
    values.get(..len).filter(|_| values.len() == len).ok_or_else(|| {
        Error::corrupt(place, format!("is a damaged TIFF: it has {} values instead of {len}", values.len()))
    })
}

/// Unpacks values of less than 8 bits. Each row begins at a byte; the first value is in the most significant bits.
fn unpacked(packed: &[u8], probe: &Probe, bits: u8, place: &str) -> Result<Vec<u8>> {
    let (width, bits) = (probe.width as usize, usize::from(bits));
    let line = (width * bits).div_ceil(8);
    let packed = exactly(packed, line * probe.height as usize, place)?;
    Ok(super::labels::unpacked(packed, width, line, bits))
}
