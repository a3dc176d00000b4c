// SPDX-License-Identifier: Apache-2.0
//! Reads objects of a pool. The sources are tried in this order: the node's own files, the engine's protocol, and the
//! pool's origin bucket.
//!
//! Owns the choice of the source, and the repair of lost objects. An object that the pool has lost is fetched from the
//! origin and put back into the pool. If the stage had decompressed the object, it is decompressed again before that.
//! Independent of the engine: the caller passes the locations of objects ([`Placements`]). A read returns exactly the
//! size in the pool's listing, or an error.
//!
//! A node that does not respond costs one timeout. For a while after the timeout, the node's objects are read from the
//! origin. One process of the pool, which the object's name determines, is the first to fetch a lost object. The other
//! processes wait a moment for this process to put the object back.

mod health;
mod origin;
mod read;
mod refetch;
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
use self::origin::OriginStore;
use self::read::Read;
use self::refetch::{AT_ONCE, Refetches};
use self::timeout_store::TimeoutStore;
use penstock_dataset::manifest::Manifest;

/// Time that a process waits for each process ahead of it, before it fetches a lost object itself.
const TURN: Duration = Duration::from_millis(500);
/// Maximum number of processes for which a process waits.
const TURNS: u32 = 3;
/// Polling interval while a process waits for a lost object to be put back.
const GLANCE: Duration = Duration::from_millis(100);
/// Maximum number of nodes per pool, and maximum number of processes per node.
const MAX_READERS: u32 = 1 << 15;

/// Locations of a pool's objects, as one node knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placements {
    /// URL of the pool's origin bucket. Without an origin, objects that the pool loses cannot be read.
    #[serde(default)]
    pub bucket: Option<String>,
    /// Location of each object, by its key relative to the dataset's folder. An object without an entry is read through
    /// the engine.
    #[serde(default)]
    pub objects: HashMap<String, Placement>,
    /// Identity of this process. A process without an identity fetches lost objects immediately.
    #[serde(default)]
    pub reader: Option<Reader>,
}

/// Identity of a process that reads from a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reader {
    /// Index of the process's node.
    pub node: u32,
    /// Number of nodes in the pool.
    pub nodes: u32,
    /// Index of the process on its node (local rank).
    pub local: u32,
    /// Number of processes that read on this node.
    pub locals: u32,
}

/// Location of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// Path of a plain file on this node that contains exactly the object's bytes.
    #[serde(default)]
    pub own: Option<PathBuf>,
    /// Indices of the nodes that store a copy. `None` if the engine does not report these nodes.
    #[serde(default)]
    pub nodes: Option<Vec<u32>>,
}

impl Placements {
    /// Parses the JSON. Returns a `Config` error if it is invalid.
    pub fn from_json(text: &str) -> Result<Self> {
        let routes: Self = serde_json::from_str(text).map_err(|error| Error::config("routes", error.to_string()))?;
        match routes.reader {
            Some(Reader { node, nodes, local, locals })
                if node >= nodes || local >= locals || nodes.max(locals) > MAX_READERS =>
            {
                let text = format!(
                    "process {local} of {locals} on node {node} of {nodes} is out of range (numbers start at 0; at most \
                     {MAX_READERS} nodes and {MAX_READERS} processes per node)"
                );
                Err(Error::config("routes", text))
            }
            _ => Ok(routes),
        }
    }

    /// True if this node has the object as a plain file.
    pub fn has_own(&self, key: &Key) -> bool {
        key.as_str().and_then(|key| self.objects.get(key)).is_some_and(|placed| placed.own.is_some())
    }

    /// Returns the placements as JSON.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::bug(format!("routes cannot be serialised: {error}")))
    }
}

/// Store that reads the objects of a pool (see the module documentation). Cheap to clone.
#[derive(Debug, Clone)]
pub struct PoolStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    pool: Arc<dyn Store>,
    known: Arc<HashMap<Key, ObjectState>>,
    /// Store of this node's files, by absolute path.
    files: MeteredStore,
    bucket: Option<OriginStore>,
    reader: Option<Reader>,
    health: Health,
    refetches: Refetches,
    metrics: Arc<Metrics>,
}

/// Known properties of an object.
#[derive(Debug)]
struct ObjectState {
    size: u64,
    /// Path of the object's file on this node, relative to the root of the file system.
    own: Option<Key>,
    nodes: Option<Vec<u32>>,
    /// Version of the origin object from which the stage made this object. `None` if the listing does not record it.
    made_from: Option<Version>,
}

impl ObjectState {
    /// Timeout of an engine request for this object. The timeout is longer if the object may have several copies,
    /// because the engine tries one copy after another.
    fn timeout(&self) -> Duration {
        match self.nodes.as_ref().map(Vec::len) {
            Some(0 | 1) => Duration::from_secs(2),
            _ => Duration::from_secs(20),
        }
    }
}

impl PoolStore {
    /// Creates a store for the pool's objects in `manifest`. Their keys are below `pool.prefix`. `governor` limits the
    /// rate of requests to the pool. `routes` contains the locations of the objects. `bucket` is the opened store of
    /// `routes.bucket`, with a rate limit of its own if it needs one.
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
            let known = ObjectState { size: entry.size, own, nodes: placed.nodes.clone(), made_from };
            Some((base.join(entry.key.as_bytes()), known))
        });
        let known = Arc::new(known.collect::<HashMap<_, _>>());
        if bucket.is_some() {
            pool = Arc::new(TimeoutStore { inner: pool, known: known.clone() });
        }
        if let Some(governor) = governor {
            pool = Arc::new(LimitStore::new(pool, governor));
        }
        // With a piece size equal to the largest single request, a read arrives in one chunk and is not copied again.
        let local = Local::new(std::path::Path::new("/"))?.with_reads(reads).with_piece(crate::MAX_AT_ONCE);
        let shared = Shared {
            known,
            pool,
            files: MeteredStore::new(Arc::new(local), metrics.clone()),
            bucket: bucket.map(|(url, opened)| OriginStore::new(&url, opened, base)),
            reader: routes.reader,
            health: Health::default(),
            refetches: Refetches::new(AT_ONCE),
            metrics,
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl Shared {
    /// True if the object is lost: all nodes with a copy have failed, and the object was not put back. A lost object
    /// need not be read from the engine.
    async fn is_lost(&self, object: &ObjectRef, known: &ObjectState, deadline: Deadline) -> bool {
        let key = &object.key;
        if self.bucket.is_none() || !self.health.are_away(known.nodes.as_deref(), known.timeout()) {
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

    /// True if the engine stores another version of the object than `object` states.
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
            // The caller's own deadline has passed, so the engine may be healthy.
            Err(_) if deadline.passed() => false,
            Err(_) => {
                self.health.engine_failed();
                false
            }
        }
    }

    /// Index of this process in the order in which the pool's processes fetch a lost object. The order depends on the
    /// object. Nodes that are down are left out.
    fn turn(&self, key: &Key) -> u32 {
        let Some(Reader { node, nodes, local, locals }) = self.reader else { return 0 };
        let draw = |at: u32| xxh3_64_with_seed(key.as_bytes(), at.into());
        let before = (0..nodes).filter(|&other| other != node && !self.health.is_away(other));
        let before = before.filter(|&other| (draw(other), other) < (draw(node), node)).count() as u32;
        // Rotate the order of the node's processes, so that different objects have different first processes.
        let local = (u64::from(local) + draw(node) % u64::from(locals)) % u64::from(locals);
        before + local as u32 * nodes
    }

    /// Waits for another process to put a lost object back. Returns true as soon as one has done so. Returns false
    /// after the time of the processes ahead of this one.
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
        // Reject invalid ranges before any request is sent.
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
