// SPDX-License-Identifier: Apache-2.0
//! Choice of objects: which exist, which comes next, and their keys.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_dataset::order::Permutation;
use penstock_types::{Key, lock};

use super::spec::{ObjectSpec, Operation};

/// An object: by its number among ours, or by its index among existing ones.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) number: u64,
    pub(super) key: Key,
}

/// See the module. All workers share one.
#[derive(Debug)]
pub(super) struct Keys {
    root: Key,
    existing: Vec<Key>,
    prefixes: u64,
    objects: u64,
    order: Permutation,
    once: bool,
    next: AtomicU64,
    /// The next that has not been made.
    fresh: AtomicU64,
    /// Made by this stretch of requests, and not deleted: what its DELETEs take.
    spare: Mutex<Vec<u64>>,
}

impl Keys {
    pub(super) fn new(spec: &ObjectSpec, root: Key) -> Self {
        let existing: Vec<Key> = spec.existing.iter().map(|key| root.join(key.as_bytes())).collect();
        let objects = if existing.is_empty() { spec.objects } else { existing.len() as u64 };
        let makes = spec.is_one_kind(Operation::Put);
        Self {
            root,
            existing,
            prefixes: u64::from(spec.prefixes),
            objects,
            // A listing's order follows the partitions of a store: the requests shall not.
            order: if makes { Permutation::identity(objects) } else { Permutation::keyed(objects, spec.seed, 0, 0) },
            once: spec.once,
            next: AtomicU64::new(0),
            fresh: AtomicU64::new(if makes { 0 } else { objects }),
            spare: Mutex::new(Vec::new()),
        }
    }

    fn named(&self, number: u64) -> Chosen {
        let key = match self.existing.get(number as usize) {
            Some(key) => key.clone(),
            None => self.root.join(format!("p{:04}/o{number:09}", number % self.prefixes).as_bytes()),
        };
        Chosen { number, key }
    }

    /// One that is there; `None` when each has had its turn.
    pub(super) fn standing(&self) -> Option<Chosen> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        if self.once && at >= self.objects {
            return None;
        }
        Some(self.named(self.order.at(at % self.objects)))
    }

    /// One that does not exist yet.
    pub(super) fn fresh(&self) -> Option<Chosen> {
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        (!self.once || number < self.objects).then(|| self.named(number))
    }

    /// It is there now, and may be deleted.
    pub(super) fn made(&self, number: u64) {
        lock(&self.spare).push(number);
    }

    /// An object to delete: in a mix, only one that the mix itself has written.
    pub(super) fn spare(&self) -> Option<Chosen> {
        if self.once {
            return self.standing();
        }
        let number = lock(&self.spare).pop()?;
        Some(self.named(number))
    }

    /// Prefix of a LIST.
    pub(super) fn folder(&self) -> Key {
        self.root.clone()
    }
}
