// SPDX-License-Identifier: Apache-2.0
//! Store suite: checks of keys and listings.

use bytes::Bytes;
use penstock_types::Key;

use super::Fixture;
use crate::PutOptions;

/// Keys that any folder can contain. Clients may escape or decode them incorrectly.
const ODD: [&str; 12] = [
    "plain",
    "with space",
    "plus+and%20percent%",
    "question?mark#hash",
    "amp&equals=semi;colon:at@",
    "quote\"'<>`{}|\\^[]",
    "ünïcödé-数据-🚰",
    "e\u{301}-not-composed",
    "..leading.dots..",
    "tilde~bang!star*paren()",
    "comma,dollar$",
    "trailing space ",
];

pub(super) async fn list_is_in_byte_order_under_its_prefix(fixture: &Fixture) {
    if !fixture.store.capabilities().list {
        return;
    }
    // `a-` and `a.` sort before `a/`, and `a0` sorts after `a/`. The byte order of keys therefore differs from the
    // order of a folder walk.
    let mut keys: Vec<Key> = ["a/b/c/d", "a/bb", "a-", "a.", "a0", "a/a", "b/x", "B", "a/é", "a/z"]
        .iter()
        .map(|tail| fixture.key(tail))
        .collect();
    for key in &keys {
        fixture.put(key, b"x").await;
    }
    keys.sort();
    assert_eq!(fixture.keys(&fixture.key(""), None).await, keys);
    for prefix in ["a", "a/", "a/b", "a/b/c", "a/b/c/", "b/x", "nothing"] {
        let prefix = fixture.key(prefix);
        let want: Vec<Key> = keys.iter().filter(|key| key.as_bytes().starts_with(prefix.as_bytes())).cloned().collect();
        assert_eq!(fixture.keys(&prefix, None).await, want, "under {prefix}");
    }
}

pub(super) async fn list_after_a_key_goes_on_behind_it(fixture: &Fixture) {
    if !fixture.store.capabilities().list {
        return;
    }
    let keys: Vec<Key> = ["a/1", "a/2/x", "a/2/y", "a/3", "b"].iter().map(|tail| fixture.key(tail)).collect();
    for key in &keys {
        fixture.put(key, b"x").await;
    }
    for after in ["a/1", "a/2", "a/2/", "a/2/x", "a/2/xx", "a/2/z", "a/3", "b", "c", "a", "A"] {
        let after = fixture.key(after);
        let want: Vec<Key> = keys.iter().filter(|key| **key > after).cloned().collect();
        assert_eq!(fixture.keys(&fixture.key(""), Some(&after)).await, want, "after {after}");
        let want: Vec<Key> =
            want.into_iter().filter(|key| key.as_bytes().starts_with(fixture.key("a/").as_bytes())).collect();
        assert_eq!(fixture.keys(&fixture.key("a/"), Some(&after)).await, want, "under a/ after {after}");
    }
}

pub(super) async fn list_of_more_than_a_page_is_complete(fixture: &Fixture) {
    if !fixture.store.capabilities().list {
        return;
    }
    let mut keys: Vec<Key> = (0..1203).map(|at| fixture.key(format!("{}/k +%{at}", at % 3))).collect();
    for batch in keys.chunks(32) {
        futures::future::join_all(batch.iter().map(|key| fixture.put(key, b"x"))).await;
    }
    keys.sort();
    assert!(fixture.keys(&fixture.key(""), None).await == keys, "1,203 keys were not listed as they were written");
}

pub(super) async fn list_of_nothing_is_empty(fixture: &Fixture) {
    if !fixture.store.capabilities().list {
        return;
    }
    fixture.put(&fixture.key("a"), b"x").await;
    for prefix in ["b", "a/", "a/b/c", "a//", "../"] {
        assert_eq!(fixture.keys(&fixture.key(prefix), None).await, [], "under {prefix}");
    }
}

pub(super) async fn odd_keys_come_back_as_they_were(fixture: &Fixture) {
    let mut keys: Vec<Key> = Vec::new();
    for key in ODD.iter().map(|tail| fixture.key(format!("{tail}/{tail}"))) {
        let parts = vec![Bytes::copy_from_slice(key.as_bytes())];
        match fixture.store.put(&key, parts, &PutOptions::default(), fixture.deadline()).await {
            // Azure changes a backslash to a slash, and HDFS does not allow colons. The store must reject such a key
            // before it writes anything.
            Err(error)
                if !fixture.store.capabilities().any_key && key.as_bytes().iter().any(|b| b"\\:".contains(b)) =>
            {
                assert_eq!(error.code(), "key", "{key}: {error}");
            }
            result => {
                fixture.ok(result);
                keys.push(key);
            }
        }
    }
    keys.sort();
    if fixture.store.capabilities().list {
        assert_eq!(fixture.keys(&fixture.key(""), None).await, keys);
        for key in &keys {
            assert_eq!(fixture.keys(key, None).await, std::slice::from_ref(key));
        }
    }
    for key in &keys {
        assert_eq!(fixture.whole(key).await, key.as_bytes(), "{key}");
        assert_eq!(fixture.ok(fixture.store.head(key, fixture.deadline()).await).key, *key);
    }
    fixture.ok(fixture.store.delete(&keys, fixture.deadline()).await);
    if fixture.store.capabilities().list {
        assert_eq!(fixture.keys(&fixture.key(""), None).await, []);
    }
}

/// Checks that a store either stores a hostile key unchanged or rejects it. It must never write to another key instead.
pub(super) async fn hostile_keys_are_held_or_refused(fixture: &Fixture) {
    let beside = fixture.key("beside");
    fixture.put(&beside, b"untouched").await;
    let long = "n".repeat(300);
    for tail in ["x/../beside", "../beside", "./beside", "x//y", "/x", "x/", "x/.", "nul\0byte", &long] {
        let key = fixture.key(tail);
        let parts = vec![Bytes::from_static(b"hostile")];
        match fixture.store.put(&key, parts, &PutOptions::default(), fixture.deadline()).await {
            Ok(_) => {
                assert_eq!(fixture.whole(&key).await, b"hostile", "{key}");
                if fixture.store.capabilities().list {
                    assert_eq!(fixture.keys(&key, None).await, std::slice::from_ref(&key));
                }
                fixture.ok(fixture.store.delete(std::slice::from_ref(&key), fixture.deadline()).await);
            }
            Err(error) => {
                assert!(!fixture.store.capabilities().any_key, "{key}: {error}");
                assert_eq!(error.code(), "key", "{key}: {error}");
            }
        }
        assert_eq!(fixture.whole(&beside).await, b"untouched", "{key} was written elsewhere");
    }
}

pub(super) async fn key_beside_its_own_folder_is_held_or_refused(fixture: &Fixture) {
    for (first, second) in [("fd", "fd/x"), ("gd/x", "gd")] {
        fixture.put(&fixture.key(first), b"first").await;
        let parts = vec![Bytes::from_static(b"second")];
        match fixture.store.put(&fixture.key(second), parts, &PutOptions::default(), fixture.deadline()).await {
            Ok(_) => assert_eq!(fixture.whole(&fixture.key(second)).await, b"second"),
            Err(error) => {
                assert!(!fixture.store.capabilities().any_key, "{second}: {error}");
                assert_eq!(error.code(), "key", "{second}: {error}");
            }
        }
        assert_eq!(fixture.whole(&fixture.key(first)).await, b"first", "{second} changed {first}");
    }
}
