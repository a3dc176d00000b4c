// SPDX-License-Identifier: Apache-2.0
//! The journey of one object to a store: read at its pinned version, checked, inflated or compressed on the way, written
//! with digests that the store checks. It appears whole or not at all.
//!
//! A small object is read whole and put. A large one flows (`flow`): pieces in order through memory of a few parts, whatever
//! its size. Hashing, inflating and compressing run on blocking threads.

use std::sync::Arc;

use bytes::Bytes;
use penstock_codec::checksum::crc32c;
use penstock_codec::{Codec, decompress_into};
use penstock_store::{Meta, Precondition, PutOptions, cheapest};
use penstock_types::{Algorithm, Digest, Error, Result, unix_now};

use crate::blocking::blocking;
use crate::compress::{WHOLE, is_packed, is_worth};
use crate::digests::{ContentDigest, StoredDigests, checked_of};
use crate::journal::Line;
use crate::plan::Item;
use crate::progress::Progress;
use crate::source_reader::inflated_limit;
use crate::to_store::SentObject;
use crate::to_store::target::{SMALL, keeps_names, transform_id};
use crate::to_store::upload::{Transform, UploadContext, UploadItem, Written};
use penstock_dataset::manifest::{Entry, Origin};

/// The most that a small object may inflate to in memory; beyond, it flows.
const INFLATED_WHOLE: u64 = 128 << 20;
/// Times that an object is read whose bytes arrive damaged.
const DAMAGED: u32 = 4;

impl UploadContext {
    pub fn target_place(&self, item: &Item) -> String {
        format!("{}{}", self.to.url, item.target)
    }

    /// Runs `work` on a blocking thread, under one of the cores.
    pub async fn on_core<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let core = self.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        blocking(move || {
            let done = work();
            drop(core);
            done
        })
        .await
    }

    pub async fn send(self: &Arc<Self>, load: &UploadItem, entry: &Entry) -> Result<SentObject> {
        let mut last = None;
        for _ in 0..DAMAGED {
            let sent = match self.small(load, entry).await {
                Ok(None) => crate::to_store::stream_upload::send(self, load, entry).await,
                Ok(Some(written)) => Ok(written),
                Err(error) => Err(error),
            };
            match sent {
                Err(error @ Error::Corrupt { .. }) if !error.to_string().starts_with(&self.to.url) => {
                    // Twice the same damage: the object itself is at fault.
                    if last.as_ref() == Some(&error) {
                        return Err(error);
                    }
                    last = Some(error);
                    self.reader.damaged(entry);
                    Progress::add(&self.reader.progress.refetched, 1);
                }
                Err(error) => return Err(error),
                Ok(written) => return Ok(self.sent(entry, written)),
            }
        }
        Err(last.unwrap_or_else(|| Error::bug("an object was not sent")))
    }

    fn sent(&self, entry: &Entry, written: Written) -> SentObject {
        let Written { change, stored, checked, size, digests, meta, leftover } = written;
        let line = Line {
            target: change.item.target.clone(),
            size,
            mtime_ns: (meta.modified_s.unwrap_or_else(|| unix_now().as_secs_f64()) * 1e9) as i64,
            digests,
            origin: Origin {
                digests: stored,
                checked,
                encoding: change.source_encoding.or_else(|| entry.encoding.clone()),
                decoded: change.item.undo,
                codec_source: change.item.codec_source,
                encoded: change.pack.map_or(Codec::None, |compression| compression.codec),
                transform: transform_id(&self.options),
                modified_s: entry.modified_s,
                ..Origin::of(entry)
            },
            modified_s: entry.modified_s,
            decompress: self.options.decompress,
            version: meta.version,
        };
        SentObject { line, leftover }
    }

    /// Transform of content that begins with `head`, of an object with this Content-Encoding in its store.
    pub fn change(&self, item: &Item, entry: &Entry, encoding: Option<String>, head: &[u8]) -> Transform {
        let source_encoding = encoding.or_else(|| entry.encoding.clone());
        let item = item.with_detected_codec(self.options.decompress, source_encoding.as_deref(), head);
        let pack = match keeps_names(self.to.store.root().scheme) {
            false => self.options.compression_of(entry), // its name says so already
            true => self.options.compression.filter(|compression| match item.undo {
                // A store without ranges shows no first bytes ahead.
                Codec::None => {
                    let is_unseen = head.is_empty() && entry.size > 0;
                    source_encoding.is_none() && !is_packed(entry) && (is_unseen || is_worth(compression.codec, head))
                }
                _ => true,
            }),
        };
        let encoding = match (pack, item.undo) {
            (Some(compression), _) if keeps_names(self.to.store.root().scheme) => {
                Some(compression.codec.name().to_owned())
            }
            (Some(_), _) => None,
            (None, Codec::None) => source_encoding.clone(),
            (None, _) => None,
        };
        Transform { item, pack, encoding, source_encoding }
    }

    pub fn put_options(&self, load: &UploadItem, change: &Transform, checksum: Option<Digest>) -> PutOptions {
        let precondition = match &load.standing {
            _ if !self.to.store.capabilities().preconditions => Precondition::None,
            None if self.options.overwrite => Precondition::None,
            None => Precondition::Absent,
            Some(meta) => meta.version.clone().map_or(Precondition::None, Precondition::Matches),
        };
        PutOptions { precondition, encoding: change.encoding.clone(), checksum }
    }

    /// Whether what is there may be replaced; else whether it is the same already.
    pub fn may_replace(&self, load: &UploadItem) -> bool {
        load.standing.is_none() || load.is_ours || self.options.overwrite
    }

    /// Metadata of an object of another origin if it has these bytes, else the refusal to replace it.
    pub async fn adopted(&self, item: &Item, size: u64, digests: &[Digest]) -> Result<Meta> {
        let standing = self.to.store.head(&self.to.key(&item.target), self.reader.deadline).await?;
        let both = |have: &&Digest| digests.iter().any(|want| want.algorithm == have.algorithm);
        let mut comparable = standing.digests.iter().filter(both).peekable();
        let is_same =
            standing.size == size && comparable.peek().is_some() && comparable.all(|have| digests.contains(have));
        match is_same {
            true => Ok(standing),
            false => Err(Error::Precondition {
                place: self.target_place(item),
                reason: format!("an object exists that no stage of {} has written", self.reader.source.url),
            }),
        }
    }

    /// Whatever a store may know of these bytes.
    async fn every_digest(&self, body: Bytes) -> Result<Vec<Digest>> {
        let known = [Algorithm::Crc32, Algorithm::Crc64Nvme].map(|algorithm| Digest { algorithm, value: Vec::new() });
        self.on_core(move || {
            let mut sums = StoredDigests::new(&known).with_md5();
            sums.update(&body);
            Ok(sums.digests())
        })
        .await
    }

    /// A small object in one go; `None` where it is not, and must flow.
    async fn small(self: &Arc<Self>, load: &UploadItem, entry: &Entry) -> Result<Option<Written>> {
        if entry.size > SMALL {
            return Ok(None);
        }
        let _room = self.reader.room(entry.size.saturating_mul(2)).await?;
        let mut stored = Vec::new();
        let meta = self.reader.whole(entry, &mut stored).await??;
        let stored = Bytes::from(stored);
        let ready = {
            let (context, load, entry) = (self.clone(), load.clone(), entry.clone());
            self.on_core(move || context.ready(&load, &entry, &stored, &meta)).await?
        };
        let Some((body, change, stored, checked)) = ready else { return Ok(None) };
        let (size, key) = (body.len() as u64, self.to.key(&load.item.target));
        let mut seal = ContentDigest::default();
        seal.update(&body);
        let digests = seal.digests();
        let meta = if self.may_replace(load) {
            let options = self.put_options(load, &change, Some(Digest::of_u32(Algorithm::Crc32c, crc32c(&body))));
            match self.to.store.put(&key, vec![body.clone()], &options, self.reader.deadline).await {
                // Another run of this stage may have written it first; compare the bytes.
                Err(Error::Precondition { .. }) if load.standing.is_none() => {
                    self.adopted(&load.item, size, &self.every_digest(body).await?).await?
                }
                other => other?,
            }
        } else {
            self.adopted(&load.item, size, &self.every_digest(body).await?).await?
        };
        Ok(Some(Written { change, stored, checked, size, digests, meta, leftover: None }))
    }

    /// Errs where stored bytes are not what was promised; else gives the promises that were compared with them.
    pub fn check(&self, entry: &Entry, have: &[Digest], promised: &[Digest]) -> Result<Vec<Digest>> {
        for want in promised {
            if let Some(have) = have.iter().find(|have| have.algorithm == want.algorithm).filter(|have| *have != want) {
                return Err(Error::corrupt(self.reader.place(entry), format!("has {have} where {want} was promised")));
            }
        }
        Ok(checked_of(promised.iter(), |kind| have.iter().any(|have| have.algorithm == kind)))
    }

    /// Content and digests of a small object after the transform; `None` if it decompresses to more than the memory limit.
    #[expect(clippy::type_complexity, reason = "one caller, which takes it apart")]
    fn ready(
        &self,
        load: &UploadItem,
        entry: &Entry,
        stored: &Bytes,
        meta: &Meta,
    ) -> Result<Option<(Bytes, Transform, Vec<Digest>, Vec<Digest>)>> {
        let promised: Vec<Digest> = meta.digests.iter().chain(&entry.digests).cloned().collect();
        let mut sums = StoredDigests::new(&promised);
        sums.update(stored);
        let have = sums.digests();
        let mut checked = self.check(entry, &have, &promised)?;
        // The store's own was compared with the bytes as they came.
        if let Some(own) = cheapest(&meta.digests).filter(|own| !checked.contains(own)) {
            checked.push(own.clone());
        }
        let change = self.change(&load.item, entry, meta.encoding.clone(), stored);
        let mut content = stored.clone();
        if change.item.undo != Codec::None {
            let limit = self.inflated_limit(change.item.undo, stored.len() as u64);
            let mut inflated = Vec::new();
            match decompress_into(
                change.item.undo,
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
        if let Some(compression) = change.pack {
            if content.len() > WHOLE {
                return Ok(None);
            }
            content = compression.whole(&content)?.into();
        }
        Ok(Some((content, change, have[..2].to_vec(), checked)))
    }

    /// Maximum decompressed size of an object: the user's limit, or the highest ratio of its codec.
    pub fn inflated_limit(&self, codec: Codec, stored: u64) -> u64 {
        inflated_limit(codec, stored, self.options.max_inflated)
    }
}
