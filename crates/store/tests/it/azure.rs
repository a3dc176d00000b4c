// SPDX-License-Identifier: Apache-2.0
//! Tests Azure Blob Storage against Azurite: the store suite, block uploads and access rights.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::peer;
use bytes::Bytes;
use futures::TryStreamExt;
use penstock_store::{
    Azure, ObjectRef, Opened, Precondition, PutOptions, Store, StoreSettings, open, read_whole, suite,
};
use penstock_types::{Algorithm, Deadline, Key, Metric, Metrics, Result};

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

fn opened(env: &HashMap<String, String>, url: &str) -> Result<Opened> {
    let mut settings = StoreSettings::from_env(env)?;
    settings.retry.never_reached_after = Duration::from_secs(2);
    open(&url.parse()?, &settings, Arc::default())
}

fn settings(env: &HashMap<String, String>) -> penstock_store::AzureSettings {
    StoreSettings::from_env(env).unwrap().azure
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_azure_stands_the_suite() {
    let peer = peer::Azurite::start().await;
    suite::run(Arc::new(Azure::new(peer::BUCKET, &settings(&peer.env()), Arc::default()).unwrap())).await;
    suite::run(opened(&peer.env(), &format!("az://{}/", peer::BUCKET)).unwrap().store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_azure_large_blob_goes_in_blocks_and_comes_back() {
    let peer = peer::Azurite::start().await;
    let metrics = Arc::new(Metrics::default());
    let store = Azure::new(peer::BUCKET, &settings(&peer.env()), metrics.clone()).unwrap();
    // Slightly more than 65 MiB, in buffers whose ends do not coincide with the ends of blocks.
    let piece = Bytes::from((0..1_000_003u32).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    let parts: Vec<Bytes> = std::iter::repeat_n(piece, 69).collect();
    let key = Key::from("large blob");
    let options =
        PutOptions { precondition: Precondition::Absent, encoding: Some("gzip".to_owned()), ..PutOptions::default() };
    let put = store.put(&key, parts.clone(), &options, soon()).await.unwrap();
    assert!(metrics.get(Metric::Puts) >= 6, "{} requests", metrics.get(Metric::Puts));
    let (meta, bytes) = read_whole(&store, &ObjectRef::current(key.clone()), None, soon()).await.unwrap();
    assert!(bytes == parts.concat());
    assert_eq!((meta.size, &meta.version, meta.encoding.as_deref()), (put.size, &put.version, Some("gzip")));
    assert!(meta.digests.iter().any(|digest| digest.algorithm == Algorithm::Md5), "{:?}", meta.digests);
    let again = store.put(&key, parts, &options, soon()).await.unwrap_err();
    assert_eq!(again.code(), "precondition", "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_azure_wrong_key_is_denied_and_missing_container_not_found() {
    let peer = peer::Azurite::start().await;
    for (change, container, want) in [
        (Some(("AZURE_STORAGE_KEY", "bm90IHRoZSBrZXk=")), peer::BUCKET, "denied"),
        (Some(("PENSTOCK_AZURE_ANONYMOUS", "1")), peer::BUCKET, "denied"),
        (Some(("AZURE_STORAGE_SAS_TOKEN", "sv=2020-12-06&sig=verysecret")), peer::BUCKET, "denied"),
        (None, "nothing-there", "not-found"),
    ] {
        let mut env = peer.env();
        env.extend(change.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let store = opened(&env, &format!("az://{container}/")).unwrap().store;
        let listed: Result<Vec<_>> = store.list(&Key::default(), None, soon()).try_collect().await;
        let error = listed.unwrap_err();
        assert_eq!(error.code(), want, "{error}");
        assert!(error.to_string().starts_with(&format!("az://{container}/")), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_azure_public_container_is_read_without_a_key() {
    let peer = peer::Azurite::start().await;
    let signed = opened(&peer.env(), "az://public/").unwrap().store;
    let key = Key::from("a/b");
    signed.put(&key, vec![Bytes::from_static(b"for all")], &PutOptions::default(), soon()).await.unwrap();
    let mut env = peer.env();
    env.remove("AZURE_STORAGE_KEY");
    env.insert("PENSTOCK_AZURE_ANONYMOUS".to_owned(), "1".to_owned());
    let store = opened(&env, "az://public/").unwrap().store;
    let listed: Vec<_> = store.list(&Key::default(), None, soon()).try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    let (_, bytes) = read_whole(&*store, &ObjectRef::current(key.clone()), None, soon()).await.unwrap();
    assert_eq!(&bytes[..], b"for all");
    let refused = store.delete(&[key], soon()).await.unwrap_err();
    assert_eq!(refused.code(), "denied", "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_azure_sas_reads_what_it_grants() {
    let peer = peer::Azurite::start().await;
    let signed = opened(&peer.env(), &format!("az://{}/", peer::BUCKET)).unwrap().store;
    let key = Key::from("k");
    signed.put(&key, vec![Bytes::from_static(b"x")], &PutOptions::default(), soon()).await.unwrap();
    let env = peer.env();
    let text = |name: &str| env[name].clone();
    let token = peer::sas(&text("AZURE_STORAGE_ACCOUNT"), &text("AZURE_STORAGE_KEY"), peer::BUCKET).await;
    let mut env = peer.env();
    env.remove("AZURE_STORAGE_KEY");
    env.insert("AZURE_STORAGE_SAS_TOKEN".to_owned(), format!("?{token}"));
    let store = opened(&env, &format!("az://{}/", peer::BUCKET)).unwrap().store;
    assert_eq!(store.list(&Key::default(), None, soon()).try_collect::<Vec<_>>().await.unwrap().len(), 1);
    read_whole(&*store, &ObjectRef::current(key.clone()), None, soon()).await.unwrap();
    let refused = store.put(&key, vec![], &PutOptions::default(), soon()).await.unwrap_err();
    assert_eq!(refused.code(), "denied", "{refused}");
    let signature = token.split("sig=").nth(1).unwrap().split('&').next().unwrap();
    assert!(!refused.to_string().contains(signature), "{refused}");
}

#[tokio::test]
async fn test_azure_without_any_credential_says_what_to_set() {
    let env = [("AZURE_STORAGE_ACCOUNT".to_owned(), "acc".to_owned()), ("PATH".to_owned(), "/nonexistent".to_owned())];
    let env: HashMap<String, String> = env.into();
    let settings = settings(&env);
    let store = Azure::new("c", &settings, Arc::default()).unwrap();
    let error = store.head(&Key::from("k"), soon()).await.unwrap_err();
    assert_eq!(error.code(), "denied", "{error}");
    assert!(error.to_string().contains("PENSTOCK_AZURE_ANONYMOUS=1"), "{error}");
}
