// SPDX-License-Identifier: Apache-2.0
//! Which nodes of a pool have failed lately, and which lost objects are back.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use penstock_types::{Error, Key, lock, now};

/// So long a node that failed once is not asked, where there is a bucket; twice as long with each failure that follows.
const FIRST_REST: Duration = Duration::from_secs(5);
const LONGEST_REST: Duration = Duration::from_secs(300);
/// So long the engine's directory is not asked after it failed.
const ENGINE_REST: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    away: HashMap<u32, Backoff>,
    /// Until when the engine's directory is not asked.
    engine: Option<Instant>,
    /// Lost objects that were put into the pool again.
    back: HashSet<Key>,
    /// Own files that were not there any more.
    gone: HashSet<Key>,
}

/// A node whose last answer was none.
#[derive(Debug, Clone, Copy)]
struct Backoff {
    until: Instant,
    rest: Duration,
    /// Its rest was over, and one read asks it again.
    is_asked: bool,
}

impl Health {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// True when all of these nodes have failed lately; if the nodes are unknown, when the engine has. When a rest is
    /// over, one caller is told false and asks; the others pass the nodes over for `patience` more, by when it has an answer.
    pub fn are_away(&self, nodes: Option<&[u32]>, patience: Duration) -> bool {
        let Some(nodes) = nodes else { return self.is_engine_away() };
        let mut state = self.state();
        if !nodes.iter().all(|node| state.away.contains_key(node)) {
            return false;
        }
        let now = now();
        let mut is_resting = true;
        for node in nodes {
            if let Some(away) = state.away.get_mut(node).filter(|away| away.until <= now) {
                (away.until, away.is_asked, is_resting) = (now + patience, true, false);
            }
        }
        is_resting
    }

    /// True when this node has failed, and has not answered since.
    pub fn is_away(&self, node: u32) -> bool {
        self.state().away.contains_key(&node)
    }

    /// A read from these nodes failed. Reads that were under way together count once. An answer about the object alone
    /// says nothing of them; and if the nodes are unknown, only an engine that was silent is left in peace: what it
    /// refused at once costs no wait.
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
                Some(away) if away.is_asked => (away.rest * 2).min(LONGEST_REST),
                Some(_) => continue,
            };
            state.away.insert(node, Backoff { until: now() + rest, rest, is_asked: false });
        }
    }

    /// A read from these nodes gave bytes: where all of them were away, they are no more. Of some it tells nothing, for
    /// one of the others may have given them.
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
        assert_eq!(health.state().away[&3].rest, LONGEST_REST);
        health.answered(Some(&[3, 4])); // by the other one, perhaps
        assert!(health.is_away(3));
        health.answered(Some(&[3]));
        assert!(!health.are_away(Some(&[3]), PATIENCE) && !health.is_away(3));
    }
}
