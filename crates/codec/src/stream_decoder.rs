// SPDX-License-Identifier: Apache-2.0
//! Streaming decompression: the input may arrive in pieces of any size.

use penstock_types::{Error, Result};

use crate::Codec;
use crate::gzip::GzipStream;
use crate::lz4::Lz4Stream;
use crate::output::{Inflated, OutputWindow};
use crate::zstandard::ZstdStream;

enum Decoder {
    None,
    Gzip(Box<GzipStream>),
    Zstd(ZstdStream),
    Lz4(Box<Lz4Stream>),
}

/// Decompresses one object while its bytes arrive. Buffers at most one window and one block. The sink receives at most
/// `limit` bytes. After any error, including an error from the sink, the decoder cannot be used again.
pub struct StreamDecoder {
    place: String,
    decoder: Decoder,
    limit: u64,
    passed: Inflated,
    failed: bool,
}

impl StreamDecoder {
    /// Creates a decoder. `place` names the object in error messages.
    pub fn new(codec: Codec, limit: u64, place: &str) -> Self {
        Self::resume_at(codec, limit, place, Inflated { bytes_in: 0, bytes_out: 0 }, 0)
    }

    /// Creates a decoder that continues after `blocks` complete gzip members, zstd frames or LZ4 frames, which
    /// [`crate::decompress_frames`] has processed. `passed` counts the bytes of these blocks. The limit and the
    /// positions in messages refer to the whole object.
    pub fn resume_at(codec: Codec, limit: u64, place: &str, passed: Inflated, blocks: u64) -> Self {
        let decoder = match codec {
            Codec::None => Decoder::None,
            Codec::Gzip => Decoder::Gzip(Box::new(GzipStream::behind(blocks))),
            Codec::Zstd => Decoder::Zstd(ZstdStream::behind(blocks)),
            Codec::Lz4 => Decoder::Lz4(Box::new(Lz4Stream::behind(blocks))),
        };
        Self { place: place.to_owned(), decoder, limit, passed, failed: false }
    }

    /// Consumes the next piece of the object, and passes the decompressed content to `sink` in pieces.
    pub fn push(&mut self, input: &[u8], sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.failed {
            return Err(Error::bug(format!("a decoder received data after it had returned an error ({})", self.place)));
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

    /// Returns the number of bytes processed so far.
    pub fn so_far(&self) -> Inflated {
        self.passed
    }

    /// Returns the number of LZ4 frames that have begun; 0 for other codecs.
    pub(crate) fn blocks(&self) -> u64 {
        match &self.decoder {
            Decoder::Lz4(stream) => stream.frames(),
            Decoder::None | Decoder::Gzip(_) | Decoder::Zstd(_) => 0,
        }
    }

    /// Ends the object; returns an error if the object is incomplete.
    pub fn finish(self) -> Result<Inflated> {
        if self.failed {
            return Err(Error::bug(format!("a decoder was finished after its error ({})", self.place)));
        }
        let unfinished = match &self.decoder {
            Decoder::None => None,
            Decoder::Gzip(stream) => stream.unfinished(),
            Decoder::Zstd(stream) => stream.unfinished(),
            Decoder::Lz4(stream) => stream.unfinished(),
        };
        match unfinished {
            None => Ok(self.passed),
            Some(what) => Err(self.passed.ends_inside(&self.place, &what)),
        }
    }
}
