// SPDX-License-Identifier: Apache-2.0
//! Tests the endpoint through the S3 client: runs the whole store test suite, and checks the limits of a tier.

#![allow(clippy::disallowed_methods, reason = "tests write and remove files of their own")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use penstock_emulator::{Emulator, Keys, Limit, Scope, Seconds, Settings, Tier, What};
use penstock_store::{Opened, PutOptions, S3, Store, StoreSettings, suite};
use penstock_types::{Deadline, Error, Key, Metric, Metrics};

fn start(folder: &Path, tier: Tier, scale: f64) -> Emulator {
    let bind = "127.0.0.1:0".parse().unwrap();
    Emulator::start(Settings { folder: folder.to_owned(), tier, scale, bind, keys: Keys::random() }).unwrap()
}

fn settings(emulator: &Emulator, secret: &str) -> StoreSettings {
    let pairs = [
        ("AWS_ENDPOINT_URL", emulator.endpoint()),
        ("AWS_REGION", emulator.region().to_owned()),
        ("AWS_ACCESS_KEY_ID", emulator.keys().access.clone()),
        ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
    ];
    let variables: HashMap<String, String> = pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    StoreSettings::from_env(&variables).unwrap()
}

fn opened(emulator: &Emulator, metrics: &Arc<Metrics>) -> Opened {
    let url = emulator.url().parse().unwrap();
    penstock_store::open(&url, &settings(emulator, &emulator.keys().secret), metrics.clone()).unwrap()
}

/// S3 client without retries, so that each test sees every response of the endpoint.
fn bare(emulator: &Emulator, secret: &str) -> S3 {
    let name = emulator.url().trim_start_matches("s3://").trim_end_matches('/').to_owned();
    S3::new(&name, &settings(emulator, secret).s3, Arc::default()).unwrap()
}

/// Tier that allows `rate` requests per second, and a burst of `burst_s` seconds of that rate.
fn requests_tier(rate: f64, burst_s: f64) -> Tier {
    Tier {
        limits: vec![Limit { what: What::Requests, scope: Scope::Account, value: rate }],
        burst: Some(Seconds { value: burst_s }),
        ..Tier::default()
    }
}

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(30))
}

// An async runtime must not be dropped inside another one, and the emulator has its own. Each test therefore runs its
// client in a separate runtime.
fn on_client<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

#[test]
fn test_emulator_stands_the_store_suite() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = start(dir.path(), Tier::default(), 1.0);
    on_client(suite::run(opened(&emulator, &Arc::default()).store));
    assert_eq!((emulator.stats().throttles, emulator.stats().errors), (0, 0));
}

#[test]
fn test_emulator_wrong_secret_is_denied() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = start(dir.path(), Tier::default(), 1.0);
    let error = on_client(bare(&emulator, "wrong").head(&Key::from("a"), soon())).unwrap_err();
    assert!(matches!(error, Error::Denied { .. }), "{error}");
    assert_eq!(emulator.stats().denied, 1);
}

#[test]
fn test_emulator_requests_above_the_burst_are_refused_with_503() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a"), b"x").unwrap();
    // 0.02 requests/s with a burst of 5: the bucket does not refill during a test.
    let emulator = start(dir.path(), requests_tier(0.02, 250.0), 1.0);
    let store = bare(&emulator, &emulator.keys().secret);
    let answers: Vec<_> = on_client(async {
        let mut answers = Vec::new();
        for _ in 0..8 {
            answers.push(store.head(&Key::from("a"), soon()).await);
        }
        answers
    });
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 5);
    assert!(matches!(answers[7], Err(Error::Throttled { .. })), "{:?}", answers[7]);
    assert_eq!((emulator.stats().requests, emulator.stats().throttles_requests), (8, 3));
}

#[test]
fn test_emulator_scale_multiplies_the_burst() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = start(dir.path(), requests_tier(0.02, 250.0), 2.0);
    let store = bare(&emulator, &emulator.keys().secret);
    let admitted = on_client(async {
        let mut admitted = 0;
        for _ in 0..14 {
            // The object does not exist: an admitted request returns NotFound, a rejected one returns Throttled.
            admitted += usize::from(matches!(store.head(&Key::from("a"), soon()).await, Err(Error::NotFound { .. })));
        }
        admitted
    });
    assert_eq!((admitted, emulator.scale()), (10, 2.0));
}

#[test]
fn test_emulator_throttled_client_gets_through() {
    let dir = tempfile::tempdir().unwrap();
    let emulator = start(dir.path(), requests_tier(40.0, 0.1), 1.0);
    let metrics = Arc::<Metrics>::default();
    let Opened { store, .. } = opened(&emulator, &metrics);
    on_client(async {
        let writes = (0..24).map(|i| {
            let store = store.clone();
            async move {
                let key = Key::from(format!("k{i}").as_str());
                store.put(&key, vec![Bytes::from_static(b"x")], &PutOptions::default(), soon()).await.unwrap();
            }
        });
        futures::future::join_all(writes).await;
    });
    assert!(emulator.stats().throttles > 0 && metrics.get(Metric::Throttles) > 0);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().filter(|e| e.as_ref().unwrap().path().is_file()).count(), 24);
}

#[test]
fn test_emulator_stop_frees_the_port_and_leaves_no_parts() {
    let dir = tempfile::tempdir().unwrap();
    let mut emulator = start(dir.path(), Tier::default(), 1.0);
    let store = bare(&emulator, &emulator.keys().secret);
    on_client(store.put(&Key::from("a"), vec![Bytes::from_static(b"x")], &PutOptions::default(), soon())).unwrap();
    let bind: std::net::SocketAddr = emulator.endpoint().trim_start_matches("http://").parse().unwrap();
    let taken =
        Settings { folder: dir.path().to_owned(), tier: Tier::default(), scale: 1.0, bind, keys: Keys::random() };
    assert_eq!(Emulator::start(taken.clone()).unwrap_err().code(), "config");
    emulator.stop();
    emulator.stop();
    assert!(std::net::TcpStream::connect(bind).is_err());
    assert_eq!(std::fs::read_dir(dir.path().join(".penstock-emulator/tmp")).unwrap().count(), 0);
    drop(Emulator::start(taken).unwrap());
}

#[test]
fn test_emulator_folder_that_is_not_there_is_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let bind = "127.0.0.1:0".parse().unwrap();
    let gone =
        Settings { folder: dir.path().join("no"), tier: Tier::default(), scale: 1.0, bind, keys: Keys::random() };
    assert_eq!(Emulator::start(gone).unwrap_err().code(), "not-found");
}

#[test]
fn test_emulator_a_file_put_in_the_folder_is_an_object_with_one_version_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("d/found"), b"hello").unwrap();
    let emulator = start(dir.path(), Tier::default(), 1.0);
    let Opened { store, .. } = opened(&emulator, &Arc::default());
    let (listed, head, got) = on_client(async {
        let listed: Vec<_> = futures::StreamExt::collect(store.list(&Key::from("d/"), None, soon())).await;
        let head = store.head(&Key::from("d/found"), soon()).await.unwrap();
        let object = penstock_store::ObjectRef { key: Key::from("d/found"), version: head.version.clone() };
        (listed, head, penstock_store::read_whole(&*store, &object, None, soon()).await.unwrap())
    });
    assert_eq!(listed.len(), 1);
    let listed = listed[0].as_ref().unwrap();
    assert!(listed.version.is_some() && listed.version == head.version && head.version == got.0.version);
    assert_eq!(&got.1[..], b"hello");
    assert!(!dir.path().join(".penstock-emulator").exists(), "reading leaves nothing in the folder");
}

#[test]
fn test_emulator_sweeps_what_a_killed_one_left() {
    let dir = tempfile::tempdir().unwrap();
    let tmp = dir.path().join(".penstock-emulator/tmp");
    std::fs::create_dir_all(&tmp).unwrap();
    let (dead, alive, theirs) =
        (tmp.join("incoming-0000000000000001"), tmp.join("incoming-0000000000000002"), tmp.join("0-1"));
    for path in [&dead, &alive, &theirs] {
        std::fs::write(path, b"half").unwrap();
    }
    // A running emulator holds a lock on its temporary file.
    let held = std::fs::File::open(&alive).unwrap();
    held.try_lock().unwrap();
    let emulator = start(dir.path(), Tier::default(), 1.0);
    assert!(!dead.exists() && alive.exists() && theirs.exists());
    drop(emulator);
}
