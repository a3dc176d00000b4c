// SPDX-License-Identifier: Apache-2.0
//! Chooses the object for the next request, and generates object keys.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_dataset::order::Permutation;
use penstock_types::{Key, lock};

use super::spec::{ObjectSpec, Operation};

/// The object for a request. `number` is the number in a generated key, or the index in the list of existing keys.
#[derive(Debug, Clone)]
pub(super) struct Chosen {
    pub(super) number: u64,
    pub(super) key: Key,
}

/// Chooses objects for all workers of a phase.
#[derive(Debug)]
pub(super) struct Keys {
    root: Key,
    existing: Vec<Key>,
    prefixes: u64,
    objects: u64,
    order: Permutation,
    once: bool,
    next: AtomicU64,
    /// Number of the next object to write.
    fresh: AtomicU64,
    /// Numbers of the objects that this phase has written and not yet deleted. In a mix, only these are deleted.
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
            // Read the existing objects in shuffled order. In the order of a listing, consecutive requests would go to
            // the same partition of the store.
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

    /// Chooses an existing object. With `once`, returns `None` after every object has been chosen once.
    pub(super) fn standing(&self) -> Option<Chosen> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        if self.once && at >= self.objects {
            return None;
        }
        Some(self.named(self.order.at(at % self.objects)))
    }

    /// Chooses a key for a new object. With `once`, returns `None` after the last object of the spec.
    pub(super) fn fresh(&self) -> Option<Chosen> {
        let number = self.fresh.fetch_add(1, Ordering::Relaxed);
        (!self.once || number < self.objects).then(|| self.named(number))
    }

    /// Records that an object was written and may be deleted.
    pub(super) fn made(&self, number: u64) {
        lock(&self.spare).push(number);
    }

    /// Chooses an object to delete; `None` if there is none. In a mix, chooses only objects that the mix has written.
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
