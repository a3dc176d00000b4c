// SPDX-License-Identifier: Apache-2.0
//! Store suite: checks of writes.

use bytes::Bytes;
use futures::future::join_all;
use penstock_types::{Algorithm, Digest};

use super::{Fixture, pattern};
use crate::{ObjectRef, Precondition, PutOptions, checksum};

pub(super) async fn put_parts_in_order_make_one_object(fixture: &Fixture) {
    let key = fixture.key("deep/er/a");
    let parts = ["", "one", "", "two", "three"].map(|part| Bytes::from_static(part.as_bytes())).to_vec();
    let meta = fixture.ok(fixture.store.put(&key, parts, &PutOptions::default(), fixture.deadline()).await);
    assert_eq!((&meta.key, meta.size), (&key, 11));
    assert_eq!(fixture.whole(&key).await, b"onetwothree");
    fixture.ok(fixture.store.put(&key, Vec::new(), &PutOptions::default(), fixture.deadline()).await);
    assert_eq!(fixture.whole(&key).await, b"");
}

pub(super) async fn put_absent_refuses_a_second_writer(fixture: &Fixture) {
    if !fixture.store.capabilities().preconditions {
        return;
    }
    let key = fixture.key("a");
    let options = PutOptions { precondition: Precondition::Absent, ..PutOptions::default() };
    fixture.ok(fixture.store.put(&key, vec![Bytes::from_static(b"first")], &options, fixture.deadline()).await);
    let second = fixture.store.put(&key, vec![Bytes::from_static(b"second")], &options, fixture.deadline()).await;
    let error = second.expect_err("a second writer succeeded");
    assert_eq!(error.code(), "precondition", "{error}");
    assert_eq!(fixture.whole(&key).await, b"first");
}

pub(super) async fn put_matching_a_version_needs_that_version(fixture: &Fixture) {
    if !fixture.store.capabilities().preconditions || !fixture.store.capabilities().versions {
        return;
    }
    let key = fixture.key("a");
    let first = fixture.put(&key, b"first").await.version.unwrap_or_else(|| panic!("no version"));
    let options = |version| PutOptions { precondition: Precondition::Matches(version), ..PutOptions::default() };
    let put = |text: &'static str, version| {
        let (key, options) = (key.clone(), options(version));
        async move { fixture.store.put(&key, vec![Bytes::from(text)], &options, fixture.deadline()).await }
    };
    let second = fixture.ok(put("the second", first.clone()).await);
    let error = put("the third", first).await.expect_err("an old version matched");
    assert_eq!(error.code(), "precondition", "{error}");
    assert_eq!(fixture.whole(&key).await, b"the second");
    let version = second.version.unwrap_or_else(|| panic!("no version"));
    fixture.ok(fixture.store.delete(std::slice::from_ref(&key), fixture.deadline()).await);
    let error = put("the fourth", version).await.expect_err("a deleted version matched");
    assert_eq!(error.code(), "precondition", "{error}");
}

pub(super) async fn put_with_a_wrong_checksum_is_corrupt(fixture: &Fixture) {
    let (key, bytes) = (fixture.key("a"), pattern(4000));
    let right = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
    let wrong = Digest::of_u32(Algorithm::Crc32c, !checksum::crc32c(&bytes));
    let put = |digest| {
        let (key, parts) = (key.clone(), vec![Bytes::from(bytes.clone())]);
        let options = PutOptions { checksum: Some(digest), ..PutOptions::default() };
        async move { fixture.store.put(&key, parts, &options, fixture.deadline()).await }
    };
    let error = put(wrong).await.expect_err("a wrong checksum was accepted");
    assert_eq!(error.code(), "corrupt", "{error}");
    let error = fixture.store.head(&key, fixture.deadline()).await.expect_err("an object was written");
    assert_eq!(error.code(), "not-found", "{error}");
    fixture.ok(put(right).await);
}

pub(super) async fn put_encoding_comes_back_or_is_unsupported(fixture: &Fixture) {
    let key = fixture.key("a");
    let options = PutOptions { encoding: Some("gzip".to_owned()), ..PutOptions::default() };
    match fixture.store.put(&key, vec![Bytes::from_static(b"not really")], &options, fixture.deadline()).await {
        Ok(_) => {
            let head = fixture.ok(fixture.store.head(&key, fixture.deadline()).await);
            assert_eq!(head.encoding.as_deref(), Some("gzip"));
            assert_eq!(fixture.whole(&key).await, b"not really", "the bytes must be returned as stored");
        }
        Err(error) => assert_eq!(error.code(), "unsupported", "{error}"),
    }
}

pub(super) async fn put_over_an_object_changes_its_version(fixture: &Fixture) {
    if !fixture.store.capabilities().versions {
        return;
    }
    let key = fixture.key("a");
    let first = fixture.put(&key, b"one").await;
    let second = fixture.put(&key, b"two").await;
    assert_ne!(first.version, second.version);
    let head = fixture.ok(fixture.store.head(&key, fixture.deadline()).await);
    assert_eq!(head.version, second.version);
}

pub(super) async fn put_from_many_writers_leaves_one_whole(fixture: &Fixture) {
    let key = fixture.key("raced");
    let written: Vec<Vec<u8>> = (0..6u8).map(|writer| vec![writer; 200_000 + usize::from(writer)]).collect();
    join_all(written.iter().map(|bytes| fixture.put(&key, bytes))).await;
    let got =
        fixture.ok(crate::read_whole(&*fixture.store, &ObjectRef::current(key), None, fixture.deadline()).await).1;
    assert!(written.iter().any(|bytes| *bytes == got), "{} bytes are a mix of several writers", got.len());
}

pub(super) async fn delete_of_some_and_missing_keys_is_no_error(fixture: &Fixture) {
    let keys: Vec<_> = ["a", "b c", "d/e&f", "never"].map(|tail| fixture.key(tail)).to_vec();
    for key in &keys[..3] {
        fixture.put(key, b"x").await;
    }
    fixture.ok(fixture.store.delete(&keys, fixture.deadline()).await);
    for key in &keys {
        let error = fixture.store.head(key, fixture.deadline()).await.expect_err("a deleted key still exists");
        assert_eq!(error.code(), "not-found", "{error}");
    }
    fixture.ok(fixture.store.delete(&keys[..1], fixture.deadline()).await);
    fixture.ok(fixture.store.delete(&[], fixture.deadline()).await);
}
