// SPDX-License-Identifier: Apache-2.0
//! Tests that a pool read uses the right source, over stores in memory and files on disk.

mod breaking;
mod store_suite;

use std::io::Write;
use std::path::Path;

use bytes::Bytes;
use penstock_codec::Codec;
use penstock_store::{Memory, PutOptions, Rates, StoreSettings, open, read_whole};
use penstock_types::Metric;

use self::breaking::{Breaking, unreachable};
use super::*;
use penstock_dataset::manifest::{Entry, Origin};

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(20))
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

#[derive(Debug)]
struct Rig {
    pool: Arc<dyn Store>,
    bucket: Url,
    dir: tempfile::TempDir,
    metrics: Arc<Metrics>,
    /// Metrics of the requests to the bucket.
    bucket_metrics: Arc<Metrics>,
    manifest: Manifest,
    routes: Placements,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().file_name().unwrap().to_string_lossy().replace('.', "");
        Self {
            pool: Arc::new(Memory::named(&format!("pool{name}"))),
            bucket: format!("memory://bucket{name}/set/").parse().unwrap(),
            dir,
            metrics: Arc::default(),
            bucket_metrics: Arc::default(),
            manifest: Manifest::new("memory://pool/data/".into(), Vec::new()),
            routes: Placements::default(),
        }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    }

    async fn put(&mut self, name: &str, bytes: &[u8], placed: Placement) -> ObjectRef {
        let key = Key::from("data/").join(name.as_bytes());
        let body = vec![Bytes::copy_from_slice(bytes)];
        let meta = self.pool.put(&key, body, &PutOptions::default(), soon()).await.unwrap();
        let entry = Entry { version: meta.version.clone(), ..Entry::new(Key::from(name), bytes.len() as u64) };
        self.manifest.objects.push(entry);
        self.routes.objects.insert(name.to_owned(), placed);
        ObjectRef { key, version: meta.version }
    }

    fn opened(&self) -> Opened {
        open(&self.bucket, &StoreSettings::default(), self.bucket_metrics.clone()).unwrap()
    }

    async fn keep(&self, name: &str, bytes: &[u8]) {
        let body = vec![Bytes::copy_from_slice(bytes)];
        let key = Key::from("set/").join(name.as_bytes());
        self.opened().store.put(&key, body, &PutOptions::default(), soon()).await.unwrap();
    }

    fn routed(&self, has_bucket: bool) -> PoolStore {
        self.routed_by(has_bucket, self.pool.clone(), None)
    }

    fn routed_by(&self, has_bucket: bool, store: Arc<dyn Store>, governor: Option<Arc<AdaptiveLimit>>) -> PoolStore {
        let bucket = has_bucket.then(|| (self.bucket.clone(), self.opened()));
        let pool = Opened { store, prefix: Key::from("data/") };
        let metrics = self.metrics.clone();
        PoolStore::new(pool, governor, &self.manifest, &self.routes, bucket, LocalReads::Threads, metrics).unwrap()
    }

    /// Waits until this number of objects has been put back into the pool.
    async fn put_back(&self, objects: u64) {
        for _ in 0..200 {
            if self.metrics.get(Metric::PoolRefills) == objects {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} were put back, not {objects}", self.metrics.get(Metric::PoolRefills));
    }

    fn ways(&self) -> [u64; 3] {
        [Metric::PoolOwnBytes, Metric::PoolEngineBytes, Metric::PoolBucketBytes].map(|metric| self.metrics.get(metric))
    }
}

async fn whole(store: &PoolStore, object: &ObjectRef) -> Result<Bytes> {
    Ok(read_whole(store, object, None, soon()).await?.1)
}

#[tokio::test]
async fn own_file_is_read_and_the_pool_where_it_is_none() {
    let mut rig = Rig::new();
    let (a, b) = (noise(30_000), noise(40_000));
    let path = rig.file("blk_1", &a);
    let first = rig.put("a", &a, Placement { own: Some(path), nodes: Some(vec![0]) }).await;
    let second = rig.put("b", &b, Placement { own: None, nodes: Some(vec![1]) }).await;
    let routed = rig.routed(false);
    assert_eq!(whole(&routed, &first).await.unwrap(), a);
    assert_eq!(whole(&routed, &second).await.unwrap(), b);
    assert_eq!(rig.ways(), [30_000, 40_000, 0]);
    let mut got = routed.get_ranges(&first, &[ByteRange::new(10, 20), ByteRange::new(100, 5)], soon()).await.unwrap();
    let mut parts = vec![Vec::new(), Vec::new()];
    while let Some(chunk) = got.chunks.next().await {
        let chunk = chunk.unwrap();
        parts[chunk.range].extend_from_slice(&chunk.bytes);
    }
    assert_eq!(parts, [a[10..30].to_vec(), a[100..105].to_vec()]);
}

#[tokio::test]
async fn own_file_that_is_gone_or_of_another_size_is_passed_over() {
    let mut rig = Rig::new();
    let body = noise(5_000);
    let short = rig.file("short", &body[..4_000]);
    let one = rig.put("one", &body, Placement { own: Some(short), nodes: None }).await;
    let two = rig.put("two", &body, Placement { own: Some(Path::new("/nonexistent/x").into()), nodes: None }).await;
    let routed = rig.routed(false);
    assert_eq!(whole(&routed, &one).await.unwrap(), body);
    assert_eq!(whole(&routed, &two).await.unwrap(), body);
    assert_eq!(rig.ways(), [0, 10_000, 0]);
}

#[tokio::test]
async fn lost_object_comes_from_the_bucket_inflated_and_is_put_back() {
    let mut rig = Rig::new();
    let body = noise(50_000);
    let object = rig.put("a.bin", &body, Placement { own: None, nodes: Some(vec![2]) }).await;
    rig.keep("a.bin.gz", &penstock_codec::compress(Codec::Gzip, &body, 1).unwrap()).await;
    rig.pool.delete(std::slice::from_ref(&object.key), soon()).await.unwrap();
    let routed = rig.routed(true);
    assert_eq!(whole(&routed, &object).await.unwrap(), body);
    rig.put_back(1).await;
    assert_eq!(whole(&routed, &object).await.unwrap(), body);
    assert_eq!(rig.ways(), [0, 50_000, 50_000]);
}

#[tokio::test]
async fn object_that_another_node_has_put_back_is_read_from_the_pool() {
    let mut rig = Rig::new();
    let body = noise(9_000);
    let lost = rig.put("lost", &body, Placement { own: None, nodes: Some(vec![1]) }).await;
    let back = rig.put("back", &body, Placement { own: None, nodes: Some(vec![1]) }).await;
    rig.keep("lost", &body).await;
    let routed = rig.routed_by(true, Arc::new(Breaking::new(rig.pool.clone(), vec![(0, unreachable())])), None);
    assert_eq!(whole(&routed, &lost).await.unwrap(), body); // node 1 is in back-off from here on
    let other = noise(9_001)[1..].to_vec();
    rig.pool.put(&back.key, vec![other.clone().into()], &PutOptions::default(), soon()).await.unwrap();
    assert_eq!(whole(&routed, &back).await.unwrap(), other);
    assert_eq!(rig.ways(), [0, 9_000, 9_000]);
}

#[tokio::test]
async fn lost_object_is_fetched_by_one_of_a_pools_processes() {
    let mut rig = Rig::new();
    let bodies: Vec<_> = (0..8).map(|at| noise(5_000 + at)).collect();
    let mut objects = Vec::new();
    for (at, body) in bodies.iter().enumerate() {
        objects.push(rig.put(&at.to_string(), body, Placement { own: None, nodes: Some(vec![]) }).await);
        rig.keep(&at.to_string(), body).await;
    }
    let keys: Vec<_> = objects.iter().map(|object| object.key.clone()).collect();
    rig.pool.delete(&keys, soon()).await.unwrap();
    let reader = |node, local| Some(Reader { node, nodes: 2, local, locals: 2 });
    let readers = [reader(0, 0), reader(0, 1), reader(1, 0), reader(1, 1)].map(|reader| {
        rig.routes.reader = reader;
        rig.routed(true)
    });
    for (object, body) in objects.iter().zip(&bodies) {
        // All processes read at the same time, as ranks do. Each gets the right bytes.
        for got in futures::future::join_all(readers.iter().map(|reader| whole(reader, object))).await {
            assert_eq!(got.unwrap(), body);
        }
    }
    let size: u64 = bodies.iter().map(|body| body.len() as u64).sum();
    assert_eq!(rig.ways(), [0, 3 * size, size]);
}

#[tokio::test]
async fn each_has_a_turn_at_a_lost_object_and_the_last_fetches_it_where_the_others_do_not() {
    let mut rig = Rig::new();
    let body = noise(3_000);
    let object = rig.put("a", &body, Placement { own: None, nodes: Some(vec![]) }).await;
    rig.keep("a", &body).await;
    rig.pool.delete(std::slice::from_ref(&object.key), soon()).await.unwrap();
    let mut readers: Vec<_> = (0..3)
        .map(|node| {
            rig.routes.reader = Some(Reader { node, nodes: 3, local: 0, locals: 1 });
            rig.routed(true)
        })
        .collect();
    readers.sort_by_key(|reader| reader.shared.turn(&object.key));
    let turns: Vec<_> = readers.iter().map(|reader| reader.shared.turn(&object.key)).collect();
    assert_eq!(turns, [0, 1, 2]);
    let last = &readers[2];
    last.shared.health.failed(Some(&[0, 1, 2]), &unreachable());
    assert_eq!(last.shared.turn(&object.key), 0); // no other node is up
    last.shared.health.answered(Some(&[0, 1, 2]));
    assert_eq!(whole(last, &object).await.unwrap(), body);
    assert_eq!(rig.ways(), [0, 0, 3_000]);
}

#[tokio::test]
async fn lost_object_without_a_bucket_is_told_and_one_of_another_size_is_refused() {
    let mut rig = Rig::new();
    let body = noise(700);
    let object = rig.put("a", &body, Placement { own: None, nodes: Some(vec![0]) }).await;
    rig.pool.delete(std::slice::from_ref(&object.key), soon()).await.unwrap();
    assert_eq!(whole(&rig.routed(false), &object).await.unwrap_err().code(), "not-found");
    rig.keep("a", &body[..600]).await;
    let error = whole(&rig.routed(true), &object).await.unwrap_err();
    assert_eq!(error.code(), "corrupt");
    assert!(error.to_string().contains("returned 600 bytes, but the pool had 700"), "{error}");
}

async fn range(store: &PoolStore, object: &ObjectRef, start: u64, len: u64) -> Result<Vec<u8>> {
    let mut got = store.get_ranges(object, &[ByteRange::new(start, len)], soon()).await?;
    let mut out = Vec::new();
    while let Some(chunk) = got.chunks.next().await {
        out.extend_from_slice(&chunk?.bytes);
    }
    Ok(out)
}

fn changed() -> Error {
    Error::Changed { place: "pool".into(), want: "1".into(), have: "2".into() }
}

#[tokio::test]
async fn torn_bytes_are_not_taken_where_the_error_is_behind_the_last_one() {
    let mut rig = Rig::new();
    let body = noise(9_000);
    let object = rig.put("a", &body, Placement { own: None, nodes: Some(vec![1]) }).await;
    rig.keep("a", &body).await;
    let torn = |pieces| Arc::new(Breaking::new(rig.pool.clone(), vec![(pieces, changed())]));
    // No byte was delivered before the error: the next source serves the whole read. Without a next source, the error
    // is returned.
    assert_eq!(whole(&rig.routed_by(true, torn(1), None), &object).await.unwrap(), body);
    assert_eq!(whole(&rig.routed_by(false, torn(1), None), &object).await.unwrap_err().code(), "changed");
    // Bytes were delivered before the error, so the read fails. The next read returns the right bytes.
    let routed = rig.routed_by(true, torn(3), None);
    assert_eq!(whole(&routed, &object).await.unwrap_err().code(), "changed");
    assert_eq!(whole(&routed, &object).await.unwrap(), body);
}

#[tokio::test]
async fn connection_that_breaks_behind_the_last_byte_costs_the_last_chunk_alone() {
    let mut rig = Rig::new();
    let body = vec![0; 9_000];
    let object = rig.put("a", &body, Placement { own: None, nodes: Some(vec![1]) }).await;
    rig.keep("a", &body).await;
    let pool = Arc::new(Breaking::new(rig.pool.clone(), vec![(3, unreachable())]));
    assert_eq!(whole(&rig.routed_by(true, pool, None), &object).await.unwrap(), body);
    assert_eq!(rig.ways(), [0, 6_000, 3_000]);
}

#[tokio::test]
async fn object_that_is_not_there_says_nothing_of_its_nodes() {
    let mut rig = Rig::new();
    let (lost, well) = (noise(3_000), noise(4_000));
    let first = rig.put("lost", &lost, Placement { own: None, nodes: Some(vec![1]) }).await;
    let second = rig.put("well", &well, Placement { own: None, nodes: Some(vec![1]) }).await;
    rig.keep("lost", &lost).await;
    rig.keep("well", &well).await;
    rig.pool.delete(std::slice::from_ref(&first.key), soon()).await.unwrap();
    let routed = rig.routed(true);
    assert_eq!(whole(&routed, &first).await.unwrap(), lost);
    assert_eq!(whole(&routed, &second).await.unwrap(), well);
    assert_eq!(rig.ways(), [0, 4_000, 3_000]);
}

#[tokio::test]
async fn engine_that_was_silent_is_left_in_peace_where_nodes_are_not_known() {
    let mut rig = Rig::new();
    let (lost, well) = (noise(3_000), noise(4_000));
    let first = rig.put("lost", &lost, Placement::default()).await;
    let second = rig.put("well", &well, Placement::default()).await;
    rig.keep("lost", &lost).await;
    rig.keep("well", &well).await;
    let routed = rig.routed_by(true, Arc::new(Breaking::new(rig.pool.clone(), vec![(0, unreachable())])), None);
    assert_eq!(whole(&routed, &first).await.unwrap(), lost);
    rig.put_back(1).await;
    assert_eq!(whole(&routed, &second).await.unwrap(), well);
    assert_eq!(rig.ways(), [0, 0, 7_000]);
    // The pool's copy of the second object may be fine, because no read of it failed: it is not replaced.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let standing = rig.pool.head(&second.key, soon()).await.unwrap();
    assert_eq!((standing.version, rig.metrics.get(Metric::PoolRefills)), (second.version, 1));
}

#[tokio::test]
async fn wait_for_the_governor_is_not_the_engines_silence() {
    let mut rig = Rig::new();
    let body = noise(3_000);
    let object = rig.put("a", &body, Placement { own: None, nodes: Some(vec![1]) }).await;
    let governor = AdaptiveLimit::new(Rates { in_flight: 1, ..Rates::default() }, rig.metrics.clone());
    let routed = rig.routed_by(true, rig.pool.clone(), Some(governor.clone()));
    let others = LimitStore::new(rig.pool.clone(), governor);
    let held = others.get_ranges(&object, &[ByteRange::WHOLE], soon()).await.unwrap();
    let timeout = ObjectState { size: 0, own: None, nodes: Some(vec![1]), made_from: None }.timeout();
    let freed = async {
        tokio::time::sleep(timeout + Duration::from_millis(200)).await;
        drop(held);
    };
    let (read, ()) = futures::join!(whole(&routed, &object), freed);
    assert_eq!(read.unwrap(), body);
    assert_eq!(rig.ways(), [0, 3_000, 0]);
}

#[tokio::test]
async fn pin_is_held_where_nothing_puts_objects_back() {
    let mut rig = Rig::new();
    let object = rig.put("a", &noise(500), Placement { own: None, nodes: Some(vec![1]) }).await;
    let other = noise(501)[1..].to_vec();
    rig.pool.put(&object.key, vec![other.clone().into()], &PutOptions::default(), soon()).await.unwrap();
    assert_eq!(whole(&rig.routed(false), &object).await.unwrap_err().code(), "changed");
    assert_eq!(whole(&rig.routed(true), &object).await.unwrap(), other);
}

#[tokio::test]
async fn bucket_that_has_another_version_than_the_pool_was_filled_from_fills_nothing() {
    let mut rig = Rig::new();
    let body = noise(500);
    let object = rig.put("a", &body, Placement { own: None, nodes: Some(vec![1]) }).await;
    rig.keep("a", &noise(501)[1..]).await;
    rig.manifest.source = Some(rig.bucket.to_string());
    let mut origin = Origin::of(&rig.manifest.objects[0]);
    origin.version = Some(Version("staged".to_owned()));
    rig.manifest.objects[0].origin = Some(Box::new(origin));
    rig.pool.delete(std::slice::from_ref(&object.key), soon()).await.unwrap();
    let error = whole(&rig.routed(true), &object).await.unwrap_err();
    assert_eq!(error.code(), "changed", "{error}");
    assert_eq!(rig.metrics.get(Metric::PoolRefills), 0);
}

#[tokio::test]
async fn lost_object_that_only_its_bytes_or_header_call_gzip_is_inflated() {
    let mut rig = Rig::new();
    let body = noise(50_000);
    let gzip = penstock_codec::compress(Codec::Gzip, &body, 1).unwrap();
    for (name, encoding) in [("content.npy", None), ("header.bin", Some("x-gzip".to_owned()))] {
        let object = rig.put(name, &body, Placement { own: None, nodes: Some(vec![2]) }).await;
        let options = PutOptions { encoding, ..PutOptions::default() };
        let key = Key::from("set/").join(name.as_bytes());
        rig.opened().store.put(&key, vec![gzip.clone().into()], &options, soon()).await.unwrap();
        rig.pool.delete(std::slice::from_ref(&object.key), soon()).await.unwrap();
        assert_eq!(whole(&rig.routed(true), &object).await.unwrap(), body, "{name}");
    }
}

#[tokio::test]
async fn ranges_of_a_lost_object_cost_one_fetch_even_where_nothing_is_put_back() {
    let mut rig = Rig::new();
    let body = noise(40_000);
    let object = rig.put("a.bin", &body, Placement { own: None, nodes: Some(vec![2]) }).await;
    rig.keep("a.bin.gz", &penstock_codec::compress(Codec::Gzip, &body, 1).unwrap()).await;
    let down = (0..4).map(|_| (0, unreachable())).collect();
    let routed = rig.routed_by(true, Arc::new(Breaking::refusing(rig.pool.clone(), down)), None);
    for at in [0, 10_000, 20_000, 30_000] {
        assert_eq!(range(&routed, &object, at, 10_000).await.unwrap(), body[at as usize..][..10_000]);
        tokio::time::sleep(Duration::from_millis(20)).await; // wait until the failed write has released the object
    }
    assert_eq!(rig.bucket_metrics.get(Metric::Gets), 1);
}

#[tokio::test]
async fn ranges_of_a_lost_object_beyond_the_budget_are_asked_for_alone() {
    let mut rig = Rig::new();
    let body = noise(40_000);
    let object = rig.put("a.bin", &body, Placement { own: None, nodes: Some(vec![2]) }).await;
    rig.keep("a.bin", &body).await;
    let pool = Arc::new(Breaking::new(rig.pool.clone(), vec![(0, unreachable())]));
    let mut routed = rig.routed_by(true, pool, None);
    Arc::get_mut(&mut routed.shared).unwrap().refetches = Refetches::new(16 << 10);
    let sent = rig.bucket_metrics.get(Metric::BytesIn);
    assert_eq!(range(&routed, &object, 5_000, 100).await.unwrap(), body[5_000..5_100]);
    assert_eq!(rig.bucket_metrics.get(Metric::BytesIn) - sent, 100);
}

#[tokio::test]
async fn bucket_names_what_it_has_not_below_its_folder() {
    let mut rig = Rig::new();
    let object = rig.put("train.bin", &noise(10), Placement { own: None, nodes: Some(vec![2]) }).await;
    rig.keep("other", &noise(10)).await;
    rig.pool.delete(std::slice::from_ref(&object.key), soon()).await.unwrap();
    rig.bucket = rig.bucket.to_string().trim_end_matches('/').parse().unwrap();
    let error = whole(&rig.routed(true), &object).await.unwrap_err();
    assert!(error.to_string().contains("/set/train.bin does not exist"), "{error}");
}

#[tokio::test]
async fn own_file_comes_in_one_chunk() {
    let mut rig = Rig::new();
    let body = noise(5 << 20);
    let path = rig.file("blk_1", &body);
    let object = rig.put("a", &body, Placement { own: Some(path), nodes: Some(vec![0]) }).await;
    let got = rig.routed(false).get_ranges(&object, &[ByteRange::WHOLE], soon()).await.unwrap();
    let lens: Vec<usize> = got.chunks.map(|chunk| chunk.unwrap().bytes.len()).collect().await;
    assert_eq!(lens, [5 << 20]);
}

#[test]
fn routes_are_json_and_nothing_else_passes() {
    let routes = Placements::from_json(r#"{"bucket":"s3://b/x","objects":{"a":{"own":"/x/a","nodes":[0,3]},"b":{}}}"#);
    let routes = routes.unwrap();
    assert_eq!(routes.objects["a"].nodes, Some(vec![0, 3]));
    assert_eq!(Placements::from_json(&routes.to_json().unwrap()).unwrap(), routes);
    for text in [
        "",
        "[1]",
        r#"{"object":{}}"#,
        r#"{"objects":{"a":{"nodes":[-1]}}}"#,
        r#"{"reader":{"node":2,"nodes":2,"local":0,"locals":1}}"#,
    ] {
        assert_eq!(Placements::from_json(text).unwrap_err().code(), "config", "{text}");
    }
}
