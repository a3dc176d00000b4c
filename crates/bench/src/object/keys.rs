// SPDX-License-Identifier: Apache-2.0
//! Chooses the object of the next request, and generates object keys.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_dataset::order::Permutation;
use penstock_types::{Key, lock};

use super::spec::{ObjectSpec, Operation};

/// The chosen object. `number` counts the benchmark's own objects, or is an index into the list of existing keys.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) number: u64,
    pub(super) key: Key,
}

/// Key chooser that all workers of a phase share (see the module).
#[derive(Debug)]
pub(super) struct Keys {
    root: Key,
    existing: Vec<Key>,
    prefixes: u64,
    objects: u64,
    order: Permutation,
    once: bool,
    next: AtomicU64,
    /// Index of the next object to write.
    fresh: AtomicU64,
    /// Objects that this phase has written and not yet deleted. DELETE requests in a mix take from these only.
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
            // Existing objects are used in shuffled order: a listing follows the partitions of the store, and requests
            // must not.
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

    /// Chooses an existing object. With `once`, returns `None` after each object was chosen once.
    pub(super) fn standing(&self) -> Option<Chosen> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        if self.once && at >= self.objects {
            return None;
        }
        Some(self.named(self.order.at(at % self.objects)))
    }

    /// Chooses an object that does not exist yet.
    pub(super) fn fresh(&self) -> Option<Chosen> {
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        (!self.once || number < self.objects).then(|| self.named(number))
    }

    /// Records that an object was written and may be deleted.
    pub(super) fn made(&self, number: u64) {
        lock(&self.spare).push(number);
    }

    /// Chooses an object to delete. In a mix, this is always an object that the mix itself has written.
    pub(super) fn spare(&self) -> Option<Chosen> {
        if self.once {
            return self.standing();
        }
        let number = lock(&self.spare).pop()?;
        Some(self.named(number))
    }

    /// Prefix for LIST requests.
    pub(super) fn folder(&self) -> Key {
        self.root.clone()
    }
}
