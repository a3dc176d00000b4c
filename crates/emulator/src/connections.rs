// SPDX-License-Identifier: Apache-2.0
//! Open connections and their limit. At the limit the connection that has asked for nothing the longest gives up its
//! descriptor to the next client; a request that is being answered is never cut.

use penstock_types::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;

/// Descriptors that connections leave to files, to the rest of the process and to new clients: half of what is allowed.
const SHARE: u64 = 2;

/// One connection, as its limit sees it.
pub(crate) struct Peer {
    /// When its last request began, or when it was accepted, in microseconds since the table was made.
    last_us: AtomicU64,
    has_asked: AtomicBool,
    is_evicted: AtomicBool,
    evict: Notify,
}

impl Peer {
    /// Resolves once the connection has to go. True: cut it, nothing was ever asked. False: end it after its request.
    pub(crate) async fn evicted(&self) -> bool {
        self.evict.notified().await;
        !self.has_asked.load(Ordering::Acquire)
    }
}

/// See the module.
pub(crate) struct Connections {
    began: Instant,
    max: usize,
    open: Mutex<HashMap<u64, Arc<Peer>>>,
    next: AtomicU64,
}

impl Connections {
    /// With the limit that the process's own of open files allows.
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

    /// Registers a new connection; at the limit, another one is asked to close.
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

    /// Tells the connection to go that has asked for nothing the longest; one that never asked goes first.
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

/// A connection's place in the table, until it is dropped.
pub(crate) struct Registered {
    connections: Arc<Connections>,
    id: u64,
    pub(crate) peer: Arc<Peer>,
}

impl Registered {
    /// A request has begun.
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
