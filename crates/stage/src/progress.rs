// SPDX-License-Identifier: Apache-2.0
//! Progress counters of a running stage; any thread can read them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_types::{Error, Key, lock};
use serde::{Deserialize, Serialize};

use crate::journal::Line;

/// An object that could not be staged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Key of the object in the source; control characters are escaped.
    pub key: String,
    /// [`Error::code`].
    pub code: String,
    /// The error.
    pub error: String,
}

/// Counters of one stage.
#[derive(Debug, Default)]
pub struct Progress {
    pub(super) objects: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) done: AtomicU64,
    pub(super) done_bytes: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) resumed_bytes: AtomicU64,
    pub(super) refetched: AtomicU64,
    pub(super) without_checksum: AtomicU64,
    pub(super) wrong: AtomicU64,
    failures: Mutex<Vec<(Failure, Error)>>,
}

/// Snapshot of [`Progress`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Objects in this node's share; 0 until the listing has ended.
    pub objects: u64,
    /// Stored bytes of the objects in this node's share.
    pub bytes: u64,
    /// Objects that have their final name, including those of earlier runs.
    pub done: u64,
    /// Stored bytes of the finished objects.
    pub done_bytes: u64,
    /// Objects that already existed in the destination.
    pub skipped: u64,
    /// Bytes of objects received.
    pub bytes_in: u64,
    /// Bytes of finished files.
    pub bytes_out: u64,
    /// Bytes that an interrupted run had transferred, and that this run therefore did not transfer.
    pub resumed_bytes: u64,
    /// Objects that were requested again because their bytes arrived damaged.
    pub refetched: u64,
    /// Objects for which the store reported no digest.
    pub without_checksum: u64,
    /// Objects that failed, or that a verification found wrong.
    pub failed: u64,
}

impl Progress {
    pub(super) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    /// Counts an object that has its final name and a journal line.
    pub(super) fn finish(&self, line: &Line) {
        Self::add(&self.done, 1);
        Self::add(&self.done_bytes, line.origin.size);
        Self::add(&self.bytes_out, line.size);
        Self::add(&self.without_checksum, u64::from(line.origin.checked.is_empty()));
    }

    /// Counts an object of `size` stored bytes that already existed in the destination.
    pub(super) fn skip(&self, size: u64) {
        Self::add(&self.skipped, 1);
        Self::add(&self.done, 1);
        Self::add(&self.done_bytes, size);
    }

    pub(super) fn fail(&self, key: &Key, error: Error) {
        let failure = Failure { key: key.to_string(), code: error.code().to_owned(), error: error.to_string() };
        lock(&self.failures).push((failure, error));
    }

    pub(super) fn failures(&self) -> Vec<(Failure, Error)> {
        let mut failures = lock(&self.failures).clone();
        failures.sort_by(|a, b| a.0.key.cmp(&b.0.key));
        failures
    }

    /// Returns the current counter values.
    pub fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            objects: get(&self.objects),
            bytes: get(&self.bytes),
            done: get(&self.done),
            done_bytes: get(&self.done_bytes),
            skipped: get(&self.skipped),
            bytes_in: get(&self.bytes_in),
            bytes_out: get(&self.bytes_out),
            resumed_bytes: get(&self.resumed_bytes),
            refetched: get(&self.refetched),
            without_checksum: get(&self.without_checksum),
            failed: get(&self.wrong) + lock(&self.failures).len() as u64,
        }
    }
}
