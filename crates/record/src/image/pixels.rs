// SPDX-License-Identifier: Apache-2.0
//! Decoded pixels, and their conversion between numbers of channels and bits.

use penstock_types::{Error, Result};

/// Pixel format of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    /// Channels per pixel: 1 (grey), 3 (RGB) or 4 (RGBA).
    pub(super) channels: usize,
    /// True for 16 bits per value, false for 8.
    pub(super) is_wide: bool,
}

/// Decoded pixels of an image or of a region of it, possibly at a reduced scale.
#[derive(Debug, Default)]
pub(super) struct Pixels {
    /// Pixels with 8 bits per value, row after row.
    pub(super) bytes: Vec<u8>,
    /// Pixels with 16 bits per value. If the format is wide, these pixels replace `bytes`.
    pub(super) wide: Vec<u16>,
    /// Values as stored, before they are converted to the format.
    pub(super) raw: Vec<u8>,
    pub(super) width: u32,
    pub(super) height: u32,
    /// Horizontal position of these pixels in the scaled image; `top` is the vertical position.
    pub(super) left: u32,
    pub(super) top: u32,
    /// Reduction of the scale: one pixel here covers this many image pixels along each side.
    pub(super) scale: u32,
}

impl Pixels {
    /// Sets the size of an image that was decoded whole.
    pub(super) fn set_whole(&mut self, width: u32, height: u32) {
        (self.width, self.height, self.left, self.top, self.scale) = (width, height, 0, 0, 1);
    }

    /// Returns the buffer for `count` pixels of `stored` channels with 8 bits each: `bytes` if these pixels already
    /// have the given format, otherwise `raw`. After the buffer is filled, call [`Pixels::convert`].
    pub(super) fn room(&mut self, stored: usize, count: usize, format: Format, place: &str) -> Result<&mut [u8]> {
        let room = match stored == format.channels && !format.is_wide {
            true => &mut self.bytes,
            false => &mut self.raw,
        };
        reserve(room, count * stored, place)?;
        Ok(&mut room[..count * stored])
    }

    /// Converts the pixels in the buffer of [`Pixels::room`]. An 8-bit value becomes a 16-bit value by multiplication
    /// by 257.
    pub(super) fn convert(&mut self, stored: usize, count: usize, format: Format, place: &str) -> Result<()> {
        let Self { bytes, wide, raw, .. } = self;
        if format.is_wide {
            let values: Vec<u16> = raw[..count * stored].iter().map(|&value| u16::from(value) * 257).collect();
            return convert(&values, stored, count, wide, format.channels, place);
        }
        match stored == format.channels {
            true => Ok(()),
            false => convert(&raw[..count * stored], stored, count, bytes, format.channels, place),
        }
    }

    /// Converts 16-bit values to the format.
    pub(super) fn convert_wide(&mut self, values: &[u16], stored: usize, format: Format, place: &str) -> Result<()> {
        let count = values.len() / stored;
        if format.is_wide {
            return convert(values, stored, count, &mut self.wide, format.channels, place);
        }
        let room = self.room(stored, count, format, place)?;
        room.iter_mut().zip(values).for_each(|(to, value)| *to = (value >> 8) as u8);
        self.convert(stored, count, format, place)
    }
}

/// Value of one channel of a pixel.
trait Sample: Copy + Default {
    /// Value of an opaque alpha channel.
    const OPAQUE: Self;
    /// Grey value of a colour by ITU-R 601-2, with Pillow's rounding.
    fn luma(rgb: [Self; 3]) -> Self;
}

fn luma([red, green, blue]: [u64; 3]) -> u64 {
    (red * 19_595 + green * 38_470 + blue * 7_471 + 0x8000) >> 16
}

impl Sample for u8 {
    const OPAQUE: Self = u8::MAX;
    fn luma(rgb: [Self; 3]) -> Self {
        luma(rgb.map(u64::from)) as u8
    }
}

impl Sample for u16 {
    const OPAQUE: Self = u16::MAX;
    fn luma(rgb: [Self; 3]) -> Self {
        luma(rgb.map(u64::from)) as u16
    }
}

/// Converts `count` pixels from `stored` channels (1 grey, 2 grey and alpha, 3 RGB, 4 RGBA) to `channels`. Drops alpha
/// if `channels` has none; adds opaque alpha if the image has none.
fn convert<T: Sample>(
    from: &[T],
    stored: usize,
    count: usize,
    to: &mut Vec<T>,
    channels: usize,
    place: &str,
) -> Result<()> {
    reserve(to, count * channels, place)?;
    let to = &mut to[..count * channels];
    match (stored, channels) {
        (stored, channels) if stored == channels => to.copy_from_slice(&from[..count * stored]),
        (1, 3) => each::<T, 1, 3>(from, to),
        (1, 4) => each::<T, 1, 4>(from, to),
        (2, 1) => each::<T, 2, 1>(from, to),
        (2, 3) => each::<T, 2, 3>(from, to),
        (2, 4) => each::<T, 2, 4>(from, to),
        (3, 1) => each::<T, 3, 1>(from, to),
        (3, 4) => each::<T, 3, 4>(from, to),
        (4, 1) => each::<T, 4, 1>(from, to),
        (4, 3) => each::<T, 4, 3>(from, to),
        _ => return Err(Error::bug(format!("{place} has {stored} channels (expected {channels})"))),
    }
    Ok(())
}

fn each<T: Sample, const STORED: usize, const CHANNELS: usize>(from: &[T], to: &mut [T]) {
    for (to, from) in to.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(from.as_chunks::<STORED>().0) {
        let [rgb @ .., alpha] = match *from.as_slice() {
            [grey] => [grey, grey, grey, T::OPAQUE],
            [grey, alpha] => [grey, grey, grey, alpha],
            [red, green, blue] => [red, green, blue, T::OPAQUE],
            [red, green, blue, alpha] => [red, green, blue, alpha],
            _ => [T::default(); 4],
        };
        match to.as_mut_slice() {
            [grey] => *grey = T::luma(rgb),
            [colours @ .., last] if CHANNELS == 4 => {
                colours.copy_from_slice(&rgb);
                *last = alpha;
            }
            colours => colours.copy_from_slice(&rgb),
        }
    }
}

/// Grows `room` to at least `len` values. Returns an error, instead of aborting, if memory runs out.
pub(super) fn reserve<T: Copy + Default>(room: &mut Vec<T>, len: usize, place: &str) -> Result<()> {
    if let Some(more) = len.checked_sub(room.len()) {
        room.try_reserve(more).map_err(|_| Error::BudgetExceeded {
            what: format!("decoding {place}"),
            need: (len * size_of::<T>()) as u64,
            budget: (room.capacity() * size_of::<T>()) as u64,
        })?;
        room.resize(len, T::default());
    }
    Ok(())
}
