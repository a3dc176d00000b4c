// SPDX-License-Identifier: Apache-2.0
//! Downloads one object: fetches the listed version, verifies it, decompresses it, writes it under a temporary name and
//! syncs the file.
//!
//! Fetching is async. Verification, decompression and writes run on blocking threads, at most one per core.

use std::fs::File;
use std::sync::Arc;

use penstock_codec::checksum::Xxh3;
use penstock_codec::{Codec, StreamDecoder, decompress_into, gzip_size_hint};
use penstock_store::Meta;
use penstock_store::owned::OwnedFile;
use penstock_types::{Error, Result, lock};
use tokio::sync::OwnedSemaphorePermit;

use crate::blocking::blocking;
use crate::commit::{Finished, temporary_name};
use crate::compress::Compression;
use crate::dest_dir::state_of_file;
use crate::digests::{ContentDigest, StoredDigests, Verified};
use crate::journal::Line;
use crate::parallel_decode::{CpuBudget, ParallelDecoder};
use crate::plan::Item;
use crate::source_reader::DamageRetry;
use crate::to_folder::context::DownloadContext;
use crate::to_folder::sink::Sink;
use penstock_dataset::manifest::{Entry, OWN_PREFIX};

/// Maximum content size that is decompressed in memory; larger content is streamed to the file.
const MAX_WHOLE: u64 = 512 << 20;
/// Minimum stored size of an object that is checked for several frames. For a smaller object, the check does not pay
/// off.
const MIN_PARALLEL: usize = 1 << 20;

impl DownloadContext {
    /// Memory for decompression per core: half of the budget, divided by the number of cores. The reader uses the other
    /// half.
    pub fn max_whole(memory: u64, cores: usize) -> u64 {
        (memory / 2 / cores as u64).min(MAX_WHOLE)
    }

    /// Downloads an object of at most [`PART_BYTES`] to a finished temporary file.
    pub async fn make(self: &Arc<Self>, item: &Item, entry: &Entry) -> Result<Finished> {
        let mut retry = DamageRetry::new(&self.reader, entry);
        loop {
            let room = self.reader.room(entry.size).await?;
            let mut stored = Vec::new();
            let verdict = self.reader.whole(entry, &mut stored).await?;
            let stored = Arc::new(stored);
            let damage = match verdict {
                Ok(meta) => match self.finish_whole(item, entry, stored.clone(), meta, room).await {
                    Err(error @ Error::Corrupt { .. }) => error,
                    other => return other,
                },
                Err(error) => error,
            };
            retry.again(damage, Xxh3::of(&stored))?;
        }
    }

    /// Writes an object to a synced temporary file. `stored` holds all stored bytes of the object.
    async fn finish_whole(
        self: &Arc<Self>,
        item: &Item,
        entry: &Entry,
        stored: Arc<Vec<u8>>,
        meta: Meta,
        room: OwnedSemaphorePermit,
    ) -> Result<Finished> {
        let core = self.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        let (context, entry) = (self.clone(), entry.clone());
        let item = item.with_detected_codec(self.options.decompress, meta.encoding.as_deref(), &stored);
        blocking(move || {
            let mut sums = StoredDigests::new(&entry.digests);
            sums.update(&stored);
            let seen = context.reader.verified(&entry, &sums, &meta)?;
            let temporary = temporary_name(&item.target, "tmp");
            let compression = context.compression_of(&entry);
            // `held` is dropped before the sync, which needs neither memory nor a core.
            let held = (stored, core, room);
            let (file, seal) = context.write_file(&item, &entry, &temporary, held, |(stored, ..), file| {
                let mut sink = Sink::new(&context, &item, file);
                if item.decode == Codec::None && compression.is_none() {
                    return sink.take_sealed(stored, sums.seal);
                }
                sink = sink.pressing(compression);
                context.inflate_stored(&item, &entry, stored, &mut sink)?;
                sink.finish()
            })?;
            let line = context.line(&item, &entry, file.file(), seen, seal)?;
            Ok(Finished { line, temporary: Arc::new(file), parts: None })
        })
        .await
    }

    /// Decompresses an object and passes the content to `sink`. `stored` holds all stored bytes of the object.
    pub fn inflate_stored(&self, item: &Item, entry: &Entry, stored: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        if item.decode == Codec::None {
            return sink.take(stored);
        }
        let limit = self.options.inflated_limit(item.decode, stored.len() as u64);
        let hint = match (item.decode, stored.last_chunk::<4>()) {
            (Codec::Gzip, Some(last)) => gzip_size_hint(*last),
            _ => stored.len() as u64 * 4,
        };
        if stored.len() >= MIN_PARALLEL
            && let Some(done) = {
                let place = self.reader.place(entry);
                ParallelDecoder::whole(item.decode, limit, &place, self.cpu_budget(), stored, &mut |content| {
                    sink.take(content)
                })
            }
        {
            return done;
        }
        if hint <= self.max_whole {
            let mut content = lock(&self.buffers).pop().unwrap_or_default();
            let whole = decompress_into(
                item.decode,
                stored,
                &mut content,
                limit.min(self.max_whole),
                &self.reader.place(entry),
            );
            let done = whole.and_then(|()| sink.take(&content));
            lock(&self.buffers).push(content);
            match done {
                // The size hint was wrong, and the content does not fit into memory. Stream the content instead.
                Err(Error::Corrupt { .. }) if limit > self.max_whole => sink.restart()?,
                other => return other,
            }
        }
        let mut inflater = StreamDecoder::new(item.decode, limit, &self.reader.place(entry));
        for piece in stored.chunks(1 << 20) {
            inflater.push(piece, &mut |content| sink.take(content))?;
        }
        inflater.finish().map(|_| ())
    }

    /// Compression to apply to an object, chosen by the object's name; `None` if the object is not compressed.
    pub fn compression_of(&self, entry: &Entry) -> Option<Compression> {
        self.options.compression_of(entry)
    }

    /// Budget for one object: memory, threads, and cores in addition to the core of the caller.
    pub fn cpu_budget(&self) -> CpuBudget<'_> {
        CpuBudget { cores: &self.cores, threads: self.threads, memory: self.max_whole }
    }

    /// Creates a temporary file, calls `fill` to write the file, drops `held`, and syncs the file. Removes the file
    /// after an error. The file stays locked until the returned `OwnedFile` is dropped.
    pub fn write_file<H>(
        &self,
        item: &Item,
        entry: &Entry,
        temporary: &str,
        held: H,
        fill: impl FnOnce(&H, &File) -> Result<ContentDigest>,
    ) -> Result<(OwnedFile, ContentDigest)> {
        let io = |error: std::io::Error| self.dest_dir.io_error(item.target.as_bytes(), &error, entry.size);
        let file = OwnedFile::lock(&self.parts, temporary).map_err(|error| self.not_locked(item, entry, &error))?;
        let done = file.clear().map_err(io).and_then(|()| fill(&held, file.file())).and_then(|seal| {
            drop(held);
            file.file().sync_all().map_err(io)?;
            Ok(seal)
        });
        match done {
            Ok(seal) => Ok((file, seal)),
            Err(error) => {
                file.remove();
                Err(error)
            }
        }
    }

    /// Builds the error for an object whose temporary file could not be locked.
    pub fn not_locked(&self, item: &Item, entry: &Entry, error: &std::io::Error) -> Error {
        match error.kind() {
            std::io::ErrorKind::WouldBlock => Error::Busy {
                place: self.dest_dir.place(item.target.as_bytes()),
                holder: "another penstock process is writing it".to_owned(),
            },
            _ => self.dest_dir.io_error(item.target.as_bytes(), error, entry.size),
        }
    }

    /// Creates the journal line of a finished file.
    pub fn line(&self, item: &Item, entry: &Entry, file: &File, stored: Verified, seal: ContentDigest) -> Result<Line> {
        let state = state_of_file(file).map_err(|error| self.dest_dir.io_error(item.target.as_bytes(), &error, 0))?;
        if state.size != seal.bytes {
            return Err(Error::bug(format!("{} bytes were written, but the file has {}", seal.bytes, state.size)));
        }
        // The manifest may also record size and digests of the decompressed content.
        if let Some(content) = entry.decompressed.as_ref().filter(|_| item.decode != Codec::None) {
            if content.size != seal.bytes {
                return Err(Error::corrupt(
                    self.reader.place(entry),
                    format!("decompresses to {} bytes (expected {})", seal.bytes, content.size),
                ));
            }
            self.reader.check(entry, &seal.digests(), &content.digests)?;
        }
        let node = format!("{}-of-{}", self.options.node, self.options.nodes);
        let log =
            |name: &str| crate::dest_dir::open_to_append(&self.dest_dir.folder(OWN_PREFIX).ok().flatten()?, name).ok();
        penstock_dataset::record_offsets::note(log, &node, &item.target, file, state);
        let mut line = Line::new(&self.options, item, entry, stored);
        line.origin.encoded = self.compression_of(entry).map_or(Codec::None, |compression| compression.codec);
        line.origin.transform = self.options.compression.and_then(|_| self.options.transform_id());
        Ok(Line { size: state.size, mtime_ns: state.mtime_ns, digests: seal.digests(), ..line })
    }
}
