// SPDX-License-Identifier: Apache-2.0
//! Augmentation: chooses the operations of a sample, as torchvision's `ColorJitter`, `RandAugment` and
//! `TrivialAugmentWide` do. The random numbers are derived from a key.

use penstock_types::{Error, Result};

use super::crop::Draws;

/// An operation on the pixels of a sample. Each operation has a value, with the same meaning as in torchvision's
/// function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpKind {
    /// Multiply by a factor.
    Brightness,
    /// Blend with the mean grey value; a factor of 1 changes nothing.
    Contrast,
    /// Blend with the grey image.
    Saturation,
    /// Shift the hue, by -0.5 to 0.5 of the colour circle.
    Hue,
    /// Blend with a smoothed image.
    Sharpness,
    /// Keep this number of bits.
    Posterize,
    /// Invert values of at least this threshold.
    Solarize,
    /// Stretch every channel to 0..255.
    Autocontrast,
    /// Equalise the histogram of every channel.
    Equalize,
    /// Invert all values.
    Invert,
    /// Replace colours by their grey value.
    Grayscale,
    /// Rotate counter-clockwise by an angle in degrees.
    Rotate,
    /// Shear along x: shift in pixels per row.
    ShearX,
    /// Shear along y: shift in pixels per column.
    ShearY,
    /// Shift to the right, as a fraction of the width.
    TranslateX,
    /// Shift downwards, as a fraction of the height.
    TranslateY,
}

/// Operations by the names that Python uses, with the range of their values.
const OPS: [(&str, OpKind, f64, f64); 16] = [
    ("brightness", OpKind::Brightness, 0.0, 1e6),
    ("contrast", OpKind::Contrast, 0.0, 1e6),
    ("saturation", OpKind::Saturation, 0.0, 1e6),
    ("hue", OpKind::Hue, -0.5, 0.5),
    ("sharpness", OpKind::Sharpness, 0.0, 1e6),
    ("posterize", OpKind::Posterize, 0.0, 8.0),
    ("solarize", OpKind::Solarize, 0.0, 256.0),
    ("autocontrast", OpKind::Autocontrast, 0.0, 0.0),
    ("equalize", OpKind::Equalize, 0.0, 0.0),
    ("invert", OpKind::Invert, 0.0, 0.0),
    ("grayscale", OpKind::Grayscale, 0.0, 0.0),
    ("rotate", OpKind::Rotate, -360.0, 360.0),
    ("shear_x", OpKind::ShearX, -10.0, 10.0),
    ("shear_y", OpKind::ShearY, -10.0, 10.0),
    ("translate_x", OpKind::TranslateX, -1.0, 1.0),
    ("translate_y", OpKind::TranslateY, -1.0, 1.0),
];

impl OpKind {
    /// Operation of this name.
    pub fn named(name: &str) -> Result<Self> {
        let op = OPS.iter().find(|op| op.0 == name).map(|op| op.1);
        op.ok_or_else(|| {
            let names = OPS.map(|op| op.0).join(", ");
            Error::config("augment", format!("operation `{name}` is not one of {names}"))
        })
    }

    /// Name of the operation.
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    fn entry(self) -> (&'static str, Self, f64, f64) {
        OPS.into_iter().find(|op| op.1 == self).unwrap_or(OPS[0])
    }
}

/// A step of augmentation.
#[derive(Debug, Clone, PartialEq)]
pub enum Augment {
    /// torchvision's `ColorJitter`: brightness, contrast and saturation by factors, and hue by a shift, each drawn from
    /// a range, in random order.
    Jitter {
        /// Ranges of brightness, contrast, saturation and hue.
        ranges: [(f64, f64); 4],
        /// Probability that the step is applied.
        p: f64,
    },
    /// torchvision's `RandAugment`.
    Rand {
        /// Number of operations for each sample.
        count: u32,
        /// Strength of the operations; less than `bins`.
        magnitude: u32,
        /// Number of strengths.
        bins: u32,
        /// Value of the pixels that come from outside the image.
        fill: u8,
    },
    /// torchvision's `TrivialAugmentWide`.
    Trivial {
        /// Number of strengths.
        bins: u32,
        /// Value of the pixels that come from outside the image.
        fill: u8,
    },
    /// One operation, with a value drawn from a range.
    One {
        /// The operation.
        op: OpKind,
        /// Smallest and largest value.
        range: (f64, f64),
        /// Probability that the step is applied.
        p: f64,
        /// Value of the pixels that come from outside the image.
        fill: u8,
    },
}

/// An operation that a sample gets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Op {
    pub(super) kind: OpKind,
    pub(super) value: f64,
    pub(super) fill: u8,
}

/// Operations of RandAugment and TrivialAugmentWide. Each has its largest strength in RandAugment, then in
/// TrivialAugmentWide. `None` changes nothing. For brightness to sharpness, the strength is a change of the factor 1.
/// This change and the strengths of geometric operations can be negative.
const SPACE: [(Option<OpKind>, f64, f64); 14] = [
    (None, 0.0, 0.0),
    (Some(OpKind::ShearX), 0.3, 0.99),
    (Some(OpKind::ShearY), 0.3, 0.99),
    (Some(OpKind::TranslateX), 150.0 / 331.0, f64::NAN),
    (Some(OpKind::TranslateY), 150.0 / 331.0, f64::NAN),
    (Some(OpKind::Rotate), 30.0, 135.0),
    (Some(OpKind::Brightness), 0.9, 0.99),
    (Some(OpKind::Saturation), 0.9, 0.99),
    (Some(OpKind::Contrast), 0.9, 0.99),
    (Some(OpKind::Sharpness), 0.9, 0.99),
    (Some(OpKind::Posterize), 4.0, 6.0),
    (Some(OpKind::Solarize), 255.0, 255.0),
    (Some(OpKind::Autocontrast), 0.0, 0.0),
    (Some(OpKind::Equalize), 0.0, 0.0),
];

/// Largest shift of TrivialAugmentWide, in pixels.
const TRIVIAL_SHIFT: f64 = 32.0;

/// Separates the random numbers of augmentation from those of the crop, so that a crop does not depend on augmentation.
const STREAM: u64 = 0x6175_676d_656e_7421;

impl Augment {
    /// Checks the settings; returns an error if they are invalid.
    pub fn check(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::config("augment", problem));
        let ranges: Vec<(OpKind, (f64, f64))> = match self {
            Self::Jitter { ranges, .. } => JITTERED.into_iter().zip(*ranges).collect(),
            Self::One { op, range, .. } => vec![(*op, *range)],
            Self::Rand { magnitude, bins, .. } if *bins < 2 || magnitude >= bins => {
                return wrong(format!("magnitude must be below {bins} (got {magnitude})"));
            }
            Self::Trivial { bins: 0 | 1, .. } => return wrong("needs at least 2 bins".to_owned()),
            _ => Vec::new(),
        };
        for (op, (low, high)) in ranges {
            let (name, _, least, most) = op.entry();
            if !(least <= low && low <= high && high <= most) {
                return wrong(format!("{name} must be a range inside {least}..{most} (got {low}..{high})"));
            }
        }
        match self {
            Self::Jitter { p, .. } | Self::One { p, .. } if !(0.0..=1.0).contains(p) => {
                wrong(format!("p must be a probability from 0 to 1 (got {p})"))
            }
            _ => Ok(()),
        }
    }

    /// Chooses the operations of a sample.
    pub(super) fn choose(steps: &[Self], key: u64, (width, height): (u32, u32)) -> Vec<Op> {
        let mut draws = Draws::new(key ^ STREAM);
        let mut ops = Vec::new();
        for step in steps {
            match *step {
                Self::Jitter { ranges, p } => {
                    let mut order = [0, 1, 2, 3];
                    for at in (1..4).rev() {
                        order.swap(at, draws.below(at as u32 + 1) as usize);
                    }
                    let values = ranges.map(|(low, high)| draws.between(low, high));
                    if draws.unit() < p {
                        let op = |at: usize| Op { kind: JITTERED[at], value: values[at], fill: 0 };
                        ops.extend(order.map(op).into_iter().filter(|op| !op.changes_nothing()));
                    }
                }
                Self::One { op, range: (low, high), p, fill } => {
                    let value = draws.between(low, high);
                    if draws.unit() < p {
                        ops.push(Op { kind: op, value, fill });
                    }
                }
                Self::Rand { count, magnitude, bins, fill } => {
                    for _ in 0..count {
                        let (kind, most, _) = SPACE[draws.below(SPACE.len() as u32) as usize];
                        let is_negative = draws.unit() < 0.5;
                        let strength = f64::from(magnitude) / f64::from(bins - 1);
                        ops.extend(kind.map(|kind| Op::of_strength(kind, strength, most, is_negative, fill)));
                    }
                }
                Self::Trivial { bins, fill } => {
                    let (kind, _, most) = SPACE[draws.below(SPACE.len() as u32) as usize];
                    let most = match kind {
                        Some(OpKind::TranslateX) => TRIVIAL_SHIFT / f64::from(width),
                        Some(OpKind::TranslateY) => TRIVIAL_SHIFT / f64::from(height),
                        _ => most,
                    };
                    let strength = f64::from(draws.below(bins)) / f64::from(bins - 1);
                    let is_negative = draws.unit() < 0.5;
                    ops.extend(kind.map(|kind| Op::of_strength(kind, strength, most, is_negative, fill)));
                }
            }
        }
        ops
    }
}

/// Operations of `ColorJitter`.
const JITTERED: [OpKind; 4] = [OpKind::Brightness, OpKind::Contrast, OpKind::Saturation, OpKind::Hue];

impl Op {
    fn of_strength(kind: OpKind, strength: f64, most: f64, is_negative: bool, fill: u8) -> Self {
        let signed = if is_negative { -strength * most } else { strength * most };
        let value = match kind {
            OpKind::Brightness | OpKind::Saturation | OpKind::Contrast | OpKind::Sharpness => 1.0 + signed,
            OpKind::Posterize => (8.0 - strength * most).round_ties_even(),
            OpKind::Solarize => most * (1.0 - strength),
            _ => signed,
        };
        Self { kind, value, fill }
    }

    fn changes_nothing(self) -> bool {
        self.value == if self.kind == OpKind::Hue { 0.0 } else { 1.0 }
    }

    /// For a geometric operation, the matrix that converts an output coordinate to an input coordinate. Both
    /// coordinates are relative to the centre of a sample of this size.
    pub(super) fn warp(self, (width, height): (u32, u32)) -> Option<Warp> {
        let (half_width, half_height) = (f64::from(width) / 2.0, f64::from(height) / 2.0);
        let matrix = match self.kind {
            OpKind::Rotate => {
                let (sin, cos) = (-self.value.to_radians()).sin_cos();
                [cos, sin, 0.0, -sin, cos, 0.0]
            }
            // torchvision shears about the upper left corner.
            OpKind::ShearX => [1.0, self.value, self.value * half_height, 0.0, 1.0, 0.0],
            OpKind::ShearY => [1.0, 0.0, 0.0, self.value, 1.0, self.value * half_width],
            OpKind::TranslateX => [1.0, 0.0, -(self.value * f64::from(width)).trunc(), 0.0, 1.0, 0.0],
            OpKind::TranslateY => [1.0, 0.0, 0.0, 0.0, 1.0, -(self.value * f64::from(height)).trunc()],
            _ => return None,
        };
        Some(Warp { matrix, fill: self.fill })
    }
}

/// An affine operation on a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Warp {
    /// Converts an output coordinate to an input coordinate; see [`Op::warp`].
    matrix: [f64; 6],
    pub(super) fill: u8,
}

impl Warp {
    /// Converts a point of the input to the output, in coordinates of a sample of this size.
    pub(super) fn point(&self, (x, y): (f64, f64), (width, height): (u32, u32)) -> (f64, f64) {
        let (half_width, half_height) = (f64::from(width) / 2.0, f64::from(height) / 2.0);
        let [a, b, c, d, e, f] = self.matrix;
        let (x, y) = (x - half_width - c, y - half_height - f);
        let determinant = a * e - b * d;
        ((e * x - b * y) / determinant + half_width, (a * y - d * x) / determinant + half_height)
    }

    /// Moves the elements of a sample by nearest neighbour, as torchvision does.
    pub(super) fn apply<T: Copy>(&self, from: &[T], to: &mut [T], (width, height): (u32, u32), fill: T) {
        let [a, b, c, d, e, f] = self.matrix;
        let (middle_x, middle_y) = ((f64::from(width) - 1.0) / 2.0, (f64::from(height) - 1.0) / 2.0);
        let index = |at: f64, side: u32| {
            let at = at.round_ties_even();
            (at >= 0.0 && at < f64::from(side)).then_some(at as usize)
        };
        for (row, line) in to.chunks_exact_mut(width as usize).enumerate() {
            let y = row as f64 - middle_y;
            for (column, slot) in line.iter_mut().enumerate() {
                let x = column as f64 - middle_x;
                let (from_x, from_y) = (a * x + b * y + c + middle_x, d * x + e * y + f + middle_y);
                *slot = match (index(from_x, width), index(from_y, height)) {
                    (Some(column), Some(row)) => from[row * width as usize + column],
                    _ => fill,
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warps_move_points_as_they_move_pixels() {
        let size = (40, 30);
        for kind in [OpKind::Rotate, OpKind::ShearX, OpKind::ShearY, OpKind::TranslateX, OpKind::TranslateY] {
            let value = if kind == OpKind::Rotate { 20.0 } else { 0.2 };
            let warp = Op { kind, value, fill: 0 }.warp(size).unwrap();
            let mut from = vec![0u8; 40 * 30];
            // Nearest-neighbour sampling may leave out a single pixel, so the test moves a block of nine pixels.
            for row in 12..15 {
                from[row * 40 + 17..row * 40 + 20].fill(1);
            }
            let mut to = vec![9; from.len()];
            warp.apply(&from, &mut to, size, 7);
            let found: Vec<usize> = (0..to.len()).filter(|&at| to[at] == 1).collect();
            let mean =
                |of: fn(usize) -> usize| found.iter().map(|&at| of(at) as f64 + 0.5).sum::<f64>() / found.len() as f64;
            let (x, y) = warp.point((18.5, 13.5), size);
            assert!((x - mean(|at| at % 40)).abs() <= 1.0 && (y - mean(|at| at / 40)).abs() <= 1.0, "{kind:?}");
            assert!(to.contains(&7));
        }
    }

    #[test]
    fn every_step_is_a_function_of_the_key_and_reaches_every_operation() {
        let steps = [
            Augment::Rand { count: 2, magnitude: 9, bins: 31, fill: 0 },
            Augment::Trivial { bins: 31, fill: 0 },
            Augment::Jitter { ranges: [(0.5, 1.5), (0.5, 1.5), (1.0, 1.0), (-0.1, 0.1)], p: 0.5 },
        ];
        let mut seen = [0; OPS.len()];
        for key in 0..500 {
            let ops = Augment::choose(&steps, key, (32, 32));
            assert_eq!(ops, Augment::choose(&steps, key, (32, 32)));
            for op in ops {
                let (_, _, least, most) = op.kind.entry();
                assert!((least..=most).contains(&op.value) || most == 0.0, "{op:?}");
                seen[OPS.iter().position(|entry| entry.1 == op.kind).unwrap()] += 1;
            }
        }
        assert_eq!(seen.iter().filter(|&&count| count > 0).count(), 14, "all but invert and grayscale");
    }
}
