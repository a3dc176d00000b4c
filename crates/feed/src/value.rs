// SPDX-License-Identifier: Apache-2.0
//! Value of a record, as its format returns it, and the conversion to the type of a field.
//!
//! Owns the conversions, and the error texts for mismatches, which contain the requested and the actual type. No value
//! is silently truncated. Integers convert to any integer or float type that represents them exactly. Floats convert to
//! another float type. All other conversions are errors.

pub(crate) mod json_nested_lists;
pub(crate) mod json_numbers;
pub(crate) mod nested_lists;

use std::borrow::Cow;

use penstock_record::tf_example::Feature;
use penstock_record::tf_sequence_example::FeatureList;
use penstock_types::{DType, TensorSpec, with_separators};

use self::json_numbers::Numbers;
use self::nested_lists::Nested;
use crate::chunked_arrays::Patch;

/// A named value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    /// Bytes without a known meaning, such as a file of an archive.
    Bytes(Cow<'a, [u8]>),
    /// Text: bytes that are not a number in text form.
    Text(Cow<'a, [u8]>),
    /// A JSON array of numbers.
    Numbers(Numbers<'a>),
    /// Any other JSON array, or a JSON object, as stored.
    Json(&'a str),
    /// An empty CSV cell or an empty JSON array, as stored.
    Empty(&'static str),
    /// A list of byte strings.
    Strings(Vec<&'a [u8]>),
    /// A number as text, such as a `.cls` file of a tar.
    Digits(&'a [u8]),
    /// A feature of a tf.Example.
    Feature(Feature<'a>),
    /// A feature list of a tf.SequenceExample: one feature per step. A step without a feature of any kind is `None`.
    Steps(FeatureList<'a>),
    /// Elements of a known type and shape, little-endian in C order.
    Array(Array<'a>),
    /// A patch of an array: elements of a known type and shape, which are not contiguous.
    Patch(Patch<'a>),
    /// Elements of a known type without a shape.
    List(Array<'a>),
    /// An integer that comes from the format or from a name, such as a label.
    Int(i64),
    /// A list of lists.
    Nested(Nested<'a>),
    /// A null. The record has the value, and the value is null.
    Null,
    /// A null that is read as this empty value. If the field has a default or a mask, it is read as a null.
    NullAs(Box<Value<'a>>),
}

/// An array: elements of a known type and shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Array<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape of the array, in C order.
    pub shape: Vec<usize>,
    /// Bytes of the elements, little-endian in C order.
    pub bytes: Cow<'a, [u8]>,
}

impl Array<'_> {
    fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }
}

/// Returns a shape without the axes of length 1.
fn squeezed(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|&side| side != 1).collect()
}

fn shown(shape: &[usize]) -> String {
    format!("{shape:?}")
}

impl<'a> Value<'a> {
    /// Describes the value, with its size, for error messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Bytes(bytes) => format!("{} bytes", with_separators(bytes.len() as u64)),
            Self::Text(text) => format!("a text of {} bytes", with_separators(text.len() as u64)),
            Self::Json(text) if json_nested_lists::has_null(text) => {
                format!("a JSON list of {} bytes with a null", with_separators(text.len() as u64))
            }
            Self::Json(text) => format!("a JSON text of {} bytes", with_separators(text.len() as u64)),
            Self::Numbers(numbers) if numbers.shape().is_empty() => numbers.text().into(),
            Self::Numbers(numbers) if numbers.shape().len() > 1 => format!("numbers {}", shown(numbers.shape())),
            Self::Numbers(numbers) => format!("a list of {} numbers", with_separators(numbers.elements() as u64)),
            Self::Empty(text) => format!("the empty value `{text}`"),
            Self::Strings(strings) => format!("a list of {} byte strings", with_separators(strings.len() as u64)),
            Self::Digits(text) => {
                format!("the text `{}`", String::from_utf8_lossy(&text[..text.len().min(32)]).escape_default())
            }
            Self::Feature(feature) => describe_feature(feature),
            Self::Steps(steps) => match steps.steps().iter().flatten().next() {
                Some(first) => {
                    format!("a feature_list of {} steps (the first step is {})", steps.len(), describe_feature(first))
                }
                None => "an empty feature_list".to_owned(),
            },
            Self::Array(array) => format!("{} {}", array.dtype, shown(&array.shape)),
            Self::Patch(patch) => format!("{} {}", patch.dtype, shown(patch.shape)),
            Self::List(array) => format!("a list of {} {}", with_separators(array.elements() as u64), array.dtype),
            Self::Int(value) => format!("the integer {value}"),
            Self::Nested(nested) => nested.describe(),
            Self::Null | Self::NullAs(_) => "a null".to_owned(),
        }
    }

    /// Element type of the value's numbers. `None` if the value contains no numbers.
    pub fn number_type(&self) -> Option<DType> {
        let of_feature = |feature: &Feature<'_>| match feature {
            Feature::Ints(_) => Some(DType::I64),
            Feature::Floats(_) => Some(DType::F32),
            Feature::Bytes(_) => None,
        };
        match self {
            Self::Array(array) | Self::List(array) => Some(array.dtype),
            Self::Patch(patch) => Some(patch.dtype),
            Self::Feature(feature) => of_feature(feature),
            Self::Steps(steps) => steps.steps().iter().flatten().next().and_then(of_feature),
            Self::Nested(nested) => nested.items.number_type(),
            Self::Digits(_) => Some(DType::F64),
            Self::Int(_) => Some(DType::I64),
            _ => None,
        }
    }

    /// True if the value is missing: a null, or an empty list of a tf.Example.
    pub fn is_absent(&self) -> bool {
        match self {
            Self::Null | Self::NullAs(_) => true,
            Self::Feature(feature) => feature.is_empty(),
            Self::Steps(steps) => steps.is_empty(),
            // An empty CSV cell counts as a missing value. An empty JSON array is a value.
            Self::Empty(text) => text.is_empty(),
            _ => false,
        }
    }

    /// Writes the value into `out`, which has the size of `spec`. The error describes the actual content of the value.
    pub fn write(&self, spec: &TensorSpec, out: &mut [u8]) -> Result<(), String> {
        match self {
            Self::Bytes(bytes) if bytes.len() == out.len() => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            // A text is not a number, even if it has only one character.
            Self::Text(text) if is_byte(spec.dtype) && !spec.shape.is_empty() && text.len() == out.len() => {
                out.copy_from_slice(text);
                Ok(())
            }
            Self::Feature(feature) => feature.write(spec, out),
            Self::Patch(patch) => {
                if squeezed(patch.shape) != squeezed(&spec.shape) {
                    return Err(self.unlike(&wanted(spec)));
                }
                if patch.dtype == spec.dtype {
                    patch.copy_to(out);
                    return Ok(());
                }
                convert(patch.dtype, &patch.to_vec(), spec.dtype, out).map_err(|why| self.unlike_because(spec, &why))
            }
            Self::Array(array) => {
                if squeezed(&array.shape) != squeezed(&spec.shape) {
                    return Err(self.unlike(&wanted(spec)));
                }
                convert(array.dtype, &array.bytes, spec.dtype, out).map_err(|why| self.unlike_because(spec, &why))
            }
            Self::List(array) if array.elements() == out.len() / spec.dtype.size() => {
                convert(array.dtype, &array.bytes, spec.dtype, out).map_err(|why| self.unlike_because(spec, &why))
            }
            Self::Numbers(numbers)
                if numbers.elements() == out.len() / spec.dtype.size()
                    && numbers.has_rows_of(spec.shape.get(1..).unwrap_or_default()) =>
            {
                numbers.write(spec.dtype, out).map_err(|why| self.unlike_because(spec, &why))
            }
            Self::Digits(_) | Self::Int(_) if out.len() == spec.dtype.size() => {
                self.scalar(spec.dtype, out).map_err(|why| self.unlike_because(spec, &why))
            }
            Self::Steps(steps) => {
                // Every step must have the same length. With different lengths, the total could be right, but values
                // would be in wrong positions.
                let each = (out.len() / spec.dtype.size()).checked_div(steps.len()).unwrap_or(0);
                if each * steps.len() * spec.dtype.size() != out.len() {
                    return Err(self.unlike(&wanted(spec)));
                }
                if !out.is_empty() {
                    out.copy_from_slice(&self.gather(&TensorSpec { dtype: spec.dtype, shape: vec![each] })?);
                }
                Ok(())
            }
            Self::Nested(nested) => {
                nested.check_array(&spec.shape).map_err(|why| self.unlike_because(spec, &why))?;
                nested.items.write(spec, out)
            }
            _ => Err(self.unlike(&wanted(spec))),
        }
    }

    /// Size in bytes of the result of [`Value::gather`], computed without creating the result.
    pub fn gathered_len(&self, item: &TensorSpec) -> usize {
        let size = item.dtype.size();
        let of_feature = |feature: &Feature<'_>| match feature {
            Feature::Bytes(values) => values.iter().map(|value| value.len()).sum(),
            feature => feature.len().saturating_mul(size),
        };
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Text(text) => text.len(),
            Self::Strings(_) | Self::Json(_) => 0,
            Self::Feature(feature) => of_feature(feature),
            Self::Steps(steps) => steps.steps().iter().flatten().map(of_feature).sum(),
            Self::Array(array) | Self::List(array) => array.elements().saturating_mul(size),
            Self::Patch(patch) => (patch.size_bytes() / patch.dtype.size()).saturating_mul(size),
            Self::Nested(nested) => nested.items.gathered_len(item),
            Self::Numbers(numbers) => numbers.elements().saturating_mul(size),
            Self::Null | Self::NullAs(_) | Self::Empty(_) => 0,
            Self::Digits(_) | Self::Int(_) => size,
        }
    }

    /// Returns the elements as any number of whole items. `item` is the element type and shape of one item. Each step
    /// of a feature list must be one item. Byte strings are not joined.
    pub fn gather(&self, item: &TensorSpec) -> Result<Vec<u8>, String> {
        let size = item.dtype.size();
        let want = || format!("any number of {} {}", item.dtype, shown(&item.shape));
        let found = match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            Self::Text(text) if is_byte(item.dtype) => text.to_vec(),
            Self::Text(_) => return Err(self.unlike(&want())),
            Self::Json(text) if text.starts_with("[[") => {
                return Err(self.unlike_why(&want(), "use list(ragged(...)) for lists of lists"));
            }
            Self::Json(_) => return Err(self.unlike(&want())),
            Self::Feature(Feature::Bytes(values)) if values.len() <= 1 => values.concat(),
            Self::Feature(Feature::Bytes(_)) | Self::Strings(_) => {
                return Err(self.unlike_why(&want(), "use raw_list() to get a list of byte strings"));
            }
            Self::Feature(feature) => {
                let spec = TensorSpec { dtype: item.dtype, shape: vec![feature.len()] };
                let mut out = vec![0; feature.len() * size];
                feature.write(&spec, &mut out)?;
                out
            }
            Self::Steps(steps) => {
                let mut out = Vec::new();
                for (at, step) in steps.steps().iter().enumerate() {
                    let have = out.len();
                    if let Some(step) = step {
                        out.extend(Value::Feature(step.clone()).gather(item)?);
                    }
                    if out.len() - have != item.shape.iter().product::<usize>() * size {
                        let values = with_separators(step.as_ref().map_or(0, Feature::len) as u64);
                        let why = format!(
                            "step {at} has {values} values, but a step must be exactly one item; for any number of \
                             items per step, use list(ragged(...))"
                        );
                        return Err(self.unlike_why(&want(), &why));
                    }
                }
                out
            }
            Self::Array(array) | Self::List(array) => {
                let mut out = vec![0; array.elements() * size];
                convert(array.dtype, &array.bytes, item.dtype, &mut out)
                    .map_err(|why| self.unlike_why(&want(), &why))?;
                out
            }
            Self::Patch(patch) => {
                let stored = patch.to_vec();
                let mut out = vec![0; stored.len() / patch.dtype.size() * size];
                convert(patch.dtype, &stored, item.dtype, &mut out).map_err(|why| self.unlike_why(&want(), &why))?;
                out
            }
            Self::Nested(nested) => {
                let problem = if nested.ends.len() == item.shape.len() {
                    nested.check_shape(&item.shape)
                } else {
                    Err("use list(ragged(...)) for lists of lists".to_owned())
                };
                problem.map_err(|why| self.unlike_why(&want(), &why))?;
                nested.items.gather(&TensorSpec { dtype: item.dtype, shape: Vec::new() })?
            }
            Self::Numbers(numbers) if !numbers.has_rows_of(&item.shape) => return Err(self.unlike(&want())),
            Self::Numbers(numbers) => {
                let mut out = vec![0; numbers.elements() * size];
                numbers.write(item.dtype, &mut out).map_err(|why| self.unlike_why(&want(), &why))?;
                out
            }
            Self::Null | Self::NullAs(_) | Self::Empty(_) => Vec::new(),
            Self::Digits(_) | Self::Int(_) => {
                let mut out = vec![0; size];
                self.scalar(item.dtype, &mut out).map_err(|why| self.unlike_why(&want(), &why))?;
                out
            }
        };
        let whole = item.shape.iter().product::<usize>() * size;
        if whole == 0 || !found.len().is_multiple_of(whole) { Err(self.unlike(&want())) } else { Ok(found) }
    }

    /// Returns the value's stored bytes.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Self::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
            Self::Text(text) => Ok(Cow::Borrowed(text)),
            Self::Digits(text) => Ok(Cow::Borrowed(text)),
            Self::Json(text) => Ok(Cow::Borrowed(text.as_bytes())),
            Self::Numbers(numbers) => Ok(Cow::Borrowed(numbers.text().as_bytes())),
            Self::Empty(text) => Ok(Cow::Borrowed(text.as_bytes())),
            Self::Array(array) | Self::List(array) => Ok(Cow::Borrowed(&array.bytes)),
            Self::Patch(patch) => Ok(Cow::Owned(patch.to_vec())),
            Self::NullAs(empty) => empty.bytes(),
            Self::Feature(Feature::Bytes(values)) if values.len() == 1 => Ok(Cow::Borrowed(values[0])),
            Self::Feature(Feature::Bytes(_)) | Self::Strings(_) => {
                Err(self.unlike_why("bytes", "use raw_list() to get a list of byte strings"))
            }
            _ => Err(self.unlike("bytes")),
        }
    }

    /// The bytes of a text. If the value has elements of more than one byte, it is not a text.
    pub fn text(&self) -> Result<Cow<'_, [u8]>, String> {
        match self {
            Self::Array(Array { dtype, .. }) | Self::List(Array { dtype, .. }) if !is_byte(*dtype) => {
                Err(self.unlike("text"))
            }
            Self::Patch(patch) if !is_byte(patch.dtype) => Err(self.unlike("text")),
            _ => self.bytes(),
        }
    }

    pub(crate) fn unlike(&self, want: &str) -> String {
        format!("expects {want}, but the record contains {}", self.describe())
    }

    pub(crate) fn unlike_why(&self, want: &str, why: &str) -> String {
        format!("{}: {why}", self.unlike(want))
    }

    fn unlike_because(&self, spec: &TensorSpec, why: &str) -> String {
        self.unlike_why(&wanted(spec), why)
    }

    fn scalar(&self, dtype: DType, out: &mut [u8]) -> Result<(), String> {
        let done = match self {
            Self::Int(value) => put_number(dtype, Some(i128::from(*value)), || Some(*value as f64), out),
            Self::Digits(text) => put_text(dtype, std::str::from_utf8(text).map_err(|_| "not UTF-8")?.trim(), out),
            _ => false,
        };
        if done { Ok(()) } else { Err(format!("not a valid {dtype}")) }
    }
}

/// Describes a tensor specification, with its size in bytes.
fn wanted(spec: &TensorSpec) -> String {
    let bytes = spec.size_bytes().unwrap_or(usize::MAX) as u64;
    format!("{} {} ({} bytes)", spec.dtype, shown(&spec.shape), with_separators(bytes))
}

fn describe_feature(feature: &Feature<'_>) -> String {
    match feature {
        Feature::Bytes(values) if values.len() == 1 => {
            format!("bytes_list of 1 value of {} bytes", with_separators(values[0].len() as u64))
        }
        other => format!("{} of {} values", other.kind(), with_separators(other.len() as u64)),
    }
}

fn is_byte(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8)
}

fn is_int(dtype: DType) -> bool {
    !matches!(dtype, DType::F16 | DType::F32 | DType::F64)
}

pub(crate) fn get_int(dtype: DType, bytes: &[u8]) -> i128 {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(wide);
    match dtype {
        DType::I8 => i128::from(value as u8 as i8),
        DType::I16 => i128::from(value as u16 as i16),
        DType::I32 => i128::from(value as u32 as i32),
        DType::I64 => i128::from(value as i64),
        _ => i128::from(value),
    }
}

/// Writes an integer as `dtype`. Returns false if `dtype` cannot represent the integer.
fn put_int(dtype: DType, value: i128, out: &mut [u8]) -> bool {
    let (least, most) = match dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, i128::from(u8::MAX)),
        DType::I8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
        DType::U16 => (0, i128::from(u16::MAX)),
        DType::I16 => (i128::from(i16::MIN), i128::from(i16::MAX)),
        DType::U32 => (0, i128::from(u32::MAX)),
        DType::I32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        DType::U64 => (0, i128::from(u64::MAX)),
        DType::I64 => (i128::from(i64::MIN), i128::from(i64::MAX)),
        DType::F16 | DType::F32 | DType::F64 => return false,
    };
    if !(least..=most).contains(&value) {
        return false;
    }
    out.copy_from_slice(&value.to_le_bytes()[..out.len()]);
    true
}

/// Rounds a number to float32. Returns `None` if the number is finite, but too large for float32.
fn narrowed(value: f64) -> Option<f32> {
    let narrow = value as f32;
    (narrow.is_finite() || !value.is_finite()).then_some(narrow)
}

fn put_number(dtype: DType, int: Option<i128>, float: impl FnOnce() -> Option<f64>, out: &mut [u8]) -> bool {
    match dtype {
        DType::F32 => float().and_then(narrowed).map(|value| out.copy_from_slice(&value.to_le_bytes())).is_some(),
        DType::F64 => float().map(|value| out.copy_from_slice(&value.to_le_bytes())).is_some(),
        _ => int.is_some_and(|value| put_int(dtype, value, out)),
    }
}

/// Writes a number that is given as text as `dtype`. Returns false if `dtype` cannot represent the number.
pub(crate) fn put_text(dtype: DType, text: &str, out: &mut [u8]) -> bool {
    let int = if matches!(dtype, DType::F32 | DType::F64) { None } else { text.parse::<i128>().ok() };
    // For numbers beyond the range of float64, the parser returns infinity.
    let is_number = |value: &f64| value.is_finite() || !text.bytes().any(|byte| byte.is_ascii_digit());
    put_number(dtype, int, || text.parse::<f64>().ok().filter(is_number), out)
}

/// Converts elements to another type. Supports identical types, an integer or float type that represents every value of
/// an integer type exactly, and conversion between float32 and float64.
pub fn convert(from: DType, bytes: &[u8], to: DType, out: &mut [u8]) -> Result<(), String> {
    if from == to {
        if bytes.len() != out.len() {
            return Err(format!(
                "{} bytes instead of {}",
                with_separators(bytes.len() as u64),
                with_separators(out.len() as u64)
            ));
        }
        out.copy_from_slice(bytes);
        return Ok(());
    }
    let pairs = bytes.chunks_exact(from.size()).zip(out.chunks_exact_mut(to.size()));
    match (from, to) {
        // Tokens are often stored as uint16 and read as int64, so this conversion has its own fast loop.
        (DType::U16, DType::I64) => {
            for (slot, value) in out.as_chunks_mut::<8>().0.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *slot = i64::from(u16::from_le_bytes(*value)).to_le_bytes();
            }
            Ok(())
        }
        (DType::F32, DType::F64) => {
            for (slot, value) in out.as_chunks_mut::<8>().0.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *slot = f64::from(f32::from_le_bytes(*value)).to_le_bytes();
            }
            Ok(())
        }
        (DType::F64, DType::F32) => {
            for (slot, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(bytes.as_chunks::<8>().0) {
                let value = f64::from_le_bytes(*value);
                let narrow = narrowed(value).ok_or_else(|| format!("{value:e} is too large for {to}"))?;
                *slot = narrow.to_le_bytes();
            }
            Ok(())
        }
        (from, to) if is_int(from) && is_int(to) => {
            for (value, slot) in pairs {
                let value = get_int(from, value);
                if !put_int(to, value, slot) {
                    return Err(format!("{value} is not a valid {to}"));
                }
            }
            Ok(())
        }
        (from, DType::F32 | DType::F64) if is_int(from) => {
            for (value, slot) in pairs {
                let value = get_int(from, value);
                let is_exact = match to {
                    DType::F32 => (value as f32) as i128 == value,
                    _ => (value as f64) as i128 == value,
                };
                if !is_exact {
                    return Err(format!("{value} cannot be represented exactly as {to}"));
                }
                match to {
                    DType::F32 => slot.copy_from_slice(&(value as f32).to_le_bytes()),
                    _ => slot.copy_from_slice(&(value as f64).to_le_bytes()),
                }
            }
            Ok(())
        }
        (from, to) => Err(format!("{from} cannot be converted to {to}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dtype: DType, shape: &[usize]) -> TensorSpec {
        TensorSpec { dtype, shape: shape.to_vec() }
    }

    #[test]
    fn what_does_not_fit_says_both_sides() {
        let array = Value::Array(Array { dtype: DType::I16, shape: vec![3, 2], bytes: Cow::Owned(vec![0; 12]) });
        let mut out = vec![0; 18];
        assert_eq!(
            array.write(&spec(DType::I16, &[3, 3]), &mut out).unwrap_err(),
            "expects int16 [3, 3] (18 bytes), but the record contains int16 [3, 2]"
        );
        let digits = Value::Digits(b"12x");
        assert_eq!(
            digits.write(&spec(DType::I64, &[]), &mut out[..8]).unwrap_err(),
            "expects int64 [] (8 bytes), but the record contains the text `12x`: not a valid int64"
        );
        assert_eq!(
            Value::Bytes(Cow::Borrowed(b"abc")).gather(&spec(DType::I16, &[])).unwrap_err(),
            "expects any number of int16 [], but the record contains 3 bytes"
        );
    }

    #[test]
    fn integers_become_integers_that_hold_them_and_no_others() {
        let bytes = [255u8, 255, 3, 0];
        let mut out = vec![0; 16];
        convert(DType::U16, &bytes, DType::I64, &mut out).unwrap();
        assert_eq!(out[..8], 65535i64.to_le_bytes());
        assert_eq!(convert(DType::U16, &bytes, DType::I16, &mut out[..4]).unwrap_err(), "65535 is not a valid int16");
        convert(DType::I16, &bytes, DType::I32, &mut out[..8]).unwrap();
        assert_eq!(out[..8], [255, 255, 255, 255, 3, 0, 0, 0]);
        convert(DType::I16, &bytes, DType::F32, &mut out[..8]).unwrap();
        assert_eq!(out[..8], [-1f32, 3.0].map(f32::to_le_bytes).concat());
        let odd = ((1i64 << 53) + 1).to_le_bytes();
        assert_eq!(
            convert(DType::I64, &odd, DType::F64, &mut out[..8]).unwrap_err(),
            "9007199254740993 cannot be represented exactly as float64"
        );
        assert!(convert(DType::F32, &bytes, DType::I32, &mut out[..4]).is_err());
        let mut scalar = [0; 4];
        Value::Digits(b" 7\n").write(&spec(DType::I32, &[]), &mut scalar).unwrap();
        assert_eq!(scalar, 7i32.to_le_bytes());
        Value::Int(2).write(&spec(DType::F32, &[1]), &mut scalar).unwrap();
        assert_eq!(scalar, 2f32.to_le_bytes());
    }
}
