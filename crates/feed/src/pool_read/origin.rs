// SPDX-License-Identifier: Apache-2.0
//! Origin of a pool: reads a lost object from the source of the pool's data, in the form that the object had in the
//! pool.

use std::collections::HashMap;

use bytes::Bytes;
use penstock_codec::{Codec, decompress_into};
use penstock_store::{GetResult, ObjectRef, Opened, Version, read_whole};
use penstock_types::{ByteRange, Deadline, Error, Key, Result, Url, with_separators};
use tokio::sync::OnceCell;

use super::ObjectState;
use penstock_dataset::detect_codec::detect;
use penstock_dataset::manifest::{Entry, index};

#[derive(Debug)]
pub(super) struct OriginStore {
    url: Url,
    opened: Opened,
    /// Folder of the pool to which keys are relative.
    base: Key,
    /// Origin objects, by each name that they may have in the pool. The origin is listed when the first object is lost.
    listed: OnceCell<HashMap<Vec<u8>, Entry>>,
}

impl OriginStore {
    pub fn new(url: &Url, opened: Opened, base: Key) -> Self {
        Self { url: url.as_folder(), opened, base, listed: OnceCell::new() }
    }

    /// Returns the origin object for a pool's object. If the pool's listing records a version, returns an error if the
    /// origin has another version.
    async fn entry(&self, key: &Key, known: &ObjectState, deadline: Deadline) -> Result<&Entry> {
        let lists = || async {
            let listed = index(&*self.opened.store, &self.opened.prefix, &self.url, deadline).await?;
            // An object with exactly this name takes precedence over an object that has this name only without its
            // codec suffix.
            let names = |strips: bool| listed.objects.iter().map(move |entry| (strips, entry));
            let named = names(true).chain(names(false)).map(|(strips, entry)| {
                let name = if strips { entry.logical_name() } else { entry.key.as_bytes() };
                (name.to_vec(), entry.clone())
            });
            Ok::<_, Error>(named.collect::<HashMap<_, _>>())
        };
        let listed = self.listed.get_or_try_init(lists).await?;
        let name = self.name(key);
        let place = || format!("{}{name}", self.url);
        let entry = listed.get(name.as_bytes()).ok_or_else(|| Error::NotFound { place: place() })?;
        match (&known.made_from, &entry.version) {
            (Some(Version(want)), Some(Version(have))) if want != have => {
                Err(Error::Changed { place: place(), want: want.clone(), have: have.clone() })
            }
            _ => Ok(entry),
        }
    }

    /// Key of the object, relative to the pool's folder.
    fn name(&self, key: &Key) -> Key {
        key.strip_prefix(&self.base).unwrap_or_else(|| key.clone())
    }

    fn reference(&self, entry: &Entry) -> ObjectRef {
        ObjectRef { key: self.opened.prefix.as_folder().join(entry.key.as_bytes()), version: entry.version.clone() }
    }

    /// Reads ranges of a pool's object from the origin object with the same name. Returns `None` if the sizes of the
    /// two objects differ, because the origin object may have to be decompressed.
    pub async fn ranges(
        &self,
        key: &Key,
        known: &ObjectState,
        ranges: &[ByteRange],
        deadline: Deadline,
    ) -> Result<Option<GetResult>> {
        let entry = self.entry(key, known, deadline).await?;
        match entry.size == known.size {
            true => self.opened.store.get_ranges(&self.reference(entry), ranges, deadline).await.map(Some),
            false => Ok(None),
        }
    }

    /// Fetches the whole object that had this key in the pool.
    pub async fn fetch(&self, key: &Key, known: &ObjectState, deadline: Deadline) -> Result<Bytes> {
        let (entry, size) = (self.entry(key, known, deadline).await?, known.size);
        let (meta, stored) =
            read_whole(&*self.opened.store, &self.reference(entry), Some(entry.size), deadline).await?;
        let place = format!("{}{}", self.url, entry.key);
        // If the listing does not show a codec, the codec is detected from the response and the bytes, as in the stage.
        let codec = match entry.codec_as_read() {
            Codec::None => detect(self.name(key).as_bytes(), meta.encoding.as_deref(), &stored)
                .map_or(Codec::None, |(codec, _)| codec),
            codec => codec,
        };
        let bytes = match stored.len() as u64 == size || codec == Codec::None {
            true => stored,
            false => inflated(codec, stored, size, place.clone()).await?,
        };
        match bytes.len() as u64 == size {
            true => Ok(bytes),
            false => {
                let have = with_separators(bytes.len() as u64);
                Err(Error::corrupt(place, format!("returned {have} bytes, but the pool had {}", with_separators(size))))
            }
        }
    }
}

/// Decompresses an object on a blocking thread, so that it does not delay the runtime's threads.
async fn inflated(codec: Codec, stored: Bytes, size: u64, place: String) -> Result<Bytes> {
    let work = move || {
        let mut out = Vec::new();
        decompress_into(codec, &stored, &mut out, size, &place)?;
        Ok(Bytes::from(out))
    };
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::bug(format!("decompressing an object of the origin: {error}")))?
}
