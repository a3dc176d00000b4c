// SPDX-License-Identifier: Apache-2.0
//! Uploads one object to a store: reads the listed version, verifies it, and decompresses or compresses it before the
//! upload. The store verifies the digests that are sent with the object. Readers never see an incomplete object.
//!
//! A small object is read into memory and written in one request. A large object is streamed in order
//! (`resumable_upload`). Streaming needs memory for only a few parts, whatever the size of the object. Hashing and
//! (de)compression run on blocking threads.

use std::sync::Arc;

use bytes::Bytes;
use penstock_codec::checksum::crc32c;
use penstock_codec::{Codec, decompress_into};
use penstock_store::{Meta, Precondition, PutOptions};
use penstock_types::{Algorithm, Digest, Error, Result, unix_now};

use crate::blocking::blocking;
use crate::compress::{WHOLE, is_packed, is_worth};
use crate::digests::{ContentDigest, StoredDigests, Verified};
use crate::journal::Line;
use crate::plan::Item;
use crate::source_reader::DamageRetry;
use crate::to_store::SentObject;
use crate::to_store::target::{SMALL, keeps_names};
use crate::to_store::upload_types::{Transform, UploadContext, UploadItem, Written};
use penstock_dataset::manifest::Entry;

/// Maximum decompressed size of a small object that is transformed in memory. A larger object is streamed.
const INFLATED_WHOLE: u64 = 128 << 20;

impl UploadContext {
    pub fn target_place(&self, item: &Item) -> String {
        format!("{}{}", self.to.url, item.target)
    }

    /// Waits for a free core, then runs `work` on a blocking thread.
    pub async fn on_core<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let core = self.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        blocking(move || {
            let done = work();
            drop(core);
            done
        })
        .await
    }

    pub async fn send(self: &Arc<Self>, upload: &UploadItem, entry: &Entry) -> Result<SentObject> {
        let mut retry = DamageRetry::new(&self.reader, entry);
        loop {
            let sent = match self.small(upload, entry).await {
                Ok(None) => crate::to_store::resumable_upload::send(self, upload, entry).await,
                Ok(Some(written)) => Ok(written),
                Err(error) => Err(error),
            };
            match sent {
                // The error text contains the digests of the bytes. Two equal errors therefore mean that the bytes are
                // the same.
                Err(error @ Error::Corrupt { .. }) if !error.to_string().starts_with(&self.to.url) => {
                    retry.again(error.clone(), error)?;
                }
                Err(error) => return Err(error),
                Ok(written) => return Ok(self.sent(entry, written)),
            }
        }
    }

    fn sent(&self, entry: &Entry, written: Written) -> SentObject {
        let Written { change, stored, checked, size, digests, meta, leftover } = written;
        let stored = Verified { digests: stored, checked, encoding: change.source_encoding };
        let mut line = Line::new(&self.options, &change.item, entry, stored);
        line.origin.encoded = change.compression.map_or(Codec::None, |compression| compression.codec);
        line.origin.transform = self.options.transform_id();
        line.origin.modified_s = entry.modified_s;
        let mtime_ns = (meta.modified_s.unwrap_or_else(|| unix_now().as_secs_f64()) * 1e9) as i64;
        let line = Line { size, mtime_ns, digests, version: meta.version, ..line };
        SentObject { line, leftover }
    }

    /// Chooses the transform for an object. `encoding` is the object's Content-Encoding in the source store; `head`
    /// holds the object's first bytes.
    pub fn change(&self, item: &Item, entry: &Entry, encoding: Option<String>, head: &[u8]) -> Transform {
        let source_encoding = encoding.or_else(|| entry.encoding.clone());
        let item = item.with_detected_codec(self.options.decompress, source_encoding.as_deref(), head);
        let compression = match keeps_names(self.to.store.root().scheme) {
            false => self.options.compression_of(entry), // chosen by name
            true => self.options.compression.filter(|compression| match item.decode {
                // A store without ranges cannot return the first bytes in advance. `head` is then empty, and the
                // compression trial is skipped.
                Codec::None => {
                    let is_unseen = head.is_empty() && entry.size > 0;
                    source_encoding.is_none() && !is_packed(entry) && (is_unseen || is_worth(compression.codec, head))
                }
                _ => true,
            }),
        };
        let encoding = match (compression, item.decode) {
            (Some(compression), _) if keeps_names(self.to.store.root().scheme) => {
                Some(compression.codec.name().to_owned())
            }
            (Some(_), _) => None,
            (None, Codec::None) => source_encoding.clone(),
            (None, _) => None,
        };
        Transform { item, compression, encoding, source_encoding }
    }

    pub fn put_options(&self, upload: &UploadItem, change: &Transform, checksum: Option<Digest>) -> PutOptions {
        let precondition = match &upload.existing {
            _ if !self.to.store.capabilities().preconditions => Precondition::None,
            None if self.options.overwrite => Precondition::None,
            None => Precondition::Absent,
            Some(meta) => meta.version.clone().map_or(Precondition::None, Precondition::Matches),
        };
        PutOptions { precondition, encoding: change.encoding.clone(), checksum }
    }

    /// True if the target may be written. If false, the existing object is only compared with the new bytes.
    pub fn may_replace(&self, upload: &UploadItem) -> bool {
        upload.existing.is_none() || upload.is_ours || self.options.overwrite
    }

    /// Returns the metadata of the existing object if the object has this size and these digests. Otherwise returns an
    /// error, because an object of another source must not be replaced.
    pub async fn adopted(&self, item: &Item, size: u64, digests: &[Digest]) -> Result<Meta> {
        let existing = self.to.store.head(&self.to.key(&item.target), self.reader.deadline).await?;
        let both = |have: &&Digest| digests.iter().any(|want| want.algorithm == have.algorithm);
        let mut comparable = existing.digests.iter().filter(both).peekable();
        let is_same =
            existing.size == size && comparable.peek().is_some() && comparable.all(|have| digests.contains(have));
        match is_same {
            true => Ok(existing),
            false => Err(Error::Precondition {
                place: self.target_place(item),
                reason: format!("an object that was not staged from {} already exists", self.reader.source.url),
            }),
        }
    }

    /// Computes every kind of digest that the store may report for these bytes.
    async fn every_digest(&self, body: Bytes) -> Result<Vec<Digest>> {
        let known = [Algorithm::Crc32, Algorithm::Crc64Nvme].map(|algorithm| Digest { algorithm, value: Vec::new() });
        self.on_core(move || {
            let mut sums = StoredDigests::new(&known).with_md5();
            sums.update(&body);
            Ok(sums.digests())
        })
        .await
    }

    /// Copies a small object in one request; returns `None` if the object is not small and must be streamed.
    async fn small(self: &Arc<Self>, upload: &UploadItem, entry: &Entry) -> Result<Option<Written>> {
        if entry.size > SMALL {
            return Ok(None);
        }
        let _room = self.reader.room(entry.size.saturating_mul(2)).await?;
        let mut stored = Vec::new();
        let meta = self.reader.whole(entry, &mut stored).await??;
        let stored = Bytes::from(stored);
        let ready = {
            let (context, upload, entry) = (self.clone(), upload.clone(), entry.clone());
            self.on_core(move || context.ready(&upload, &entry, &stored, &meta)).await?
        };
        let Some((body, change, verified)) = ready else { return Ok(None) };
        let (size, key) = (body.len() as u64, self.to.key(&upload.item.target));
        let mut seal = ContentDigest::default();
        seal.update(&body);
        let digests = seal.digests();
        let meta = if self.may_replace(upload) {
            let options = self.put_options(upload, &change, Some(Digest::of_u32(Algorithm::Crc32c, crc32c(&body))));
            match self.to.store.put(&key, vec![body.clone()], &options, self.reader.deadline).await {
                // Another run of this stage may have written the object first. Compare the existing object with the
                // bytes.
                Err(Error::Precondition { .. }) if upload.existing.is_none() => {
                    self.adopted(&upload.item, size, &self.every_digest(body).await?).await?
                }
                other => other?,
            }
        } else {
            self.adopted(&upload.item, size, &self.every_digest(body).await?).await?
        };
        let Verified { digests: stored, checked, .. } = verified;
        Ok(Some(Written { change, stored, checked, size, digests, meta, leftover: None }))
    }

    /// Content and digests of a small object after the transform. `None` if the object decompresses to more than the
    /// memory limit.
    fn ready(
        &self,
        upload: &UploadItem,
        entry: &Entry,
        stored: &Bytes,
        meta: &Meta,
    ) -> Result<Option<(Bytes, Transform, Verified)>> {
        let promised: Vec<Digest> = meta.digests.iter().chain(&entry.digests).cloned().collect();
        let mut sums = StoredDigests::new(&promised);
        sums.update(stored);
        let verified = self.reader.verified(entry, &sums, meta)?;
        let change = self.change(&upload.item, entry, meta.encoding.clone(), stored);
        let mut content = stored.clone();
        if change.item.decode != Codec::None {
            let limit = self.options.inflated_limit(change.item.decode, stored.len() as u64);
            let mut inflated = Vec::new();
            match decompress_into(
                change.item.decode,
                stored,
                &mut inflated,
                limit.min(INFLATED_WHOLE),
                &self.reader.place(entry),
            ) {
                Err(Error::Corrupt { .. }) if limit > INFLATED_WHOLE => return Ok(None),
                other => other?,
            }
            content = inflated.into();
        }
        if let Some(compression) = change.compression {
            if content.len() > WHOLE {
                return Ok(None);
            }
            content = compression.whole(&content)?.into();
        }
        Ok(Some((content, change, verified)))
    }
}
