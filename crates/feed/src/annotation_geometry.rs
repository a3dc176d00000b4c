// SPDX-License-Identifier: Apache-2.0
//! Annotations of an image: masks, boxes, keypoints, and lists with one item per box. Each annotation follows another
//! field of the same record: the image, or the boxes. It gets the same crop, flip and resize as the image.
//!
//! An annotation reads the image's header and the boxes from the record again, so the order of the fields does not
//! matter.

use std::borrow::Cow;

use penstock_record::image::{Boxes, Geometry, Labels, Mask, MaskSpec};
use penstock_types::{DType, Error, Result, TensorSpec};

use super::annotation_kind::{Annotation, Follows};
use super::field::{Field, Kind};
use super::field_lookup::{in_record, named};
use super::format::{Record, RecordId};
use super::value::{Array, Value, convert};

/// The record whose annotations are read.
pub(crate) struct Annotated<'a, 'r> {
    pub record: &'a dyn Record,
    pub id: &'a RecordId<'r>,
    pub key: u64,
    pub fields: &'a [Field],
}

impl Annotated<'_, '_> {
    /// Converts the record's value of an annotation to the value of its field.
    pub fn value(&self, field: &Field, follows: &Follows, part: &Value<'_>) -> Result<Value<'static>> {
        let spec = field.fixed().or_else(|| field.item()).unwrap_or(TensorSpec { dtype: DType::U8, shape: vec![] });
        let array = |bytes: Vec<u8>| match field.fixed() {
            Some(spec) => Value::Array(Array { dtype: spec.dtype, shape: spec.shape, bytes: Cow::Owned(bytes) }),
            None => Value::List(Array { dtype: spec.dtype, shape: Vec::new(), bytes: Cow::Owned(bytes) }),
        };
        let floats = |values: &[f32]| array(values.iter().flat_map(|value| value.to_le_bytes()).collect());
        match &follows.annotation {
            Annotation::Mask(mask) => Ok(array(self.mask(field, mask, part, &self.geometry(follows)?)?)),
            Annotation::Boxes(_) => Ok(floats(&self.boxes(field, follows, part)?.values)),
            Annotation::Keypoints(spec) => {
                let numbers = numbers(part, spec.dims()).map_err(|problem| self.mismatch(field, &problem))?;
                let points =
                    spec.apply(&numbers, &self.geometry(follows)?).map_err(|problem| self.mismatch(field, &problem))?;
                match self.keep(follows)? {
                    None => Ok(floats(&points)),
                    Some(keep) => Ok(floats(&self.kept(field, follows, &points, spec.count * spec.dims(), &keep)?)),
                }
            }
            Annotation::Audio(_) => Err(Error::bug(format!("field {} does not follow an image", field.name))),
            Annotation::Items => {
                let keep = self.keep(follows)?.unwrap_or_default();
                let items = part.gather(&spec).map_err(|problem| self.mismatch(field, &problem))?;
                Ok(array(self.kept(field, follows, &items, spec.size_bytes()?, &keep)?))
            }
        }
    }

    fn mismatch(&self, field: &Field, problem: &str) -> Error {
        Error::mismatch(self.id.place, format!("field `{}` {problem}", field.name))
    }

    /// Returns the value of the field that an annotation follows; `None` if the record lacks that value.
    fn followed(&self, follows: &Follows) -> Result<(&Field, Option<Value<'_>>)> {
        let field = &self.fields[follows.field];
        let named = named(self.record, self.id, self.key, field)?;
        Ok((field, named.found.or(named.absent)))
    }

    /// Geometry of the image that an annotation follows, either directly or through boxes.
    fn geometry(&self, follows: &Follows) -> Result<Geometry> {
        let (field, part) = self.followed(follows)?;
        match (&field.kind, &field.follows) {
            (Kind::Image(spec), _) => {
                let part = part.ok_or_else(|| self.mismatch(field, "is missing from the record"))?;
                let bytes = part.bytes().map_err(|problem| self.mismatch(field, &problem))?;
                Geometry::of(&bytes, spec, self.key, self.id.place)
            }
            (_, Some(follows)) => self.geometry(follows),
            _ => Err(Error::bug(format!("field {} is not an image", field.name))),
        }
    }

    /// For each box of the field that an annotation follows, true if the box is kept. `None` if the annotation follows
    /// an image.
    fn keep(&self, follows: &Follows) -> Result<Option<Vec<bool>>> {
        let (field, part) = self.followed(follows)?;
        match (&field.follows, part) {
            (None, _) => Ok(None),
            (Some(_), None) => Ok(Some(Vec::new())),
            (Some(follows), Some(part)) => Ok(Some(self.boxes(field, follows, &part)?.keep)),
        }
    }

    fn boxes(&self, field: &Field, follows: &Follows, part: &Value<'_>) -> Result<Boxes> {
        let Annotation::Boxes(spec) = &follows.annotation else {
            return Err(Error::bug(format!("field {} has no boxes", field.name)));
        };
        let numbers = match spec.is_split {
            false => numbers(part, 4).map_err(|problem| self.mismatch(field, &problem))?,
            true => self.joined(field)?,
        };
        spec.apply(&numbers, &self.geometry(follows)?).map_err(|problem| self.mismatch(field, &problem))
    }

    /// Joins boxes that the record stores as four lists: one list for each of a box's four numbers.
    fn joined(&self, field: &Field) -> Result<Vec<f64>> {
        let mut columns = Vec::with_capacity(4);
        for name in field.parts() {
            let part = self.record.part(name).map_err(|error| in_record(error, self.id))?;
            let part = part.filter(|part| !part.is_absent());
            let column = part.map_or(Ok(Vec::new()), |part| numbers(&part, 1));
            columns.push(column.map_err(|problem| self.mismatch(field, &problem))?);
        }
        let lens: Vec<usize> = columns.iter().map(Vec::len).collect();
        if lens.iter().any(|&len| len != lens[0]) {
            return Err(self.mismatch(field, &format!("is read from lists of different lengths ({lens:?})")));
        }
        Ok((0..lens[0]).flat_map(|at| columns.iter().map(move |column| column[at])).collect())
    }

    /// Returns the items whose boxes are kept. Each item has `len` elements.
    fn kept<T: Copy>(
        &self,
        field: &Field,
        follows: &Follows,
        items: &[T],
        len: usize,
        keep: &[bool],
    ) -> Result<Vec<T>> {
        let count = items.len() / len.max(1);
        if count != keep.len() {
            let boxes = &self.fields[follows.field].name;
            return Err(self.mismatch(field, &format!("has {count} items, but `{boxes}` has {} boxes", keep.len())));
        }
        Ok(items.chunks_exact(len).zip(keep).filter(|(_, keep)| **keep).flat_map(|(item, _)| item).copied().collect())
    }

    fn mask(&self, field: &Field, spec: &MaskSpec, part: &Value<'_>, geometry: &Geometry) -> Result<Vec<u8>> {
        let mask = match part {
            Value::Array(array) => labels_of(array).map_err(|problem| self.mismatch(field, &problem))?,
            part => {
                let bytes = part.bytes().map_err(|problem| self.mismatch(field, &problem))?;
                Mask::decode(&bytes, spec.max_pixels, self.id.place)?
            }
        };
        if mask.size != geometry.shown() {
            let ((width, height), (image_width, image_height)) = (mask.size, geometry.shown());
            let image = field.follows.as_ref().map_or("", |follows| &self.fields[follows.field].name);
            let problem = format!(
                "is a mask of {width} x {height} pixels, but the image `{image}` has {image_width} x {image_height} pixels \
                 (width x height)"
            );
            return Err(self.mismatch(field, &problem));
        }
        mask.sample(spec, geometry).map_err(|problem| self.mismatch(field, &problem))
    }
}

/// Converts an array of integers to a mask. The array's shape is [height, width], optionally with one more axis of
/// length 1.
fn labels_of(array: &Array<'_>) -> Result<Mask, String> {
    let sides = array.shape.len();
    let is_plane = sides >= 2 && array.shape.iter().filter(|&&side| side != 1).count() <= 2;
    let (height, width) = match array.shape[..] {
        [height, width] | [height, width, 1] | [1, height, width] if is_plane => (height, width),
        _ => {
            return Err(format!(
                "is an array of type {} and shape {:?}, but a mask needs the shape [height, width]",
                array.dtype, array.shape
            ));
        }
    };
    let size = (u32::try_from(width).unwrap_or(u32::MAX), u32::try_from(height).unwrap_or(u32::MAX));
    if array.dtype == DType::U8 {
        return Ok(Mask { size, labels: Labels::U8(array.bytes.to_vec()) });
    }
    let mut wide = vec![0; width * height * 8];
    convert(array.dtype, &array.bytes, DType::I64, &mut wide)?;
    let labels = wide.as_chunks::<8>().0.iter().map(|&label| i64::from_le_bytes(label)).collect();
    Ok(Mask { size, labels: Labels::I64(labels) })
}

/// Returns the numbers of a value. Each step of a feature list, and each inner list, must have `per` numbers.
fn numbers(value: &Value<'_>, per: usize) -> Result<Vec<f64>, String> {
    let shape = if matches!(value, Value::Steps(_) | Value::Nested(_)) { vec![per] } else { Vec::new() };
    let gathered = |dtype| value.gather(&TensorSpec { dtype, shape: shape.clone() });
    match value.number_type() {
        Some(DType::F64) => {
            Ok(gathered(DType::F64)?.as_chunks::<8>().0.iter().map(|&n| f64::from_le_bytes(n)).collect())
        }
        Some(DType::F32) | None => {
            Ok(gathered(DType::F32)?.as_chunks::<4>().0.iter().map(|&n| f32::from_le_bytes(n).into()).collect())
        }
        Some(_) => Ok(gathered(DType::I64)?.as_chunks::<8>().0.iter().map(|&n| i64::from_le_bytes(n) as f64).collect()),
    }
}
