// SPDX-License-Identifier: Apache-2.0
//! Store suite: checks the contract of [`Store`](crate::Store) for each capability of a store.
//!
//! The suite is part of the public API, so that stores in other crates can be tested too. Like a test, a check panics
//! with a description of the difference. Each check uses its own key prefix, and deletes its objects at the end.

mod keys;
mod lists;
mod reads;
mod uploads;
mod writes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_types::{ByteRange, Deadline, Key, Result};

use crate::{GetResult, Meta, ObjectRef, PutOptions, Store};

/// One check: its name and its function.
pub struct Check {
    /// Name in the form `subject_condition_outcome`.
    pub name: &'static str,
    run: for<'a> fn(&'a Fixture) -> futures::future::BoxFuture<'a, ()>,
}

macro_rules! checks {
    ($($module:ident::$name:ident),+ $(,)?) => {
        /// All checks, in the order in which they run.
        pub const CHECKS: &[Check] = &[$(Check {
            name: stringify!($name),
            run: |fixture| Box::pin($module::$name(fixture)),
        }),+];
    };
}

checks! {
    reads::get_whole_gives_bytes_size_and_version,
    reads::get_ranges_at_the_edges_are_cut_at_the_end,
    reads::get_range_beyond_the_end_is_corrupt,
    reads::get_ranges_many_overlapping_and_empty_are_each_complete,
    reads::get_empty_object_gives_no_chunk,
    reads::get_large_object_comes_whole_and_in_order,
    reads::get_missing_key_is_not_found,
    reads::get_of_another_version_is_changed,
    reads::head_agrees_with_get,
    reads::deadline_that_has_passed_errs,
    reads::checksum_that_a_store_keeps_comes_back,
    reads::stream_dropped_midway_leaves_the_store_usable,
    writes::put_parts_in_order_make_one_object,
    writes::put_absent_refuses_a_second_writer,
    writes::put_matching_a_version_needs_that_version,
    writes::put_with_a_wrong_checksum_is_corrupt,
    writes::put_encoding_comes_back_or_is_unsupported,
    writes::put_over_an_object_changes_its_version,
    writes::put_from_many_writers_leaves_one_whole,
    writes::delete_of_some_and_missing_keys_is_no_error,
    uploads::upload_in_parts_is_one_object_at_its_end,
    uploads::upload_again_sends_only_what_is_not_held,
    uploads::upload_aborted_leaves_nothing,
    uploads::upload_over_a_new_object_is_refused,
    uploads::writer_object_appears_whole_at_its_end,
    lists::list_is_in_byte_order_under_its_prefix,
    lists::list_after_a_key_goes_on_behind_it,
    lists::list_of_more_than_a_page_is_complete,
    lists::list_of_nothing_is_empty,
    keys::odd_keys_come_back_as_they_were,
    keys::hostile_keys_are_held_or_refused,
    keys::key_beside_its_own_folder_is_held_or_refused,
}

/// Runs all checks on a store. Panics at the first check that fails.
pub async fn run(store: Arc<dyn Store>) {
    run_but(store, &[]).await;
}

/// Runs all checks except those in `left_out`. Use it for an emulator that is known to differ from the store that it
/// emulates. Panics if `left_out` contains an unknown name.
pub async fn run_but(store: Arc<dyn Store>, left_out: &[&str]) {
    assert!(left_out.iter().all(|name| CHECKS.iter().any(|check| check.name == *name)), "no such check");
    for check in CHECKS.iter().filter(|check| !left_out.contains(&check.name)) {
        run_one(store.clone(), check).await;
    }
}

/// Runs one check on a store.
pub async fn run_one(store: Arc<dyn Store>, check: &Check) {
    let fixture = Fixture { store, prefix: format!("suite-{:08x}/", rand::random::<u32>()), name: check.name };
    (check.run)(&fixture).await;
    fixture.clear().await;
}

/// A store and a key prefix for one check.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn Store>,
    prefix: String,
    name: &'static str,
}

impl Fixture {
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::within(Duration::from_secs(60))
    }

    pub(crate) fn key(&self, tail: impl AsRef<[u8]>) -> Key {
        Key::from(self.prefix.as_str()).join(tail.as_ref())
    }

    /// Returns the value, or panics with the name of the check and the store.
    #[track_caller]
    pub(crate) fn ok<T>(&self, result: Result<T>) -> T {
        result.unwrap_or_else(|error| panic!("{} on {}: {error}", self.name, self.store.root()))
    }

    pub(crate) async fn put(&self, key: &Key, bytes: &[u8]) -> Meta {
        let parts = vec![Bytes::copy_from_slice(bytes)];
        self.ok(self.store.put(key, parts, &PutOptions::default(), self.deadline()).await)
    }

    pub(crate) async fn get(&self, object: &ObjectRef, ranges: &[ByteRange]) -> Result<(Meta, Vec<Vec<u8>>)> {
        let got = self.store.get_ranges(object, ranges, self.deadline()).await?;
        let meta = got.meta.clone();
        Ok((meta, self.collect(got, ranges).await?))
    }

    /// Returns the bytes of each range. Panics if chunks leave a gap, are empty, or belong to no range.
    pub(crate) async fn collect(&self, mut got: GetResult, ranges: &[ByteRange]) -> Result<Vec<Vec<u8>>> {
        let mut out: Vec<Vec<u8>> = vec![Vec::new(); ranges.len()];
        while let Some(chunk) = got.chunks.try_next().await? {
            assert!(!chunk.bytes.is_empty(), "{}: an empty chunk", self.name);
            let have = &mut out[chunk.range];
            let want = ranges[chunk.range].start + have.len() as u64;
            assert_eq!(chunk.offset, want, "{}: a gap in range {}", self.name, chunk.range);
            have.extend_from_slice(&chunk.bytes);
        }
        Ok(out)
    }

    pub(crate) async fn whole(&self, key: &Key) -> Vec<u8> {
        let got = self.get(&ObjectRef::current(key.clone()), &[ByteRange::WHOLE]).await;
        self.ok(got).1.remove(0)
    }

    pub(crate) async fn keys(&self, prefix: &Key, after: Option<&Key>) -> Vec<Key> {
        let metas: Result<Vec<Meta>> = self.store.list(prefix, after, self.deadline()).try_collect().await;
        self.ok(metas).into_iter().map(|meta| meta.key).collect()
    }

    async fn clear(&self) {
        if self.store.capabilities().list && self.store.capabilities().put {
            let keys = self.keys(&self.key(""), None).await;
            self.ok(self.store.delete(&keys, self.deadline()).await);
        }
    }
}

/// Returns bytes that depend on their position, so that a wrong offset is detected.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 23) as u8).collect()
}
