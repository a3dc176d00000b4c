// SPDX-License-Identifier: Apache-2.0
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::{Memory, ThrottleConfig, ThrottledStore, read_whole};

fn governor(rates: Rates) -> (Arc<AdaptiveLimit>, Arc<Metrics>) {
    let metrics = Arc::<Metrics>::default();
    (AdaptiveLimit::new(rates, metrics.clone()), metrics)
}

async fn filled(count: usize, bytes: usize) -> Arc<dyn Store> {
    let store = Memory::named(&format!("govern-{count}-{bytes}"));
    for at in 0..count {
        let body = Bytes::from(vec![at as u8; bytes]);
        let key = Key::from(format!("k{at:03}").as_str());
        store.put(&key, vec![body], &PutOptions::default(), Deadline::NEVER).await.unwrap();
    }
    Arc::new(store)
}

#[tokio::test]
async fn governor_doubles_while_calm_stands_still_when_throttled_then_adds() {
    let (governor, metrics) = governor(Rates { in_flight: 200, ..Rates::default() });
    let round = |count: usize| {
        let governor = governor.clone();
        async move {
            for _ in 0..count {
                drop(governor.enter("x", Deadline::NEVER).await.unwrap());
            }
        }
    };
    round(16 + 32).await;
    assert_eq!(governor.limit(), 64);
    round(63).await;
    metrics.count(Metric::Throttles);
    round(1).await;
    assert_eq!(governor.limit(), 64);
    round(64 + 65).await;
    assert_eq!(governor.limit(), 66);
}

#[test]
fn governor_backs_off_from_a_store_that_grows_slow_and_not_below_its_start() {
    let (governor, _) = governor(Rates { in_flight: 1000, ..Rates::default() });
    let round = |millis: f64| {
        let mut state = governor.state();
        let timed = state.limit;
        state.turn(&Round { calls: timed, first_bytes: millis / 1e3 * timed as f64, timed }, 1000);
        state.limit
    };
    assert_eq!((round(20.0), round(21.0), round(22.0)), (32, 64, 128));
    assert_eq!((round(80.0), round(80.0)), (116, 105));
    assert_eq!(round(25.0), 106);
    (0..100).for_each(|_| {
        governor.state().best = Some(0.02);
        round(500.0);
    });
    assert_eq!(governor.limit(), START);
}

#[tokio::test]
async fn governor_never_lets_more_in_than_its_limit_and_strands_no_one() {
    let (governor, _) = governor(Rates { in_flight: 3, ..Rates::default() });
    let inside = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let (governor, inside) = (governor.clone(), inside.clone());
            tokio::spawn(async move {
                let _slot = governor.enter("x", Deadline::NEVER).await.unwrap();
                assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Checks only that transfers are not faster than the rate, because a shared machine may make them slower.
#[tokio::test]
async fn govern_requests_and_bytes_pass_no_faster_than_the_rate() {
    let inner = filled(20, 1000).await;
    for (rates, min_s) in [
        (Rates { requests_per_s: Some(100.0), ..Rates::default() }, 0.19 - 0.1),
        (Rates { bytes_per_s: Some(100_000.0), ..Rates::default() }, 0.2 - 0.1),
    ] {
        let (governor, _) = governor(rates);
        let store: Arc<dyn Store> = Arc::new(LimitStore::new(inner.clone(), governor.clone()));
        let clock = Stopwatch::start();
        let reads = (0..20).map(|at| {
            let store = store.clone();
            tokio::spawn(async move {
                let key = Key::from(format!("k{at:03}").as_str());
                read_whole(&*store, &ObjectRef::current(key), None, Deadline::NEVER).await.unwrap().1.len()
            })
        });
        for read in reads.collect::<Vec<_>>() {
            assert_eq!(read.await.unwrap(), 1000);
        }
        assert!(clock.elapsed().as_secs_f64() >= min_s, "{rates:?}: {:?}", clock.elapsed());
        // Half of the job's share gives half of the rate.
        governor.take_part(0.5);
        let clock = Stopwatch::start();
        for at in 0..10 {
            let key = Key::from(format!("k{at:03}").as_str());
            read_whole(&*store, &ObjectRef::current(key), None, Deadline::NEVER).await.unwrap();
        }
        assert!(clock.elapsed().as_secs_f64() >= min_s, "{rates:?}: {:?}", clock.elapsed());
    }
}

#[tokio::test]
async fn govern_a_wait_for_leave_ends_at_the_deadline() {
    let (governor, _) = governor(Rates { requests_per_s: Some(0.01), ..Rates::default() });
    let store = LimitStore::new(filled(2, 1).await, governor);
    let key = Key::from("k000");
    let deadline = Deadline::within(Duration::from_millis(50));
    let mut last = Ok(());
    for _ in 0..3 {
        last = store.head(&key, deadline).await.map(|_| ());
    }
    let error = last.unwrap_err();
    assert_eq!(error.code(), "deadline", "{error}");
    assert!(error.to_string().contains("HEAD memory://"), "{error}");
}

/// The store throttles above its limit. All requests still succeed, and the concurrency limit adapts.
#[tokio::test]
async fn govern_finds_the_rate_of_a_store_that_refuses() {
    let metrics = Arc::<Metrics>::default();
    let limits = ThrottleConfig { requests_per_s: Some(400.0), burst: 4, ..ThrottleConfig::default() };
    let shaped = Arc::new(crate::MeteredStore::new(
        Arc::new(ThrottledStore::new(filled(100, 10).await, limits)),
        metrics.clone(),
    ));
    let retry = Arc::new(crate::Retry::new(shaped, crate::RetryPolicy::default()).with_metrics(metrics.clone()));
    let governor = AdaptiveLimit::new(Rates { in_flight: 64, ..Rates::default() }, metrics.clone());
    let store: Arc<dyn Store> = Arc::new(LimitStore::new(retry, governor.clone()));
    let reads: Vec<_> = (0..100)
        .map(|at| {
            let store = store.clone();
            tokio::spawn(async move {
                let key = Key::from(format!("k{at:03}").as_str());
                store.head(&key, Deadline::NEVER).await.unwrap().size
            })
        })
        .collect();
    for read in reads {
        assert_eq!(read.await.unwrap(), 10);
    }
    let refused = metrics.get(Metric::Throttles);
    assert!((1..100).contains(&refused), "{refused} refusals of 100 objects");
    assert!(governor.limit() < 64, "{}", governor.limit());
}

#[test]
fn rates_that_move_nothing_are_refused() {
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(Rates { requests_per_s: Some(rate), ..Rates::default() }.check().unwrap_err().code(), "config");
        assert_eq!(Rates { bytes_per_s: Some(rate), ..Rates::default() }.check().unwrap_err().code(), "config");
    }
}
