// SPDX-License-Identifier: Apache-2.0
//! Tests mirrors of one dataset: the store suite through the wrapper, and mirrors that fail, return wrong bytes, lack
//! objects or are slow.

use std::sync::Arc;

use bytes::Bytes;
use penstock_store::{
    Fault, Faults, Memory, MirrorReport, Mirrors, ObjectRef, Opened, PutOptions, Retry, RetryPolicy, Store,
    ThrottleConfig, ThrottledStore, Version, read_whole, suite,
};
use penstock_types::{ByteRange, Deadline, Key};

const OBJECTS: usize = 120;

fn opened(store: Arc<dyn Store>) -> Opened {
    Opened { store, prefix: Key::default() }
}

fn body(at: usize) -> Bytes {
    Bytes::from(vec![at as u8; 20_000])
}

/// Creates a store with all objects; `change` may return other bytes for an object, or `None` to omit it.
async fn filled(name: &str, change: impl Fn(usize) -> Option<Bytes>) -> Arc<dyn Store> {
    let store = Memory::named(name);
    for at in 0..OBJECTS {
        if let Some(bytes) = change(at) {
            let key = Key::new(format!("d/{at:03}"));
            store.put(&key, vec![bytes], &PutOptions::default(), Deadline::NEVER).await.unwrap();
        }
    }
    Arc::new(store)
}

/// Reads every object at the version of the first store, and checks every byte.
async fn read_all(mirrors: &Mirrors, first: &Arc<dyn Store>) -> Vec<MirrorReport> {
    let store = Retry::new(Arc::new(mirrors.clone()), RetryPolicy::default());
    let mut versions: Vec<(Key, Option<Version>)> = Vec::new();
    for at in 0..OBJECTS {
        let key = Key::new(format!("d/{at:03}"));
        let meta = first.head(&key, Deadline::NEVER).await.unwrap();
        mirrors.know(&key, meta.version.as_ref(), meta.size);
        versions.push((key, meta.version));
    }
    for (at, (key, version)) in versions.into_iter().enumerate() {
        let object = ObjectRef { key, version };
        let (meta, bytes) = read_whole(&store, &object, None, Deadline::NEVER).await.unwrap();
        assert!(bytes == body(at), "{} came back otherwise", object.key);
        assert_eq!(meta.version, object.version, "a version is the first store's, whoever read it");
    }
    mirrors.report()
}

#[tokio::test]
async fn test_mirrors_pass_the_suite_through() {
    let one = || opened(Arc::new(Memory::named("mirrors-suite")));
    suite::run(Arc::new(Mirrors::new(vec![one()]).unwrap())).await;
    suite::run(Arc::new(Mirrors::new(vec![one(), one(), one()]).unwrap())).await;
}

#[tokio::test]
async fn test_mirrors_spread_the_reads() {
    let (a, b) = (filled("spread-a", |at| Some(body(at))).await, filled("spread-b", |at| Some(body(at))).await);
    let mirrors = Mirrors::new(vec![opened(a.clone()), opened(b)]).unwrap();
    let report = read_all(&mirrors, &a).await;
    assert_eq!(report.iter().map(|one| one.bytes).sum::<u64>(), OBJECTS as u64 * 20_000);
    assert!(report.iter().all(|one| one.reads > 0 && one.errors == 0 && one.left_out.is_none()), "{report:?}");
}

#[tokio::test]
async fn test_mirror_that_lies_is_named_and_left_out() {
    let a = filled("lies-a", |at| Some(body(at))).await;
    // Objects of the same size with one wrong byte; the checksum on the mirror matches the wrong bytes.
    let b = filled("lies-b", |at| {
        let mut bytes = body(at).to_vec();
        bytes[17] ^= 1;
        Some(bytes.into())
    })
    .await;
    let c = filled("lies-c", |at| Some(body(at).slice(1..))).await;
    let mirrors = Mirrors::new(vec![opened(a.clone()), opened(b), opened(c)]).unwrap();
    let report = read_all(&mirrors, &a).await;
    assert_eq!((report[0].left_out.as_ref(), report[0].bytes), (None, OBJECTS as u64 * 20_000));
    for (liar, name) in report[1..].iter().zip(["memory://lies-b/", "memory://lies-c/"]) {
        let why = liar.left_out.as_deref().unwrap_or_else(|| panic!("{liar:?} was believed"));
        assert!(why.contains(name) && liar.url == name, "{why}");
        assert_eq!(liar.reads, 1, "{liar:?}");
    }
}

#[tokio::test]
async fn test_mirror_that_dies_or_lacks_objects_costs_no_object() {
    let a = filled("dies-a", |at| Some(body(at))).await;
    let b = filled("dies-b", |at| Some(body(at))).await;
    let resets = Faults { seed: 1, reset: 1.0, most: u64::MAX, ..Faults::default() };
    let dead: Arc<dyn Store> = Arc::new(Fault::new(b, resets));
    let c = filled("dies-c", |at| (at % 2 == 0).then(|| body(at))).await;
    let mirrors = Mirrors::new(vec![opened(a.clone()), opened(dead), opened(c)]).unwrap();
    let report = read_all(&mirrors, &a).await;
    assert!(report[1].errors > 0 && report.iter().all(|one| one.left_out.is_none()), "{report:?}");
    // The bytes that the failed mirror delivered are not read again from another mirror.
    assert_eq!(report.iter().map(|one| one.bytes).sum::<u64>(), OBJECTS as u64 * 20_000, "{report:?}");
}

#[tokio::test]
async fn test_first_store_that_dies_leaves_the_work_to_the_others() {
    let a = filled("first-a", |at| Some(body(at))).await;
    let b = filled("first-b", |at| Some(body(at))).await;
    let resets = Faults { seed: 2, reset: 1.0, most: u64::MAX, ..Faults::default() };
    let dead: Arc<dyn Store> = Arc::new(Fault::new(a.clone(), resets));
    let mirrors = Mirrors::new(vec![opened(dead), opened(b)]).unwrap();
    let report = read_all(&mirrors, &a).await;
    assert_eq!(report.iter().map(|one| one.bytes).sum::<u64>(), OBJECTS as u64 * 20_000, "{report:?}");
    assert!(report[1].reads > 0 && report[0].left_out.is_none(), "{report:?}");
}

#[tokio::test]
async fn test_slower_mirror_is_asked_for_less() {
    let a = filled("slow-a", |at| Some(body(at))).await;
    let b = filled("slow-b", |at| Some(body(at))).await;
    let slow = ThrottleConfig { latency: std::time::Duration::from_millis(20), ..ThrottleConfig::default() };
    let mirrors = Mirrors::new(vec![opened(a.clone()), opened(Arc::new(ThrottledStore::new(b, slow)))]).unwrap();
    let report = read_all(&mirrors, &a).await;
    assert!(report[1].reads > 0 && report[1].reads * 2 < report[0].reads, "{report:?}");
}

#[tokio::test]
async fn damage_found_by_the_reader_excludes_the_mirror() {
    let (a, b) = (filled("told-a", |at| Some(body(at))).await, filled("told-b", |at| Some(body(at))).await);
    let mirrors = Mirrors::new(vec![opened(a.clone()), opened(b)]).unwrap();
    for at in 0..OBJECTS {
        let key = Key::new(format!("d/{at:03}"));
        let version = a.head(&key, Deadline::NEVER).await.unwrap().version;
        let object = ObjectRef { key: key.clone(), version };
        drop(mirrors.get_ranges(&object, &[ByteRange::new(0, 10)], Deadline::NEVER).await.unwrap());
        mirrors.damaged(&key);
    }
    let report = mirrors.report();
    assert!(report[0].left_out.is_none(), "the first is the dataset: {report:?}");
    assert!(report[1].left_out.as_deref().is_some_and(|why| why.contains("is wrong")), "{report:?}");
}
