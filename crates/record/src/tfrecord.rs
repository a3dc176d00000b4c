// SPDX-License-Identifier: Apache-2.0
//! TFRecord framing: length (8 bytes, little-endian), its masked CRC-32C, payload, its masked CRC-32C.
//!
//! The length's checksum is always checked: it is what tells a TFRecord from other bytes and keeps a damaged length from
//! sending the walk astray. The payload's is checked where asked. An empty object holds no records.

use penstock_codec::checksum::{crc32c, crc32c_masked, mask};
use penstock_types::{Error, Result, grouped};

use crate::magic;

/// Bytes before a payload.
pub const HEADER_LEN: usize = 12;
/// Bytes after a payload.
pub const FOOTER_LEN: usize = 4;

/// Bytes that a payload of `payload_len` takes with its frame.
pub fn frame_len(payload_len: u64) -> u64 {
    payload_len.saturating_add((HEADER_LEN + FOOTER_LEN) as u64)
}

/// Appends `payload` in its frame to `out`.
pub fn write_frame(payload: &[u8], out: &mut Vec<u8>) {
    let len = (payload.len() as u64).to_le_bytes();
    out.reserve(HEADER_LEN + payload.len() + FOOTER_LEN);
    out.extend_from_slice(&len);
    out.extend_from_slice(&crc32c_masked(&len).to_le_bytes());
    out.extend_from_slice(payload);
    out.extend_from_slice(&crc32c_masked(payload).to_le_bytes());
}

/// A record where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Where its frame begins.
    pub offset: u64,
    /// Its payload.
    pub payload: &'a [u8],
}

/// Where a record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordSpan {
    /// Where its frame begins; the payload begins [`HEADER_LEN`] later.
    pub offset: u64,
    /// Bytes of payload.
    pub len: u64,
}

/// The checksum that a header states and the one that its length has.
fn header_sums(header: &[u8; HEADER_LEN]) -> (u32, u32) {
    let [length @ .., a, b, c, d] = header;
    (u32::from_le_bytes([*a, *b, *c, *d]), crc32c_masked(length))
}

fn header_length(header: &[u8; HEADER_LEN]) -> u64 {
    let [length @ .., _, _, _, _] = header;
    u64::from_le_bytes(*length)
}

pub(crate) fn header_is_sound(header: &[u8; HEADER_LEN]) -> bool {
    let (want, is) = header_sums(header);
    want == is
}

/// The records of one object's inflated bytes, in order. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    record: u64,
    place: &'a str,
    verify_crc: bool,
}

impl<'a> Frames<'a> {
    /// The records of `bytes`; `place` names the object in messages, `verify_crc` checks payloads too.
    pub fn new(bytes: &'a [u8], place: &'a str, verify_crc: bool) -> Self {
        Self { bytes, at: 0, record: 0, place, verify_crc }
    }

    fn read(&self) -> Result<Frame<'a>> {
        let (offset, record) = (self.at as u64, self.record);
        let corrupt = |problem| Err(Error::corrupt(self.place, problem));
        let rest = &self.bytes[self.at..];
        let Some(header) = rest.first_chunk::<HEADER_LEN>() else {
            return corrupt(format!(
                "{} record {record} (want {HEADER_LEN} bytes of header, have {})",
                if record == 0 { "is not a TFRecord, or ends inside" } else { "ends inside" },
                rest.len()
            ));
        };
        let (want, is) = header_sums(header);
        if is != want {
            return corrupt(match (record, magic::describe(rest)) {
                (0, Some(kind)) => format!("is not a TFRecord: it looks like {kind}"),
                (0, None) => format!("is not a TFRecord: length checksum of record 0 is {is:#010x}, want {want:#010x}"),
                _ => format!(
                    "has a damaged length at record {record} (byte {}: checksum is {is:#010x}, want {want:#010x})",
                    grouped(offset)
                ),
            });
        }
        let len = header_length(header);
        let whole = usize::try_from(frame_len(len)).ok().and_then(|whole| rest.get(..whole));
        let Some((payload, footer)) = whole.and_then(|whole| whole[HEADER_LEN..].split_last_chunk::<FOOTER_LEN>())
        else {
            return corrupt(format!(
                "ends inside record {record} (want {} bytes, have {})",
                grouped(frame_len(len)),
                grouped(rest.len() as u64)
            ));
        };
        if self.verify_crc {
            let (is, want) = (mask(crc32c(payload)), u32::from_le_bytes(*footer));
            if is != want {
                return corrupt(format!(
                    "has a damaged record {record} (byte {}, payload of {} bytes: checksum is {is:#010x}, want {want:#010x})",
                    grouped(offset),
                    grouped(len)
                ));
            }
        }
        Ok(Frame { offset, payload })
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.bytes.len() {
            return None;
        }
        let frame = self.read();
        match &frame {
            Ok(frame) => {
                self.at += HEADER_LEN + frame.payload.len() + FOOTER_LEN;
                self.record += 1;
            }
            Err(_) => self.at = self.bytes.len(),
        }
        Some(frame)
    }
}

impl std::iter::FusedIterator for Frames<'_> {}

/// Where every record lies; touches the headers alone.
pub fn scan(bytes: &[u8], place: &str) -> Result<Vec<RecordSpan>> {
    Frames::new(bytes, place, false)
        .map(|frame| frame.map(|frame| RecordSpan { offset: frame.offset, len: frame.payload.len() as u64 }))
        .collect()
}

/// How many records there are; touches the headers alone.
pub fn count(bytes: &[u8], place: &str) -> Result<u64> {
    Frames::new(bytes, place, false).try_fold(0, |count, frame| frame.map(|_| count + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(payloads: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        payloads.iter().for_each(|payload| write_frame(payload, &mut bytes));
        bytes
    }

    fn problem(bytes: &[u8], verify_crc: bool) -> String {
        let mut frames = Frames::new(bytes, "p", verify_crc);
        let error = frames.by_ref().find_map(Result::err).expect("an error").to_string();
        assert!(frames.next().is_none(), "nothing follows an error");
        error
    }

    #[test]
    fn frame_of_nothing_has_the_bytes_of_tensorflow() {
        // Length 0, masked CRC-32C of eight zero bytes, masked CRC-32C of no bytes (the mask's own constant).
        assert_eq!(framed(&[vec![]]), [0, 0, 0, 0, 0, 0, 0, 0, 0x29, 3, 0x98, 7, 0xd8, 0xea, 0x82, 0xa2]);
    }

    #[test]
    fn empty_object_has_no_records() {
        assert_eq!(scan(b"", "p").unwrap(), []);
        assert_eq!(count(b"", "p").unwrap(), 0);
    }

    #[test]
    fn bytes_of_another_format_are_named_as_such() {
        assert_eq!(problem(b"\x89PNG\r\n\x1a\n and much more", true), "p is not a TFRecord: it looks like a PNG image");
        let text = problem(&[1; 20], true);
        assert!(text.starts_with("p is not a TFRecord: length checksum of record 0 is 0x"), "{text}");
        assert_eq!(
            problem(b"short", true),
            "p is not a TFRecord, or ends inside record 0 (want 12 bytes of header, have 5)"
        );
    }

    #[test]
    fn record_longer_than_the_object_is_named_with_numbers() {
        for len in [100, 1 << 60, u64::MAX, u64::MAX - 16] {
            let mut bytes = framed(&[vec![1; 5]]);
            let length = u64::to_le_bytes(len);
            bytes.extend(length);
            bytes.extend(crc32c_masked(&length).to_le_bytes());
            bytes.extend([0; 20]);
            let want = grouped(frame_len(len));
            assert_eq!(problem(&bytes, true), format!("p ends inside record 1 (want {want} bytes, have 32)"));
        }
    }

    #[test]
    fn damage_in_a_later_record_names_it() {
        let mut bytes = framed(&[vec![1; 5], vec![2; 7]]);
        bytes[21 + 12] ^= 1;
        assert!(
            problem(&bytes, true).starts_with("p has a damaged record 1 (byte 21, payload of 7 bytes: checksum is 0x")
        );
        assert_eq!(count(&bytes, "p").unwrap(), 2);
        bytes[21] ^= 1;
        assert!(problem(&bytes, false).starts_with("p has a damaged length at record 1 (byte 21: checksum is 0x"));
    }

    proptest! {
        #[test]
        fn prop_frames_round_trip(payloads: Vec<Vec<u8>>) {
            let bytes = framed(&payloads);
            let read: Vec<_> = Frames::new(&bytes, "p", true).map(|frame| frame.unwrap().payload.to_vec()).collect();
            prop_assert_eq!(&read, &payloads);
            let spans = scan(&bytes, "p").unwrap();
            prop_assert_eq!(count(&bytes, "p").unwrap(), payloads.len() as u64);
            let total: u64 = spans.iter().map(|span| frame_len(span.len)).sum();
            prop_assert_eq!(total, bytes.len() as u64);
            for (span, payload) in spans.iter().zip(&payloads) {
                let start = span.offset as usize + HEADER_LEN;
                prop_assert_eq!(&bytes[start..start + span.len as usize], payload.as_slice());
            }
        }

        #[test]
        fn prop_cut_anywhere_errs_unless_between_records(payloads: Vec<Vec<u8>>, cut: prop::sample::Index) {
            let bytes = framed(&payloads);
            let len = cut.index(bytes.len() + 1);
            let starts: Vec<_> = scan(&bytes, "p").unwrap().iter().map(|span| span.offset as usize).collect();
            let whole = len == bytes.len() || starts.contains(&len);
            prop_assert_eq!(scan(&bytes[..len], "p").is_ok(), whole);
        }

        #[test]
        fn prop_any_flipped_bit_is_found(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..5),
            at: prop::sample::Index, bit in 0..8u8,
        ) {
            let mut bytes = framed(&payloads);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(Frames::new(&bytes, "p", true).any(|frame| frame.is_err()));
        }
    }
}
