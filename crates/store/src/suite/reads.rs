// SPDX-License-Identifier: Apache-2.0
//! Store suite: checks of reads.

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_types::{Algorithm, ByteRange, Deadline, Digest};

use super::{Fixture, pattern};
use crate::{ObjectRef, PutOptions, Version, checksum};

pub(super) async fn get_whole_gives_bytes_size_and_version(fixture: &Fixture) {
    let (key, bytes) = (fixture.key("a"), pattern(100_000));
    let put = fixture.put(&key, &bytes).await;
    let (meta, got) = fixture.ok(fixture.get(&ObjectRef::current(key.clone()), &[ByteRange::WHOLE]).await);
    assert_eq!(got[0], bytes);
    assert_eq!((meta.key, meta.size), (key, bytes.len() as u64));
    assert_eq!(meta.version.is_some(), fixture.store.capabilities().versions);
    assert_eq!(meta.version, put.version, "a write and a read must return the same version");
}

pub(super) async fn get_ranges_at_the_edges_are_cut_at_the_end(fixture: &Fixture) {
    if !fixture.store.capabilities().ranges {
        return;
    }
    let (key, bytes) = (fixture.key("a"), pattern(10));
    fixture.put(&key, &bytes).await;
    let object = ObjectRef::current(key);
    for (start, len, want) in [
        (0, 1, 0..1),
        (9, 1, 9..10),
        (9, 100, 9..10),
        (0, 10, 0..10),
        (0, 11, 0..10),
        (3, ByteRange::TO_END, 3..10),
        (3, 0, 3..3),
        (10, 0, 10..10),
    ] {
        let (meta, got) = fixture.ok(fixture.get(&object, &[ByteRange::new(start, len)]).await);
        assert_eq!(got[0], bytes[want], "{len} bytes from {start}");
        assert_eq!(meta.size, 10, "the size must be that of the object, not of the range");
    }
}

pub(super) async fn get_range_beyond_the_end_is_corrupt(fixture: &Fixture) {
    if !fixture.store.capabilities().ranges {
        return;
    }
    let key = fixture.key("a");
    fixture.put(&key, &pattern(10)).await;
    for (start, len) in [(10, 1), (11, 1), (11, 0), (1 << 40, ByteRange::TO_END)] {
        let got = fixture.get(&ObjectRef::current(key.clone()), &[ByteRange::new(start, len)]).await;
        let error = got.expect_err("a range beyond the end was answered");
        assert_eq!(error.code(), "corrupt", "{len} bytes from {start}: {error}");
        assert!(error.to_string().contains("10"), "the size is missing: {error}");
    }
}

pub(super) async fn get_ranges_many_overlapping_and_empty_are_each_complete(fixture: &Fixture) {
    if !fixture.store.capabilities().ranges {
        return;
    }
    let (key, bytes) = (fixture.key("a"), pattern(300_000));
    let version = fixture.put(&key, &bytes).await.version;
    let spans =
        [(0, 10), (10, 90_000), (90_010, 5), (5, 200_000), (7, 0), (299_999, 1), (100, 100), (100, 100), (0, 1)];
    let ranges = spans.map(|(start, len)| ByteRange::new(start, len));
    for version in [None, version] {
        let (_, got) = fixture.ok(fixture.get(&ObjectRef { key: key.clone(), version }, &ranges).await);
        for ((start, len), got) in spans.into_iter().zip(got) {
            assert!(got == bytes[start as usize..(start + len) as usize], "{len} bytes from {start} differ");
        }
    }
    let (meta, got) = fixture.ok(fixture.get(&ObjectRef::current(key), &[]).await);
    assert_eq!((meta.size, got.len()), (300_000, 0));
}

pub(super) async fn get_empty_object_gives_no_chunk(fixture: &Fixture) {
    let key = fixture.key("empty");
    fixture.put(&key, b"").await;
    let (meta, got) = fixture.ok(fixture.get(&ObjectRef::current(key.clone()), &[ByteRange::WHOLE]).await);
    assert_eq!((meta.size, got[0].len()), (0, 0));
    assert_eq!(fixture.ok(fixture.store.head(&key, fixture.deadline()).await).size, 0);
}

pub(super) async fn get_large_object_comes_whole_and_in_order(fixture: &Fixture) {
    let (key, bytes) = (fixture.key("large"), pattern(9_000_001));
    fixture.put(&key, &bytes).await;
    assert!(fixture.whole(&key).await == bytes, "9,000,001 bytes differ");
    let (meta, got) =
        fixture.ok(crate::read_whole(&*fixture.store, &ObjectRef::current(key), None, fixture.deadline()).await);
    assert!(got == bytes && meta.size == bytes.len() as u64);
}

pub(super) async fn get_missing_key_is_not_found(fixture: &Fixture) {
    let key = fixture.key("missing/nothing");
    let object = ObjectRef::current(key.clone());
    for ranges in [&[ByteRange::WHOLE][..], &[ByteRange::new(0, 4)], &[]] {
        let error = fixture.get(&object, ranges).await.expect_err("a missing key was read");
        assert_eq!(error.code(), "not-found", "{error}");
        assert!(error.to_string().contains("missing/nothing"), "{error}");
    }
    let error = fixture.store.head(&key, fixture.deadline()).await.expect_err("a missing key has a size");
    assert_eq!(error.code(), "not-found", "{error}");
}

pub(super) async fn get_of_another_version_is_changed(fixture: &Fixture) {
    if !fixture.store.capabilities().versions {
        return;
    }
    let key = fixture.key("a");
    let first = fixture.put(&key, b"one").await.version;
    let second = fixture.put(&key, b"other").await.version;
    for (version, is_current) in [(first, false), (second, true), (Some(Version("never".to_owned())), false)] {
        for range in [ByteRange::WHOLE, ByteRange::new(1, 2), ByteRange::new(1, 0)] {
            let object = ObjectRef { key: key.clone(), version: version.clone() };
            match fixture.get(&object, &[range]).await {
                Ok(_) => assert!(is_current, "a version that is gone was read"),
                Err(error) => assert!(!is_current && error.code() == "changed", "{error}"),
            }
        }
    }
}

pub(super) async fn head_agrees_with_get(fixture: &Fixture) {
    let key = fixture.key("a");
    fixture.put(&key, &pattern(1234)).await;
    let head = fixture.ok(fixture.store.head(&key, fixture.deadline()).await);
    let (meta, _) = fixture.ok(fixture.get(&ObjectRef::current(key.clone()), &[ByteRange::WHOLE]).await);
    assert_eq!(head, meta);
    if fixture.store.capabilities().list {
        let listed: Vec<_> = fixture.ok(fixture.store.list(&key, None, fixture.deadline()).try_collect().await);
        assert_eq!(listed.len(), 1);
        assert_eq!((&listed[0].key, listed[0].size, &listed[0].version), (&head.key, head.size, &head.version));
        let apart = listed[0].modified_s.zip(head.modified_s).map(|(a, b)| (a - b).abs());
        assert!(apart.is_some_and(|apart| apart < 2.0), "the times of a listing and of HEAD are {apart:?} s apart");
    }
}

pub(super) async fn deadline_that_has_passed_errs(fixture: &Fixture) {
    let key = fixture.key("a");
    fixture.put(&key, b"x").await;
    let past = Deadline::within(std::time::Duration::ZERO);
    let code = |error: penstock_types::Error| error.code();
    let object = ObjectRef::current(key.clone());
    // A store that responds immediately may succeed although the deadline has passed. Any error must be `deadline`.
    if let Err(error) = fixture.store.head(&key, past).await {
        assert_eq!(code(error), "deadline");
    }
    if let Err(error) = fixture.store.get_ranges(&object, &[ByteRange::WHOLE], past).await {
        assert_eq!(code(error), "deadline");
    }
    if let Err(error) = fixture.store.put(&key, vec![Bytes::from_static(b"y")], &PutOptions::default(), past).await {
        assert_eq!(code(error), "deadline");
    }
}

pub(super) async fn checksum_that_a_store_keeps_comes_back(fixture: &Fixture) {
    if !fixture.store.capabilities().checksums {
        return;
    }
    let (key, bytes) = (fixture.key("a"), pattern(5000));
    let crc = Digest::of_u32(Algorithm::Crc32c, checksum::crc32c(&bytes));
    let options = PutOptions { checksum: Some(crc.clone()), ..PutOptions::default() };
    let parts = vec![Bytes::from(bytes)];
    fixture.ok(fixture.store.put(&key, parts.clone(), &options, fixture.deadline()).await);
    let head = fixture.ok(fixture.store.head(&key, fixture.deadline()).await);
    // The store may return the digest that the write stated, or other digests. Each one must match the bytes.
    assert!(checksum::cheapest(&head.digests).is_some(), "none of {:?} can be checked", head.digests);
    for digest in &head.digests {
        let ours = checksum::of_parts(digest.algorithm, &parts);
        assert!(ours.is_none_or(|ours| ours == *digest), "{digest} does not match the bytes ({crc})");
    }
}

pub(super) async fn stream_dropped_midway_leaves_the_store_usable(fixture: &Fixture) {
    let (key, bytes) = (fixture.key("a"), pattern(3_000_000));
    fixture.put(&key, &bytes).await;
    for _ in 0..3 {
        let object = ObjectRef::current(key.clone());
        let got = fixture.store.get_ranges(&object, &[ByteRange::WHOLE], fixture.deadline()).await;
        let first = fixture.ok(fixture.ok(got).chunks.try_next().await);
        assert!(first.is_some());
    }
    assert!(fixture.whole(&key).await == bytes);
}
