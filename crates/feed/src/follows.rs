// SPDX-License-Identifier: Apache-2.0
//! Fields that follow an image or boxes: kinds of annotations. Plain data.

use penstock_record::image::{BoxesSpec, KeypointsSpec, MaskSpec};

/// Kind of an annotation.
#[derive(Debug, Clone, PartialEq)]
pub enum Annotation {
    /// Labels of the image's pixels.
    Mask(MaskSpec),
    /// Boxes in the image.
    Boxes(BoxesSpec),
    /// Keypoints in the image.
    Keypoints(KeypointsSpec),
    /// Items of a list, one per box. Those of removed boxes are removed.
    Items,
}

/// An annotation, and the field that it follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Follows {
    /// Index of the field: an image, or boxes.
    pub field: usize,
    /// Kind of this annotation.
    pub annotation: Annotation,
}
