// SPDX-License-Identifier: Apache-2.0
//! SEG-Y file layout: locates the traces of a file from its two file headers and its size (SEG-Y revisions 0 to 2.1).

use penstock_types::{Error, Result, with_separators};
use serde::{Deserialize, Serialize};

use super::sample_format::ByteOrder;
use super::{BINARY_HEADER, SampleFormat, TEXT_HEADER, TRACE_HEADER};

/// Values that replace the values of the binary header.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overrides {
    /// Sample format code of the binary header.
    pub format: Option<u16>,
    /// Byte order.
    pub byte_order: Option<ByteOrder>,
    /// Number of samples of each trace.
    pub samples: Option<u64>,
    /// If true, accepts bytes after the last trace; otherwise, such bytes are an error.
    pub allow_trailing: bool,
}

/// Layout of a file. Positions are byte offsets from its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// File size in bytes.
    pub size: u64,
    /// Byte order of all numbers.
    pub byte_order: ByteOrder,
    /// Revision, as (major, minor).
    pub revision: (u8, u8),
    /// Sample format code of the binary header.
    pub format: u16,
    /// Type of a decoded sample, as a NumPy type name.
    pub dtype: String,
    /// Number of samples of each trace.
    pub samples: u64,
    /// Sample interval: in microseconds for times, in thousandths of the survey's length unit for depths.
    pub interval: f64,
    /// Number of extended textual headers (3,200 bytes each) after the binary header.
    pub extended_headers: u64,
    /// Position of the first trace.
    pub first_trace: u64,
    /// Size of a trace's headers in bytes: 240, or more with additional trace headers.
    pub header_bytes: u64,
    /// Size of a trace in bytes, with its headers.
    pub trace_bytes: u64,
    /// Number of traces.
    pub traces: u64,
    /// Number of bytes after the last trace.
    pub trailing_bytes: u64,
}

/// The byte-order constant of revision 2, at bytes 3297–3300.
const ORDER: u32 = 0x0102_0304;

struct Fields<'a> {
    binary: &'a [u8],
    order: ByteOrder,
}

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.binary[at..at + N]);
        if self.order == ByteOrder::Little {
            bytes.reverse();
        }
        bytes
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    fn i16(&self, at: usize) -> i16 {
        i16::from_be_bytes(self.bytes(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    /// Revision, as (major, minor). Some programs write the revision as a 16-bit number, so 0.1 is read as revision
    /// 1.0. Revision 0 does not assign these bytes, so they can have any other value.
    fn revision(&self) -> (u8, u8) {
        match (self.binary[300], self.binary[301]) {
            (major @ 1..=2, minor) => (major, minor),
            (0, major @ 1..=2) => (major, 0),
            _ => (0, 0),
        }
    }

    /// Size of a trace's headers in bytes; `None` if the number of additional headers is negative. Revision 2.0 stores
    /// the number in 32 bits, revision 2.1 in the first 16 of these bits. Programs use the first 16 bits for revision
    /// 2.0, too.
    fn header_bytes(&self) -> Option<u64> {
        let additional = match (self.revision(), self.i16(306), self.u32(306)) {
            ((0 | 1, _), ..) => 0,
            ((_, 0), 0, count) => u64::from(count),
            (_, count, _) => u64::try_from(count).ok()?,
        };
        Some(TRACE_HEADER as u64 * (1 + additional))
    }

    /// Revision 0 does not define extended headers, but some programs write them. Returns true if the rest of the file
    /// is a whole number of traces with these headers, but not without them.
    fn revision_0_has_extended(&self, count: i16, size: u64, trace_bytes: u64) -> bool {
        let body = size - Layout::HEADERS;
        let Some(without) = u64::try_from(count).ok().and_then(|count| body.checked_sub(TEXT_HEADER as u64 * count))
        else {
            return false;
        };
        count > 0 && !body.is_multiple_of(trace_bytes) && without.is_multiple_of(trace_bytes)
    }
}

impl Layout {
    /// Number of bytes that [`Layout::parse`] needs: the size of both file headers.
    pub const HEADERS: u64 = (TEXT_HEADER + BINARY_HEADER) as u64;

    /// Parses the layout from the file headers of a file of `size` bytes. `place` is the file's name in errors. If the
    /// header states a variable number of extended headers, the caller must count them and pass the number as
    /// `extended_headers`.
    ///
    /// Errs with `Corrupt` if the file is not SEG-Y, or is truncated.
    pub fn parse(
        headers: &[u8],
        size: u64,
        overrides: &Overrides,
        extended_headers: Option<u64>,
        place: &str,
    ) -> Result<Self> {
        let corrupt = |problem: String| Err(Error::corrupt(place, problem));
        if (headers.len() as u64) < Self::HEADERS || size < Self::HEADERS {
            let have = with_separators(size);
            return corrupt(format!("ends inside the file headers of SEG-Y (want 3,600 bytes, have {have})"));
        }
        let binary = &headers[TEXT_HEADER..TEXT_HEADER + BINARY_HEADER];
        let fields = Fields { binary, order: order_of(headers, overrides, place)? };
        let code = overrides.format.unwrap_or(fields.u16(24));
        let Some(format) = SampleFormat::of_code(code) else {
            return corrupt(format!(
                "has sample format {code}, which is not supported (supported: 1–3, 5–12, 15 and 16)"
            ));
        };
        let is_second = fields.revision().0 == 2;
        let samples = match (overrides.samples, is_second.then(|| fields.u32(68)).filter(|&samples| samples > 0)) {
            (Some(samples), _) => samples,
            (None, Some(samples)) => samples.into(),
            (None, None) => fields.u16(20).into(),
        };
        if samples == 0 {
            return corrupt("states 0 samples per trace in its binary header (bytes 3221–3222)".to_owned());
        }
        let extended_interval = if is_second { f64::from_bits(fields.u64(72)) } else { 0.0 };
        let interval = match extended_interval.is_normal() && extended_interval > 0.0 {
            true => extended_interval,
            false => f64::from(fields.u16(16)),
        };
        let Some(header_bytes) = fields.header_bytes() else {
            return corrupt("states a negative number of additional trace headers (bytes 3507–3508)".to_owned());
        };
        let Some(trace_bytes) =
            samples.checked_mul(format.size() as u64).and_then(|bytes| bytes.checked_add(header_bytes))
        else {
            return corrupt(format!("states {} samples per trace, which is too many", with_separators(samples)));
        };
        let stated = match (fields.revision().0, fields.i16(304)) {
            (0, count) if !fields.revision_0_has_extended(count, size, trace_bytes) => 0,
            (_, count) => i64::from(count),
        };
        let extended_headers = match (extended_headers, u64::try_from(stated)) {
            (Some(count), _) | (None, Ok(count)) => count,
            (None, Err(_)) => {
                return corrupt(format!(
                    "states a variable number of extended text headers ({stated}), but no header contains ((SEG: EndText))"
                ));
            }
        };
        let after_headers = Self::HEADERS + TEXT_HEADER as u64 * extended_headers;
        let first_trace = match is_second.then(|| fields.u64(320)) {
            Some(first) if first > after_headers && first < size => first,
            _ => after_headers,
        };
        let Some(body) = size.checked_sub(first_trace) else {
            let (want, have) = (with_separators(first_trace), with_separators(size));
            return corrupt(format!(
                "ends inside its {extended_headers} extended text headers (want {want} bytes, have {have})"
            ));
        };
        let (traces, rest) = (body / trace_bytes, body % trace_bytes);
        let trailers = if is_second { fields.u32(328) } else { 0 };
        let is_declared = trailers != 0 && rest.is_multiple_of(TEXT_HEADER as u64);
        if rest > 0 && !is_declared && !overrides.allow_trailing {
            return corrupt(format!(
                "ends inside trace {} (want {} bytes for {} samples in format {code}, have {})",
                with_separators(traces),
                with_separators(trace_bytes),
                with_separators(samples),
                with_separators(rest)
            ));
        }
        let stated = if is_second { fields.u64(112) } else { 0 };
        if stated > 0 && stated != traces && overrides.samples.is_none() && !overrides.allow_trailing {
            let (want, have) = (with_separators(stated), with_separators(traces));
            return corrupt(format!("states {want} traces, but contains {have}"));
        }
        Ok(Self {
            size,
            byte_order: fields.order,
            revision: fields.revision(),
            format: code,
            dtype: format.dtype().name().to_owned(),
            samples,
            interval,
            extended_headers,
            first_trace,
            header_bytes,
            trace_bytes,
            traces,
            trailing_bytes: rest,
        })
    }

    /// Number of extended headers that the binary header states, and whether the file's revision defines this field. -1
    /// means a variable number: the reader must search for the last header, which contains the end stanza.
    pub fn stated_extended(headers: &[u8], overrides: &Overrides, place: &str) -> Result<(i16, bool)> {
        let Some(binary) = headers.get(TEXT_HEADER..TEXT_HEADER + BINARY_HEADER) else { return Ok((0, false)) };
        let fields = Fields { binary, order: order_of(headers, overrides, place)? };
        Ok((fields.i16(304), fields.revision().0 > 0))
    }

    /// The sample format.
    pub fn sample_format(&self) -> Result<SampleFormat> {
        SampleFormat::of_code(self.format)
            .ok_or_else(|| Error::bug(format!("the SEG-Y layout has an unknown sample format code ({})", self.format)))
    }

    /// Byte offset of a trace's header.
    pub fn trace_start(&self, trace: u64) -> u64 {
        self.first_trace + trace * self.trace_bytes
    }
}

/// Determines the byte order from the first available source: the override, the byte-order constant of revision 2, or
/// the byte order in which the sample format code is valid.
fn order_of(headers: &[u8], overrides: &Overrides, place: &str) -> Result<ByteOrder> {
    if let Some(order) = overrides.byte_order {
        return Ok(order);
    }
    let binary = &headers[TEXT_HEADER..TEXT_HEADER + BINARY_HEADER];
    let constant = u32::from_be_bytes([binary[96], binary[97], binary[98], binary[99]]);
    match constant {
        ORDER => return Ok(ByteOrder::Big),
        _ if constant == ORDER.swap_bytes() => return Ok(ByteOrder::Little),
        _ if constant == ORDER.rotate_left(16).swap_bytes() || constant == ORDER.swap_bytes().rotate_left(16) => {
            let what = format!("the byte order of {place} (bytes swapped in pairs)");
            return Err(Error::Unsupported { what, by: "the SEG-Y reader".to_owned() });
        }
        _ => {}
    }
    let code = |at: usize, bytes: &[u8]| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let exists = |code: u16| SampleFormat::of_code(code).is_some();
    let stated = code(24, binary);
    match (exists(stated), exists(stated.swap_bytes())) {
        (true, _) => Ok(ByteOrder::Big),
        (false, true) => Ok(ByteOrder::Little),
        (false, false) => {
            let headless = code(24, headers);
            let is_headless = exists(headless) && code(20, headers) > 0;
            let advice = match is_headless {
                true => "; its first 400 bytes look like a binary header, so the text header is missing",
                false => "",
            };
            if [stated, stated.swap_bytes()].contains(&4) {
                let what = format!("sample format 4 (fixed point with gain, obsolete since revision 1) of {place}");
                return Err(Error::Unsupported { what, by: "the SEG-Y reader".to_owned() });
            }
            Err(Error::corrupt(
                place,
                format!("is not SEG-Y: bytes 3225–3226 state sample format {stated}, which does not exist{advice}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers(binary: &[(usize, &[u8])]) -> Vec<u8> {
        let mut headers = vec![0; 3600];
        for (byte, value) in [(3217, &[0x0f, 0xa0][..]), (3221, &[0, 10]), (3225, &[0, 5])].iter().chain(binary) {
            headers[byte - 1..byte - 1 + value.len()].copy_from_slice(value);
        }
        headers
    }

    #[test]
    fn test_layout_of_revision_1_counts_its_traces() {
        let found = Layout::parse(&headers(&[]), 3600 + 7 * 280, &Overrides::default(), None, "p").unwrap();
        assert_eq!((found.traces, found.trace_bytes, found.samples, found.interval), (7, 280, 10, 4000.0));
        let error = Layout::parse(&headers(&[]), 3600 + 7 * 280 + 1, &Overrides::default(), None, "p").unwrap_err();
        assert!(error.to_string().contains("ends inside trace 7 (want 280 bytes"), "{error}");
    }

    #[test]
    fn test_layout_of_revision_2_takes_the_extended_fields() {
        // 70,000 samples, an interval of 0.5 microseconds, one additional trace header.
        let binary = [
            (3501, &[2u8, 0][..]),
            (3269, &70_000u32.to_be_bytes()),
            (3273, &0.5f64.to_be_bytes()),
            (3507, &[0, 0, 0, 1]),
        ];
        let found = Layout::parse(&headers(&binary), 3600 + 280_480, &Overrides::default(), None, "p").unwrap();
        assert_eq!((found.samples, found.interval, found.header_bytes, found.traces), (70_000, 0.5, 480, 1));
    }

    /// Writers disagree on the size of the field at bytes 3507–3510.
    #[test]
    fn test_layout_counts_additional_headers_in_16_and_32_bits() {
        let cases: [(&[u8], &[u8], u64); 4] = [
            (&[2, 1], &[0, 1, 0, 0], 480),
            (&[2, 1], &[0, 1, 0, 3], 480),
            (&[2, 0], &[0, 1, 0, 0], 480),
            (&[2, 0], &[0, 0, 0, 1], 480),
        ];
        for (revision, count, want) in cases {
            let binary = [(3501, revision), (3507, count)];
            let found = Layout::parse(&headers(&binary), 3600 + 3 * 520, &Overrides::default(), None, "p").unwrap();
            assert_eq!((found.header_bytes, found.traces), (want, 3));
        }
        let binary = [(3501, &[2u8, 1][..]), (3507, &[0x80, 0, 0, 0])];
        let error = Layout::parse(&headers(&binary), 5160, &Overrides::default(), None, "p").unwrap_err();
        assert!(error.to_string().contains("negative number of additional trace headers"), "{error}");
    }

    #[test]
    fn test_layout_of_revision_0_finds_extended_headers_by_the_size() {
        let parse =
            |binary: &[(usize, &[u8])], size| Layout::parse(&headers(binary), size, &Overrides::default(), None, "p");
        let extended = parse(&[(3505, &[0, 2])], 3600 + 6400 + 5 * 280).unwrap();
        assert_eq!((extended.extended_headers, extended.first_trace, extended.traces), (2, 10_000, 5));
        // Without a revision, the bytes may have any value.
        let unassigned = parse(&[(3505, &[0, 2])], 3600 + 30 * 280).unwrap();
        assert_eq!((unassigned.extended_headers, unassigned.traces), (0, 30));
        let unassigned =
            parse(&[(3501, &[36, 37]), (3505, &[0x80, 38]), (3507, &[1, 2, 3, 4])], 3600 + 30 * 280).unwrap();
        assert_eq!((unassigned.header_bytes, unassigned.traces, unassigned.revision), (240, 30, (0, 0)));
        let integer = parse(&[(3501, &[0, 1]), (3505, &[0, 1])], 3600 + 3200 + 280).unwrap();
        assert_eq!((integer.extended_headers, integer.traces, integer.revision), (1, 1, (1, 0)));
    }

    proptest! {
        #[test]
        fn prop_layout_of_any_header_fits_the_file(
            binary in prop::collection::vec(any::<u8>(), 400), size in any::<u64>(), is_small: bool, allow_trailing: bool,
        ) {
            let mut headers = vec![0; 3200];
            headers.extend_from_slice(&binary);
            let size = if is_small { size % (1 << 24) } else { size };
            let overrides = Overrides { allow_trailing, ..Overrides::default() };
            if let Ok(found) = Layout::parse(&headers, size, &overrides, None, "p") {
                let whole = u128::from(found.traces) * u128::from(found.trace_bytes);
                prop_assert_eq!(u128::from(found.first_trace) + whole + u128::from(found.trailing_bytes), u128::from(size));
            }
        }
    }
}
