// SPDX-License-Identifier: Apache-2.0
//! A large object in ranged reads, which a killed stage takes up again where it stopped.
//!
//! Stored bytes land at their offsets in `HASH.part`; each part that is there stands in `HASH.done` with its CRC. The
//! next run believes a part only where its bytes still have that CRC, so neither file needs a sync: what a power cut took
//! is fetched again. Parts whose sync has failed go: the page cache would show them and the disk lack them. When all are
//! there the object is checked as a whole and inflated (or adopted as it is).

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_codec::{Codec, checksum, gzip_size_hint};
use penstock_store::{Digester, Version, cheapest};
use penstock_types::{Algorithm, ByteRange, Digest, Error, PartDigest, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::apart::Apart;
use super::commit::{Finished, temporary_name};
use super::jail::{open_alone, open_own, remove_own};
use super::object::{DAMAGED_MOST, Seal, Seen, Sink, Workshop, blocking, checked_of};
use super::plan::{Item, PART_BYTES};
use super::progress::Progress;
use super::undo::HEAD;
use crate::manifest::Entry;

/// Parts of one object in flight; other objects fill the rest of the pace.
const PARTS_AT_ONCE: usize = 64;
/// A state file beyond this is no state file of ours (a part takes some 30 bytes).
const MAX_STATE: u64 = 64 << 20;

/// What the parts belong to. Anything else in its place and all of them are fetched again.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    source: String,
    size: u64,
    version: Option<Version>,
    modified_ms: Option<i64>,
    part_bytes: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Part {
    at: u64,
    crc: u32,
}

/// The two files of a large object in progress.
struct Partial {
    data: File,
    state: File,
}

fn range_of(entry: &Entry, at: u64) -> ByteRange {
    let start = at * PART_BYTES;
    ByteRange::new(start, PART_BYTES.min(entry.size - start))
}

pub(crate) async fn make(shop: &Arc<Workshop>, item: &Item, entry: &Entry) -> Result<Finished> {
    let (data_name, state_name) = (temporary_name(&item.target, "part"), temporary_name(&item.target, "done"));
    let (known, encoding) = known_of(shop, item, entry).await?;
    let mut last_damage: Option<Vec<Digest>> = None;
    for _ in 0..DAMAGED_MOST {
        let (partial, missing) = {
            let (shop, item, entry) = (shop.clone(), item.clone(), entry.clone());
            let (data_name, state_name) = (data_name.clone(), state_name.clone());
            blocking(move || open(&shop, &item, &entry, &data_name, &state_name)).await?
        };
        let partial = Arc::new(partial);
        fetch_all(shop, item, entry, &partial, missing).await?;
        let core = shop.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        let finished = {
            let (shop, item, entry, known) = (shop.clone(), item.clone(), entry.clone(), known.clone());
            let (partial, data_name) = (partial.clone(), data_name.clone());
            let (state_name, encoding) = (state_name.clone(), encoding.clone());
            blocking(move || {
                let mut head = [0; HEAD];
                let head = &mut head[..HEAD.min(entry.size as usize)];
                partial
                    .data
                    .read_exact_at(head, 0)
                    .map_err(|error| shop.jail.io_error(item.target.as_bytes(), &error, 0))?;
                let item = item.settled(shop.options.inflate, encoding.as_deref(), head);
                let known = Known { digests: known, encoding };
                Ok(finish(&shop, &item, &entry, &partial, &known, core, [&data_name, &state_name]))
            })
            .await?
        };
        match finished {
            Err((error @ Error::Corrupt { .. }, seen)) => {
                drop(partial);
                shop.damaged(entry);
                remove_own(&shop.parts, &state_name);
                remove_own(&shop.parts, &data_name);
                if last_damage.as_ref() == Some(&seen) {
                    return Err(error);
                }
                last_damage = Some(seen);
                Progress::add(&shop.progress.refetched, 1);
            }
            Err((error, _)) => return Err(error),
            Ok(finished) => return Ok(finished),
        }
    }
    Err(shop.always_damaged(entry))
}

/// What is known of the whole beside its bytes.
struct Known {
    digests: Vec<Digest>,
    encoding: Option<String>,
}

/// Checksums of the whole and its encoding, from the listing or, where it had none, from one more question: parts carry
/// no checksum, and may all be here already.
async fn known_of(shop: &Workshop, item: &Item, entry: &Entry) -> Result<(Vec<Digest>, Option<String>)> {
    let has_digest = cheapest(&entry.digests).is_some() || !shop.store.capabilities().checksums;
    let is_settled = !shop.options.inflate || item.undo != Codec::None || entry.encoding.is_some();
    if has_digest && is_settled {
        return Ok((entry.digests.clone(), entry.encoding.clone()));
    }
    let meta = shop.store.head(&shop.object_ref(entry).key, shop.deadline).await?;
    if entry.version.is_some() && meta.version.is_some() && meta.version != entry.version {
        return Err(Error::Changed {
            place: shop.place(entry),
            want: entry.version.as_ref().map(ToString::to_string).unwrap_or_default(),
            have: meta.version.as_ref().map(ToString::to_string).unwrap_or_default(),
        });
    }
    let mut digests = entry.digests.clone();
    digests.extend(meta.digests.into_iter().filter(|digest| !entry.digests.contains(digest)));
    Ok((digests, meta.encoding))
}

/// Opens the two files, keeps the parts that are still what they were, and says which are missing.
fn open(shop: &Workshop, item: &Item, entry: &Entry, data_name: &str, state_name: &str) -> Result<(Partial, Vec<u64>)> {
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::WouldBlock => Error::Precondition {
            place: shop.jail.place(item.target.as_bytes()),
            reason: "another stage is writing it".to_owned(),
        },
        _ => shop.jail.io_error(item.target.as_bytes(), &error, entry.size),
    };
    let head = Head {
        source: shop.place(entry),
        size: entry.size,
        version: entry.version.clone(),
        modified_ms: entry.modified_s.map(|seconds| (seconds * 1e3).round() as i64),
        part_bytes: PART_BYTES,
    };
    let data = open_alone(&shop.parts, data_name).map_err(io)?;
    let mut state = open_own(&shop.parts, state_name).map_err(io)?;
    let parts = entry.size.div_ceil(PART_BYTES);
    let mut have = vec![false; usize::try_from(parts).map_err(|_| Error::bug("more parts than memory has addresses"))?];
    if state.metadata().map_err(io)?.len() <= MAX_STATE {
        let mut lines = BufReader::new(&state).lines();
        let same =
            lines.next().and_then(std::result::Result::ok).and_then(|text| serde_json::from_str::<Head>(&text).ok());
        if same.as_ref() == Some(&head) {
            let mut bytes = vec![0; PART_BYTES as usize];
            for part in
                lines.map_while(std::result::Result::ok).filter_map(|text| serde_json::from_str::<Part>(&text).ok())
            {
                if part.at >= parts || have[part.at as usize] {
                    continue;
                }
                let range = range_of(entry, part.at);
                let bytes = &mut bytes[..range.len as usize];
                if data.read_exact_at(bytes, range.start).is_ok() && checksum::crc32c(bytes) == part.crc {
                    have[part.at as usize] = true;
                    Progress::add(&shop.progress.resumed_bytes, range.len);
                }
            }
        }
    }
    if !have.contains(&true) {
        // Nothing to keep: begin with clean files.
        data.set_len(0).map_err(io)?;
        state.set_len(0).map_err(io)?;
        state.rewind().map_err(io)?;
        let mut text = serde_json::to_vec(&head).map_err(|error| Error::bug(error.to_string()))?;
        text.push(b'\n');
        state.write_all(&text).map_err(io)?;
    } else {
        // A torn last line must not swallow the next one.
        state.seek(SeekFrom::End(0)).map_err(io)?;
        state.write_all(b"\n").map_err(io)?;
    }
    data.set_len(entry.size).map_err(io)?;
    let missing = (0..parts).filter(|&at| !have[at as usize]).collect();
    Ok((Partial { data, state }, missing))
}

async fn fetch_all(
    shop: &Arc<Workshop>,
    item: &Item,
    entry: &Entry,
    partial: &Arc<Partial>,
    missing: Vec<u64>,
) -> Result<()> {
    // Dropping the set ends what is in flight.
    let mut flying: JoinSet<Result<()>> = JoinSet::new();
    let mut missing = missing.into_iter();
    loop {
        while flying.len() < PARTS_AT_ONCE {
            let Some(at) = missing.next() else { break };
            let (shop, item, entry, partial) = (shop.clone(), item.clone(), entry.clone(), partial.clone());
            flying.spawn(async move {
                let range = range_of(&entry, at);
                let room = shop.room(range.len).await?;
                let bytes = fetch(&shop, &entry, range).await?;
                blocking(move || {
                    let part = Part { at, crc: checksum::crc32c(&bytes) };
                    let mut text = serde_json::to_vec(&part).map_err(|error| Error::bug(error.to_string()))?;
                    text.push(b'\n');
                    // One write call on a file in append position: lines of different threads do not mix.
                    let write = || {
                        partial.data.write_all_at(&bytes, range.start)?;
                        (&partial.state).write_all(&text)
                    };
                    let written =
                        write().map_err(|error| shop.jail.io_error(item.target.as_bytes(), &error, entry.size));
                    drop(room);
                    written
                })
                .await
            });
        }
        match flying.join_next().await {
            None => return Ok(()),
            Some(Ok(result)) => result?,
            Some(Err(join)) => return Err(Error::bug(format!("a part's task ended: {join}"))),
        }
    }
}

async fn fetch(shop: &Workshop, entry: &Entry, range: ByteRange) -> Result<Bytes> {
    let mut got = shop.store.get_ranges(&shop.object_ref(entry), &[range], shop.deadline).await?;
    if got.meta.size != entry.size {
        return Err(shop.changed(entry, got.meta.size));
    }
    let mut bytes = Vec::with_capacity(range.len as usize);
    while let Some(chunk) = got.chunks.try_next().await? {
        Progress::add(&shop.progress.bytes_in, chunk.bytes.len() as u64);
        bytes.extend_from_slice(&chunk.bytes);
    }
    if bytes.len() as u64 != range.len {
        let problem = format!("gave {} bytes at {} where {} were asked for", bytes.len(), range.start, range.len);
        return Err(Error::corrupt(shop.place(entry), problem));
    }
    Ok(bytes.into())
}

/// From all parts on disk to a synced file. With an error comes what the stored bytes were. The core is given back before
/// the sync, which needs none.
fn finish(
    shop: &Workshop,
    item: &Item,
    entry: &Entry,
    partial: &Partial,
    known: &Known,
    core: OwnedSemaphorePermit,
    [data_name, state_name]: [&str; 2],
) -> Result<Finished, (Error, Vec<Digest>)> {
    let mut stored = Stored::new(&known.digests);
    let whole = |stored: &Stored, shop: &Workshop| {
        let have = stored.digests();
        shop.compare(entry, &have, &known.digests).map(|()| have)
    };
    let seen = |have: &[Digest]| Seen {
        digests: have[..2].to_vec(),
        checked: checked_of(known.digests.iter(), |kind| have.iter().any(|digest| digest.algorithm == kind)),
        encoding: known.encoding.clone(),
    };
    let io = |error: std::io::Error| shop.jail.io_error(item.target.as_bytes(), &error, entry.size);
    let deflate = shop.deflate_of(entry);
    if item.undo == Codec::None && deflate.is_none() {
        let done = (|| {
            read_pieces(&partial.data, entry.size, |piece| {
                stored.update(piece);
                Ok(())
            })
            .map_err(|error| error.unwrap_or_else(io))?;
            let digests = whole(&stored, shop)?;
            drop(core);
            // What the disk refused stays in the page cache as if it were written, and the next sync of it succeeds: a
            // later run must not find it there and believe it.
            partial.data.sync_all().map_err(|error| {
                remove_own(&shop.parts, state_name);
                remove_own(&shop.parts, data_name);
                io(error)
            })?;
            let line = shop.line(item, entry, &partial.data, seen(&digests), stored.seal.clone())?;
            Ok(Finished { line, temporary: data_name.to_owned(), leftovers: vec![state_name.to_owned()] })
        })();
        return done.map_err(|error| (error, stored.digests()));
    }
    let temporary = temporary_name(&item.target, "tmp");
    let result = shop.write_file(item, entry, &temporary, core, |_, file| {
        let mut sink = Sink::new(shop, item, file).pressing(deflate);
        if item.undo == Codec::None {
            read_pieces(&partial.data, entry.size, |piece| {
                stored.update(piece);
                sink.take(piece)
            })
            .map_err(|error| error.unwrap_or_else(io))?;
            whole(&stored, shop)?;
            return sink.finish();
        }
        if entry.size.saturating_add(inflated_hint(item.undo, &partial.data, entry.size).map_err(io)?)
            <= shop.whole_most
        {
            let mut bytes = Vec::with_capacity(entry.size as usize);
            read_pieces(&partial.data, entry.size, |piece| {
                stored.update(piece);
                bytes.extend_from_slice(piece);
                Ok(())
            })
            .map_err(|error| error.unwrap_or_else(io))?;
            whole(&stored, shop)?;
            shop.inflate_stored(item, entry, &bytes, &mut sink)?;
            return sink.finish();
        }
        let limit = shop.inflated_limit(item.undo, entry.size);
        let place = shop.place(entry);
        let mut apart = Apart::new(item.undo, limit, &place, shop.means());
        let mut damage = None;
        read_pieces(&partial.data, entry.size, |piece| {
            stored.update(piece);
            // After damage, the rest is only sealed: what the stored bytes were decides what is done next.
            if damage.is_none() {
                match apart.push(piece, &mut |content| sink.take(content)) {
                    Err(error @ Error::Corrupt { .. }) => damage = Some(error),
                    other => return other,
                }
            }
            Ok(())
        })
        .map_err(|error| error.unwrap_or_else(io))?;
        whole(&stored, shop)?;
        match damage {
            Some(error) => return Err(error),
            None => apart.finish(&mut |content| sink.take(content))?,
        };
        sink.finish()
    });
    let digests = stored.digests();
    result
        .and_then(|(file, seal)| shop.line(item, entry, &file, seen(&digests), seal))
        .map(|line| Finished { line, temporary, leftovers: vec![data_name.to_owned(), state_name.to_owned()] })
        .map_err(|error| (error, digests))
}

/// What the content may come to: gzip's own trailer, or a guess. Only chooses the way; nothing is sized by it.
fn inflated_hint(codec: Codec, data: &File, size: u64) -> std::io::Result<u64> {
    if codec != Codec::Gzip || size < 4 {
        return Ok(size.saturating_mul(4));
    }
    let mut last = [0; 4];
    data.read_exact_at(&mut last, size - 4)?;
    Ok(gzip_size_hint(last).max(size))
}

/// Our own two digests of stored bytes, and the store's where it is another CRC; its MD5 or SHA-256 only where there is no CRC.
#[derive(Clone)]
pub(crate) struct Stored {
    pub seal: Seal,
    other: Vec<Digester>,
}

impl Stored {
    pub fn new(known: &[Digest]) -> Self {
        let first = cheapest(known).map(|digest| digest.algorithm);
        let is_wanted = |digest: &&Digest| match digest.algorithm {
            Algorithm::Crc32c => false,
            // The dear ones only where nothing else is promised.
            kind @ (Algorithm::Md5 | Algorithm::Parts(PartDigest::Md5, _)) => first == Some(kind),
            Algorithm::Sha256 => first.is_none(),
            _ => true,
        };
        let other = known.iter().filter(is_wanted).filter_map(|digest| Digester::new(digest.algorithm)).collect();
        Self { seal: Seal::default(), other }
    }

    /// The MD5 too.
    pub fn with_md5(mut self) -> Self {
        if !self.other.iter().any(|other| other.algorithm() == Algorithm::Md5) {
            self.other.extend(Digester::new(Algorithm::Md5));
        }
        self
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.seal.update(bytes);
        self.other.iter_mut().for_each(|other| other.update(bytes));
    }

    /// Ours first.
    pub fn digests(&self) -> Vec<Digest> {
        let mut digests = self.seal.digests();
        digests.extend(self.other.iter().map(|other| other.clone().finish()));
        digests
    }
}

/// Either our own error or the system's, which the caller gives a place.
enum Stopped {
    Ours(Error),
    System(std::io::Error),
}

impl Stopped {
    fn unwrap_or_else(self, place: impl FnOnce(std::io::Error) -> Error) -> Error {
        match self {
            Self::Ours(error) => error,
            Self::System(error) => place(error),
        }
    }
}

fn read_pieces(file: &File, size: u64, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<(), Stopped> {
    let mut reader = file;
    reader.rewind().map_err(Stopped::System)?;
    let mut piece = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let want = left.min(piece.len() as u64) as usize;
        reader.read_exact(&mut piece[..want]).map_err(Stopped::System)?;
        take(&piece[..want]).map_err(Stopped::Ours)?;
        left -= want as u64;
    }
    Ok(())
}
