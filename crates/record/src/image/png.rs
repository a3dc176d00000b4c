// SPDX-License-Identifier: Apache-2.0
//! PNG decoding by the `png` crate: converts every colour type and depth to 8-bit RGB.

use std::io::Cursor;

use penstock_types::{Error, Result, with_separators};
use png::{ColorType, Decoder, Info, Limits, Transformations};

use super::{Kind, Pixels, Probe, jpeg::reserve};

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
pub(super) fn decode(bytes: &[u8], probe: &Probe, pixels: &mut Pixels, place: &str) -> Result<()> {
    let damaged = |problem: png::DecodingError| Error::corrupt(place, format!("is a damaged PNG: {problem}"));
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), Limits { bytes: MAX_BESIDES });
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(damaged)?;
    check_palette(reader.info(), place)?;
    let (color, _) = reader.output_color_type();
    let count = probe.width as usize * probe.height as usize;
    let samples = color.samples();
    let room = if samples == 3 { &mut pixels.rgb } else { &mut pixels.raw };
    reserve(room, count * samples, place)?;
    let info = reader.next_frame(&mut room[..count * samples]).map_err(damaged)?;
    if (info.width, info.height) != (probe.width, probe.height) {
        return Err(Error::corrupt(place, format!("is a damaged PNG: its frame is {} x {}", info.width, info.height)));
    }
    let Pixels { rgb, raw, .. } = pixels;
    if samples != 3 {
        reserve(rgb, count * 3, place)?;
        let slots = rgb.as_chunks_mut::<3>().0.iter_mut();
        match color {
            ColorType::Grayscale | ColorType::Indexed => slots.zip(raw.iter()).for_each(|(to, &grey)| *to = [grey; 3]),
            ColorType::GrayscaleAlpha => {
                slots.zip(raw.as_chunks::<2>().0).for_each(|(to, &[grey, _])| *to = [grey; 3]);
            }
            ColorType::Rgba | ColorType::Rgb => {
                slots.zip(raw.as_chunks::<4>().0).for_each(|(to, &[red, green, blue, _])| *to = [red, green, blue]);
            }
        }
    }
    (pixels.width, pixels.height, pixels.left, pixels.top, pixels.scale) = (probe.width, probe.height, 0, 0, 1);
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
