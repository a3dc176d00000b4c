// SPDX-License-Identifier: Apache-2.0
//! Sample formats of SEG-Y: the encoding of samples in the file, and their element type in memory.

use penstock_types::{DType, Error, Result};
use serde::{Deserialize, Serialize};

use super::ibm::{f32_to_ibm, ibm_to_f32};

/// Byte order of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ByteOrder {
    /// Most significant byte first, as in revisions 0 and 1.
    Big,
    /// Least significant byte first.
    Little,
}

/// Sample format. Its code is in bytes 3225–3226 of the file (SEG-Y revision 2.1, table 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleFormat {
    /// 1: IBM floating point, 4 bytes.
    Ibm,
    /// 2: integer, 4 bytes.
    I32,
    /// 3: integer, 2 bytes.
    I16,
    /// 5: IEEE float, 4 bytes.
    F32,
    /// 6: IEEE float, 8 bytes.
    F64,
    /// 7: integer, 3 bytes.
    I24,
    /// 8: integer, 1 byte.
    I8,
    /// 9: integer, 8 bytes.
    I64,
    /// 10: unsigned integer, 4 bytes.
    U32,
    /// 11: unsigned integer, 2 bytes.
    U16,
    /// 12: unsigned integer, 8 bytes.
    U64,
    /// 15: unsigned integer, 3 bytes.
    U24,
    /// 16: unsigned integer, 1 byte.
    U8,
}

impl SampleFormat {
    const CODES: [(u16, Self); 13] = [
        (1, Self::Ibm),
        (2, Self::I32),
        (3, Self::I16),
        (5, Self::F32),
        (6, Self::F64),
        (7, Self::I24),
        (8, Self::I8),
        (9, Self::I64),
        (10, Self::U32),
        (11, Self::U16),
        (12, Self::U64),
        (15, Self::U24),
        (16, Self::U8),
    ];

    /// Returns the format with this code. `None` if the code is unknown, or is the obsolete 4 (fixed point with gain).
    pub fn of_code(code: u16) -> Option<Self> {
        Self::CODES.iter().find(|(number, _)| *number == code).map(|(_, format)| *format)
    }

    /// Code in the binary header.
    pub fn code(self) -> u16 {
        Self::CODES.iter().find(|(_, format)| *format == self).map_or(0, |(code, _)| *code)
    }

    /// Size of a sample in the file, in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::I24 | Self::U24 => 3,
            other => other.dtype().size(),
        }
    }

    /// Type of a sample in memory.
    pub fn dtype(self) -> DType {
        match self {
            Self::Ibm | Self::F32 => DType::F32,
            Self::F64 => DType::F64,
            Self::I32 | Self::I24 => DType::I32,
            Self::I16 => DType::I16,
            Self::I8 => DType::I8,
            Self::I64 => DType::I64,
            Self::U32 | Self::U24 => DType::U32,
            Self::U16 => DType::U16,
            Self::U64 => DType::U64,
            Self::U8 => DType::U8,
        }
    }
}

/// Reverses each group of `N` bytes.
fn swap<const N: usize>(stored: &[u8], out: &mut [u8]) {
    for (from, to) in stored.as_chunks::<N>().0.iter().zip(out.as_chunks_mut::<N>().0) {
        *to = *from;
        to.reverse();
    }
}

/// Decodes stored samples into little-endian elements of the format's type. Errs if the buffer sizes do not match.
pub fn decode(format: SampleFormat, order: ByteOrder, stored: &[u8], out: &mut [u8]) -> Result<()> {
    let samples = stored.len() / format.size();
    if !stored.len().is_multiple_of(format.size()) || out.len() != samples * format.dtype().size() {
        return Err(Error::bug(format!(
            "cannot decode {} bytes in SEG-Y format {format:?} into {} bytes",
            stored.len(),
            out.len()
        )));
    }
    let is_big = order == ByteOrder::Big;
    let word = |bytes: &[u8; 4]| if is_big { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) };
    match format {
        SampleFormat::Ibm => {
            for (from, to) in stored.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
                *to = ibm_to_f32(word(from)).to_le_bytes();
            }
        }
        SampleFormat::I24 | SampleFormat::U24 => {
            for (from, to) in stored.as_chunks::<3>().0.iter().zip(out.as_chunks_mut::<4>().0) {
                let [a, b, c] = if is_big { *from } else { [from[2], from[1], from[0]] };
                let sign = if format == SampleFormat::I24 && a & 0x80 != 0 { 0xff } else { 0 };
                *to = [c, b, a, sign];
            }
        }
        _ if !is_big => out.copy_from_slice(stored),
        _ => match format.size() {
            2 => swap::<2>(stored, out),
            4 => swap::<4>(stored, out),
            8 => swap::<8>(stored, out),
            _ => out.copy_from_slice(stored),
        },
    }
    Ok(())
}

/// Encodes little-endian elements of the format's type for storage. Errs if the buffer sizes do not match, and with
/// `Config` if an integer does not fit in three bytes.
pub fn encode(format: SampleFormat, order: ByteOrder, values: &[u8], out: &mut [u8]) -> Result<()> {
    let samples = values.len() / format.dtype().size();
    if !values.len().is_multiple_of(format.dtype().size()) || out.len() != samples * format.size() {
        return Err(Error::bug(format!("{} bytes as {format:?} into {}", values.len(), out.len())));
    }
    let is_big = order == ByteOrder::Big;
    match format {
        SampleFormat::Ibm => {
            for (from, to) in values.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
                let word = f32_to_ibm(f32::from_le_bytes(*from));
                *to = if is_big { word.to_be_bytes() } else { word.to_le_bytes() };
            }
        }
        SampleFormat::I24 | SampleFormat::U24 => {
            for (from, to) in values.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<3>().0) {
                let [c, b, a, rest] = *from;
                let sign = if format == SampleFormat::I24 && a & 0x80 != 0 { 0xff } else { 0 };
                if rest != sign {
                    let value = i64::from(i32::from_le_bytes(*from));
                    return Err(Error::config("samples", format!("{value} does not fit into three bytes")));
                }
                *to = if is_big { [a, b, c] } else { [c, b, a] };
            }
        }
        _ if !is_big => out.copy_from_slice(values),
        _ => match format.size() {
            2 => swap::<2>(values, out),
            4 => swap::<4>(values, out),
            8 => swap::<8>(values, out),
            _ => out.copy_from_slice(values),
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn test_int24_negative_keeps_its_sign() {
        let mut out = [0; 8];
        decode(SampleFormat::I24, ByteOrder::Big, &[0xff, 0xff, 0xfe, 0x00, 0x01, 0x02], &mut out).unwrap();
        assert_eq!(out, [0xfe, 0xff, 0xff, 0xff, 0x02, 0x01, 0, 0]);
        decode(SampleFormat::U24, ByteOrder::Little, &[0xfe, 0xff, 0xff], &mut out[..4]).unwrap();
        assert_eq!(out[..4], [0xfe, 0xff, 0xff, 0]);
    }

    #[test]
    fn test_encode_integer_above_three_bytes_is_refused() {
        let error = encode(SampleFormat::I24, ByteOrder::Big, &0x80_0000i32.to_le_bytes(), &mut [0; 3]).unwrap_err();
        assert_eq!(error.to_string(), "samples: 8388608 does not fit into three bytes");
    }

    proptest! {
        #[test]
        fn prop_samples_come_back(code in 0usize..13, is_big: bool, bytes in prop::collection::vec(any::<u8>(), 24 * 8)) {
            let format = SampleFormat::CODES[code].1;
            let order = if is_big { ByteOrder::Big } else { ByteOrder::Little };
            let stored = &bytes[..8 * format.size()];
            let mut values = vec![0; 8 * format.dtype().size()];
            decode(format, order, stored, &mut values).unwrap();
            let mut back = vec![0; stored.len()];
            encode(format, order, &values, &mut back).unwrap();
            if format != SampleFormat::Ibm {
                prop_assert_eq!(stored, &back);
            }
        }
    }
}
