// SPDX-License-Identifier: Apache-2.0
//! Datasets of the Hugging Face Hub as read-only stores, through the Hub's HTTP API. The `tree` endpoint lists the
//! files. The `resolve` endpoint redirects to the server that has the bytes of a file.
//!
//! This module sends the requests and follows the redirects. It sends the token only to the Hub itself, never to the
//! target of a redirect. No error and no `Debug` output contains the token. All requests of a store read the same
//! commit: the commit to which the revision referred at the first request. The version of a file is a hash of its
//! content: SHA-256 for files in LFS, and the Git object ID for other files.

mod list;
mod settings;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::uri::Authority;
use http::{Method, Response, StatusCode, Uri};
use hyper::body::Incoming;
use penstock_types::{ByteRange, Deadline, Digest, Error, Key, Metric, Metrics, Result, Url, lock, now};
use serde::Deserialize;
use tokio::sync::OnceCell;

use self::list::Listed;
pub use self::settings::HubSettings;
use crate::metered::count_error;
use crate::transport::client::{Http, Parts};
use crate::transport::{Remote, body, error_body, origin, ranged_get, status, text, unquoted, uri, within};
use crate::web::redirect;
use crate::{
    Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store, Version, http_date,
};

/// Header in the Hub's redirect that contains the hash of the file's content.
const LINKED_ETAG: &str = "x-linked-etag";
/// Header in the Hub's redirect that contains the size of the file.
const LINKED_SIZE: &str = "x-linked-size";
/// Maximum size in bytes of the description of a revision. The description lists all files of the dataset.
const REVISION_LIMIT: usize = 64 << 20;
/// Time for which the target of a redirect is reused. The Hub's signatures are valid for an hour.
const REUSED: Duration = Duration::from_secs(600);
/// Maximum number of cached redirect targets.
const TARGETS: usize = 4096;

/// Dataset of the Hugging Face Hub as a store. Cheap to clone.
#[derive(Clone)]
pub struct Hub {
    dataset: Arc<Dataset>,
}

pub(crate) struct Dataset {
    root: Url,
    /// Name of the dataset: `ORG/NAME`.
    name: String,
    /// Revision from the URL, percent-encoded.
    revision: String,
    shown: String,
    authority: Authority,
    token: Option<HeaderValue>,
    http: Http,
    metrics: Arc<Metrics>,
    commit: OnceCell<String>,
    /// Pages of unfinished listings, by folder.
    listed: Mutex<HashMap<Key, Listed>>,
    /// Targets of redirects by key. The targets are signed URLs.
    targets: Mutex<HashMap<Key, Target>>,
}

/// Location of the bytes of a file.
#[derive(Clone)]
struct Target {
    uri: Uri,
    etag: Option<HeaderValue>,
    since: Instant,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("root", &self.dataset.root.to_string()).finish_non_exhaustive()
    }
}

impl Hub {
    /// Creates the store of a dataset without sending a request. Returns a `Config` error for an invalid endpoint or
    /// token.
    pub fn new(url: &Url, settings: &HubSettings, metrics: Arc<Metrics>) -> Result<Self> {
        let shown =
            origin("HF_ENDPOINT", settings.endpoint.as_deref().unwrap_or(settings::ENDPOINT), settings.allows_http)?;
        let authority = shown.parse::<Uri>().ok().and_then(|uri| uri.authority().cloned());
        let authority = authority.ok_or_else(|| Error::bug("an endpoint without a host"))?;
        let (dataset, revision) = url.authority.split_once('@').unwrap_or((url.authority.as_str(), "main"));
        let revision = if revision == "~parquet" { "refs%2Fconvert%2Fparquet" } else { revision };
        let name = dataset.strip_prefix("datasets/").ok_or_else(|| Error::bug("a Hub URL without a dataset"))?;
        let token = settings.token()?.map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                .map_err(|_| Error::config("HF_TOKEN", "contains characters that a token cannot have"))?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        });
        let dataset = Dataset {
            root: url.with_key(Key::default()),
            name: name.to_owned(),
            revision: revision.to_owned(),
            shown,
            authority,
            token: token.transpose()?,
            http: Http::new(),
            metrics,
            commit: OnceCell::new(),
            listed: Mutex::default(),
            targets: Mutex::default(),
        };
        Ok(Self { dataset: Arc::new(dataset) })
    }
}

/// Response of the Hub, or of the server to which the Hub redirects.
struct Answer {
    response: Response<Incoming>,
    /// Content hash from the Hub's own response.
    etag: Option<HeaderValue>,
    /// URL of the last request, after all redirects.
    uri: Uri,
}

impl Dataset {
    /// Sends one request and follows redirects. If `stays` is true, returns a redirect to another host as the response.
    async fn send(
        &self,
        method: &Method,
        kind: Metric,
        (mut uri, place): (Uri, &str),
        headers: &HeaderMap,
        stays: bool,
        deadline: Deadline,
    ) -> Result<Answer> {
        let what = format!("{method} {place}");
        deadline.check(&what)?;
        let work = async {
            let mut etag = None;
            for _ in 0..=redirect::MAX_REDIRECTS {
                let is_hub = uri.authority() == Some(&self.authority);
                let mut request = http::Request::new(Parts::default());
                *request.method_mut() = method.clone();
                *request.uri_mut() = uri.clone();
                *request.headers_mut() = headers.clone();
                // Request the bytes as they are stored, without compression for the transfer.
                request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
                if let Some(token) = self.token.as_ref().filter(|_| is_hub) {
                    request.headers_mut().insert(header::AUTHORIZATION, token.clone());
                }
                self.metrics.count(Metric::Requests);
                self.metrics.count(kind);
                let shown = if is_hub { self.shown.as_str() } else { uri.authority().map_or("", |host| host.host()) };
                let answer = self.http.send(request).await.map_err(|error| error.at(shown))?;
                let code = answer.status();
                if is_hub {
                    let headers = answer.headers();
                    etag = headers.get(LINKED_ETAG).or_else(|| headers.get(header::ETAG)).cloned().or(etag);
                }
                if code.is_success() {
                    return Ok(Answer { response: answer, etag, uri });
                }
                if matches!(code.as_u16(), 301 | 302 | 303 | 307 | 308) {
                    let location = text(answer.headers(), "location").unwrap_or_default();
                    let to = redirect::follow(&uri, location, &self.authority, place)?;
                    if stays && to.authority() != Some(&self.authority) {
                        return Ok(Answer { response: answer, etag, uri });
                    }
                    uri = to;
                    continue;
                }
                let (head, body) = answer.into_parts();
                drop(error_body(body).await);
                return Err(self.error(place, method, shown, head.status, &head.headers, is_hub));
            }
            let reason = format!("more than {} redirects", redirect::MAX_REDIRECTS);
            Err(Error::System { place: place.to_owned(), reason })
        };
        within(deadline, &what, work).await.inspect_err(|error| count_error(&self.metrics, error))
    }

    /// Converts an HTTP status to an error. The Hub states the reason in `X-Error-Code`.
    fn error(
        &self,
        place: &str,
        method: &Method,
        by: &str,
        code: StatusCode,
        headers: &HeaderMap,
        is_hub: bool,
    ) -> Error {
        let (place, reason) = (place.to_owned(), status::reason_phrase(code));
        let denied = |reason: &str| Error::Denied { place: place.clone(), reason: reason.to_owned() };
        match (code.as_u16(), text(headers, "x-error-code")) {
            (_, Some("GatedRepo")) => denied(
                "the dataset is gated: log in to the Hub with the account of the token, and accept the conditions on the dataset's page",
            ),
            // For requests without access, the Hub does not reveal whether a private dataset exists.
            (401, _) | (_, Some("RepoNotFound")) if is_hub && self.token.is_none() => denied(
                "the dataset does not exist, or is private: set HF_TOKEN, or log in with the Hub's own program (`hf auth login`)",
            ),
            (401, _) | (_, Some("RepoNotFound")) if is_hub => {
                denied("the dataset does not exist, or the token does not give access to it")
            }
            (_, Some("RevisionNotFound")) => {
                Error::NotFound { place: format!("revision {} of {}", self.revision, self.root.without_revision()) }
            }
            _ => status::of(place, by, method, code, headers, reason),
        }
    }

    /// Returns the commit that this store reads.
    async fn commit(&self, deadline: Deadline) -> Result<&str> {
        #[derive(Deserialize)]
        struct Revision {
            sha: String,
        }
        let is_commit = |text: &str| text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let find = async {
            if is_commit(&self.revision) {
                return Ok(self.revision.clone());
            }
            let target = format!("{}/api/datasets/{}/revision/{}", self.shown, self.name, self.revision);
            let uri: Uri = target.parse().map_err(|_| Error::config("url", "the revision is not valid"))?;
            let place = self.root.to_string();
            let sent =
                self.send(&Method::GET, Metric::Heads, (uri, &place), &HeaderMap::new(), false, deadline).await?;
            let body = body(sent.response.into_body(), REVISION_LIMIT, deadline, &place).await?;
            let found = serde_json::from_slice::<Revision>(&body).ok().filter(|found| is_commit(&found.sha));
            let reason = "the response has no commit (check HF_ENDPOINT)".to_owned();
            Ok::<String, Error>(found.ok_or(Error::System { place, reason })?.sha)
        };
        Ok(self.commit.get_or_try_init(|| find).await?.as_str())
    }

    /// Returns the `resolve` URL of a file at the commit.
    async fn resolve(&self, key: &Key, deadline: Deadline) -> Result<Uri> {
        if key.as_bytes().split(|byte| *byte == b'/').any(|part| part == b"." || part == b"..") {
            let reason = "web servers resolve `.` and `..`".to_owned();
            return Err(Error::KeyRefused { key: key.to_string(), place: self.root.to_string(), reason });
        }
        let commit = self.commit(deadline).await?;
        uri(&format!("{}/datasets/{}/resolve/{commit}", self.shown, self.name), Some(key.as_bytes()), "")
    }

    /// Returns the cached redirect target of a file if it is still usable.
    fn target(&self, key: &Key) -> Option<Target> {
        lock(&self.targets).get(key).filter(|target| now() - target.since < REUSED).cloned()
    }

    fn note_target(&self, key: &Key, target: Option<Target>) {
        let mut targets = lock(&self.targets);
        match target {
            Some(target) => {
                if targets.len() >= TARGETS {
                    targets.clear();
                }
                targets.insert(key.clone(), target);
            }
            None => drop(targets.remove(key)),
        }
    }
}

/// Returns the version of a file from its ETag, which is the hash of the content.
fn version_of(etag: &str) -> Version {
    Version(unquoted(etag.strip_prefix("W/").unwrap_or(etag)).to_owned())
}

/// Returns a version as a digest; `None` if the version is not a SHA-256.
fn digest_of(version: &Version) -> Option<Digest> {
    format!("sha256:{version}").parse().ok().filter(|digest: &Digest| digest.value.len() == 32)
}

/// Builds the metadata of a file with this version.
fn meta_of(key: Key, size: u64, version: Option<Version>) -> Meta {
    let digests = version.iter().filter_map(digest_of).collect();
    Meta { key, size, version, digests, encoding: None, modified_s: None }
}

#[async_trait]
impl Remote for Dataset {
    fn place(&self, key: &Key) -> String {
        crate::place(&self.root, key)
    }

    fn shown(&self) -> &str {
        &self.shown
    }

    fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns the metadata of a file from the Hub's redirect. For the empty key, the version is the commit.
    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        if key.is_empty() {
            let commit = Version(self.commit(deadline).await?.to_owned());
            return Ok(Meta { version: Some(commit), ..meta_of(key.clone(), 0, None) });
        }
        let (place, headers) = (self.place(key), HeaderMap::new());
        let uri = self.resolve(key, deadline).await?;
        let sent = self.send(&Method::HEAD, Metric::Heads, (uri, &place), &headers, true, deadline).await?;
        let headers = sent.response.headers();
        let size = match text(headers, LINKED_SIZE).and_then(|size| size.parse().ok()) {
            Some(size) => size,
            None if sent.response.status().is_redirection() => {
                let what = format!("{place} (the redirect has no size)");
                return Err(Error::Unsupported { what, by: self.shown.clone() });
            }
            None => ranged_get::length(self, key, headers)?,
        };
        let version = sent.etag.as_ref().and_then(|etag| etag.to_str().ok()).map(version_of);
        Ok(meta_of(key.clone(), size, version))
    }

    async fn get(
        &self,
        key: &Key,
        _pin: Option<&Version>,
        range: Option<HeaderValue>,
        deadline: Deadline,
    ) -> Result<Response<Incoming>> {
        let place = self.place(key);
        let mut headers = HeaderMap::new();
        if let Some(range) = range {
            headers.insert(header::RANGE, range);
        }
        let (method, kind) = (Method::GET, Metric::Gets);
        let mut found = None;
        if let Some(target) = self.target(key) {
            match self.send(&method, kind, (target.uri, &place), &headers, false, deadline).await {
                Ok(answer) => found = Some(Answer { etag: target.etag, ..answer }),
                // The signature has expired, so ask the Hub for a new redirect.
                Err(Error::Denied { .. } | Error::NotFound { .. }) => self.note_target(key, None),
                Err(error) => return Err(error),
            }
        }
        let answer = match found {
            Some(answer) => answer,
            None => {
                let uri = self.resolve(key, deadline).await?;
                self.send(&method, kind, (uri, &place), &headers, false, deadline).await?
            }
        };
        let Answer { mut response, etag, uri } = answer;
        if uri.authority() != Some(&self.authority) {
            self.note_target(key, Some(Target { uri, etag: etag.clone(), since: now() }));
        }
        if let Some(etag) = etag {
            response.headers_mut().insert(LINKED_ETAG, etag);
        }
        Ok(response)
    }

    fn meta(&self, key: &Key, size: u64, headers: &HeaderMap) -> Meta {
        let version = text(headers, LINKED_ETAG).or_else(|| text(headers, "etag")).map(version_of);
        Meta {
            encoding: text(headers, "content-encoding").filter(|name| *name != "identity").map(str::to_owned),
            modified_s: text(headers, "last-modified").and_then(http_date::http),
            ..meta_of(key.clone(), size, version)
        }
    }

    fn slices(&self) -> bool {
        true
    }
}

#[async_trait]
impl Store for Hub {
    fn root(&self) -> &Url {
        &self.dataset.root
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { put: false, preconditions: false, checksums: false, any_key: false, ..Capabilities::ALL }
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        list::stream(self.dataset.clone(), prefix.clone(), after.cloned(), deadline)
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        self.dataset.head(key, deadline).await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let remote: Arc<dyn Remote> = self.dataset.clone();
        ranged_get::ranges(&remote, object, ranges, true, deadline).await
    }

    async fn put(&self, key: &Key, _: Vec<Bytes>, _: &PutOptions, _: Deadline) -> Result<Meta> {
        Err(Error::Unsupported { what: format!("a write to {}", self.dataset.place(key)), by: BY.to_owned() })
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        None
    }

    async fn delete(&self, keys: &[Key], _: Deadline) -> Result<()> {
        match keys.first() {
            None => Ok(()),
            Some(key) => {
                let what = format!("deletion of {}", self.dataset.place(key));
                Err(Error::Unsupported { what, by: BY.to_owned() })
            }
        }
    }
}

const BY: &str = "hf://, which is read only";
