// SPDX-License-Identifier: Apache-2.0
//! Count, minimum, maximum and sum of the numbers that a writer stores.

use penstock_types::DType;

/// Statistics of numbers. NaNs are only counted; they do not affect the other statistics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ValueStats {
    /// Number of values that are not NaN.
    pub count: u64,
    /// Number of NaNs.
    pub nan: u64,
    /// Smallest value; infinity if `count` is 0.
    pub min: f64,
    /// Largest value; minus infinity if `count` is 0.
    pub max: f64,
    /// Sum of the values. Integers are summed exactly within each call.
    pub sum: f64,
}

impl Default for ValueStats {
    fn default() -> Self {
        Self { count: 0, nan: 0, min: f64::INFINITY, max: f64::NEG_INFINITY, sum: 0.0 }
    }
}

/// Number of small integers whose sum is computed in 64 bits. Up to 2^31 values of 32 bits cannot overflow this sum.
const RUN: usize = 1 << 20;

impl ValueStats {
    /// Adds one value.
    pub fn add(&mut self, value: f64) {
        if value.is_nan() {
            self.nan += 1;
        } else {
            self.merge(&Self { count: 1, nan: 0, min: value, max: value, sum: value });
        }
    }

    /// Adds the statistics of other values.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.nan += other.nan;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// Adds integers.
    pub fn add_ints(&mut self, values: &[i64]) {
        if let (Some(min), Some(max)) = (values.iter().min(), values.iter().max()) {
            let sum: i128 = values.iter().map(|&value| i128::from(value)).sum();
            self.add_range(values.len(), *min as f64, *max as f64, sum as f64);
        }
    }

    /// Adds floats.
    pub fn add_floats(&mut self, values: &[f32]) {
        self.floats(values.iter().map(|&value| f64::from(value)));
    }

    /// Adds the elements in `bytes`, which are little-endian. Bytes after the last whole element are ignored.
    pub fn add_elements(&mut self, dtype: DType, bytes: &[u8]) {
        macro_rules! small_ints {
            ($type:ty) => {{
                const SIZE: usize = size_of::<$type>();
                for run in bytes.as_chunks::<SIZE>().0.chunks(RUN) {
                    let (mut min, mut max, mut sum) = (<$type>::MAX, <$type>::MIN, 0i64);
                    for &value in run {
                        let value = <$type>::from_le_bytes(value);
                        min = min.min(value);
                        max = max.max(value);
                        sum += i64::from(value);
                    }
                    self.add_range(run.len(), min as f64, max as f64, sum as f64);
                }
            }};
        }
        macro_rules! others {
            ($type:ty) => {{
                const SIZE: usize = size_of::<$type>();
                self.floats(bytes.as_chunks::<SIZE>().0.iter().map(|&value| <$type>::from_le_bytes(value) as f64));
            }};
        }
        match dtype {
            DType::Bool | DType::U8 => small_ints!(u8),
            DType::I8 => small_ints!(i8),
            DType::U16 => small_ints!(u16),
            DType::I16 => small_ints!(i16),
            DType::U32 => small_ints!(u32),
            DType::I32 => small_ints!(i32),
            DType::U64 => others!(u64),
            DType::I64 => others!(i64),
            DType::F32 => others!(f32),
            DType::F64 => others!(f64),
            DType::F16 => self.floats(bytes.as_chunks::<2>().0.iter().map(|&value| half(u16::from_le_bytes(value)))),
        }
    }

    fn add_range(&mut self, count: usize, min: f64, max: f64, sum: f64) {
        self.merge(&Self { count: count as u64, nan: 0, min, max, sum });
    }

    fn floats(&mut self, values: impl Iterator<Item = f64>) {
        let mut found = Self::default();
        for value in values {
            if value.is_nan() {
                found.nan += 1;
                continue;
            }
            found.count += 1;
            found.min = found.min.min(value);
            found.max = found.max.max(value);
            found.sum += value;
        }
        self.merge(&found);
    }
}

/// Converts the bits of a 16-bit float (IEEE 754).
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction > 0.0 => f64::NAN,
        31 => f64::INFINITY,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_stats_of_each_type_agree() {
        let want = ValueStats { count: 3, nan: 0, min: 1.0, max: 7.0, sum: 11.0 };
        macro_rules! agree {
            ($($dtype:ident $type:ty),*) => {$({
                let bytes: Vec<u8> = [7 as $type, 1 as $type, 3 as $type].iter().flat_map(|value| value.to_le_bytes()).collect();
                let mut stats = ValueStats::default();
                stats.add_elements(DType::$dtype, &bytes);
                assert_eq!(stats, want, "{}", DType::$dtype);
            })*};
        }
        agree!(U8 u8, I8 i8, U16 u16, I16 i16, U32 u32, I32 i32, U64 u64, I64 i64, F32 f32, F64 f64);
        let halves: Vec<u8> =
            [0x4700u16, 0x3c00, 0x4200, 0x7e00].iter().flat_map(|value| value.to_le_bytes()).collect();
        let (mut halved, mut ints, mut floats) = (ValueStats::default(), ValueStats::default(), ValueStats::default());
        halved.add_elements(DType::F16, &halves);
        ints.add_ints(&[7, 1, 3]);
        floats.add_floats(&[7.0, f32::NAN, 1.0, 3.0]);
        let with_nan = ValueStats { nan: 1, ..want };
        assert_eq!((halved, ints, floats), (with_nan, want, with_nan));
    }

    #[test]
    fn value_stats_of_nothing_are_empty() {
        let mut stats = ValueStats::default();
        stats.add_ints(&[]);
        stats.add_elements(DType::I32, &[1]);
        assert_eq!(stats, ValueStats::default());
    }
}
