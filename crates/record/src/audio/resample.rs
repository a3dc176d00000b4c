// SPDX-License-Identifier: Apache-2.0
//! Changes the sample rate by a windowed sinc filter with the parameters of `torchaudio.functional.resample`: 6 zero
//! crossings, Hann window, cut-off at 0.99 of the lower Nyquist frequency.
//!
//! Each output sample depends only on the input samples around it, so a clip has the same values as the same part of
//! the whole recording.

use std::f64::consts::PI;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use penstock_types::{lock, with_separators};

/// Zero crossings of the sinc on each side of its centre.
const ZEROS: f64 = 6.0;
/// Cut-off frequency, relative to the lower Nyquist frequency.
const ROLLOFF: f64 = 0.99;
/// Maximum number of coefficients of a filter (16 MiB).
const MAX_COEFFICIENTS: u64 = 4 << 20;
/// Maximum number of cached filters.
const MAX_KEPT: usize = 8;

/// Cached filters; the most recently used one is the last.
static KEPT: Mutex<Vec<Arc<Filter>>> = Mutex::new(Vec::new());

/// Two sample rates, divided by their greatest common divisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rates {
    from: u32,
    to: u32,
}

fn divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { divisor(b, a % b) }
}

impl Rates {
    /// Checks that the conversion between these rates, which must be above 0, has a filter of a supported size.
    pub(super) fn new(from: u32, to: u32) -> Result<Self, String> {
        let divisor = divisor(from, to);
        let rates = Self { from: from / divisor, to: to / divisor };
        let need = rates.taps() * u64::from(rates.to);
        if need > MAX_COEFFICIENTS {
            let (ratio, need) = (format!("{} to {}", rates.from, rates.to), with_separators(need));
            let most = with_separators(MAX_COEFFICIENTS);
            return Err(format!("the ratio {ratio} needs {need} coefficients (at most {most} are supported)"));
        }
        Ok(rates)
    }

    /// Number of output samples of a recording of `frames` samples.
    pub(super) fn output_len(self, frames: u64) -> u64 {
        (u128::from(frames) * u128::from(self.to)).div_ceil(u128::from(self.from)).try_into().unwrap_or(u64::MAX)
    }

    fn cutoff(self) -> f64 {
        f64::from(self.from.min(self.to)) * ROLLOFF
    }

    /// Number of coefficients of each phase.
    fn taps(self) -> u64 {
        (2.0 * ZEROS * f64::from(self.from) / self.cutoff()) as u64 + 1
    }
}

/// Coefficients for a pair of rates.
#[derive(Debug)]
struct Filter {
    rates: Rates,
    /// Number of coefficients of each phase.
    taps: usize,
    /// For each phase, the input sample of its first coefficient, relative to the phase's input position.
    first: Vec<i64>,
    coefficients: Vec<f32>,
}

impl Filter {
    fn new(rates: Rates) -> Self {
        let (orig, new, cutoff, taps) = (f64::from(rates.from), f64::from(rates.to), rates.cutoff(), rates.taps());
        let mut filter = Self { rates, taps: taps as usize, first: Vec::new(), coefficients: Vec::new() };
        for phase in 0..rates.to {
            let centre = f64::from(phase) / new;
            let first = (orig * (centre - ZEROS / cutoff)).ceil();
            filter.first.push(first as i64);
            filter.coefficients.extend((0..taps).map(|tap| {
                let t = ((first + tap as f64) / orig - centre) * cutoff;
                if t.abs() >= ZEROS {
                    return 0.0;
                }
                let window = (t * PI / ZEROS / 2.0).cos().powi(2);
                let sinc = if t == 0.0 { 1.0 } else { (t * PI).sin() / (t * PI) };
                (sinc * window * cutoff / orig) as f32
            }));
        }
        filter
    }

    /// Returns the filter of `rates`. If the filter is not cached, computes it without holding the lock.
    fn of(rates: Rates, kept: &Mutex<Vec<Arc<Self>>>) -> Arc<Self> {
        let found = |kept: &mut Vec<Arc<Self>>| {
            let at = kept.iter().position(|filter| filter.rates == rates)?;
            kept[at..].rotate_left(1);
            kept.last().cloned()
        };
        if let Some(filter) = found(&mut lock(kept)) {
            return filter;
        }
        let filter = Arc::new(Self::new(rates));
        let mut kept = lock(kept);
        // Another thread may have cached the same filter meanwhile.
        found(&mut kept).unwrap_or_else(|| {
            if kept.len() == MAX_KEPT {
                kept.remove(0);
            }
            kept.push(filter.clone());
            filter
        })
    }
}

/// Converts samples of one rate to another.
#[derive(Debug)]
pub(super) struct Resampler(Option<Arc<Filter>>);

impl Resampler {
    /// Prepares the conversion.
    pub(super) fn new(rates: Rates) -> Self {
        Self((rates.from != rates.to).then(|| Filter::of(rates, &KEPT)))
    }

    /// First input sample that an output sample depends on, and the phase of the output sample.
    fn position(filter: &Filter, at: u64) -> (i64, usize) {
        let Rates { from, to } = filter.rates;
        let (period, phase) = (at / u64::from(to), (at % u64::from(to)) as usize);
        ((period * u64::from(from)) as i64 + filter.first[phase], phase)
    }

    /// Range of input samples, out of `frames`, that the output samples `outputs` depend on. `outputs` must not be
    /// empty.
    pub(super) fn inputs(&self, outputs: &Range<u64>, frames: u64) -> Range<u64> {
        let Some(filter) = &self.0 else { return outputs.clone() };
        let first = Self::position(filter, outputs.start).0.max(0) as u64;
        let end = Self::position(filter, outputs.end - 1).0 + filter.taps as i64;
        first.min(frames)..(end.max(0) as u64).min(frames)
    }

    /// Appends the output samples `outputs` to `out`, as far as `input` suffices. Returns the first output sample that
    /// is missing. `input` begins at input sample `base`; if `is_end` is true, all samples after `input` are 0.
    pub(super) fn process(
        &self,
        input: &[f32],
        base: u64,
        outputs: Range<u64>,
        is_end: bool,
        out: &mut Vec<f32>,
    ) -> u64 {
        let have = base + input.len() as u64;
        let Some(filter) = &self.0 else {
            let end = outputs.end.min(have).max(outputs.start);
            let inside = outputs.start.saturating_sub(base) as usize..end.saturating_sub(base) as usize;
            out.extend_from_slice(&input[inside]);
            return end;
        };
        for at in outputs.clone() {
            let (first, phase) = Self::position(filter, at);
            let end = first + filter.taps as i64;
            if end > have as i64 && !is_end {
                return at;
            }
            let coefficients = &filter.coefficients[phase * filter.taps..][..filter.taps];
            // Samples before the recording's start and after its end are 0.
            let (skip, stop) = (first.max(base as i64), end.min(have as i64).max(first));
            let inside = (skip - first).min(stop - first) as usize..(stop - first) as usize;
            let samples = &input[(skip - base as i64).min(input.len() as i64) as usize..][..inside.len()];
            out.push(dot(&coefficients[inside], samples));
        }
        outputs.end
    }
}

/// Sum of products, in eight partial sums that the compiler turns into vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0f32; 8];
    for (a, b) in a.iter().zip(b) {
        for at in 0..8 {
            sums[at] += a[at] * b[at];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resamples as `torchaudio.functional.resample` does: a convolution of the padded signal for each phase.
    fn reference(signal: &[f32], from: u32, to: u32) -> Vec<f64> {
        let divisor = divisor(from, to);
        let (orig, new) = (f64::from(from / divisor), f64::from(to / divisor));
        let base = orig.min(new) * 0.99;
        let width = (6.0 * orig / base).ceil() as i64;
        let outputs = (new * signal.len() as f64 / orig).ceil() as i64;
        let value = |at: i64| {
            let (period, phase) = (at / new as i64, at % new as i64);
            let term = |tap: i64| {
                let t = ((-phase as f64 / new + tap as f64 / orig) * base).clamp(-6.0, 6.0);
                let window = (t * PI / 12.0).cos().powi(2) * base / orig;
                let sinc = if t == 0.0 { 1.0 } else { (t * PI).sin() / (t * PI) };
                let sample = usize::try_from(period * orig as i64 + tap).ok().and_then(|at| signal.get(at));
                f64::from(*sample.unwrap_or(&0.0)) * sinc * window
            };
            (-width..width + orig as i64).map(term).sum()
        };
        (0..outputs).map(value).collect()
    }

    #[test]
    fn resample_agrees_with_torchaudio_and_clips_with_the_whole() {
        let signal: Vec<f32> = (0..700).map(|at| ((at * at) as f32 * 0.37).sin()).collect();
        for (from, to) in [(44_100, 16_000), (8_000, 16_000), (48_000, 16_000), (16_000, 22_050), (3, 7), (16_000, 1)] {
            let want = reference(&signal, from, to);
            let rates = Rates::new(from, to).unwrap();
            assert_eq!(rates.output_len(700), want.len() as u64);
            let resampler = Resampler::new(rates);
            let mut all = Vec::new();
            assert_eq!(resampler.process(&signal, 0, 0..want.len() as u64, true, &mut all), want.len() as u64);
            let worst = all.iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(worst < 2e-6, "{from} to {to}: {worst}");
            // Input in pieces gives the same samples as the whole input.
            let outputs = want.len() as u64 / 3..want.len() as u64 - want.len() as u64 / 4;
            let inputs = resampler.inputs(&outputs, 700);
            let (mut clip, mut next) = (Vec::new(), outputs.start);
            for end in inputs.start..=inputs.end {
                let input = &signal[inputs.start as usize..end as usize];
                next = resampler.process(input, inputs.start, next..outputs.end, end == 700, &mut clip);
            }
            assert_eq!(next, outputs.end);
            assert_eq!(clip, all[outputs.start as usize..outputs.end as usize]);
        }
    }

    #[test]
    fn resample_refuses_ratios_that_need_huge_filters() {
        let problem = Rates::new(767_999, 500_000).unwrap_err();
        assert!(problem.contains("needs 9,500,000 coefficients"), "{problem}");
        assert!(Rates::new(192_000, 191_999).is_ok());
        assert!(Resampler::new(Rates::new(700_001, 700_001).unwrap()).0.is_none());
    }

    #[test]
    fn filters_used_last_are_kept() {
        let kept = Mutex::default();
        let filter = |from| Filter::of(Rates { from, to: 1 }, &kept);
        let first = filter(2);
        for from in 3..20 {
            filter(from);
            assert!(Arc::ptr_eq(&first, &filter(2)));
        }
        let rates: Vec<u32> = lock(&kept).iter().map(|filter| filter.rates.from).collect();
        assert_eq!(rates, [13, 14, 15, 16, 17, 18, 19, 2]);
    }
}
