// SPDX-License-Identifier: Apache-2.0
//! WebP decoding by the crate `image-webp`: lossy and lossless, with or without alpha. For an animation, the first
//! frame is used.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};
use penstock_types::{Error, Result};

use super::pixels::{Format, Pixels};
use super::{Kind, Probe, exif};

/// Maximum bytes of EXIF data.
const MAX_EXIF: usize = 1 << 20;

fn damaged(problem: &DecodingError, place: &str) -> Error {
    Error::corrupt(place, format!("is a damaged WebP: {problem}"))
}

fn open<'a>(bytes: &'a [u8], place: &str) -> Result<WebPDecoder<Cursor<&'a [u8]>>> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|problem| damaged(&problem, place))?;
    decoder.set_memory_limit(MAX_EXIF);
    Ok(decoder)
}

/// Reads size and orientation.
pub(super) fn probe(bytes: &[u8], place: &str) -> Result<Probe> {
    let mut decoder = open(bytes, place)?;
    let (width, height) = decoder.dimensions();
    let exif = decoder.exif_metadata().ok().flatten().unwrap_or_default();
    let orientation = exif::of_tiff(exif.strip_prefix(b"Exif\0\0").unwrap_or(&exif)).unwrap_or(1);
    Ok(Probe { width, height, kind: Kind::WebP, orientation })
}

/// Decodes the whole image into `pixels`.
pub(super) fn decode(bytes: &[u8], probe: &Probe, format: Format, pixels: &mut Pixels, place: &str) -> Result<()> {
    // The decoder reserves memory for the frame's stated size before it compares this size with the size of the image.
    if let Some((width, height)) = frame_size(bytes).filter(|size| *size != (probe.width, probe.height)) {
        let problem = format!("is a damaged WebP: its frame is {width} x {height}");
        return Err(Error::corrupt(place, problem));
    }
    let mut decoder = open(bytes, place)?;
    let stored = if decoder.has_alpha() { 4 } else { 3 };
    let count = probe.width as usize * probe.height as usize;
    let room = pixels.room(stored, count, format, place)?;
    decoder.read_image(room).map_err(|problem| damaged(&problem, place))?;
    pixels.set_whole(probe.width, probe.height);
    pixels.convert(stored, count, format, place)
}

/// Size that the lossy frame of a still image states; `None` if the image has no such frame.
fn frame_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut rest = bytes.get(12..)?;
    loop {
        let (kind, len) = (rest.get(..4)?, u32::from_le_bytes(*rest.get(4..8)?.first_chunk()?));
        let body = &rest[8..];
        if kind == b"VP8 " {
            let [w0, w1, h0, h1] = *body.get(6..10)?.first_chunk()?;
            return Some((u16::from_le_bytes([w0, w1]) & 0x3fff, u16::from_le_bytes([h0, h1]) & 0x3fff))
                .map(|(width, height)| (width.into(), height.into()));
        }
        rest = body.get(usize::try_from(len).ok()?.checked_next_multiple_of(2)?..)?;
    }
}
