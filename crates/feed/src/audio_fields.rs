// SPDX-License-Identifier: Apache-2.0
//! Decodes audio fields, and computes the fields that follow them.

use std::borrow::Cow;

use penstock_record::audio::{AudioSpec, decode};
use penstock_types::{DType, Error, Result};

use super::annotation_kind::AudioFact;
use super::field::Field;
use super::field_lookup::in_record;
use super::format::RecordId;
use super::value::{Array, Value};

/// Properties of a decoded recording.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recording {
    samples: usize,
    rate: u32,
}

impl Recording {
    /// Value of a field that follows the recording. If the record has no recording, the value is zero or false.
    pub(super) fn value(self, fact: AudioFact, field: &Field) -> Value<'static> {
        let spec = field.fixed();
        let elements = spec.as_ref().map_or(0, |spec| spec.shape.iter().product());
        match fact {
            AudioFact::Rate => Value::Int(self.rate.into()),
            AudioFact::Mask => Value::Array(Array {
                dtype: DType::Bool,
                shape: spec.map(|spec| spec.shape).unwrap_or_default(),
                bytes: Cow::Owned((0..elements).map(|at| u8::from(at < self.samples)).collect()),
            }),
        }
    }
}

/// Decodes the recording in `part`.
pub(super) fn decoded(
    spec: &AudioSpec,
    field: &Field,
    part: &Value<'_>,
    key: u64,
    id: &RecordId<'_>,
) -> Result<(Value<'static>, Recording)> {
    let mismatch = |problem: String| Error::mismatch(id.place, format!("field `{}` {problem}", field.name));
    let bytes = part.bytes().map_err(|problem| in_record(mismatch(problem), id))?;
    let reserve = |bytes: u64| id.memory.take(&format!("field `{}` (decoded audio)", field.name), bytes);
    let decoded = decode(&bytes, spec, key, id.place, reserve).map_err(|error| in_record(error, id))?;
    let recording = Recording { samples: decoded.samples, rate: decoded.rate };
    if spec.measures {
        return Ok((Value::Int(decoded.samples as i64), recording));
    }
    let shape = field.fixed().map(|spec| spec.shape).unwrap_or_default();
    let array = Array { dtype: spec.dtype, shape, bytes: Cow::Owned(decoded.bytes) };
    Ok((if spec.clip.is_some() { Value::Array(array) } else { Value::List(array) }, recording))
}
