// SPDX-License-Identifier: Apache-2.0
//! One large object underway to a store: the parts that it is cut into, those that are on their way, and the journal of
//! those that arrived. Knows nothing of where its bytes come from.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use penstock_codec::Codec;
use penstock_codec::checksum::Crc32c;
use penstock_store::owned::OwnedFile;
use penstock_store::{Meta, MultipartLimits, MultipartStore, Part, PartSpec, UploadId};
use penstock_types::{Algorithm, Digest, Error, Result, lock};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use crate::blocking::blocking;
use crate::commit::temporary_name;
use crate::digests::StoredDigests;
use crate::plan::PART_BYTES;
use crate::progress::Progress;
use crate::to_store::target::{PART, transform_id};
use crate::to_store::upload::{Transform, UploadContext, UploadItem, Written};
use crate::to_store::upload_journal::{Head, PreviousUpload, SentParts};
use penstock_dataset::manifest::Entry;

/// Ranged reads of one object in flight.
const READS: usize = 4;
/// Parts of one object on their way.
const SENDS: usize = 4;
/// Parts of one size, where the size of the whole is not known; then they double.
const STEP: u32 = 2000;

/// Where bytes go.
pub(crate) enum PartSink {
    /// Parts of an upload.
    Parts { id: UploadId, sent: SentParts, held: BTreeMap<u32, Part> },
    /// A store without uploads takes an object in one.
    Whole(Vec<Bytes>),
    /// Nowhere: what is there is compared with what would be written.
    Nowhere,
}

/// One large object underway.
pub(crate) struct MultipartUpload<'a> {
    pub context: &'a Arc<UploadContext>,
    load: &'a UploadItem,
    pub entry: &'a Entry,
    pub change: &'a Transform,
    pub promised: &'a [Digest],
    pub hold: PartSink,
    pub terms: Option<MultipartLimits>,
    pub part_bytes: u64,
    /// Parts and ranged reads in flight.
    sends: usize,
    pub reads: usize,
    left: Option<PreviousUpload>,
    pub finished: Option<Written>,
    /// Parts that are where they should be, in no order.
    pub parts: Vec<Part>,
    in_flight: JoinSet<Result<Part>>,
    /// Bytes behind the last part that was cut off, and where they begin.
    buffer: Vec<Bytes>,
    buffered_bytes: u64,
    offset: u64,
    number: u32,
    /// The part that is last, unless another comes.
    pending: Option<(u32, u64, Vec<Bytes>)>,
    out: StoredDigests,
    out_bytes: u64,
    _room: OwnedSemaphorePermit,
}

impl<'a> MultipartUpload<'a> {
    pub async fn start(
        context: &'a Arc<UploadContext>,
        load: &'a UploadItem,
        entry: &'a Entry,
        change: &'a Transform,
        promised: &'a [Digest],
    ) -> Result<Self> {
        let door = context.to.store.uploads();
        let terms = door.map(|door| door.terms());
        // Little memory holds smaller parts, and fewer of them.
        let is_lean = context.reader.memory_bytes() < PART * (SENDS as u64 + 2) + PART_BYTES * (READS as u64 + 2);
        let (wanted, sends, reads) = if is_lean { (PART / 2, 1, 1) } else { (PART, SENDS, READS) };
        // A store that takes an object in one request also receives it in parts: one that is too large fails early.
        let part_bytes = terms.map_or(wanted, |terms| {
            let size = if change.is_copy() { entry.size } else { entry.size.saturating_add(entry.size / 100) };
            terms.part_bytes(wanted, size)
        });
        let room = match (terms, context.may_replace(load)) {
            (None, true) => {
                let budget = context.options.memory / 2;
                if entry.size > budget {
                    let what = format!("{}, which {} takes in one piece", context.reader.place(entry), context.to.url);
                    return Err(Error::BudgetExceeded {
                        what,
                        need: entry.size.saturating_mul(2),
                        budget: context.options.memory,
                    });
                }
                let most = match change.item.undo {
                    Codec::None => entry.size,
                    undo => context.inflated_limit(undo, entry.size).min(budget),
                };
                context.reader.room(most).await?
            }
            (_, _) => {
                let parts = part_bytes.min(PART * 4).saturating_mul(sends as u64 + 2);
                context.reader.room(parts.saturating_add(PART_BYTES * (reads as u64 + 2))).await?
            }
        };
        let wants_md5 = terms.is_some_and(|terms| terms.whole == Algorithm::Md5);
        let out = match context.may_replace(load) {
            true if wants_md5 => StoredDigests::new(&[]).with_md5(),
            true => StoredDigests::new(&[]),
            // What is there is compared by what its store knows of it.
            false => {
                let standing =
                    context.to.store.head(&context.to.key(&change.item.target), context.reader.deadline).await?;
                StoredDigests::new(&standing.digests).with_md5()
            }
        };
        let mut this = Self {
            context,
            load,
            entry,
            change,
            promised,
            hold: PartSink::Nowhere,
            terms,
            part_bytes,
            sends,
            reads,
            left: None,
            finished: None,
            parts: Vec::new(),
            in_flight: JoinSet::new(),
            buffer: Vec::new(),
            buffered_bytes: 0,
            offset: 0,
            number: 0,
            pending: None,
            out,
            out_bytes: 0,
            _room: room,
        };
        match door.filter(|_| context.may_replace(load)) {
            Some(door) => this.resume_or_create(door).await?,
            None if context.may_replace(load) => this.hold = PartSink::Whole(Vec::new()),
            None => {}
        }
        Ok(this)
    }

    fn multipart_store(&self) -> Result<&'a dyn MultipartStore> {
        self.context.to.store.uploads().ok_or_else(|| Error::bug("a store lost its uploads"))
    }

    /// Takes up what an earlier run left, or begins.
    async fn resume_or_create(&mut self, door: &dyn MultipartStore) -> Result<()> {
        let context = self.context;
        let head = Head {
            source: context.reader.place(self.entry),
            size: self.entry.size,
            version: self.entry.version.clone(),
            modified_ms: self.entry.modified_s.map(|seconds| (seconds * 1e3).round() as i64),
            target: context.target_place(&self.change.item),
            transform: transform_id(&context.options),
            part_bytes: self.part_bytes,
        };
        let name = temporary_name(&self.change.item.target, "up");
        let (dest_dir, state, want) = (context.dest_dir.clone(), context.state.clone(), head.clone());
        let (mut sent, left) = blocking(move || SentParts::open(&dest_dir, &state, name, &want)).await?;
        self.left = left;
        if let Some(written) = self.finished_before(&sent.file).await? {
            self.finished = Some(written);
            return Ok(());
        }
        let left = &self.left;
        let key = context.to.key(&self.change.item.target);
        let (mut id, mut held) = (None, BTreeMap::new());
        if let Some(left) = left {
            let known: Vec<Part> = left.parts.values().cloned().collect();
            match door.held(&key, &left.id, &known, context.reader.deadline).await {
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
                let options = context.put_options(self.load, self.change, None);
                let id = door.begin(&key, &options, context.reader.deadline).await?;
                let (head, begun) = (head, id.clone());
                sent = blocking(move || sent.begin(&head, &begun).map(|()| sent)).await?;
                id
            }
        };
        lock(&context.open).insert(sent.file.name().to_owned(), (key, id.clone()));
        self.hold = PartSink::Parts { id, sent, held };
        Ok(())
    }

    /// An earlier run may have been killed between the store's answer and its journal.
    async fn finished_before(&self, sent: &Arc<OwnedFile>) -> Result<Option<Written>> {
        let Some((size, digests)) = self.left.as_ref().and_then(|left| left.whole.clone()) else { return Ok(None) };
        match self.context.adopted(&self.change.item, size, &digests).await {
            Ok(meta) => {
                let ours = |digest: &&Digest| matches!(digest.algorithm, Algorithm::Crc32c | Algorithm::Xxh3);
                let digests: Vec<Digest> = digests.iter().filter(ours).cloned().collect();
                let stored = if self.change.is_copy() { digests.clone() } else { Vec::new() };
                let checked = self.context.check(self.entry, &stored, self.promised)?;
                let change = self.change.clone();
                Ok(Some(Written { change, stored, checked, size, digests, meta, leftover: Some(sent.clone()) }))
            }
            Err(Error::NotFound { .. } | Error::Precondition { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The upload and its journal, as if they had never been.
    pub async fn forget(mut self) {
        self.in_flight.shutdown().await;
        if let PartSink::Parts { id, sent, .. } = &self.hold {
            let key = self.context.to.key(&self.change.item.target);
            if let Ok(door) = self.multipart_store() {
                // Best effort: what stays is taken away by the store's own rules.
                let _ = door.abort(&key, id, self.context.reader.deadline).await;
            }
            lock(&self.context.open).remove(sent.file.name());
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
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let span = self.span(self.number);
            let room = (span - self.buffered_bytes).min(rest.len() as u64);
            let piece = rest.split_to(room as usize);
            self.buffered_bytes += room;
            self.buffer.push(piece);
            if self.buffered_bytes == span {
                self.seal_part().await?;
            }
        }
        Ok(())
    }

    /// Makes the buffered bytes the part that may be the last; sends the one before it.
    async fn seal_part(&mut self) -> Result<()> {
        if let Some((number, offset, bytes)) = self.pending.take() {
            self.queue_part(number, offset, bytes, false).await?;
        }
        self.pending = Some((self.number, self.offset, std::mem::take(&mut self.buffer)));
        self.offset += self.buffered_bytes;
        self.number += 1;
        self.buffered_bytes = 0;
        Ok(())
    }

    /// Sends a part, unless the store holds it already.
    async fn queue_part(&mut self, number: u32, offset: u64, bytes: Vec<Bytes>, is_last: bool) -> Result<()> {
        let size: u64 = bytes.iter().map(|bytes| bytes.len() as u64).sum();
        let mut out = self.out.clone();
        let (bytes, out, crc) = self
            .context
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
            PartSink::Nowhere => return Ok(()),
            PartSink::Whole(all) => {
                let budget = self.context.options.memory;
                if self.out_bytes > budget / 2 {
                    let what = format!(
                        "{}, which {} takes in one piece",
                        self.context.reader.place(self.entry),
                        self.context.to.url
                    );
                    return Err(Error::BudgetExceeded { what, need: self.out_bytes.saturating_mul(2), budget });
                }
                all.extend(bytes);
                return Ok(());
            }
            PartSink::Parts { held, .. } => {
                if let Some(part) = held.remove(&number).filter(|part| part.size == size && part.crc32c == crc) {
                    Progress::add(&self.context.reader.progress.resumed_bytes, size);
                    self.parts.push(part);
                    return Ok(());
                }
            }
        }
        let at = PartSpec { number, offset, ends: if is_last { whole } else { None } };
        self.spawn_part(at, bytes).await
    }

    /// A part on its way; in order where the store wants that.
    pub async fn spawn_part(&mut self, at: PartSpec, bytes: Vec<Bytes>) -> Result<()> {
        let PartSink::Parts { id, .. } = &self.hold else { return Err(Error::bug("a part without an upload")) };
        let (context, id, key) = (self.context.clone(), id.clone(), self.context.to.key(&self.change.item.target));
        self.in_flight.spawn(async move {
            let door = context.to.store.uploads().ok_or_else(|| Error::bug("a store lost its uploads"))?;
            door.part(&key, &id, &at, bytes, context.reader.deadline).await
        });
        let most = if self.terms.is_some_and(|terms| terms.is_ordered) { 0 } else { self.sends - 1 };
        self.join(most).await
    }

    /// Waits until no more than `left` parts are on their way; journals those that arrived.
    pub async fn join(&mut self, left: usize) -> Result<()> {
        while self.in_flight.len() > left {
            let Some(landed) = self.in_flight.join_next().await else { break };
            let part = landed.map_err(|join| Error::bug(format!("a part's task ended: {join}")))??;
            if let PartSink::Parts { sent, .. } = &mut self.hold {
                sent.part(&part)?;
            }
            self.parts.push(part);
        }
        Ok(())
    }

    /// All bytes have passed and are what they should be.
    pub async fn finish(&mut self, stored: Vec<Digest>, checked: Vec<Digest>) -> Result<Written> {
        // All that were before the last are there before it ends the upload.
        if self.buffered_bytes > 0 || self.pending.is_none() {
            self.seal_part().await?;
        }
        if let Some((number, offset, bytes)) = self.pending.take() {
            self.join(0).await?;
            self.queue_part(number, offset, bytes, true).await?;
        }
        self.join(0).await?;
        let digests = self.out.digests();
        self.complete(stored, checked, digests, self.out_bytes).await
    }

    pub async fn complete(
        &mut self,
        stored: Vec<Digest>,
        checked: Vec<Digest>,
        digests: Vec<Digest>,
        size: u64,
    ) -> Result<Written> {
        let context = self.context;
        let key = context.to.key(&self.change.item.target);
        let options = context.put_options(self.load, self.change, None);
        let mut leftover = None;
        let meta: Meta = match &mut self.hold {
            PartSink::Nowhere => context.adopted(&self.change.item, size, &digests).await?,
            PartSink::Whole(all) => {
                context.to.store.put(&key, std::mem::take(all), &options, context.reader.deadline).await?
            }
            PartSink::Parts { id, sent, .. } => {
                self.parts.sort_by_key(|part| part.number);
                let door = context.to.store.uploads().ok_or_else(|| Error::bug("a store lost its uploads"))?;
                sent.whole(size, &digests)?;
                let made = door.finish(&key, id, &self.parts, &digests, &options, context.reader.deadline).await;
                leftover = Some(sent.file.clone());
                let made = match made {
                    Err(Error::Precondition { .. }) if self.load.standing.is_none() => {
                        context.adopted(&self.change.item, size, &digests).await?
                    }
                    other => other?,
                };
                lock(&context.open).remove(sent.file.name());
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
