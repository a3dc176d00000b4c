// SPDX-License-Identifier: Apache-2.0
//! One large object underway to a store: the parts that it is cut into, those that are on their way, and the journal of
//! those that arrived. Knows nothing of where its bytes come from.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use penstock_codec::Codec;
use penstock_codec::checksum::Crc32c;
use penstock_store::owned::OwnedFile;
use penstock_store::{Meta, Part, PartAt, Terms, UploadId, Uploads};
use penstock_types::{Algorithm, Digest, Error, Result};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use crate::commit::temporary_name;
use crate::digests::Stored;
use crate::plan::PART_BYTES;
use crate::progress::Progress;
use crate::to_folder::object::blocking;
use crate::to_store::object::{Change, Load, PART, Written, Yard};
use crate::to_store::target::wish;
use crate::to_store::upload_journal::{Head, Left, SentParts};
use penstock_dataset::manifest::Entry;

/// Ranged reads of one object in flight.
const READS: usize = 4;
/// Parts of one object on their way.
const SENDS: usize = 4;
/// Parts of one size, where the size of the whole is not known; then they double.
const STEP: u32 = 2000;

/// Where bytes go.
pub(crate) enum Hold {
    /// Parts of an upload.
    Parts { id: UploadId, sent: SentParts, held: BTreeMap<u32, Part> },
    /// A store without uploads takes an object in one.
    Whole(Vec<Bytes>),
    /// Nowhere: what stands there is compared with what would be written.
    Nowhere,
}

/// One large object underway.
pub(crate) struct Vessel<'a> {
    pub yard: &'a Arc<Yard>,
    load: &'a Load,
    pub entry: &'a Entry,
    pub change: &'a Change,
    pub promised: &'a [Digest],
    pub hold: Hold,
    pub terms: Option<Terms>,
    pub part_bytes: u64,
    /// Parts and ranged reads in flight.
    sends: usize,
    pub reads: usize,
    left: Option<Left>,
    pub finished: Option<Written>,
    /// Parts that are where they should be, in no order.
    pub parts: Vec<Part>,
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
    _room: OwnedSemaphorePermit,
}

impl<'a> Vessel<'a> {
    pub async fn board(
        yard: &'a Arc<Yard>,
        load: &'a Load,
        entry: &'a Entry,
        change: &'a Change,
        promised: &'a [Digest],
    ) -> Result<Self> {
        let door = yard.to.store.uploads();
        let terms = door.map(|door| door.terms());
        // Little memory holds smaller parts, and fewer of them.
        let is_lean = yard.inlet.memory_bytes() < PART * (SENDS as u64 + 2) + PART_BYTES * (READS as u64 + 2);
        let (wanted, sends, reads) = if is_lean { (PART / 2, 1, 1) } else { (PART, SENDS, READS) };
        // A store that takes objects in one piece is shown them in parts, too: what is too large is told as it comes.
        let part_bytes = terms.map_or(wanted, |terms| {
            let size = if change.is_copy() { entry.size } else { entry.size.saturating_add(entry.size / 100) };
            terms.part_bytes(wanted, size)
        });
        let room = match (terms, yard.may_replace(load)) {
            (None, true) => {
                let budget = yard.options.memory / 2;
                if entry.size > budget {
                    let what = format!("{}, which {} takes in one piece", yard.inlet.place(entry), yard.to.url);
                    return Err(Error::BudgetExceeded {
                        what,
                        need: entry.size.saturating_mul(2),
                        budget: yard.options.memory,
                    });
                }
                let most = match change.item.undo {
                    Codec::None => entry.size,
                    undo => yard.inflated_limit(undo, entry.size).min(budget),
                };
                yard.inlet.room(most).await?
            }
            (_, _) => {
                let parts = part_bytes.min(PART * 4).saturating_mul(sends as u64 + 2);
                yard.inlet.room(parts.saturating_add(PART_BYTES * (reads as u64 + 2))).await?
            }
        };
        let wants_md5 = terms.is_some_and(|terms| terms.whole == Algorithm::Md5);
        let out = match yard.may_replace(load) {
            true if wants_md5 => Stored::new(&[]).with_md5(),
            true => Stored::new(&[]),
            // What stands there is compared by what its store knows of it.
            false => {
                let standing = yard.to.store.head(&yard.to.key(&change.item.target), yard.inlet.deadline).await?;
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
            source: yard.inlet.place(self.entry),
            size: self.entry.size,
            version: self.entry.version.clone(),
            modified_ms: self.entry.modified_s.map(|seconds| (seconds * 1e3).round() as i64),
            target: yard.target_place(&self.change.item),
            asked: wish(&yard.options),
            part_bytes: self.part_bytes,
        };
        let name = temporary_name(&self.change.item.target, "up");
        let (jail, state, want) = (yard.jail.clone(), yard.state.clone(), head.clone());
        let (mut sent, left) = blocking(move || SentParts::open(&jail, &state, name, &want)).await?;
        self.left = left;
        if let Some(written) = self.finished_before(&sent.file).await? {
            self.finished = Some(written);
            return Ok(());
        }
        let left = &self.left;
        let key = yard.to.key(&self.change.item.target);
        let (mut id, mut held) = (None, BTreeMap::new());
        if let Some(left) = left {
            let known: Vec<Part> = left.parts.values().cloned().collect();
            match door.held(&key, &left.id, &known, yard.inlet.deadline).await {
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
                let id = door.begin(&key, &options, yard.inlet.deadline).await?;
                let (head, begun) = (head, id.clone());
                sent = blocking(move || sent.begin(&head, &begun).map(|()| sent)).await?;
                id
            }
        };
        yard.open.lock().unwrap_or_else(PoisonError::into_inner).insert(sent.file.name().to_owned(), (key, id.clone()));
        self.hold = Hold::Parts { id, sent, held };
        Ok(())
    }

    /// An earlier run may have been killed between the store's answer and its journal.
    async fn finished_before(&self, sent: &Arc<OwnedFile>) -> Result<Option<Written>> {
        let Some((size, digests)) = self.left.as_ref().and_then(|left| left.whole.clone()) else { return Ok(None) };
        match self.yard.adopted(&self.change.item, size, &digests).await {
            Ok(meta) => {
                let ours = |digest: &&Digest| matches!(digest.algorithm, Algorithm::Crc32c | Algorithm::Xxh3);
                let digests: Vec<Digest> = digests.iter().filter(ours).cloned().collect();
                let stored = if self.change.is_copy() { digests.clone() } else { Vec::new() };
                let checked = self.yard.check(self.entry, &stored, self.promised)?;
                let change = self.change.clone();
                Ok(Some(Written { change, stored, checked, size, digests, meta, leftover: Some(sent.clone()) }))
            }
            Err(Error::NotFound { .. } | Error::Precondition { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The upload and its journal, as if they had never been.
    pub async fn forget(mut self) {
        self.flying.shutdown().await;
        if let Hold::Parts { id, sent, .. } = &self.hold {
            let key = self.yard.to.key(&self.change.item.target);
            if let Ok(door) = self.door() {
                // Best effort: what stays is taken away by the store's own rules.
                let _ = door.abort(&key, id, self.yard.inlet.deadline).await;
            }
            self.yard.open.lock().unwrap_or_else(PoisonError::into_inner).remove(sent.file.name());
            sent.file.remove();
        }
    }

    fn span(&self, number: u32) -> u64 {
        match self.change.item.undo == Codec::None {
            true => self.part_bytes,
            false => self.part_bytes << (number / STEP).min(4),
        }
    }

    /// Takes bytes of the object as it will be, in order.
    pub async fn take(&mut self, bytes: Bytes) -> Result<()> {
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
                let mut part = Crc32c::new();
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
                        format!("{}, which {} takes in one piece", self.yard.inlet.place(self.entry), self.yard.to.url);
                    return Err(Error::BudgetExceeded { what, need: self.out_bytes.saturating_mul(2), budget });
                }
                all.extend(bytes);
                return Ok(());
            }
            Hold::Parts { held, .. } => {
                if let Some(part) = held.remove(&number).filter(|part| part.size == size && part.crc32c == crc) {
                    Progress::add(&self.yard.inlet.progress.resumed_bytes, size);
                    self.parts.push(part);
                    return Ok(());
                }
            }
        }
        let at = PartAt { number, offset, ends: if is_last { whole } else { None } };
        self.launch(at, bytes).await
    }

    /// A part on its way; in order where the store wants that.
    pub async fn launch(&mut self, at: PartAt, bytes: Vec<Bytes>) -> Result<()> {
        let Hold::Parts { id, .. } = &self.hold else { return Err(Error::bug("a part without an upload")) };
        let (yard, id, key) = (self.yard.clone(), id.clone(), self.yard.to.key(&self.change.item.target));
        self.flying.spawn(async move {
            let door = yard.to.store.uploads().ok_or_else(|| Error::bug("a store lost its uploads"))?;
            door.part(&key, &id, &at, bytes, yard.inlet.deadline).await
        });
        let most = if self.terms.is_some_and(|terms| terms.is_ordered) { 0 } else { self.sends - 1 };
        self.land(most).await
    }

    /// Waits until no more than `left` parts are on their way; journals those that arrived.
    pub async fn land(&mut self, left: usize) -> Result<()> {
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
    pub async fn end(&mut self, stored: Vec<Digest>, checked: Vec<Digest>) -> Result<Written> {
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

    pub async fn close(
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
            Hold::Whole(all) => yard.to.store.put(&key, std::mem::take(all), &options, yard.inlet.deadline).await?,
            Hold::Parts { id, sent, .. } => {
                self.parts.sort_by_key(|part| part.number);
                let door = yard.to.store.uploads().ok_or_else(|| Error::bug("a store lost its uploads"))?;
                sent.whole(size, &digests)?;
                let made = door.finish(&key, id, &self.parts, &digests, &options, yard.inlet.deadline).await;
                leftover = Some(sent.file.clone());
                let made = match made {
                    Err(Error::Precondition { .. }) if self.load.standing.is_none() => {
                        yard.adopted(&self.change.item, size, &digests).await?
                    }
                    other => other?,
                };
                yard.open.lock().unwrap_or_else(PoisonError::into_inner).remove(sent.file.name());
                made
            }
        };
        let ours = |digest: &&Digest| matches!(digest.algorithm, Algorithm::Crc32c | Algorithm::Xxh3);
        let digests = digests.iter().filter(ours).cloned().collect();
        Ok(Written { change: self.change.clone(), stored, checked, size, digests, meta, leftover })
    }
}

/// The number that a CRC is.
pub(crate) fn value(crc: &Digest) -> Option<u32> {
    Some(u32::from_be_bytes(crc.value.as_slice().try_into().ok()?))
}
