// SPDX-License-Identifier: Apache-2.0
//! The journey of one object: fetched at its pinned version, checked, inflated, written under a temporary name, synced.
//!
//! Fetching is async; checking, inflating and writing run on blocking threads, as many at once as there are cores.

use std::fs::File;
use std::sync::Arc;

use penstock_codec::checksum::Xxh3;
use penstock_codec::{Codec, StreamDecoder, decompress_into, gzip_size_hint};
use penstock_store::owned::OwnedFile;
use penstock_store::{Meta, cheapest};
use penstock_types::{Digest, Error, Result, lock};
use tokio::sync::OwnedSemaphorePermit;

use crate::blocking::blocking;
use crate::commit::{Finished, temporary_name};
use crate::compress::Compression;
use crate::dest_dir::state_of_file;
use crate::digests::{ContentDigest, Seen, StoredDigests, checked_of};
use crate::journal::Line;
use crate::parallel_decode::{CpuBudget, ParallelDecoder};
use crate::plan::Item;
use crate::progress::Progress;
use crate::source_reader::inflated_limit;
use crate::to_folder::context::{DAMAGED_MOST, DownloadContext};
use crate::to_folder::sink::Sink;
use penstock_dataset::manifest::{Entry, OWN_PREFIX, Origin};

/// The most that is inflated in one piece; beyond it, content streams to the file.
const WHOLE_MOST: u64 = 512 << 20;
/// Stored bytes from which on it is worth looking whether an object can be taken apart.
const APART_LEAST: usize = 1 << 20;

impl DownloadContext {
    /// Memory for decompression per core: the half of the budget that the reader leaves, divided by the cores.
    pub fn whole_most(memory: u64, cores: usize) -> u64 {
        (memory / 2 / cores as u64).min(WHOLE_MOST)
    }

    /// Maximum decompressed size of an object: the given limit, or the highest ratio of its codec.
    pub fn inflated_limit(&self, codec: Codec, stored: u64) -> u64 {
        inflated_limit(codec, stored, self.options.max_inflated)
    }

    /// Moves one object of at most [`PART_BYTES`] to a finished temporary file.
    pub async fn make(self: &Arc<Self>, item: &Item, entry: &Entry) -> Result<Finished> {
        let mut last_damage: Option<Digest> = None;
        for _ in 0..DAMAGED_MOST {
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
            self.reader.damaged(entry);
            // The same bytes twice: the object itself is damaged, and asking again would not help.
            let seen = Some(Xxh3::of(&stored));
            if seen == last_damage {
                return Err(damage);
            }
            last_damage = seen;
            Progress::add(&self.reader.progress.refetched, 1);
        }
        Err(self.always_damaged(entry))
    }

    pub fn always_damaged(&self, entry: &Entry) -> Error {
        Error::corrupt(self.reader.place(entry), format!("arrived damaged {DAMAGED_MOST} times, differently each time"))
    }

    /// From all stored bytes in memory to a synced temporary file.
    async fn finish_whole(
        self: &Arc<Self>,
        item: &Item,
        entry: &Entry,
        stored: Arc<Vec<u8>>,
        meta: Meta,
        room: OwnedSemaphorePermit,
    ) -> Result<Finished> {
        let core = self.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        let (shop, entry) = (self.clone(), entry.clone());
        let item = item.with_detected_codec(self.options.decompress, meta.encoding.as_deref(), &stored);
        blocking(move || {
            let mut sums = StoredDigests::new(&entry.digests);
            sums.update(&stored);
            let seen = shop.seen(&entry, &sums, &meta)?;
            let temporary = temporary_name(&item.target, "tmp");
            let compression = shop.compression_of(&entry);
            // Syncing needs neither memory nor a core.
            let held = (stored, core, room);
            let (file, seal) = shop.write_file(&item, &entry, &temporary, held, |(stored, ..), file| {
                let mut sink = Sink::new(&shop, &item, file);
                if item.undo == Codec::None && compression.is_none() {
                    return sink.take_sealed(stored, sums.seal);
                }
                sink = sink.pressing(compression);
                shop.inflate_stored(&item, &entry, stored, &mut sink)?;
                sink.finish()
            })?;
            let line = shop.line(&item, &entry, file.file(), seen, seal)?;
            Ok(Finished { line, temporary: Arc::new(file), parts: None })
        })
        .await
    }

    /// Digests of stored bytes that came in one read, which was compared with the store's digest on the way. Errs
    /// where they are not what their store or a manifest says.
    pub fn seen(&self, entry: &Entry, stored: &StoredDigests, meta: &Meta) -> Result<Seen> {
        let mut digests = stored.digests();
        self.compare(entry, &digests, &meta.digests)?;
        self.compare(entry, &digests, &entry.digests)?;
        let own = cheapest(&meta.digests);
        let checked = checked_of(own.into_iter().chain(&entry.digests), |algorithm| {
            digests.iter().chain(own).any(|digest| digest.algorithm == algorithm)
        });
        digests.truncate(2); // our own
        Ok(Seen { digests, checked, encoding: meta.encoding.clone() })
    }

    /// Content of an object whose stored bytes are all here.
    pub fn inflate_stored(&self, item: &Item, entry: &Entry, stored: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        if item.undo == Codec::None {
            return sink.take(stored);
        }
        let limit = self.inflated_limit(item.undo, stored.len() as u64);
        let hint = match (item.undo, stored.last_chunk::<4>()) {
            (Codec::Gzip, Some(last)) => gzip_size_hint(*last),
            _ => stored.len() as u64 * 4,
        };
        if stored.len() >= APART_LEAST
            && let Some(done) = {
                let place = self.reader.place(entry);
                ParallelDecoder::whole(item.undo, limit, &place, self.means(), stored, &mut |content| {
                    sink.take(content)
                })
            }
        {
            return done;
        }
        if hint <= self.whole_most {
            let mut content = lock(&self.buffers).pop().unwrap_or_default();
            let whole =
                decompress_into(item.undo, stored, &mut content, limit.min(self.whole_most), &self.reader.place(entry));
            let done = whole.and_then(|()| sink.take(&content));
            lock(&self.buffers).push(content);
            match done {
                // The hint was wrong and the content is larger than one piece may be: stream it.
                Err(Error::Corrupt { .. }) if limit > self.whole_most => sink.restart()?,
                other => return other,
            }
        }
        let mut inflater = StreamDecoder::new(item.undo, limit, &self.reader.place(entry));
        for piece in stored.chunks(1 << 20) {
            inflater.push(piece, &mut |content| sink.take(content))?;
        }
        inflater.finish().map(|_| ())
    }

    /// Codec of an object's file, by its name.
    pub fn compression_of(&self, entry: &Entry) -> Option<Compression> {
        self.options.compression_of(entry)
    }

    /// Budget of one object beside its own core: cores, threads and memory.
    pub fn means(&self) -> CpuBudget<'_> {
        CpuBudget { cores: &self.cores, threads: self.threads, memory: self.whole_most }
    }

    /// Errs where bytes are not what a store or a manifest says of them.
    pub fn compare(&self, entry: &Entry, have: &[Digest], want: &[Digest]) -> Result<()> {
        for digest in want {
            if let Some(have) = have.iter().find(|have| have.algorithm == digest.algorithm)
                && have != digest
            {
                return Err(Error::corrupt(
                    self.reader.place(entry),
                    format!("has {have} where {digest} was promised"),
                ));
            }
        }
        Ok(())
    }

    /// Makes a temporary file, lets `fill` write it, drops `held`, and syncs it. Nothing of it is left after an error. The
    /// file stays locked until it is dropped.
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

    /// Why a temporary file of an object could not be opened.
    pub fn not_locked(&self, item: &Item, entry: &Entry, error: &std::io::Error) -> Error {
        match error.kind() {
            std::io::ErrorKind::WouldBlock => Error::Busy {
                place: self.dest_dir.place(item.target.as_bytes()),
                holder: "another penstock process writes it".to_owned(),
            },
            _ => self.dest_dir.io_error(item.target.as_bytes(), error, entry.size),
        }
    }

    /// The journal's line of a finished file.
    pub fn line(&self, item: &Item, entry: &Entry, file: &File, stored: Seen, seal: ContentDigest) -> Result<Line> {
        let state = state_of_file(file).map_err(|error| self.dest_dir.io_error(item.target.as_bytes(), &error, 0))?;
        if state.size != seal.bytes {
            return Err(Error::bug(format!("{} bytes were written and the file has {}", seal.bytes, state.size)));
        }
        // A manifest may know the content too.
        if let Some(content) = entry.decompressed.as_ref().filter(|_| item.undo != Codec::None) {
            if content.size != seal.bytes {
                return Err(Error::corrupt(
                    self.reader.place(entry),
                    format!("inflates to {} bytes where {} were promised", seal.bytes, content.size),
                ));
            }
            self.compare(entry, &seal.digests(), &content.digests)?;
        }
        let node = format!("{}-of-{}", self.options.node, self.options.nodes);
        let log =
            |name: &str| crate::dest_dir::open_to_append(&self.dest_dir.folder(OWN_PREFIX).ok().flatten()?, name).ok();
        penstock_dataset::record_offsets::note(log, &node, &item.target, file, state);
        Ok(Line {
            target: item.target.clone(),
            size: state.size,
            mtime_ns: state.mtime_ns,
            digests: seal.digests(),
            origin: Origin {
                key: entry.key.clone(),
                size: entry.size,
                version: entry.version.clone(),
                digests: stored.digests,
                checked: stored.checked,
                encoding: stored.encoding.or_else(|| entry.encoding.clone()),
                decoded: item.undo,
                codec_source: item.codec_source,
                encoded: self.compression_of(entry).map_or(Codec::None, |compression| compression.codec),
                transform: self.options.compression.and_then(|_| crate::to_store::target::transform_id(&self.options)),
                ..Origin::of(entry)
            },
            modified_s: entry.modified_s,
            decompress: self.options.decompress,
            version: None,
        })
    }
}
