// SPDX-License-Identifier: Apache-2.0
//! Chooses the crop of an image by torchvision's rules, with random numbers derived from a key.

use super::{Crop, ImageSpec};

/// Random number generator (SplitMix64), seeded with a key.
#[derive(Debug, Clone)]
pub(super) struct Draws(u64);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Draws {
    pub(super) fn new(key: u64) -> Self {
        Self(key)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Next random number in [0, 1).
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.unit()
    }

    /// Next random number in 0..n.
    pub(super) fn below(&mut self, n: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u32
    }
}

/// A region of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Region {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
    /// True if the region is cut out before it is resized, so that pixels outside it do not affect the result.
    pub(super) sharp_edges: bool,
    /// True if the image must be decoded at full size, rather than at a smaller scale near the sample's size.
    pub(super) full_size: bool,
}

/// Part of a sample, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) left: u32,
    pub(super) top: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Window {
    /// The part of the sample that the region fills. `shown` is the width and height of the displayed image.
    pub(super) fn choose(spec: &ImageSpec, shown: (u32, u32)) -> Self {
        let whole = Self { left: 0, top: 0, width: spec.width, height: spec.height };
        if !matches!(spec.crop, Crop::Pad { .. }) {
            return whole;
        }
        let scale = (f64::from(spec.width) / f64::from(shown.0)).min(f64::from(spec.height) / f64::from(shown.1));
        let fitted = |side: u32, most: u32| ((f64::from(side) * scale).round_ties_even() as u32).clamp(1, most);
        let (width, height) = (fitted(shown.0, spec.width), fitted(shown.1, spec.height));
        Self { left: (spec.width - width) / 2, top: (spec.height - height) / 2, width, height }
    }

    /// Width and height.
    pub(super) fn size(self) -> (u32, u32) {
        (self.width, self.height)
    }
}

/// Number of random attempts before RandomResizedCrop falls back to a central crop.
const TRIES: usize = 10;

impl Region {
    pub(super) fn choose(spec: &ImageSpec, width: u32, height: u32, draws: &mut Draws) -> Self {
        let region = match spec.crop {
            Crop::None | Crop::Pad { .. } => Self::whole(width, height),
            Crop::Center { resize } => Self::center(spec, width, height, resize),
            Crop::Random { area, ratio } => Self::random(width, height, area, ratio, draws),
        };
        Self { full_size: spec.exact, ..region }
    }

    /// The whole image.
    pub(super) fn whole(width: u32, height: u32) -> Self {
        Self::part(0, 0, width, height)
    }

    fn part(x: u32, y: u32, width: u32, height: u32) -> Self {
        let [x, y, width, height] = [x, y, width, height].map(f64::from);
        Self { x, y, width, height, sharp_edges: true, full_size: false }
    }

    /// CenterCrop((spec.height, spec.width)) after Resize(resize), converted to coordinates of the image before it is
    /// resized.
    fn center(spec: &ImageSpec, width: u32, height: u32, resize: u32) -> Self {
        let (short, long) = (width.min(height), width.max(height));
        let long = (u64::from(resize) * u64::from(long) / u64::from(short)) as f64;
        let (resized_width, resized_height) =
            if width <= height { (f64::from(resize), long) } else { (long, f64::from(resize)) };
        let left = ((resized_width - f64::from(spec.width)) / 2.0).round_ties_even();
        let top = ((resized_height - f64::from(spec.height)) / 2.0).round_ties_even();
        let (across, down) = (f64::from(width) / resized_width, f64::from(height) / resized_height);
        Self {
            x: left * across,
            y: top * down,
            width: f64::from(spec.width) * across,
            height: f64::from(spec.height) * down,
            sharp_edges: false,
            full_size: false,
        }
    }

    /// torchvision's `RandomResizedCrop.get_params`, line by line.
    fn random(width: u32, height: u32, area: (f64, f64), ratio: (f64, f64), draws: &mut Draws) -> Self {
        let all = f64::from(width) * f64::from(height);
        let log = (ratio.0.ln(), ratio.1.ln());
        for _ in 0..TRIES {
            let target = all * draws.between(area.0, area.1);
            let aspect = draws.between(log.0, log.1).exp();
            let w = (target * aspect).sqrt().round_ties_even();
            let h = (target / aspect).sqrt().round_ties_even();
            if 0.0 < w && w <= f64::from(width) && 0.0 < h && h <= f64::from(height) {
                let (w, h) = (w as u32, h as u32);
                let y = draws.below(height - h + 1);
                let x = draws.below(width - w + 1);
                return Self::part(x, y, w, h);
            }
        }
        let have = f64::from(width) / f64::from(height);
        let (w, h) = if have < ratio.0 {
            (width, (f64::from(width) / ratio.0).round_ties_even() as u32)
        } else if have > ratio.1 {
            ((f64::from(height) * ratio.1).round_ties_even() as u32, height)
        } else {
            (width, height)
        };
        let (w, h) = (w.clamp(1, width), h.clamp(1, height));
        Self::part((width - w) / 2, (height - h) / 2, w, h)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn random_crops_are_those_of_torchvision_s_rule() {
        // Each line is `key width height x y w h`, computed in Python by the same rule with the same random numbers.
        let golden = include_str!("../../tests/golden/random_crops.txt");
        let mut count = 0;
        for line in golden.lines() {
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().unwrap()).collect();
            let [key, width, height, x, y, w, h] = numbers[..] else { panic!("{line}") };
            let Crop::Random { area, ratio } = Crop::RANDOM else { unreachable!() };
            let mut draws = Draws::new(key);
            draws.unit();
            let region = Region::random(width as u32, height as u32, area, ratio, &mut draws);
            assert_eq!(region, Region::part(x as u32, y as u32, w as u32, h as u32), "{line}");
            count += 1;
        }
        assert!(count >= 200);
    }

    #[test]
    fn center_crop_is_where_resize_and_center_crop_put_it() {
        let spec = ImageSpec::new(224, 224);
        let region = Region::center(&spec, 500, 375, 256);
        // The image is resized to 341 x 256; the crop then begins at (round(58.5), 16).
        let across = 500.0 / 341.0;
        assert_eq!((region.x, region.width), (58.0 * across, 224.0 * across));
        assert_eq!((region.y, region.height), (16.0 * 375.0 / 256.0, 224.0 * 375.0 / 256.0));
    }

    proptest! {
        #[test]
        fn prop_regions_lie_inside(width in 1..70_000u32, height in 1..70_000u32, key: u64, which in 0..4usize) {
            let mut spec = ImageSpec::new(24, 16);
            spec.crop = [Crop::None, Crop::Center { resize: 32 }, Crop::RANDOM, Crop::Pad { fill: 0 }][which];
            let region = Region::choose(&spec, width, height, &mut Draws::new(key));
            let slack = 1e-6 * f64::from(width.max(height));
            prop_assert!(region.x >= 0.0 && region.x + region.width <= f64::from(width) + slack);
            prop_assert!(region.y >= 0.0 && region.y + region.height <= f64::from(height) + slack);
            prop_assert!(region.width > 0.0 && region.height > 0.0);
            let window = Window::choose(&spec, (width, height));
            prop_assert!(window.width > 0 && window.left + window.width <= spec.width);
            prop_assert!(window.height > 0 && window.top + window.height <= spec.height);
            prop_assert!(which != 3 || window.width == spec.width || window.height == spec.height);
        }
    }
}
