// SPDX-License-Identifier: Apache-2.0
//! Sink for an object's content: writes a temporary file, computes digests, and compresses if requested.

use std::fs::File;
use std::io::{Seek, Write};

use penstock_store::WRITE_BYTES;
use penstock_store::owned::{self, Proof};
use penstock_types::Result;

use crate::compress::{Compression, Compressor};
use crate::dest_dir::reserve;
use crate::digests::ContentDigest;
use crate::plan::Item;
use crate::to_folder::context::DownloadContext;

/// Minimum content size for which the file is preallocated. The file system then allocates the file in one step. For a
/// smaller file, preallocation costs more than it saves.
const MIN_RESERVED: usize = 1 << 20;

/// Writes an object's content to a file, and computes its digests.
pub(crate) struct Sink<'a> {
    out: Out<'a>,
    compressor: Option<Compressor<'a>>,
    compression: Option<Compression>,
}

/// The output file, and the digests of its content so far.
struct Out<'a> {
    context: &'a DownloadContext,
    item: &'a Item,
    file: &'a File,
    seal: ContentDigest,
}

impl Out<'_> {
    /// Writes and digests piece by piece, so that a piece is still in the CPU cache when it is digested.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.reserve(bytes)?;
        for piece in bytes.chunks(WRITE_BYTES) {
            self.place(piece)?;
            self.seal.update(piece);
        }
        Ok(())
    }

    fn reserve(&self, bytes: &[u8]) -> Result<()> {
        if self.seal.bytes > 0 || bytes.len() < MIN_RESERVED {
            return Ok(());
        }
        reserve(self.file, bytes.len() as u64).map_err(|error| self.error(&error, bytes.len() as u64))
    }

    fn place(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).map_err(|error| self.error(&error, piece.len() as u64))
    }

    fn error(&self, error: &std::io::Error, need: u64) -> penstock_types::Error {
        self.context.dest_dir.io_error(self.item.target.as_bytes(), error, need)
    }
}

impl<'a> Sink<'a> {
    pub fn new(context: &'a DownloadContext, item: &'a Item, file: &'a File) -> Self {
        Self { out: Out { context, item, file, seal: ContentDigest::default() }, compressor: None, compression: None }
    }

    /// Makes the sink compress the content.
    pub fn pressing(mut self, compression: Option<Compression>) -> Self {
        self.compression = compression;
        self.compressor = compression.map(|compression| Compressor::new(compression, self.out.context.cpu_budget()));
        self
    }

    pub fn take(&mut self, content: &[u8]) -> Result<()> {
        match &mut self.compressor {
            Some(compressor) => compressor.take(content, &mut |bytes| self.out.write(bytes)),
            None => self.out.write(content),
        }
    }

    /// Writes the complete content; the caller already knows the digests of the content.
    pub fn take_sealed(mut self, content: &[u8], seal: ContentDigest) -> Result<ContentDigest> {
        self.out.reserve(content)?;
        content.chunks(WRITE_BYTES).try_for_each(|piece| self.out.place(piece))?;
        Ok(seal)
    }

    /// Ends the content; returns the digests of the file.
    pub fn finish(mut self) -> Result<ContentDigest> {
        if let Some(compressor) = self.compressor.take() {
            compressor.finish(&mut |bytes| self.out.write(bytes))?;
        }
        Ok(self.out.seal)
    }

    /// Empties the file and starts again.
    pub fn restart(&mut self) -> Result<()> {
        self.compressor =
            self.compression.map(|compression| Compressor::new(compression, self.out.context.cpu_budget()));
        self.out.seal = ContentDigest::default();
        let cleared = owned::set_len(self.out.file, 0, Proof::Covered);
        cleared.and_then(|()| self.out.file.rewind()).map_err(|error| self.out.error(&error, 0))
    }
}
