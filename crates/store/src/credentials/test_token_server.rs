// SPDX-License-Identifier: Apache-2.0
//! Token server on loopback for tests: returns recorded responses and records the requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Test server that stops when it is dropped.
pub(crate) struct TestTokenServer {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<String>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for TestTokenServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl TestTokenServer {
    /// Starts the server. `answer` returns the status and body for a request.
    pub(crate) async fn start(answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let (log, answer) = (seen.clone(), Arc::new(answer));
        let server = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let (log, answer) = (log.clone(), answer.clone());
                open.spawn(async move {
                    let mut bytes = Vec::new();
                    let mut buffer = [0; 8192];
                    while let Ok(count @ 1..) = socket.read(&mut buffer).await {
                        bytes.extend_from_slice(&buffer[..count]);
                        let text = String::from_utf8_lossy(&bytes).into_owned();
                        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
                        let head = head.to_ascii_lowercase();
                        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                        if body.len() < length.map_or(0, |length| length.trim().parse().unwrap()) {
                            continue;
                        }
                        let (status, body) = answer(&text);
                        log.lock().unwrap().push(text);
                        let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", body.len());
                        if socket.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                            return;
                        }
                        bytes.clear();
                    }
                });
            }
        });
        Self { url, seen, server }
    }

    pub(crate) fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// Builds environment variables. In the values, `DESK` is replaced by the server's address and `HOME` by a folder.
pub(crate) fn variables(
    pairs: &[(&str, &str)],
    server: &TestTokenServer,
    home: &std::path::Path,
) -> HashMap<String, String> {
    let home = home.to_str().unwrap();
    let fill = |value: &str| value.replace("DESK", &server.url).replace("HOME", home);
    let mut all: HashMap<String, String> =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), fill(value))).collect();
    all.insert("HOME".to_owned(), home.to_owned());
    all
}

/// Creates a request head to sign.
pub(crate) fn head(url: &str) -> http::request::Parts {
    http::Request::builder().uri(url).body(()).unwrap().into_parts().0
}

/// Returns the time `seconds` from now in AWS's format.
pub(crate) fn in_s(seconds: i64) -> String {
    let at = penstock_types::unix_now().as_secs() as i64 + seconds;
    reqsign_core::time::Timestamp::from_second(at).unwrap().format_rfc3339_zulu()
}
