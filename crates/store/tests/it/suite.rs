// SPDX-License-Identifier: Apache-2.0
//! Runs the store suite on memory, local folders and S3, and through every store wrapper.

use std::sync::Arc;

use std::time::Duration;

use crate::peer;
use penstock_store::{
    AdaptiveLimit, Fault, Faults, Hedge, LimitStore, Local, LocalReads, Memory, MeteredStore, Rates, Retry,
    RetryPolicy, S3, Store, ThrottleConfig, ThrottledStore, suite,
};

fn memory() -> Arc<dyn Store> {
    Arc::new(Memory::named("suite"))
}

#[tokio::test]
async fn test_memory_stands_the_suite() {
    suite::run(memory()).await;
}

#[tokio::test]
async fn test_local_stands_the_suite() {
    let dir = tempfile::tempdir().unwrap();
    suite::run(Arc::new(Local::new(dir.path()).unwrap())).await;
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    assert!(left.iter().all(|name| !name.starts_with(".penstock")), "{left:?}");
}

#[tokio::test]
async fn test_local_past_the_page_cache_stands_the_suite() {
    // Use a directory on disk, because tmpfs may not support O_DIRECT.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    suite::run(Arc::new(Local::new(dir.path()).unwrap().with_reads(LocalReads::Uring))).await;
}

#[tokio::test]
async fn test_retry_passes_the_suite_through() {
    suite::run(Arc::new(Retry::new(memory(), RetryPolicy::default()))).await;
}

#[tokio::test]
async fn test_count_passes_the_suite_through() {
    suite::run(Arc::new(MeteredStore::new(memory(), Arc::default()))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn test_hedge_passes_the_suite_through() {
    suite::run(Arc::new(Hedge::new(memory(), Arc::default()))).await;
}

#[tokio::test]
async fn test_govern_passes_the_suite_through() {
    suite::run(Arc::new(LimitStore::new(memory(), AdaptiveLimit::new(Rates::default(), Arc::default())))).await;
    let rates = Rates { requests_per_s: Some(1e5), bytes_per_s: Some(1e10), in_flight: 2 };
    suite::run(Arc::new(LimitStore::new(memory(), AdaptiveLimit::new(rates, Arc::default())))).await;
}

#[tokio::test]
async fn test_shape_passes_the_suite_through() {
    suite::run(Arc::new(ThrottledStore::new(memory(), ThrottleConfig::default()))).await;
    let slow = ThrottleConfig {
        latency: Duration::from_micros(10),
        latency_p99: Duration::from_micros(100),
        bytes_per_s: Some(1e9),
        requests_per_s: Some(1e6),
        burst: 10_000,
        queue: Duration::from_secs(60),
    };
    suite::run(Arc::new(ThrottledStore::new(memory(), slow))).await;
}

#[tokio::test]
async fn test_fault_without_faults_passes_the_suite_through() {
    suite::run(Arc::new(Fault::new(memory(), Faults::default()))).await;
}

#[tokio::test]
async fn test_retry_over_faults_stands_the_suite() {
    let policy = RetryPolicy {
        first_wait: Duration::from_micros(100),
        max_wait: Duration::from_millis(1),
        stall_after: Duration::from_millis(50),
        ..RetryPolicy::default()
    };
    for seed in 1..4 {
        let faults = Faults {
            seed,
            throttle: 0.05,
            reset: 0.05,
            truncate: 0.05,
            stall: 0.01,
            most: u64::MAX,
            ..Faults::default()
        };
        let fault = Arc::new(Fault::new(memory(), faults));
        suite::run(Arc::new(Retry::new(fault.clone(), policy.clone()))).await;
        assert!(fault.injected() > 100, "{} faults", fault.injected());
    }
}

/// Suite checks that versitygw fails. It stores objects as files: it resolves `x/../y` to `y`, and cannot store `fd`
/// beside `fd/x`. `tests/it/transport.rs` checks that such keys are sent unchanged; the suite run on Penstock's
/// emulator checks that they are returned unchanged.
const PEER_FALLS_SHORT: &[&str] = &["hostile_keys_are_held_or_refused", "key_beside_its_own_folder_is_held_or_refused"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_s3_stands_the_suite() {
    let Some(peer) = peer::Peer::start().await else { return };
    let settings = peer.settings();
    let store = S3::new(peer::BUCKET, &settings.s3, Arc::default()).unwrap();
    suite::run_but(Arc::new(store), PEER_FALLS_SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_opened_s3_stands_the_suite() {
    let Some(peer) = peer::Peer::start().await else { return };
    let url = format!("s3://{}/", peer::BUCKET).parse().unwrap();
    let opened = penstock_store::open(&url, &peer.settings(), Arc::default()).unwrap();
    suite::run_but(opened.store, PEER_FALLS_SHORT).await;
}
