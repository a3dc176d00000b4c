// SPDX-License-Identifier: Apache-2.0
//! Images: JPEG and PNG decoded, cropped, resized, flipped and normalised into a slot of a batch.
//!
//! The output is a pure function of the bytes, the [`ImageSpec`] and a key. The caller makes the key from the
//! seed, the epoch and the sample, so the same sample gets the same crop on any world size.
//!
//! Colours are RGB, whatever is stored: grey is repeated, CMYK and YCCK are converted as Pillow does it (Adobe's inverted
//! inks), palettes are looked up, 16 bits keep their upper 8, alpha is dropped. EXIF orientation is not applied unless
//! asked, as in torchvision and Pillow. Of an animation the first picture counts. Refused: images beyond a stated number
//! of pixels (before any memory is taken), lossless and 12-bit JPEG, every other kind, by its name.
//!
//! A JPEG is decoded at the least scale (1/1, 1/2, 1/4, 1/8) that still covers the crop, unless the spec is `exact`, and
//! only where the crop is.

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

/// Pixels that an image may have unless the spec says otherwise; Pillow warns a little below it.
pub const MAX_PIXELS: u64 = 100_000_000;

/// Which part of an image becomes the sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Crop {
    /// All of it, resized to the sample's height and width, its proportions lost.
    None,
    /// The middle of the image resized so that its shorter side is `resize`: Resize, then CenterCrop.
    Center {
        /// The shorter side's pixels; at least the sample's height and width.
        resize: u32,
    },
    /// A random part: torchvision's RandomResizedCrop.
    Random {
        /// Least and largest part of the area; torchvision's are (0.08, 1).
        area: (f64, f64),
        /// Least and largest width / height; torchvision's are (3/4, 4/3).
        ratio: (f64, f64),
    },
}

impl Crop {
    /// RandomResizedCrop with torchvision's parameters.
    pub const RANDOM: Self = Self::Random { area: (0.08, 1.0), ratio: (3.0 / 4.0, 4.0 / 3.0) };
}

/// The order of a sample's axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Height, width, channels.
    Hwc,
    /// Channels, height, width.
    Chw,
}

/// Transform of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSpec {
    /// Rows of the sample.
    pub height: u32,
    /// Columns of the sample.
    pub width: u32,
    /// Which part of the image is taken.
    pub crop: Crop,
    /// How often it is mirrored left to right: 0 never, 0.5 every other time.
    pub flip: f64,
    /// uint8, or float32 of (value / 255 - mean) / std.
    pub dtype: DType,
    /// The order of the axes.
    pub layout: Layout,
    /// Of each channel; float32 only.
    pub mean: [f32; 3],
    /// Of each channel; float32 only.
    pub std: [f32; 3],
    /// Turn it as its EXIF orientation says.
    pub orient: bool,
    /// Images of more pixels are refused.
    pub most_pixels: u64,
    /// Decode JPEGs at full size before they are resized: within 2 of Pillow, and slower.
    pub exact: bool,
}

impl ImageSpec {
    /// All of the image at this size, as uint8 in HWC.
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
            most_pixels: MAX_PIXELS,
            exact: false,
        }
    }

    /// Errs for what cannot be; to be called once, when the spec is made.
    pub fn check(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::config("image", problem));
        if self.height == 0 || self.width == 0 || self.height > 65_535 || self.width > 65_535 {
            return wrong(format!("{} x {} is no size of an image", self.height, self.width));
        }
        if !matches!(self.dtype, DType::U8 | DType::F32) {
            return wrong(format!("{} is neither uint8 nor float32", self.dtype));
        }
        if !(0.0..=1.0).contains(&self.flip) {
            return wrong(format!("flip is {}, a probability is wanted", self.flip));
        }
        if self.std.iter().any(|&std| !std.is_normal()) || self.mean.iter().any(|mean| !mean.is_finite()) {
            return wrong(format!("mean {:?} and std {:?} are no normalisation", self.mean, self.std));
        }
        match self.crop {
            Crop::Center { resize } if resize < self.height.max(self.width) || resize > 65_535 => {
                wrong(format!("a crop of {} x {} does not fit an image resized to {resize}", self.height, self.width))
            }
            Crop::Random { area: (least, most), ratio: (thin, wide) } => {
                let sound =
                    0.0 < least && least <= most && most <= 1.0 && 0.0 < thin && thin <= wide && wide.is_finite();
                if sound { Ok(()) } else { wrong(format!("no crop has area {least}..{most} and ratio {thin}..{wide}")) }
            }
            _ => Ok(()),
        }
    }

    /// Type and shape of the sample.
    pub fn tensor(&self) -> TensorSpec {
        let (height, width) = (self.height as usize, self.width as usize);
        let shape = match self.layout {
            Layout::Hwc => vec![height, width, 3],
            Layout::Chw => vec![3, height, width],
        };
        TensorSpec { dtype: self.dtype, shape }
    }
}

/// A kind of image that is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Baseline or progressive, 8 bits.
    Jpeg,
    /// Any colour type and depth.
    Png,
}

/// Header of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Columns, as stored.
    pub width: u32,
    /// Rows, as stored.
    pub height: u32,
    /// Format.
    pub kind: Kind,
    /// EXIF's orientation, 1 to 8; 1 where it says none.
    pub orientation: u8,
}

/// Reads an image's size and kind; its headers are enough. `place` names it in messages.
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

/// Pixels of an image, or of a part of it at a scale.
#[derive(Debug, Default)]
struct Pixels {
    /// RGB, rows one behind another.
    rgb: Vec<u8>,
    /// CMYK on its way to `rgb`, and other rooms of a decoder.
    raw: Vec<u8>,
    width: u32,
    height: u32,
    /// Where they begin in the scaled image.
    left: u32,
    top: u32,
    /// Pixels of the image that one of them stands for, a side.
    scale: u32,
}

#[derive(Default)]
struct Room {
    pixels: Pixels,
    small: Vec<u8>,
    resizer: Resizer,
}

/// Bytes of room that a thread keeps for its next image; what a larger one needed is given back.
const KEPT: usize = 32 << 20;

thread_local! {
    // A thread decodes one image after another: the rooms are as large as the largest so far and never zeroed again.
    static ROOM: RefCell<Room> = RefCell::default();
}

/// Decodes the image `bytes` into `out`, the sample's slot in a batch, as `spec` (checked before) says. `key` is what
/// crops and flips follow from; `place` names the image in messages.
///
/// # Errors
/// [`Error::Corrupt`] for damaged, truncated or oversized images, [`Error::Unsupported`] for other kinds.
pub fn decode_into(bytes: &[u8], spec: &ImageSpec, key: u64, out: &mut [u8], place: &str) -> Result<()> {
    if out.len() != spec.tensor().size_bytes()? {
        return Err(Error::bug(format!("the slot of the image {place} has {} bytes", out.len())));
    }
    let probe = probe(bytes, place)?;
    let count = u64::from(probe.width) * u64::from(probe.height);
    if count == 0 || count > spec.most_pixels {
        let (width, height, most) = (
            with_separators(probe.width.into()),
            with_separators(probe.height.into()),
            with_separators(spec.most_pixels),
        );
        return Err(Error::corrupt(place, format!("is an image of {width} x {height} pixels, 1 to {most} are taken")));
    }
    let turn = if spec.orient { Turn::of(probe.orientation) } else { Turn::default() };
    let mut draws = crop::Draws::new(key);
    let mirrored = draws.unit() < spec.flip;
    let (shown_width, shown_height) = turn.shown(probe.width, probe.height);
    let shown = Region::choose(spec, shown_width, shown_height, &mut draws);
    // From here on all is as stored; the last step turns and mirrors.
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

/// Resamples `region` of the image into `out`: bilinear, widened to what a pixel stands for (antialiased).
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
    // What is seen of the pixels: all of them where neighbours may shine in, else those that the region touches.
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
    // Scaled sizes are rounded up, so a region may end a fraction of a pixel outside.
    let x = (x - f64::from(left)).clamp(0.0, f64::from(seen_width) - 0.01);
    let y = (y - f64::from(top)).clamp(0.0, f64::from(seen_height) - 0.01);
    let (w, h) = (w.min(f64::from(seen_width) - x), h.min(f64::from(seen_height) - y));
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(x, y, w, h);
    resizer.resize_typed(&seen, &mut target, &options).map_err(|e| bug(&e))
}
