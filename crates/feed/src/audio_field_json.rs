// SPDX-License-Identifier: Apache-2.0
//! JSON documents by which Python describes audio fields.

use penstock_record::audio::{AudioSpec, ClipSpec, Start};
use penstock_types::{DType, Result};
use serde::{Deserialize, Serialize};

/// Specification of an audio field, in the JSON that Python writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AudioDocument {
    sample_rate: Option<u32>,
    channels: usize,
    /// Number of samples of a clip; `None` to deliver the whole recording.
    samples: Option<usize>,
    /// Start of a clip in seconds; `None` for a random start.
    start: Option<f64>,
    max_seconds: f64,
    /// True if the field is the number of samples instead of the samples.
    #[serde(default)]
    measures: bool,
}

impl AudioDocument {
    pub(super) fn spec(&self, dtype: DType) -> Result<AudioSpec> {
        let start = self.start.map_or(Start::Random, Start::At);
        let clip = self.samples.map(|samples| ClipSpec { samples, start });
        let (sample_rate, channels, max_seconds) = (self.sample_rate, self.channels, self.max_seconds);
        // If `measures` is set, `dtype` is the type of the length. No samples are decoded in this case, so their type
        // is not used.
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
