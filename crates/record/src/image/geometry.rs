// SPDX-License-Identifier: Apache-2.0
//! Geometry of a sample: crop, resize, flip and geometric operations. The geometry is chosen once for an image, and
//! also applies to the image's masks, boxes and keypoints.

use penstock_types::{Error, Result, with_separators};

use super::augment::{Augment, Op, Warp};
use super::crop::{Draws, Region, Window};
use super::exif::Turn;
use super::{ImageSpec, Probe, probe};

/// How the pixels of an image become those of a sample. Coordinates are continuous: the centre of the first pixel is at
/// (0.5, 0.5).
#[derive(Debug, Clone, PartialEq)]
pub struct Geometry {
    /// Width and height of the image as displayed.
    pub(super) shown: (u32, u32),
    /// Region of the displayed image that becomes the sample.
    pub(super) region: Region,
    /// Part of the sample that the region fills, before the flip.
    pub(super) window: Window,
    /// True if the sample is flipped left to right.
    pub(super) is_mirrored: bool,
    /// Width and height of the sample.
    pub(super) sample: (u32, u32),
    /// Operations of augmentation, after the flip. Only the geometric ones apply to annotations.
    pub(super) ops: Vec<Op>,
}

impl Geometry {
    /// Reads the header of an image and chooses its geometry. `place` names the image in messages.
    ///
    /// # Errors
    /// Same as for [`super::decode_into`].
    pub fn of(bytes: &[u8], spec: &ImageSpec, key: u64, place: &str) -> Result<Self> {
        Ok(Self::choose(spec, &sized(bytes, spec.max_pixels, place)?, key))
    }

    pub(super) fn choose(spec: &ImageSpec, probe: &Probe, key: u64) -> Self {
        let turn = if spec.orient { Turn::of(probe.orientation) } else { Turn::default() };
        let shown = turn.shown(probe.width, probe.height);
        let mut draws = Draws::new(key);
        let is_mirrored = draws.unit() < spec.flip;
        let region = Region::choose(spec, shown.0, shown.1, &mut draws);
        let sample = (spec.width, spec.height);
        let window = Window::choose(spec, shown);
        Self { shown, region, window, is_mirrored, sample, ops: Augment::choose(&spec.augment, key, sample) }
    }

    /// Width and height of the image as displayed, in pixels.
    pub fn shown(&self) -> (u32, u32) {
        self.shown
    }

    /// Width and height of the sample, in pixels.
    pub fn sample(&self) -> (u32, u32) {
        self.sample
    }

    /// True if left and right are exchanged.
    pub fn is_mirrored(&self) -> bool {
        self.is_mirrored
    }

    /// Converts a point of the displayed image to the sample. The result may be outside the sample.
    pub fn point(&self, x: f64, y: f64) -> (f64, f64) {
        let [left, top, width, height] =
            [self.window.left, self.window.top, self.window.width, self.window.height].map(f64::from);
        let x = left + (x - self.region.x) * (width / self.region.width);
        let y = top + (y - self.region.y) * (height / self.region.height);
        let x = if self.is_mirrored { f64::from(self.sample.0) - x } else { x };
        self.warps().fold((x, y), |point, warp| warp.point(point, self.sample))
    }

    pub(super) fn warps(&self) -> impl Iterator<Item = Warp> {
        self.ops.iter().filter_map(|op| op.warp(self.sample))
    }

    /// Returns the nearest image column for each column of the sample, and the nearest image row for each row of the
    /// sample. Columns and rows beside the image get `None`.
    pub(super) fn nearest(&self) -> (Vec<Option<u32>>, Vec<Option<u32>>) {
        let along = |(from, len): (f64, f64), (first, count): (u32, u32), sample: u32, side: u32| -> Vec<Option<u32>> {
            let step = len / f64::from(count);
            let nearest = |at: u32| ((from + (f64::from(at) + 0.5) * step).max(0.0) as u32).min(side - 1);
            (0..sample).map(|at| at.checked_sub(first).filter(|at| *at < count).map(nearest)).collect()
        };
        let (region, window) = (&self.region, &self.window);
        let mut columns = along((region.x, region.width), (window.left, window.width), self.sample.0, self.shown.0);
        if self.is_mirrored {
            columns.reverse();
        }
        (columns, along((region.y, region.height), (window.top, window.height), self.sample.1, self.shown.1))
    }
}

/// Reads the header of an image. Returns an error if the image has no pixels, or more than `max_pixels`.
pub(super) fn sized(bytes: &[u8], max_pixels: u64, place: &str) -> Result<Probe> {
    let probe = probe(bytes, place)?;
    let count = u64::from(probe.width) * u64::from(probe.height);
    if count == 0 || count > max_pixels {
        let (width, height, most) =
            (with_separators(probe.width.into()), with_separators(probe.height.into()), with_separators(max_pixels));
        return Err(Error::corrupt(
            place,
            format!("is an image of {width} x {height} pixels (allowed: 1 to {most} pixels)"),
        ));
    }
    Ok(probe)
}
