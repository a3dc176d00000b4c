// SPDX-License-Identifier: Apache-2.0
//! Boxes and keypoints of an image: applies the geometric operations of the sample to them.

use penstock_types::{Error, Result};

use super::Geometry;

/// Meaning of a box's four numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoxFormat {
    /// Left, top, right, bottom.
    Xyxy,
    /// Left, top, width, height.
    Xywh,
    /// Centre, width, height.
    Cxcywh,
}

/// Settings of boxes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BoxesSpec {
    /// Meaning of the four numbers, in the record and in the sample.
    pub format: BoxFormat,
    /// True if coordinates are fractions of the width and the height; false if they are pixels.
    pub normalized: bool,
    /// Minimum area of a box inside the sample, in pixels of the sample.
    pub min_area: f64,
    /// Minimum fraction of a box's area that is inside the sample.
    pub min_visibility: f64,
    /// True to remove boxes that are below one of the two minima; false to keep them, clipped.
    pub removes: bool,
    /// True if the record stores the four numbers as separate values.
    pub is_split: bool,
}

/// Boxes of a sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Boxes {
    /// Four numbers for each box that is kept.
    pub values: Vec<f32>,
    /// For each box of the image, true if it is kept.
    pub keep: Vec<bool>,
}

impl BoxesSpec {
    /// Checks the settings; returns an error if they are invalid.
    pub fn check(&self) -> Result<()> {
        if !(self.min_area >= 0.0 && self.min_area.is_finite() && (0.0..=1.0).contains(&self.min_visibility)) {
            let (area, visibility) = (self.min_area, self.min_visibility);
            let problem = format!(
                "min_area must be at least 0, and min_visibility a fraction from 0 to 1 (got {area} and {visibility})"
            );
            return Err(Error::config("boxes", problem));
        }
        Ok(())
    }

    /// Crops, resizes and flips boxes, and clips them to the sample. An error describes the first invalid box.
    pub fn apply(&self, boxes: &[f64], geometry: &Geometry) -> Result<Boxes, String> {
        let (boxes, rest) = boxes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(format!("has {} numbers, but a box has 4", boxes.len() * 4 + rest.len()));
        }
        let (scale_x, scale_y) = scale(geometry.shown(), self.normalized);
        let (width, height) = (f64::from(geometry.sample().0), f64::from(geometry.sample().1));
        let (unit_x, unit_y) = scale(geometry.sample(), self.normalized);
        let mut out = Boxes::default();
        for (at, stored) in boxes.iter().enumerate() {
            let [left, top, right, bottom] = match (self.format, *stored) {
                (BoxFormat::Xyxy, sides) => sides,
                (BoxFormat::Xywh, [x, y, w, h]) => [x, y, x + w, y + h],
                (BoxFormat::Cxcywh, [x, y, w, h]) => [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0],
            };
            if ![left, top, right, bottom].iter().all(|side| side.is_finite()) || left > right || top > bottom {
                let problem = if left > right || top > bottom {
                    "a negative width or height"
                } else {
                    "a coordinate or size that is not finite"
                };
                return Err(format!("has a box with {problem}: box {at} is {stored:?}"));
            }
            let corners = [(left, top), (right, top), (left, bottom), (right, bottom)];
            let corners = corners.map(|(x, y)| geometry.point(x * scale_x, y * scale_y));
            let low = |of: fn(&(f64, f64)) -> f64| corners.iter().map(of).fold(f64::INFINITY, f64::min);
            let high = |of: fn(&(f64, f64)) -> f64| corners.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
            let (low_x, high_x, low_y, high_y) =
                (low(|corner| corner.0), high(|corner| corner.0), low(|corner| corner.1), high(|corner| corner.1));
            let [left, right] = [low_x, high_x].map(|x| x.clamp(0.0, width));
            let [top, bottom] = [low_y, high_y].map(|y| y.clamp(0.0, height));
            let (area, whole) = ((right - left) * (bottom - top), (high_x - low_x) * (high_y - low_y));
            let is_kept = area > 0.0 && area >= self.min_area && area >= self.min_visibility * whole;
            out.keep.push(is_kept || !self.removes);
            if is_kept || !self.removes {
                let [left, right] = [left, right].map(|x| x / unit_x);
                let [top, bottom] = [top, bottom].map(|y| y / unit_y);
                let (w, h) = (right - left, bottom - top);
                let numbers = match self.format {
                    BoxFormat::Xyxy => [left, top, right, bottom],
                    BoxFormat::Xywh => [left, top, w, h],
                    BoxFormat::Cxcywh => [left + w / 2.0, top + h / 2.0, w, h],
                };
                out.values.extend(numbers.map(|number| number as f32));
            }
        }
        Ok(out)
    }
}

/// Settings of keypoints.
#[derive(Debug, Clone, PartialEq)]
pub struct KeypointsSpec {
    /// Number of keypoints per item.
    pub count: usize,
    /// True if a keypoint has a third number, its visibility (COCO: 0 not labelled, 1 hidden, 2 visible).
    pub has_visibility: bool,
    /// True if coordinates are fractions of the width and the height; false if they are pixels.
    pub normalized: bool,
    /// Order of an item's keypoints after a flip, because a flip exchanges left and right; empty to keep the order.
    pub flip_order: Vec<usize>,
}

impl KeypointsSpec {
    /// Numbers per keypoint.
    pub fn dims(&self) -> usize {
        if self.has_visibility { 3 } else { 2 }
    }

    /// Checks the settings; returns an error if they are invalid.
    pub fn check(&self) -> Result<()> {
        let mut sorted = self.flip_order.clone();
        sorted.sort_unstable();
        if self.count == 0 || !(sorted.is_empty() || sorted.iter().copied().eq(0..self.count)) {
            let problem = format!(
                "flip_order must contain each number from 0 to {} once (got {:?})",
                self.count.saturating_sub(1),
                self.flip_order
            );
            return Err(Error::config("keypoints", problem));
        }
        Ok(())
    }

    /// Crops, resizes and flips keypoints, without clipping them. If keypoints have a visibility, those outside the
    /// sample get visibility 0, and those with visibility 0 get the coordinates (0, 0). An error describes the first
    /// invalid keypoint.
    pub fn apply(&self, points: &[f64], geometry: &Geometry) -> Result<Vec<f32>, String> {
        let dims = self.dims();
        if !points.len().is_multiple_of(self.count * dims) {
            return Err(format!(
                "has {} numbers, which is not a multiple of {} keypoints x {dims} numbers",
                points.len(),
                self.count
            ));
        }
        let (scale_x, scale_y) = scale(geometry.shown(), self.normalized);
        let (width, height) = (f64::from(geometry.sample().0), f64::from(geometry.sample().1));
        let (unit_x, unit_y) = scale(geometry.sample(), self.normalized);
        let mut out = Vec::with_capacity(points.len());
        for item in points.chunks_exact(self.count * dims) {
            for at in 0..self.count {
                let from = if geometry.is_mirrored() { self.flip_order.get(at).copied().unwrap_or(at) } else { at };
                let point = &item[from * dims..][..dims];
                let visibility = point.get(2).copied();
                if !point.iter().all(|number| number.is_finite()) {
                    return Err(format!("has a keypoint that is not finite: {point:?}"));
                }
                if visibility == Some(0.0) {
                    out.extend([0.0; 3]);
                    continue;
                }
                let (x, y) = geometry.point(point[0] * scale_x, point[1] * scale_y);
                let is_inside = (0.0..=width).contains(&x) && (0.0..=height).contains(&y);
                match visibility {
                    Some(_) if !is_inside => out.extend([0.0; 3]),
                    visibility => {
                        out.extend([(x / unit_x) as f32, (y / unit_y) as f32]);
                        out.extend(visibility.map(|visibility| visibility as f32));
                    }
                }
            }
        }
        Ok(out)
    }
}

/// Pixels per unit of a coordinate along x and y.
fn scale((width, height): (u32, u32), normalized: bool) -> (f64, f64) {
    if normalized { (f64::from(width), f64::from(height)) } else { (1.0, 1.0) }
}
