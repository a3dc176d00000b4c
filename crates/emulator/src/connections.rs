// SPDX-License-Identifier: Apache-2.0
//! Open connections and their maximum number. At the maximum, the connection that has been idle longest is closed to
//! make room for a new client. If a connection is processing a request, it is closed only after that request.

use penstock_types::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

/// Divisor of the process's limit on open files. Connections may use one half. The other half is for files, new clients
/// and the rest of the process.
const SHARE: u64 = 2;

/// State of one connection.
pub(crate) struct Peer {
    /// Start time of the last request, in microseconds since the table was created. Before the first request, it is the
    /// time at which the connection was accepted.
    last_us: AtomicU64,
    has_asked: AtomicBool,
    is_evicted: AtomicBool,
    evict: Notify,
}

impl Peer {
    /// Resolves when the connection must close. Returns true if the connection never received a request and must close
    /// immediately. Returns false if it must close after the current request.
    pub(crate) async fn evicted(&self) -> bool {
        self.evict.notified().await;
        !self.has_asked.load(Ordering::Acquire)
    }
}

/// Table of open connections with a maximum size.
pub(crate) struct Connections {
    began: Instant,
    max: usize,
    open: Mutex<HashMap<u64, Arc<Peer>>>,
    next: AtomicU64,
}

impl Connections {
    /// Creates the table. Its maximum size is derived from the process's limit on open files.
    pub(crate) fn new() -> Self {
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Self::with_max(usize::try_from(files / SHARE).unwrap_or(usize::MAX).max(8))
    }

    fn with_max(max: usize) -> Self {
        Self { began: penstock_types::now(), max, open: Mutex::default(), next: AtomicU64::new(0) }
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// Registers a new connection. If the table is full, first asks another connection to close.
    pub(crate) fn add(self: &Arc<Self>) -> Registered {
        let peer = Arc::new(Peer {
            last_us: AtomicU64::new(self.now_us()),
            has_asked: AtomicBool::new(false),
            is_evicted: AtomicBool::new(false),
            evict: Notify::new(),
        });
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = lock(&self.open);
        if open.len() >= self.max {
            evict_one(&open);
        }
        open.insert(id, peer.clone());
        drop(open);
        Registered { connections: self.clone(), id, peer }
    }

    /// Asks one connection to close. Prefers a connection that never received a request; among equals, chooses the one
    /// that has been idle longest.
    pub(crate) fn evict(&self) {
        evict_one(&lock(&self.open));
    }
}

fn evict_one(open: &HashMap<u64, Arc<Peer>>) {
    let staying = open.iter().filter(|(_, peer)| !peer.is_evicted.load(Ordering::Relaxed));
    let idlest = staying
        .min_by_key(|(id, peer)| (peer.has_asked.load(Ordering::Relaxed), peer.last_us.load(Ordering::Relaxed), **id));
    if let Some((_, peer)) = idlest {
        peer.is_evicted.store(true, Ordering::Relaxed);
        peer.evict.notify_one();
    }
}

/// Table entry of a connection. Dropping this value removes the entry.
pub(crate) struct Registered {
    connections: Arc<Connections>,
    id: u64,
    pub(crate) peer: Arc<Peer>,
}

impl Registered {
    /// Records that a request has started.
    pub(crate) fn asks(&self) {
        self.peer.last_us.store(self.connections.now_us(), Ordering::Relaxed);
        self.peer.has_asked.store(true, Ordering::Release);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        lock(&self.connections.open).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_that_never_asked_goes_before_one_that_did_and_none_goes_twice() {
        let connections = Arc::new(Connections::with_max(2));
        let first = connections.add();
        first.asks();
        let second = connections.add();
        let gone = |peer: &Registered| peer.peer.is_evicted.load(Ordering::Relaxed);
        assert!(!gone(&first) && !gone(&second));
        let third = connections.add();
        assert!(!gone(&first) && gone(&second) && !gone(&third));
        third.asks();
        let fourth = connections.add();
        assert!(gone(&first) && !gone(&third) && !gone(&fourth), "the first asked longer ago");
        drop((second, third, fourth));
        assert_eq!(connections.open.lock().unwrap().len(), 1);
    }
}
