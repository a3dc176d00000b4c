// SPDX-License-Identifier: Apache-2.0
//! Reads in a pool: a node's own files first, then the engine's protocol, then the bucket that the pool was filled from.
//!
//! Owns the choice of the source and the repair: an object that the pool has lost is fetched from the bucket,
//! decompressed if the stage had decompressed it, and put into the pool again. Knows no engine: the caller passes where
//! objects lie ([`Placements`]). A read returns as many bytes as the pool's listing says, or an error. A node that does
//! not answer costs one timeout; after it, the node's objects are read from the bucket for a while. One process of the
//! pool, chosen by the object's name, fetches a lost object first; the others wait a moment for it to put the object back.

mod health;
mod origin;
mod origin_fetch;
mod read;
mod timeout_store;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use penstock_store::{
    AdaptiveLimit, GetResult, LimitStore, Local, LocalReads, Meta, MeteredStore, ObjectRef, Opened, Store, Version,
};
use penstock_types::{ByteRange, Deadline, Error, Key, Metrics, Result, Url, now};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use self::health::Health;
use self::origin::Bucket;
use self::origin_fetch::{AT_ONCE, Refetches};
use self::read::Read;
use self::timeout_store::TimeoutStore;
use penstock_dataset::manifest::Manifest;

/// How long a process waits for each that comes before it in fetching a lost object, and how many it waits for.
const TURN: Duration = Duration::from_millis(500);
const TURNS: u32 = 3;
/// How often it looks meanwhile whether the object is back.
const GLANCE: Duration = Duration::from_millis(100);
/// Nodes of a pool, and processes of a node.
const MAX_READERS: u32 = 1 << 15;

/// Where a pool's objects lie, as one node knows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placements {
    /// The URL that the pool was filled from; without one, what the pool has lost is lost.
    #[serde(default)]
    pub bucket: Option<String>,
    /// By key below the dataset's folder. Of an object that is not here nothing is known: the engine is asked.
    #[serde(default)]
    pub objects: HashMap<String, Placement>,
    /// Who reads here; if it is not known, lost objects are fetched at once.
    #[serde(default)]
    pub reader: Option<Reader>,
}

/// One of a pool's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reader {
    /// Its node's number.
    pub node: u32,
    /// How many nodes the pool has.
    pub nodes: u32,
    /// Its number on the node.
    pub local: u32,
    /// How many processes read there.
    pub locals: u32,
}

/// Where one object lies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// A plain file of this node with exactly the object's bytes.
    #[serde(default)]
    pub own: Option<PathBuf>,
    /// The nodes that hold a copy, by number; none where the engine does not say.
    #[serde(default)]
    pub nodes: Option<Vec<u32>>,
}

impl Placements {
    /// From JSON; `Config` for what is none.
    pub fn from_json(text: &str) -> Result<Self> {
        let routes: Self = serde_json::from_str(text).map_err(|error| Error::config("routes", error.to_string()))?;
        match routes.reader {
            Some(Reader { node, nodes, local, locals })
                if node >= nodes || local >= locals || nodes.max(locals) > MAX_READERS =>
            {
                let text = format!("reader {local} of {locals} on node {node} of {nodes}");
                Err(Error::config("routes", text))
            }
            _ => Ok(routes),
        }
    }

    /// True where this node has the object of `key` in a plain file.
    pub fn has_own(&self, key: &Key) -> bool {
        key.as_str().and_then(|key| self.objects.get(key)).is_some_and(|placed| placed.own.is_some())
    }

    /// As JSON.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::bug(format!("routes do not write: {error}")))
    }
}

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PoolStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<dyn Store>,
    known: Arc<HashMap<Key, Known>>,
    /// Own files, by their absolute paths.
    files: MeteredStore,
    bucket: Option<Bucket>,
    reader: Option<Reader>,
    health: Health,
    refetches: Refetches,
    metrics: Arc<Metrics>,
}

/// State of an object.
#[derive(Debug)]
struct Known {
    size: u64,
    /// Below the file system's root.
    own: Option<Key>,
    nodes: Option<Vec<u32>>,
    /// The version of the bucket's object that it was made from, if the listing has it.
    made_from: Option<Version>,
}

impl Known {
    /// How long an answer of the engine is waited for: copies are asked one after the other.
    fn patience(&self) -> Duration {
        match self.nodes.as_ref().map(Vec::len) {
            Some(0 | 1) => Duration::from_secs(2),
            _ => Duration::from_secs(20),
        }
    }
}

impl PoolStore {
    /// The pool's store, governed by `governor`, behind the ways of `routes`, for the objects of its listing `manifest`,
    /// whose keys are below `pool.prefix`. `bucket` is the opened store of `routes.bucket`, governed where it need be.
    pub fn new(
        pool: Opened,
        governor: Option<Arc<AdaptiveLimit>>,
        manifest: &Manifest,
        routes: &Placements,
        bucket: Option<(Url, Opened)>,
        reads: LocalReads,
        metrics: Arc<Metrics>,
    ) -> Result<Self> {
        let Opened { store: mut pool, prefix: base } = pool;
        let source = manifest.source.as_ref().and_then(|source| source.parse::<Url>().ok());
        let is_source =
            bucket.as_ref().is_some_and(|(url, _)| source.is_some_and(|of| of.as_folder() == url.as_folder()));
        let known = manifest.objects.iter().filter_map(|entry| {
            let placed = routes.objects.get(entry.key.as_str()?)?;
            let own = placed.own.as_ref().map(|path| {
                let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
                Key::new(bytes.strip_prefix(b"/").unwrap_or(bytes).to_vec())
            });
            let made_from = entry.origin.as_ref().filter(|_| is_source).and_then(|origin| origin.version.clone());
            let known = Known { size: entry.size, own, nodes: placed.nodes.clone(), made_from };
            Some((base.join(entry.key.as_bytes()), known))
        });
        let known = Arc::new(known.collect::<HashMap<_, _>>());
        if bucket.is_some() {
            pool = Arc::new(TimeoutStore { inner: pool, known: known.clone() });
        }
        if let Some(governor) = governor {
            pool = Arc::new(LimitStore::new(pool, governor));
        }
        // An own file is asked for as the pool's object is: what comes in one chunk is not copied again.
        let local = Local::new(std::path::Path::new("/"))?.with_reads(reads).with_piece(crate::LARGEST_AT_ONCE);
        let shared = Shared {
            known,
            pool,
            files: MeteredStore::new(Arc::new(local), metrics.clone()),
            bucket: bucket.map(|(url, opened)| Bucket::new(&url, opened, base)),
            reader: routes.reader,
            health: Health::default(),
            refetches: Refetches::new(AT_ONCE),
            metrics,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl Shared {
    /// True when the engine need not be asked: every node that holds the object has failed, and it was not restored.
    async fn is_lost(&self, object: &ObjectRef, known: &Known, deadline: Deadline) -> bool {
        let key = &object.key;
        if self.bucket.is_none() || !self.health.are_away(known.nodes.as_deref(), known.patience()) {
            return false;
        }
        if self.health.is_back(key) {
            return false;
        }
        if self.health.is_engine_away() {
            return true;
        }
        !self.is_put_back(object, deadline).await
    }

    /// True when the engine holds another version of the object than the one that was lost.
    async fn is_put_back(&self, object: &ObjectRef, deadline: Deadline) -> bool {
        let (key, version) = (&object.key, object.version.as_ref());
        match self.pool.head(key, deadline).await {
            Ok(meta) => {
                let is_back = version.is_some() && meta.version.as_ref() != version;
                if is_back {
                    self.health.came_back(key);
                }
                is_back
            }
            Err(Error::NotFound { .. }) => false,
            // The caller's own time is over; the engine may be well.
            Err(_) if deadline.passed() => false,
            Err(_) => {
                self.health.engine_failed();
                false
            }
        }
    }

    /// How many of the pool's processes are to fetch a lost object before this one: those of nodes that are not away, in
    /// an order of the object's own.
    fn turn(&self, key: &Key) -> u32 {
        let Some(Reader { node, nodes, local, locals }) = self.reader else { return 0 };
        let draw = |at: u32| xxh3_64_with_seed(key.as_bytes(), at.into());
        let before = (0..nodes).filter(|&other| other != node && !self.health.is_away(other));
        let before = before.filter(|&other| (draw(other), other) < (draw(node), node)).count() as u32;
        // Of a node's processes another one is first for each object.
        let local = (u64::from(local) + draw(node) % u64::from(locals)) % u64::from(locals);
        before + local as u32 * nodes
    }

    /// True as soon as another process has put a lost object back, in the time that those before this one are given.
    async fn is_healed(&self, object: &ObjectRef, deadline: Deadline) -> bool {
        let wait = TURN * self.turn(&object.key).min(TURNS);
        let until = now() + wait;
        while now() < until && !self.health.is_engine_away() {
            tokio::time::sleep(GLANCE).await;
            if self.is_put_back(object, deadline).await {
                return true;
            }
        }
        false
    }
}

#[async_trait]
impl Store for PoolStore {
    penstock_store::delegate_store!(|this| this.shared.pool; root, capabilities, list, head, put, uploads, delete);

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let Some(known) = self.shared.known.get(&object.key) else {
            return self.shared.pool.get_ranges(object, ranges, deadline).await;
        };
        // Nothing is sent for what cannot be.
        penstock_store::plan(ranges, known.size, &penstock_store::place(self.root(), &object.key))?;
        let meta = Meta {
            key: object.key.clone(),
            size: known.size,
            version: object.version.clone(),
            digests: Vec::new(),
            encoding: None,
            modified_s: None,
        };
        let read = Read::new(self.shared.clone(), object.clone(), known.size, ranges, deadline);
        Ok(GetResult { meta, chunks: read.chunks().boxed() })
    }
}

#[cfg(test)]
mod tests;
