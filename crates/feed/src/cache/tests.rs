// SPDX-License-Identifier: Apache-2.0
//! Tests of the node cache over a store in memory, with an access plan that each test sets.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_codec::{Codec, GzipCheck, compress, restore_transposed};
use penstock_store::{Memory, MeteredStore, PutOptions, Version, read_whole, suite};

use super::*;

/// Access plan set by the test. An object that is not in the list is never read again.
#[derive(Debug, Default)]
struct PlanRig {
    next: Mutex<HashMap<Key, u64>>,
    sizes: Mutex<HashMap<Key, (u64, Option<Version>)>>,
    now: AtomicU64,
}

impl AccessPlan for PlanRig {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn next_use(&self, what: &Extent) -> u64 {
        self.next.lock().unwrap().get(&what.key).copied().unwrap_or(u64::MAX)
    }

    fn keeps(&self, key: &Key, ranges: &[ByteRange]) -> Option<CachedRange> {
        let size = self.sizes.lock().unwrap().get(key).map(|known| known.0)?;
        let is_array = key.as_bytes().starts_with(b"array");
        Some(CachedRange { range: if is_array { ranges[0] } else { ByteRange::WHOLE }, size })
    }

    fn stretches(&self) -> Box<dyn Iterator<Item = (ObjectRef, ByteRange)> + '_> {
        let known = self.sizes.lock().unwrap().clone();
        Box::new(known.into_iter().map(|(key, (_, version))| (ObjectRef { key, version }, ByteRange::WHOLE)))
    }
}

struct Rig {
    store: Arc<dyn Store>,
    plan: Arc<PlanRig>,
    requests: Arc<Metrics>,
    dir: tempfile::TempDir,
}

fn rig() -> Rig {
    let requests = Arc::new(Metrics::default());
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::named(&dir.path().to_string_lossy());
    Rig { store: Arc::new(MeteredStore::new(Arc::new(memory), requests.clone())), plan: Arc::default(), requests, dir }
}

impl Rig {
    fn cache(&self, limit: u64) -> (NodeCache, Arc<Metrics>) {
        self.cache_of(limit, Transcode::Never)
    }

    fn cache_of(&self, limit: u64, transcode: Transcode) -> (NodeCache, Arc<Metrics>) {
        let (metrics, plan) = (Arc::new(Metrics::default()), self.plan.clone());
        let cache = NodeCache::new(self.store.clone(), self.dir.path(), limit, plan, metrics.clone(), transcode);
        (cache.unwrap(), metrics)
    }

    async fn put(&self, key: &str, bytes: Vec<u8>) -> ObjectRef {
        let key = Key::new(key.as_bytes().to_vec());
        let size = bytes.len() as u64;
        let meta = self.store.put(&key, vec![bytes.into()], &PutOptions::default(), soon()).await.unwrap();
        self.plan.sizes.lock().unwrap().insert(key.clone(), (size, meta.version.clone()));
        ObjectRef { key, version: meta.version }
    }

    fn gets(&self) -> u64 {
        self.requests.get(Metric::Gets)
    }
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

async fn whole(cache: &NodeCache, object: &ObjectRef) -> Bytes {
    read_whole(cache, object, None, soon()).await.unwrap().1
}

#[tokio::test]
async fn cache_asks_the_store_once_for_each_object() {
    let rig = rig();
    let bytes = noise(300_000);
    let object = rig.put("a", bytes.clone()).await;
    let (cache, metrics) = rig.cache(1 << 20);
    for _ in 0..3 {
        assert_eq!(whole(&cache, &object).await, bytes);
    }
    // A second cache over the same folder stands for another process.
    assert_eq!(whole(&rig.cache(1 << 20).0, &object).await, bytes);
    assert_eq!((rig.gets(), metrics.get(Metric::CacheHits), metrics.get(Metric::CacheMisses)), (1, 2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_many_readers_at_once_make_one_request() {
    let rig = rig();
    let object = rig.put("a", noise(100_000)).await;
    let caches: Vec<Arc<NodeCache>> = (0..4).map(|_| Arc::new(rig.cache(1 << 20).0)).collect();
    let readers = (0..32).map(|at| {
        let (cache, object) = (caches[at % 4].clone(), object.clone());
        tokio::spawn(async move { whole(&cache, &object).await })
    });
    for reader in readers.collect::<Vec<_>>() {
        assert_eq!(reader.await.unwrap(), noise(100_000));
    }
    assert_eq!(rig.gets(), 1);
}

#[tokio::test]
async fn cache_range_of_a_large_object_fetches_it_whole_in_parts() {
    let rig = rig();
    let bytes = noise(2 * PART as usize + 5);
    let object = rig.put("a", bytes.clone()).await;
    let (cache, metrics) = rig.cache(64 << 20);
    let asked = [ByteRange::new(PART - 2, 4), ByteRange::new(2 * PART, 100)];
    for _ in 0..2 {
        let chunks: Vec<Chunk> =
            cache.get_ranges(&object, &asked, soon()).await.unwrap().chunks.try_collect().await.unwrap();
        assert_eq!(chunks[0].bytes, bytes[PART as usize - 2..][..4]);
        assert_eq!((chunks[1].bytes.len(), chunks[1].offset), (5, 2 * PART));
    }
    assert_eq!((rig.gets(), metrics.get(Metric::CacheFailures)), (3, 0));
}

#[tokio::test]
async fn cache_keeps_stretches_of_an_object_that_is_never_read_whole() {
    let rig = rig();
    let bytes = noise(300_000);
    let object = rig.put("array", bytes.clone()).await;
    let (cache, metrics) = rig.cache(1 << 20);
    for round in 0..2 {
        for range in [ByteRange::new(10, 70_000), ByteRange::new(200_000, 100_000)] {
            let got = cache.get_ranges(&object, &[range], soon()).await.unwrap();
            assert_eq!(got.meta.size, 300_000);
            let chunks: Vec<Chunk> = got.chunks.try_collect().await.unwrap();
            assert_eq!((chunks.len(), chunks[0].offset), (1, range.start));
            assert_eq!(chunks[0].bytes, bytes[range.start as usize..][..range.len as usize]);
        }
        assert_eq!((rig.gets(), metrics.get(Metric::CacheHits)), (2, 2 * round));
    }
    assert!(cache.folder.used().unwrap() < 200_000);
}

#[tokio::test]
async fn cache_evicts_what_is_needed_last_and_keeps_its_limit() {
    let rig = rig();
    let mut objects = Vec::new();
    for (at, next) in [30, 10, 20, 5].into_iter().enumerate() {
        let object = rig.put(&format!("k{at}"), noise(50_000)).await;
        rig.plan.next.lock().unwrap().insert(object.key.clone(), next);
        objects.push(object);
    }
    let limit = 2 * disk_bytes(50_000) + 10;
    let (cache, metrics) = rig.cache(limit);
    whole(&cache, &objects[0]).await; // next use at 30
    whole(&cache, &objects[1]).await; // next use at 10
    whole(&cache, &objects[2]).await; // next use at 20: the first object is evicted
    assert_eq!((rig.gets(), metrics.get(Metric::CacheEvictions)), (3, 1));
    whole(&cache, &objects[0]).await; // needed later than both cached objects: not cached
    assert_eq!((rig.gets(), metrics.get(Metric::CacheBypasses)), (4, 1));
    whole(&cache, &objects[1]).await;
    whole(&cache, &objects[2]).await;
    assert_eq!(rig.gets(), 4);
    // Time advances: another process has done the read at time 10, and the object's next use is now at 99.
    rig.plan.now.store(11, Ordering::Relaxed);
    rig.plan.next.lock().unwrap().insert(objects[1].key.clone(), 99);
    whole(&cache, &objects[3]).await;
    whole(&cache, &objects[2]).await;
    assert_eq!((rig.gets(), metrics.get(Metric::CacheEvictions)), (5, 2));
    assert!(cache.folder.used().unwrap() <= limit);
}

#[tokio::test]
async fn cache_of_another_dataset_gives_way_first() {
    let rig = rig();
    let old = rig.put("old", noise(50_000)).await;
    whole(&rig.cache(1 << 20).0, &old).await;
    rig.plan.sizes.lock().unwrap().remove(&old.key);
    let new = rig.put("new", noise(50_000)).await;
    rig.plan.next.lock().unwrap().insert(new.key.clone(), 7);
    let (cache, metrics) = rig.cache(disk_bytes(50_000) + 10);
    whole(&cache, &new).await;
    whole(&cache, &new).await;
    assert_eq!((rig.gets(), metrics.get(Metric::CacheEvictions)), (2, 1));
}

#[tokio::test]
async fn cache_entry_that_is_damaged_is_fetched_again() {
    let rig = rig();
    let bytes = noise(200_000);
    let object = rig.put("a", bytes.clone()).await;
    let (cache, metrics) = rig.cache(1 << 20);
    whole(&cache, &object).await;
    let name = Name::of(cache.root(), &object, Form::Stored(ByteRange::WHOLE)).unwrap();
    let path = cache.place().join("objects").join(&name.hex()[..2]).join(name.hex());
    for damage in 0..3 {
        match damage {
            0 => std::fs::write(&path, b"").unwrap(),
            1 => std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap(),
            _ => {
                let mut stored = std::fs::read(&path).unwrap();
                stored[150_000] ^= 1;
                std::fs::write(&path, stored).unwrap();
            }
        }
        assert_eq!(whole(&cache, &object).await, bytes);
        assert_eq!((rig.gets(), metrics.get(Metric::CacheCorrupt)), (damage + 2, damage + 1));
    }
}

#[tokio::test]
async fn cache_folder_that_vanishes_costs_requests_and_no_data() {
    let rig = rig();
    let object = rig.put("a", noise(1000)).await;
    let (cache, metrics) = rig.cache(1 << 20);
    std::fs::remove_dir_all(cache.place()).unwrap();
    for _ in 0..2 {
        assert_eq!(whole(&cache, &object).await, noise(1000));
    }
    assert_eq!(rig.gets(), 2);
    assert!(metrics.get(Metric::CacheFailures) > 0);
}

#[tokio::test]
async fn cache_object_that_changed_is_the_stores_error_and_is_not_kept() {
    let rig = rig();
    let object = rig.put("a", noise(1000)).await;
    let (cache, _) = rig.cache(1 << 20);
    rig.put("a", noise(500)).await;
    let error = cache.get_ranges(&object, &[ByteRange::WHOLE], soon()).await.map(|_| ()).unwrap_err();
    assert_eq!(error.code(), "changed");
    assert_eq!(cache.folder.used().unwrap(), 0);
    assert_eq!(std::fs::read_dir(cache.place().join("objects")).unwrap().count(), 0);
}

#[tokio::test]
async fn cache_read_that_is_given_up_leaves_nothing_counted() {
    let rig = rig();
    let object = rig.put("a", noise(1000)).await;
    let (cache, _) = rig.cache(1 << 20);
    for steps in 0..12 {
        let read = cache.get_ranges(&object, &[ByteRange::WHOLE], soon());
        futures::pin_mut!(read);
        for _ in 0..steps {
            if futures::poll!(&mut read).is_ready() {
                break;
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        // The unfinished read is dropped here, after a varying number of steps.
    }
    assert_eq!(whole(&cache, &object).await, noise(1000));
    let settled = async {
        // A read that was dropped during a blocking call releases its bytes when that call ends.
        while cache.folder.used().unwrap() > disk_bytes(1000) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), settled).await.unwrap();
    assert_eq!(whole(&cache, &object).await, noise(1000));
}

/// Returns small 2-byte numbers, and the same bytes compressed with gzip.
fn compressed(seed: usize) -> (Vec<u8>, Vec<u8>) {
    // Xorshift: a plain product would repeat, and compress to almost nothing.
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ seed as u64;
    let mut number = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as u16 % 7
    };
    let content: Vec<u8> = (0..100_000).flat_map(|_| number().to_le_bytes()).collect();
    let stored = compress(Codec::Gzip, &content, 6).unwrap();
    (content, stored)
}

async fn copied(cache: &NodeCache, object: &ObjectRef, codec: Codec, stored: &Bytes) -> Option<Bytes> {
    cache.keep_planes(object, codec, stored, GzipCheck::Full).await.unwrap()
}

#[tokio::test]
async fn cache_copy_in_planes_takes_the_place_of_what_was_stored() {
    let rig = rig();
    let (content, stored) = compressed(0);
    let object = rig.put("a", stored.clone()).await;
    let (cache, metrics) = rig.cache_of(1 << 20, Transcode::Always);
    assert_eq!(cache.in_planes(&object).await.unwrap(), None);
    let stored = whole(&cache, &object).await;
    let made = copied(&cache, &object, Codec::Gzip, &stored).await.unwrap();
    // A second cache over the same folder acts as another process.
    let (other, _) = rig.cache_of(1 << 20, Transcode::Auto);
    for cache in [&cache, &other] {
        let planes = cache.in_planes(&object).await.unwrap().unwrap();
        assert_eq!(planes, made);
        let mut inflated = Vec::new();
        restore_transposed(&planes, &mut inflated, 1 << 20, "p").unwrap();
        assert!(inflated == content);
    }
    let lies = disk_bytes(made.len() as u64);
    assert!((lies - 512..=lies).contains(&cache.folder.used().unwrap()), "the copy alone");
    assert_eq!((rig.gets(), metrics.get(Metric::CacheTranscodes)), (1, 1));
    assert_eq!(rig.cache(1 << 20).0.in_planes(&object).await.unwrap(), None, "who never asked for planes sees none");
}

#[tokio::test]
async fn cache_copy_in_planes_that_is_damaged_is_taken_away() {
    let rig = rig();
    let object = rig.put("a", compressed(0).1).await;
    let (cache, metrics) = rig.cache_of(1 << 20, Transcode::Always);
    let stored = whole(&cache, &object).await;
    copied(&cache, &object, Codec::Gzip, &stored).await.unwrap();
    let name = Name::of(cache.root(), &object, Form::Planes).unwrap();
    let path = cache.place().join("objects").join(&name.hex()[..2]).join(name.hex());
    let mut written = std::fs::read(&path).unwrap();
    written[5000] ^= 1;
    std::fs::write(&path, written).unwrap();
    assert_eq!(cache.in_planes(&object).await.unwrap(), None);
    assert_eq!((metrics.get(Metric::CacheCorrupt), path.exists()), (1, false));
}

#[tokio::test]
async fn cache_makes_no_copy_in_planes_of_what_is_damaged_or_grows_or_has_no_room() {
    let rig = rig();
    let (cache, metrics) = rig.cache_of(1 << 20, Transcode::Always);
    let (_, mut damaged) = compressed(0);
    damaged[9000] ^= 1;
    // The transposed copy is larger than this object: its blocks cannot share the content that repeats.
    let far = zstd::bulk::compress(&compressed(0).1.repeat(40), 3).unwrap();
    for (key, codec, stored) in [("damaged", Codec::Gzip, damaged), ("grows", Codec::Zstd, far)] {
        let object = rig.put(key, stored).await;
        let stored = whole(&cache, &object).await;
        assert_eq!(copied(&cache, &object, codec, &stored).await, None, "{key}");
    }
    let object = rig.put("large", compressed(1).1).await;
    let (small, small_metrics) = rig.cache_of(10_000, Transcode::Always);
    let stored = Bytes::from(compressed(1).1);
    assert_eq!(copied(&small, &object, Codec::Gzip, &stored).await, None);
    // The gzip trailer claims a content of 65 MiB, which is above the limit.
    let object = rig.put("too large", compressed(2).1).await;
    let mut stored = compressed(2).1;
    let end = stored.len() - 4;
    stored[end..].copy_from_slice(&(65u32 << 20).to_le_bytes());
    assert_eq!(copied(&cache, &object, Codec::Gzip, &stored.into()).await, None);
    assert_eq!(metrics.get(Metric::CacheTranscodes) + small_metrics.get(Metric::CacheTranscodes), 0);
    assert!(std::fs::read_dir(cache.place().join("parts")).unwrap().next().is_none());
    // Every failed object is recorded, so that no attempt is repeated.
    assert_eq!((cache.transcoder.refused(), small.transcoder.refused()), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_copy_in_planes_is_made_once_where_several_read_its_object() {
    let rig = rig();
    let (_, stored) = compressed(0);
    let object = rig.put("a", stored.clone()).await;
    let (first, metrics) = rig.cache_of(1 << 20, Transcode::Always);
    let (second, others) = rig.cache_of(1 << 20, Transcode::Always);
    let stored = whole(&first, &object).await;
    whole(&second, &object).await;
    let makes = [&first, &second, &first, &second].map(|cache| copied(cache, &object, Codec::Gzip, &stored));
    let made: Vec<Bytes> = futures::future::join_all(makes).await.into_iter().flatten().collect();
    assert!(!made.is_empty() && made.iter().all(|one| *one == made[0]));
    // A later caller finds the existing copy, and does not create another.
    assert_eq!(copied(&second, &object, Codec::Gzip, &stored).await.as_ref(), made.first());
    assert_eq!(metrics.get(Metric::CacheTranscodes) + others.get(Metric::CacheTranscodes), 1);
    // If a caller fetches and caches the stored bytes again, it still receives the existing copy, and the stored entry
    // is removed.
    assert_eq!(whole(&second, &object).await, stored);
    copied(&second, &object, Codec::Gzip, &stored).await.unwrap();
    let mut lies = Vec::new();
    first.folder.each_entry(|name, bytes| lies.push((name, bytes))).unwrap();
    assert_eq!(lies, [(Name::of(first.root(), &object, Form::Planes).unwrap(), first.folder.used().unwrap())]);
}

#[tokio::test]
async fn cache_copy_in_planes_finds_room_where_its_object_has_it() {
    let rig = rig();
    let (_, stored) = compressed(0);
    let object = rig.put("a", stored.clone()).await;
    let (cache, metrics) = rig.cache_of(disk_bytes(stored.len() as u64) + 100, Transcode::Always);
    let stored = whole(&cache, &object).await;
    assert!(copied(&cache, &object, Codec::Gzip, &stored).await.is_some());
    assert!(cache.in_planes(&object).await.unwrap().is_some());
    assert_eq!((metrics.get(Metric::CacheTranscodes), metrics.get(Metric::CacheEvictions)), (1, 0));
}

#[tokio::test]
async fn cache_decides_by_its_first_objects_and_says_why() {
    let rig = rig();
    let (cache, _) = rig.cache_of(1 << 20, Transcode::Auto);
    for at in 0..3 {
        assert_eq!(cache.transcoding(), None);
        let object = rig.put(&format!("k{at}"), compressed(at).1).await;
        let stored = whole(&cache, &object).await;
        copied(&cache, &object, Codec::Gzip, &stored).await;
    }
    assert!(cache.transcoding().unwrap().starts_with("cached as "));
}

#[tokio::test]
async fn cache_does_what_it_has_decided() {
    let rig = rig();
    let object = rig.put("a", compressed(0).1).await;
    for keeps in [false, true] {
        let (cache, metrics) = rig.cache_of(1 << 20, Transcode::Auto);
        cache.transcoder.decide(keeps);
        let stored = whole(&cache, &object).await;
        assert_eq!(copied(&cache, &object, Codec::Gzip, &stored).await.is_some(), keeps);
        assert_eq!(cache.in_planes(&object).await.unwrap().is_some(), keeps);
        assert_eq!(metrics.get(Metric::CacheTranscodes), u64::from(keeps));
    }
}

#[tokio::test]
async fn cache_of_what_cannot_be_copied_decides_so() {
    let rig = rig();
    let (cache, _) = rig.cache_of(1 << 20, Transcode::Auto);
    for at in 0..3 {
        let object = rig.put(&format!("k{at}"), b"no gzip at all".to_vec()).await;
        let stored = whole(&cache, &object).await;
        assert_eq!(copied(&cache, &object, Codec::Gzip, &stored).await, None);
    }
    assert!(cache.transcoding().unwrap().starts_with("cached as stored: each of the first 3 objects "));
}

/// Access plan that takes sizes from the store, so that the suite's objects are cached.
#[derive(Debug)]
struct Asks(Arc<Memory>);

impl AccessPlan for Asks {
    fn now(&self) -> u64 {
        0
    }

    fn next_use(&self, _: &Extent) -> u64 {
        0
    }

    fn keeps(&self, key: &Key, _: &[ByteRange]) -> Option<CachedRange> {
        let meta = futures::executor::block_on(self.0.head(key, soon())).ok()?;
        Some(CachedRange { range: ByteRange::WHOLE, size: meta.size })
    }

    fn stretches(&self) -> Box<dyn Iterator<Item = (ObjectRef, ByteRange)> + '_> {
        Box::new(std::iter::empty())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cache_stands_the_store_suite() {
    let dir = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::named("cache-suite"));
    let metrics = Arc::new(Metrics::default());
    let (asks, transcode) = (Arc::new(Asks(memory.clone())), Transcode::Never);
    let cache = NodeCache::new(memory, dir.path(), 1 << 30, asks, metrics.clone(), transcode);
    suite::run(Arc::new(cache.unwrap())).await;
    assert!(metrics.get(Metric::CacheHits) + metrics.get(Metric::CacheMisses) > 0);
}
