// SPDX-License-Identifier: Apache-2.0
//! One feature of a tf.Example, parsed in place: a list of byte strings, floats or integers.

use penstock_types::{DType, TensorSpec, with_separators};

use crate::protobuf::{Message, Problem, Value, varint};

/// A feature whose values are not copied out of the payload.
#[derive(Debug, Clone, PartialEq)]
pub enum Feature<'a> {
    /// `bytes_list`.
    Bytes(Vec<&'a [u8]>),
    /// `float_list`.
    Floats(Floats<'a>),
    /// `int64_list`.
    Ints(Ints<'a>),
}

impl<'a> Feature<'a> {
    /// Name of the feature's kind, as in the definition of tf.Example.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "bytes_list",
            Self::Floats(_) => "float_list",
            Self::Ints(_) => "int64_list",
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(values) => values.len(),
            Self::Floats(values) => values.len(),
            Self::Ints(values) => values.len(),
        }
    }

    /// True if the feature has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Merges a `Feature` message into `before`, the part of the same feature that was already read. Values of the same
    /// kind are appended; another kind replaces them (the kind is a oneof). `None` means a feature without a kind.
    pub(crate) fn merge(mut before: Option<Self>, message: &'a [u8]) -> Result<Option<Self>, Problem> {
        let mut fields = Message::new(message);
        while let Some((number, value)) = fields.next()? {
            let Value::Bytes(list) = value else { continue };
            before = match (number, before) {
                (1, Some(Self::Bytes(values))) => Some(Self::Bytes(merge_bytes(values, list)?)),
                (1, _) => Some(Self::Bytes(merge_bytes(Vec::new(), list)?)),
                (2, Some(Self::Floats(values))) => Some(Self::Floats(values.merge(list)?)),
                (2, _) => Some(Self::Floats(Floats::default().merge(list)?)),
                (3, Some(Self::Ints(values))) => Some(Self::Ints(values.merge(list)?)),
                (3, _) => Some(Self::Ints(Ints::default().merge(list)?)),
                (_, same) => same,
            };
        }
        Ok(before)
    }

    /// Writes the values to `out`, which has the size of `spec`, as elements of the type in `spec`. A single byte
    /// string is copied unchanged; floats become float32 or float64; integers become any integer type that can hold
    /// them. The error text continues a sentence that starts with the feature's name.
    pub fn write(&self, spec: &TensorSpec, out: &mut [u8]) -> Result<(), String> {
        let want = || format!("want {} {:?}", spec.dtype, spec.shape);
        let elements = out.len() / spec.dtype.size();
        let counted = |what: &str| match self.len() {
            have if have == elements => Ok(()),
            have => Err(format!(
                "has {} {what}, {}: {}",
                with_separators(have as u64),
                want(),
                with_separators(elements as u64)
            )),
        };
        match (self, spec.dtype) {
            (Self::Bytes(values), _) => match values.as_slice() {
                [value] if value.len() == out.len() => {
                    out.copy_from_slice(value);
                    Ok(())
                }
                [value] => {
                    let (have, size) = (with_separators(value.len() as u64), with_separators(out.len() as u64));
                    Err(format!("has {have} bytes, {}: {size} bytes", want()))
                }
                values => Err(format!(
                    "has {} byte strings, {} in one byte string",
                    with_separators(values.len() as u64),
                    want()
                )),
            },
            (Self::Floats(values), DType::F32) => {
                counted("floats")?;
                values.copy_to(out);
                Ok(())
            }
            (Self::Floats(values), DType::F64) => {
                counted("floats")?;
                for (slot, value) in out.as_chunks_mut::<8>().0.iter_mut().zip(values.iter()) {
                    *slot = f64::from(value).to_le_bytes();
                }
                Ok(())
            }
            (Self::Floats(_), _) | (Self::Ints(_), DType::F16 | DType::F32 | DType::F64) => {
                Err(format!("is of kind {} ({} values), {}", self.kind(), with_separators(self.len() as u64), want()))
            }
            (Self::Ints(values), dtype) => {
                counted("integers")?;
                match dtype {
                    DType::Bool => values.convert(out, |one: Bit| [one.0]),
                    DType::U8 => values.convert(out, u8::to_le_bytes),
                    DType::I8 => values.convert(out, i8::to_le_bytes),
                    DType::U16 => values.convert(out, u16::to_le_bytes),
                    DType::I16 => values.convert(out, i16::to_le_bytes),
                    DType::U32 => values.convert(out, u32::to_le_bytes),
                    DType::I32 => values.convert(out, i32::to_le_bytes),
                    DType::U64 => values.convert(out, u64::to_le_bytes),
                    DType::I64 | DType::F16 | DType::F32 | DType::F64 => values.convert(out, i64::to_le_bytes),
                }
                .map_err(|value| format!("contains {value}, which is not of type {dtype}"))
            }
        }
    }
}

/// Boolean element, read from the integer 0 or 1.
struct Bit(u8);

impl TryFrom<i64> for Bit {
    type Error = ();

    fn try_from(value: i64) -> Result<Self, ()> {
        u8::try_from(value).ok().filter(|&bit| bit < 2).map(Self).ok_or(())
    }
}

fn merge_bytes<'a>(mut values: Vec<&'a [u8]>, list: &'a [u8]) -> Result<Vec<&'a [u8]>, Problem> {
    let mut fields = Message::new(list);
    while let Some(field) = fields.next()? {
        if let (1, Value::Bytes(value)) = field {
            values.push(value);
        }
    }
    Ok(values)
}

/// Floats of a `float_list`, packed or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Floats<'a> {
    /// Little-endian bytes of the floats, in runs of whole floats.
    runs: Vec<&'a [u8]>,
    len: usize,
}

impl<'a> Floats<'a> {
    fn merge(mut self, list: &'a [u8]) -> Result<Self, Problem> {
        let mut fields = Message::new(list);
        while let Some(field) = fields.next()? {
            let run: &[u8] = match field {
                (1, Value::Bytes(run)) if run.len() % 4 != 0 => {
                    return Err("has a float list that ends inside a float");
                }
                (1, Value::Bytes(run)) => run,
                (1, Value::Fixed32(one)) => one,
                _ => continue,
            };
            self.len += run.len() / 4;
            self.runs.push(run);
        }
        Ok(self)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the list has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values.
    pub fn iter(&self) -> impl Iterator<Item = f32> + use<'a, '_> {
        self.runs.iter().flat_map(|run| run.as_chunks::<4>().0).map(|bytes| f32::from_le_bytes(*bytes))
    }

    /// Copies the values, little-endian, to `out`, which must have four bytes per value.
    fn copy_to(&self, mut out: &mut [u8]) {
        for run in &self.runs {
            let (slot, rest) = out.split_at_mut(run.len());
            slot.copy_from_slice(run);
            out = rest;
        }
    }
}

/// Integers of an `int64_list`, packed or not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ints<'a> {
    runs: Vec<Run<'a>>,
    len: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Run<'a> {
    /// A packed field whose varints were already checked.
    Packed(&'a [u8]),
    /// Consecutive unpacked fields, each with one value.
    Single(Vec<i64>),
}

impl<'a> Ints<'a> {
    fn merge(mut self, list: &'a [u8]) -> Result<Self, Problem> {
        let mut fields = Message::new(list);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(run)) => {
                    self.len += count_varints(run)?;
                    self.runs.push(Run::Packed(run));
                }
                (1, Value::Varint(one)) => {
                    self.len += 1;
                    match self.runs.last_mut() {
                        Some(Run::Single(values)) => values.push(one as i64),
                        _ => self.runs.push(Run::Single(vec![one as i64])),
                    }
                }
                _ => {}
            }
        }
        Ok(self)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the list has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The values.
    pub fn iter(&self) -> impl Iterator<Item = i64> + use<'a, '_> {
        self.runs.iter().flat_map(|run| {
            let (mut packed, single): (&[u8], &[i64]) = match run {
                Run::Packed(bytes) => (bytes, &[]),
                Run::Single(values) => (&[], values),
            };
            std::iter::from_fn(move || varint(&mut packed).ok().map(|value| value as i64)).chain(single.iter().copied())
        })
    }

    /// Writes the values as integers of `N` bytes. The error contains the first value that does not fit.
    fn convert<T: TryFrom<i64>, const N: usize>(&self, out: &mut [u8], bytes: fn(T) -> [u8; N]) -> Result<(), i64> {
        for (slot, value) in out.as_chunks_mut::<N>().0.iter_mut().zip(self.iter()) {
            *slot = bytes(T::try_from(value).map_err(|_| value)?);
        }
        Ok(())
    }
}

/// Number of varints in `run`. Returns an error if the last varint is incomplete.
fn count_varints(mut run: &[u8]) -> Result<usize, Problem> {
    let mut count = 0;
    while !run.is_empty() {
        varint(&mut run)?;
        count += 1;
    }
    Ok(count)
}
