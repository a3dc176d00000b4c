// SPDX-License-Identifier: Apache-2.0
//! Images: decodes JPEG, PNG, WebP and TIFF, then crops, resizes, flips and normalises the image into a batch slot.
//!
//! The output depends only on the bytes, the [`ImageSpec`] and a key. The caller computes the key from seed, epoch and
//! sample, so the same sample gets the same crop for any world size.
//!
//! Output is RGB, RGBA or grey. Grey is repeated in all three channels. CMYK and YCCK are converted as in Pillow
//! (Adobe's inverted inks), and palettes are expanded. Unless the sample is uint16, 16-bit values are reduced to their
//! upper 8 bits. Unless the sample has four channels, alpha is dropped. Masks are read as labels instead.
//!
//! EXIF orientation is applied only on request, as in torchvision and Pillow. For an animation, the first frame is
//! used. Images above the pixel limit are rejected before any memory is allocated. Lossless JPEG, 12-bit JPEG and all
//! formats that are not listed above are also rejected. The error names the format.
//!
//! A JPEG is decoded at the smallest scale (1/1, 1/2, 1/4, 1/8) that still covers the crop, unless the spec is `exact`.
//! Only the region of the crop is decoded.

mod annotations;
mod augment;
mod color;
mod crop;
mod exif;
mod geometry;
mod jpeg;
mod jpeg_header;
mod labels;
mod mask;
mod normalize;
mod pixels;
mod png;
mod tiff;
mod webp;

use std::cell::RefCell;

use fast_image_resize::images::{TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{InnerPixel, U8, U8x3, U8x4, U16, U16x3, U16x4};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};
use penstock_types::{DType, Error, Result, TensorSpec};

pub use self::annotations::{BoxFormat, Boxes, BoxesSpec, KeypointsSpec};
pub use self::augment::{Augment, OpKind};
use self::crop::{Region, Window};
use self::exif::Turn;
pub use self::geometry::Geometry;
pub use self::labels::Labels;
pub use self::mask::{Mask, MaskSpec};
use self::pixels::{Format, Pixels};

/// Default maximum number of pixels of an image. Pillow warns slightly below this limit.
pub const MAX_PIXELS: u64 = 100_000_000;

/// Region of an image that becomes the sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Crop {
    /// The whole image, resized to the sample's height and width; the aspect ratio is lost.
    None,
    /// The whole image, resized to fit into the sample with its aspect ratio kept, and centred. In the other pixels of
    /// the sample, every colour channel has the value `fill`, and alpha is opaque.
    Pad {
        /// Value of the pixels beside the image, 0 to 255. A uint16 sample gets 257 times this value.
        fill: u8,
    },
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
    /// Channels: 1 (grey), 3 (RGB) or 4 (RGBA).
    pub channels: u32,
    /// Element type: uint8, uint16 (8-bit images are multiplied by 257), or float32 computed from 8 bits as
    /// (value / 255 - mean) / std.
    pub dtype: DType,
    /// Order of the axes.
    pub layout: Layout,
    /// Mean of each colour channel; float32 only. Grey uses the first value.
    pub mean: [f32; 3],
    /// Standard deviation of each channel; float32 only.
    pub std: [f32; 3],
    /// Apply the image's EXIF orientation.
    pub orient: bool,
    /// Maximum number of pixels; larger images are rejected.
    pub max_pixels: u64,
    /// Decode JPEGs at full size before resizing. This setting is slower, but the values then differ from Pillow's by
    /// at most 2.
    pub exact: bool,
    /// Operations after crop, resize and flip. These operations need 3 channels of 8 bits.
    pub augment: Vec<Augment>,
}

impl ImageSpec {
    /// Creates a spec that uses the whole image at this size, as uint8 in HWC.
    pub fn new(height: u32, width: u32) -> Self {
        Self {
            height,
            width,
            crop: Crop::None,
            flip: 0.0,
            channels: 3,
            dtype: DType::U8,
            layout: Layout::Hwc,
            mean: [0.0; 3],
            std: [1.0; 3],
            orient: false,
            max_pixels: MAX_PIXELS,
            exact: false,
            augment: Vec::new(),
        }
    }

    /// Checks the settings; returns an error if they are invalid. Must be called once after the spec is created.
    pub fn check(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::config("image", problem));
        if self.height == 0 || self.width == 0 || self.height > 65_535 || self.width > 65_535 {
            return wrong(format!("{} x {} is not a valid image size", self.height, self.width));
        }
        if !matches!(self.dtype, DType::U8 | DType::U16 | DType::F32) {
            return wrong(format!("dtype must be uint8, uint16 or float32 (got {})", self.dtype));
        }
        if !matches!(self.channels, 1 | 3 | 4) {
            return wrong(format!("channels must be 1 (grey), 3 (RGB) or 4 (RGBA) (got {})", self.channels));
        }
        if !self.augment.is_empty() && (self.channels != 3 || self.dtype == DType::U16) {
            let (channels, dtype) = (self.channels, self.dtype);
            return wrong(format!("augmentation needs 3 channels of uint8 or float32 (got {channels} of {dtype})"));
        }
        self.augment.iter().try_for_each(Augment::check)?;
        if !(0.0..=1.0).contains(&self.flip) {
            return wrong(format!("flip must be a probability from 0 to 1 (got {})", self.flip));
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
            Layout::Hwc => vec![height, width, self.channels as usize],
            Layout::Chw => vec![self.channels as usize, height, width],
        };
        TensorSpec { dtype: self.dtype, shape }
    }

    fn format(&self) -> Format {
        Format { channels: self.channels as usize, is_wide: self.dtype == DType::U16 }
    }
}

/// Image format that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// JPEG: baseline or progressive, 8 bits.
    Jpeg,
    /// PNG: any colour type and depth.
    Png,
    /// TIFF: grey, RGB or RGBA of 8 or 16 bits.
    Tiff,
    /// WebP: lossy or lossless.
    WebP,
}

/// Properties of an image, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Width of the stored image, in pixels.
    pub width: u32,
    /// Height of the stored image, in pixels.
    pub height: u32,
    /// Format of the image.
    pub kind: Kind,
    /// EXIF orientation, 1 to 8; 1 if the image has none.
    pub orientation: u8,
}

/// First words of `by` in [`Error::Unsupported`] for an image in an unsupported format.
pub const DECODING: &str = "image decoding";

/// Reads size, kind and orientation of an image; the headers are sufficient. `place` names the image in messages.
pub fn probe(bytes: &[u8], place: &str) -> Result<Probe> {
    let unknown = |kind: &str| Error::Unsupported {
        what: format!("{kind} ({place})"),
        by: format!("{DECODING} (JPEG, PNG, WebP, TIFF)"),
    };
    match bytes {
        [0xff, 0xd8, ..] => jpeg_header::probe(bytes, place),
        [0x89, b'P', b'N', b'G', ..] => png::probe(bytes, place),
        [b'G', b'I', b'F', b'8', ..] => Err(unknown("GIF")),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp::probe(bytes, place),
        [b'B', b'M', ..] => Err(unknown("BMP")),
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => tiff::probe(bytes, place),
        [0, 0, 0, _, b'f', b't', b'y', b'p', ..] => Err(unknown("HEIF or AVIF")),
        [0, 0, 0, 12, b'j', b'P', b' ', b' ', ..] | [0xff, 0x4f, 0xff, 0x51, ..] => Err(unknown("JPEG 2000")),
        [b'P', b'1'..=b'7', b' ' | b'\t' | b'\n' | b'\r', ..] => Err(unknown("PNM (PBM, PGM, PPM or PAM)")),
        [] => Err(Error::corrupt(
            place,
            "has no image (0 bytes or a null); skip such samples with on_error=\"skip\"; to keep samples with a null, give the field a default or a mask",
        )),
        _ => {
            let head = bytes[..bytes.len().min(8)].escape_ascii();
            Err(Error::corrupt(place, format!("is not an image (it begins `{head}`)")))
        }
    }
}

#[derive(Default)]
struct Room {
    pixels: Pixels,
    /// Resized pixels before they are flipped and normalised.
    small: Vec<u8>,
    small_wide: Vec<u16>,
    /// Pixels to which operations are applied.
    augmented: Vec<[u8; 3]>,
    scratch: color::Scratch,
    resizer: Resizer,
}

/// Size in bytes above which a buffer is freed before the next image that needs less memory.
const KEPT: usize = 32 << 20;

thread_local! {
    // A thread decodes one image at a time. The thread's buffers keep the size of the largest image so far, and are not
    // zeroed again.
    static ROOM: RefCell<Room> = RefCell::default();
}

/// Decodes the image `bytes` according to `spec` into `out`, the sample's batch slot. The caller must have called
/// [`ImageSpec::check`]. `key` determines the random crop, flip and augmentation; `place` names the image in messages.
///
/// # Errors
/// [`Error::Corrupt`] for damaged, truncated or oversized images, [`Error::Unsupported`] for other formats.
pub fn decode_into(bytes: &[u8], spec: &ImageSpec, key: u64, out: &mut [u8], place: &str) -> Result<()> {
    if out.len() != spec.tensor().size_bytes()? {
        return Err(Error::bug(format!("the slot for the image {place} has the wrong size ({} bytes)", out.len())));
    }
    let probe = geometry::sized(bytes, spec.max_pixels, place)?;
    let count = u64::from(probe.width) * u64::from(probe.height);
    let turn = if spec.orient { Turn::of(probe.orientation) } else { Turn::default() };
    let geometry = Geometry::choose(spec, &probe, key);
    // From here on, coordinates refer to the stored image. The last step rotates and mirrors the stored image.
    let region = turn.stored(geometry.region, probe.width, probe.height);
    let target = turn.shown(spec.width, spec.height);
    let window = turn.stored_window(geometry.window, target);
    let format = spec.format();
    ROOM.with_borrow_mut(|room| {
        for large in [&mut room.pixels.bytes, &mut room.pixels.raw] {
            if large.capacity() > KEPT && count.saturating_mul(4) < KEPT as u64 {
                *large = Vec::new();
            }
        }
        if room.pixels.wide.capacity() * 2 > KEPT {
            room.pixels.wide = Vec::new();
        }
        let Room { pixels, small, small_wide, augmented, scratch, resizer } = room;
        match probe.kind {
            Kind::Jpeg => jpeg::decode(bytes, &probe, &region, window.size(), format, pixels, place)?,
            Kind::Png => png::decode(bytes, &probe, format, pixels, place)?,
            Kind::Tiff => tiff::decode(bytes, &probe, format, pixels, place)?,
            Kind::WebP => webp::decode(bytes, &probe, format, pixels, place)?,
        }
        let fill = if let Crop::Pad { fill } = spec.crop { fill } else { 0 };
        let mut resize = Resize { pixels, region: &region, target, window, fill, resizer, place };
        let mirrored = geometry.is_mirrored;
        let len = target.0 as usize * target.1 as usize * format.channels;
        if format.is_wide {
            pixels::reserve(small_wide, len, place)?;
            let small = &mut small_wide[..len];
            match format.channels {
                1 => resize.run::<U16>(as_bytes(&resize.pixels.wide), as_bytes_mut(small))?,
                3 => resize.run::<U16x3>(as_bytes(&resize.pixels.wide), as_bytes_mut(small))?,
                _ => resize.run::<U16x4>(as_bytes(&resize.pixels.wide), as_bytes_mut(small))?,
            }
            match format.channels {
                1 => normalize::write(small.as_chunks::<1>().0, spec, turn, mirrored, out),
                3 => normalize::write(small.as_chunks::<3>().0, spec, turn, mirrored, out),
                _ => normalize::write(small.as_chunks::<4>().0, spec, turn, mirrored, out),
            }
            return Ok(());
        }
        let mut resize_to = |out: &mut [u8]| match format.channels {
            1 => resize.run::<U8>(&resize.pixels.bytes, out),
            3 => resize.run::<U8x3>(&resize.pixels.bytes, out),
            _ => resize.run::<U8x4>(&resize.pixels.bytes, out),
        };
        let is_plain = geometry.ops.is_empty() && !mirrored && turn == Turn::default();
        if is_plain && spec.dtype == DType::U8 && spec.layout == Layout::Hwc {
            return resize_to(out);
        }
        pixels::reserve(small, len, place)?;
        let small = &mut small[..len];
        resize_to(small)?;
        if !geometry.ops.is_empty() {
            let plain = ImageSpec::new(spec.height, spec.width);
            pixels::reserve(augmented, len / 3, place)?;
            let augmented = &mut augmented[..len / 3];
            normalize::write(small.as_chunks::<3>().0, &plain, turn, mirrored, augmented.as_flattened_mut());
            for op in &geometry.ops {
                color::apply(op, augmented, geometry.sample, scratch);
            }
            normalize::write(augmented, spec, Turn::default(), false, out);
            return Ok(());
        }
        match format.channels {
            1 => normalize::write(small.as_chunks::<1>().0, spec, turn, mirrored, out),
            3 => normalize::write(small.as_chunks::<3>().0, spec, turn, mirrored, out),
            _ => normalize::write(small.as_chunks::<4>().0, spec, turn, mirrored, out),
        }
        Ok(())
    })
}

fn as_bytes(values: &[u16]) -> &[u8] {
    // SAFETY: every bit pattern of two bytes is valid, and a byte needs no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn as_bytes_mut(values: &mut [u16]) -> &mut [u8] {
    // SAFETY: as above; the slice is borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

/// Resize of a region of an image by bilinear interpolation with antialiasing. The kernel is as wide as the source area
/// of a target pixel. Colours are weighted by alpha, as in Pillow.
struct Resize<'a> {
    pixels: &'a Pixels,
    region: &'a Region,
    target: (u32, u32),
    /// Part of the target that the region fills.
    window: Window,
    /// Value of the target's other pixels.
    fill: u8,
    resizer: &'a mut Resizer,
    place: &'a str,
}

impl Resize<'_> {
    /// Resizes pixels of type `P` from `source` into `out`.
    fn run<P: PixelTrait + InnerPixel>(&mut self, source: &[u8], out: &mut [u8]) -> Result<()> {
        let Self { pixels, region, target: (width, height), window, fill, place, .. } = *self;
        let bug = |problem: &dyn std::fmt::Display| Error::bug(format!("resizing {place}: {problem}"));
        let len = pixels.width as usize * pixels.height as usize * P::size();
        let source =
            TypedImageRef::<P>::from_buffer(pixels.width, pixels.height, &source[..len]).map_err(|e| bug(&e))?;
        if window.size() != (width, height) {
            // Each byte is set to `fill`, so a 16-bit value is 257 times `fill`.
            out.fill(fill);
            if P::count_of_components() == 4 {
                let alpha = P::size() / 4;
                out.chunks_exact_mut(P::size()).for_each(|pixel| pixel[3 * alpha..].fill(u8::MAX));
            }
        }
        let mut target = TypedImage::<P>::from_buffer(width, height, out).map_err(|e| bug(&e))?;
        let Window { left: across, top: down, width, height } = window;
        let mut target =
            TypedCroppedImageMut::from_ref(&mut target, across, down, width, height).map_err(|e| bug(&e))?;
        let scale = f64::from(pixels.scale);
        let (x, y) = (region.x / scale - f64::from(pixels.left), region.y / scale - f64::from(pixels.top));
        let (w, h) = (region.width / scale, region.height / scale);
        // Pixels that the resize may read: all pixels if neighbours may affect the region, otherwise those that overlap
        // the region.
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
        self.resizer.resize_typed(&seen, &mut target, &options).map_err(|e| bug(&e))
    }
}
