// SPDX-License-Identifier: Apache-2.0
//! Azure Blob Storage: reads and writes the block blobs of one container over HTTP/1.1. `reqsign` signs the requests.
//!
//! This module builds the requests to a container and interprets the responses. It sends every request once; `Retry`
//! repeats failed requests. The container must have a flat namespace. A hierarchical namespace does not list names in
//! byte order, so listings of it fail. No error and no `Debug` output contains a key, a SAS or a token.

mod account;
mod authorize;
mod block_list;
mod chain;
#[cfg(test)]
mod chain_tests;
mod list;
mod put;

pub use self::account::AzureSettings;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode};
use hyper::body::Incoming;
use penstock_types::{Algorithm, ByteRange, Deadline, Digest, Error, Key, Metric, Metrics, Result, Scheme, Url};

use self::account::Account;
use self::authorize::Authorizer;
use crate::metered::count_error;
use crate::transport::client::{Http, Parts};
use crate::transport::{Remote, delete_each, error_body, quoted, ranged_get, status, text, unquoted, within, xml};
use crate::{
    Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store, Version, http_date,
};

/// API version of the requests. Version 2021-02-12 and later versions percent-encode some names in listings.
const API: &str = "2020-12-06";

/// Azure Blob Storage container as a store. Cheap to clone.
#[derive(Clone)]
pub struct Azure {
    container: Arc<Container>,
    verifies: bool,
}

pub(crate) struct Container {
    root: Url,
    account: Account,
    http: Http,
    authorizer: Authorizer,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Azure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Azure")
            .field("root", &self.container.root.to_string())
            .field("endpoint", &self.container.account.shown())
            .finish_non_exhaustive()
    }
}

/// Parameters of a request.
struct Ask<'a> {
    method: Method,
    kind: Metric,
    /// Blob of the request. `None` for a request to the container itself.
    key: Option<&'a Key>,
    query: String,
    headers: HeaderMap,
    body: Parts,
}

impl<'a> Ask<'a> {
    fn new(method: Method, kind: Metric, key: Option<&'a Key>) -> Self {
        Self { method, kind, key, query: String::new(), headers: HeaderMap::new(), body: Parts::default() }
    }
}

impl Azure {
    /// Creates the store of a container without sending a request. Returns a `Config` error if the account is missing
    /// or invalid.
    pub fn new(container: &str, settings: &AzureSettings, metrics: Arc<Metrics>) -> Result<Self> {
        let account = Account::new(container, settings)?;
        let http = Http::new();
        let authorizer = Authorizer::new(settings, account.credential());
        let root = Url { scheme: Scheme::Azure, authority: container.to_owned(), key: Key::default() };
        let container = Container { root, account, http, authorizer, metrics };
        Ok(Self { container: Arc::new(container), verifies: true })
    }

    /// Disables the verification of checksums of whole blobs, because the caller (`Retry`) verifies them.
    pub(crate) fn unverified(self) -> Self {
        Self { verifies: false, ..self }
    }
}

impl Container {
    fn place_of(&self, key: Option<&Key>) -> String {
        match key {
            Some(key) => crate::place(&self.root, key),
            None => self.root.to_string(),
        }
    }

    fn refused(&self, key: &Key, reason: &str) -> Error {
        Error::KeyRefused { key: key.to_string(), place: self.root.to_string(), reason: reason.to_owned() }
    }

    fn check_key(&self, key: &Key) -> Result<()> {
        let Some(name) = key.as_str() else { return Err(self.refused(key, "blob names on Azure must be UTF-8")) };
        if name.is_empty() {
            return Err(Error::NotFound { place: self.root.to_string() });
        }
        if name.encode_utf16().count() > 1024 {
            return Err(self.refused(key, "the name is longer than 1,024 characters"));
        }
        // Azure or a proxy may resolve `.` and `..` in a URL path.
        if name.split('/').any(|part| part == "." || part == "..") {
            return Err(self.refused(key, "Azure resolves `.` and `..` in names"));
        }
        if name.contains('\\') {
            return Err(self.refused(key, "Azure turns backslashes into slashes"));
        }
        if name.contains(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')) {
            return Err(self.refused(key, "the name contains control characters, which Azure cannot list"));
        }
        Ok(())
    }

    /// Sends one request and returns its response if the status is a success.
    async fn send(&self, mut ask: Ask<'_>, deadline: Deadline) -> Result<Response<Incoming>> {
        if let Some(key) = ask.key {
            self.check_key(key)?;
        }
        let place = self.place_of(ask.key);
        let what = format!("{} {place}", ask.method);
        deadline.check(&what)?;
        let work = async {
            ask.headers.insert("x-ms-version", HeaderValue::from_static(API));
            if ask.method == Method::PUT {
                ask.headers.insert(header::CONTENT_LENGTH, ask.body.left().into());
            }
            let mut request = http::Request::new(());
            *request.method_mut() = ask.method.clone();
            *request.uri_mut() = self.account.uri(ask.key.map(Key::as_bytes), &ask.query)?;
            *request.headers_mut() = ask.headers;
            let (mut head, ()) = request.into_parts();
            let stamp = self.authorizer.authorize(&mut head, &place).await?;
            self.metrics.count(Metric::Requests);
            self.metrics.count(ask.kind);
            self.metrics.add(Metric::BytesSent, ask.body.left());
            let answer = self
                .http
                .send(http::Request::from_parts(head, ask.body))
                .await
                .map_err(|error| error.at(self.account.shown()))?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            let (head, body) = answer.into_parts();
            let mut problem = (String::new(), String::new());
            let _ = xml::elements(&error_body(body).await, |path, text| match path {
                ["Error", "Code"] => problem.0 = status::shown(&text),
                // Keep only the first line. The other lines contain IDs and times.
                ["Error", "Message"] => problem.1 = status::shown(text.lines().next().unwrap_or_default()),
                _ => {}
            });
            if let Some(code) = text(&head.headers, "x-ms-error-code") {
                problem.0 = status::shown(code);
            }
            if head.status == StatusCode::UNAUTHORIZED && self.authorizer.renews(stamp) {
                // `Retry` sends the request again with a new token.
                return Err(Error::Server { place, status: 401, reason: "the token expired".to_owned() });
            }
            Err(self.error(&ask.method, ask.key, head.status, &head.headers, &problem.0, &problem.1))
        };
        within(deadline, &what, work).await.inspect_err(|error| count_error(&self.metrics, error))
    }

    fn error(
        &self,
        method: &Method,
        key: Option<&Key>,
        status: StatusCode,
        headers: &HeaderMap,
        code: &str,
        message: &str,
    ) -> Error {
        let place = self.place_of(key);
        let reason = match (code, message) {
            ("", "") => status::reason_phrase(status),
            (code, "") => code.to_owned(),
            ("", message) => message.to_owned(),
            (code, message) => format!("{code}: {message}"),
        };
        match (status.as_u16(), code) {
            (_, "ContainerNotFound") => Error::NotFound { place: self.root.to_string() },
            (_, "AuthenticationFailed" | "NoAuthenticationInformation" | "InvalidAuthenticationInfo") => {
                // Omit the message, because it quotes the expected signature.
                Error::Denied { place, reason: code.to_owned() }
            }
            // A private container returns these errors to unauthenticated requests.
            (404, "ResourceNotFound") | (409, "PublicAccessNotPermitted") => Error::Denied { place, reason },
            (_, "ServerBusy" | "OperationTimedOut") => status::throttled(place, status, headers),
            (_, "Md5Mismatch" | "Crc64Mismatch" | "InvalidMd5") => {
                Error::corrupt(place, format!("arrived damaged at the store ({reason})"))
            }
            (409, "BlobAlreadyExists") => {
                Error::Precondition { place, reason: "an object with this key already exists".to_owned() }
            }
            (400, "InvalidUri" | "InvalidResourceName" | "OutOfRangeInput") => match key {
                Some(key) => self.refused(key, &reason),
                None => Error::NotFound { place },
            },
            (409, _) => Error::System { place, reason },
            _ => status::of(place, self.account.shown(), method, status, headers, reason),
        }
    }
}

/// Parses an MD5 in base64, as in Azure's responses.
fn md5(text: &str) -> Option<Digest> {
    let value = BASE64_STANDARD.decode(text).ok().filter(|value| value.len() == 16)?;
    Some(Digest { algorithm: Algorithm::Md5, value })
}

#[async_trait]
impl Remote for Container {
    fn place(&self, key: &Key) -> String {
        crate::place(&self.root, key)
    }

    fn shown(&self) -> &str {
        self.account.shown()
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let answer = self.send(Ask::new(Method::HEAD, Metric::Heads, Some(key)), deadline).await?;
        let size = ranged_get::length(self, key, answer.headers())?;
        Ok(self.meta(key, size, answer.headers()))
    }

    async fn get(
        &self,
        key: &Key,
        pin: Option<&Version>,
        range: Option<HeaderValue>,
        deadline: Deadline,
    ) -> Result<Response<Incoming>> {
        let mut ask = Ask::new(Method::GET, Metric::Gets, Some(key));
        if let Some(version) = pin {
            ask.headers.insert(header::IF_MATCH, quoted(version)?);
        }
        if let Some(range) = range {
            ask.headers.insert("x-ms-range", range);
        }
        self.send(ask, deadline).await
    }

    fn meta(&self, key: &Key, size: u64, headers: &HeaderMap) -> Meta {
        // For a ranged read, Content-MD5 is the digest of the range. The other header is the digest of the blob.
        let whole = if headers.contains_key(header::CONTENT_RANGE) { "x-ms-blob-content-md5" } else { "content-md5" };
        Meta {
            key: key.clone(),
            size,
            version: text(headers, "etag").map(|etag| Version(unquoted(etag).to_owned())),
            digests: text(headers, whole).and_then(md5).into_iter().collect(),
            encoding: text(headers, "content-encoding").filter(|name| !name.is_empty()).map(str::to_owned),
            modified_s: text(headers, "last-modified").and_then(http_date::http),
        }
    }

    fn slices(&self) -> bool {
        false
    }
}

#[async_trait]
impl Store for Azure {
    fn root(&self) -> &Url {
        &self.container.root
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { any_key: false, ..Capabilities::ALL }
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        list::stream(self.container.clone(), prefix.clone(), after.cloned(), deadline)
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        self.container.head(key, deadline).await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let remote: Arc<dyn Remote> = self.container.clone();
        ranged_get::ranges(&remote, object, ranges, self.verifies, deadline).await
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        put::put(&self.container, key, parts, options, deadline).await
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(self)
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        let delete = |key: Key| async move {
            let mut ask = Ask::new(Method::DELETE, Metric::Deletes, Some(&key));
            // Delete the snapshots too, because Azure refuses to delete a blob that has snapshots without them.
            ask.headers.insert("x-ms-delete-snapshots", HeaderValue::from_static("include"));
            self.container.send(ask, deadline).await
        };
        delete_each(keys, &self.container.place_of(None), delete).await
    }
}
