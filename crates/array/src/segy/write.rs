// SPDX-License-Identifier: Apache-2.0
//! Encodes traces (each a header and samples) into memory, or writes them at their offsets in a file.

use std::fs::File;
use std::os::unix::fs::FileExt;

use penstock_store::WRITE_BYTES;
use penstock_types::{Error, Result};

use super::sample_format::{ByteOrder, SampleFormat, encode};

/// Traces to write.
#[derive(Debug, Clone, Copy)]
pub struct Traces<'a> {
    /// Format of a stored sample.
    pub format: SampleFormat,
    /// Byte order of the file.
    pub byte_order: ByteOrder,
    /// Header of each trace, `header_bytes` long.
    pub headers: &'a [u8],
    /// Size of a trace's headers in bytes.
    pub header_bytes: usize,
    /// Samples of each trace, as little-endian elements of the format's type.
    pub samples: &'a [u8],
}

impl Traces<'_> {
    /// Number of traces.
    pub fn count(&self) -> usize {
        self.headers.len() / self.header_bytes.max(1)
    }

    /// Size of a trace's samples in memory, in bytes.
    fn row_bytes(&self) -> usize {
        self.samples.len().checked_div(self.count()).unwrap_or(0)
    }

    /// Size of a stored trace in bytes.
    pub fn trace_bytes(&self) -> usize {
        self.header_bytes + self.row_bytes() / self.format.dtype().size() * self.format.size()
    }

    /// Encodes one trace into `out`. Errs with `Config` if an integer does not fit in three bytes.
    pub fn encode(&self, trace: usize, out: &mut [u8]) -> Result<()> {
        let row = self.row_bytes();
        let (header, values) = out.split_at_mut(self.header_bytes.min(out.len()));
        header.copy_from_slice(&self.headers[trace * self.header_bytes..][..self.header_bytes]);
        encode(self.format, self.byte_order, &self.samples[trace * row..][..row], values)
    }

    /// Writes trace `i` to `first_trace + numbers[i] * trace_bytes` in the file. Traces with consecutive numbers are
    /// written together, through a buffer of [`WRITE_BYTES`]. `place` is the file's name in errors.
    pub fn write_at(&self, file: &File, place: &str, first_trace: u64, numbers: &[i64]) -> Result<()> {
        let size = self.trace_bytes();
        if numbers.len() != self.count() || numbers.iter().any(|&number| number < 0) {
            return Err(Error::bug(format!("{} numbers for {} traces", numbers.len(), self.count())));
        }
        let at_once = (WRITE_BYTES / size.max(1)).max(1);
        let mut memory = vec![0; at_once * size];
        let mut next = 0;
        while next < numbers.len() {
            let limit = (next + at_once).min(numbers.len());
            let end = (next + 1..limit).find(|&at| numbers[at] != numbers[at - 1] + 1).unwrap_or(limit);
            for (trace, out) in (next..end).zip(memory.chunks_exact_mut(size)) {
                self.encode(trace, out)?;
            }
            let offset = first_trace + numbers[next].unsigned_abs() * size as u64;
            file.write_all_at(&memory[..(end - next) * size], offset).map_err(|error| Error::from_io(place, &error))?;
            next = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_traces_go_to_the_places_of_their_numbers() {
        let mut file = tempfile::tempfile().unwrap();
        let samples: Vec<u8> = (0..3u16).flat_map(|trace| [trace; 4].map(u16::to_le_bytes).concat()).collect();
        let headers: Vec<u8> = (0..3u8).flat_map(|trace| [0xa0 + trace; 240]).collect();
        let traces = Traces {
            format: SampleFormat::I16,
            byte_order: ByteOrder::Big,
            headers: &headers,
            header_bytes: 240,
            samples: &samples,
        };
        traces.write_at(&file, "file", 10, &[4, 5, 1]).unwrap();
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        assert_eq!(bytes.len(), 10 + 6 * 248);
        for (trace, number) in [(0u8, 4), (1, 5), (2, 1)] {
            let stored = &bytes[10 + number * 248..][..248];
            assert!(stored[..240].iter().all(|&byte| byte == 0xa0 + trace));
            assert_eq!(stored[240..], [[0, trace]; 4].concat());
        }
        assert!(bytes[..10 + 248].iter().all(|&byte| byte == 0));
    }
}
