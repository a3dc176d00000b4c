// SPDX-License-Identifier: Apache-2.0
//! Last step for an image: orients, flips and normalises the pixels, and writes them to the batch slot.

use penstock_types::DType;

use super::exif::Turn;
use super::{ImageSpec, Layout};

/// Writes `rgb` to `out`. `rgb` has the size of the sample, but is not yet oriented.
pub(super) fn write(rgb: &[u8], spec: &ImageSpec, turn: Turn, mirrored: bool, out: &mut [u8]) {
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
    let pixels = rgb.as_chunks::<3>().0;
    let row = |y: usize| Row { pixels, start: origin + y as isize * down, step: right, width };
    match (spec.dtype, spec.layout) {
        (DType::F32, layout) => {
            // Compute (value / 255 - mean) / std as one multiplication and one addition.
            let scale: [f32; 3] = std::array::from_fn(|channel| 1.0 / (255.0 * spec.std[channel]));
            let shift: [f32; 3] = std::array::from_fn(|channel| -spec.mean[channel] / spec.std[channel]);
            let out = out.as_chunks_mut::<4>().0;
            let value = |value: u8, channel: usize| (f32::from(value) * scale[channel] + shift[channel]).to_le_bytes();
            match layout {
                Layout::Hwc => rows(out, width * 3, &row, |row, slots: &mut [[u8; 4]]| {
                    row.each(slots.as_chunks_mut::<3>().0, |pixel| {
                        std::array::from_fn(|channel| value(pixel[channel], channel))
                    });
                }),
                Layout::Chw => planes(out, width * height, width, &row, value),
            }
        }
        (_, Layout::Hwc) => {
            rows(out, width * 3, &row, |row, slots: &mut [u8]| row.each(slots.as_chunks_mut::<3>().0, |pixel| pixel))
        }
        (_, Layout::Chw) => planes(out, width * height, width, &row, |value, _| value),
    }
}

fn rows<'a, T>(out: &mut [T], len: usize, row: &impl Fn(usize) -> Row<'a>, mut write: impl FnMut(Row<'a>, &mut [T])) {
    for (y, slots) in out.chunks_exact_mut(len).enumerate() {
        write(row(y), slots);
    }
}

fn planes<'a, T>(
    out: &mut [T],
    plane: usize,
    width: usize,
    row: &impl Fn(usize) -> Row<'a>,
    value: impl Fn(u8, usize) -> T,
) {
    for (channel, plane) in out.chunks_exact_mut(plane).enumerate() {
        rows(plane, width, row, |row, slots| row.each(slots, |pixel| value(pixel[channel], channel)));
    }
}

/// One row of the sample, as start and step in the stored pixels.
struct Row<'a> {
    pixels: &'a [[u8; 3]],
    start: isize,
    step: isize,
    width: usize,
}

impl Row<'_> {
    fn each<T>(&self, slots: &mut [T], value: impl Fn([u8; 3]) -> T) {
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
