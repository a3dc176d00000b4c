// SPDX-License-Identifier: Apache-2.0
//! Tests that Penstock does not change other programs' files, links and locks. The tests plant such entries wherever
//! the core removes or truncates files, or renames over an existing name. A stage, a repair, an upload and the node
//! cache must leave all of them unchanged.

#![allow(clippy::disallowed_methods, reason = "tests write and remove files of their own")]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use bytes::Bytes;
use penstock_dataset::KeyFilter;
use penstock_feed::cache::{AccessPlan, CachedRange, Extent, NodeCache, Transcode};
use penstock_stage::{PART_BYTES, StageJob, StageOptions, StageRequest, VerifyJob, VerifyRequest};
use penstock_store::{Memory, ObjectRef, PutOptions, Rates, Store, StoreSettings, read_whole};
use penstock_types::{ByteRange, Deadline, Key, Metrics};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::test_runner::RngSeed;
use rustix::fs::{FlockOperation, flock};
use tokio::runtime::Runtime;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

const KEYS: [&str; 3] = ["a.bin", "d/b.bin", "large.bin"];
/// Size of an object that needs more than one part.
const LARGE: usize = (PART_BYTES + 4096) as usize;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// A file of another program.
    File,
    /// A symbolic link to a file outside the destination.
    Link,
    /// A second hard link to a file outside the destination.
    HardLink,
    /// A file that another process has locked.
    Held,
    /// A symbolic link to a folder outside the destination.
    FolderLink,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Stage { overwrite: bool },
    Repair,
    Upload,
}

/// State of a file, without following links: inode, size, mtime and a hash of the content.
type Facts = (u64, u64, i64, Option<u64>);

fn facts(path: &Path) -> Option<Facts> {
    let stat = path.symlink_metadata().ok()?;
    let content = if stat.is_file() { std::fs::read(path).ok().map(|bytes| xxh3_64(&bytes)) } else { None };
    Some((stat.ino(), stat.size(), stat.mtime(), content))
}

fn tree(folder: &Path) -> BTreeMap<PathBuf, Facts> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(tree(&path));
        } else {
            found.extend(facts(&path).map(|facts| (path, facts)));
        }
    }
    found
}

/// A folder that no action may write to, and the files and links planted elsewhere.
struct Strangers {
    outside: PathBuf,
    before: BTreeMap<PathBuf, Facts>,
    planted: Vec<(PathBuf, Kind, Option<Facts>)>,
    held: Vec<File>,
}

impl Strangers {
    fn new(base: &Path, names: &[String]) -> Self {
        let outside = base.join("outside");
        std::fs::create_dir_all(outside.join("folder")).unwrap();
        std::fs::write(outside.join("victim"), "kept").unwrap();
        for name in names {
            std::fs::write(outside.join("folder").join(name), "kept too").unwrap();
        }
        Self { before: tree(&outside), outside, planted: Vec::new(), held: Vec::new() }
    }

    /// Plants an entry, unless the path already exists or leads through a link.
    fn plant(&mut self, path: &Path, kind: Kind) {
        let Some(parent) = path.parent() else { return };
        let is_behind_link = parent.ancestors().any(Path::is_symlink);
        if is_behind_link || path.symlink_metadata().is_ok() || std::fs::create_dir_all(parent).is_err() {
            return;
        }
        let victim = self.outside.join("victim");
        match kind {
            Kind::File => std::fs::write(path, "theirs").unwrap(),
            Kind::Link => symlink(&victim, path).unwrap(),
            Kind::HardLink => std::fs::hard_link(&victim, path).unwrap(),
            Kind::FolderLink => symlink(self.outside.join("folder"), path).unwrap(),
            Kind::Held => {
                std::fs::write(path, "theirs").unwrap();
                let file = File::open(path).unwrap();
                flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
                self.held.push(file);
            }
        }
        self.planted.push((path.to_owned(), kind, facts(path)));
    }

    /// Returns an error if an entry of the outside folder has changed, or if a planted entry for which `is_kept`
    /// returns true has changed.
    fn check(&self, is_kept: impl Fn(&Path, Kind) -> bool) -> Result<(), TestCaseError> {
        let now = tree(&self.outside);
        let all = self.before.keys().chain(now.keys());
        let changed: Vec<_> = all.filter(|path| self.before.get(*path) != now.get(*path)).collect();
        prop_assert!(changed.is_empty(), "changed outside: {:?}", changed);
        for (path, kind, before) in &self.planted {
            if is_kept(path, *kind) {
                prop_assert_eq!(before, &facts(path), "{:?} at {}", kind, path.display());
            }
        }
        Ok(())
    }
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// A fixed seed, so that CI runs the same cases every time.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 24, max_shrink_iters: 20, rng_seed: RngSeed::Fixed(19), ..ProptestConfig::default() }
}

fn fill_source(runtime: &Runtime) {
    static FILLED: Once = Once::new();
    FILLED.call_once(|| {
        let store = Memory::named("strangers");
        for (key, len) in KEYS.iter().zip([10, 70_000, LARGE]) {
            let (key, options) = (Key::from(*key), PutOptions::default());
            let put = store.put(&key, vec![Bytes::from(noise(len))], &options, Deadline::NEVER);
            runtime.block_on(put).unwrap();
        }
    });
}

fn request(destination: &Path, overwrite: bool, remote: Option<&str>) -> StageRequest {
    StageRequest {
        source: "memory://strangers/".parse().unwrap(),
        settings: StoreSettings::default(),
        mirrors: Vec::new(),
        destination: destination.to_owned(),
        remote: remote.map(|url| url.parse().unwrap()),
        manifest: None,
        select: KeyFilter::default(),
        rates: Rates::default(),
        options: StageOptions { overwrite, ..StageOptions::default() },
        dry_run: false,
        deadline: None,
        launch: None,
        is_awaited: false,
        leader_rank: 0,
        cores: 2,
    }
}

fn perform(runtime: &Runtime, action: Action, base: &Path) {
    let limit = Duration::from_secs(600);
    // The results are ignored: other tests check which actions return errors.
    match action {
        Action::Stage { overwrite } => {
            let job = StageJob::start(request(&base.join("dst"), overwrite, None), runtime.handle());
            let _ = job.wait(limit).expect("it ends");
        }
        Action::Upload => {
            let keys = KEYS.map(Key::from);
            runtime.block_on(Memory::named("strangers-to").delete(&keys, Deadline::NEVER)).unwrap();
            let job =
                StageJob::start(request(&base.join("state"), false, Some("memory://strangers-to/")), runtime.handle());
            let _ = job.wait(limit).expect("it ends");
        }
        Action::Repair => {
            let request = VerifyRequest {
                select: KeyFilter::default(),
                destination: base.join("dst"),
                remote: None,
                quick: false,
                repair: true,
                settings: StoreSettings::default(),
                deadline: None,
                cores: 2,
                concurrency: 8,
                memory: 1 << 30,
            };
            let _ = VerifyJob::start(request, runtime.handle()).wait(limit).expect("it ends");
        }
    }
}

/// Every path that a stage may write to.
fn places() -> Vec<String> {
    let state =
        ["journal-0-of-1.jsonl", "status-0-of-1.json", "status-0-of-1.json.tmp", "lock-0", "launch", "residue.json"];
    let hashes = KEYS.iter().map(|key| format!("{:032x}", xxh3_128(key.as_bytes())));
    let parts = hashes.flat_map(|hash| ["tmp", "part", "done", "up"].map(|kind| format!("stage/parts/{hash}.{kind}")));
    let own = ["manifest.json", "manifest.json.tmp", "manifest.parquet", "stage/parts/notes.txt", "stage/parts/x.tmp"];
    let own = own.map(str::to_owned).into_iter().chain(state.map(|name| format!("stage/{name}"))).chain(parts);
    own.map(|name| format!(".penstock/{name}")).chain(KEYS.map(str::to_owned)).collect()
}

fn plants() -> impl Strategy<Value = Vec<(String, Kind)>> {
    let kinds = select(vec![Kind::File, Kind::Link, Kind::HardLink, Kind::Held]);
    let files = (subsequence(places(), 1..6), prop::collection::vec(kinds, 6));
    let folders = subsequence(vec!["d", ".penstock", ".penstock/stage", ".penstock/stage/parts"], 0..2);
    (files, folders).prop_map(|((places, kinds), folders)| {
        let folders = folders.into_iter().map(|folder| (folder.to_owned(), Kind::FolderLink));
        folders.chain(places.into_iter().zip(kinds)).collect()
    })
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let stage = any::<bool>().prop_map(|overwrite| Action::Stage { overwrite });
    prop::collection::vec(prop_oneof![3 => stage, 1 => Just(Action::Repair), 1 => Just(Action::Upload)], 1..4)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn prop_stage_touches_no_stranger(first in plants(), later in plants(), actions in actions(), split in any::<Index>()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        fill_source(&runtime);
        let base = tempfile::tempdir().unwrap();
        // An upload stores its state in a separate folder.
        let roots = ["dst", "state"].map(|name| base.path().join(name));
        let names: Vec<String> = places().iter().filter_map(|place| Some(place.rsplit('/').next()?.to_owned())).collect();
        let mut strangers = Strangers::new(base.path(), &names);
        let plant = |strangers: &mut Strangers, plants: &[(String, Kind)]| {
            for (place, kind) in plants {
                // An action that replaces a record waits for the lock on its temporary file, because the lock is only
                // held for one small write. A locked file there would block the test.
                let kind = if place.ends_with(".json.tmp") && *kind == Kind::Held { Kind::File } else { *kind };
                roots.iter().for_each(|root| strangers.plant(&root.join(place), kind));
            }
        };
        plant(&mut strangers, &first);
        let split = split.index(actions.len() + 1);
        let mut overwrites = false;
        for (at, action) in actions.iter().enumerate() {
            if at == split {
                plant(&mut strangers, &later);
            }
            overwrites |= matches!(action, Action::Stage { overwrite: true });
            perform(&runtime, *action, base.path());
            strangers.check(|path, kind| match path.parent() {
                // A plain file with the name of a temporary file counts as Penstock's, unless another process has
                // locked it. The list of an object's parts has no lock of its own; the lock of the data file covers it.
                Some(folder) if folder.ends_with(".penstock/stage/parts") => {
                    let is_list = path.extension().is_some_and(|kind| kind == "done");
                    let is_ours = kind == Kind::File || kind == Kind::Held && is_list;
                    !is_ours || path.ends_with("notes.txt") || path.ends_with("x.tmp")
                }
                // In our own folder, an entry with one of our names may be replaced by a rename, but never written to.
                _ if roots.iter().any(|root| path.starts_with(root.join(".penstock"))) => kind == Kind::FolderLink,
                _ => kind == Kind::FolderLink || !overwrites,
            })?;
        }
    }
}

/// An access plan in which every object is read once more, later objects first.
#[derive(Debug)]
struct Known(BTreeMap<Key, ObjectRef>);

impl AccessPlan for Known {
    fn now(&self) -> u64 {
        0
    }

    fn next_use(&self, what: &Extent) -> u64 {
        self.0.keys().rev().position(|key| *key == what.key).map_or(u64::MAX, |at| at as u64)
    }

    fn keeps(&self, _: &Key, _: &[ByteRange]) -> Option<CachedRange> {
        Some(CachedRange { range: ByteRange::WHOLE, size: 50_000 })
    }

    fn stretches(&self) -> Box<dyn Iterator<Item = (ObjectRef, ByteRange)> + '_> {
        Box::new(self.0.values().map(|object| (object.clone(), ByteRange::WHOLE)))
    }
}

const OBJECTS: usize = 8;

/// Reads all objects through a cache that has space for three of them.
async fn read_all(store: &Arc<dyn Store>, known: &BTreeMap<Key, ObjectRef>, folder: &Path) {
    let (future, metrics) = (Arc::new(Known(known.clone())), Arc::new(Metrics::default()));
    let Ok(cache) = NodeCache::new(store.clone(), folder, 160_000, future, metrics, Transcode::Never) else { return };
    for object in known.values() {
        // If another process has locked the part of an object, the read waits until its deadline and fails.
        if let Ok((_, bytes)) = read_whole(&cache, object, None, Deadline::within(Duration::from_millis(50))).await {
            assert!(bytes == noise(50_000));
        }
    }
}

async fn cached_objects() -> (Arc<dyn Store>, BTreeMap<Key, ObjectRef>) {
    let store: Arc<dyn Store> = Arc::new(Memory::named("strangers-cached"));
    let mut known = BTreeMap::new();
    for at in 0..OBJECTS {
        let key = Key::from(format!("o{at}").as_str());
        let body = vec![Bytes::from(noise(50_000))];
        let meta = store.put(&key, body, &PutOptions::default(), Deadline::NEVER).await.unwrap();
        known.insert(key.clone(), ObjectRef { key, version: meta.version });
    }
    (store, known)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn prop_node_cache_touches_no_stranger(
        plants in prop::collection::vec((any::<Index>(), select(vec![Kind::File, Kind::Link, Kind::HardLink, Kind::Held])), 1..8),
        folder_link in prop::option::of(select(vec!["", "parts", "objects"])),
        is_used_before in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let base = tempfile::tempdir().unwrap();
        let (store, known) = runtime.block_on(cached_objects());
        // Fill a scratch cache with all objects, to find the names of the entries.
        let scratch = base.path().join("scratch");
        runtime.block_on(async {
            let future = Arc::new(Known(known.clone()));
            let cache =
                NodeCache::new(store.clone(), &scratch, 1 << 30, future, Arc::default(), Transcode::Never).unwrap();
            for object in known.values() {
                read_whole(&cache, object, None, Deadline::NEVER).await.unwrap();
            }
        });
        let own = scratch.join("penstock-cache-1");
        let entries: Vec<PathBuf> =
            tree(&own.join("objects")).into_keys().map(|path| path.strip_prefix(&own).unwrap().to_owned()).collect();
        prop_assert_eq!(entries.len(), OBJECTS);
        let hex: Vec<String> =
            entries.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
        let mut places: Vec<PathBuf> = hex.iter().map(|name| Path::new("parts").join(name)).collect();
        places.extend(entries.iter().cloned());
        places.extend(["notes.txt", "parts/notes.txt", "objects/notes.txt", "objects/00/notes.txt", "ledger", "users"].map(PathBuf::from));

        let folder = base.path().join("cache");
        let place = folder.join("penstock-cache-1");
        let mut strangers = Strangers::new(base.path(), &hex);
        if is_used_before {
            runtime.block_on(read_all(&store, &known, &folder));
        }
        if let Some(link) = folder_link {
            // Rebuild the path from its components: with a trailing slash it could not name a link.
            strangers.plant(&place.join(link).components().collect::<PathBuf>(), Kind::FolderLink);
        }
        for (at, kind) in plants {
            let at = at.get(&places);
            // A process that locks the whole cache counts as a user of it, so the cache would wait for it.
            let is_lock = at.ends_with("ledger") || at.ends_with("users");
            strangers.plant(&place.join(at), if is_lock && kind == Kind::Held { Kind::File } else { kind });
        }
        for _ in 0..2 {
            runtime.block_on(read_all(&store, &known, &folder));
            strangers.check(|path, kind| match kind {
                Kind::FolderLink => true,
                // A plain file with an entry's name counts as Penstock's; a link with such a name may be replaced by a
                // rename.
                Kind::File | Kind::Link | Kind::HardLink => path.ends_with("notes.txt"),
                Kind::Held => path.starts_with(place.join("parts")) || path.ends_with("notes.txt"),
            })?;
        }
    }
}
