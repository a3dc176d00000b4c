// SPDX-License-Identifier: Apache-2.0
//! Ways of a read over stores in memory and files on disk.

use std::io::Write;
use std::path::Path;

use penstock_codec::Codec;
use penstock_store::{Memory, StoreSettings, open, read_whole, suite};

use super::*;
use crate::manifest::Entry;

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(20))
}

fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

struct Rig {
    pool: Arc<dyn Store>,
    bucket: Url,
    dir: tempfile::TempDir,
    metrics: Arc<Metrics>,
    manifest: Manifest,
    routes: Routes,
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
            manifest: Manifest::new("memory://pool/data/".into(), Vec::new()),
            routes: Routes::default(),
        }
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        path
    }

    async fn put(&mut self, name: &str, bytes: &[u8], placed: Placed) -> ObjectRef {
        let key = Key::from("data/").join(name.as_bytes());
        let body = vec![Bytes::copy_from_slice(bytes)];
        let meta = self.pool.put(&key, body, &PutOptions::default(), soon()).await.unwrap();
        let entry = Entry { version: meta.version.clone(), ..Entry::new(Key::from(name), bytes.len() as u64) };
        self.manifest.objects.push(entry);
        self.routes.objects.insert(name.to_owned(), placed);
        ObjectRef { key, version: meta.version }
    }

    fn opened(&self) -> Opened {
        open(&self.bucket, &StoreSettings::default(), Arc::default()).unwrap()
    }

    async fn keep(&self, name: &str, bytes: &[u8]) {
        let body = vec![Bytes::copy_from_slice(bytes)];
        let key = Key::from("set/").join(name.as_bytes());
        self.opened().store.put(&key, body, &PutOptions::default(), soon()).await.unwrap();
    }

    fn routed(&self, has_bucket: bool) -> Routed {
        let bucket = has_bucket.then(|| (self.bucket.clone(), self.opened()));
        let (pool, base) = (self.pool.clone(), Key::from("data/"));
        let metrics = self.metrics.clone();
        Routed::new(pool, &base, &self.manifest, &self.routes, bucket, LocalReads::Threads, metrics).unwrap()
    }

    fn ways(&self) -> [u64; 3] {
        [Metric::PoolOwnBytes, Metric::PoolEngineBytes, Metric::PoolBucketBytes].map(|metric| self.metrics.get(metric))
    }
}

async fn whole(store: &Routed, object: &ObjectRef) -> Result<Bytes> {
    Ok(read_whole(store, object, None, soon()).await?.1)
}

#[tokio::test]
async fn own_file_is_read_and_the_pool_where_it_is_none() {
    let mut rig = Rig::new();
    let (a, b) = (noise(30_000), noise(40_000));
    let path = rig.file("blk_1", &a);
    let first = rig.put("a", &a, Placed { own: Some(path), nodes: Some(vec![0]) }).await;
    let second = rig.put("b", &b, Placed { own: None, nodes: Some(vec![1]) }).await;
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
    let one = rig.put("one", &body, Placed { own: Some(short), nodes: None }).await;
    let two = rig.put("two", &body, Placed { own: Some(Path::new("/nonexistent/x").into()), nodes: None }).await;
    let routed = rig.routed(false);
    assert_eq!(whole(&routed, &one).await.unwrap(), body);
    assert_eq!(whole(&routed, &two).await.unwrap(), body);
    assert_eq!(rig.ways(), [0, 10_000, 0]);
}

#[tokio::test]
async fn lost_object_comes_from_the_bucket_inflated_and_is_put_back() {
    let mut rig = Rig::new();
    let body = noise(50_000);
    let object = rig.put("a.bin", &body, Placed { own: None, nodes: Some(vec![2]) }).await;
    rig.keep("a.bin.gz", &penstock_codec::deflate(Codec::Gzip, &body, 1).unwrap()).await;
    rig.pool.delete(std::slice::from_ref(&object.key), soon()).await.unwrap();
    let routed = rig.routed(true);
    assert_eq!(whole(&routed, &object).await.unwrap(), body);
    for _ in 0..200 {
        if rig.metrics.get(Metric::PoolRefills) == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(rig.metrics.get(Metric::PoolRefills), 1);
    assert_eq!(whole(&routed, &object).await.unwrap(), body);
    assert_eq!(rig.ways(), [0, 50_000, 50_000]);
}

#[tokio::test]
async fn object_that_another_node_has_put_back_is_read_from_the_pool() {
    let mut rig = Rig::new();
    let body = noise(9_000);
    let lost = rig.put("lost", &body, Placed { own: None, nodes: Some(vec![1]) }).await;
    let back = rig.put("back", &body, Placed { own: None, nodes: Some(vec![1]) }).await;
    rig.keep("lost", &body).await;
    rig.pool.delete(std::slice::from_ref(&lost.key), soon()).await.unwrap();
    let routed = rig.routed(true);
    assert_eq!(whole(&routed, &lost).await.unwrap(), body); // node 1 is known to be away now
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
        objects.push(rig.put(&at.to_string(), body, Placed { own: None, nodes: Some(vec![]) }).await);
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
        // All at once, as ranks in step are; whoever is first, each has the bytes.
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
    let object = rig.put("a", &body, Placed { own: None, nodes: Some(vec![]) }).await;
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
    last.shared.health.failed(Some(&[0, 1, 2]));
    assert_eq!(last.shared.turn(&object.key), 0); // nobody is there but this one
    last.shared.health.answered(Some(&[0, 1, 2]));
    assert_eq!(whole(last, &object).await.unwrap(), body);
    assert_eq!(rig.ways(), [0, 0, 3_000]);
}

#[tokio::test]
async fn lost_object_without_a_bucket_is_told_and_one_of_another_size_is_refused() {
    let mut rig = Rig::new();
    let body = noise(700);
    let object = rig.put("a", &body, Placed { own: None, nodes: Some(vec![0]) }).await;
    rig.pool.delete(std::slice::from_ref(&object.key), soon()).await.unwrap();
    assert_eq!(whole(&rig.routed(false), &object).await.unwrap_err().code(), "not-found");
    rig.keep("a", &body[..600]).await;
    let error = whole(&rig.routed(true), &object).await.unwrap_err();
    assert_eq!(error.code(), "corrupt");
    assert!(error.to_string().contains("gives 600 bytes where the pool had 700"), "{error}");
}

#[tokio::test]
async fn routed_store_keeps_the_contract() {
    let mut rig = Rig::new();
    rig.manifest.objects.clear();
    suite::run(Arc::new(rig.routed(false))).await;
}

#[test]
fn routes_are_json_and_nothing_else_passes() {
    let routes = Routes::from_json(r#"{"bucket":"s3://b/x","objects":{"a":{"own":"/x/a","nodes":[0,3]},"b":{}}}"#);
    let routes = routes.unwrap();
    assert_eq!(routes.objects["a"].nodes, Some(vec![0, 3]));
    assert_eq!(Routes::from_json(&routes.to_json().unwrap()).unwrap(), routes);
    for text in [
        "",
        "[1]",
        r#"{"object":{}}"#,
        r#"{"objects":{"a":{"nodes":[-1]}}}"#,
        r#"{"reader":{"node":2,"nodes":2,"local":0,"locals":1}}"#,
    ] {
        assert_eq!(Routes::from_json(text).unwrap_err().code(), "config", "{text}");
    }
}
