// SPDX-License-Identifier: Apache-2.0
//! Fields of audio: their JSON form, the decoding of their values, and the fields that follow them.

use std::borrow::Cow;

use penstock_record::audio::{AudioSpec, ClipSpec, Start, decode};
use penstock_types::{DType, Error, Result};
use serde::{Deserialize, Serialize};

use super::field::Field;
use super::format::RecordId;
use super::record_values::in_record;
use super::value::{Array, Value};

/// JSON form of an audio field's specification, as written by Python.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AudioDocument {
    sample_rate: Option<u32>,
    channels: usize,
    /// Number of samples of a clip; `None` for the whole recording.
    samples: Option<usize>,
    /// Start of a clip in seconds; `None` for a random one.
    start: Option<f64>,
    max_seconds: f64,
    /// True if the field is the number of samples, not the samples.
    #[serde(default)]
    measures: bool,
}

impl AudioDocument {
    pub(super) fn spec(&self, dtype: DType) -> Result<AudioSpec> {
        let start = self.start.map_or(Start::Random, Start::At);
        let clip = self.samples.map(|samples| ClipSpec { samples, start });
        let (sample_rate, channels, max_seconds) = (self.sample_rate, self.channels, self.max_seconds);
        // A length has no samples, so the type of its field is not theirs.
        let dtype = if self.measures { DType::F32 } else { dtype };
        let spec = AudioSpec { sample_rate, channels, dtype, clip, max_seconds, measures: self.measures };
        spec.check()?;
        Ok(spec)
    }

    pub(super) fn of(spec: &AudioSpec) -> Self {
        let start = spec.clip.and_then(|clip| if let Start::At(at) = clip.start { Some(at) } else { None });
        Self {
            sample_rate: spec.sample_rate,
            channels: spec.channels,
            samples: spec.clip.map(|clip| clip.samples),
            start,
            max_seconds: spec.max_seconds,
            measures: spec.measures,
        }
    }
}

/// Property of a recording, which is delivered as a field of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AudioFact {
    /// For each sample of a clip, true if it comes from the recording.
    Mask,
    /// Sample rate of the file, in Hz.
    Rate,
}

/// Properties of a recording that was decoded.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Recording {
    samples: usize,
    rate: u32,
}

impl Recording {
    /// Value of a field that follows the recording; without a recording, zeros.
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
