// SPDX-License-Identifier: Apache-2.0
//! JPEG decoding by libjpeg-turbo. Uses `turbojpeg-sys`, because the safe crate `turbojpeg` cannot decode a region of
//! an image.

use std::cell::RefCell;
use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use penstock_types::{Error, Result, with_separators};
use turbojpeg_sys as tj;

use super::Probe;
use super::crop::Region;
use super::labels::coloured;
use super::pixels::{Format, Pixels, reserve};

/// Maximum number of scans in a progressive image. Encoders write about ten; a decompression bomb has thousands.
const MAX_SCANS: c_int = 200;

/// First words of libjpeg's warnings (the messages `JWRN_...` in its jerror.h).
const WARNINGS: [&str; 6] = [
    "Corrupt JPEG data: ",
    "Inconsistent progression sequence",
    "Invalid SOS parameters",
    "Premature end of JPEG file",
    "Unknown Adobe color transform",
    "Warning: ",
];

struct Decoder(NonNull<std::ffi::c_void>);

impl Decoder {
    fn new() -> Option<Self> {
        // SAFETY: the argument is a constant; a null result means failure.
        let decoder = Self(NonNull::new(unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) }.cast())?);
        // SAFETY: the handle is sound and the parameter accepts any positive number.
        unsafe { tj::tj3Set(decoder.handle(), tj::TJPARAM_TJPARAM_SCANLIMIT as c_int, MAX_SCANS) };
        Some(decoder)
    }

    fn handle(&self) -> tj::tjhandle {
        self.0.as_ptr().cast()
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is sound; an unknown parameter returns -1.
        unsafe { tj::tj3Get(self.handle(), parameter as c_int) }
    }

    /// Last error message of the library, and whether it is only a warning. An error that follows a warning has the
    /// error code of a warning, so the text is also compared with the known warnings.
    fn problem(&self) -> (String, bool) {
        // SAFETY: the string belongs to the handle, is terminated, and is copied immediately.
        let text = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.handle())) }.to_string_lossy().into_owned();
        // SAFETY: the handle is sound.
        let warning = unsafe { tj::tj3GetErrorCode(self.handle()) } == tj::TJERR_TJERR_WARNING as c_int;
        let is_warning = warning && WARNINGS.iter().any(|start| text.starts_with(start));
        (text, is_warning)
    }
}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: the handle came from `tj3Init` and is freed once.
        unsafe { tj::tj3Destroy(self.handle()) }
    }
}

thread_local! {
    static DECODER: RefCell<Option<Decoder>> = RefCell::new(Decoder::new());
}

/// Width of an MCU (minimum coded unit) in pixels for a TurboJPEG subsampling constant; `None` if unknown.
fn mcu_width(subsampling: c_int) -> Option<u32> {
    Some(match subsampling {
        tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 | tj::TJSAMP_TJSAMP_441 => 8,
        tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => 16,
        tj::TJSAMP_TJSAMP_411 => 32,
        _ => return None,
    })
}

/// Decodes at least `region` into `pixels`, at the smallest scale at which the region still has at least `target`
/// pixels. Only power-of-two scales are used, because their transforms have SIMD code.
pub(super) fn decode(
    bytes: &[u8],
    probe: &Probe,
    region: &Region,
    target: (u32, u32),
    format: Format,
    pixels: &mut Pixels,
    place: &str,
) -> Result<()> {
    // libjpeg still decodes most truncated images (grey after the cut), with a warning that depends on the crop
    // position. Checking for the end marker instead makes the result independent of the crop.
    if !ends(bytes) {
        let text = format!("is a truncated JPEG (no end marker in its {} bytes)", with_separators(bytes.len() as u64));
        return Err(Error::corrupt(place, text));
    }
    DECODER.with_borrow_mut(|decoder| {
        let decoder = decoder.as_mut().ok_or_else(|| Error::bug("libjpeg-turbo has no memory for a decoder"))?;
        decode_by(decoder, bytes, probe, region, target, format, pixels, place)
    })
}

/// True if the data contain an end marker.
fn ends(bytes: &[u8]) -> bool {
    let rest = bytes.trim_ascii_end();
    rest.ends_with(&[0xff, 0xd9]) || bytes.windows(2).rev().any(|pair| pair == [0xff, 0xd9])
}

#[expect(clippy::too_many_arguments, reason = "called once")]
fn decode_by(
    decoder: &mut Decoder,
    bytes: &[u8],
    probe: &Probe,
    region: &Region,
    target: (u32, u32),
    format: Format,
    pixels: &mut Pixels,
    place: &str,
) -> Result<()> {
    let damaged = |text: &str| Error::corrupt(place, format!("is a damaged JPEG: {text}"));
    let handle = decoder.handle();
    // SAFETY: the handle is sound, and the buffer is given with its true length.
    if unsafe { tj::tj3DecompressHeader(handle, bytes.as_ptr(), bytes.len() as _) } != 0 {
        let (text, warning) = decoder.problem();
        if !warning {
            return Err(damaged(&text));
        }
    }
    let sides = [tj::TJPARAM_TJPARAM_JPEGWIDTH, tj::TJPARAM_TJPARAM_JPEGHEIGHT].map(|side| decoder.get(side));
    if sides != [probe.width, probe.height].map(|side| side as c_int) {
        return Err(damaged(&format!(
            "its headers declare different sizes, {} x {} and {sides:?}",
            probe.width, probe.height
        )));
    }
    let scale = [8, 4, 2]
        .into_iter()
        .filter(|_| !region.full_size)
        .find(|&scale| region.width >= f64::from(target.0 * scale) && region.height >= f64::from(target.1 * scale));
    let scale = scale.unwrap_or(1);
    let (width, height) = (probe.width.div_ceil(scale), probe.height.div_ceil(scale));
    // Chroma is interpolated over two pixels, so a region needs two extra pixels at each edge. If pixels outside the
    // region affect the result, the region also needs as many extra pixels as one target pixel covers.
    let margin = |side: f64, target: u32| match region.sharp_edges {
        true => 2.0,
        false => 2.0 + (side / f64::from(scale) / f64::from(target)).ceil(),
    };
    let (margin_x, margin_y) = (margin(region.width, target.0), margin(region.height, target.1));
    let span = |from: f64, len: f64, margin: f64, side: u32| {
        let (from, to) = (from / f64::from(scale), (from + len) / f64::from(scale));
        let first = ((from - margin).floor().max(0.0) as u32).min(side - 1);
        (first, ((to + margin).ceil() as u32).clamp(first + 1, side))
    };
    let (mut left, right) = span(region.x, region.width, margin_x, width);
    let (mut top, mut bottom) = span(region.y, region.height, margin_y, height);
    let mut right = right;
    match mcu_width(decoder.get(tj::TJPARAM_TJPARAM_SUBSAMP)) {
        Some(mcu) => left -= left % (mcu / scale).max(1),
        None => (left, right, top, bottom) = (0, width, 0, height),
    }
    let factor = tj::tjscalingfactor { num: 1, denom: scale as c_int };
    let whole = (left, top, right, bottom) == (0, 0, width, height);
    let part = match whole {
        true => tj::tjregion { x: 0, y: 0, w: 0, h: 0 },
        false => {
            tj::tjregion { x: left as c_int, y: top as c_int, w: (right - left) as c_int, h: (bottom - top) as c_int }
        }
    };
    // SAFETY: the handle is sound; the library rejects a region that does not fit the image.
    if unsafe { tj::tj3SetScalingFactor(handle, factor) != 0 || tj::tj3SetCroppingRegion(handle, part) != 0 } {
        return Err(Error::bug(format!("libjpeg-turbo refused a crop of {place}: {}", decoder.problem().0)));
    }
    (pixels.width, pixels.height, pixels.left, pixels.top, pixels.scale) =
        (right - left, bottom - top, left, top, scale);
    let count = pixels.width as usize * pixels.height as usize;
    let inks =
        matches!(decoder.get(tj::TJPARAM_TJPARAM_COLORSPACE) as tj::TJCS, tj::TJCS_TJCS_CMYK | tj::TJCS_TJCS_YCCK);
    let width = pixels.width as c_int;
    let (room, depth, pixel_format) = match (inks, format.channels) {
        (true, _) => {
            reserve(&mut pixels.raw, count * 4, place)?;
            (&mut pixels.raw[..], 4, tj::TJPF_TJPF_CMYK)
        }
        (false, 1) => (pixels.room(1, count, format, place)?, 1, tj::TJPF_TJPF_GRAY),
        (false, 4) => (pixels.room(4, count, format, place)?, 4, tj::TJPF_TJPF_RGBA),
        (false, _) => (pixels.room(3, count, format, place)?, 3, tj::TJPF_TJPF_RGB),
    };
    let pitch = width * depth as c_int;
    // SAFETY: the handle is sound, the source is given with its true length, and the buffer has `height` rows of
    // `pitch` bytes for the region and scale set above.
    let failed = unsafe {
        tj::tj3Decompress8(handle, bytes.as_ptr(), bytes.len() as _, room.as_mut_ptr(), pitch, pixel_format) != 0
    };
    if failed {
        let (text, warning) = decoder.problem();
        // Most warnings concern damage that other decoders ignore, such as stray bytes before a marker.
        if !warning || text.contains("remature end") {
            return Err(damaged(&text));
        }
    }
    if !inks {
        return pixels.convert(depth, count, format, place);
    }
    let Pixels { bytes: rgb, raw, .. } = pixels;
    reserve(rgb, count * 3, place)?;
    for (to, from) in rgb.as_chunks_mut::<3>().0.iter_mut().zip(&raw.as_chunks::<4>().0[..count]) {
        let [inks @ .., black] = *from;
        // Adobe stores inks inverted: 255 means no ink. The rounding is the same as in Pillow.
        *to = inks.map(|ink| {
            let product = u32::from(ink) * u32::from(black) + 128;
            (((product >> 8) + product) >> 8) as u8
        });
    }
    if (Format { channels: 3, is_wide: false }) != format {
        std::mem::swap(rgb, raw);
        pixels.convert(3, count, format, place)?;
    }
    Ok(())
}

/// Decodes an image that has only grey values, at full size.
pub(super) fn grey(bytes: &[u8], probe: &Probe, place: &str) -> Result<Vec<u8>> {
    let format = Format { channels: 1, is_wide: false };
    let mut pixels = Pixels::default();
    let whole = Region::whole(probe.width, probe.height);
    decode(bytes, probe, &whole, (probe.width, probe.height), format, &mut pixels, place)?;
    let is_grey = DECODER
        .with_borrow(|decoder| decoder.as_ref().map(|decoder| decoder.get(tj::TJPARAM_TJPARAM_COLORSPACE) as tj::TJCS));
    match is_grey {
        Some(tj::TJCS_TJCS_GRAY) => Ok(pixels.bytes),
        _ => Err(coloured("the colours of a JPEG", place)),
    }
}
