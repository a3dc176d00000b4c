// SPDX-License-Identifier: Apache-2.0
//! Plain web servers as read-only stores: `http://` and `https://`, with or without range support. Listings are read
//! from the index pages of the servers.
//!
//! This module sends the requests to one host. It sends no credentials, and rejects URLs that contain credentials. It
//! follows redirects within the same scheme. It does not follow a redirect from another host to this machine or to a
//! link-local address, such as a metadata service. It returns the Content-Encoding but does not decode it.

mod index;
pub(crate) mod redirect;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::Authority;
use http::{Method, Response, StatusCode, Uri};
use hyper::body::Incoming;
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Metrics, Result, Scheme, Url};

use crate::metered::count_error;
use crate::transport::client::{Http, Parts};
use crate::transport::{Remote, error_body, header_of, quoted, ranged_get, status, text, unquoted, uri, within};
use crate::{
    Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store, Version, http_date,
};

/// Prefix of a version that is built from Last-Modified, if the server returns no ETag. Such a version also contains
/// the size of the object, because a time in whole seconds is too coarse.
const MODIFIED: &str = "modified:";

/// Web server as a store. Cheap to clone.
#[derive(Clone)]
pub struct Web {
    site: Arc<Site>,
}

pub(crate) struct Site {
    root: Url,
    authority: Authority,
    shown: String,
    http: Http,
    metrics: Arc<Metrics>,
    ranges: AtomicU8,
}

/// Values that state whether the server supports ranges, according to its responses so far.
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl fmt::Debug for Web {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Web").field("root", &self.site.shown).finish_non_exhaustive()
    }
}

impl Web {
    /// Creates the store of a host without sending a request. Returns a `Config` error for an invalid host or a URL
    /// that contains a password.
    pub fn new(url: &Url, metrics: Arc<Metrics>) -> Result<Self> {
        // Errors may contain the URL only after the check that the URL has no password.
        let bad = |problem: &str| Error::config("url", problem);
        let authority: Authority = url.authority.parse().map_err(|_| bad("the URL has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("the URL contains a user name or a password, which Penstock does not send to web servers"));
        }
        let root = url.with_key(Key::default());
        let shown = format!("{}://{authority}", root.scheme.name());
        let site = Site { root, authority, shown, http: Http::new(), metrics, ranges: AtomicU8::new(UNKNOWN) };
        Ok(Self { site: Arc::new(site) })
    }
}

impl Site {
    fn uri(&self, key: &Key) -> Result<Uri> {
        uri(&self.shown, Some(key.as_bytes()), "")
    }

    /// Sends one request and follows redirects. Returns the response if its status is a success.
    async fn send(
        &self,
        method: &Method,
        kind: Metric,
        key: &Key,
        headers: HeaderMap,
        deadline: Deadline,
    ) -> Result<Response<Incoming>> {
        let place = self.place(key);
        if key.as_bytes().split(|byte| *byte == b'/').any(|part| part == b"." || part == b"..") {
            let reason = "web servers resolve `.` and `..`".to_owned();
            return Err(Error::KeyRefused { key: key.to_string(), place: self.root.to_string(), reason });
        }
        let what = format!("{method} {place}");
        deadline.check(&what)?;
        let work = async {
            let mut uri = self.uri(key)?;
            for _ in 0..=redirect::MAX_REDIRECTS {
                let mut request = http::Request::new(Parts::default());
                *request.method_mut() = method.clone();
                *request.uri_mut() = uri.clone();
                *request.headers_mut() = headers.clone();
                // Request the bytes as they are stored, without compression for the transfer.
                request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
                self.metrics.count(Metric::Requests);
                self.metrics.count(kind);
                let answer = self.http.send(request).await;
                let answer = answer.map_err(|error| error.at(&self.shown))?;
                let code = answer.status();
                if code.is_success() {
                    if kind != Metric::Lists {
                        self.learn(code, answer.headers());
                    }
                    return Ok(answer);
                }
                if matches!(code.as_u16(), 301 | 302 | 303 | 307 | 308) {
                    let location = text(answer.headers(), "location").unwrap_or_default();
                    uri = redirect::follow(&uri, location, &self.authority, &place)?;
                    continue;
                }
                let (head, body) = answer.into_parts();
                drop(error_body(body).await);
                return Err(status::of(
                    place.clone(),
                    &self.shown,
                    method,
                    code,
                    &head.headers,
                    status::reason_phrase(code),
                ));
            }
            let reason = format!("more than {} redirects", redirect::MAX_REDIRECTS);
            Err(Error::System { place: place.clone(), reason })
        };
        within(deadline, &what, work).await.inspect_err(|error| count_error(&self.metrics, error))
    }

    /// Uses a response to record whether the server supports ranges.
    fn learn(&self, code: StatusCode, headers: &HeaderMap) {
        let known = match (code, text(headers, "accept-ranges").map(str::trim)) {
            (StatusCode::PARTIAL_CONTENT, _) | (_, Some("bytes")) => YES,
            (_, Some("none")) => NO,
            _ => return,
        };
        let _ = self.ranges.compare_exchange(UNKNOWN, known, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn reads_ranges(&self) -> bool {
        self.ranges.load(Ordering::Relaxed) != NO
    }

    /// If no response has shown yet whether the server supports ranges, requests one byte of an object.
    async fn probe(&self, key: &Key, deadline: Deadline) -> Result<()> {
        if self.ranges.load(Ordering::Relaxed) == UNKNOWN {
            let range = Some(HeaderValue::from_static("bytes=0-0"));
            drop(self.get(key, None, range, deadline).await?);
        }
        Ok(())
    }
}

#[async_trait]
impl Remote for Site {
    fn place(&self, key: &Key) -> String {
        crate::place(&self.root, key)
    }

    fn shown(&self) -> &str {
        &self.shown
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let answer = match self.send(&Method::HEAD, Metric::Heads, key, HeaderMap::new(), deadline).await {
            // Some servers that generate responses support only GET. The body of this response is not read.
            Err(Error::Unsupported { .. }) => {
                self.send(&Method::GET, Metric::Heads, key, HeaderMap::new(), deadline).await?
            }
            answer => answer?,
        };
        let size = ranged_get::length(self, key, answer.headers())?;
        if size > 0 {
            self.probe(key, deadline).await?;
        }
        Ok(self.meta(key, size, answer.headers()))
    }

    async fn get(
        &self,
        key: &Key,
        pin: Option<&Version>,
        range: Option<HeaderValue>,
        deadline: Deadline,
    ) -> Result<Response<Incoming>> {
        let mut headers = HeaderMap::new();
        match pin.map(|version| (version, version.0.strip_prefix(MODIFIED).and_then(|rest| rest.rsplit_once(':')))) {
            Some((_, Some((date, _)))) => {
                headers.insert(header::IF_UNMODIFIED_SINCE, header_of("version", date)?);
            }
            // A weak ETag never matches If-Match. Instead, the version in the response is compared.
            Some((version, None)) if !version.0.starts_with("W/") => {
                headers.insert(header::IF_MATCH, quoted(version)?);
            }
            Some((_, None)) | None => {}
        }
        let asks_range = range.is_some() && self.reads_ranges();
        if let Some(range) = range.filter(|_| asks_range) {
            headers.insert(header::RANGE, range);
        }
        let answer = self.send(&Method::GET, Metric::Gets, key, headers, deadline).await?;
        if asks_range && answer.status() == StatusCode::OK {
            self.ranges.store(NO, Ordering::Relaxed);
        }
        Ok(answer)
    }

    fn meta(&self, key: &Key, size: u64, headers: &HeaderMap) -> Meta {
        let modified = text(headers, "last-modified");
        let version = text(headers, "etag").map(|etag| unquoted(etag).to_owned());
        Meta {
            key: key.clone(),
            size,
            version: version.or_else(|| Some(format!("{MODIFIED}{}:{size}", modified?))).map(Version),
            digests: Vec::new(),
            encoding: text(headers, "content-encoding").filter(|name| *name != "identity").map(str::to_owned),
            modified_s: modified.and_then(http_date::http),
        }
    }

    fn slices(&self) -> bool {
        true
    }
}

#[async_trait]
impl Store for Web {
    fn root(&self) -> &Url {
        &self.site.root
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            put: false,
            preconditions: false,
            checksums: false,
            ranges: self.site.reads_ranges(),
            any_key: false,
            ..Capabilities::ALL
        }
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        index::stream(self.site.clone(), prefix.clone(), after.cloned(), deadline)
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        self.site.head(key, deadline).await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let remote: Arc<dyn Remote> = self.site.clone();
        ranged_get::ranges(&remote, object, ranges, true, deadline).await
    }

    async fn put(&self, key: &Key, _: Vec<Bytes>, _: &PutOptions, _: Deadline) -> Result<Meta> {
        Err(Error::Unsupported { what: format!("a write to {}", self.site.place(key)), by: by(self.site.root.scheme) })
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        None
    }

    async fn delete(&self, keys: &[Key], _: Deadline) -> Result<()> {
        match keys.first() {
            None => Ok(()),
            Some(key) => {
                let what = format!("deletion of {}", self.site.place(key));
                Err(Error::Unsupported { what, by: by(self.site.root.scheme) })
            }
        }
    }
}

fn by(scheme: Scheme) -> String {
    format!("{}://, which is read only", scheme.name())
}
