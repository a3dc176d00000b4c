// SPDX-License-Identifier: Apache-2.0
//! Kinds of annotations: fields that follow an image, boxes or audio. Contains only data types.

use penstock_record::image::{BoxesSpec, KeypointsSpec, MaskSpec};
use serde::{Deserialize, Serialize};

/// Kind of an annotation.
#[derive(Debug, Clone, PartialEq)]
pub enum Annotation {
    /// Labels of the pixels of an image.
    Mask(MaskSpec),
    /// Boxes in the image.
    Boxes(BoxesSpec),
    /// Keypoints in the image.
    Keypoints(KeypointsSpec),
    /// Items of a list, one per box. If a box is removed, its item is removed, too.
    Items,
    /// Property of a recording.
    Audio(AudioFact),
}

/// An annotation, and the field that it follows.
#[derive(Debug, Clone, PartialEq)]
pub struct Follows {
    /// Index of the field that the annotation follows: an image, boxes, or audio.
    pub field: usize,
    /// Kind of the annotation.
    pub annotation: Annotation,
}

/// Property of a recording that is delivered as a field of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AudioFact {
    /// For each sample of a clip: true if the sample comes from the recording, false if it is padding.
    Mask,
    /// Sample rate of the file, in Hz.
    Rate,
}
