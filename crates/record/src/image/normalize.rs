// SPDX-License-Identifier: Apache-2.0
//! Last step for an image: orients, flips and normalises the pixels, and writes them to the batch slot.

use penstock_types::DType;

use super::exif::Turn;
use super::{ImageSpec, Layout};

/// Writes `pixels` to `out`. The pixels have the size of the sample, but are not yet oriented.
pub(super) fn write<T: Value, const N: usize>(
    pixels: &[[T; N]],
    spec: &ImageSpec,
    turn: Turn,
    mirrored: bool,
    out: &mut [u8],
) {
    let (width, height) = (spec.width as usize, spec.height as usize);
    let (stored_width, stored_height) = if turn.swapped { (height, width) } else { (width, height) };
    // The displayed pixel (x, y) has the index origin + x * right + y * down.
    let step_x = if turn.x_backwards { -1 } else { 1 };
    let step_y = if turn.y_backwards { -(stored_width as isize) } else { stored_width as isize };
    let mut origin = if turn.x_backwards { stored_width as isize - 1 } else { 0 };
    if turn.y_backwards {
        origin += (stored_height as isize - 1) * stored_width as isize;
    }
    let (mut right, down) = if turn.swapped { (step_y, step_x) } else { (step_x, step_y) };
    if mirrored {
        origin += (width as isize - 1) * right;
        right = -right;
    }
    let row = |y: usize| Row { pixels, start: origin + y as isize * down, step: right, width };
    match spec.dtype {
        DType::F32 => {
            let of = |values: &[f32; 3], channel: usize, alpha: f32| values.get(channel).copied().unwrap_or(alpha);
            // Compute (value / 255 - mean) / std as one multiplication and one addition. Alpha is only divided.
            let scale: [f32; N] = std::array::from_fn(|channel| 1.0 / (255.0 * of(&spec.std, channel, 1.0)));
            let shift: [f32; N] =
                std::array::from_fn(|channel| -of(&spec.mean, channel, 0.0) / of(&spec.std, channel, 1.0));
            let value = |value: T, channel: usize| (value.float() * scale[channel] + shift[channel]).to_le_bytes();
            emit(&row, height, spec.layout, out, value);
        }
        DType::U16 => emit(&row, height, spec.layout, out, |value: T, _| value.wide().to_le_bytes()),
        _ => emit(&row, height, spec.layout, out, |value: T, _| [value.narrow()]),
    }
}

/// Value of a channel. A pixel has 16 bits per value if and only if the sample is uint16.
pub(super) trait Value: Copy {
    fn float(self) -> f32;
    fn narrow(self) -> u8;
    fn wide(self) -> u16;
}

impl Value for u8 {
    fn float(self) -> f32 {
        f32::from(self)
    }
    fn narrow(self) -> u8 {
        self
    }
    fn wide(self) -> u16 {
        u16::from(self) * 257
    }
}

impl Value for u16 {
    fn float(self) -> f32 {
        f32::from(self) / 257.0
    }
    fn narrow(self) -> u8 {
        (self >> 8) as u8
    }
    fn wide(self) -> u16 {
        self
    }
}

/// Writes every row in the sample's layout; `value` returns the bytes of one element.
fn emit<'a, T: Value + 'a, const N: usize, const SIZE: usize>(
    row: &impl Fn(usize) -> Row<'a, T, N>,
    height: usize,
    layout: Layout,
    out: &mut [u8],
    value: impl Fn(T, usize) -> [u8; SIZE],
) {
    let out = out.as_chunks_mut::<SIZE>().0;
    let width = row(0).width;
    match layout {
        Layout::Hwc => {
            for (y, slots) in out.chunks_exact_mut(width * N).enumerate() {
                row(y).each(slots.as_chunks_mut::<N>().0, |pixel| {
                    std::array::from_fn(|channel| value(pixel[channel], channel))
                });
            }
        }
        Layout::Chw => {
            for (channel, plane) in out.chunks_exact_mut(width * height).enumerate() {
                for (y, slots) in plane.chunks_exact_mut(width).enumerate() {
                    row(y).each(slots, |pixel| value(pixel[channel], channel));
                }
            }
        }
    }
}

/// One row of the sample: the index of its first pixel in the stored pixels, and the step to the next pixel.
struct Row<'a, T, const N: usize> {
    pixels: &'a [[T; N]],
    start: isize,
    step: isize,
    width: usize,
}

impl<T: Copy, const N: usize> Row<'_, T, N> {
    fn each<O>(&self, slots: &mut [O], value: impl Fn([T; N]) -> O) {
        let Self { pixels, start, step, width } = *self;
        // Separate cases, because compilers vectorise only loops over adjacent elements without bounds checks.
        match step {
            1 => {
                let run = &pixels[start as usize..][..width];
                slots.iter_mut().zip(run).for_each(|(slot, &pixel)| *slot = value(pixel));
            }
            -1 => {
                let run = &pixels[(start + 1) as usize - width..=start as usize];
                slots.iter_mut().zip(run.iter().rev()).for_each(|(slot, &pixel)| *slot = value(pixel));
            }
            step => {
                for (x, slot) in slots.iter_mut().enumerate() {
                    *slot = value(pixels[(start + x as isize * step) as usize]);
                }
            }
        }
    }
}
