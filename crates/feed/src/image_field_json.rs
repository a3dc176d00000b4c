// SPDX-License-Identifier: Apache-2.0
//! JSON documents by which Python describes image fields and annotations.

use penstock_record::image::{Augment, BoxFormat, BoxesSpec, Crop, ImageSpec, KeypointsSpec, Layout, MaskSpec, OpKind};
use penstock_types::{DType, Error, Result};
use serde::{Deserialize, Serialize};

use super::annotation_kind::{Annotation, AudioFact};

/// Specification of an image field, in the JSON that Python writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ImageDocument {
    height: u32,
    width: u32,
    crop: String,
    resize: u32,
    area: (f64, f64),
    ratio: (f64, f64),
    flip: f64,
    channels: u32,
    layout: String,
    mean: [f32; 3],
    std: [f32; 3],
    orient: bool,
    max_pixels: u64,
    #[serde(default)]
    exact: bool,
    /// Fill value for the crop mode `pad`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fill: Option<u8>,
    #[serde(default)]
    augment: Vec<AugmentDocument>,
}

/// One augmentation step, in the JSON that Python writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AugmentDocument {
    op: String,
    /// Values of the step. For `jitter`, 4 ranges. For `randaugment`, count, magnitude and bins. For `trivialaugment`,
    /// bins. For all other steps, one range.
    values: Vec<f64>,
    p: f64,
    fill: u8,
}

impl AugmentDocument {
    fn augment(&self) -> Result<Augment> {
        let (p, fill) = (self.p, self.fill);
        let augment = match (self.op.as_str(), &self.values[..]) {
            ("jitter", &[a, b, c, d, e, f, g, h]) => Augment::Jitter { ranges: [(a, b), (c, d), (e, f), (g, h)], p },
            ("randaugment", &[count, magnitude, bins]) => {
                Augment::Rand { count: count as u32, magnitude: magnitude as u32, bins: bins as u32, fill }
            }
            ("trivialaugment", &[bins]) => Augment::Trivial { bins: bins as u32, fill },
            (op, &[low, high]) => Augment::One { op: OpKind::named(op)?, range: (low, high), p, fill },
            (op, values) => return Err(Error::config("augment", format!("{op} cannot have the values {values:?}"))),
        };
        augment.check()?;
        Ok(augment)
    }

    fn of(augment: &Augment) -> Self {
        let (op, values, p, fill) = match *augment {
            Augment::Jitter { ranges, p } => ("jitter", ranges.iter().flat_map(|&(a, b)| [a, b]).collect(), p, 0),
            Augment::Rand { count, magnitude, bins, fill } => {
                ("randaugment", [count, magnitude, bins].map(f64::from).to_vec(), 1.0, fill)
            }
            Augment::Trivial { bins, fill } => ("trivialaugment", vec![f64::from(bins)], 1.0, fill),
            Augment::One { op, range: (low, high), p, fill } => (op.name(), vec![low, high], p, fill),
        };
        Self { op: op.to_owned(), values, p, fill }
    }
}

impl ImageDocument {
    pub(super) fn spec(&self, dtype: DType) -> Result<ImageSpec> {
        let crop = match self.crop.as_str() {
            "none" => Crop::None,
            "pad" => Crop::Pad { fill: self.fill.unwrap_or_default() },
            "center" => Crop::Center { resize: self.resize },
            "random" => Crop::Random { area: self.area, ratio: self.ratio },
            other => {
                return Err(Error::config("image", format!("crop `{other}` is not one of random, center, pad, none")));
            }
        };
        let layout = match self.layout.as_str() {
            "HWC" => Layout::Hwc,
            "CHW" => Layout::Chw,
            other => return Err(Error::config("image", format!("layout `{other}` is not one of HWC, CHW"))),
        };
        let spec = ImageSpec {
            height: self.height,
            width: self.width,
            crop,
            flip: self.flip,
            channels: self.channels,
            dtype,
            layout,
            mean: self.mean,
            std: self.std,
            orient: self.orient,
            max_pixels: self.max_pixels,
            exact: self.exact,
            augment: self.augment.iter().map(AugmentDocument::augment).collect::<Result<_>>()?,
        };
        spec.check()?;
        Ok(spec)
    }

    pub(super) fn of(spec: &ImageSpec) -> Self {
        let none = (0.0, 0.0);
        let (crop, resize, area, ratio, fill) = match spec.crop {
            Crop::None => ("none", 0, none, none, None),
            Crop::Pad { fill } => ("pad", 0, none, none, Some(fill)),
            Crop::Center { resize } => ("center", resize, none, none, None),
            Crop::Random { area, ratio } => ("random", 0, area, ratio, None),
        };
        Self {
            height: spec.height,
            width: spec.width,
            crop: crop.to_owned(),
            resize,
            area,
            ratio,
            flip: spec.flip,
            channels: spec.channels,
            layout: if spec.layout == Layout::Chw { "CHW" } else { "HWC" }.to_owned(),
            mean: spec.mean,
            std: spec.std,
            orient: spec.orient,
            max_pixels: spec.max_pixels,
            exact: spec.exact,
            fill,
            augment: spec.augment.iter().map(AugmentDocument::of).collect(),
        }
    }
}

/// An annotation, in the JSON that Python writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum AnnotationDocument {
    Mask { fill: i64, max_pixels: u64 },
    Boxes { format: String, normalized: bool, min_area: f64, min_visibility: f64, removes: bool, is_split: bool },
    Keypoints { count: usize, has_visibility: bool, normalized: bool, flip_order: Vec<usize> },
    Items {},
    Audio { fact: AudioFact },
}

/// Formats of boxes, by name.
const BOX_FORMATS: [(&str, BoxFormat); 3] =
    [("xyxy", BoxFormat::Xyxy), ("xywh", BoxFormat::Xywh), ("cxcywh", BoxFormat::Cxcywh)];

impl AnnotationDocument {
    pub(super) fn annotation(&self, dtype: DType) -> Result<Annotation> {
        Ok(match self.clone() {
            Self::Mask { fill, max_pixels } => {
                let spec = MaskSpec { dtype, fill, max_pixels };
                spec.check()?;
                Annotation::Mask(spec)
            }
            Self::Boxes { format, normalized, min_area, min_visibility, removes, is_split } => {
                let (_, format) = BOX_FORMATS.into_iter().find(|(name, _)| *name == format).ok_or_else(|| {
                    Error::config("boxes", format!("format `{format}` is not one of xyxy, xywh, cxcywh"))
                })?;
                let spec = BoxesSpec { format, normalized, min_area, min_visibility, removes, is_split };
                spec.check()?;
                Annotation::Boxes(spec)
            }
            Self::Keypoints { count, has_visibility, normalized, flip_order } => {
                let spec = KeypointsSpec { count, has_visibility, normalized, flip_order };
                spec.check()?;
                Annotation::Keypoints(spec)
            }
            Self::Items {} => Annotation::Items,
            Self::Audio { fact } => Annotation::Audio(fact),
        })
    }

    pub(super) fn of(annotation: &Annotation) -> Self {
        match annotation {
            Annotation::Mask(spec) => Self::Mask { fill: spec.fill, max_pixels: spec.max_pixels },
            Annotation::Boxes(spec) => Self::Boxes {
                format: BOX_FORMATS
                    .iter()
                    .find(|(_, format)| *format == spec.format)
                    .map_or("", |(name, _)| name)
                    .into(),
                normalized: spec.normalized,
                min_area: spec.min_area,
                min_visibility: spec.min_visibility,
                removes: spec.removes,
                is_split: spec.is_split,
            },
            Annotation::Keypoints(spec) => Self::Keypoints {
                count: spec.count,
                has_visibility: spec.has_visibility,
                normalized: spec.normalized,
                flip_order: spec.flip_order.clone(),
            },
            Annotation::Items => Self::Items {},
            Annotation::Audio(fact) => Self::Audio { fact: *fact },
        }
    }
}
