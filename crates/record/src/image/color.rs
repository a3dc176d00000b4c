// SPDX-License-Identifier: Apache-2.0
//! Operations on the RGB values of a sample. Results equal those of torchvision's functions on uint8 tensors.

use super::augment::{Op, OpKind};

/// Lookup table of one channel.
type Table = [u8; 256];

/// Buffers of [`apply`].
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<[u8; 3]>);

/// Applies an operation to pixels of this width and height.
pub(super) fn apply(op: &Op, pixels: &mut [[u8; 3]], size: (u32, u32), scratch: &mut Scratch) {
    // torchvision subtracts in float64 and multiplies in float32.
    let (value, rest) = (op.value as f32, (1.0 - op.value) as f32);
    match op.kind {
        OpKind::Brightness => map(pixels, &table(|v| truncated(v * value))),
        OpKind::Contrast => {
            let total: u64 = pixels.iter().map(|&pixel| grey(pixel) as u64).sum();
            let mean = (total as f64 / pixels.len().max(1) as f64) as f32 * rest;
            map(pixels, &table(|v| truncated(v * value + mean)));
        }
        OpKind::Saturation => {
            for pixel in pixels {
                let grey = grey(*pixel).floor() * rest;
                *pixel = pixel.map(|v| truncated(f32::from(v) * value + grey));
            }
        }
        OpKind::Grayscale => pixels.iter_mut().for_each(|pixel| *pixel = [grey(*pixel) as u8; 3]),
        OpKind::Hue => pixels.iter_mut().for_each(|pixel| *pixel = hue(*pixel, value)),
        OpKind::Sharpness => sharpness(pixels, size, rest, scratch),
        OpKind::Posterize => {
            let mask = !(0xffu16 >> (op.value as u32).min(8)) as u8;
            map(pixels, &table(|v| v as u8 & mask));
        }
        OpKind::Solarize => map(pixels, &table(|v| if v >= value { 255 - v as u8 } else { v as u8 })),
        OpKind::Invert => map(pixels, &table(|v| 255 - v as u8)),
        OpKind::Autocontrast => {
            let tables = std::array::from_fn(|channel| {
                let least = pixels.iter().map(|pixel| pixel[channel]).min().unwrap_or(0);
                let most = pixels.iter().map(|pixel| pixel[channel]).max().unwrap_or(0);
                if least == most {
                    return table(|v| v as u8);
                }
                let scale = f32::from(most - least) * (1.0 / 255.0);
                table(|v| truncated((v - f32::from(least)) / scale))
            });
            map_each(pixels, &tables);
        }
        OpKind::Equalize => {
            let mut counts = [[0u32; 256]; 3];
            for pixel in pixels.iter() {
                (0..3).for_each(|channel| counts[channel][usize::from(pixel[channel])] += 1);
            }
            map_each(pixels, &counts.map(|counts| equalized(&counts)));
        }
        OpKind::Rotate | OpKind::ShearX | OpKind::ShearY | OpKind::TranslateX | OpKind::TranslateY => {
            let Some(warp) = op.warp(size) else { return };
            scratch.0.clear();
            scratch.0.extend_from_slice(pixels);
            warp.apply(&scratch.0, pixels, size, [op.fill; 3]);
        }
    }
}

fn table(value: impl Fn(f32) -> u8) -> Table {
    std::array::from_fn(|v| value(v as f32))
}

fn map(pixels: &mut [[u8; 3]], table: &Table) {
    pixels.as_flattened_mut().iter_mut().for_each(|v| *v = table[usize::from(*v)]);
}

fn map_each(pixels: &mut [[u8; 3]], tables: &[Table; 3]) {
    for pixel in pixels {
        *pixel = std::array::from_fn(|channel| tables[channel][usize::from(pixel[channel])]);
    }
}

fn truncated(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as u8
}

/// Grey value by ITU-R 601-2, with torchvision's coefficients.
fn grey([red, green, blue]: [u8; 3]) -> f32 {
    f32::from(red) * 0.2989 + f32::from(green) * 0.587 + f32::from(blue) * 0.114
}

/// Table that equalises a histogram, by Pillow's rule, as in torchvision.
fn equalized(counts: &[u32; 256]) -> Table {
    let total: u32 = counts.iter().sum();
    let last = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
    let step = (total - counts[last]) / 255;
    if step == 0 {
        return std::array::from_fn(|v| v as u8);
    }
    let mut sum = step / 2;
    std::array::from_fn(|v| {
        let value = (sum / step).min(255) as u8;
        sum += counts[v];
        value
    })
}

/// Shifts the hue by a fraction of the colour circle.
fn hue(pixel: [u8; 3], shift: f32) -> [u8; 3] {
    let [red, green, blue] = pixel.map(|v| f32::from(v) / 255.0);
    let (most, least) = (red.max(green).max(blue), red.min(green).min(blue));
    let range = most - least;
    let equal = range == 0.0;
    let saturation = range / if equal { 1.0 } else { most };
    let divisor = if equal { 1.0 } else { range };
    let [r, g, b] = [red, green, blue].map(|v| (most - v) / divisor);
    let sector = if most == red {
        b - g
    } else if most == green {
        r + 2.0 - b
    } else {
        g + 4.0 - r
    };
    let hue = (sector * (1.0 / 6.0) + 1.0) % 1.0;
    let six = (hue + shift).rem_euclid(1.0) * 6.0;
    let whole = six.floor();
    let fraction = six - whole;
    let p = ((1.0 - saturation) * most).clamp(0.0, 1.0);
    let q = ((1.0 - saturation * fraction) * most).clamp(0.0, 1.0);
    let t = ((saturation * fraction + (1.0 - saturation)) * most).clamp(0.0, 1.0);
    let rgb = match whole as i32 % 6 {
        0 => [most, t, p],
        1 => [q, most, p],
        2 => [p, most, t],
        3 => [p, q, most],
        4 => [t, p, most],
        _ => [most, p, q],
    };
    rgb.map(|v| (v * 255.999) as u8)
}

/// Blends every value with the mean of the 3 x 3 pixels around it, in which the centre counts 5 times. `ratio` is the
/// weight of the mean. Pixels at the border do not change.
fn sharpness(pixels: &mut [[u8; 3]], (width, height): (u32, u32), ratio: f32, scratch: &mut Scratch) {
    let (width, height) = (width as usize, height as usize);
    if width <= 2 || height <= 2 {
        return;
    }
    scratch.0.clear();
    scratch.0.extend_from_slice(pixels);
    let from = scratch.0.as_flattened();
    let to = pixels.as_flattened_mut();
    let line = width * 3;
    for y in 1..height - 1 {
        let [above, here, below] = [y - 1, y, y + 1].map(|y| &from[y * line..][..line]);
        let out = &mut to[y * line..][..line];
        for at in 3..line - 3 {
            let sum = |row: &[u8]| u32::from(row[at - 3]) + u32::from(row[at]) + u32::from(row[at + 3]);
            let value = here[at];
            let total = sum(above) + sum(here) + sum(below) + 4 * u32::from(value);
            let smooth = (total as f32 / 13.0).round_ties_even();
            let value = f32::from(value);
            out[at] = truncated(value + (smooth - value) * ratio);
        }
    }
}
