// SPDX-License-Identifier: Apache-2.0
//! Tests the requests that the S3 store sends and how it handles responses, with a loopback server that returns
//! scripted responses.

#![allow(clippy::disallowed_methods, reason = "tests write and remove files of their own")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_store::{
    ObjectRef, Precondition, PutOptions, Retry, RetryPolicy, S3, Store, StoreSettings, Version, open, read_whole,
};
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Metrics, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const SECRET: &str = "wire-secret-key";
const TOKEN: &str = "wire-session-token";

/// Action of the server after a response.
#[derive(Clone, Copy)]
enum Then {
    Keep,
    Close,
    Hang,
}

/// Server that returns its responses in order, one per request on any connection. After the last one, it closes
/// connections.
struct Script {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Script {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Script {
    async fn start(answers: impl IntoIterator<Item = (String, Then)>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<std::collections::VecDeque<_>>()));
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (log, script) = (seen.clone(), answers);
        let server = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let (log, script) = (log.clone(), script.clone());
                open.spawn(async move {
                    while let Some(request) = request(&mut socket).await {
                        log.lock().unwrap().push(request);
                        let Some((answer, then)) = script.lock().unwrap().pop_front() else { return };
                        let _ = socket.write_all(answer.as_bytes()).await;
                        match then {
                            Then::Keep => {}
                            Then::Close => return,
                            Then::Hang => std::future::pending().await,
                        }
                    }
                });
            }
        });
        Self { address, seen, server }
    }

    fn env(&self) -> HashMap<String, String> {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ACCESS_KEY_ID", "wire-access".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_SESSION_TOKEN", TOKEN.to_owned()),
            ("AWS_REGION", "eu-west-9".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Opens the store of bucket `b` with short timeouts.
    fn open(&self) -> (Arc<dyn Store>, Arc<Metrics>) {
        let mut settings = StoreSettings::from_env(&self.env()).unwrap();
        settings.retry = impatient();
        let metrics = Arc::new(Metrics::default());
        (open(&"s3://b/".parse().unwrap(), &settings, metrics.clone()).unwrap().store, metrics)
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

fn impatient() -> RetryPolicy {
    RetryPolicy {
        give_up_after: Duration::from_secs(20),
        // Longer than `stall_after`, so that a stalled call is sent again.
        unreachable_after: Duration::from_secs(3),
        never_reached_after: Duration::from_secs(3),
        first_wait: Duration::from_millis(1),
        max_wait: Duration::from_millis(5),
        stall_after: Duration::from_secs(1),
    }
}

/// Reads a request from the socket and returns its head and body.
async fn request(socket: &mut tokio::net::TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let count = socket.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let len = head.to_lowercase().lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= len.unwrap_or(0) {
                return Some(text);
            }
        }
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

/// Builds a response that announces `len` bytes but contains only `body`.
fn short(status: &str, headers: &str, len: usize, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {len}\r\n{headers}\r\n{body}")
}

fn error(status: &str, headers: &str, code: &str) -> String {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>words of {code}</Message></Error>");
    answer(status, headers, &body)
}

async fn whole(store: &dyn Store, key: &str) -> Result<Bytes> {
    let mut got =
        store.get_ranges(&ObjectRef::current(Key::from(key)), &[ByteRange::WHOLE], Deadline::within(SOON)).await?;
    let mut all = Vec::new();
    while let Some(chunk) = got.chunks.try_next().await? {
        assert_eq!(chunk.offset, all.len() as u64, "a gap");
        all.extend_from_slice(&chunk.bytes);
    }
    Ok(all.into())
}

const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn test_throttled_read_waits_retry_after_and_continues() {
    let script = Script::start([
        (error("503 Slow Down", "retry-after: 1\r\n", "SlowDown"), Then::Keep),
        (error("429 Too Many", "", ""), Then::Keep),
        (answer("200 OK", "etag: \"v\"\r\n", "hello"), Then::Keep),
    ])
    .await;
    let (store, metrics) = script.open();
    assert_eq!(whole(&*store, "k").await.unwrap(), "hello");
    assert!(metrics.get(Metric::ThrottleWait) >= 1_000_000_000);
    let counts = [Metric::Requests, Metric::Gets, Metric::Retries, Metric::Throttles, Metric::Errors, Metric::BytesIn];
    assert_eq!(counts.map(|metric| metrics.get(metric)), [3, 3, 2, 2, 0, 5]);
}

#[tokio::test]
async fn test_throttled_past_the_budget_says_how_often_and_how_long() {
    let (twice, often) = (error("503 Slow Down", "", "SlowDown"), 200);
    let script = Script::start((0..often).map(|_| (twice.clone(), Then::Keep))).await;
    let settings = StoreSettings::from_env(&script.env()).unwrap();
    let policy = RetryPolicy { give_up_after: Duration::from_millis(100), ..impatient() };
    let s3 = S3::new("b", &settings.s3, Arc::default()).unwrap();
    let error = Retry::new(Arc::new(s3), policy).head(&Key::from("k"), Deadline::NEVER).await.unwrap_err();
    let Error::Throttled { place, refused, sent, .. } = error else { panic!("{error}") };
    assert_eq!((place.as_str(), refused), ("s3://b/k", sent));
    assert!(sent > 1);
}

#[tokio::test]
async fn test_throttled_for_longer_than_the_budget_gives_up_at_once() {
    let script = Script::start([(error("503 Slow Down", "retry-after: 3600\r\n", "SlowDown"), Then::Keep)]).await;
    let error = script.open().0.head(&Key::from("k"), Deadline::NEVER).await.unwrap_err();
    let Error::Throttled { retry_after, sent, .. } = error else { panic!("{error}") };
    assert_eq!((retry_after, sent), (Some(Duration::from_secs(3600)), 1));
}

#[tokio::test]
async fn test_deadline_before_next_try_reports_last_error() {
    let script = Script::start([(error("503 Slow Down", "retry-after: 15\r\n", "SlowDown"), Then::Keep)]).await;
    let soon = Deadline::within(Duration::from_secs(5));
    let error = script.open().0.head(&Key::from("k"), soon).await.unwrap_err();
    assert_eq!(error.code(), "deadline");
    assert!(error.to_string().contains("refused 1 of 1"), "{error}");
}

#[tokio::test]
async fn test_truncated_body_is_resumed_from_its_byte_in_the_same_version() {
    let script = Script::start([
        (short("200 OK", "etag: \"v1\"\r\n", 10, "0123"), Then::Close),
        (short("206 Partial", "etag: \"v1\"\r\ncontent-range: bytes 4-9/10\r\n", 6, "45"), Then::Close),
        (answer("206 Partial", "etag: \"v1\"\r\ncontent-range: bytes 6-9/10\r\n", "6789"), Then::Keep),
    ])
    .await;
    let (store, metrics) = script.open();
    assert_eq!(whole(&*store, "k").await.unwrap(), "0123456789");
    let seen = script.seen();
    assert!(!seen[0].contains("range: "), "{}", seen[0]);
    assert!(seen[1].contains("range: bytes=4-9\r\n") && seen[1].contains("if-match: \"v1\"\r\n"), "{}", seen[1]);
    assert!(seen[2].contains("range: bytes=6-9\r\n"), "{}", seen[2]);
    let counts = [Metric::BytesRequested, Metric::BytesIn, Metric::Retries].map(|metric| metrics.get(metric));
    assert_eq!(counts, [10, 10, 2], "nothing is read twice");
}

#[tokio::test]
async fn test_object_replaced_while_it_is_read_is_changed() {
    let script = Script::start([
        (short("200 OK", "etag: \"v1\"\r\n", 10, "0123"), Then::Close),
        (error("412 Precondition Failed", "", "PreconditionFailed"), Then::Keep),
    ])
    .await;
    let error = whole(&*script.open().0, "k").await.unwrap_err();
    let Error::Changed { place, want, .. } = &error else { panic!("{error}") };
    assert_eq!((place.as_str(), want.as_str()), ("s3://b/k", "v1"));
}

/// Headers with the CRC-32C of "123456789" in base64, and with a wrong one.
const RIGHT: &str = "x-amz-checksum-crc32c: 4waSgw==\r\n";
const WRONG: &str = "x-amz-checksum-crc32c: 4waSgg==\r\n";

#[tokio::test]
async fn test_whole_object_is_held_against_its_checksum() {
    for (headers, is_right) in [
        (RIGHT, true),
        (WRONG, false),
        ("x-amz-checksum-type: COMPOSITE\r\nx-amz-checksum-crc32c: 4waSgg==-2\r\n", true),
        // moto's HEAD and older servers return no checksum type; the value is then a composite checksum of three parts.
        ("etag: \"00000000000000000000000000000000-3\"\r\nx-amz-checksum-crc32c: 4waSgg==\r\n", true),
        (
            "etag: \"00000000000000000000000000000000-3\"\r\nx-amz-checksum-type: FULL_OBJECT\r\n\
             x-amz-checksum-crc32c: 4waSgg==\r\n",
            false,
        ),
        ("etag: \"00000000000000000000000000000000-3\"\r\nx-amz-checksum-crc64nvme: rosUhgp5mIk=\r\n", false),
        ("x-amz-checksum-crc64nvme: rosUhgp5mIg=\r\n", true),
        ("x-amz-checksum-crc64nvme: rosUhgp5mIk=\r\n", false),
        ("x-amz-checksum-crc32: y/Q5Jg==\r\n", true),
        ("x-amz-checksum-crc32c: not base64\r\n", true),
    ] {
        let script = Script::start([(answer("200 OK", headers, "123456789"), Then::Keep)]).await;
        let got = whole(&*script.open().0, "k").await;
        match got {
            Ok(bytes) => assert!(is_right && bytes == "123456789", "{headers}"),
            Err(error) => assert!(!is_right && error.code() == "corrupt", "{headers}: {error}"),
        }
        assert!(script.seen()[0].contains("x-amz-checksum-mode: ENABLED"));
    }
}

/// moto compares If-Match with the ETag of the part. Its HEAD returns a composite checksum without a checksum type.
#[tokio::test]
async fn multipart_object_without_a_checksum_type_or_part_lengths_has_no_digest() {
    let headers = "etag: \"00000000000000000000000000000000-3\"\r\nx-amz-checksum-crc32c: 4waSgg==\r\n";
    let script = Script::start([
        (short("200 OK", headers, 9, ""), Then::Keep),
        (answer("412 Precondition Failed", "", ""), Then::Keep),
    ])
    .await;
    let mut settings = StoreSettings::from_env(&script.env()).unwrap();
    (settings.s3.verifies_md5, settings.s3.verifies_parts) = (true, true);
    let store = open(&"s3://b/".parse().unwrap(), &settings, Arc::default()).unwrap().store;
    let meta = store.head(&Key::from("k"), Deadline::NEVER).await.unwrap();
    assert_eq!((meta.size, meta.digests), (9, Vec::new()));
    assert!(script.seen()[1].starts_with("HEAD /b/k?partNumber=1 "));
}

#[tokio::test]
async fn test_resumed_object_is_held_against_its_checksum_as_a_whole() {
    for (headers, is_right) in [(RIGHT, true), (WRONG, false)] {
        let script = Script::start([
            (short("200 OK", &format!("etag: \"v\"\r\n{headers}"), 9, "1234"), Then::Close),
            (answer("206 Partial", "etag: \"v\"\r\ncontent-range: bytes 4-8/9\r\n", "56789"), Then::Keep),
        ])
        .await;
        assert_eq!(whole(&*script.open().0, "k").await.is_ok(), is_right);
    }
}

#[tokio::test]
async fn test_read_whole_asks_once_more_for_damaged_bytes() {
    let script = Script::start([
        (answer("200 OK", RIGHT, "123456780"), Then::Keep),
        (answer("200 OK", RIGHT, "123456789"), Then::Keep),
    ])
    .await;
    let object = ObjectRef::current(Key::from("k"));
    let (_, bytes) = read_whole(&*script.open().0, &object, None, Deadline::within(SOON)).await.unwrap();
    assert_eq!(bytes, "123456789");
}

#[tokio::test]
async fn test_silence_before_and_amid_a_body_is_asked_again() {
    let script = Script::start([
        (String::new(), Then::Hang),
        (short("200 OK", "etag: \"v\"\r\n", 6, "abc"), Then::Hang),
        (answer("206 Partial", "etag: \"v\"\r\ncontent-range: bytes 3-5/6\r\n", "def"), Then::Keep),
    ])
    .await;
    let (store, metrics) = script.open();
    assert_eq!(whole(&*store, "k").await.unwrap(), "abcdef");
    assert_eq!(metrics.get(Metric::Retries), 2);
}

#[tokio::test]
async fn test_deadline_ends_a_silent_call() {
    let script = Script::start([(String::new(), Then::Hang)]).await;
    let error = script.open().0.head(&Key::from("k"), Deadline::within(Duration::from_millis(50))).await.unwrap_err();
    assert_eq!(error.code(), "deadline");
}

#[tokio::test]
async fn test_bucket_elsewhere_names_its_region() {
    for status in ["301 Moved", "400 Bad Request"] {
        let body = "<Error><Code>AuthorizationHeaderMalformed</Code><Region>mars-1</Region></Error>";
        let script = Script::start([(answer(status, "", body), Then::Keep)]).await;
        let error = whole(&*script.open().0, "k").await.unwrap_err();
        assert_eq!(error.code(), "config");
        assert!(error.to_string().contains("mars-1") && error.to_string().contains("eu-west-9"), "{error}");
    }
}

#[tokio::test]
async fn test_statuses_become_what_a_caller_can_act_on() {
    for (status, code, want) in [
        ("404 Not Found", "NoSuchKey", "not-found"),
        ("404 Not Found", "NoSuchBucket", "not-found"),
        ("403 Forbidden", "AccessDenied", "denied"),
        ("403 Forbidden", "SignatureDoesNotMatch", "denied"),
        ("403 Forbidden", "InvalidAccessKeyId", "denied"),
        ("400 Bad Request", "ExpiredToken", "denied"),
        ("500 Internal", "InternalError", "server"),
        ("409 Conflict", "OperationAborted", "server"),
        ("501 Not Implemented", "NotImplemented", "unsupported"),
        ("400 Bad Request", "KeyTooLongError", "key"),
        ("404 Not Found", "InvalidAccessKeyId", "denied"),
        ("418 Teapot", "Odd", "system"),
        ("302 Found", "", "config"),
    ] {
        let script = Script::start([(error(status, "", code), Then::Keep)]).await;
        let settings = StoreSettings::from_env(&script.env()).unwrap();
        let s3 = S3::new("b", &settings.s3, Arc::default()).unwrap();
        let error =
            s3.get_ranges(&ObjectRef::current(Key::from("k")), &[ByteRange::WHOLE], Deadline::within(SOON)).await;
        let error = error.unwrap_err();
        assert_eq!(error.code(), want, "{status} {code}: {error}");
        assert!(error.to_string().contains('b'), "{error}");
    }
}

#[tokio::test]
async fn test_secrets_stand_in_no_error_and_no_debug() {
    let body = format!(
        "<Error><Code>SignatureDoesNotMatch</Code><Message>no match</Message>\
         <StringToSign>{SECRET}</StringToSign><Token>{TOKEN}</Token></Error>"
    );
    let script = Script::start([(answer("403 Forbidden", "", &body), Then::Close)]).await;
    let (store, _) = script.open();
    let denied = whole(&*store, "k").await.unwrap_err();
    assert_eq!(denied.code(), "denied");
    let shown = format!("{denied} {denied:?} {store:?}");
    for secret in [SECRET, TOKEN, "wire-access", "Signature="] {
        assert!(!shown.contains(secret), "{shown}");
    }
    // The credentials were sent in the headers, except for the secret key.
    let seen = script.seen().remove(0);
    assert!(seen.contains("Credential=wire-access/") && seen.contains(TOKEN) && !seen.contains(SECRET));
}

#[tokio::test]
async fn test_nothing_at_the_endpoint_is_one_clear_error() {
    let mut script = Script::start([]).await;
    script.address = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let (store, metrics) = script.open();
    let error = store.head(&Key::from("k"), Deadline::NEVER).await.unwrap_err();
    let Error::Unreachable { place, reason } = &error else { panic!("{error}") };
    assert_eq!(*place, format!("http://{}", script.address));
    assert!(reason.contains("refused") && reason.contains("tries"), "{reason}");
    assert!(metrics.get(Metric::Retries) > 0);
}

#[tokio::test]
async fn test_answer_that_is_no_http_is_an_error() {
    let script = Script::start((0..50).map(|_| ("SSH-2.0-OpenSSH\r\n".to_owned(), Then::Close))).await;
    let error = whole(&*script.open().0, "k").await.unwrap_err();
    assert!(error.retryable(), "{error}");
}

#[tokio::test]
async fn test_no_credentials_says_where_it_looked_and_sends_nothing() {
    let script = Script::start([]).await;
    let home = tempfile::tempdir().unwrap();
    let mut env = script.env();
    env.retain(|name, _| name == "AWS_ENDPOINT_URL");
    env.insert("HOME".to_owned(), home.path().to_str().unwrap().to_owned());
    let settings = StoreSettings::from_env(&env).unwrap();
    let store = open(&"s3://b/".parse().unwrap(), &settings, Arc::default()).unwrap().store;
    let error = whole(&*store, "k").await.unwrap_err();
    assert_eq!(error.code(), "denied");
    assert!(error.to_string().contains("no credentials in the environment, the profile files"), "{error}");
    assert!(!error.to_string().contains("metadata"), "the instance was asked without leave: {error}");
    assert!(script.seen().is_empty());
}

#[tokio::test]
async fn test_credentials_come_from_a_profile_and_from_a_process() {
    for (file, text, want) in [
        ("credentials", "[team]\naws_access_key_id = from-file\naws_secret_access_key = s\n", "Credential=from-file/"),
        ("config", "[profile team]\ncredential_process = PROGRAM\n", "Credential=from-process/"),
    ] {
        let home = tempfile::tempdir().unwrap();
        let program = home.path().join("give");
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        let json = r#"{"Version": 1, "AccessKeyId": "from-process", "SecretAccessKey": "s"}"#;
        std::fs::write(&program, format!("#!/bin/sh\necho '{json}'\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let text = text.replace("PROGRAM", program.to_str().unwrap());
        std::fs::write(home.path().join(".aws").join(file), text).unwrap();
        let script = Script::start([(answer("200 OK", "", "x"), Then::Keep)]).await;
        let mut env = script.env();
        env.retain(|name, _| name == "AWS_ENDPOINT_URL");
        env.insert("HOME".to_owned(), home.path().to_str().unwrap().to_owned());
        env.insert("AWS_PROFILE".to_owned(), "team".to_owned());
        let settings = StoreSettings::from_env(&env).unwrap();
        let s3 = S3::new("b", &settings.s3, Arc::default()).unwrap();
        s3.head(&Key::from("k"), Deadline::within(SOON)).await.unwrap();
        assert!(script.seen()[0].contains(want), "{}", script.seen()[0]);
    }
}

/// Opens a bucket whose credentials come from a program that counts its calls.
fn counting(script: &Script, home: &std::path::Path) -> Arc<dyn Store> {
    let program = home.join("give");
    let json = r#"{\"Version\": 1, \"AccessKeyId\": \"AK$n\", \"SecretAccessKey\": \"s\", \"SessionToken\": \"t\"}"#;
    let text = format!("#!/bin/sh\ncd '{}'; echo >> asked; n=$(wc -l < asked)\necho \"{json}\"\n", home.display());
    std::fs::create_dir(home.join(".aws")).unwrap();
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let config = format!("[default]\ncredential_process = {}\n", program.display());
    std::fs::write(home.join(".aws/config"), config).unwrap();
    let mut env = script.env();
    env.retain(|name, _| name == "AWS_ENDPOINT_URL");
    env.insert("HOME".to_owned(), home.to_str().unwrap().to_owned());
    let mut settings = StoreSettings::from_env(&env).unwrap();
    settings.retry = impatient();
    open(&"s3://b/".parse().unwrap(), &settings, Arc::default()).unwrap().store
}

#[tokio::test]
async fn test_credentials_that_the_store_calls_expired_are_renewed_and_the_read_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let expired = || (error("400 Bad Request", "", "ExpiredToken"), Then::Keep);
    let script = Script::start([
        (answer("200 OK", "", "x"), Then::Keep),
        expired(),
        (answer("200 OK", "", "x"), Then::Keep),
        expired(),
        (answer("200 OK", "", "x"), Then::Keep),
    ])
    .await;
    let store = counting(&script, home.path());
    assert_eq!(whole(&*store, "k").await.unwrap(), "x");
    assert_eq!(whole(&*store, "k").await.unwrap(), "x");
    // A new credential that is immediately rejected is an error.
    assert_eq!(whole(&*store, "k").await.unwrap_err().code(), "denied");
    let keys: Vec<bool> = script.seen().iter().map(|seen| seen.contains("Credential=AK1/")).collect();
    assert_eq!(keys, [true, true, false, false]);
    assert_eq!(std::fs::read_to_string(home.path().join("asked")).unwrap().len(), 2);
}

#[tokio::test]
async fn test_odd_keys_leave_as_they_are() {
    let keys = ["x/../y", "./x", "x//y", "/x", "x/", "..", "a b+c%20?#&", "é\u{7f}"];
    let wire = ["x/../y", "./x", "x//y", "/x", "x/", "..", "a%20b%2Bc%2520%3F%23%26", "%C3%A9%7F"];
    let script = Script::start(keys.map(|_| (answer("200 OK", "", "x"), Then::Keep))).await;
    let (store, _) = script.open();
    for key in keys {
        store.head(&Key::from(key), Deadline::within(SOON)).await.unwrap();
    }
    let lines: Vec<String> = script.seen().iter().map(|seen| seen.lines().next().unwrap().to_owned()).collect();
    assert_eq!(lines, wire.map(|wire| format!("HEAD /b/{wire} HTTP/1.1")));
    let error = store.head(&Key::new(&b"\xff"[..]), Deadline::within(SOON)).await.unwrap_err();
    assert_eq!(error.code(), "key");
}

#[tokio::test]
async fn test_put_is_sent_again_whole_with_its_condition_and_checksum() {
    let script = Script::start([
        (error("503 Slow Down", "", "SlowDown"), Then::Keep),
        (answer("200 OK", "etag: \"new\"\r\n", ""), Then::Keep),
    ])
    .await;
    let options = PutOptions {
        precondition: Precondition::Matches(Version("old".to_owned())),
        encoding: Some("gzip".to_owned()),
        ..PutOptions::default()
    };
    let parts = vec![Bytes::from_static(b"1234"), Bytes::from_static(b"56789")];
    let meta = script.open().0.put(&Key::from("k"), parts, &options, Deadline::within(SOON)).await.unwrap();
    assert_eq!(meta.version, Some(Version("new".to_owned())));
    for seen in script.seen() {
        let want =
            ["if-match: \"old\"", "content-encoding: gzip", "x-amz-checksum-crc32c: 4waSgw==", "\r\n\r\n123456789"];
        assert!(want.iter().all(|want| seen.contains(want)), "{seen}");
    }
}

#[tokio::test]
async fn test_put_that_finds_its_own_object_after_a_broken_try_has_succeeded() {
    for (headers, is_ours) in [(RIGHT, true), (WRONG, false)] {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: 9\r\netag: \"v\"\r\n{headers}\r\n");
        let script = Script::start([
            (String::new(), Then::Hang),
            (error("412 Precondition Failed", "", "PreconditionFailed"), Then::Keep),
            (head, Then::Close),
        ])
        .await;
        let options = PutOptions { precondition: Precondition::Absent, ..PutOptions::default() };
        let parts = vec![Bytes::from_static(b"123456789")];
        let put = script.open().0.put(&Key::from("k"), parts, &options, Deadline::within(SOON)).await;
        match put {
            Ok(meta) => assert!(is_ours && meta.version == Some(Version("v".to_owned()))),
            Err(error) => assert!(!is_ours && error.code() == "precondition", "{error}"),
        }
    }
}

#[tokio::test]
async fn test_store_that_knows_no_ranges_is_unsupported() {
    let script = Script::start([(answer("200 OK", "", "0123456789"), Then::Keep)]).await;
    let object = ObjectRef::current(Key::from("k"));
    let got = script.open().0.get_ranges(&object, &[ByteRange::new(5, 2)], Deadline::within(SOON)).await;
    assert_eq!(got.unwrap_err().code(), "unsupported");
}

const MORE: &str = "<IsTruncated>true</IsTruncated><NextContinuationToken>t/+</NextContinuationToken>";

fn page(keys: &str, tail: &str) -> String {
    let entries: String =
        keys.split(',').map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>")).collect();
    answer("200 OK", "", &format!("<ListBucketResult>{entries}{tail}</ListBucketResult>"))
}

#[tokio::test]
async fn test_listing_that_comes_round_for_ever_ends() {
    // First one page that repeats, then two pages that refer to each other.
    for cycle in [&["t"][..], &["t", "u"]] {
        let pages = cycle.iter().cycle().take(5).map(|token| {
            let more = format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>");
            (page("a,b", &more), Then::Keep)
        });
        let script = Script::start(pages.collect::<Vec<_>>()).await;
        let (store, _) = script.open();
        let listed: Result<Vec<_>> = store.list(&Key::from(""), None, Deadline::within(SOON)).try_collect().await;
        let error = listed.unwrap_err();
        assert_eq!((error.code(), error.to_string().contains("earlier page")), ("server", true), "{error}");
        // The retry starts the listing again after the last key. It receives a key before that one, which ends the
        // listing.
        assert_eq!(script.seen().len(), cycle.len() + 2);
    }
}

#[tokio::test]
async fn test_listing_goes_on_after_the_last_key_when_a_page_breaks() {
    let script = Script::start([
        (page("a,b", MORE), Then::Keep),
        (error("500 Internal", "", "InternalError"), Then::Keep),
        (page("c", ""), Then::Keep),
    ])
    .await;
    let (store, _) = script.open();
    let listed: Vec<_> = store.list(&Key::from(""), None, Deadline::within(SOON)).try_collect().await.unwrap();
    assert_eq!(listed.iter().map(|meta| meta.key.to_string()).collect::<Vec<_>>(), ["a", "b", "c"]);
    let seen = script.seen();
    assert!(seen[1].contains("continuation-token=t%2F%2B"), "{}", seen[1]);
    assert!(seen[2].contains("start-after=b") && !seen[2].contains("continuation-token"), "{}", seen[2]);
}

#[tokio::test]
async fn test_tls_to_a_server_that_speaks_none_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut script = Script::start([]).await;
    script.address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let mut env = script.env();
    env.insert("AWS_ENDPOINT_URL".to_owned(), format!("https://{}", script.address));
    let settings = StoreSettings::from_env(&env).unwrap();
    let s3 = S3::new("b", &settings.s3, Arc::default()).unwrap();
    let error = s3.head(&Key::from("k"), Deadline::within(SOON)).await.unwrap_err();
    server.abort();
    let Error::Unreachable { place, .. } = &error else { panic!("{error}") };
    assert_eq!(*place, format!("https://{}", script.address));
}
