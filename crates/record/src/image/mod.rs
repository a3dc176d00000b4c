// SPDX-License-Identifier: Apache-2.0
//! Images: decodes JPEG and PNG, then crops, resizes, flips and normalises the image into a batch slot.
//!
//! The output depends only on the bytes, the [`ImageSpec`] and a key. The caller computes the key from seed, epoch and
//! sample, so the same sample gets the same crop for any world size.
//!
//! Output is always RGB. Grey is repeated in all three channels, CMYK and YCCK are converted as in Pillow (Adobe's
//! inverted inks), palettes are expanded, 16-bit values are reduced to their upper 8 bits, and alpha is dropped. EXIF
//! orientation is applied only on request, as in torchvision and Pillow. For an animation, the first frame is used. The
//! following images are rejected: those above the pixel limit (before any memory is allocated), lossless and 12-bit
//! JPEG, and all other formats (the error names the format).
//!
//! A JPEG is decoded at the smallest scale (1/1, 1/2, 1/4, 1/8) that still covers the crop, unless the spec is `exact`.
//! Only the region of the crop is decoded.

mod crop;
mod exif;
mod jpeg;
mod jpeg_header;
mod normalize;
mod png;

use std::cell::RefCell;

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use penstock_types::{DType, Error, Result, TensorSpec, with_separators};

use self::crop::Region;
use self::exif::Turn;

/// Default limit on the pixels of an image; Pillow warns slightly below it.
pub const MAX_PIXELS: u64 = 100_000_000;

/// Region of an image that becomes the sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Crop {
    /// The whole image, resized to the sample's height and width; the aspect ratio is lost.
    None,
    /// Central region, after the shorter side is resized to `resize`: torchvision's Resize, then CenterCrop.
    Center {
        /// Pixels of the shorter side after resizing; at least the sample's height and width.
        resize: u32,
    },
    /// Random region, as in torchvision's RandomResizedCrop.
    Random {
        /// Minimum and maximum fraction of the area; torchvision uses (0.08, 1).
        area: (f64, f64),
        /// Minimum and maximum width / height; torchvision uses (3/4, 4/3).
        ratio: (f64, f64),
    },
}

impl Crop {
    /// RandomResizedCrop with torchvision's parameters.
    pub const RANDOM: Self = Self::Random { area: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };
}

/// Order of a sample's axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Height, width, channels.
    Hwc,
    /// Channels, height, width.
    Chw,
}

/// Settings that turn an image into a sample.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSpec {
    /// Rows of the sample.
    pub height: u32,
    /// Columns of the sample.
    pub width: u32,
    /// Part of the image that is used.
    pub crop: Crop,
    /// Probability of a left-to-right flip: 0 never flips, 0.5 flips half of the samples.
    pub flip: f64,
    /// Element type: uint8, or float32 computed as (value / 255 - mean) / std.
    pub dtype: DType,
    /// Order of the axes.
    pub layout: Layout,
    /// Mean of each channel; float32 only.
    pub mean: [f32; 3],
    /// Standard deviation of each channel; float32 only.
    pub std: [f32; 3],
    /// Apply the image's EXIF orientation.
    pub orient: bool,
    /// Maximum number of pixels; larger images are rejected.
    pub max_pixels: u64,
    /// Decode JPEGs at full size before resizing. This is slower, but the values differ from Pillow's by at most 2.
    pub exact: bool,
}

impl ImageSpec {
    /// Creates a spec that uses the whole image at this size, as uint8 in HWC.
    pub fn new(height: u32, width: u32) -> Self {
        Self {
            height,
            width,
            crop: Crop::None,
            flip: 0.0,
            dtype: DType::U8,
            layout: Layout::Hwc,
            mean: [0.0; 3],
            std: [1.0; 3],
            orient: false,
            max_pixels: MAX_PIXELS,
            exact: false,
        }
    }

    /// Checks the settings; returns an error if they are invalid. Call it once after creating the spec.
    pub fn check(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::config("image", problem));
        if self.height == 0 || self.width == 0 || self.height > 65_535 || self.width > 65_535 {
            return wrong(format!("{} x {} is not a valid image size", self.height, self.width));
        }
        if !matches!(self.dtype, DType::U8 | DType::F32) {
            return wrong(format!("dtype must be uint8 or float32 (got {})", self.dtype));
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return wrong(format!("flip must be a probability, 0 to 1 (got {})", self.flip));
        }
        if self.std.iter().any(|&std| !std.is_normal()) || self.mean.iter().any(|mean| !mean.is_finite()) {
            return wrong(format!(
                "mean must be finite, and std finite and non-zero (got {:?} and {:?})",
                self.mean, self.std
            ));
        }
        match self.crop {
            Crop::Center { resize } if resize < self.height.max(self.width) || resize > 65_535 => {
                wrong(format!("a crop of {} x {} does not fit an image resized to {resize}", self.height, self.width))
            }
            Crop::Random { area: (least, most), ratio: (thin, wide) } => {
                let sound =
                    0.0 < least && least <= most && most <= 1.0 && 0.0 < thin && thin <= wide && wide.is_finite();
                if sound {
                    Ok(())
                } else {
                    wrong(format!("no crop can have area {least}..{most} and ratio {thin}..{wide}"))
                }
            }
            _ => Ok(()),
        }
    }

    /// Element type and shape of the sample.
    pub fn tensor(&self) -> TensorSpec {
        let (height, width) = (self.height as usize, self.width as usize);
        let shape = match self.layout {
            Layout::Hwc => vec![height, width, 3],
            Layout::Chw => vec![3, height, width],
        };
        TensorSpec { dtype: self.dtype, shape }
    }
}

/// Image format that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// JPEG: baseline or progressive, 8 bits.
    Jpeg,
    /// PNG: any colour type and depth.
    Png,
}

/// Properties of an image, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Width of the stored image, in pixels.
    pub width: u32,
    /// Height of the stored image, in pixels.
    pub height: u32,
    /// Format.
    pub kind: Kind,
    /// EXIF orientation, 1 to 8; 1 if the image has none.
    pub orientation: u8,
}

/// Reads size, kind and orientation of an image; the headers are sufficient. `place` names the image in messages.
pub fn probe(bytes: &[u8], place: &str) -> Result<Probe> {
    let unknown = |kind: &str| Error::Unsupported {
        what: format!("{kind} ({place})"),
        by: "image decoding (JPEG, PNG)".to_owned(),
    };
    match bytes {
        [0xff, 0xd8, ..] => jpeg_header::probe(bytes, place),
        [0x89, b'P', b'N', b'G', ..] => png::probe(bytes, place),
        [b'G', b'I', b'F', b'8', ..] => Err(unknown("GIF")),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Err(unknown("WebP")),
        [b'B', b'M', ..] => Err(unknown("BMP")),
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Err(unknown("TIFF")),
        [0, 0, 0, _, b'f', b't', b'y', b'p', ..] => Err(unknown("HEIF or AVIF")),
        _ => {
            let head = bytes[..bytes.len().min(8)].escape_ascii();
            Err(Error::corrupt(place, format!("is not an image (it begins `{head}`)")))
        }
    }
}

/// Decoded pixels of an image or of a region of it, possibly at a reduced scale.
#[derive(Debug, Default)]
struct Pixels {
    /// RGB pixels, row after row.
    rgb: Vec<u8>,
    /// CMYK pixels before conversion to `rgb`, and other decoder scratch space.
    raw: Vec<u8>,
    width: u32,
    height: u32,
    /// Horizontal position of these pixels in the scaled image; `top` is the vertical position.
    left: u32,
    top: u32,
    /// Reduction of the scale: one pixel here covers this many image pixels along each side.
    scale: u32,
}

#[derive(Default)]
struct Room {
    pixels: Pixels,
    small: Vec<u8>,
    resizer: Resizer,
}

/// Buffers larger than this are freed before the next image that needs less memory.
const KEPT: usize = 32 << 20;

thread_local! {
    // A thread decodes one image at a time. Its buffers keep the size of the largest image so far, and are not zeroed
    // again.
    static ROOM: RefCell<Room> = RefCell::default();
}

/// Decodes the image `bytes` according to `spec` into `out`, the sample's batch slot. The caller must have called
/// [`ImageSpec::check`]. `key` determines random crop and flip; `place` names the image in messages.
///
/// # Errors
/// [`Error::Corrupt`] for damaged, truncated or oversized images, [`Error::Unsupported`] for other formats.
pub fn decode_into(bytes: &[u8], spec: &ImageSpec, key: u64, out: &mut [u8], place: &str) -> Result<()> {
    if out.len() != spec.tensor().size_bytes()? {
        return Err(Error::bug(format!("the slot for the image {place} has the wrong size ({} bytes)", out.len())));
    }
    let probe = probe(bytes, place)?;
    let count = u64::from(probe.width) * u64::from(probe.height);
    if count == 0 || count > spec.max_pixels {
        let (width, height, most) = (
            with_separators(probe.width.into()),
            with_separators(probe.height.into()),
            with_separators(spec.max_pixels),
        );
        return Err(Error::corrupt(
            place,
            format!("is an image of {width} x {height} pixels (allowed: 1 to {most} pixels)"),
        ));
    }
    let turn = if spec.orient { Turn::of(probe.orientation) } else { Turn::default() };
    let mut draws = crop::Draws::new(key);
    let mirrored = draws.unit() < spec.flip;
    let (shown_width, shown_height) = turn.shown(probe.width, probe.height);
    let shown = Region::choose(spec, shown_width, shown_height, &mut draws);
    // From here on, coordinates refer to the stored image. The last step rotates and mirrors it.
    let region = turn.stored(shown, probe.width, probe.height);
    let (width, height) = turn.shown(spec.width, spec.height);
    ROOM.with_borrow_mut(|room| {
        for large in [&mut room.pixels.rgb, &mut room.pixels.raw] {
            if large.capacity() > KEPT && count.saturating_mul(4) < KEPT as u64 {
                *large = Vec::new();
            }
        }
        let Room { pixels, small, resizer } = room;
        match probe.kind {
            Kind::Jpeg => jpeg::decode(bytes, &probe, &region, (width, height), pixels, place)?,
            Kind::Png => png::decode(bytes, &probe, pixels, place)?,
        }
        let direct = spec.dtype == DType::U8 && spec.layout == Layout::Hwc && !mirrored && turn == Turn::default();
        if direct {
            return resize(pixels, &region, (width, height), resizer, out, place);
        }
        let len = width as usize * height as usize * 3;
        if small.len() < len {
            small.resize(len, 0);
        }
        resize(pixels, &region, (width, height), resizer, &mut small[..len], place)?;
        normalize::write(&small[..len], spec, turn, mirrored, out);
        Ok(())
    })
}

/// Resizes `region` of the image into `out` by bilinear interpolation with antialiasing: the kernel is as wide as the
/// source area of a target pixel.
fn resize(
    pixels: &Pixels,
    region: &Region,
    (width, height): (u32, u32),
    resizer: &mut Resizer,
    out: &mut [u8],
    place: &str,
) -> Result<()> {
    let bug = |problem: &dyn std::fmt::Display| Error::bug(format!("resizing {place}: {problem}"));
    let len = pixels.width as usize * pixels.height as usize * 3;
    let source =
        TypedImageRef::<U8x3>::from_buffer(pixels.width, pixels.height, &pixels.rgb[..len]).map_err(|e| bug(&e))?;
    let mut target = TypedImage::<U8x3>::from_buffer(width, height, out).map_err(|e| bug(&e))?;
    let scale = f64::from(pixels.scale);
    let (x, y) = (region.x / scale - f64::from(pixels.left), region.y / scale - f64::from(pixels.top));
    let (w, h) = (region.width / scale, region.height / scale);
    // Pixels that the resize may read: all pixels if neighbours may affect the region, otherwise those that overlap the
    // region.
    let (left, top, right, bottom) = match region.sharp_edges {
        false => (0, 0, pixels.width, pixels.height),
        true => (
            (x.floor().max(0.0) as u32).min(pixels.width - 1),
            (y.floor().max(0.0) as u32).min(pixels.height - 1),
            ((x + w).ceil() as u32).clamp(1, pixels.width),
            ((y + h).ceil() as u32).clamp(1, pixels.height),
        ),
    };
    let (seen_width, seen_height) = (right.saturating_sub(left).max(1), bottom.saturating_sub(top).max(1));
    let seen = TypedCroppedImage::from_ref(&source, left, top, seen_width, seen_height).map_err(|e| bug(&e))?;
    // Scaled sizes are rounded up, so a region may extend beyond the image by a fraction of a pixel.
    let x = (x - f64::from(left)).clamp(0.0, f64::from(seen_width) - 0.01);
    let y = (y - f64::from(top)).clamp(0.0, f64::from(seen_height) - 0.01);
    let (w, h) = (w.min(f64::from(seen_width) - x), h.min(f64::from(seen_height) - y));
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(x, y, w, h);
    resizer.resize_typed(&seen, &mut target, &options).map_err(|e| bug(&e))
}
