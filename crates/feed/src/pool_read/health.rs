// SPDX-License-Identifier: Apache-2.0
//! Health of a pool: nodes that failed recently, and lost objects that are back.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use penstock_types::{Error, Key, lock, now};

/// Back-off of a node after its first failure, if there is an origin; it doubles with each further failure.
const FIRST_REST: Duration = Duration::from_secs(5);
const MAX_REST: Duration = Duration::from_secs(300);
/// Back-off of the engine's directory after a failure.
const ENGINE_REST: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    away: HashMap<u32, Backoff>,
    /// End of the back-off of the engine's directory.
    engine: Option<Instant>,
    /// Lost objects that were put into the pool again.
    back: HashSet<Key>,
    /// Own files that no longer exist.
    gone: HashSet<Key>,
}

/// A node that did not answer the last request.
#[derive(Debug, Clone, Copy)]
struct Backoff {
    until: Instant,
    rest: Duration,
    /// Its back-off has ended, and one read is trying it.
    is_asked: bool,
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// True if all of these nodes have failed recently; if the nodes are unknown, if the engine has. After a back-off,
    /// one caller gets false and tries; the others skip the nodes for another `timeout`, until that attempt has a
    /// result.
    pub fn are_away(&self, nodes: Option<&[u32]>, timeout: Duration) -> bool {
        let Some(nodes) = nodes else { return self.is_engine_away() };
        let mut state = self.state();
        if !nodes.iter().all(|node| state.away.contains_key(node)) {
            return false;
        }
        let now = now();
        let mut is_resting = true;
        for node in nodes {
            if let Some(away) = state.away.get_mut(node).filter(|away| away.until <= now) {
                (away.until, away.is_asked, is_resting) = (now + timeout, true, false);
            }
        }
        is_resting
    }

    /// True if this node has failed, and has not answered since.
    pub fn is_away(&self, node: u32) -> bool {
        self.state().away.contains_key(&node)
    }

    /// Records a failed read from these nodes. Concurrent reads count once. An error about the object alone says
    /// nothing about the nodes. If the nodes are unknown, only silence of the engine causes a back-off: an immediate
    /// refusal costs no wait.
    pub fn failed(&self, nodes: Option<&[u32]>, error: &Error) {
        match error {
            Error::NotFound { .. } | Error::Changed { .. } | Error::Corrupt { .. } | Error::Denied { .. } => return,
            Error::Unreachable { .. } | Error::Deadline { .. } if nodes.is_none() => self.engine_failed(),
            _ => {}
        }
        let mut state = self.state();
        for &node in nodes.unwrap_or_default() {
            let rest = match state.away.get(&node) {
                None => FIRST_REST,
                Some(away) if away.is_asked => (away.rest * 2).min(MAX_REST),
                Some(_) => continue,
            };
            state.away.insert(node, Backoff { until: now() + rest, rest, is_asked: false });
        }
    }

    /// Records a successful read from these nodes: if all of them were backed off, they no longer are. If only some
    /// were, another node may have answered.
    pub fn answered(&self, nodes: Option<&[u32]>) {
        let (mut state, nodes) = (self.state(), nodes.unwrap_or_default());
        if nodes.iter().all(|node| state.away.contains_key(node)) {
            state.away.retain(|node, _| !nodes.contains(node));
        }
    }

    pub fn engine_failed(&self) {
        self.state().engine = Some(now() + ENGINE_REST);
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

    /// The object was put back, but still cannot be read.
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

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn node_that_failed_rests_then_is_asked_by_one_read_and_rests_twice_as_long() {
        let health = Health::default();
        let silent = Error::Unreachable { place: String::new(), reason: String::new() };
        let over = || health.state().away.get_mut(&3).unwrap().until = now();
        assert!(!health.are_away(Some(&[3]), PATIENCE));
        health.failed(Some(&[3]), &silent);
        health.failed(Some(&[3]), &silent); // was under way together with the first
        assert_eq!(health.state().away[&3].rest, FIRST_REST);
        assert!(health.are_away(Some(&[3]), PATIENCE) && health.is_away(3));
        assert!(!health.are_away(Some(&[3, 4]), PATIENCE) && !health.are_away(None, PATIENCE));
        over();
        assert!(!health.are_away(Some(&[3]), PATIENCE));
        assert!(health.are_away(Some(&[3]), PATIENCE)); // another read asks already
        health.failed(Some(&[3]), &silent);
        assert_eq!(health.state().away[&3].rest, 2 * FIRST_REST);
        for _ in 0..20 {
            over();
            assert!(!health.are_away(Some(&[3]), PATIENCE));
            health.failed(Some(&[3]), &silent);
        }
        assert_eq!(health.state().away[&3].rest, MAX_REST);
        health.answered(Some(&[3, 4])); // by the other one, perhaps
        assert!(health.is_away(3));
        health.answered(Some(&[3]));
        assert!(!health.are_away(Some(&[3]), PATIENCE) && !health.is_away(3));
    }
}
