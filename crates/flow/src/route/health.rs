// SPDX-License-Identifier: Apache-2.0
//! Which nodes of a pool have failed lately, and which lost objects are back.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penstock_types::{Key, now};

/// So long a node that failed is not asked, where there is a bucket.
const REST: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Until when a node is not asked.
    away: HashMap<u32, Instant>,
    /// The same for the engine's directory.
    engine: Option<Instant>,
    /// Lost objects that were put into the pool again.
    back: HashSet<Key>,
    /// Own files that were not there any more.
    gone: HashSet<Key>,
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when all of these nodes have failed lately; of nodes that nobody knows, nothing is.
    pub fn are_away(&self, nodes: Option<&[u32]>) -> bool {
        let state = self.state();
        nodes.is_some_and(|nodes| nodes.iter().all(|node| state.away.get(node).is_some_and(|until| now() < *until)))
    }

    /// A read from these nodes failed.
    pub fn failed(&self, nodes: Option<&[u32]>) {
        let until = now() + REST;
        self.state().away.extend(nodes.unwrap_or_default().iter().map(|&node| (node, until)));
    }

    pub fn engine_failed(&self) {
        self.state().engine = Some(now() + REST);
    }

    pub fn is_engine_away(&self) -> bool {
        self.state().engine.is_some_and(|until| now() < until)
    }

    pub fn came_back(&self, key: &Key) {
        self.state().back.insert(key.clone());
    }

    pub fn is_back(&self, key: &Key) -> bool {
        self.state().back.contains(key)
    }

    /// It was put back, and could not be read all the same.
    pub fn lost_again(&self, key: &Key) {
        self.state().back.remove(key);
    }

    pub fn file_gone(&self, key: &Key) {
        self.state().gone.insert(key.clone());
    }

    pub fn is_file_gone(&self, key: &Key) -> bool {
        self.state().gone.contains(key)
    }
}
