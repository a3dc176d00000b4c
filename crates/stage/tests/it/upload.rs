// SPDX-License-Identifier: Apache-2.0
//! Tests that a stage copies objects between in-memory stores through the public API: the copied content, the recorded
//! manifest, and which objects a second run copies again.

#![allow(clippy::disallowed_methods, reason = "tests write and remove files of their own")]

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_codec::{Codec, decompress_into};
use penstock_dataset::KeyFilter;
use penstock_stage::{Compression, StageJob, StageOptions, StageRequest, Summary, Verified, VerifyJob, VerifyRequest};
use penstock_store::{Memory, Meta, ObjectRef, PutOptions, Store, StoreSettings, read_whole};
use penstock_types::{Deadline, Key, Result};
use tokio::runtime::Runtime;

struct Bench {
    runtime: Runtime,
    from: Memory,
    to: Memory,
    name: &'static str,
    home: tempfile::TempDir,
}

fn text(len: usize) -> Vec<u8> {
    (0..len).flat_map(|at| format!("{} of many\n", at / 3).into_bytes()).take(len).collect()
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = len as u64 | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

impl Bench {
    fn new(name: &'static str, objects: &[(&str, Vec<u8>)]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let from = Memory::named(name);
        let to = Memory::named(&format!("{name}-to"));
        let bench = Self { runtime, from, to, name, home: tempfile::tempdir().unwrap() };
        for (key, body) in objects {
            bench.put(&bench.from, key, body);
        }
        bench
    }

    fn put(&self, store: &Memory, key: &str, body: &[u8]) {
        let put = [Bytes::copy_from_slice(body)].to_vec();
        self.runtime.block_on(store.put(&Key::from(key), put, &PutOptions::default(), Deadline::NEVER)).unwrap();
    }

    fn request(&self, options: StageOptions) -> StageRequest {
        StageRequest {
            source: format!("memory://{}/", self.name).parse().unwrap(),
            settings: StoreSettings::default(),
            destination: self.home.path().join("state"),
            remote: Some(format!("memory://{}-to/run", self.name).parse().unwrap()),
            manifest: None,
            select: KeyFilter::default(),
            mirrors: Vec::new(),
            rates: penstock_store::Rates::default(),
            options,
            dry_run: false,
            deadline: None,
            launch: None,
            is_awaited: false,
            leader_rank: 0,
            cores: 2,
        }
    }

    fn run(&self, request: StageRequest) -> Result<Summary> {
        let job = StageJob::start(request, self.runtime.handle());
        job.wait(Duration::from_secs(120)).expect("a stage in memory takes no two minutes")
    }

    fn stage(&self, options: StageOptions) -> Result<Summary> {
        self.run(self.request(options))
    }

    fn verify(&self, quick: bool, repair: bool) -> Verified {
        let request = VerifyRequest {
            select: KeyFilter::default(),
            destination: self.home.path().join("verify"),
            remote: self.request(StageOptions::default()).remote,
            quick,
            repair,
            settings: StoreSettings::default(),
            deadline: None,
            cores: 2,
            concurrency: 8,
            memory: 1 << 30,
        };
        VerifyJob::start(request, self.runtime.handle()).wait(Duration::from_secs(60)).unwrap().unwrap()
    }

    fn got(&self, key: &str) -> (Meta, Vec<u8>) {
        let object = ObjectRef::current(Key::from(key));
        let (meta, bytes) = self.runtime.block_on(read_whole(&self.to, &object, None, Deadline::NEVER)).unwrap();
        (meta, bytes.to_vec())
    }

    fn keys(&self) -> Vec<String> {
        let all: Vec<Meta> =
            self.runtime.block_on(self.to.list(&Key::default(), None, Deadline::NEVER).try_collect()).unwrap();
        all.into_iter().map(|meta| meta.key.to_string()).collect()
    }
}

fn deflating(codec: Codec) -> StageOptions {
    StageOptions { compression: Some(Compression::new(codec, None).unwrap()), ..StageOptions::default() }
}

#[test]
fn upload_is_whole_recorded_and_moves_nothing_twice() {
    let objects =
        [("a/small", text(900)), ("empty", vec![]), ("large", noise(40_000_000)), ("odd \u{1f600}\n%", noise(3))];
    let bench = Bench::new("upload-whole", &objects);
    let done = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((done.moved, done.skipped, done.failed.len()), (4, 0, 0), "{done:?}");
    for (key, body) in &objects {
        assert!(bench.got(&format!("run/{key}")).1 == *body, "{key}");
    }
    let again = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((again.moved, again.skipped, again.bytes_in), (0, 4, 0));
    // Without the journal, the manifest in the store shows which objects are finished.
    std::fs::remove_dir_all(bench.home.path().join("state")).unwrap();
    let elsewhere = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((elsewhere.moved, elsewhere.skipped, elsewhere.bytes_in), (0, 4, 0));
    for quick in [false, true] {
        let found = bench.verify(quick, false);
        assert_eq!((found.ok, found.failed.len(), found.unexpected_total), (4, 0, 0));
    }
    assert_eq!(bench.keys().len(), 5, "{:?}", bench.keys());
}

#[test]
fn upload_deflated_keeps_names_and_leaves_alone_what_is_compressed() {
    let packed = penstock_codec::compress(Codec::Gzip, &text(5000), 6).unwrap();
    let objects = [("large", text(40_000_000)), ("small", text(70_000)), ("noise", noise(70_000)), ("b.gz", packed)];
    let bench = Bench::new("upload-deflate", &objects);
    let done = bench.stage(deflating(Codec::Gzip)).unwrap();
    assert_eq!((done.moved, done.failed.len()), (4, 0), "{:?}", done.failed);
    for (key, body) in &objects {
        let (meta, stored) = bench.got(&format!("run/{key}"));
        match *key {
            "large" | "small" => {
                assert_eq!(meta.encoding.as_deref(), Some("gzip"));
                let mut content = Vec::new();
                decompress_into(Codec::Gzip, &stored, &mut content, u64::MAX, key).unwrap();
                assert!(content == *body && stored.len() * 2 < body.len());
            }
            _ => assert!(meta.encoding.is_none() && stored == *body, "{key}"),
        }
    }
    assert_eq!(bench.stage(deflating(Codec::Gzip)).unwrap().bytes_in, 0);
    assert_eq!(bench.verify(false, false).ok, 4);
    // Another transform may replace objects of an earlier stage without --overwrite.
    let other = bench.stage(deflating(Codec::Zstd)).unwrap();
    assert_eq!((other.moved, other.failed.len()), (4, 0), "{:?}", other.failed);
    assert_eq!(bench.got("run/large").0.encoding.as_deref(), Some("zstd"));
}

#[test]
fn upload_inflated_drops_the_suffix() {
    let content = text(30_000_000);
    let packed = penstock_codec::compress(Codec::Zstd, &content, 1).unwrap();
    let bench = Bench::new("upload-inflate", &[("a.zst", packed), ("plain", text(10))]);
    let done = bench.stage(StageOptions { decompress: true, ..StageOptions::default() }).unwrap();
    assert_eq!((done.moved, done.failed.len()), (2, 0), "{:?}", done.failed);
    assert!(bench.got("run/a").1 == content);
    assert_eq!(bench.got("run/plain").1, text(10));
}

#[test]
fn upload_leaves_strangers_and_adopts_the_same() {
    let bench = Bench::new("upload-strangers", &[("a", text(100)), ("b", text(200)), ("large", noise(20_000_000))]);
    bench.put(&bench.to, "run/b", &text(200));
    bench.put(&bench.to, "run/large", &noise(20_000_000));
    bench.put(&bench.to, "run/a", b"short");
    let error = bench.stage(StageOptions::default()).unwrap_err();
    assert_eq!(error.code(), "precondition", "{error}");
    let mut same_size = text(100);
    same_size[5] ^= 1;
    bench.put(&bench.to, "run/a", &same_size);
    let versions = (bench.got("run/b").0.version, bench.got("run/large").0.version);
    let done = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((done.moved, done.failed.len()), (2, 1));
    assert_eq!((bench.got("run/a").1, done.failed[0].code.as_str()), (same_size, "precondition"));
    assert_eq!((bench.got("run/b").0.version, bench.got("run/large").0.version), versions, "they were written again");
    let done = bench.stage(StageOptions { overwrite: true, ..StageOptions::default() }).unwrap();
    assert_eq!((done.moved, done.skipped, bench.got("run/a").1), (1, 2, text(100)));
}

#[test]
fn verify_of_a_store_names_what_is_wrong_and_mends_it() {
    let bench = Bench::new("upload-verify", &[("a", text(9000)), ("b", noise(9000)), ("c", text(20_000_000))]);
    bench.stage(deflating(Codec::Gzip)).unwrap();
    let mut bad = noise(9000);
    bad[70] ^= 2;
    bench.put(&bench.to, "run/b", &bad);
    bench.runtime.block_on(bench.to.delete(&[Key::from("run/c")], Deadline::NEVER)).unwrap();
    bench.put(&bench.to, "run/z", b"a stranger");
    for quick in [true, false] {
        let found = bench.verify(quick, false);
        let wrong: Vec<_> = found.failed.iter().map(|wrong| (wrong.file.as_str(), wrong.problem.as_str())).collect();
        assert_eq!((wrong, found.ok), (vec![("b", "digest"), ("c", "missing")], 1));
        assert_eq!(found.unexpected, ["z"]);
    }
    let mended = bench.verify(false, true);
    assert_eq!((mended.repaired.len(), mended.failed.len()), (2, 0), "{:?}", mended.failed);
    assert_eq!(bench.verify(true, false).ok, 3);
    assert_eq!(bench.stage(deflating(Codec::Gzip)).unwrap().moved, 0, "the manifest knows the new versions");
}

#[test]
fn upload_by_nodes_is_disjoint_and_complete() {
    let objects: Vec<(String, Vec<u8>)> = (0..9).map(|at| (format!("o{at}"), noise(1000 + at))).collect();
    let objects: Vec<(&str, Vec<u8>)> = objects.iter().map(|(key, body)| (key.as_str(), body.clone())).collect();
    let bench = Bench::new("upload-nodes", &objects);
    let moved: u64 =
        (0..3).map(|node| bench.stage(StageOptions { node, nodes: 3, ..StageOptions::default() }).unwrap().moved).sum();
    assert_eq!((moved, bench.verify(false, false).ok), (9, 9));
    assert_eq!(bench.keys().iter().filter(|key| key.contains(".penstock/manifest-")).count(), 3);
}

#[test]
fn upload_into_its_own_source_is_refused() {
    let bench = Bench::new("upload-self", &[("a", text(3))]);
    let mut request = bench.request(StageOptions::default());
    request.remote = Some("memory://upload-self/below".parse().unwrap());
    assert_eq!(bench.run(request).unwrap_err().code(), "config");
}
