// SPDX-License-Identifier: Apache-2.0
//! Where an object's content goes: its temporary file, sealed on the way, compressed where that is asked for.

use std::fs::File;
use std::io::{Seek, Write};

use penstock_store::owned::{self, Proof};
use penstock_types::Result;

use crate::compress::{Compression, Compressor};
use crate::dest_dir::reserve;
use crate::digests::ContentDigest;
use crate::plan::Item;
use crate::to_folder::context::DownloadContext;
use crate::to_folder::io_buffers::CACHED;

/// Content in one piece from which on the file is preallocated: it then lays the file out once. Reserving costs a
/// small file more than it saves.
const RESERVED_LEAST: usize = 1 << 20;

/// The file, sealed on the way.
pub(crate) struct Sink<'a> {
    out: Out<'a>,
    press: Option<Compressor<'a>>,
    compression: Option<Compression>,
}

/// The file, and what it holds so far.
struct Out<'a> {
    shop: &'a DownloadContext,
    item: &'a Item,
    file: &'a File,
    seal: ContentDigest,
}

impl Out<'_> {
    /// Piece by piece: what was just written is still in the processor's cache when it is sealed.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.reserve(bytes)?;
        for piece in bytes.chunks(CACHED) {
            self.place(piece)?;
            self.seal.update(piece);
        }
        Ok(())
    }

    fn reserve(&self, bytes: &[u8]) -> Result<()> {
        if self.seal.bytes > 0 || bytes.len() < RESERVED_LEAST {
            return Ok(());
        }
        reserve(self.file, bytes.len() as u64).map_err(|error| self.error(&error, bytes.len() as u64))
    }

    fn place(&mut self, piece: &[u8]) -> Result<()> {
        self.file.write_all(piece).map_err(|error| self.error(&error, piece.len() as u64))
    }

    fn error(&self, error: &std::io::Error, need: u64) -> penstock_types::Error {
        self.shop.dest_dir.io_error(self.item.target.as_bytes(), error, need)
    }
}

impl<'a> Sink<'a> {
    pub fn new(shop: &'a DownloadContext, item: &'a Item, file: &'a File) -> Self {
        Self { out: Out { shop, item, file, seal: ContentDigest::default() }, press: None, compression: None }
    }

    /// Content is compressed on its way into the file.
    pub fn pressing(mut self, compression: Option<Compression>) -> Self {
        self.compression = compression;
        self.press = compression.map(|compression| Compressor::new(compression, self.out.shop.means()));
        self
    }

    pub fn take(&mut self, content: &[u8]) -> Result<()> {
        match &mut self.press {
            Some(press) => press.take(content, &mut |bytes| self.out.write(bytes)),
            None => self.out.write(content),
        }
    }

    /// Takes all content at once, whose seal is known.
    pub fn take_sealed(mut self, content: &[u8], seal: ContentDigest) -> Result<ContentDigest> {
        self.out.reserve(content)?;
        content.chunks(CACHED).try_for_each(|piece| self.out.place(piece))?;
        Ok(seal)
    }

    /// All content has passed: what the file holds.
    pub fn finish(mut self) -> Result<ContentDigest> {
        if let Some(press) = self.press.take() {
            press.finish(&mut |bytes| self.out.write(bytes))?;
        }
        Ok(self.out.seal)
    }

    /// As if nothing had passed.
    pub fn restart(&mut self) -> Result<()> {
        self.press = self.compression.map(|compression| Compressor::new(compression, self.out.shop.means()));
        self.out.seal = ContentDigest::default();
        let cleared = owned::set_len(self.out.file, 0, Proof::Covered);
        cleared.and_then(|()| self.out.file.rewind()).map_err(|error| self.out.error(&error, 0))
    }
}
