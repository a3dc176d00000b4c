// SPDX-License-Identifier: Apache-2.0
//! Fields that follow an image, boxes or audio: kinds of annotations. Plain data.

use penstock_record::image::{BoxesSpec, KeypointsSpec, MaskSpec};

use super::audio_documents::AudioFact;

/// Kind of an annotation.
#[derive(Debug, Clone, PartialEq)]
pub enum Annotation {
    /// Labels of the image's pixels.
    Mask(MaskSpec),
    /// Boxes in the image.
    Boxes(BoxesSpec),
    /// Keypoints in the image.
    Keypoints(KeypointsSpec),
    /// Items of a list, one per box. The items of removed boxes are removed, too.
    Items,
    /// Property of a recording.
    Audio(AudioFact),
}

/// An annotation, and the field that it follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Follows {
    /// Index of the field: an image, boxes, or audio.
    pub field: usize,
    /// Kind of this annotation.
    pub annotation: Annotation,
}
