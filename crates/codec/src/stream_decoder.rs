// SPDX-License-Identifier: Apache-2.0
//! Inflation of bytes as they arrive, in pieces cut anywhere.

use penstock_types::{Error, Result, with_separators};

use crate::gzip::GzipStream;
use crate::lz4::Lz4Stream;
use crate::zstandard::ZstdStream;
use crate::{Codec, decompress};

/// Counts of the bytes that passed through a [`StreamDecoder`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inflated {
    /// Stored bytes.
    pub bytes_in: u64,
    /// Inflated bytes.
    pub bytes_out: u64,
}

enum Decoder {
    None,
    Gzip(Box<GzipStream>),
    Zstd(ZstdStream),
    Lz4(Box<Lz4Stream>),
}

/// Inflates one object as its bytes arrive. Holds at most a window and a block of it; the sink sees at most `limit`
/// bytes. After an error, of ours or of the sink, it is spent.
pub struct StreamDecoder {
    place: String,
    decoder: Decoder,
    limit: u64,
    passed: Inflated,
    failed: bool,
}

impl StreamDecoder {
    /// An inflater of the object that messages call `place`.
    pub fn new(codec: Codec, limit: u64, place: &str) -> Self {
        Self::resume_at(codec, limit, place, Inflated { bytes_in: 0, bytes_out: 0 }, 0)
    }

    /// One that goes on where `blocks` whole gzip members, or zstd or LZ4 frames, have been inflated by other means
    /// ([`crate::decompress_frames`]): `passed` went through them. Limit and messages are those of the whole object.
    pub fn resume_at(codec: Codec, limit: u64, place: &str, passed: Inflated, blocks: u64) -> Self {
        let decoder = match codec {
            Codec::None => Decoder::None,
            Codec::Gzip => Decoder::Gzip(Box::new(GzipStream::behind(blocks))),
            Codec::Zstd => Decoder::Zstd(ZstdStream::behind(blocks)),
            Codec::Lz4 => Decoder::Lz4(Box::new(Lz4Stream::behind(blocks))),
        };
        Self { place: place.to_owned(), decoder, limit, passed, failed: false }
    }

    /// Takes the next piece of the object and gives `sink` what it inflates to, in pieces.
    pub fn push(&mut self, input: &[u8], sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.failed {
            return Err(Error::bug(format!("an inflater was pushed to after its error ({})", self.place)));
        }
        let mut outlet = OutputWindow { place: &self.place, limit: self.limit, passed: &mut self.passed, sink };
        let result = match &mut self.decoder {
            Decoder::None => outlet.emit(input).map(|()| outlet.took(input.len())),
            Decoder::Gzip(stream) => stream.push(input, &mut outlet),
            Decoder::Zstd(stream) => stream.push(input, &mut outlet),
            Decoder::Lz4(stream) => stream.push(input, &mut outlet),
        };
        self.failed = result.is_err();
        result
    }

    /// Bytes so far.
    pub fn so_far(&self) -> Inflated {
        self.passed
    }

    /// The LZ4 frames that have begun; of the other codecs none are counted.
    pub(crate) fn blocks(&self) -> u64 {
        match &self.decoder {
            Decoder::Lz4(stream) => stream.frames(),
            Decoder::None | Decoder::Gzip(_) | Decoder::Zstd(_) => 0,
        }
    }

    /// Ends the object; errs where it may not end here.
    pub fn finish(self) -> Result<Inflated> {
        if self.failed {
            return Err(Error::bug(format!("an inflater was finished after its error ({})", self.place)));
        }
        let unfinished = match &self.decoder {
            Decoder::None => None,
            Decoder::Gzip(stream) => stream.unfinished(),
            Decoder::Zstd(stream) => stream.unfinished(),
            Decoder::Lz4(stream) => stream.unfinished(),
        };
        match unfinished {
            None => Ok(self.passed),
            Some(what) => Err(Error::corrupt(
                self.place,
                format!(
                    "ends inside {what} (have {} of the stream's bytes, inflated {} so far)",
                    with_separators(self.passed.bytes_in),
                    with_separators(self.passed.bytes_out)
                ),
            )),
        }
    }
}

/// Where a decoder's output goes, and its numbers.
pub(crate) struct OutputWindow<'a> {
    place: &'a str,
    limit: u64,
    passed: &'a mut Inflated,
    sink: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl OutputWindow<'_> {
    /// Gives the sink `bytes`, if the limit allows.
    pub(crate) fn emit(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let after = self.passed.bytes_out.saturating_add(bytes.len() as u64);
        if after > self.limit {
            return Err(decompress::above_limit(self.limit, self.place));
        }
        (self.sink)(bytes)?;
        self.passed.bytes_out = after;
        Ok(())
    }

    /// Counts `len` stored bytes as taken.
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
