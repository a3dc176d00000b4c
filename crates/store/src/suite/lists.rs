// SPDX-License-Identifier: Apache-2.0
//! Store suite: checks of listings.

use penstock_types::Key;

use super::Fixture;

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
