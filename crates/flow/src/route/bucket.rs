// SPDX-License-Identifier: Apache-2.0
//! Where a pool was filled from: the source of an object that the pool has lost, as the pool had it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use penstock_codec::{Codec, inflate_into};
use penstock_store::{ObjectRef, Opened, read_whole};
use penstock_types::{Deadline, Error, Key, Result, Url, grouped};
use tokio::sync::OnceCell;

use crate::manifest::{Entry, index};

/// One object's bytes, for all who wait for them.
pub(super) type Cell = OnceCell<Bytes>;

#[derive(Debug)]
pub(super) struct Bucket {
    url: Url,
    opened: Opened,
    /// The pool's folder, to which keys are relative.
    base: Key,
    /// The objects by the names that they may have in the pool; listed when the first is lost.
    listed: OnceCell<HashMap<Vec<u8>, Entry>>,
    cells: Mutex<HashMap<Key, Weak<Cell>>>,
}

impl Bucket {
    pub fn new(url: Url, opened: Opened, base: Key) -> Self {
        Self { url, opened, base, listed: OnceCell::new(), cells: Mutex::default() }
    }

    /// Where an object's bytes come together; it is forgotten with its last holder.
    pub fn under_way(&self, key: &Key) -> Arc<Cell> {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = cells.get(key).and_then(Weak::upgrade) {
            return cell;
        }
        cells.retain(|_, cell| cell.strong_count() > 0);
        let cell = Arc::new(Cell::new());
        cells.insert(key.clone(), Arc::downgrade(&cell));
        cell
    }

    async fn entry(&self, key: &Key, deadline: Deadline) -> Result<&Entry> {
        let lists = || async {
            let listed = index(&*self.opened.store, &self.opened.prefix, &self.url, deadline).await?;
            // An object under its own name wins over one whose suffix was taken off.
            let names = |strips: bool| listed.objects.iter().map(move |entry| (strips, entry));
            let named = names(true).chain(names(false)).map(|(strips, entry)| {
                let name = if strips { entry.logical_name() } else { entry.key.as_bytes() };
                (name.to_vec(), entry.clone())
            });
            Ok::<_, Error>(named.collect::<HashMap<_, _>>())
        };
        let listed = self.listed.get_or_try_init(lists).await?;
        let name = key.strip_prefix(&self.base).unwrap_or_else(|| key.clone());
        listed.get(name.as_bytes()).ok_or_else(|| Error::NotFound { place: format!("{}{name}", self.url) })
    }

    /// The object of `size` bytes that the pool had under this key.
    pub async fn fetch(&self, key: &Key, size: u64, deadline: Deadline) -> Result<Bytes> {
        let entry = self.entry(key, deadline).await?;
        let folder = match self.opened.prefix.as_bytes() {
            b"" => Key::default(),
            bytes if bytes.ends_with(b"/") => self.opened.prefix.clone(),
            _ => self.opened.prefix.join(b"/"),
        };
        let object = ObjectRef { key: folder.join(entry.key.as_bytes()), version: entry.version.clone() };
        let (_, stored) = read_whole(&*self.opened.store, &object, Some(entry.size), deadline).await?;
        let place = format!("{}{}", self.url.as_folder(), entry.key);
        let codec = match (entry.codec, entry.encoding.as_deref()) {
            (Codec::None, Some("gzip")) => Codec::Gzip,
            (codec, _) => codec,
        };
        let bytes = match stored.len() as u64 == size || codec == Codec::None {
            true => stored,
            false => inflated(codec, stored, size, place.clone()).await?,
        };
        match bytes.len() as u64 == size {
            true => Ok(bytes),
            false => {
                let have = grouped(bytes.len() as u64);
                Err(Error::corrupt(place, format!("gives {have} bytes where the pool had {}", grouped(size))))
            }
        }
    }
}

/// Off the threads that move bytes.
async fn inflated(codec: Codec, stored: Bytes, size: u64, place: String) -> Result<Bytes> {
    let work = move || {
        let mut out = Vec::new();
        inflate_into(codec, &stored, &mut out, size, &place)?;
        Ok(Bytes::from(out))
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::bug(format!("inflating: {error}")))?
}
