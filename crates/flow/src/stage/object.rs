// SPDX-License-Identifier: Apache-2.0
//! The journey of one object: fetched at its pinned version, checked, inflated, written under a temporary name, synced.
//!
//! Fetching is async; checking, inflating and writing run on blocking threads, as many at once as there are cores.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_codec::checksum::{Crc32c, Xxh3};
use penstock_codec::{Codec, Inflater, gzip_size_hint, inflate_into};
use penstock_store::{Meta, Mirrors, ObjectRef, Store, cheapest};
use penstock_types::{Algorithm, ByteRange, Deadline, Digest, Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::apart::{Apart, Means};
use super::commit::{Finished, temporary_name};
use super::jail::{Jail, open_alone, remove_own, state_of_file};
use super::journal::Line;
use super::parts::Stored;
use super::plan::{Item, PART_BYTES, StageOptions};
use super::progress::Progress;
use super::squeeze::{Deflate, Squeeze};
use crate::feed::staged;
use crate::manifest::{Entry, OWN_PREFIX, Origin};

/// The unit in which memory is handed out; the semaphore counts in u32.
const MEMORY_UNIT: u64 = 64 << 10;
/// The most that is inflated in one piece; beyond it, content streams to the file.
const WHOLE_MOST: u64 = 512 << 20;
/// Stored bytes from which on it is worth looking whether an object can be taken apart.
const APART_LEAST: usize = 1 << 20;
/// Fetches of an object whose bytes keep arriving damaged, and damaged differently: the line is at fault, not the object.
pub(crate) const DAMAGED_MOST: u32 = 32;

/// What every object of a stage shares.
pub(crate) struct Workshop {
    pub store: Arc<dyn Store>,
    pub prefix: penstock_types::Key,
    pub source: String,
    pub mirrors: Option<Mirrors>,
    pub jail: Arc<Jail>,
    pub parts: Arc<OwnedFd>,
    pub memory: Arc<Semaphore>,
    pub memory_units: u32,
    pub cores: Arc<Semaphore>,
    pub threads: usize,
    pub whole_most: u64,
    pub buffers: Mutex<Vec<Vec<u8>>>,
    pub progress: Arc<Progress>,
    pub options: StageOptions,
    pub deadline: Deadline,
}

impl Workshop {
    /// Half of the budget holds what is in flight, the other half what is being inflated.
    pub fn budgets(memory: u64, cores: usize) -> (u32, u64) {
        let units = (memory / 2 / MEMORY_UNIT).clamp(1, u64::from(u32::MAX >> 4)) as u32;
        (units, (memory / 2 / cores as u64).min(WHOLE_MOST))
    }

    /// Waits for room for `bytes`; all of the room where they are more than there is.
    pub async fn room(&self, bytes: u64) -> Result<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(MEMORY_UNIT).clamp(1, u64::from(self.memory_units)) as u32;
        self.memory.clone().acquire_many_owned(units).await.map_err(|_| Error::Interrupted)
    }

    pub fn place(&self, entry: &Entry) -> String {
        format!("{}{}", self.source, entry.key)
    }

    pub fn object_ref(&self, entry: &Entry) -> ObjectRef {
        ObjectRef { key: self.prefix.join(entry.key.as_bytes()), version: entry.version.clone() }
    }

    /// What an object may inflate to: what it was told, or what its codec can honestly reach.
    pub fn inflated_limit(&self, codec: Codec, stored: u64) -> u64 {
        inflated_limit(codec, stored, self.options.max_inflated)
    }

    /// Moves one object to a finished temporary file.
    pub async fn make(self: &Arc<Self>, item: &Item, entry: &Entry) -> Result<Finished> {
        if entry.size > PART_BYTES && self.store.capabilities().ranges {
            return super::parts::make(self, item, entry).await;
        }
        let mut last_damage: Option<Digest> = None;
        for _ in 0..DAMAGED_MOST {
            let room = self.room(entry.size).await?;
            let (stored, verdict) = self.fetch(entry).await?;
            let damage = match verdict {
                Ok(meta) => match self.finish_whole(item, entry, stored.clone(), meta, room).await {
                    Err(error @ Error::Corrupt { .. }) => error,
                    other => return other,
                },
                Err(error) => error,
            };
            self.damaged(entry);
            // The same bytes twice: the object itself is damaged, and asking again would not help.
            let seen = Some(Xxh3::of(&stored));
            if seen == last_damage {
                return Err(damage);
            }
            last_damage = seen;
            Progress::add(&self.progress.refetched, 1);
        }
        Err(self.always_damaged(entry))
    }

    /// Whoever of several stores gave these bytes is left out.
    pub fn damaged(&self, entry: &Entry) {
        if let Some(mirrors) = &self.mirrors {
            mirrors.damaged(&self.prefix.join(entry.key.as_bytes()));
        }
    }

    pub fn always_damaged(&self, entry: &Entry) -> Error {
        Error::corrupt(self.place(entry), format!("arrived damaged {DAMAGED_MOST} times, differently each time"))
    }

    /// All bytes of an object, with what the store says of it: `Err` inside where bytes and checksum differ.
    async fn fetch(&self, entry: &Entry) -> Result<(Bytes, Result<Meta>)> {
        let mut got = self.store.get_ranges(&self.object_ref(entry), &[ByteRange::WHOLE], self.deadline).await?;
        if got.meta.size != entry.size {
            return Err(self.changed(entry, got.meta.size));
        }
        // A size beyond a part comes only from a store without ranges, and may be a lie.
        let mut bytes = Vec::with_capacity(entry.size.min(PART_BYTES) as usize);
        let verdict = loop {
            match got.chunks.try_next().await {
                Ok(Some(chunk)) => {
                    Progress::add(&self.progress.bytes_in, chunk.bytes.len() as u64);
                    bytes.extend_from_slice(&chunk.bytes);
                }
                Ok(None) => break Ok(got.meta),
                Err(error @ Error::Corrupt { .. }) => break Err(error),
                Err(error) => return Err(error),
            }
        };
        let verdict = match verdict {
            Ok(_) if bytes.len() as u64 != entry.size => Err(Error::corrupt(
                self.place(entry),
                format!("ended early (want {} bytes, have {} bytes)", entry.size, bytes.len()),
            )),
            other => other,
        };
        Ok((bytes.into(), verdict))
    }

    pub fn changed(&self, entry: &Entry, size: u64) -> Error {
        Error::Changed {
            place: self.place(entry),
            want: format!("of {} bytes", entry.size),
            have: format!("one of {size} bytes"),
        }
    }

    /// From all stored bytes in memory to a synced temporary file.
    async fn finish_whole(
        self: &Arc<Self>,
        item: &Item,
        entry: &Entry,
        stored: Bytes,
        meta: Meta,
        room: OwnedSemaphorePermit,
    ) -> Result<Finished> {
        let core = self.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        let (shop, entry) = (self.clone(), entry.clone());
        let item = item.settled(self.options.inflate, meta.encoding.as_deref(), &stored);
        blocking(move || {
            let mut sums = Stored::new(&entry.digests);
            sums.update(&stored);
            let mut digests = sums.digests();
            shop.compare(&entry, &digests, &meta.digests)?;
            shop.compare(&entry, &digests, &entry.digests)?;
            // The store's own was checked as the bytes came.
            let promised = cheapest(&meta.digests).into_iter().chain(&entry.digests);
            let checked = checked_of(promised, |algorithm| {
                digests.iter().any(|digest| digest.algorithm == algorithm)
                    || cheapest(&meta.digests).is_some_and(|digest| digest.algorithm == algorithm)
            });
            digests.truncate(2);
            let seen = Seen { digests, checked, encoding: meta.encoding };
            let temporary = temporary_name(&item.target, "tmp");
            // Syncing needs neither memory nor a core.
            let held = (stored, core, room);
            let (file, seal) = shop.write_file(&item, &entry, &temporary, held, |(stored, ..), file| {
                let mut sink = Sink::new(&shop, &item, file).pressing(shop.deflate_of(&entry));
                shop.inflate_stored(&item, &entry, stored, &mut sink)?;
                sink.finish()
            })?;
            let line = shop.line(&item, &entry, &file, seen, seal)?;
            Ok(Finished { line, temporary, leftovers: Vec::new() })
        })
        .await
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
                let place = self.place(entry);
                Apart::whole(item.undo, limit, &place, self.means(), stored, &mut |content| sink.take(content))
            }
        {
            return done;
        }
        if hint <= self.whole_most {
            let mut content = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
            let whole = inflate_into(item.undo, stored, &mut content, limit.min(self.whole_most), &self.place(entry));
            let done = whole.and_then(|()| sink.take(&content));
            self.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(content);
            match done {
                // The hint was wrong and the content is larger than one piece may be: stream it.
                Err(Error::Corrupt { .. }) if limit > self.whole_most => sink.restart()?,
                other => return other,
            }
        }
        let mut inflater = Inflater::new(item.undo, limit, &self.place(entry));
        for piece in stored.chunks(1 << 20) {
            inflater.push(piece, &mut |content| sink.take(content))?;
        }
        inflater.finish().map(|_| ())
    }

    /// What the file of an object is compressed in, as its name says.
    pub fn deflate_of(&self, entry: &Entry) -> Option<Deflate> {
        self.options.deflate_of(entry)
    }

    /// What one object may take beside its own core.
    pub fn means(&self) -> Means<'_> {
        Means { cores: &self.cores, threads: self.threads, memory: self.whole_most }
    }

    /// Errs where bytes are not what a store or a manifest says of them.
    pub fn compare(&self, entry: &Entry, have: &[Digest], want: &[Digest]) -> Result<()> {
        for digest in want {
            if let Some(have) = have.iter().find(|have| have.algorithm == digest.algorithm)
                && have != digest
            {
                return Err(Error::corrupt(self.place(entry), format!("has {have} where {digest} was promised")));
            }
        }
        Ok(())
    }

    /// Makes a temporary file, lets `fill` write it, drops `held`, and syncs it. Nothing of it is left after an error.
    pub fn write_file<H>(
        &self,
        item: &Item,
        entry: &Entry,
        temporary: &str,
        held: H,
        fill: impl FnOnce(&H, &mut File) -> Result<Seal>,
    ) -> Result<(File, Seal)> {
        let io = |error: std::io::Error| self.jail.io_error(item.target.as_bytes(), &error, entry.size);
        let mut file = open_alone(&self.parts, temporary).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => Error::Precondition {
                place: self.jail.place(item.target.as_bytes()),
                reason: "another stage is writing it".to_owned(),
            },
            _ => io(error),
        })?;
        let done = file.set_len(0).map_err(io).and_then(|()| fill(&held, &mut file)).and_then(|seal| {
            drop(held);
            file.sync_all().map_err(io)?;
            Ok(seal)
        });
        match done {
            Ok(seal) => Ok((file, seal)),
            Err(error) => {
                remove_own(&self.parts, temporary);
                Err(error)
            }
        }
    }

    /// The journal's line of a finished file.
    pub fn line(&self, item: &Item, entry: &Entry, file: &File, stored: Seen, seal: Seal) -> Result<Line> {
        let state = state_of_file(file).map_err(|error| self.jail.io_error(item.target.as_bytes(), &error, 0))?;
        if state.size != seal.bytes {
            return Err(Error::bug(format!("{} bytes were written and the file has {}", seal.bytes, state.size)));
        }
        // A manifest may know the content too.
        if let Some(inflated) = entry.inflated.as_ref().filter(|_| item.undo != Codec::None) {
            if inflated.size != seal.bytes {
                return Err(Error::corrupt(
                    self.place(entry),
                    format!("inflates to {} bytes where {} were promised", seal.bytes, inflated.size),
                ));
            }
            self.compare(entry, &seal.digests(), &inflated.digests)?;
        }
        if let Ok(Some(own)) = self.jail.folder(OWN_PREFIX) {
            let node = format!("{}-of-{}", self.options.node, self.options.nodes);
            staged::note(&own, &node, &item.target, file, state);
        }
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
                undone: item.undo,
                undone_by: item.said_by,
                packed: self.deflate_of(entry).map_or(Codec::None, |deflate| deflate.codec),
                asked: self.options.deflate.and_then(|_| super::remote::wish(&self.options)),
                ..Origin::of(entry)
            },
            modified_s: entry.modified_s,
            inflate: self.options.inflate,
            version: None,
        })
    }
}

/// What an object may inflate to: what the user said, or what its codec can honestly reach.
pub(crate) fn inflated_limit(codec: Codec, stored: u64, told: Option<u64>) -> u64 {
    let ratio = match codec {
        Codec::None => 1,
        Codec::Gzip => 1_100,  // deflate cannot pass 1,032:1
        Codec::Lz4 => 300,     // LZ4 cannot pass 255:1
        Codec::Zstd => 50_000, // a frame of zeros at level 19 reaches about 30,000:1
    };
    told.unwrap_or_else(|| stored.saturating_mul(ratio).saturating_add(1 << 20))
}

/// What the stored bytes of an object turned out to be.
pub(crate) struct Seen {
    /// Our own digests of them.
    pub digests: Vec<Digest>,
    /// Those that were promised and that they have.
    pub checked: Vec<Digest>,
    /// Content-Encoding, as the store said it.
    pub encoding: Option<String>,
}

/// The promised digests that were looked at, each once.
pub(crate) fn checked_of<'a>(
    promised: impl Iterator<Item = &'a Digest>,
    is_checked: impl Fn(Algorithm) -> bool,
) -> Vec<Digest> {
    let mut checked: Vec<Digest> = Vec::new();
    for digest in promised.filter(|digest| is_checked(digest.algorithm)) {
        if !checked.contains(digest) {
            checked.push(digest.clone());
        }
    }
    checked
}

/// Runs `work` on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(join) if join.is_cancelled() => Err(Error::Interrupted),
        Err(join) => Err(Error::bug(format!("a stage thread ended: {join}"))),
    }
}

/// Count and digests of bytes as they pass.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seal {
    pub bytes: u64,
    crc: Crc32c,
    xxh: Xxh3,
}

impl Seal {
    pub fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc.update(bytes);
        self.xxh.update(bytes);
    }

    pub fn digests(&self) -> Vec<Digest> {
        vec![Digest::of_u32(Algorithm::Crc32c, self.crc.value()), Digest::of_u128(Algorithm::Xxh3, self.xxh.value())]
    }
}

/// Where content goes: the file, sealed on the way.
pub(crate) struct Sink<'a> {
    out: Out<'a>,
    press: Option<Squeeze<'a>>,
    deflate: Option<Deflate>,
}

/// The file, and what it holds so far.
struct Out<'a> {
    shop: &'a Workshop,
    item: &'a Item,
    file: &'a mut File,
    seal: Seal,
}

impl Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.seal.update(bytes);
        self.file.write_all(bytes).map_err(|error| self.error(&error, bytes.len() as u64))
    }

    fn error(&self, error: &std::io::Error, need: u64) -> Error {
        self.shop.jail.io_error(self.item.target.as_bytes(), error, need)
    }
}

impl<'a> Sink<'a> {
    pub fn new(shop: &'a Workshop, item: &'a Item, file: &'a mut File) -> Self {
        Self { out: Out { shop, item, file, seal: Seal::default() }, press: None, deflate: None }
    }

    /// Content is compressed on its way into the file.
    pub fn pressing(mut self, deflate: Option<Deflate>) -> Self {
        self.deflate = deflate;
        self.press = deflate.map(|deflate| Squeeze::new(deflate, self.out.shop.means()));
        self
    }

    pub fn take(&mut self, content: &[u8]) -> Result<()> {
        match &mut self.press {
            Some(press) => press.take(content, &mut |bytes| self.out.write(bytes)),
            None => self.out.write(content),
        }
    }

    /// All content has passed: what the file holds.
    pub fn finish(mut self) -> Result<Seal> {
        if let Some(press) = self.press.take() {
            press.finish(&mut |bytes| self.out.write(bytes))?;
        }
        Ok(self.out.seal)
    }

    fn restart(&mut self) -> Result<()> {
        self.press = self.deflate.map(|deflate| Squeeze::new(deflate, self.out.shop.means()));
        self.out.seal = Seal::default();
        self.out.file.set_len(0).and_then(|()| self.out.file.rewind()).map_err(|error| self.out.error(&error, 0))
    }
}
