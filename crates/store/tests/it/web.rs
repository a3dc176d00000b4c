// SPDX-License-Identifier: Apache-2.0
//! Tests plain web servers: the store suite on published folders, and behaviour that object stores do not have.

#![allow(clippy::disallowed_methods, reason = "tests write and remove files of their own")]

use std::sync::Arc;
use std::time::Duration;

use crate::site;
use futures::TryStreamExt;
use penstock_store::{ObjectRef, Retry, RetryPolicy, Store, StoreSettings, Web, open, read_whole, suite};
use penstock_types::{ByteRange, Deadline, Key, Metric, Metrics, Result};
use site::{Manners, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn soon() -> Deadline {
    Deadline::within(Duration::from_secs(60))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_web_with_and_without_ranges_stands_the_suite() {
    for ranges in [true, false] {
        let site = Site::start(Manners { ranges, etags: true }).await;
        suite::run(site.published()).await;
        assert!(site.published().web.capabilities().ranges, "nothing is known before the first answer");
        suite::run(Arc::new(Retry::new(site.published(), RetryPolicy::default()))).await;
    }
}

/// Suite checks that Python's server fails. Its versions are a time in whole seconds and a size, so a rewrite of the
/// same size within a second is not detected. It queues five connections and drops the rest, so a test with a thousand
/// objects takes minutes.
const FALLS_SHORT: &[&str] = &[
    "put_over_an_object_changes_its_version",
    "get_of_another_version_is_changed",
    "list_of_more_than_a_page_is_complete",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn test_web_of_pythons_server_stands_the_suite() {
    let site = Site::python().await;
    suite::run_but(site.published(), FALLS_SHORT).await;
    let published = site.published();
    std::fs::write(site.dir.path().join("one"), vec![7; 100]).unwrap();
    published.head(&Key::from("one"), soon()).await.unwrap();
    assert!(!published.web.capabilities().ranges);
}

#[tokio::test]
async fn test_web_ranges_of_a_server_without_them_cost_one_request() {
    let site = Site::start(Manners { ranges: false, etags: false }).await;
    let content: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(site.dir.path().join("big"), &content).unwrap();
    let metrics = Arc::new(Metrics::default());
    let store = Web::new(&site.url(), metrics.clone()).unwrap();
    let ranges: Vec<ByteRange> =
        [(2_900_000, 50), (5, 10), (1_000_000, 9), (0, 3)].map(|(s, l)| ByteRange::new(s, l)).to_vec();
    let got = store.get_ranges(&ObjectRef::current(Key::from("big")), &ranges, soon()).await.unwrap();
    let mut have = vec![Vec::new(); 4];
    let chunks: Vec<_> = got.chunks.try_collect().await.unwrap();
    for chunk in chunks {
        have[chunk.range].extend_from_slice(&chunk.bytes);
    }
    for (range, have) in ranges.iter().zip(have) {
        assert!(have == content[range.start as usize..(range.start + range.len) as usize]);
    }
    assert_eq!(metrics.get(Metric::Gets), 1);
}

#[tokio::test]
async fn test_web_listing_follows_pages_and_tells_sizes() {
    let site = Site::start(Manners { ranges: true, etags: true }).await;
    for (name, size) in [("data/b/2", 2), ("data/b/1", 1), ("data/a%20", 3), ("data/z?", 4), ("other/x", 5)] {
        let path = site.dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![0; size]).unwrap();
    }
    let settings = StoreSettings::default();
    let url = format!("{}data", site.url()).parse().unwrap();
    let opened = open(&url, &settings, Arc::default()).unwrap();
    let listed: Vec<_> = opened.store.list(&opened.prefix, None, soon()).try_collect().await.unwrap();
    let listed: Vec<(String, u64)> = listed.into_iter().map(|meta| (meta.key.to_string(), meta.size)).collect();
    let want = [("data/a%20", 3), ("data/b/1", 1), ("data/b/2", 2), ("data/z?", 4)];
    assert_eq!(listed, want.map(|(key, size)| (key.to_owned(), size)));
    let refused = opened.store.put(&Key::from("k"), vec![], &Default::default(), soon()).await.unwrap_err();
    assert_eq!(refused.code(), "unsupported", "{refused}");
}

/// Starts a server that responds to the first request of each connection with the result of `script` and then closes
/// it.
async fn server(script: impl Fn(&str) -> String + Send + Sync + 'static) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut buffer = vec![0; 8192];
            let count = socket.read(&mut buffer).await.unwrap_or(0);
            let answer = script(&String::from_utf8_lossy(&buffer[..count]).to_lowercase());
            let _ = socket.write_all(answer.as_bytes()).await;
        }
    });
    address
}

fn store_of(address: std::net::SocketAddr) -> Web {
    Web::new(&format!("http://{address}/").parse().unwrap(), Arc::default()).unwrap()
}

#[tokio::test]
async fn web_content_encoding_is_reported_and_not_decoded() {
    let address = server(|request| {
        assert!(request.contains("accept-encoding: identity"), "{request}");
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n\x1f\x08.."
            .to_owned()
    })
    .await;
    let (meta, bytes) =
        read_whole(&store_of(address), &ObjectRef::current(Key::from("k")), None, soon()).await.unwrap();
    assert_eq!((meta.encoding.as_deref(), &bytes[..]), (Some("gzip"), &b"\x1f\x08.."[..]));
}

#[tokio::test]
async fn test_web_redirect_within_the_host_is_followed_and_a_loop_ends() {
    let address = server(|request| {
        if request.starts_with("get /old") {
            "HTTP/1.1 302 Found\r\nlocation: /new?signature=secret\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                .into()
        } else if request.starts_with("get /new?signature=secret") {
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\nconnection: close\r\n\r\nyes".into()
        } else {
            "HTTP/1.1 302 Found\r\nlocation: /loop?secret\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".into()
        }
    })
    .await;
    let store = store_of(address);
    let whole = async |key: &str| read_whole(&store, &ObjectRef::current(Key::from(key)), None, soon()).await;
    assert_eq!(&whole("old").await.unwrap().1[..], b"yes");
    let error = whole("loop").await.unwrap_err();
    assert!(error.to_string().contains("more than 5 redirects") && !error.to_string().contains("secret"), "{error}");
}

#[tokio::test]
async fn test_web_object_replaced_between_requests_is_changed() {
    // This server ignores If-Match, like many others.
    let address = server(|request| {
        let tag = if request.contains("range: bytes=5-") { "second" } else { "first" };
        let range = if request.contains("bytes=5-") { "5-6" } else { "0-1" };
        format!(
            "HTTP/1.1 206 Partial Content\r\ncontent-length: 2\r\netag: \"{tag}\"\r\ncontent-range: bytes {range}/9\r\n\
             connection: close\r\n\r\nab"
        )
    })
    .await;
    let ranges = [ByteRange::new(0, 2), ByteRange::new(5, 2)];
    let got = store_of(address).get_ranges(&ObjectRef::current(Key::from("k")), &ranges, soon()).await.unwrap();
    let chunks: Result<Vec<_>> = got.chunks.try_collect().await;
    assert_eq!(chunks.unwrap_err().code(), "changed");
}

#[tokio::test]
async fn test_web_folder_without_an_index_page_cannot_be_listed() {
    for answer in [
        "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
    ] {
        let address = server(|_| answer.to_owned()).await;
        let listed: Result<Vec<_>> = store_of(address).list(&Key::from("d/"), None, soon()).try_collect().await;
        let error = listed.unwrap_err();
        assert_eq!(error.code(), "unsupported", "{error}");
    }
}

#[tokio::test]
async fn test_web_throttling_tells_how_long_to_wait() {
    let address = server(|_| {
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned()
    })
    .await;
    let error = store_of(address).head(&Key::from("k"), soon()).await.unwrap_err();
    let penstock_types::Error::Throttled { retry_after, .. } = error else { panic!("{error}") };
    assert_eq!(retry_after, Some(Duration::from_secs(7)));
}
