// SPDX-License-Identifier: Apache-2.0
//! Health of a pool: nodes that failed recently, and lost objects that were put back into the pool.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use penstock_types::{Error, Key, lock, now};

/// Back-off of a node after its first failure. It doubles with each further failure, up to [`MAX_REST`]. Only a pool
/// with an origin uses back-offs.
const FIRST_REST: Duration = Duration::from_secs(5);
const MAX_REST: Duration = Duration::from_secs(300);
/// Back-off after a failure of the engine's directory service.
const ENGINE_REST: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    away: HashMap<u32, Backoff>,
    /// Time at which the back-off of the engine's directory service ends.
    engine: Option<Instant>,
    /// Lost objects that were put back into the pool.
    back: HashSet<Key>,
    /// Files of this node that were found to be missing.
    gone: HashSet<Key>,
}

/// Back-off of a node whose last read failed.
#[derive(Debug, Clone, Copy)]
struct Backoff {
    until: Instant,
    rest: Duration,
    /// True if the back-off has ended and one read is now trying the node.
    is_asked: bool,
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// True if reads of an object on these nodes should be skipped, because all these nodes failed recently. If `nodes`
    /// is `None`, true if the engine failed recently. When the back-off of a node ends, one caller gets false and tries
    /// the node. All other callers skip the node for another `timeout`, or until the attempt has a result.
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

    /// True if a read from this node failed, and no later read succeeded.
    pub fn is_away(&self, node: u32) -> bool {
        self.state().away.contains_key(&node)
    }

    /// Records a failed read from these nodes. Concurrent failures count once. An error that concerns only the object
    /// is ignored, because the nodes may be healthy. If the nodes are unknown, the engine gets a back-off, but only if
    /// it did not respond: an immediate error costs no time.
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

    /// Records a successful read from these nodes. If all these nodes were in back-off, their back-off ends. If only
    /// some of them were in back-off, nothing changes, because another node may have served the read.
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

    /// Records that an object cannot be read, although it was put back into the pool.
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
        health.failed(Some(&[3]), &silent); // a read that was in flight at the same time
        assert_eq!(health.state().away[&3].rest, FIRST_REST);
        assert!(health.are_away(Some(&[3]), PATIENCE) && health.is_away(3));
        assert!(!health.are_away(Some(&[3, 4]), PATIENCE) && !health.are_away(None, PATIENCE));
        over();
        assert!(!health.are_away(Some(&[3]), PATIENCE));
        assert!(health.are_away(Some(&[3]), PATIENCE)); // another read is already trying the node
        health.failed(Some(&[3]), &silent);
        assert_eq!(health.state().away[&3].rest, 2 * FIRST_REST);
        for _ in 0..20 {
            over();
            assert!(!health.are_away(Some(&[3]), PATIENCE));
            health.failed(Some(&[3]), &silent);
        }
        assert_eq!(health.state().away[&3].rest, MAX_REST);
        health.answered(Some(&[3, 4])); // node 4 may have served this read
        assert!(health.is_away(3));
        health.answered(Some(&[3]));
        assert!(!health.are_away(Some(&[3]), PATIENCE) && !health.is_away(3));
    }
}
