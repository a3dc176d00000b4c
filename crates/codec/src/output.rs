// SPDX-License-Identifier: Apache-2.0
//! Output of decompression: reserves space in a buffer, and enforces the size limit of a stream.

use penstock_types::{Error, Result, with_separators};

/// Numbers of bytes that a [`StreamDecoder`] has consumed and produced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inflated {
    /// Number of stored bytes consumed.
    pub bytes_in: u64,
    /// Number of decompressed bytes produced.
    pub bytes_out: u64,
}

impl Inflated {
    /// Builds the error for an object that ends inside `what`.
    pub(crate) fn ends_inside(&self, place: &str, what: &str) -> Error {
        let (bytes_in, bytes_out) = (with_separators(self.bytes_in), with_separators(self.bytes_out));
        let have = format!("have {bytes_in} stored bytes, inflated {bytes_out} bytes so far");
        Error::corrupt(place, format!("ends inside {what} ({have})"))
    }
}

/// Output of a stream decoder: counts the bytes, and returns an error above the limit.
pub(crate) struct OutputWindow<'a> {
    pub place: &'a str,
    pub limit: u64,
    pub passed: &'a mut Inflated,
    pub sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl OutputWindow<'_> {
    /// Passes `bytes` to the sink; returns an error if the output would exceed the limit.
    pub(crate) fn emit(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let after = self.passed.bytes_out.saturating_add(bytes.len() as u64);
        if after > self.limit {
            return Err(above_limit(self.limit, self.place));
        }
        (self.sink)(bytes)?;
        self.passed.bytes_out = after;
        Ok(())
    }

    /// Counts `len` stored bytes as consumed.
    pub(crate) fn took(&mut self, len: usize) {
        self.passed.bytes_in += len as u64;
    }

    pub(crate) fn bytes_in(&self) -> u64 {
        self.passed.bytes_in
    }

    pub(crate) fn bytes_out(&self) -> u64 {
        self.passed.bytes_out
    }

    pub(crate) fn corrupt(&self, problem: String) -> Error {
        Error::corrupt(self.place, problem)
    }
}

/// Reserves a total capacity of `total` bytes in `out`. Returns an error, instead of aborting the process, if memory is
/// exhausted.
pub(crate) fn reserve(out: &mut Vec<u8>, total: u64, place: &str) -> Result<()> {
    let have = out.capacity() as u64;
    let refused = || Error::BudgetExceeded { what: format!("inflating {place}"), need: total, budget: have };
    let more = usize::try_from(total.saturating_sub(out.len() as u64)).map_err(|_| refused())?;
    if out.try_reserve_exact(more).is_err() {
        return Err(refused());
    }
    Ok(())
}

pub(crate) fn above_limit(limit: u64, place: &str) -> Error {
    Error::corrupt(place, format!("decompresses to more than the limit of {} bytes", with_separators(limit)))
}
