// SPDX-License-Identifier: Apache-2.0
//! Web servers for the tests, which publish a folder: one implemented here, with or without range support, and Python's
//! `http.server`.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use penstock_store::{Capabilities, GetResult, ListStream, Local, Meta, ObjectRef, PutOptions, Store, Web};
use penstock_types::{ByteRange, Deadline, Key, Result, Url};

use crate::peer;

/// Capabilities of the test server.
#[derive(Clone, Copy)]
pub struct Manners {
    pub ranges: bool,
    /// Send ETags; otherwise only modification times in whole seconds.
    pub etags: bool,
}

pub struct Site {
    pub address: SocketAddr,
    pub dir: tempfile::TempDir,
    server: Option<tokio::task::JoinHandle<()>>,
    child: Option<Child>,
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Site {
    pub async fn start(manners: Manners) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let root = dir.path().to_owned();
        let server = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let root = root.clone();
                let service = service_fn(move |request| {
                    let answer = answer(&root, manners, &request);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let _ = socket.set_nodelay(true);
                open.spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service));
            }
        });
        Self { address, dir, server: Some(server), child: None }
    }

    /// Starts `python3 -m http.server`, which supports neither ranges nor ETags.
    pub async fn python() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (child, address) = peer::launch("Python's server", |address| {
            let mut command = Command::new("python3");
            command.args(["-m", "http.server", "--bind", "127.0.0.1", &address.port().to_string(), "--directory"]);
            command.arg(dir.path());
            command
        })
        .await;
        Self { address, dir, server: None, child: Some(child) }
    }

    pub fn url(&self) -> Url {
        format!("http://{}/", self.address).parse().unwrap()
    }

    /// Returns a store that reads from the web server and writes to its folder, because the suite needs both.
    pub fn published(&self) -> Arc<Published> {
        let web = Web::new(&self.url(), Arc::default()).unwrap();
        Arc::new(Published { web, folder: Local::new(self.dir.path()).unwrap() })
    }
}

fn page(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", "text/html".parse().unwrap());
    response
}

fn quoted(bytes: &[u8]) -> String {
    percent_encoding::percent_encode(bytes, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// Formats a time like `Sun Nov  6 08:49:37 1994`, the oldest of the three forms of HTTP dates (calendar algorithm: H.
/// Hinnant).
fn http_date(seconds: i64) -> String {
    let (days, clock) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let z = days + 719_468;
    let of_era = z.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * from_march + 2) / 5 + 1, (from_march + 2) % 12);
    let year = year_of_era + z.div_euclid(146_097) * 400 + i64::from(month < 2);
    let names = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (hour, minute, second) = (clock / 3600, clock / 60 % 60, clock % 60);
    format!("Sun {} {day:2} {hour:02}:{minute:02}:{second:02} {year}", names[month as usize])
}

fn answer(root: &Path, manners: Manners, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    let bytes: Vec<u8> = percent_encoding::percent_decode(&path.as_bytes()[1..]).collect();
    if bytes.contains(&0) || bytes.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return page(StatusCode::BAD_REQUEST, "no");
    }
    let file = root.join(PathBuf::from(std::ffi::OsString::from_vec(bytes.clone())));
    let Ok(metadata) = file.metadata() else { return page(StatusCode::NOT_FOUND, "nothing here") };
    if metadata.is_dir() {
        if !path.ends_with('/') {
            let mut response = page(StatusCode::MOVED_PERMANENTLY, "there");
            response.headers_mut().insert("location", format!("{path}/").parse().unwrap());
            return response;
        }
        let mut text = "<h1>Index</h1><a href=\"../\">../</a><a href=\"?C=S\">by size</a>".to_owned();
        for entry in file.read_dir().unwrap().flatten() {
            let (name, is_dir) = (entry.file_name(), entry.path().is_dir());
            if !name.as_bytes().starts_with(b".penstock") {
                text += &format!("<a href=\"{}{}\">it</a>\n", quoted(name.as_bytes()), if is_dir { "/" } else { "" });
            }
        }
        return page(StatusCode::OK, &text);
    }
    if path.ends_with('/') {
        return page(StatusCode::NOT_FOUND, "a file is not a folder");
    }
    let (Ok(content), Ok(metadata)) = (std::fs::read(&file), file.metadata()) else {
        return page(StatusCode::NOT_FOUND, "gone");
    };
    let etag = format!("\"{:x}-{:x}-{:x}\"", metadata.ino(), metadata.mtime(), metadata.mtime_nsec());
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    if manners.etags && header("if-match").is_some_and(|wanted| wanted != etag) {
        return page(StatusCode::PRECONDITION_FAILED, "another");
    }
    let size = content.len();
    let mut response = Response::new(Full::default());
    let headers = response.headers_mut();
    if manners.etags {
        headers.insert("etag", etag.parse().unwrap());
    }
    headers.insert("last-modified", http_date(metadata.mtime()).parse().unwrap());
    headers.insert("content-type", "application/octet-stream".parse().unwrap());
    let range =
        header("range").filter(|_| manners.ranges).and_then(|text| text.strip_prefix("bytes=")?.split_once('-'));
    let content = match range {
        None => Bytes::from(content),
        Some((start, last)) => {
            let start: usize = start.parse().unwrap();
            let end = last.parse().map_or(size, |last: usize| (last + 1).min(size));
            if start >= size {
                *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
                return response;
            }
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let range = format!("bytes {start}-{}/{size}", end - 1);
            response.headers_mut().insert("content-range", range.parse().unwrap());
            Bytes::from(content).slice(start..end)
        }
    };
    response.headers_mut().insert("content-length", content.len().into());
    *response.body_mut() = Full::new(content);
    response
}

/// Store that reads through the web server and writes to the folder that it publishes.
#[derive(Debug)]
pub struct Published {
    pub web: Web,
    pub folder: Local,
}

#[async_trait]
impl Store for Published {
    fn root(&self) -> &Url {
        self.web.root()
    }

    fn capabilities(&self) -> Capabilities {
        // Ranges can be read from any server, if necessary by reading the whole object.
        Capabilities { put: true, ranges: true, ..self.web.capabilities() }
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        self.web.list(prefix, after, deadline)
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        self.web.head(key, deadline).await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        self.web.get_ranges(object, ranges, deadline).await
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        self.folder.put(key, parts, options, deadline).await?;
        self.web.head(key, deadline).await
    }

    fn multipart(&self) -> Option<&dyn penstock_store::MultipartStore> {
        None
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        self.folder.delete(keys, deadline).await
    }
}
