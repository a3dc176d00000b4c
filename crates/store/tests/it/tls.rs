// SPDX-License-Identifier: Apache-2.0
//! Tests certificates from a private authority: which settings trust them, and the errors if they are not trusted.

#![allow(clippy::disallowed_methods, reason = "tests write and remove files of their own")]

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_store::{StoreSettings, open};
use penstock_types::{Deadline, Error, Key, Metrics};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, crypto};

const ANSWER: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-amz-meta: 1\r\nlast-modified: Mon, 23 Nov 2026 00:00:00 GMT\r\n\r\n";

/// TLS server on loopback that counts its connections.
struct Server {
    url: String,
    authority: String,
    connections: Arc<AtomicUsize>,
}

/// Starts a server that returns an empty object. Its certificate is for `name` and is signed by a private authority.
async fn serve(name: &str, has_expired: bool) -> Server {
    let mut of_authority = CertificateParams::default();
    of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(of_authority, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    if has_expired {
        params.not_after = date_time_ymd(2020, 1, 1);
    }
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let (acceptor, connections) = (TlsAcceptor::from(Arc::new(config)), Arc::new(AtomicUsize::new(0)));
    let counted = connections.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(socket).await else { return };
                let mut request = [0; 4096];
                if stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(ANSWER).await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    Server { url, authority: authority.pem(), connections }
}

fn settings(server: &Server, more: &[(&str, &str)]) -> StoreSettings {
    let pairs = [("AWS_ENDPOINT_URL", server.url.as_str()), ("PENSTOCK_S3_ANONYMOUS", "1"), ("AWS_REGION", "eu-1")];
    let all: HashMap<String, String> =
        pairs.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    StoreSettings::from_env(&all).unwrap()
}

async fn head(settings: &StoreSettings) -> Result<u64, Error> {
    let opened = open(&"s3://frames".parse().unwrap(), settings, Arc::<Metrics>::default())?;
    Ok(opened.store.head(&Key::from("a"), Deadline::NEVER).await?.size)
}

fn bundle(folder: &Path, pem: &str) -> String {
    let path = folder.join("authority.pem");
    std::fs::write(&path, pem).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn untrusted_certificates_end_at_the_first_try_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (name, has_expired, is_known, want) in [
        ("localhost", false, false, "its issuer is unknown to this machine"),
        ("other.example", false, true, "it was issued for other.example"),
        ("localhost", true, true, "it has expired"),
    ] {
        let server = serve(name, has_expired).await;
        let known = bundle(folder.path(), &server.authority);
        let more = [("AWS_CA_BUNDLE", known.as_str())];
        let error = head(&settings(&server, if is_known { &more } else { &[] })).await.unwrap_err();
        let text = format!("the certificate of {} is not trusted: {want}", server.url);
        assert_eq!((error.to_string(), error.code(), error.retryable()), (text, "denied", false));
        assert_eq!(server.connections.load(Ordering::SeqCst), 1, "{name}: it is tried once");
        assert!(error.hint().is_some());
    }
}

#[tokio::test]
async fn bundle_of_the_environment_or_the_profile_is_trusted() {
    let (server, folder) = (serve("localhost", false).await, tempfile::tempdir().unwrap());
    let path = bundle(folder.path(), &server.authority);
    assert_eq!(head(&settings(&server, &[("AWS_CA_BUNDLE", &path)])).await, Ok(0));
    let config = folder.path().join("config");
    std::fs::write(&config, format!("[default]\nca_bundle = {path}\n")).unwrap();
    assert_eq!(head(&settings(&server, &[("AWS_CONFIG_FILE", config.to_str().unwrap())])).await, Ok(0));
}

#[tokio::test]
async fn bundle_that_does_not_read_is_a_mistake_of_the_settings() {
    let (server, folder) = (serve("localhost", false).await, tempfile::tempdir().unwrap());
    let path = bundle(folder.path(), "no certificate");
    for (value, want) in [
        (path.as_str(), "contains no certificate (want PEM, `-----BEGIN CERTIFICATE-----`)"),
        ("/none.pem", "No such file or directory (os error 2)"),
    ] {
        let error = head(&settings(&server, &[("AWS_CA_BUNDLE", value)])).await.unwrap_err();
        assert_eq!(error, Error::config("AWS_CA_BUNDLE", format!("{value}: {want}")));
    }
}
