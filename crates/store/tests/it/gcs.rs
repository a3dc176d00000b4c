// SPDX-License-Identifier: Apache-2.0
//! Tests Google Cloud Storage against fake-gcs-server: the store suite and the requests that are sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::peer;
use bytes::Bytes;
use futures::TryStreamExt;
use penstock_store::{Gcs, ObjectRef, PutOptions, Store, StoreSettings, open, read_whole, suite};
use penstock_types::{Algorithm, Deadline, Key, Result};

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

fn settings(env: &HashMap<String, String>) -> StoreSettings {
    StoreSettings::from_env(env).unwrap()
}

/// Suite checks that fake-gcs-server 1.56.1 fails.
const FALLS_SHORT: &[&str] = &[];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_gcs_stands_the_suite() {
    let peer = peer::FakeGcs::start().await;
    let store = Gcs::new(peer::BUCKET, &settings(&peer.env()).gcs, Arc::default()).unwrap();
    suite::run_but(Arc::new(store), FALLS_SHORT).await;
    let url = format!("gs://{}/", peer::BUCKET).parse().unwrap();
    suite::run_but(open(&url, &settings(&peer.env()), Arc::default()).unwrap().store, FALLS_SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_gcs_object_carries_its_crc_and_its_encoding() {
    let peer = peer::FakeGcs::start().await;
    let store = Gcs::new(peer::BUCKET, &settings(&peer.env()).gcs, Arc::default()).unwrap();
    let key = Key::from("a b/+%.gz");
    let options = PutOptions { encoding: Some("gzip".to_owned()), ..PutOptions::default() };
    // The content is not gzip, so a client or server that decodes it would fail.
    let put = store.put(&key, vec![Bytes::from_static(b"not really")], &options, soon()).await.unwrap();
    let (meta, bytes) = read_whole(&store, &ObjectRef::current(key.clone()), None, soon()).await.unwrap();
    assert_eq!(&bytes[..], b"not really");
    assert_eq!((&meta.version, meta.encoding.as_deref()), (&put.version, Some("gzip")));
    assert!(meta.digests.iter().any(|digest| digest.algorithm == Algorithm::Crc32c), "{:?}", meta.digests);
    let listed: Vec<_> = store.list(&Key::default(), None, soon()).try_collect().await.unwrap();
    assert_eq!((&listed[0].key, &listed[0].version), (&key, &put.version));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_gcs_missing_bucket_is_not_found() {
    let peer = peer::FakeGcs::start().await;
    let store = Gcs::new("nothing-there", &settings(&peer.env()).gcs, Arc::default()).unwrap();
    let listed: Result<Vec<_>> = store.list(&Key::default(), None, soon()).try_collect().await;
    assert_eq!(listed.unwrap_err().code(), "not-found");
}

#[tokio::test]
async fn test_gcs_without_any_credential_says_what_to_set() {
    let store = Gcs::new("b", &settings(&HashMap::new()).gcs, Arc::default()).unwrap();
    let error = store.head(&Key::from("k"), soon()).await.unwrap_err();
    assert_eq!(error.code(), "denied", "{error}");
    assert!(error.to_string().contains("PENSTOCK_GS_ANONYMOUS=1"), "{error}");
}
