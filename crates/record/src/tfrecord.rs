// SPDX-License-Identifier: Apache-2.0
//! TFRecord framing: a record is its length (8 bytes, little-endian), the masked CRC-32C of the length, the payload,
//! and the masked CRC-32C of the payload.
//!
//! The checksum of the length is always verified: it distinguishes a TFRecord from other bytes, and detects a damaged
//! length. The payload's checksum is verified on request. An empty object contains no records.

use penstock_codec::checksum::{crc32c, crc32c_masked, mask};
use penstock_types::{Error, Result, with_separators};

use crate::magic;
pub use crate::tfrecord_header::HEADER_LEN;
use crate::tfrecord_header::header_sums;

/// Number of bytes that follow a payload in its frame.
pub const FOOTER_LEN: usize = 4;

/// Size of the frame of a payload with `payload_len` bytes.
pub fn frame_len(payload_len: u64) -> u64 {
    payload_len.saturating_add((HEADER_LEN + FOOTER_LEN) as u64)
}

/// Wraps `payload` in a frame and appends the frame to `out`.
pub fn write_frame(payload: &[u8], out: &mut Vec<u8>) {
    out.reserve(HEADER_LEN + payload.len() + FOOTER_LEN);
    frame_in_place(out, |out| out.extend_from_slice(payload));
}

/// Appends a frame. `append` appends the payload to `out` directly, so the payload is not copied.
pub fn frame_in_place(out: &mut Vec<u8>, append: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_LEN]);
    append(out);
    let payload = &out[start + HEADER_LEN..];
    let (len, footer) = ((payload.len() as u64).to_le_bytes(), crc32c_masked(payload).to_le_bytes());
    out.extend_from_slice(&footer);
    out[start..start + 8].copy_from_slice(&len);
    out[start + 8..start + HEADER_LEN].copy_from_slice(&crc32c_masked(&len).to_le_bytes());
}

/// A record, borrowed from the bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Offset of the record's frame.
    pub offset: u64,
    /// Payload of the record.
    pub payload: &'a [u8],
}

/// Location of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordSpan {
    /// Offset of the record's frame; the payload begins [`HEADER_LEN`] bytes later.
    pub offset: u64,
    /// Size of the payload in bytes.
    pub len: u64,
}

fn header_length(header: &[u8; HEADER_LEN]) -> u64 {
    let [length @ .., _, _, _, _] = header;
    u64::from_le_bytes(*length)
}

fn short_header(record: u64, have: usize) -> String {
    let what = if record == 0 { "is not a TFRecord, or ends inside" } else { "ends inside" };
    format!("{what} record {record} (want {HEADER_LEN} bytes of header, have {have})")
}

fn short_frame(record: u64, len: u64, have: u64) -> String {
    format!(
        "ends inside record {record} (want {} bytes, have {})",
        with_separators(frame_len(len)),
        with_separators(have)
    )
}

/// Returns the length that a header states, or describes why the header is invalid. `rest` holds the header and the
/// bytes after the header.
fn checked_length(header: &[u8; HEADER_LEN], record: u64, offset: u64, rest: &[u8]) -> Result<u64, String> {
    let (want, is) = header_sums(header);
    if is == want {
        return Ok(header_length(header));
    }
    Err(match (record, magic::describe(rest)) {
        (0, Some(kind)) => format!("is not a TFRecord: it looks like {kind}"),
        (0, None) => format!("is not a TFRecord: length checksum of record 0 is {is:#010x}, want {want:#010x}"),
        _ => format!(
            "has a damaged length at record {record} (byte {}: checksum is {is:#010x}, want {want:#010x})",
            with_separators(offset)
        ),
    })
}

/// Iterates over the records in the decompressed bytes of one object, in order. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Frames<'a> {
    bytes: &'a [u8],
    at: usize,
    record: u64,
    place: &'a str,
    verify_crc: bool,
}

impl<'a> Frames<'a> {
    /// Creates an iterator over the records in `bytes`. `place` names the object in messages; if `verify_crc` is set,
    /// payloads are verified too.
    pub fn new(bytes: &'a [u8], place: &'a str, verify_crc: bool) -> Self {
        Self { bytes, at: 0, record: 0, place, verify_crc }
    }

    fn read(&self) -> Result<Frame<'a>> {
        let (offset, record) = (self.at as u64, self.record);
        let corrupt = |problem| Err(Error::corrupt(self.place, problem));
        let rest = &self.bytes[self.at..];
        let Some(header) = rest.first_chunk::<HEADER_LEN>() else {
            return corrupt(short_header(record, rest.len()));
        };
        let len =
            checked_length(header, record, offset, rest).map_err(|problem| Error::corrupt(self.place, problem))?;
        let whole = usize::try_from(frame_len(len)).ok().and_then(|whole| rest.get(..whole));
        let Some((payload, footer)) = whole.and_then(|whole| whole[HEADER_LEN..].split_last_chunk::<FOOTER_LEN>())
        else {
            return corrupt(short_frame(record, len, rest.len() as u64));
        };
        if self.verify_crc {
            let (is, want) = (mask(crc32c(payload)), u32::from_le_bytes(*footer));
            if is != want {
                return corrupt(format!(
                    "has a damaged record {record} (byte {}, payload of {} bytes: checksum is {is:#010x}, want {want:#010x})",
                    with_separators(offset),
                    with_separators(len)
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

/// Finds the frames of one object while its decompressed bytes arrive in arbitrary pieces. Buffers only a header and a
/// footer, never a payload. Must not be used after an error.
#[derive(Debug, Clone)]
pub struct FrameStream {
    place: String,
    /// Offset of the current or next frame.
    offset: u64,
    record: u64,
    header: [u8; HEADER_LEN],
    /// Header bytes received so far.
    have: usize,
    /// Number of payload and footer bytes that are still missing.
    left: u64,
    footer: [u8; FOOTER_LEN],
}

impl FrameStream {
    /// Starts a new object; `place` names the object in messages.
    pub fn new(place: &str) -> Self {
        let (header, footer) = ([0; HEADER_LEN], [0; FOOTER_LEN]);
        Self { place: place.to_owned(), offset: 0, record: 0, header, have: 0, left: 0, footer }
    }

    /// Processes the next piece. For each record that ends in it, calls `frame` with the location of the record and the
    /// payload checksum that the record states.
    pub fn push(&mut self, mut bytes: &[u8], frame: &mut dyn FnMut(RecordSpan, u32)) -> Result<()> {
        while !bytes.is_empty() {
            if self.have < HEADER_LEN {
                let (taken, rest) = bytes.split_at(bytes.len().min(HEADER_LEN - self.have));
                let begins = if self.have == 0 { bytes } else { &[] };
                self.header[self.have..][..taken.len()].copy_from_slice(taken);
                (self.have, bytes) = (self.have + taken.len(), rest);
                if self.have == HEADER_LEN {
                    let begins = if begins.is_empty() { &self.header } else { begins };
                    let len = checked_length(&self.header, self.record, self.offset, begins)
                        .map_err(|problem| Error::corrupt(&*self.place, problem))?;
                    self.left = len.saturating_add(FOOTER_LEN as u64);
                }
                continue;
            }
            let len = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            let (taken, rest) = bytes.split_at(len);
            // Collect the footer: the last four bytes of the frame, some of which may have arrived in an earlier piece.
            for (at, byte) in taken.iter().enumerate().skip(len.saturating_sub(FOOTER_LEN)) {
                let from_end = self.left - at as u64;
                if from_end <= FOOTER_LEN as u64 {
                    self.footer[FOOTER_LEN - from_end as usize] = *byte;
                }
            }
            (self.left, bytes) = (self.left - len as u64, rest);
            if self.left == 0 {
                let len = header_length(&self.header);
                frame(RecordSpan { offset: self.offset, len }, u32::from_le_bytes(self.footer));
                (self.offset, self.record, self.have) = (self.offset + frame_len(len), self.record + 1, 0);
            }
        }
        Ok(())
    }

    /// Ends the object; returns an error if a frame is incomplete.
    pub fn finish(&self) -> Result<()> {
        let problem = match self.have {
            0 => return Ok(()),
            HEADER_LEN => {
                let len = header_length(&self.header);
                let came = len.saturating_add(FOOTER_LEN as u64) - self.left;
                short_frame(self.record, len, HEADER_LEN as u64 + came)
            }
            have => short_header(self.record, have),
        };
        Err(Error::corrupt(&*self.place, problem))
    }
}

/// Returns the locations of all records; reads only their headers.
pub fn scan(bytes: &[u8], place: &str) -> Result<Vec<RecordSpan>> {
    Frames::new(bytes, place, false)
        .map(|frame| frame.map(|frame| RecordSpan { offset: frame.offset, len: frame.payload.len() as u64 }))
        .collect()
}

/// Counts the records; reads only their headers.
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
        // Length 0, masked CRC-32C of eight zero bytes, masked CRC-32C of no bytes (which equals the constant that
        // masking adds).
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
            let want = with_separators(frame_len(len));
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
        fn prop_frame_stream_agrees_with_frames_however_it_is_cut(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            cut: prop::sample::Index, flip in prop::option::of((any::<prop::sample::Index>(), 0..8u8)), piece in 1..50usize,
        ) {
            let mut bytes = framed(&payloads);
            bytes.truncate(cut.index(bytes.len() + 1));
            if let Some((at, bit)) = flip.filter(|_| !bytes.is_empty()) {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            let (mut stream, mut passed) = (FrameStream::new("p"), Vec::new());
            let mut pieces = bytes.chunks(piece);
            let pushed = pieces.try_for_each(|piece| stream.push(piece, &mut |span, crc| passed.push((span, crc))));
            let streamed = pushed.and_then(|()| stream.finish());
            let (mut want, mut walked) = (Vec::new(), Ok(()));
            for frame in Frames::new(&bytes, "p", false) {
                match frame {
                    Ok(Frame { offset, payload }) => {
                        let len = payload.len() as u64;
                        let end = (offset + frame_len(len)) as usize;
                        let crc = u32::from_le_bytes(bytes[end - FOOTER_LEN..end].try_into().unwrap());
                        want.push((RecordSpan { offset, len }, crc));
                    }
                    Err(error) => walked = Err(error),
                }
            }
            prop_assert_eq!(passed, want);
            prop_assert_eq!(streamed.map_err(|error| error.to_string()), walked.map_err(|error| error.to_string()));
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
