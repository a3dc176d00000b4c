// SPDX-License-Identifier: Apache-2.0
//! In-memory store for tests and examples: `memory://name/`. Stores with the same name in a process share objects.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, stream};
use penstock_types::{Algorithm, ByteRange, Deadline, Digest, Error, Key, Result, Scheme, Url, unix_now};

use crate::multipart::{MultipartLimits, MultipartStore, Part, PartSpec, UploadId};
use crate::{Capabilities, Chunk, GetResult, ListStream, Meta, ObjectRef, Precondition, PutOptions, Store, Version};

type Objects = Arc<Mutex<BTreeMap<Key, Stored>>>;

static NAMED: LazyLock<Mutex<HashMap<String, Objects>>> = LazyLock::new(Mutex::default);
static VERSION: AtomicU64 = AtomicU64::new(1);

#[derive(Debug, Clone)]
struct Stored {
    bytes: Bytes,
    meta: Meta,
}

/// In-memory store.
#[derive(Debug)]
pub struct Memory {
    root: Url,
    objects: Objects,
}

impl Memory {
    /// Returns the store with this name. All stores with this name in this process share their objects.
    pub fn named(name: &str) -> Self {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            root: Url { scheme: Scheme::Memory, authority: name.to_owned(), key: Key::default() },
            objects: named.entry(name.to_owned()).or_default().clone(),
        }
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, BTreeMap<Key, Stored>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, key: &Key) -> String {
        self.root.with_key(key.clone()).to_string()
    }
}

#[async_trait]
impl Store for Memory {
    fn root(&self) -> &Url {
        &self.root
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, _deadline: Deadline) -> ListStream<'_> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.clone()),
            _ => Bound::Included(prefix.clone()),
        };
        let found: Vec<_> = self
            .objects()
            .range((from, Bound::Unbounded))
            .take_while(|(key, _)| key.as_bytes().starts_with(prefix.as_bytes()))
            .map(|(_, stored)| Ok(stored.meta.clone()))
            .collect();
        stream::iter(found).boxed()
    }

    async fn head(&self, key: &Key, _deadline: Deadline) -> Result<Meta> {
        let objects = self.objects();
        let stored = objects.get(key).ok_or_else(|| Error::NotFound { place: self.place(key) })?;
        Ok(stored.meta.clone())
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], _deadline: Deadline) -> Result<GetResult> {
        let place = self.place(&object.key);
        let stored =
            self.objects().get(&object.key).cloned().ok_or_else(|| Error::NotFound { place: place.clone() })?;
        if object.version.is_some() && object.version != stored.meta.version {
            return Err(Error::Changed {
                place,
                want: object.version.as_ref().map(ToString::to_string).unwrap_or_default(),
                have: stored.meta.version.as_ref().map(ToString::to_string).unwrap_or_default(),
            });
        }
        let size = stored.meta.size;
        let chunks = ranges
            .iter()
            .enumerate()
            .map(|(index, range)| {
                if range.start > size || (range.start == size && !range.is_whole() && range.len > 0) {
                    return Err(Error::corrupt(
                        &place,
                        format!("has {size} bytes, but the range starts at byte {}", range.start),
                    ));
                }
                let bytes = stored.bytes.slice(range.start as usize..range.end(size) as usize);
                Ok(Chunk { range: index, offset: range.start, bytes })
            })
            .filter(|chunk| !matches!(chunk, Ok(chunk) if chunk.bytes.is_empty()))
            .collect::<Result<Vec<_>>>()?;
        Ok(GetResult { meta: stored.meta, chunks: stream::iter(chunks.into_iter().map(Ok)).boxed() })
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, _deadline: Deadline) -> Result<Meta> {
        let bytes: Bytes = parts.concat().into();
        let crc = Digest::of_u32(Algorithm::Crc32c, crate::checksum::crc32c(&bytes));
        if let Some(want) = &options.checksum
            && want.algorithm == Algorithm::Crc32c
            && *want != crc
        {
            return Err(Error::corrupt(self.place(key), format!("was sent with {want}, but its bytes have {crc}")));
        }
        let mut objects = self.objects();
        let existing = objects.get(key).and_then(|stored| stored.meta.version.clone());
        let refused = match (&options.precondition, &existing) {
            (Precondition::None, _) | (Precondition::Absent, None) => None,
            (Precondition::Absent, Some(version)) => Some(format!("version {version} already exists")),
            (Precondition::Matches(want), have) if Some(want) == have.as_ref() => None,
            (Precondition::Matches(want), _) => Some(format!("version {want} is no longer current")),
        };
        if let Some(reason) = refused {
            return Err(Error::Precondition { place: self.place(key), reason });
        }
        let meta = Meta {
            key: key.clone(),
            size: bytes.len() as u64,
            version: Some(Version(VERSION.fetch_add(1, Ordering::Relaxed).to_string())),
            digests: vec![crc],
            encoding: options.encoding.clone(),
            modified_s: Some(unix_now().as_secs_f64()),
        };
        objects.insert(key.clone(), Stored { bytes, meta: meta.clone() });
        Ok(meta)
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(self)
    }

    async fn delete(&self, keys: &[Key], _deadline: Deadline) -> Result<()> {
        let mut objects = self.objects();
        keys.iter().for_each(|key| {
            objects.remove(key);
        });
        Ok(())
    }
}

/// Parts of unfinished uploads, by upload ID and part number. All in-memory stores of this process share them.
type Open = BTreeMap<String, BTreeMap<u32, (Part, Vec<Bytes>)>>;
static OPEN: LazyLock<Mutex<Open>> = LazyLock::new(Mutex::default);

fn open_uploads() -> std::sync::MutexGuard<'static, Open> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl MultipartStore for Memory {
    fn limits(&self) -> MultipartLimits {
        MultipartLimits { least: 1, multiple: 1, max_parts: 10_000, is_ordered: false, whole: Algorithm::Crc32c }
    }

    async fn create(&self, _key: &Key, _options: &PutOptions, _deadline: Deadline) -> Result<UploadId> {
        let id = format!("{:032x}", rand::random::<u128>());
        open_uploads().insert(id.clone(), BTreeMap::new());
        Ok(UploadId(id))
    }

    async fn list_parts(&self, key: &Key, id: &UploadId, parts: &[Part], _deadline: Deadline) -> Result<Vec<Part>> {
        let open = open_uploads();
        let held = open.get(&id.0).ok_or_else(|| Error::NotFound { place: self.place(key) })?;
        let is_held = |part: &&Part| held.get(&part.number).is_some_and(|(have, _)| have == *part);
        Ok(parts.iter().filter(is_held).cloned().collect())
    }

    async fn put_part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        _deadline: Deadline,
    ) -> Result<Part> {
        let size = bytes.iter().map(|bytes| bytes.len() as u64).sum();
        let crc32c = crate::checksum::crc32c_of(&bytes);
        let part = Part { number: at.number, offset: at.offset, size, crc32c, tag: format!("{crc32c:08x}") };
        let mut open = open_uploads();
        let held = open.get_mut(&id.0).ok_or_else(|| Error::NotFound { place: self.place(key) })?;
        held.insert(at.number, (part.clone(), bytes));
        Ok(part)
    }

    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta> {
        let gone = || Error::NotFound { place: self.place(key) };
        let bytes = {
            let open = open_uploads();
            let held = open.get(&id.0).ok_or_else(gone)?;
            let bytes: Option<Vec<_>> = parts
                .iter()
                .map(|part| held.get(&part.number).filter(|(have, _)| have == part).map(|(_, bytes)| bytes.clone()))
                .collect();
            bytes.ok_or_else(gone)?.concat()
        };
        let checksum = whole.iter().find(|digest| digest.algorithm == Algorithm::Crc32c).cloned();
        let meta = self.put(key, bytes, &PutOptions { checksum, ..options.clone() }, deadline).await?;
        open_uploads().remove(&id.0);
        Ok(meta)
    }

    async fn abort(&self, _key: &Key, id: &UploadId, _deadline: Deadline) -> Result<()> {
        open_uploads().remove(&id.0);
        Ok(())
    }
}
