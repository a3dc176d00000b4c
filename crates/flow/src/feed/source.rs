// SPDX-License-Identifier: Apache-2.0
//! A dataset as the feed sees it: the objects of a manifest that hold records, and the store that has them.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::Codec;
use penstock_store::{ObjectRef, Store};
use penstock_types::{ByteRange, Deadline, Error, Key, Metrics, Result, grouped, now};
use std::time::Instant;

use crate::manifest::{Entry, Manifest, RecordFormat};

/// An object above twice this is read in parts of this size, several at a time: one connection gives 50 to 90 MB/s on
/// the public clouds (reference: AWS and Azure performance guides), which is too little for one large object.
const PART: u64 = 8 << 20;

/// Parts of one object under way at a time.
const PARTS_IN_FLIGHT: usize = 8;

/// The objects and their store. Cheap to share.
#[derive(Debug)]
pub struct Source {
    store: Arc<dyn Store>,
    base: Key,
    manifest: Manifest,
    metrics: Arc<Metrics>,
    ignored: usize,
}

/// Bytes of an object, and when they came.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub bytes: Bytes,
    pub sent: Instant,
    pub first_byte: Instant,
    pub done: Instant,
}

impl Source {
    /// The record-holding objects of `manifest`, whose keys are below `base` in `store`. Where some names say that they
    /// hold records (`.tfrecord`), the others are left aside; where none does, all are taken for TFRecords.
    pub fn new(store: Arc<dyn Store>, base: Key, mut manifest: Manifest, metrics: Arc<Metrics>) -> Result<Self> {
        let all = manifest.objects.len();
        if manifest.objects.iter().any(|entry| entry.format == RecordFormat::TfRecord) {
            manifest.objects.retain(|entry| entry.format == RecordFormat::TfRecord);
        } else if let Some(entry) = manifest.objects.iter().find(|entry| entry.format != RecordFormat::Raw) {
            return Err(Error::Unsupported {
                what: format!("reading {} objects ({})", entry.format.name(), entry.key),
                by: "this version's feed, which reads TFRecords".to_owned(),
            });
        }
        if manifest.objects.is_empty() {
            return Err(Error::NotFound { place: format!("any object under {}", manifest.url) });
        }
        // Of an object and its inflated copy each sample would be read twice, and nothing would say so.
        if let Some(pair) = manifest.objects.windows(2).find(|pair| pair[0].logical_name() == pair[1].logical_name()) {
            return Err(Error::config(
                "dataset",
                format!(
                    "{} holds `{}` and `{}`, the same samples twice; name one kind by a pattern (as {}*.gz)",
                    manifest.url, pair[0].key, pair[1].key, manifest.url
                ),
            ));
        }
        let ignored = all - manifest.objects.len();
        Ok(Self { store, base, manifest, metrics, ignored })
    }

    /// The objects, by logical name.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// How many objects of the listing hold no records by their names.
    pub fn ignored(&self) -> usize {
        self.ignored
    }

    /// The counters of this source's requests.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn entry(&self, object: u64) -> &Entry {
        &self.manifest.objects[object as usize]
    }

    /// The URL of an object.
    pub fn place(&self, object: u64) -> String {
        self.store.root().with_key(self.below_root(object)).to_string()
    }

    /// For `file` the root's own key is part of the path.
    fn below_root(&self, object: u64) -> Key {
        let key = self.base.join(self.entry(object).key.as_bytes());
        let root = &self.store.root().as_folder().key;
        if root.as_bytes() == b"/" || root.is_empty() { key } else { root.join(key.as_bytes()) }
    }

    /// How an object is compressed.
    pub(crate) fn codec(&self, object: u64) -> Codec {
        let entry = self.entry(object);
        match (entry.codec, entry.encoding.as_deref()) {
            (Codec::None, Some("gzip")) => Codec::Gzip,
            (codec, _) => codec,
        }
    }

    fn reference(&self, object: u64) -> ObjectRef {
        let entry = self.entry(object);
        ObjectRef { key: self.base.join(entry.key.as_bytes()), version: entry.version.clone() }
    }

    /// The whole of an object, of the version that the manifest pinned.
    pub(crate) async fn fetch(&self, object: u64, deadline: Deadline) -> Result<Fetched> {
        let size = self.entry(object).size;
        let sent = now();
        if size <= 2 * PART {
            let (bytes, first_byte) = self.range(object, ByteRange::WHOLE, size, deadline).await?;
            return Ok(Fetched { bytes, sent, first_byte, done: now() });
        }
        let parts: Vec<(Bytes, Instant)> = stream::iter((0..size).step_by(PART as usize))
            .map(|start| {
                let len = PART.min(size - start);
                self.range(object, ByteRange::new(start, len), len, deadline)
            })
            .buffered(PARTS_IN_FLIGHT)
            .try_collect()
            .await?;
        let first_byte = parts.iter().map(|part| part.1).min().unwrap_or(sent);
        let mut whole = BytesMut::with_capacity(size as usize);
        parts.iter().for_each(|part| whole.extend_from_slice(&part.0));
        Ok(Fetched { bytes: whole.freeze(), sent, first_byte, done: now() })
    }

    /// The last four bytes: where gzip says how much it holds.
    pub(crate) async fn last_four(&self, object: u64, deadline: Deadline) -> Result<[u8; 4]> {
        let size = self.entry(object).size;
        let cut =
            || Error::corrupt(self.place(object), format!("ends inside its gzip header ({} bytes)", grouped(size)));
        let start = size.checked_sub(4).ok_or_else(cut)?;
        let (bytes, _) = self.range(object, ByteRange::new(start, 4), 4, deadline).await?;
        bytes.as_ref().try_into().map_err(|_| cut())
    }

    /// One range, of which `want` bytes must come.
    async fn range(&self, object: u64, range: ByteRange, want: u64, deadline: Deadline) -> Result<(Bytes, Instant)> {
        let mut answer = self.store.get_ranges(&self.reference(object), &[range], deadline).await?;
        let size = self.entry(object).size;
        // A store without versions still gives sizes.
        if answer.meta.size != size {
            return Err(Error::Changed {
                place: self.place(object),
                want: format!("of {} bytes", grouped(size)),
                have: format!("one of {} bytes", grouped(answer.meta.size)),
            });
        }
        let mut first_byte = None;
        let mut single: Option<Bytes> = None;
        let mut several = BytesMut::new();
        while let Some(chunk) = answer.chunks.next().await {
            let bytes = chunk?.bytes;
            first_byte.get_or_insert_with(now);
            match single.take() {
                None if several.is_empty() => single = Some(bytes),
                None => several.extend_from_slice(&bytes),
                Some(before) => {
                    several.reserve(want as usize);
                    several.extend_from_slice(&before);
                    several.extend_from_slice(&bytes);
                }
            }
        }
        let bytes = single.unwrap_or_else(|| several.freeze());
        if bytes.len() as u64 != want {
            return Err(Error::corrupt(
                self.place(object),
                format!("gave {} bytes where {} were asked for", grouped(bytes.len() as u64), grouped(want)),
            ));
        }
        Ok((bytes, first_byte.unwrap_or_else(now)))
    }
}
