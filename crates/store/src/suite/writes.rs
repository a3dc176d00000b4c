// SPDX-License-Identifier: Apache-2.0
//! Conformance of writes.

use bytes::Bytes;
use futures::future::join_all;
use penstock_types::{Algorithm, Digest};

use super::{Bench, pattern};
use crate::{ObjectRef, Precondition, PutOptions, checksum};

pub(super) async fn put_parts_in_order_make_one_object(bench: &Bench) {
    let key = bench.key("deep/er/a");
    let parts = ["", "one", "", "two", "three"].map(|part| Bytes::from_static(part.as_bytes())).to_vec();
    let meta = bench.ok(bench.store.put(&key, parts, &PutOptions::default(), bench.deadline()).await);
    assert_eq!((&meta.key, meta.size), (&key, 11));
    assert_eq!(bench.whole(&key).await, b"onetwothree");
    bench.ok(bench.store.put(&key, Vec::new(), &PutOptions::default(), bench.deadline()).await);
    assert_eq!(bench.whole(&key).await, b"");
}

pub(super) async fn put_absent_refuses_a_second_writer(bench: &Bench) {
    if !bench.store.capabilities().preconditions {
        return;
    }
    let key = bench.key("a");
    let options = PutOptions { precondition: Precondition::Absent, ..PutOptions::default() };
    bench.ok(bench.store.put(&key, vec![Bytes::from_static(b"first")], &options, bench.deadline()).await);
    let second = bench.store.put(&key, vec![Bytes::from_static(b"second")], &options, bench.deadline()).await;
    let error = second.expect_err("a second writer was let in");
    assert_eq!(error.code(), "precondition", "{error}");
    assert_eq!(bench.whole(&key).await, b"first");
}

pub(super) async fn put_matching_a_version_needs_that_version(bench: &Bench) {
    if !bench.store.capabilities().preconditions || !bench.store.capabilities().versions {
        return;
    }
    let key = bench.key("a");
    let first = bench.put(&key, b"first").await.version.unwrap_or_else(|| panic!("no version"));
    let options = |version| PutOptions { precondition: Precondition::Matches(version), ..PutOptions::default() };
    let put = |text: &'static str, version| {
        let (key, options) = (key.clone(), options(version));
        async move { bench.store.put(&key, vec![Bytes::from(text)], &options, bench.deadline()).await }
    };
    let second = bench.ok(put("the second", first.clone()).await);
    let error = put("the third", first).await.expect_err("an old version matched");
    assert_eq!(error.code(), "precondition", "{error}");
    assert_eq!(bench.whole(&key).await, b"the second");
    let version = second.version.unwrap_or_else(|| panic!("no version"));
    bench.ok(bench.store.delete(std::slice::from_ref(&key), bench.deadline()).await);
    let error = put("the fourth", version).await.expect_err("a deleted version matched");
    assert_eq!(error.code(), "precondition", "{error}");
}

pub(super) async fn put_with_a_wrong_checksum_is_corrupt(bench: &Bench) {
    let (key, bytes) = (bench.key("a"), pattern(4000));
    let right = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
    let wrong = Digest::of_u32(Algorithm::Crc32c, !checksum::crc32c(&bytes));
    let put = |digest| {
        let (key, parts) = (key.clone(), vec![Bytes::from(bytes.clone())]);
        let options = PutOptions { checksum: Some(digest), ..PutOptions::default() };
        async move { bench.store.put(&key, parts, &options, bench.deadline()).await }
    };
    let error = put(wrong).await.expect_err("a wrong checksum was taken");
    assert_eq!(error.code(), "corrupt", "{error}");
    let error = bench.store.head(&key, bench.deadline()).await.expect_err("something was written");
    assert_eq!(error.code(), "not-found", "{error}");
    bench.ok(put(right).await);
}

pub(super) async fn put_encoding_comes_back_or_is_unsupported(bench: &Bench) {
    let key = bench.key("a");
    let options = PutOptions { encoding: Some("gzip".to_owned()), ..PutOptions::default() };
    match bench.store.put(&key, vec![Bytes::from_static(b"not really")], &options, bench.deadline()).await {
        Ok(_) => {
            let head = bench.ok(bench.store.head(&key, bench.deadline()).await);
            assert_eq!(head.encoding.as_deref(), Some("gzip"));
            assert_eq!(bench.whole(&key).await, b"not really", "the bytes are the stored ones");
        }
        Err(error) => assert_eq!(error.code(), "unsupported", "{error}"),
    }
}

pub(super) async fn put_over_an_object_changes_its_version(bench: &Bench) {
    if !bench.store.capabilities().versions {
        return;
    }
    let key = bench.key("a");
    let first = bench.put(&key, b"one").await;
    let second = bench.put(&key, b"two").await;
    assert_ne!(first.version, second.version);
    let head = bench.ok(bench.store.head(&key, bench.deadline()).await);
    assert_eq!(head.version, second.version);
}

pub(super) async fn put_from_many_writers_leaves_one_whole(bench: &Bench) {
    let key = bench.key("raced");
    let written: Vec<Vec<u8>> = (0..6u8).map(|writer| vec![writer; 200_000 + usize::from(writer)]).collect();
    join_all(written.iter().map(|bytes| bench.put(&key, bytes))).await;
    let got = bench.ok(crate::read_whole(&*bench.store, &ObjectRef::current(key), None, bench.deadline()).await).1;
    assert!(written.iter().any(|bytes| *bytes == got), "{} bytes of several writers", got.len());
}

pub(super) async fn delete_of_some_and_missing_keys_is_no_error(bench: &Bench) {
    let keys: Vec<_> = ["a", "b c", "d/e&f", "never"].map(|tail| bench.key(tail)).to_vec();
    for key in &keys[..3] {
        bench.put(key, b"x").await;
    }
    bench.ok(bench.store.delete(&keys, bench.deadline()).await);
    for key in &keys {
        let error = bench.store.head(key, bench.deadline()).await.expect_err("it was deleted");
        assert_eq!(error.code(), "not-found", "{error}");
    }
    bench.ok(bench.store.delete(&keys[..1], bench.deadline()).await);
    bench.ok(bench.store.delete(&[], bench.deadline()).await);
}
