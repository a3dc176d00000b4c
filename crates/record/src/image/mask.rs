// SPDX-License-Identifier: Apache-2.0
//! Masks: images whose values are labels. A mask gets the geometry of its image by nearest neighbour. No label is ever
//! interpolated, scaled or converted by a palette.

use penstock_types::{DType, Error, Result};

use super::geometry::{Geometry, sized};
use super::labels::{Labels, coloured};
use super::{Kind, jpeg, png, tiff};

/// Settings of a mask. The mask has the size of the image's sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaskSpec {
    /// Element type; an integer type.
    pub dtype: DType,
    /// Label of pixels that are beside or outside the image.
    pub fill: i64,
    /// Maximum number of pixels; larger masks are rejected.
    pub max_pixels: u64,
}

/// A decoded mask.
#[derive(Debug)]
pub struct Mask {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// Labels of the pixels.
    pub labels: Labels,
}

impl Mask {
    /// Decodes the labels of an image file: the indices of a palette, or grey values. Grey values of less than 8 bits
    /// are not scaled.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for damaged, truncated or oversized images; [`Error::Mismatch`] for an image with colours;
    /// [`Error::Unsupported`] for other formats.
    pub fn decode(bytes: &[u8], max_pixels: u64, place: &str) -> Result<Self> {
        let probe = sized(bytes, max_pixels, place)?;
        let labels = match probe.kind {
            Kind::Png => png::labels(bytes, &probe, place)?,
            Kind::Tiff => tiff::labels(bytes, &probe, place)?,
            Kind::WebP => return Err(coloured("the colours of a WebP", place)),
            Kind::Jpeg => Labels::U8(jpeg::grey(bytes, &probe, place)?),
        };
        Ok(Self { size: (probe.width, probe.height), labels })
    }

    /// Returns the sample's labels, little-endian, row after row. An error states the first label that `spec.dtype`
    /// cannot represent.
    pub fn sample(&self, spec: &MaskSpec, geometry: &Geometry) -> Result<Vec<u8>, String> {
        match &self.labels {
            Labels::U8(labels) => sampled(labels, self.size.0, spec, geometry),
            Labels::U16(labels) => sampled(labels, self.size.0, spec, geometry),
            Labels::I64(labels) => sampled(labels, self.size.0, spec, geometry),
        }
    }
}

fn sampled<T: Copy + Into<i64>>(
    labels: &[T],
    width: u32,
    spec: &MaskSpec,
    geometry: &Geometry,
) -> Result<Vec<u8>, String> {
    match spec.dtype.size() {
        1 => put::<T, 1>(labels, width, spec, geometry),
        2 => put::<T, 2>(labels, width, spec, geometry),
        4 => put::<T, 4>(labels, width, spec, geometry),
        _ => put::<T, 8>(labels, width, spec, geometry),
    }
}

fn put<T: Copy + Into<i64>, const SIZE: usize>(
    labels: &[T],
    width: u32,
    spec: &MaskSpec,
    geometry: &Geometry,
) -> Result<Vec<u8>, String> {
    let (least, most) = range(spec.dtype);
    let (columns, rows) = geometry.nearest();
    let mut out = vec![0; columns.len() * rows.len() * SIZE];
    let (mut low, mut high) = (0, 0);
    for (slots, row) in out.chunks_exact_mut(columns.len() * SIZE).zip(&rows) {
        let line = row.map(|row| &labels[row as usize * width as usize..][..width as usize]);
        for (slot, column) in slots.as_chunks_mut::<SIZE>().0.iter_mut().zip(&columns) {
            let label = line.zip(*column).map_or(spec.fill, |(line, column)| line[column as usize].into());
            (low, high) = (low.min(label), high.max(label));
            slot.copy_from_slice(&label.to_le_bytes()[..SIZE]);
        }
    }
    let fill = spec.fill.to_le_bytes()[..SIZE].try_into().unwrap_or([0; SIZE]);
    for warp in geometry.warps() {
        let from = out.clone();
        warp.apply(from.as_chunks::<SIZE>().0, out.as_chunks_mut::<SIZE>().0, geometry.sample, fill);
    }
    match [low, high].into_iter().find(|label| !(least..=most).contains(label)) {
        Some(label) => Err(format!("contains the label {label}, which is not a valid {}", spec.dtype)),
        None => Ok(out),
    }
}

/// Smallest and largest label of an integer type, limited to the range of int64.
pub(super) fn range(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U8 => (0, u8::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::U64 => (0, i64::MAX),
        DType::Bool => (0, 1),
        DType::I64 | DType::F16 | DType::F32 | DType::F64 => (i64::MIN, i64::MAX),
    }
}

impl MaskSpec {
    /// Checks the settings; returns an error if they are invalid.
    pub fn check(&self) -> Result<()> {
        if matches!(self.dtype, DType::F16 | DType::F32 | DType::F64) {
            return Err(Error::config("mask", format!("dtype must be an integer type (got {})", self.dtype)));
        }
        let (least, most) = range(self.dtype);
        if !(least..=most).contains(&self.fill) {
            return Err(Error::config("mask", format!("fill {} is not a valid {}", self.fill, self.dtype)));
        }
        Ok(())
    }
}
