// SPDX-License-Identifier: Apache-2.0
//! Tests that a stage copies objects from an in-memory store to a temporary folder, through the public API.

#![allow(clippy::disallowed_methods, reason = "tests write and remove files of their own")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use penstock_codec::{Codec, compress};
use penstock_dataset::Manifest;
use penstock_stage::{StageJob, StageOptions, StageRequest, Summary, WaitLimits, wait_for_leader};
use penstock_store::{Memory, PutOptions, Store, StoreSettings};
use penstock_types::{Deadline, Key, Result};
use tokio::runtime::Runtime;

struct Bench {
    runtime: Runtime,
    store: Memory,
    name: &'static str,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(name: &'static str, objects: &[(&str, Vec<u8>)]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let bench = Self { runtime, store: Memory::named(name), name, folder: tempfile::tempdir().unwrap() };
        objects.iter().for_each(|(key, body)| bench.put(key, body.clone()));
        bench
    }

    fn put(&self, key: &str, body: Vec<u8>) {
        let (key, options) = (Key::from(key), PutOptions::default());
        self.runtime.block_on(self.store.put(&key, vec![Bytes::from(body)], &options, Deadline::NEVER)).unwrap();
    }

    fn request(&self, options: StageOptions) -> StageRequest {
        StageRequest {
            source: format!("memory://{}/", self.name).parse().unwrap(),
            settings: StoreSettings::default(),
            mirrors: Vec::new(),
            destination: self.folder.path().join("dst"),
            remote: None,
            manifest: None,
            select: penstock_dataset::KeyFilter::default(),
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
        job.wait(Duration::from_secs(60)).expect("a stage from memory takes no minute")
    }

    fn stage(&self, options: StageOptions) -> Result<Summary> {
        self.run(self.request(options))
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        fn walk(root: &Path, at: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
            for entry in std::fs::read_dir(at).into_iter().flatten().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    walk(root, &path, found);
                } else {
                    found.insert(path.strip_prefix(root).unwrap().display().to_string(), std::fs::read(&path).unwrap());
                }
            }
        }
        let mut found = BTreeMap::new();
        let root = self.folder.path().join("dst");
        walk(&root, &root, &mut found);
        found.retain(|name, _| !name.starts_with(".penstock"));
        found
    }

    fn leftovers(&self) -> usize {
        std::fs::read_dir(self.folder.path().join("dst/.penstock/stage/parts")).unwrap().count()
    }
}

fn inflating() -> StageOptions {
    StageOptions { decompress: true, ..StageOptions::default() }
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

fn packed(codec: Codec, body: &[u8]) -> Vec<u8> {
    compress(codec, body, codec.default_level()).unwrap()
}

/// NFS has no no-replace rename, so a file gets its final name by a hard link. A kill at that moment also leaves its
/// temporary name.
#[test]
fn stage_killed_between_link_and_unlink_takes_the_next_version() {
    let bench = Bench::new("linked", &[("d/a.bin", vec![1; 100])]);
    bench.stage(StageOptions::default()).unwrap();
    let dst = bench.folder.path().join("dst");
    let temporary = format!("{:032x}.tmp", xxhash_rust::xxh3::xxh3_128(b"d/a.bin"));
    std::fs::hard_link(dst.join("d/a.bin"), dst.join(".penstock/stage/parts").join(temporary)).unwrap();
    bench.put("d/a.bin", vec![2; 200]);
    let summary = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((summary.moved, summary.failed), (1, Vec::new()));
    assert_eq!(std::fs::read(dst.join("d/a.bin")).unwrap(), vec![2; 200]);
    assert_eq!(std::fs::read_dir(dst.join(".penstock/stage/parts")).unwrap().count(), 0);
}

#[test]
fn stage_inflates_every_codec_and_keeps_plain_objects() {
    let body = noise(300_000);
    let members = [packed(Codec::Gzip, &body[..1000]), packed(Codec::Gzip, &body[1000..])].concat();
    let bench = Bench::new(
        "stage-codecs",
        &[
            ("d/one.gz", packed(Codec::Gzip, &body)),
            ("d/two.gz", members),
            ("z.zst", packed(Codec::Zstd, &body)),
            ("e/f/l.lz4", packed(Codec::Lz4, &body)),
            ("plain.bin", body.clone()),
            ("zero", Vec::new()),
            ("zeros.gz", packed(Codec::Gzip, &vec![0; 3 << 20])),
        ],
    );
    let summary = bench.stage(inflating()).unwrap();
    assert_eq!((summary.objects, summary.moved, summary.skipped, summary.failed.len()), (7, 7, 0, 0));
    assert_eq!(summary.bytes_in, summary.bytes);
    let files = bench.files();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["d/one", "d/two", "e/f/l", "plain.bin", "z", "zero", "zeros"]);
    assert!(["d/one", "d/two", "e/f/l", "plain.bin", "z"].iter().all(|name| files[*name] == body));
    assert_eq!((files["zero"].len(), files["zeros"].clone()), (0, vec![0; 3 << 20]));
    let again = bench.stage(inflating()).unwrap();
    assert_eq!((again.bytes_in, again.bytes_out, again.skipped, again.moved), (0, 0, 7, 0));
}

#[test]
fn stage_without_inflate_keeps_bytes_and_records_both_digests() {
    let stored = packed(Codec::Gzip, &noise(10_000));
    let bench = Bench::new("stage-stored", &[("a.gz", stored.clone())]);
    bench.stage(StageOptions::default()).unwrap();
    assert_eq!(bench.files()["a.gz"], stored);
    bench.stage(inflating()).unwrap();
    assert_eq!(bench.files()["a"], noise(10_000));
    let manifest = Manifest::load(&bench.folder.path().join("dst/.penstock/manifest.json")).unwrap();
    let entry = &manifest.objects[0];
    assert_eq!((entry.key.to_string().as_str(), entry.size), ("a", 10_000));
    let origin = entry.origin.as_ref().unwrap();
    let crc = |bytes: &[u8]| format!("crc32c:{:08x}", penstock_codec::checksum::crc32c(bytes));
    assert_eq!(entry.digests[0].to_string(), crc(&noise(10_000)));
    assert_eq!(origin.digests[0].to_string(), crc(&stored));
    assert_eq!((entry.digests.len(), origin.digests.len(), origin.size), (2, 2, stored.len() as u64));
}

#[test]
fn stage_fetches_again_what_is_missing_changed_or_new_at_the_source() {
    let bench = Bench::new("stage-again", &[("a", noise(10)), ("b", noise(20)), ("c", noise(30)), ("d", noise(40))]);
    bench.stage(StageOptions::default()).unwrap();
    let dst = bench.folder.path().join("dst");
    std::fs::remove_file(dst.join("a")).unwrap();
    std::fs::write(dst.join("b"), "longer than it was before this").unwrap();
    bench.put("c", noise(31));
    let summary = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((summary.moved, summary.skipped, summary.bytes_in), (3, 1, 10 + 20 + 31));
    let files = bench.files();
    assert_eq!((&files["a"], &files["b"], &files["c"]), (&noise(10), &noise(20), &noise(31)));
}

#[test]
fn stage_of_corrupt_objects_lists_them_and_moves_the_rest() {
    let good = packed(Codec::Gzip, &noise(50_000));
    let mut wrong = good.clone();
    let at = wrong.len() - 6;
    wrong[at] ^= 1;
    let bench = Bench::new(
        "stage-corrupt",
        &[
            ("ok.gz", good.clone()),
            ("cut.gz", good[..good.len() - 2000].to_vec()),
            ("crc.gz", wrong),
            ("empty.gz", Vec::new()),
            ("text.gz", b"not gzip at all".to_vec()),
        ],
    );
    let summary = bench.stage(inflating()).unwrap();
    let failed: Vec<_> = summary.failed.iter().map(|failure| (failure.key.as_str(), failure.code.as_str())).collect();
    let corrupt = ["crc.gz", "cut.gz", "empty.gz", "text.gz"].map(|key| (key, "corrupt"));
    assert_eq!(failed, corrupt);
    assert_eq!(bench.files().keys().collect::<Vec<_>>(), ["ok"]);
    assert_eq!(bench.leftovers(), 0);
    bench.put("cut.gz", good);
    let mended = bench.stage(inflating()).unwrap();
    assert_eq!((mended.moved, mended.skipped, mended.failed.len()), (1, 1, 3));
}

#[test]
fn stage_of_a_bomb_stops_at_the_limit() {
    let bench = Bench::new("stage-bomb", &[("bomb.gz", packed(Codec::Gzip, &vec![0; 9 << 20])), ("ok", noise(5))]);
    let summary = bench.stage(StageOptions { max_inflated: Some(1 << 20), ..inflating() }).unwrap();
    assert_eq!((summary.failed.len(), summary.moved), (1, 1));
    assert_eq!(bench.files().keys().collect::<Vec<_>>(), ["ok"]);
}

#[test]
fn stage_of_large_objects_goes_by_parts_and_inflates() {
    let (plain, body) = (noise(20 << 20), noise(17 << 20));
    let bench = Bench::new("stage-large", &[("plain", plain.clone()), ("big.gz", packed(Codec::Gzip, &body))]);
    // A memory budget far below the object sizes: parts wait for memory, and content is streamed.
    let summary = bench.stage(StageOptions { memory: 32 << 20, ..inflating() }).unwrap();
    assert_eq!((summary.moved, summary.bytes_in), (2, summary.bytes));
    let files = bench.files();
    assert!(files["plain"] == plain && files["big"] == body);
    assert_eq!(bench.leftovers(), 0);
    assert_eq!(bench.stage(inflating()).unwrap().bytes_in, 0);
}

#[test]
fn stage_of_many_objects_reads_each_large_one_once_and_whole() {
    const PART: usize = 8 << 20;
    let small: Vec<(String, Vec<u8>)> = (0..20).map(|at| (format!("s{at:02}"), noise(at * 50))).collect();
    let large = [noise(PART + 1), noise(2 * PART), noise(3 * PART - 4097)];
    let gzip = packed(Codec::Gzip, &noise(9 << 20));
    let mut objects: Vec<(&str, Vec<u8>)> = small.iter().map(|(name, body)| (name.as_str(), body.clone())).collect();
    objects.extend(["a", "b", "c"].into_iter().zip(large.clone()));
    objects.push(("z.gz", gzip));
    let bench = Bench::new("stage-streamed", &objects);
    // A memory budget of a few pieces: streams wait for memory, and hold only what they reserved.
    let summary = bench.stage(StageOptions { memory: 32 << 20, ..inflating() }).unwrap();
    assert_eq!((summary.moved, summary.bytes_in, summary.failed.len()), (24, summary.bytes, 0));
    assert_eq!(summary.requests, 24 + 1, "one read an object, and the listing");
    let files = bench.files();
    assert!(["a", "b", "c"].iter().zip(&large).all(|(name, body)| files[*name] == *body));
    assert!(files["z"] == noise(9 << 20) && small.iter().all(|(name, body)| files[name] == *body));
    assert_eq!(bench.leftovers(), 0);
    let manifest = Manifest::load(&bench.folder.path().join("dst/.penstock/manifest.json")).unwrap();
    for (name, body) in ["a", "b", "c"].iter().zip(&large) {
        let entry = manifest.objects.iter().find(|entry| entry.key == Key::from(*name)).unwrap();
        let crc =
            penstock_types::Digest::of_u32(penstock_types::Algorithm::Crc32c, penstock_codec::checksum::crc32c(body));
        assert_eq!(entry.digests, [crc, penstock_codec::checksum::Xxh3::of(body)]);
        let origin = entry.origin.as_ref().unwrap();
        assert!(origin.digests == entry.digests && !origin.checked.is_empty());
    }
}

/// Compresses like bgzip(1): gzip members with a size field.
fn bgzf(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in body.chunks(65_000).chain([&[][..]]) {
        let member = packed(Codec::Gzip, piece);
        out.extend([0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 0xff, 6, 0, b'B', b'C', 2, 0]);
        out.extend((member.len() as u16 + 7).to_le_bytes());
        out.extend(&member[10..]);
    }
    out
}

#[test]
fn stage_takes_objects_of_many_blocks_apart() {
    let body = noise(12 << 20);
    let blocks = |codec| -> Vec<u8> { body.chunks(1 << 20).flat_map(|piece| packed(codec, piece)).collect() };
    let padded = [blocks(Codec::Gzip), vec![0; 512]].concat();
    // Objects above the part size are read in parts; smaller ones are read at once.
    let (small, small_body) = (bgzf(&body[..3 << 20]), body[..3 << 20].to_vec());
    let objects = [
        ("bgzf.gz", bgzf(&body)),
        ("members.gz", blocks(Codec::Gzip)),
        ("padded.gz", padded),
        ("frames.zst", blocks(Codec::Zstd)),
        ("other.lz4", blocks(Codec::Lz4)),
        ("small.gz", small.clone()),
    ];

    let bench = Bench::new("stage-apart", &objects);
    for memory in [1 << 30, 64 << 20] {
        let summary = bench.stage(StageOptions { memory, overwrite: true, ..inflating() }).unwrap();
        assert_eq!((summary.moved, summary.failed.len()), (6, 0));
        let files = bench.files();
        assert!(["bgzf", "members", "padded", "frames", "other"].iter().all(|name| files[*name] == body));
        assert!(files["small"] == small_body);
        std::fs::remove_dir_all(bench.folder.path().join("dst")).unwrap();
    }
    // The size limit applies to the whole object, and a damaged block fails the whole object.
    let limited = StageOptions { max_inflated: Some((12 << 20) - 1), ..inflating() };
    let summary = bench.stage(limited).unwrap();
    assert_eq!((summary.moved, summary.failed.len()), (1, 5));
    let mut broken = small;
    let at = broken.len() / 2;
    broken[at] ^= 8;
    let bench = Bench::new("stage-apart-broken", &[("bgzf.gz", broken)]);
    let summary = bench.stage(inflating()).unwrap();
    assert!(summary.failed[0].error.contains("gzip member"), "{}", summary.failed[0].error);
    assert!(bench.files().is_empty() && bench.leftovers() == 0);
}

#[test]
fn stage_of_a_large_corrupt_object_leaves_nothing() {
    let mut stored = packed(Codec::Gzip, &noise(17 << 20));
    let at = stored.len() / 2;
    stored[at] ^= 1;
    let bench = Bench::new("stage-large-corrupt", &[("big.gz", stored)]);
    let summary = bench.stage(inflating()).unwrap();
    assert_eq!(summary.failed[0].code, "corrupt");
    assert!(bench.files().is_empty());
    assert_eq!(bench.leftovers(), 0);
}

#[test]
fn stage_of_an_object_replaced_after_indexing_is_refused() {
    let bench = Bench::new("stage-replaced", &[("a", noise(10)), ("b", noise(10))]);
    let url = "memory://stage-replaced/".parse().unwrap();
    let (runtime, root) = (&bench.runtime, Key::default());
    let manifest = runtime.block_on(penstock_dataset::index(&bench.store, &root, &url, Deadline::NEVER)).unwrap();
    let path = bench.folder.path().join("m.json");
    manifest.save(&path).unwrap();
    bench.put("a", noise(11));
    bench.runtime.block_on(bench.store.delete(&[Key::from("b")], Deadline::NEVER)).unwrap();
    let request = StageRequest { manifest: Some(path), ..bench.request(StageOptions::default()) };
    let summary = bench.run(request.clone()).unwrap();
    let failed: Vec<_> = summary.failed.iter().map(|failure| (failure.key.as_str(), failure.code.as_str())).collect();
    assert_eq!(failed, [("a", "changed"), ("b", "not-found")]);
    let other = StageRequest { source: "memory://stage-replaced/x/".parse().unwrap(), ..request };
    assert_eq!(bench.run(other).unwrap_err().code(), "config");
}

#[test]
fn shares_of_a_stage_are_disjoint_and_complete_and_may_be_empty() {
    let bench = Bench::new("stage-shares", &[("a.gz", packed(Codec::Gzip, b"1")), ("b", noise(9)), ("c", noise(90))]);
    for node in 0..5 {
        let summary = bench.stage(StageOptions { node, nodes: 5, ..inflating() }).unwrap();
        assert_eq!(summary.objects, u64::from(node < 3));
    }
    assert_eq!(bench.files().keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    // A stage on one node recognises the files that five nodes wrote to a shared folder.
    assert_eq!(bench.stage(inflating()).unwrap().skipped, 3);
}

#[test]
fn dry_run_touches_nothing() {
    let bench = Bench::new("stage-dry", &[("a", noise(100)), ("b", noise(9 << 20))]);
    let request = StageRequest { dry_run: true, ..bench.request(StageOptions { nodes: 2, ..StageOptions::default() }) };
    let summary = bench.run(request).unwrap();
    assert_eq!((summary.objects, summary.requests, summary.shares.len()), (1, 3, 2));
    assert!(!bench.folder.path().join("dst").exists());
}

#[test]
fn stage_of_hostile_keys_is_refused_before_the_destination_is_made() {
    for (name, keys) in [("stage-up", ["ok", "../escape"]), ("stage-case", ["A", "a"]), ("stage-fold", ["fd", "fd/x"])]
    {
        let objects: Vec<_> = keys.iter().map(|key| (*key, noise(3))).collect();
        let bench = Bench::new(name, &objects);
        assert_eq!(bench.stage(StageOptions::default()).unwrap_err().code(), "key");
        assert!(!bench.folder.path().join("dst").exists() && !bench.folder.path().join("escape").exists());
    }
}

#[test]
fn stage_into_a_locked_destination_is_refused() {
    let bench = Bench::new("stage-locked", &[("a", noise(3))]);
    bench.stage(StageOptions::default()).unwrap();
    let path = bench.folder.path().join("dst/.penstock/stage/lock-0");
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let lock =
        libc::flock { l_type: libc::F_WRLCK as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: the struct outlives the call and the descriptor is open.
    assert_eq!(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_OFD_SETLK, &lock) }, 0);
    let error = bench.stage(StageOptions::default()).unwrap_err();
    assert_eq!(error.code(), "busy");
    assert!(error.to_string().contains("another penstock stage"), "{error}");
    drop(file);
    bench.stage(StageOptions::default()).unwrap();
}

fn limits(milliseconds: u64) -> WaitLimits {
    let limit = Duration::from_millis(milliseconds);
    WaitLimits { start: limit, heartbeat: limit }
}

#[test]
fn waiting_rank_that_starts_first_gets_the_leaders_summary() {
    let bench = Bench::new("wait-first", &[("a", noise(3))]);
    let request = StageRequest { launch: Some("job-7".into()), is_awaited: true, ..bench.request(inflating()) };
    let waiter = request.clone();
    let waiting = bench.runtime.spawn(async move { wait_for_leader(&waiter, limits(30_000)).await });
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished());
    let summary = bench.run(request).unwrap();
    assert_eq!(bench.runtime.block_on(waiting).unwrap().unwrap(), summary);
}

#[test]
fn waiting_rank_ignores_what_another_launch_left() {
    let bench = Bench::new("wait-stale", &[("a", noise(3))]);
    let request = StageRequest { launch: Some("job-7".into()), is_awaited: true, ..bench.request(inflating()) };
    bench.run(request.clone()).unwrap();
    let wait = |request: StageRequest| bench.runtime.block_on(wait_for_leader(&request, limits(700)));
    assert!(wait(request.clone()).is_ok());
    for other in [
        StageRequest { launch: Some("job-8".into()), ..request.clone() },
        StageRequest { options: StageOptions::default(), ..request.clone() },
        StageRequest { options: StageOptions { nodes: 2, ..inflating() }, ..request.clone() },
    ] {
        let error = wait(other).unwrap_err();
        assert_eq!(error.code(), "rank-failed");
        assert!(error.to_string().contains("no heartbeat"), "{error}");
    }
    assert!(wait(StageRequest { launch: None, ..request }).is_ok());
}

#[test]
fn waiting_rank_hears_that_its_leader_failed() {
    let bench = Bench::new("wait-failed", &[]);
    let request = StageRequest { launch: Some("job-7".into()), is_awaited: true, ..bench.request(inflating()) };
    let error = bench.run(request.clone()).unwrap_err();
    assert_eq!(error.code(), "not-found");
    let error = bench.runtime.block_on(wait_for_leader(&request, limits(30_000))).unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[test]
fn cancelled_stage_ends_interrupted_and_goes_on_later() {
    let names: Vec<String> = (0..200).map(|at| format!("f{at:03}")).collect();
    let objects: Vec<_> = names.iter().map(|name| (name.as_str(), noise(20_000))).collect();
    let bench = Bench::new("stage-cancel", &objects);
    let job = StageJob::start(bench.request(StageOptions { concurrency: 1, ..inflating() }), bench.runtime.handle());
    while job.progress().done < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    job.cancel();
    if let Err(error) = job.wait(Duration::from_secs(20)).unwrap() {
        assert_eq!(error.code(), "interrupted");
    }
    let files = bench.files();
    assert!(files.values().all(|body| *body == noise(20_000)));
    let summary = bench.stage(inflating()).unwrap();
    assert!(summary.skipped as usize >= files.len(), "{} of {}", summary.skipped, files.len());
    assert_eq!(bench.files().len(), 200);
}

#[test]
fn stage_into_its_own_source_is_refused() {
    let bench = Bench::new("stage-inside", &[]);
    let source = bench.folder.path().join("src");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("a"), "a").unwrap();
    for inside in ["", "out/deeper"] {
        let request = StageRequest {
            source: source.to_str().unwrap().parse().unwrap(),
            destination: source.join(inside),
            ..bench.request(StageOptions::default())
        };
        assert_eq!(bench.run(request).unwrap_err().code(), "config");
    }
    assert_eq!(std::fs::read_dir(&source).unwrap().count(), 1);
}

#[test]
fn stage_that_ends_well_sweeps_what_killed_runs_left() {
    let bench = Bench::new("stage-sweep", &[("a", noise(3))]);
    bench.stage(StageOptions::default()).unwrap();
    let parts = bench.folder.path().join("dst/.penstock/stage/parts");
    std::fs::write(parts.join("00000000000000000000000000000000.tmp"), "left").unwrap();
    bench.stage(StageOptions { nodes: 2, ..StageOptions::default() }).unwrap();
    assert_eq!(bench.leftovers(), 1);
    bench.stage(StageOptions::default()).unwrap();
    assert_eq!(bench.leftovers(), 0);
}

fn temporary(bench: &Bench, target: &str, kind: &str) -> std::path::PathBuf {
    let name = format!("{:032x}.{kind}", xxhash_rust::xxh3::xxh3_128(target.as_bytes()));
    bench.folder.path().join("dst/.penstock/stage/parts").join(name)
}

#[test]
fn stage_killed_between_journal_and_rename_reads_nothing_again() {
    let bench = Bench::new("stage-between", &[("d/a", noise(3000)), ("b", noise(10))]);
    bench.stage(StageOptions::default()).unwrap();
    std::fs::rename(bench.folder.path().join("dst/d/a"), temporary(&bench, "d/a", "tmp")).unwrap();
    let summary = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((summary.skipped, summary.bytes_in), (2, 0));
    assert_eq!((&bench.files()["d/a"], bench.leftovers()), (&noise(3000), 0));
}

#[test]
fn stage_resumes_inside_a_large_object_from_the_parts_that_are_still_whole() {
    const PART: usize = 8 << 20;
    let body = noise(20 << 20);
    let bench = Bench::new("stage-inside-large", &[("big", body.clone())]);
    let meta = bench.runtime.block_on(bench.store.head(&Key::from("big"), Deadline::NEVER)).unwrap();
    let (data, state) = (temporary(&bench, "big", "part"), temporary(&bench, "big", "done"));
    std::fs::create_dir_all(data.parent().unwrap()).unwrap();
    let leave_behind = |version: &str| {
        let mut bytes = body.clone();
        bytes[PART + 5] ^= 1; // the second part does not match its line
        bytes[2 * PART..].fill(0); // the third part never arrived; its line is incomplete
        std::fs::write(&data, &bytes).unwrap();
        let crc = |at: usize| penstock_codec::checksum::crc32c(&body[at * PART..(at + 1) * PART]);
        let milliseconds = (meta.modified_s.unwrap() * 1e3).round() as i64;
        let text = format!(
            "{{\"source\":\"memory://stage-inside-large/big\",\"size\":{},\"version\":\"{version}\",\"modified_ms\":{milliseconds},\"part_bytes\":{PART}}}\n{{\"at\":0,\"crc\":{}}}\n{{\"at\":1,\"crc\":{}}}\n{{\"at\":9,\"crc\":1}}\n{{\"at\":2,\"cr",
            body.len(),
            crc(0),
            crc(1)
        );
        std::fs::write(&state, text).unwrap();
    };
    let version = meta.version.clone().unwrap().to_string();
    leave_behind(&version);
    let summary = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((summary.resumed_bytes, summary.bytes_in), (PART as u64, (body.len() - PART) as u64));
    assert!(bench.files()["big"] == body && bench.leftovers() == 0);
    // Parts of another version are not used.
    std::fs::remove_file(bench.folder.path().join("dst/big")).unwrap();
    leave_behind("another");
    let summary = bench.stage(StageOptions::default()).unwrap();
    assert_eq!((summary.resumed_bytes, summary.bytes_in), (0, body.len() as u64));
    assert!(bench.files()["big"] == body && bench.leftovers() == 0);
}

#[test]
fn stage_over_foreign_file_needs_flag() {
    let bench = Bench::new("stage-stranger", &[("a.bin", b"theirs".to_vec()), ("b.bin", b"new".to_vec())]);
    let standing = bench.folder.path().join("dst/a.bin");
    std::fs::create_dir_all(standing.parent().unwrap()).unwrap();
    std::fs::write(&standing, b"years of work").unwrap();
    let refused = bench.stage(StageOptions::default()).unwrap_err();
    assert_eq!(refused.code(), "precondition");
    assert!(refused.to_string().contains("a.bin was not written"), "{refused}");
    assert_eq!(bench.files(), BTreeMap::from([("a.bin".to_owned(), b"years of work".to_vec())]));

    let overwriting = StageOptions { overwrite: true, ..StageOptions::default() };
    assert_eq!(bench.stage(overwriting).unwrap().moved, 2);
    assert_eq!(bench.files()["a.bin"], b"theirs");
    // A later stage may replace a file that an earlier stage wrote.
    bench.put("a.bin", b"theirs, again".to_vec());
    assert_eq!(bench.stage(StageOptions::default()).unwrap().moved, 1);
}
