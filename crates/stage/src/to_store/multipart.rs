// SPDX-License-Identifier: Apache-2.0
//! One multipart upload: splits bytes into parts, sends the parts concurrently, and journals the parts that arrived.
//! Does not depend on the source of the bytes.

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
use crate::to_store::target::PART;
use crate::to_store::upload_journal::{Head, PreviousUpload, SentParts};
use crate::to_store::upload_types::{Transform, UploadContext, UploadItem, Written};
use penstock_dataset::manifest::Entry;

/// Maximum number of ranged reads in flight for one object.
const READS: usize = 4;
/// Maximum number of parts in flight for one object.
const SENDS: usize = 4;
/// If the final size is unknown, the part size doubles each time this number of parts is complete.
const STEP: u32 = 2000;

/// Destination of one object's bytes.
pub(crate) enum PartSink {
    /// The bytes are sent as parts of a multipart upload.
    Parts { id: UploadId, sent: SentParts, held: BTreeMap<u32, Part> },
    /// The bytes are collected and sent in one request, because the store does not support multipart uploads.
    Whole(Vec<Bytes>),
    /// The bytes are not sent. The digests of the bytes are compared with those of the existing object.
    Nowhere,
}

/// A large object that is being uploaded.
pub(crate) struct MultipartUpload<'a> {
    pub context: &'a Arc<UploadContext>,
    upload: &'a UploadItem,
    pub entry: &'a Entry,
    pub change: &'a Transform,
    pub promised: &'a [Digest],
    pub hold: PartSink,
    pub limits: Option<MultipartLimits>,
    pub part_bytes: u64,
    /// Maximum number of parts in flight.
    sends: usize,
    /// Maximum number of ranged reads in flight.
    pub reads: usize,
    left: Option<PreviousUpload>,
    pub finished: Option<Written>,
    /// Parts that the store has received, in any order.
    pub parts: Vec<Part>,
    in_flight: JoinSet<Result<Part>>,
    /// Bytes after the last complete part.
    buffer: Vec<Bytes>,
    buffered_bytes: u64,
    /// Offset of the buffered bytes in the object.
    offset: u64,
    number: u32,
    /// A complete part that is not sent yet. If no more bytes follow, this part is the last one.
    pending: Option<(u32, u64, Vec<Bytes>)>,
    out: StoredDigests,
    out_bytes: u64,
    _room: OwnedSemaphorePermit,
}

impl<'a> MultipartUpload<'a> {
    pub async fn start(
        context: &'a Arc<UploadContext>,
        upload: &'a UploadItem,
        entry: &'a Entry,
        change: &'a Transform,
        promised: &'a [Digest],
    ) -> Result<Self> {
        let multipart = context.to.store.multipart();
        let limits = multipart.map(|multipart| multipart.limits());
        // If the memory budget is small, use smaller parts, and send and read one part at a time.
        let is_lean = context.reader.memory_bytes() < PART * (SENDS as u64 + 2) + PART_BYTES * (READS as u64 + 2);
        let (wanted, sends, reads) = if is_lean { (PART / 2, 1, 1) } else { (PART, SENDS, READS) };
        // For stores without multipart uploads, an object is also collected in parts, so that an object above the
        // memory limit fails early.
        let part_bytes = limits.map_or(wanted, |limits| {
            let size = if change.is_copy() { entry.size } else { entry.size.saturating_add(entry.size / 100) };
            limits.part_bytes(wanted, size)
        });
        let room = match (limits, context.may_replace(upload)) {
            (None, true) => {
                let budget = context.options.memory / 2;
                if entry.size > budget {
                    let what = format!(
                        "uploading {} in one request ({} has no multipart uploads)",
                        context.reader.place(entry),
                        context.to.url
                    );
                    return Err(Error::BudgetExceeded {
                        what,
                        need: entry.size.saturating_mul(2),
                        budget: context.options.memory,
                    });
                }
                let most = match change.item.decode {
                    Codec::None => entry.size,
                    decode => context.options.inflated_limit(decode, entry.size).min(budget),
                };
                context.reader.room(most).await?
            }
            (_, _) => {
                let parts = part_bytes.min(PART * 4).saturating_mul(sends as u64 + 2);
                context.reader.room(parts.saturating_add(PART_BYTES * (reads as u64 + 2))).await?
            }
        };
        let wants_md5 = limits.is_some_and(|limits| limits.whole == Algorithm::Md5);
        let out = match context.may_replace(upload) {
            true if wants_md5 => StoredDigests::new(&[]).with_md5(),
            true => StoredDigests::new(&[]),
            // The existing object will be compared by digest, so compute the digests of the kinds that the store
            // reports.
            false => {
                let existing =
                    context.to.store.head(&context.to.key(&change.item.target), context.reader.deadline).await?;
                StoredDigests::new(&existing.digests).with_md5()
            }
        };
        let mut this = Self {
            context,
            upload,
            entry,
            change,
            promised,
            hold: PartSink::Nowhere,
            limits,
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
        match multipart.filter(|_| context.may_replace(upload)) {
            Some(multipart) => this.resume_or_create(multipart).await?,
            None if context.may_replace(upload) => this.hold = PartSink::Whole(Vec::new()),
            None => {}
        }
        Ok(this)
    }

    fn multipart_store(&self) -> Result<&'a dyn MultipartStore> {
        self.context.to.store.multipart().ok_or_else(|| Error::bug("a store lost its multipart uploads"))
    }

    /// Resumes the upload of an earlier run, or creates a new one.
    async fn resume_or_create(&mut self, multipart: &dyn MultipartStore) -> Result<()> {
        let context = self.context;
        let head = Head {
            source: context.reader.place(self.entry),
            size: self.entry.size,
            version: self.entry.version.clone(),
            modified_ms: self.entry.modified_s.map(|seconds| (seconds * 1e3).round() as i64),
            target: context.target_place(&self.change.item),
            transform: context.options.transform_id(),
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
            match multipart.list_parts(&key, &left.id, &known, context.reader.deadline).await {
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
                let options = context.put_options(self.upload, self.change, None);
                let id = multipart.create(&key, &options, context.reader.deadline).await?;
                let (head, begun) = (head, id.clone());
                sent = blocking(move || sent.begin(&head, &begun).map(|()| sent)).await?;
                id
            }
        };
        lock(&context.open).insert(sent.file.name().to_owned(), (key, id.clone()));
        self.hold = PartSink::Parts { id, sent, held };
        Ok(())
    }

    /// Finds an upload that an earlier run completed. That run may have been killed after it received the store's
    /// response, and before it wrote the journal line of the object.
    async fn finished_before(&self, sent: &Arc<OwnedFile>) -> Result<Option<Written>> {
        let Some((size, digests)) = self.left.as_ref().and_then(|left| left.whole.clone()) else { return Ok(None) };
        match self.context.adopted(&self.change.item, size, &digests).await {
            Ok(meta) => {
                let ours = |digest: &&Digest| matches!(digest.algorithm, Algorithm::Crc32c | Algorithm::Xxh3);
                let digests: Vec<Digest> = digests.iter().filter(ours).cloned().collect();
                let stored = if self.change.is_copy() { digests.clone() } else { Vec::new() };
                let checked = self.context.reader.check(self.entry, &stored, self.promised)?;
                let change = self.change.clone();
                Ok(Some(Written { change, stored, checked, size, digests, meta, leftover: Some(sent.clone()) }))
            }
            Err(Error::NotFound { .. } | Error::Precondition { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Aborts the upload and removes its journal.
    pub async fn forget(mut self) {
        self.in_flight.shutdown().await;
        if let PartSink::Parts { id, sent, .. } = &self.hold {
            let key = self.context.to.key(&self.change.item.target);
            if let Ok(multipart) = self.multipart_store() {
                // If the abort fails, ignore the error: the store's lifecycle rules remove the upload.
                let _ = multipart.abort(&key, id, self.context.reader.deadline).await;
            }
            lock(&self.context.open).remove(sent.file.name());
            sent.file.remove();
        }
    }

    fn span(&self, number: u32) -> u64 {
        match self.change.item.decode == Codec::None {
            true => self.part_bytes,
            false => self.part_bytes << (number / STEP).min(4),
        }
    }

    /// Adds bytes of the transformed object, in order. Sends parts as they become complete.
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

    /// Makes the buffered bytes the pending part, which may be the last part. Sends the previous pending part.
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

    /// Sends a part, unless the store already has it.
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
                        "uploading {} in one request ({} has no multipart uploads)",
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

    /// Starts to send a part. If the store requires ordered parts, waits until this part has arrived.
    pub async fn spawn_part(&mut self, at: PartSpec, bytes: Vec<Bytes>) -> Result<()> {
        let PartSink::Parts { id, .. } = &self.hold else { return Err(Error::bug("a part without an upload")) };
        let (context, id, key) = (self.context.clone(), id.clone(), self.context.to.key(&self.change.item.target));
        self.in_flight.spawn(async move {
            let multipart =
                context.to.store.multipart().ok_or_else(|| Error::bug("a store lost its multipart uploads"))?;
            multipart.put_part(&key, &id, &at, bytes, context.reader.deadline).await
        });
        let most = if self.limits.is_some_and(|limits| limits.is_ordered) { 0 } else { self.sends - 1 };
        self.join(most).await
    }

    /// Waits until at most `left` parts are in flight, and journals the parts that arrived.
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

    /// Ends the object after all its bytes have been added and verified.
    pub async fn finish(&mut self, stored: Vec<Digest>, checked: Vec<Digest>) -> Result<Written> {
        // All earlier parts must have arrived before the last part is sent, because the last part ends the upload.
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
        let options = context.put_options(self.upload, self.change, None);
        let mut leftover = None;
        let meta: Meta = match &mut self.hold {
            PartSink::Nowhere => context.adopted(&self.change.item, size, &digests).await?,
            PartSink::Whole(all) => {
                context.to.store.put(&key, std::mem::take(all), &options, context.reader.deadline).await?
            }
            PartSink::Parts { id, sent, .. } => {
                self.parts.sort_by_key(|part| part.number);
                let multipart =
                    context.to.store.multipart().ok_or_else(|| Error::bug("a store lost its multipart uploads"))?;
                sent.whole(size, &digests)?;
                let made = multipart.complete(&key, id, &self.parts, &digests, &options, context.reader.deadline).await;
                leftover = Some(sent.file.clone());
                let made = match made {
                    Err(Error::Precondition { .. }) if self.upload.existing.is_none() => {
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

/// Converts a CRC digest to a number.
pub(crate) fn value(crc: &Digest) -> Option<u32> {
    Some(u32::from_be_bytes(crc.value.as_slice().try_into().ok()?))
}
