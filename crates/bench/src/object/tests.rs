// SPDX-License-Identifier: Apache-2.0
use std::sync::Arc;
use std::time::Duration;

use penstock_store::{Fault, Faults, Memory, Opened, Store, StoreSettings};
use penstock_types::{Error, Result};

use super::*;
use crate::Schedule;

fn mix(shares: &[(Operation, f64)]) -> Vec<Share> {
    shares.iter().map(|&(operation, weight)| Share { operation, weight }).collect()
}

fn spec(name: &str) -> ObjectSpec {
    ObjectSpec {
        url: format!("memory://{name}/ours/"),
        existing: Vec::new(),
        mix: mix(&[(Operation::Put, 1.0)]),
        object_size: 10_000,
        range_size: 1000,
        objects: 40,
        prefixes: 4,
        once: true,
        concurrency: 4,
        ramp_s: 0.0,
        time_limit_s: None,
        request_limit: None,
        until_stable: false,
        sample_s: 0.05,
        arrivals: Schedule::Closed,
        rate: None,
        verify: Some(3),
        compressible: 0,
        seed: 1,
        attempt_limit_s: 30.0,
        give_up_after_s: 60.0,
        list_keys: 1000,
    }
}

fn ended(job: &ObjectJob) -> Result<ObjectReport> {
    job.wait(Duration::from_secs(60)).expect("a few kilobytes in memory")
}

fn run(spec: &ObjectSpec) -> Result<ObjectReport> {
    ended(&ObjectJob::start(spec.clone(), StoreSettings::default())?)
}

fn only(operation: Operation, base: &ObjectSpec) -> ObjectSpec {
    ObjectSpec { mix: mix(&[(operation, 1.0)]), ..base.clone() }
}

#[test]
fn test_object_each_once_makes_reads_and_deletes_all() {
    let base = spec("once");
    let made = run(&base).unwrap();
    let total = made.last.totals[Operation::Put as usize];
    assert_eq!((total.requests, total.bytes), (40, 400_000));
    let read = run(&only(Operation::Get, &base)).unwrap();
    assert_eq!(read.operations[0].verified_bytes, 400_000);
    assert_eq!((read.operations[0].latency.count, read.operations[0].first_byte_latency.count), (40, 40));
    let ranged = run(&only(Operation::Range, &base)).unwrap();
    assert_eq!(ranged.operations[0].verified_bytes, 40_000);
    assert_eq!(run(&only(Operation::Head, &base)).unwrap().last.totals[Operation::Head as usize].requests, 40);
    run(&only(Operation::Delete, &base)).unwrap();
    assert_eq!(run(&only(Operation::Get, &base)).unwrap_err().code(), "not-found");
}

#[test]
fn test_object_mix_has_its_shares_and_its_end() {
    let base = spec("mix");
    run(&base).unwrap();
    let shares = [(Operation::Get, 60.0), (Operation::Put, 20.0), (Operation::Delete, 10.0), (Operation::List, 10.0)];
    let mixed = ObjectSpec { mix: mix(&shares), once: false, request_limit: Some(2000), ..base };
    let report = run(&mixed).unwrap();
    assert_eq!(report.ended_by, Some("requests"));
    let counts = report.last.totals.map(|total| total.requests);
    assert_eq!(counts.iter().sum::<u64>(), 2000);
    assert!((1050..1350).contains(&counts[Operation::Get as usize]), "{counts:?}");
    // A DELETE removes only objects that the mix itself has written.
    assert!(counts[Operation::Delete as usize] <= counts[Operation::Put as usize]);
}

#[test]
fn test_object_injected_refusals_are_counted_as_they_were() {
    let base = spec("refused");
    run(&base).unwrap();
    let faults = Faults {
        seed: 5,
        throttle: 0.2,
        retry_after: Some(Duration::ZERO),
        reset: 0.05,
        most: u64::MAX,
        ..Faults::default()
    };
    let fault = Arc::new(Fault::new(Arc::new(Memory::named("refused")), faults));
    let wanted = ObjectSpec {
        mix: mix(&[(Operation::Head, 1.0)]),
        once: false,
        request_limit: Some(4000),
        concurrency: 16,
        ..base
    };
    let opened = Opened { store: fault.clone() as Arc<dyn Store>, prefix: "ours/".into() };
    let report = ended(&ObjectJob::over(wanted, opened).unwrap()).unwrap();
    let found = report.operations[0].failures;
    assert_eq!(found.busy + found.reset, fault.injected());
    assert_eq!(report.operations[0].retries, fault.injected());
    let sent = 4000 + fault.injected();
    let share = found.busy as f64 / sent as f64;
    assert!((share / 0.2 - 1.0).abs() < 0.1, "{share}");
}

#[test]
fn test_object_refusals_of_requests_that_never_ended_are_counted() {
    let base = spec("never");
    run(&base).unwrap();
    let faults =
        Faults { seed: 5, throttle: 1.0, retry_after: Some(Duration::ZERO), most: u64::MAX, ..Faults::default() };
    let fault = Arc::new(Fault::new(Arc::new(Memory::named("never")), faults));
    let wanted = ObjectSpec {
        mix: mix(&[(Operation::Head, 1.0)]),
        once: false,
        time_limit_s: Some(0.2),
        concurrency: 16,
        ..base
    };
    let opened = Opened { store: fault.clone() as Arc<dyn Store>, prefix: "ours/".into() };
    let report = ended(&ObjectJob::over(wanted, opened).unwrap()).unwrap();
    let found = &report.operations[0];
    assert_eq!(report.last.totals[Operation::Head as usize].requests, 0);
    assert!(found.failures.busy > 0 && found.throttled_s > 0.0);
    assert_eq!((found.failures.busy, found.retries), (fault.injected(), fault.injected()));
}

#[test]
fn test_object_bytes_of_broken_bodies_are_refetched_and_not_counted_twice() {
    let base = ObjectSpec { object_size: 3 << 20, objects: 30, ..spec("broken") };
    run(&base).unwrap();
    let fault =
        Fault::new(Arc::new(Memory::named("broken")), Faults { seed: 2, reset: 0.3, most: 8, ..Faults::default() });
    let opened = Opened { store: Arc::new(fault), prefix: "ours/".into() };
    let report = ended(&ObjectJob::over(only(Operation::Get, &base), opened).unwrap()).unwrap();
    assert_eq!(report.last.totals[Operation::Get as usize].bytes, 30 * (3 << 20));
    assert!(report.operations[0].failures.reset > 0);
    assert!(report.operations[0].bytes_refetched > 0);
}

#[test]
fn test_object_wrong_content_ends_it_with_the_byte() {
    let base = spec("wrong");
    run(&base).unwrap();
    let other = ObjectSpec { verify: Some(4), ..only(Operation::Get, &base) };
    let error = run(&other).unwrap_err();
    assert_eq!(error.code(), "corrupt");
    assert!(error.to_string().contains("differs from the written content, starting at byte 0"), "{error}");
}

#[test]
fn test_object_others_are_read_and_never_written() {
    let base = spec("others");
    run(&base).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let keys = runtime.block_on(keys_of(&base.url, &StoreSettings::default(), 10)).unwrap();
    assert_eq!(keys.len(), 10);
    let read = ObjectSpec { existing: keys, verify: None, ..only(Operation::Get, &base) };
    assert_eq!(run(&read).unwrap().last.totals[Operation::Get as usize].requests, 10);
    for operation in [Operation::Put, Operation::Delete] {
        assert_eq!(run(&only(operation, &read)).unwrap_err().code(), "config");
    }
    assert_eq!(runtime.block_on(clear(&base.url, &StoreSettings::default())).unwrap(), 40);
    let none = runtime.block_on(keys_of(&base.url, &StoreSettings::default(), 10));
    assert_eq!(none.unwrap_err().code(), "not-found");
}

#[test]
fn test_object_ramp_is_a_series_of_workers() {
    let base = ObjectSpec { verify: None, ..spec("ramp") };
    run(&base).unwrap();
    let ramped = ObjectSpec { once: false, ramp_s: 0.3, time_limit_s: Some(0.6), ..only(Operation::Head, &base) };
    let report = run(&ramped).unwrap();
    assert_eq!(report.ended_by, Some("time"));
    let workers: Vec<u64> = report.series.iter().map(|sample| sample.workers).collect();
    assert!(workers.is_sorted() && workers.last() == Some(&4), "{workers:?}");
    assert!(report.ramp.is_some_and(|ramp| ramp.seconds < report.last.seconds));
}

#[test]
fn test_object_cancelled_ends_interrupted() {
    let base = spec("cancelled");
    run(&base).unwrap();
    let endless = ObjectSpec { once: false, time_limit_s: Some(1e6), ..only(Operation::Get, &base) };
    let job = ObjectJob::start(endless, StoreSettings::default()).unwrap();
    job.cancel();
    assert_eq!(ended(&job).unwrap_err(), Error::Interrupted);
}

#[test]
fn test_object_impossible_specs_are_refused() {
    let good = spec("refused-specs");
    for (what, spec) in [
        ("--concurrency", ObjectSpec { concurrency: 0, ..good.clone() }),
        ("--mix", ObjectSpec { mix: Vec::new(), ..good.clone() }),
        ("--mix", ObjectSpec { mix: mix(&[(Operation::Get, -1.0)]), ..good.clone() }),
        ("--mix", ObjectSpec { mix: mix(&[(Operation::Get, 1.0), (Operation::Put, 1.0)]), ..good.clone() }),
        ("--duration", ObjectSpec { once: false, ..good.clone() }),
        ("--range-size", ObjectSpec { range_size: 20_000, ..only(Operation::Range, &good) }),
        ("--rate", ObjectSpec { rate: Some(1.0), ..good.clone() }),
        ("--verify", ObjectSpec { existing: vec!["a".into()], ..only(Operation::Get, &good) }),
        ("--objects", ObjectSpec { objects: 0, ..good.clone() }),
    ] {
        match run(&spec) {
            Err(Error::Config { what: named, .. }) => assert_eq!(named, what),
            other => panic!("{what}: {other:?}"),
        }
    }
}
