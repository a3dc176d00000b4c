// SPDX-License-Identifier: Apache-2.0
//! Store suite: checks of keys.

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
