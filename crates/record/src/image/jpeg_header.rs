// SPDX-License-Identifier: Apache-2.0
//! Parses a JPEG up to its frame header, to find its size, kind and orientation.

use penstock_types::{Error, Result, with_separators};

use super::{Kind, Probe, exif};

/// Reads the markers of `bytes` up to the frame header.
pub(super) fn probe(bytes: &[u8], place: &str) -> Result<Probe> {
    let unsupported =
        |what: &str| Error::Unsupported { what: format!("{what} JPEG ({place})"), by: super::DECODING.to_owned() };
    let corrupt = |problem: String| Error::corrupt(place, problem);
    let (mut at, mut orientation) = (2, 1);
    let cut = |at: usize| {
        corrupt(format!(
            "ends inside its JPEG headers (byte {} of {})",
            with_separators(at as u64),
            with_separators(bytes.len() as u64)
        ))
    };
    loop {
        // Like libjpeg, skip any bytes before the next marker, including fill bytes and stuffed zeros.
        let rest = bytes.get(at..).unwrap_or_default();
        at += rest.iter().position(|&byte| byte == 0xff).unwrap_or(rest.len());
        let [0xff, marker, rest @ ..] = bytes.get(at..).unwrap_or_default() else { return Err(cut(at)) };
        match marker {
            0xff => {
                at += 1;
                continue;
            }
            // Stuffed zeros, and markers that have no segment.
            0x00 | 0x01 | 0xd0..=0xd7 => {
                at += 2;
                continue;
            }
            0xd9 | 0xda => return Err(corrupt("is a JPEG without a frame header".to_owned())),
            _ => {}
        }
        let len = rest.first_chunk::<2>().map(|len| usize::from(u16::from_be_bytes(*len))).ok_or_else(|| cut(at))?;
        // A segment length includes its own two bytes; libjpeg treats a smaller length as an empty segment.
        let len = len.max(2);
        let segment = rest.get(2..len).ok_or_else(|| cut(at))?;
        match (marker, segment) {
            (0xe1, _) if orientation == 1 => orientation = exif::orientation(segment).unwrap_or(1),
            (0xc3 | 0xc7 | 0xcb | 0xcf, _) => return Err(unsupported("lossless")),
            (0xc5 | 0xc6 | 0xcd | 0xce, _) => return Err(unsupported("hierarchical")),
            (0xc0..=0xc2 | 0xc9 | 0xca, &[bits, h1, h0, w1, w0, ..]) => {
                if bits != 8 {
                    return Err(unsupported(&format!("{bits}-bit")));
                }
                let (width, height) = (u32::from(w1) << 8 | u32::from(w0), u32::from(h1) << 8 | u32::from(h0));
                return Ok(Probe { width, height, kind: Kind::Jpeg, orientation });
            }
            (0xc0..=0xc2 | 0xc9 | 0xca, _) => return Err(cut(at)),
            _ => {}
        }
        at += 2 + len;
    }
}
