// SPDX-License-Identifier: Apache-2.0
//! Tests behaviour that only a real S3 server has: signatures, buckets and multipart uploads.

use std::sync::Arc;

use crate::peer;
use bytes::Bytes;
use futures::TryStreamExt;
use penstock_store::{ObjectRef, Precondition, PutOptions, S3, Store, StoreSettings, open, read_whole};
use penstock_types::{Deadline, Key, Metric, Metrics};

fn soon() -> Deadline {
    Deadline::within(std::time::Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_wrong_secret_is_denied_and_missing_bucket_not_found() {
    let Some(peer) = peer::Peer::start().await else { return };
    for (change, bucket, want) in [
        (Some(("AWS_SECRET_ACCESS_KEY", "wrong")), peer::BUCKET, "denied"),
        (Some(("AWS_ACCESS_KEY_ID", "nobody")), peer::BUCKET, "denied"),
        (None, "nothing-there", "not-found"),
    ] {
        let mut env = peer.env();
        env.extend(change.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let settings = StoreSettings::from_env(&env).unwrap();
        let url = format!("s3://{bucket}/").parse().unwrap();
        let store = open(&url, &settings, Arc::default()).unwrap().store;
        let listed: penstock_types::Result<Vec<_>> = store.list(&Key::default(), None, soon()).try_collect().await;
        let error = listed.unwrap_err();
        assert_eq!(error.code(), want, "{error}");
        assert!(error.to_string().starts_with(&format!("s3://{bucket}/")), "{error}");
        // A response to HEAD has no body with an error code, so versitygw's 404 for an unknown access key looks like a
        // missing object.
        let code = store.head(&Key::from("k"), soon()).await.unwrap_err().code();
        assert!(code == want || (code == "not-found" && change.is_some_and(|(_, value)| value == "nobody")), "{code}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_large_object_goes_in_parts_and_comes_back() {
    let Some(peer) = peer::Peer::start().await else { return };
    let metrics = Arc::new(Metrics::default());
    let store = S3::new(peer::BUCKET, &peer.settings().s3, metrics.clone()).unwrap();
    // Slightly more than 65 MiB, in buffers whose ends do not coincide with the ends of parts.
    let piece = Bytes::from((0..1_000_003u32).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    let parts: Vec<Bytes> = std::iter::repeat_n(piece, 69).collect();
    let key = Key::from("large object");
    let options = PutOptions { precondition: Precondition::Absent, ..PutOptions::default() };
    let put = store.put(&key, parts.clone(), &options, soon()).await.unwrap();
    assert!(metrics.get(Metric::Puts) >= 6, "{} requests", metrics.get(Metric::Puts));
    let (meta, bytes) = read_whole(&store, &ObjectRef::current(key.clone()), None, soon()).await.unwrap();
    assert!(bytes == parts.concat());
    assert_eq!((meta.size, &meta.version), (put.size, &put.version));
    assert!(meta.digests.contains(&put.digests[0]), "{:?}", meta.digests);
    let again = store.put(&key, parts, &options, soon()).await.unwrap_err();
    assert_eq!(again.code(), "precondition", "{again}");
    // The parts of the rejected upload were deleted.
    assert!(store.list(&Key::default(), None, soon()).try_collect::<Vec<_>>().await.unwrap().len() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_unsigned_requests_are_denied_by_a_private_bucket() {
    let Some(peer) = peer::Peer::start().await else { return };
    let mut env = peer.env();
    env.insert("PENSTOCK_S3_ANONYMOUS".to_owned(), "1".to_owned());
    let settings = StoreSettings::from_env(&env).unwrap();
    let store = open(&format!("s3://{}/", peer::BUCKET).parse().unwrap(), &settings, Arc::default()).unwrap().store;
    assert_eq!(store.head(&Key::from("k"), soon()).await.unwrap_err().code(), "denied");
}
