// SPDX-License-Identifier: Apache-2.0
//! A large object on its way to a store: read in order, piece by piece, and written in parts that a killed stage need not
//! send again. Holds a few parts in memory, whatever the object's size.
//!
//! What a later run does not read again: of a copy whose source promises no digest but a CRC-32C, the parts that the store
//! holds. Anything else is read again from its begin, since its digest or its codec wants all of it; its parts are not
//! sent again where they come out the same.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::checksum::crc32c;
use penstock_codec::{Codec, Inflater};
use penstock_store::{Meta, Part, PartAt, Terms, UploadId, Uploads, combined};
use penstock_types::{Algorithm, ByteRange, Digest, Error, Result};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::commit::temporary_name;
use super::object::blocking;
use super::parts::Stored;
use super::plan::PART_BYTES;
use super::progress::Progress;
use super::send::{Change, Load, PART, Written, Yard};
use super::sent::{Head, Left, SentParts};
use super::squeeze::Press;
use crate::manifest::Entry;

/// Ranged reads of one object in flight.
const READS: usize = 4;
/// Parts of one object on their way.
const SENDS: usize = 4;
/// What of an object's first bytes is wanted before anything is decided.
const LOOK: u64 = super::squeeze::TRIED as u64;
/// Parts of one size, where the size of the whole is not known; then they double.
const STEP: u32 = 2000;

/// Reads an object in order on tasks of its own, which end with this.
struct Reader {
    pieces: mpsc::Receiver<Result<Bytes>>,
    _task: JoinSet<()>,
}

impl Reader {
    fn start(yard: &Arc<Yard>, entry: &Entry, most: usize) -> Self {
        let (send, pieces) = mpsc::channel(2);
        let (yard, entry) = (yard.clone(), entry.clone());
        let mut task = JoinSet::new();
        task.spawn(async move {
            if !yard.from.store.capabilities().ranges {
                if let Err(error) = whole(&yard, &entry, &send).await {
                    let _ = send.send(Err(error)).await;
                }
                return;
            }
            let starts = (0..entry.size.div_ceil(PART_BYTES)).map(|at| at * PART_BYTES);
            let mut reads = stream::iter(starts)
                .map(|start| range(&yard, &entry, ByteRange::new(start, PART_BYTES.min(entry.size - start))))
                .buffered(most);
            while let Some(piece) = reads.next().await {
                let is_end = piece.is_err();
                if send.send(piece).await.is_err() || is_end {
                    return;
                }
            }
        });
        Self { pieces, _task: task }
    }
}

/// A store without ranges: all of it, in pieces as they come.
async fn whole(yard: &Yard, entry: &Entry, send: &mpsc::Sender<Result<Bytes>>) -> Result<()> {
    let mut got = yard.from.store.get_ranges(&yard.object_ref(entry), &[ByteRange::WHOLE], yard.deadline).await?;
    if got.meta.size != entry.size {
        return Err(yard.changed(entry, got.meta.size));
    }
    let mut piece = BytesMut::new();
    while let Some(chunk) = got.chunks.try_next().await? {
        Progress::add(&yard.progress.bytes_in, chunk.bytes.len() as u64);
        piece.extend_from_slice(&chunk.bytes);
        if piece.len() as u64 >= PART_BYTES && send.send(Ok(piece.split().freeze())).await.is_err() {
            return Ok(());
        }
    }
    if !piece.is_empty() {
        let _ = send.send(Ok(piece.freeze())).await;
    }
    Ok(())
}

async fn range(yard: &Yard, entry: &Entry, range: ByteRange) -> Result<Bytes> {
    let mut got = yard.from.store.get_ranges(&yard.object_ref(entry), &[range], yard.deadline).await?;
    if got.meta.size != entry.size {
        return Err(yard.changed(entry, got.meta.size));
    }
    let mut bytes = Vec::with_capacity(range.len as usize);
    while let Some(chunk) = got.chunks.try_next().await? {
        Progress::add(&yard.progress.bytes_in, chunk.bytes.len() as u64);
        bytes.extend_from_slice(&chunk.bytes);
    }
    if bytes.len() as u64 != range.len {
        let problem = format!("gave {} bytes at {} where {} were asked for", bytes.len(), range.start, range.len);
        return Err(Error::corrupt(yard.place(entry), problem));
    }
    Ok(bytes.into())
}

pub(crate) async fn send(yard: &Arc<Yard>, load: &Load, entry: &Entry) -> Result<Written> {
    let (source, key) = (&yard.from.store, yard.object_ref(entry).key);
    let meta = source.head(&key, yard.deadline).await?;
    if meta.size != entry.size || (entry.version.is_some() && meta.version.is_some() && meta.version != entry.version) {
        return Err(yard.changed(entry, meta.size));
    }
    let mut promised = entry.digests.clone();
    promised.extend(meta.digests.iter().filter(|digest| !entry.digests.contains(digest)).cloned());
    let head = match source.capabilities().ranges {
        true => range(yard, entry, ByteRange::new(0, LOOK.min(entry.size))).await?,
        // Asked for in full below; its name must do.
        false => Bytes::new(),
    };
    let change = {
        let (yard, item, entry, encoding) = (yard.clone(), load.item.clone(), entry.clone(), meta.encoding.clone());
        blocking(move || Ok(yard.change(&item, &entry, encoding, &head))).await?
    };
    // A lost upload costs a second try, not the object.
    for is_last in [false, true] {
        let mut vessel = Vessel::board(yard, load, entry, &change, &promised).await?;
        match vessel.carry().await {
            Err(Error::NotFound { place }) if !is_last && place == yard.target_place(&change.item) => {
                vessel.forget().await;
            }
            // Another's object stands there, or this one is not what it was: nothing of it is of use any more.
            Err(
                error @ (Error::Precondition { .. }
                | Error::Corrupt { .. }
                | Error::Changed { .. }
                | Error::KeyRefused { .. }),
            ) => {
                vessel.forget().await;
                return Err(error);
            }
            other => return other,
        }
    }
    Err(Error::bug("an upload was lost twice and told of once"))
}

/// Where bytes go.
enum Hold {
    /// Parts of an upload.
    Parts { id: UploadId, sent: SentParts, held: BTreeMap<u32, Part> },
    /// A store without uploads takes an object in one.
    Whole(Vec<Bytes>),
    /// Nowhere: what stands there is compared with what would be written.
    Nowhere,
}

/// One large object underway.
struct Vessel<'a> {
    yard: &'a Arc<Yard>,
    load: &'a Load,
    entry: &'a Entry,
    change: &'a Change,
    promised: &'a [Digest],
    hold: Hold,
    terms: Option<Terms>,
    part_bytes: u64,
    /// Parts and ranged reads in flight.
    sends: usize,
    reads: usize,
    left: Option<Left>,
    finished: Option<Written>,
    /// Parts that are where they should be, in no order.
    parts: Vec<Part>,
    flying: JoinSet<Result<Part>>,
    /// Bytes behind the last part that was cut off, and where they begin.
    cargo: Vec<Bytes>,
    cargo_bytes: u64,
    offset: u64,
    number: u32,
    /// The part that is last, unless another comes.
    pending: Option<(u32, u64, Vec<Bytes>)>,
    out: Stored,
    out_bytes: u64,
    _room: tokio::sync::OwnedSemaphorePermit,
}

impl<'a> Vessel<'a> {
    async fn board(
        yard: &'a Arc<Yard>,
        load: &'a Load,
        entry: &'a Entry,
        change: &'a Change,
        promised: &'a [Digest],
    ) -> Result<Self> {
        let door = yard.to.store.uploads();
        let terms = door.map(|door| door.terms());
        // Little memory holds smaller parts, and fewer of them.
        let is_lean = yard.memory_bytes() < PART * (SENDS as u64 + 2) + PART_BYTES * (READS as u64 + 2);
        let (wanted, sends, reads) = if is_lean { (PART / 2, 1, 1) } else { (PART, SENDS, READS) };
        let part_bytes = terms.map_or(u64::MAX, |terms| {
            let size = if change.is_copy() { entry.size } else { entry.size.saturating_add(entry.size / 100) };
            terms.part_bytes(wanted, size)
        });
        let room = match (terms, yard.may_replace(load)) {
            (None, true) => {
                let budget = yard.options.memory / 2;
                if entry.size > budget {
                    let what = format!("{}, which {} takes in one piece", yard.place(entry), yard.to.url);
                    return Err(Error::BudgetExceeded {
                        what,
                        need: entry.size.saturating_mul(2),
                        budget: yard.options.memory,
                    });
                }
                yard.room(entry.size).await?
            }
            (_, _) => {
                let parts = part_bytes.min(PART * 4).saturating_mul(sends as u64 + 2);
                yard.room(parts.saturating_add(PART_BYTES * (reads as u64 + 2))).await?
            }
        };
        let wants_md5 = terms.is_some_and(|terms| terms.whole == Algorithm::Md5);
        let out = match yard.may_replace(load) {
            true if wants_md5 => Stored::new(&[]).with_md5(),
            true => Stored::new(&[]),
            // What stands there is compared by what its store knows of it.
            false => {
                let standing = yard.to.store.head(&yard.to.key(&change.item.target), yard.deadline).await?;
                Stored::new(&standing.digests).with_md5()
            }
        };
        let mut this = Self {
            yard,
            load,
            entry,
            change,
            promised,
            hold: Hold::Nowhere,
            terms,
            part_bytes,
            sends,
            reads,
            left: None,
            finished: None,
            parts: Vec::new(),
            flying: JoinSet::new(),
            cargo: Vec::new(),
            cargo_bytes: 0,
            offset: 0,
            number: 0,
            pending: None,
            out,
            out_bytes: 0,
            _room: room,
        };
        match door.filter(|_| yard.may_replace(load)) {
            Some(door) => this.begin(door).await?,
            None if yard.may_replace(load) => this.hold = Hold::Whole(Vec::new()),
            None => {}
        }
        Ok(this)
    }

    fn door(&self) -> Result<&'a dyn Uploads> {
        self.yard.to.store.uploads().ok_or_else(|| Error::bug("a store lost its uploads"))
    }

    /// Takes up what an earlier run left, or begins.
    async fn begin(&mut self, door: &dyn Uploads) -> Result<()> {
        let yard = self.yard;
        let head = Head {
            source: yard.place(self.entry),
            size: self.entry.size,
            version: self.entry.version.clone(),
            modified_ms: self.entry.modified_s.map(|seconds| (seconds * 1e3).round() as i64),
            target: yard.target_place(&self.change.item),
            asked: super::remote::wish(&yard.options),
            part_bytes: self.part_bytes,
        };
        let name = temporary_name(&self.change.item.target, "up");
        let (jail, state, want) = (yard.jail.clone(), yard.state.clone(), head.clone());
        let (mut sent, left) = blocking(move || SentParts::open(&jail, &state, name, &want)).await?;
        self.left = left;
        if let Some(written) = self.finished_before(&sent.name).await? {
            self.finished = Some(written);
            return Ok(());
        }
        let left = &self.left;
        let key = yard.to.key(&self.change.item.target);
        let (mut id, mut held) = (None, BTreeMap::new());
        if let Some(left) = left {
            let known: Vec<Part> = left.parts.values().cloned().collect();
            match door.held(&key, &left.id, &known, yard.deadline).await {
                Ok(parts) => {
                    id = Some(left.id.clone());
                    held = parts.into_iter().map(|part| (part.number, part)).collect();
                }
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let id = match id {
            Some(id) => id,
            None => {
                let options = yard.put_options(self.load, self.change, None);
                let id = door.begin(&key, &options, yard.deadline).await?;
                let (head, begun) = (head, id.clone());
                sent = blocking(move || sent.begin(&head, &begun).map(|()| sent)).await?;
                id
            }
        };
        yard.open.lock().unwrap_or_else(PoisonError::into_inner).insert(sent.name.clone(), (key, id.clone()));
        self.hold = Hold::Parts { id, sent, held };
        Ok(())
    }

    /// The upload and its journal, as if they had never been.
    async fn forget(mut self) {
        self.flying.shutdown().await;
        if let Hold::Parts { id, sent, .. } = &self.hold {
            let key = self.yard.to.key(&self.change.item.target);
            if let Ok(door) = self.door() {
                // Best effort: what stays is taken away by the store's own rules.
                let _ = door.abort(&key, id, self.yard.deadline).await;
            }
            self.yard.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&sent.name);
            sent.remove();
        }
    }

    fn span(&self, number: u32) -> u64 {
        match self.change.item.undo == Codec::None {
            true => self.part_bytes,
            false => self.part_bytes << (number / STEP).min(4),
        }
    }

    async fn carry(&mut self) -> Result<Written> {
        if let Some(written) = self.finished.take() {
            return Ok(written);
        }
        let can_skip = self.change.is_copy()
            && self.yard.from.store.capabilities().ranges
            && self
                .promised
                .iter()
                .all(|digest| matches!(digest.algorithm, Algorithm::Crc32c | Algorithm::Xxh3 | Algorithm::Sha1));
        match &self.hold {
            Hold::Parts { held, .. } if can_skip && !held.is_empty() => self.carry_missing().await,
            _ => self.carry_all().await,
        }
    }

    /// An earlier run may have been killed between the store's answer and its journal.
    async fn finished_before(&self, name: &str) -> Result<Option<Written>> {
        let Some((size, digests)) = self.left.as_ref().and_then(|left| left.whole.clone()) else { return Ok(None) };
        match self.yard.adopted(&self.change.item, size, &digests).await {
            Ok(meta) => {
                let ours = |digest: &&Digest| matches!(digest.algorithm, Algorithm::Crc32c | Algorithm::Xxh3);
                let digests: Vec<Digest> = digests.iter().filter(ours).cloned().collect();
                let stored = if self.change.is_copy() { digests.clone() } else { Vec::new() };
                let checked = self.yard.check(self.entry, &stored, self.promised)?;
                let change = self.change.clone();
                Ok(Some(Written { change, stored, checked, size, digests, meta, leftover: Some(name.to_owned()) }))
            }
            Err(Error::NotFound { .. } | Error::Precondition { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads all of it, in order.
    async fn carry_all(&mut self) -> Result<Written> {
        let mut reader = Reader::start(self.yard, self.entry, self.reads);
        let mut stored = Stored::new(self.promised);
        let place = self.yard.place(self.entry);
        let (undo, limit) = (self.change.item.undo, self.yard.inflated_limit(self.change.item.undo, self.entry.size));
        let mut inflater = (undo != Codec::None).then(|| Inflater::new(undo, limit, &place));
        let mut press = match self.change.pack {
            Some(deflate) => Some(Press::new(deflate, self.yard.cores.clone(), self.yard.threads)?),
            None => None,
        };
        let mut read = 0u64;
        while let Some(piece) = reader.pieces.recv().await {
            let piece = piece?;
            read += piece.len() as u64;
            let (contents, then, inflating) = self
                .yard
                .on_core(move || {
                    stored.update(&piece);
                    let Some(mut inflater) = inflater else { return Ok((vec![piece], stored, None)) };
                    let mut contents = Vec::new();
                    let mut content = BytesMut::new();
                    inflater.push(&piece, &mut |bytes| {
                        content.extend_from_slice(bytes);
                        if content.len() >= PART as usize {
                            contents.push(content.split().freeze());
                        }
                        Ok(())
                    })?;
                    contents.push(content.freeze());
                    Ok((contents, stored, Some(inflater)))
                })
                .await?;
            (stored, inflater) = (then, inflating);
            for content in contents {
                match &mut press {
                    Some(press) => {
                        for bytes in press.push(content).await? {
                            self.take(bytes).await?;
                        }
                    }
                    None => self.take(content).await?,
                }
            }
        }
        if read != self.entry.size {
            let problem = format!("ended early (want {} bytes, have {read} bytes)", self.entry.size);
            return Err(Error::corrupt(place, problem));
        }
        if let Some(inflater) = inflater {
            inflater.finish()?;
        }
        if let Some(press) = press {
            for bytes in press.finish().await? {
                self.take(bytes).await?;
            }
        }
        // Nothing is made of bytes that are not what was promised.
        let have = stored.digests();
        let checked = self.yard.check(self.entry, &have, self.promised)?;
        self.end(have[..2].to_vec(), checked).await
    }

    /// Takes bytes of the object as it will be, in order.
    async fn take(&mut self, bytes: Bytes) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let span = self.span(self.number);
            let room = (span - self.cargo_bytes).min(rest.len() as u64);
            let piece = rest.split_to(room as usize);
            self.cargo_bytes += room;
            self.cargo.push(piece);
            if self.cargo_bytes == span {
                self.cut().await?;
            }
        }
        Ok(())
    }

    /// What lies there becomes the part that may be the last; the one before it goes.
    async fn cut(&mut self) -> Result<()> {
        if let Some((number, offset, bytes)) = self.pending.take() {
            self.ship(number, offset, bytes, false).await?;
        }
        self.pending = Some((self.number, self.offset, std::mem::take(&mut self.cargo)));
        self.offset += self.cargo_bytes;
        self.number += 1;
        self.cargo_bytes = 0;
        Ok(())
    }

    /// Sends a part, unless the store holds it already.
    async fn ship(&mut self, number: u32, offset: u64, bytes: Vec<Bytes>, is_last: bool) -> Result<()> {
        let size: u64 = bytes.iter().map(|bytes| bytes.len() as u64).sum();
        let mut out = self.out.clone();
        let (bytes, out, crc) = self
            .yard
            .on_core(move || {
                bytes.iter().for_each(|bytes| out.update(bytes));
                let mut part = penstock_codec::checksum::Crc32c::new();
                bytes.iter().for_each(|bytes| part.update(bytes));
                Ok((bytes, out, part.value()))
            })
            .await?;
        self.out = out;
        self.out_bytes += size;
        let whole = self.out.digests().iter().find(|digest| digest.algorithm == Algorithm::Crc32c).and_then(value);
        match &mut self.hold {
            Hold::Nowhere => return Ok(()),
            Hold::Whole(all) => {
                let budget = self.yard.options.memory;
                if self.out_bytes > budget / 2 {
                    let what =
                        format!("{}, which {} takes in one piece", self.yard.place(self.entry), self.yard.to.url);
                    return Err(Error::BudgetExceeded { what, need: self.out_bytes.saturating_mul(2), budget });
                }
                all.extend(bytes);
                return Ok(());
            }
            Hold::Parts { held, .. } => {
                if let Some(part) = held.remove(&number).filter(|part| part.size == size && part.crc32c == crc) {
                    Progress::add(&self.yard.progress.resumed_bytes, size);
                    self.parts.push(part);
                    return Ok(());
                }
            }
        }
        let at = PartAt { number, offset, ends: if is_last { whole } else { None } };
        self.launch(at, bytes).await
    }

    /// A part on its way; in order where the store wants that.
    async fn launch(&mut self, at: PartAt, bytes: Vec<Bytes>) -> Result<()> {
        let Hold::Parts { id, .. } = &self.hold else { return Err(Error::bug("a part without an upload")) };
        let (yard, id, key) = (self.yard.clone(), id.clone(), self.yard.to.key(&self.change.item.target));
        self.flying.spawn(async move {
            let door = yard.to.store.uploads().ok_or_else(|| Error::bug("a store lost its uploads"))?;
            door.part(&key, &id, &at, bytes, yard.deadline).await
        });
        let most = if self.terms.is_some_and(|terms| terms.is_ordered) { 0 } else { self.sends - 1 };
        self.land(most).await
    }

    /// Waits until no more than `left` parts are on their way; journals those that arrived.
    async fn land(&mut self, left: usize) -> Result<()> {
        while self.flying.len() > left {
            let Some(landed) = self.flying.join_next().await else { break };
            let part = landed.map_err(|join| Error::bug(format!("a part's task ended: {join}")))??;
            if let Hold::Parts { sent, .. } = &mut self.hold {
                sent.part(&part)?;
            }
            self.parts.push(part);
        }
        Ok(())
    }

    /// All bytes have passed and are what they should be.
    async fn end(&mut self, stored: Vec<Digest>, checked: Vec<Digest>) -> Result<Written> {
        // All that were before the last are there before it ends the upload.
        if self.cargo_bytes > 0 || self.pending.is_none() {
            self.cut().await?;
        }
        if let Some((number, offset, bytes)) = self.pending.take() {
            self.land(0).await?;
            self.ship(number, offset, bytes, true).await?;
        }
        self.land(0).await?;
        let digests = self.out.digests();
        self.close(stored, checked, digests, self.out_bytes).await
    }

    async fn close(
        &mut self,
        stored: Vec<Digest>,
        checked: Vec<Digest>,
        digests: Vec<Digest>,
        size: u64,
    ) -> Result<Written> {
        let yard = self.yard;
        let key = yard.to.key(&self.change.item.target);
        let options = yard.put_options(self.load, self.change, None);
        let mut leftover = None;
        let meta: Meta = match &mut self.hold {
            Hold::Nowhere => yard.adopted(&self.change.item, size, &digests).await?,
            Hold::Whole(all) => yard.to.store.put(&key, std::mem::take(all), &options, yard.deadline).await?,
            Hold::Parts { id, sent, .. } => {
                self.parts.sort_by_key(|part| part.number);
                let door = yard.to.store.uploads().ok_or_else(|| Error::bug("a store lost its uploads"))?;
                sent.whole(size, &digests)?;
                let made = door.finish(&key, id, &self.parts, &digests, &options, yard.deadline).await;
                let name = sent.name.clone();
                leftover = Some(name.clone());
                let made = match made {
                    Err(Error::Precondition { .. }) if self.load.standing.is_none() => {
                        yard.adopted(&self.change.item, size, &digests).await?
                    }
                    other => other?,
                };
                yard.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
                made
            }
        };
        let ours = |digest: &&Digest| matches!(digest.algorithm, Algorithm::Crc32c | Algorithm::Xxh3);
        let digests = digests.iter().filter(ours).cloned().collect();
        Ok(Written { change: self.change.clone(), stored, checked, size, digests, meta, leftover })
    }

    /// Reads and sends the parts that the store does not hold, and nothing else.
    async fn carry_missing(&mut self) -> Result<Written> {
        let Hold::Parts { held, .. } = &mut self.hold else { return Err(Error::bug("parts without an upload")) };
        let held = std::mem::take(held);
        let count = self.entry.size.div_ceil(self.part_bytes) as u32;
        let of = |number: u32| {
            let start = u64::from(number) * self.part_bytes;
            ByteRange::new(start, self.part_bytes.min(self.entry.size - start))
        };
        let fits = |part: &Part| {
            part.number < count && part.offset == of(part.number).start && part.size == of(part.number).len
        };
        let held: BTreeMap<u32, Part> = held.into_iter().filter(|(_, part)| fits(part)).collect();
        for part in held.values() {
            Progress::add(&self.yard.progress.resumed_bytes, part.size);
        }
        let missing: Vec<(u32, ByteRange)> =
            (0..count).filter(|number| !held.contains_key(number)).map(|number| (number, of(number))).collect();
        self.parts.extend(held.into_values());
        let is_ordered = self.terms.is_some_and(|terms| terms.is_ordered);
        for (number, whole) in missing {
            let starts = (0..whole.len.div_ceil(PART_BYTES)).map(|at| at * PART_BYTES);
            let ranges = starts.map(|at| ByteRange::new(whole.start + at, PART_BYTES.min(whole.len - at)));
            let (yard, entry) = (self.yard, self.entry);
            let bytes: Vec<Bytes> = stream::iter(ranges)
                .map(|wanted| range(yard, entry, wanted))
                .buffered(self.reads)
                .try_collect()
                .await?;
            let mut ends = None;
            if number + 1 == count && is_ordered {
                // The CRC of the whole ends the upload: it must be right before.
                self.parts.sort_by_key(|part| part.number);
                let last = Part {
                    number,
                    offset: whole.start,
                    size: whole.len,
                    crc32c: crc32c(&bytes.concat()),
                    tag: String::new(),
                };
                let all: Vec<Part> = self.parts.iter().cloned().chain([last]).collect();
                let crc = combined(&all).into_iter().collect::<Vec<_>>();
                self.yard.check(self.entry, &crc, self.promised)?;
                ends = crc.first().and_then(value);
            }
            self.launch(PartAt { number, offset: whole.start, ends }, bytes).await?;
        }
        self.land(0).await?;
        self.parts.sort_by_key(|part| part.number);
        let digests: Vec<Digest> = combined(&self.parts).into_iter().collect();
        let checked = self.yard.check(self.entry, &digests, self.promised)?;
        self.close(digests.clone(), checked, digests, self.entry.size).await
    }
}

fn value(crc: &Digest) -> Option<u32> {
    Some(u32::from_be_bytes(crc.value.as_slice().try_into().ok()?))
}
