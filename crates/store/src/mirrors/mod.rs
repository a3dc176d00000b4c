// SPDX-License-Identifier: Apache-2.0
//! Mirrors: combines several stores that contain the same dataset. Listings, versions and writes always use the first
//! store. Reads are spread over all stores.
//!
//! This module chooses a mirror for each read and verifies the result. An object on a mirror must have the same size as
//! on the first store, and the same digest if both stores return a digest. The object is then read at the version that
//! was compared. If an object on a mirror differs, the mirror is reported and permanently excluded. If a mirror does
//! not respond, it is skipped for a while. This module does not retry: `Retry` resumes after the last byte on another
//! mirror.

mod replica;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use penstock_types::{ByteRange, Deadline, Digest, Error, Key, Result, Url};

pub use self::replica::MirrorReport;
use self::replica::Replica;
use crate::local::plan;
use crate::{
    Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, Opened, PutOptions, Store, Version, checksum,
};

/// Maximum number of objects whose comparison is cached. `stage` reads several hundred objects at a time.
const REMEMBERED: usize = 65_536;

/// Store that reads from several mirrors of a dataset. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mirrors {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// All mirrors. The first one is the store of the dataset itself.
    members: Vec<Replica>,
    agreed: Mutex<HashMap<Key, Agreed>>,
    /// Sizes of objects by a hash of key and version (16 bytes per object). The sizes come from listings of the first
    /// store or from a manifest.
    sizes: Mutex<HashMap<u64, u64>>,
    hasher: RandomState,
}

/// Metadata of an object on the first store. The object on the other mirrors must have the same metadata.
#[derive(Debug, Clone, Default)]
struct Agreed {
    /// Version on the first store.
    version: Option<Version>,
    size: u64,
    digests: Vec<Digest>,
    /// Index of the mirror that served the object. If the bytes are damaged, this mirror is excluded.
    member: Option<usize>,
    /// For each mirror, the version of the object that was compared with the first store.
    pins: HashMap<usize, Option<Version>>,
}

impl Mirrors {
    /// Combines stores that were opened without retries. The first store is authoritative, and all keys are its keys.
    pub fn new(members: Vec<Opened>) -> Result<Self> {
        if members.is_empty() {
            return Err(Error::bug("mirrors without a store"));
        }
        let shared = Shared {
            members: members.into_iter().map(Replica::new).collect(),
            agreed: Mutex::default(),
            sizes: Mutex::default(),
            hasher: RandomState::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the read statistics of each mirror, in the order of the mirrors.
    pub fn report(&self) -> Vec<MirrorReport> {
        self.shared.members.iter().map(Replica::report).collect()
    }

    /// Records the size of an object from a manifest. While the first store is unreachable, objects on mirrors are
    /// compared with this size.
    pub fn know(&self, key: &Key, version: Option<&Version>, size: u64) {
        let at = self.shared.hash(key, version);
        lock(&self.shared.sizes).insert(at, size);
    }

    /// Reports that an object was read completely but its content is wrong. Excludes the mirror that served the object,
    /// unless that mirror is the first store.
    pub fn damaged(&self, key: &Key) {
        let member = lock(&self.shared.agreed).remove(key).and_then(|agreed| agreed.member);
        if let Some(member) = member {
            self.shared.members[member].leave_out_unless_first(member, format!("the content of `{key}` is wrong"));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn first(&self) -> &Replica {
        &self.members[0]
    }

    fn hash(&self, key: &Key, version: Option<&Version>) -> u64 {
        self.hasher.hash_one((key, version))
    }

    /// Returns the metadata that the object has on the first store at this version. The metadata are cached, so that
    /// one read requests them only once.
    async fn agreed(&self, object: &ObjectRef, deadline: Deadline) -> Result<Agreed> {
        if let Some(agreed) = lock(&self.agreed).get(&object.key)
            && object.version.is_some()
            && agreed.version == object.version
        {
            return Ok(agreed.clone());
        }
        let answer = match self.first().rests() {
            true => Err(self.first().away()),
            false => {
                let answer = self.first().store.head(&object.key, deadline).await;
                answer.inspect_err(|error| self.first().rest_if_away(error, deadline))
            }
        };
        let agreed = match answer {
            Ok(meta) => {
                if object.version.is_some() && meta.version != object.version {
                    return Err(Error::Changed {
                        place: crate::place(self.first().store.root(), &object.key),
                        want: object.version.as_ref().map(ToString::to_string).unwrap_or_default(),
                        have: meta.version.map_or_else(|| "another".to_owned(), |version| version.0),
                    });
                }
                Agreed { version: meta.version, size: meta.size, digests: meta.digests, ..Agreed::default() }
            }
            Err(error) if error.retryable() && !deadline.passed() => {
                let at = self.hash(&object.key, object.version.as_ref());
                let size = lock(&self.sizes).get(&at).copied().ok_or(error)?;
                Agreed { version: object.version.clone(), size, ..Agreed::default() }
            }
            Err(error) => return Err(error),
        };
        self.remember(&object.key, agreed.clone());
        Ok(agreed)
    }

    fn remember(&self, key: &Key, agreed: Agreed) {
        let mut all = lock(&self.agreed);
        if all.len() >= REMEMBERED {
            all.clear(); // objects that are still being read are compared again
        }
        all.insert(key.clone(), agreed);
    }

    fn with<T>(&self, key: &Key, change: impl FnOnce(&mut Agreed) -> T) -> T {
        change(lock(&self.agreed).entry(key.clone()).or_default())
    }

    /// Chooses a mirror. Prefers the mirror that already reads the object. Otherwise, chooses randomly, weighted by
    /// rate and load.
    fn choose(&self, reader: Option<usize>, tried: &[bool]) -> Option<usize> {
        let may = |at: &usize| !tried[*at] && !self.members[*at].is_left_out();
        let ready = |at: &usize| may(at) && !self.members[*at].rests();
        if let Some(reader) = reader.filter(ready) {
            return Some(reader);
        }
        let mut open: Vec<usize> = (0..self.members.len()).filter(ready).collect();
        if open.is_empty() {
            // If all mirrors are paused, choose among all mirrors that are not excluded.
            open = (0..self.members.len()).filter(may).collect();
        }
        let fastest = open.iter().map(|&at| self.members[at].rate()).fold(0.0, f64::max);
        let weights: Vec<f64> = open.iter().map(|&at| self.members[at].weight(fastest)).collect();
        let mut point = rand::random::<f64>() * weights.iter().sum::<f64>();
        for (&at, weight) in open.iter().zip(&weights) {
            point -= weight;
            if point <= 0.0 {
                return Some(at);
            }
        }
        open.last().copied()
    }

    /// Reads from one mirror, and compares the metadata of the object with the metadata on the first store.
    async fn ask(&self, at: usize, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let member = &self.members[at];
        if at == 0 {
            let started = member.begin();
            let got = member.store.get_ranges(object, ranges, deadline).await?;
            return Ok(GetResult { meta: got.meta, chunks: started.watched(got.chunks, None) });
        }
        let agreed = self.agreed(object, deadline).await?;
        // Check the ranges before any request: a range beyond the end is an error of the caller, not of the mirror.
        plan(ranges, agreed.size, &crate::place(self.first().store.root(), &object.key))?;
        let first = &self.first().prefix;
        let key = member.key_of(first, &object.key).ok_or_else(|| Error::NotFound { place: member.url.clone() })?;
        let pin = agreed.pins.get(&at).cloned().flatten();
        let started = member.begin();
        let mut got = member.store.get_ranges(&ObjectRef { key: key.clone(), version: pin }, ranges, deadline).await?;
        let place = crate::place(member.store.root(), &key);
        differs(&agreed, &got.meta).map_or(Ok(()), |problem| Err(Error::corrupt(&place, problem)))?;
        self.with(&object.key, |known| {
            known.pins.insert(at, got.meta.version.clone());
        });
        // Verify the bytes of the mirror with the digest of the first store, even if the mirror returns no digest.
        let mut digests = agreed.digests.clone();
        digests.extend(got.meta.digests.drain(..).filter(|digest| !agreed.digests.contains(digest)));
        let chunks = match (ranges, checksum::cheapest(&digests)) {
            ([range], Some(digest)) if range.is_whole() => checksum::verified(got.chunks, digest, place),
            _ => got.chunks,
        };
        let meta = Meta { key: object.key.clone(), version: agreed.version, digests, ..got.meta };
        Ok(GetResult { meta, chunks: started.watched(chunks, Some(object.key.clone())) })
    }
}

/// Returns how the metadata of an object differ from those on the first store. Returns `None` if they do not differ.
fn differs(agreed: &Agreed, meta: &Meta) -> Option<String> {
    if meta.size != agreed.size {
        return Some(format!("has {} bytes (expected {})", meta.size, agreed.size));
    }
    let pairs = agreed.digests.iter().flat_map(|want| meta.digests.iter().map(move |have| (want, have)));
    pairs
        .filter(|(want, have)| want.algorithm == have.algorithm)
        .find(|(want, have)| want != have)
        .map(|(want, have)| format!("has {have} (expected {want})"))
}

#[async_trait]
impl Store for Mirrors {
    fn root(&self) -> &Url {
        self.shared.first().store.root()
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.first().store.capabilities()
    }

    /// Lists the first store, which defines the content of the dataset.
    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        let list = self.shared.first().store.list(prefix, after, deadline);
        list.inspect_ok(|meta| self.know(&meta.key, meta.version.as_ref(), meta.size)).boxed()
    }

    /// Requests the metadata from the first store. While the first store is unreachable, returns the metadata of a
    /// mirror without a version.
    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let shared = &self.shared;
        let mut error = match shared.first().rests() {
            true => shared.first().away(),
            false => match shared.first().store.head(key, deadline).await {
                Err(error) if error.retryable() && !deadline.passed() && shared.members.len() > 1 => {
                    shared.first().rest(&error);
                    error
                }
                result => return result,
            },
        };
        for member in shared.members[1..].iter().filter(|member| !member.is_left_out() && !member.rests()) {
            let Some(there) = member.key_of(&shared.first().prefix, key) else { continue };
            match member.store.head(&there, deadline).await {
                Ok(meta) => return Ok(Meta { key: key.clone(), version: None, ..meta }),
                Err(found) if found.retryable() => member.rest(&found),
                Err(found @ Error::NotFound { .. }) => error = found,
                Err(found) => return Err(found),
            }
        }
        Err(error)
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let shared = &self.shared;
        let mut tried = vec![false; shared.members.len()];
        let reader = lock(&shared.agreed).get(&object.key).and_then(|agreed| agreed.member);
        let mut last: Option<Error> = None;
        while let Some(at) = shared.choose(reader, &tried) {
            tried[at] = true;
            let error = match shared.ask(at, object, ranges, deadline).await {
                Ok(got) => {
                    if shared.members.len() > 1 && object.version.is_some() {
                        shared.with(&object.key, |known| {
                            known.member = Some(at);
                            if known.version.is_none() {
                                (known.version, known.size) = (got.meta.version.clone(), got.meta.size);
                                known.digests = got.meta.digests.clone();
                            }
                        });
                    }
                    return Ok(got);
                }
                Err(error) => error,
            };
            if deadline.passed() {
                return Err(error);
            }
            match (&error, at) {
                (
                    Error::Throttled { .. } | Error::Unreachable { .. } | Error::Server { .. } | Error::Deadline { .. },
                    _,
                ) => {
                    shared.members[at].rest(&error);
                }
                (_, 0) => return Err(error),
                (Error::Corrupt { place, .. }, _) if place.starts_with(&shared.members[at].root()) => {
                    shared.members[at].leave_out(error.to_string());
                }
                (Error::Denied { .. } | Error::Config { .. }, _) => shared.members[at].leave_out(error.to_string()),
                // The object was replaced during the read, so its new version must be compared again.
                (Error::Changed { .. }, _)
                    if lock(&shared.agreed).get(&object.key).is_some_and(|a| a.pins.contains_key(&at)) =>
                {
                    shared.with(&object.key, |known| known.pins.remove(&at));
                    shared.members[at].fail(&error);
                }
                // This mirror does not have the object; try another mirror.
                (Error::NotFound { .. }, _) => shared.members[at].fail(&error),
                _ => return Err(error),
            }
            // An error of the first store takes precedence over the errors of the other mirrors.
            if last.is_none() || at == 0 {
                last = Some(error);
            }
        }
        Err(last.unwrap_or_else(|| shared.first().away()))
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        lock(&self.shared.agreed).remove(key);
        self.shared.first().store.put(key, parts, options, deadline).await
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        self.shared.first().store.multipart()
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        lock(&self.shared.agreed).retain(|key, _| !keys.contains(key));
        self.shared.first().store.delete(keys, deadline).await
    }
}
