// SPDX-License-Identifier: Apache-2.0
//! IBM System/360 single precision: a sign, an exponent of base 16 (biased by 64), and a 24-bit fraction.
//!
//! Each normalised IBM word between 2^-126 and 2^128 equals an `f32`, and converting that `f32` back gives the same
//! word. Other words (un-normalised fractions, larger or smaller numbers) cannot be restored from an `f32`, so the
//! caller stores such words separately.

/// Scale factor of each exponent: 16^(exponent - 64) / 2^24. All are exact in `f64`.
static SCALE: [f64; 128] = scales();

const fn scales() -> [f64; 128] {
    let mut scales = [0.0; 128];
    let mut exponent = 0;
    while exponent < 128 {
        // The bits of 2^(4 * (exponent - 64) - 24) as an `f64`: the exponent, biased by 1,023, followed by 52 fraction
        // bits.
        scales[exponent] = f64::from_bits(((1023 + 4 * exponent as u64) - 64 * 4 - 24) << 52);
        exponent += 1;
    }
    scales
}

/// Converts an IBM word to the nearest `f32`. Returns infinity if the value is above the range of `f32`.
#[inline]
pub fn ibm_to_f32(word: u32) -> f32 {
    let fraction = f64::from(word & 0x00ff_ffff) * SCALE[(word >> 24 & 0x7f) as usize];
    f32::from_bits((fraction as f32).to_bits() | word & 0x8000_0000)
}

/// True if the word survives a round trip through [`ibm_to_f32`] and [`f32_to_ibm`].
#[inline]
pub fn ibm_to_f32_exact(word: u32) -> bool {
    let exponent = word >> 24 & 0x7f;
    // The word is normalised (its first digit is not zero), and its value is in the range of normal `f32` numbers.
    let is_usual = word & 0x00f0_0000 != 0 && (34..=96).contains(&exponent);
    is_usual || word & 0x7fff_ffff == 0 || f32_to_ibm(ibm_to_f32(word)) == word
}

/// Converts a value to the nearest normalised IBM word; ties go to the even fraction. Infinity and NaN, which the IBM
/// format does not have, become the largest word of the same sign.
#[inline]
pub fn f32_to_ibm(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits & 0x8000_0000;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude == 0 {
        return sign;
    }
    if magnitude >= 0x7f80_0000 {
        return sign | 0x7fff_ffff;
    }
    // The value is a 24-bit fraction between 1/2 and 1, times 2^power.
    let (fraction, power) = match magnitude >> 23 {
        0 => {
            let shift = magnitude.leading_zeros() - 8;
            (magnitude << shift, -125 - shift as i32)
        }
        biased => (magnitude & 0x007f_ffff | 0x0080_0000, biased as i32 - 126),
    };
    let exponent = (power + 3).div_euclid(4);
    let shift = (4 * exponent - power) as u32;
    let half = (1u32 << shift) >> 1;
    let kept = fraction >> shift;
    let lost = fraction & ((1 << shift) - 1);
    let rounded = kept + u32::from(half != 0 && (lost > half || lost == half && kept & 1 == 1));
    let (rounded, exponent) = if rounded == 1 << 24 { (rounded >> 4, exponent + 1) } else { (rounded, exponent) };
    sign | ((exponent + 64) as u32) << 24 | rounded
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn test_ibm_known_words_have_their_values() {
        // Known words for -118.625, 1, the largest f32 and 0, from the definition of the format.
        for (word, value) in [(0xc276_a000, -118.625), (0x4110_0000, 1.0), (0x60ff_ffff, f32::MAX), (0, 0.0)] {
            assert_eq!(ibm_to_f32(word), value);
            assert_eq!(f32_to_ibm(value), word);
        }
        assert_eq!(ibm_to_f32(0x8000_0000).to_bits(), 0x8000_0000);
        assert_eq!(ibm_to_f32(0x7fff_ffff), f32::INFINITY);
    }

    #[test]
    fn test_ibm_unnormalised_words_are_not_exact() {
        for word in [0x4100_0001, 0x4000_0000, 0x7f10_0000, 0x0110_0000, 0xc20f_ffff] {
            assert!(!ibm_to_f32_exact(word), "{word:#x}");
        }
    }

    proptest! {
        #[test]
        fn prop_ibm_exact_words_come_back(word: u32) {
            prop_assert_eq!(ibm_to_f32_exact(word), f32_to_ibm(ibm_to_f32(word)) == word);
        }

        #[test]
        fn prop_ibm_normalised_words_are_exact(sign: bool, exponent in 34u32..=96, fraction in 0x10_0000u32..=0xff_ffff) {
            prop_assert!(ibm_to_f32_exact(u32::from(sign) << 31 | exponent << 24 | fraction));
        }

        #[test]
        fn prop_f32_to_ibm_error_is_below_three_bits(bits: u32) {
            let value = f32::from_bits(bits);
            prop_assume!(value.is_finite() && value.is_normal());
            let back = ibm_to_f32(f32_to_ibm(value));
            let limit = f64::from(value).abs() * 2f64.powi(-21);
            prop_assert!((f64::from(back) - f64::from(value)).abs() <= limit || back.is_infinite() && value.abs() > 3.4e38);
        }
    }
}
