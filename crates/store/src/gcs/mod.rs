// SPDX-License-Identifier: Apache-2.0
//! Google Cloud Storage: reads and writes the objects of one bucket through the JSON API over HTTP/1.1. `reqsign`
//! provides the tokens.
//!
//! This module builds the requests to a bucket and interprets the responses. It sends every request once; `Retry`
//! repeats failed requests. Objects are read as they are stored: decompressive transcoding is disabled. No error and no
//! `Debug` output contains a key or a token.

mod authorize;
mod chain;
#[cfg(test)]
mod chain_tests;
mod list;
mod put;
mod resumable_upload;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Response, StatusCode, Uri};
use hyper::body::Incoming;
use penstock_types::{Algorithm, ByteRange, Deadline, Digest, Error, Key, Metric, Metrics, Result, Scheme, Url};
use percent_encoding::percent_encode;
use serde::Deserialize;

use self::authorize::Authorizer;
use crate::metered::count_error;
use crate::transport::client::{Http, Parts};
use crate::transport::{QUERY, Remote, body, delete_each, error_body, origin, ranged_get, status, text, within};
use crate::{
    Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store, Version, http_date,
};

/// Maximum size in bytes of the response that describes one object.
const ONE: usize = 1 << 20;

/// Connection settings of Google Cloud Storage. Its `Debug` output contains no credential.
#[derive(Clone, Default)]
pub struct GcsSettings {
    /// Endpoint of an emulator, used instead of Google's endpoint. It receives no token.
    pub emulator: Option<String>,
    /// Allows plain HTTP to other machines.
    pub allows_http: bool,
    /// Sends requests without a token, for public buckets.
    pub is_anonymous: bool,
    /// Allows token requests to the metadata server of the instance.
    pub asks_instance: bool,
    /// Environment variables that the credential chain may read.
    pub(crate) variables: HashMap<String, String>,
}

impl fmt::Debug for GcsSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GcsSettings")
            .field("emulator", &self.emulator.as_deref().map(|url| url.rsplit('@').next()))
            .field("allows_http", &self.allows_http)
            .field("is_anonymous", &self.is_anonymous)
            .field("asks_instance", &self.asks_instance)
            .finish_non_exhaustive()
    }
}

impl GcsSettings {
    /// Reads `STORAGE_EMULATOR_HOST` and the variables of Google's default credentials.
    pub(crate) fn from_env(variables: &HashMap<String, String>) -> Self {
        let is_ours = |name: &str| {
            // Include the AWS_ variables, because an external account may use AWS credentials.
            let prefixes = ["GOOGLE_", "CLOUDSDK_", "AWS_"];
            let names = ["HOME", "XDG_CONFIG_HOME", "GCE_METADATA_HOST"];
            prefixes.iter().any(|prefix| name.starts_with(prefix)) || names.contains(&name)
        };
        Self {
            emulator: variables.get("STORAGE_EMULATOR_HOST").filter(|host| !host.is_empty()).cloned(),
            variables: variables
                .iter()
                .filter(|(name, value)| is_ours(name) && !value.is_empty())
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            ..Self::default()
        }
    }
}

/// Google Cloud Storage bucket as a store. Cheap to clone.
#[derive(Clone)]
pub struct Gcs {
    bucket: Arc<Bucket>,
    verifies: bool,
}

pub(crate) struct Bucket {
    root: Url,
    shown: String,
    http: Http,
    authorizer: Authorizer,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Gcs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gcs")
            .field("root", &self.bucket.root.to_string())
            .field("endpoint", &self.bucket.shown)
            .finish_non_exhaustive()
    }
}

impl Gcs {
    /// Creates the store of a bucket without sending a request. Returns a `Config` error for an invalid endpoint or
    /// bucket name.
    pub fn new(bucket: &str, settings: &GcsSettings, metrics: Arc<Metrics>) -> Result<Self> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if bucket.is_empty() || bucket.len() > 222 || !bucket.chars().all(is_name) || bucket.chars().all(|c| c == '.') {
            return Err(Error::config("bucket", format!("`{}` is not a valid bucket name", bucket.escape_debug())));
        }
        let shown = match &settings.emulator {
            Some(host) => emulator(host, settings.allows_http)?,
            None => "https://storage.googleapis.com".to_owned(),
        };
        let http = Http::new();
        // Do not send a token to an emulator.
        let authorizer = Authorizer::new(settings, settings.is_anonymous || settings.emulator.is_some());
        let root = Url { scheme: Scheme::Gcs, authority: bucket.to_owned(), key: Key::default() };
        Ok(Self { bucket: Arc::new(Bucket { root, shown, http, authorizer, metrics }), verifies: true })
    }

    /// Disables the verification of checksums of whole objects, because the caller (`Retry`) verifies them.
    pub(crate) fn unverified(self) -> Self {
        Self { verifies: false, ..self }
    }
}

/// Parses the address of the emulator, which is `host:port` or a URL, as in Google's own libraries.
fn emulator(host: &str, allows_http: bool) -> Result<String> {
    let url = if host.contains("://") { host.to_owned() } else { format!("http://{host}") };
    origin("STORAGE_EMULATOR_HOST", &url, allows_http)
}

/// Parameters of a request.
struct Ask<'a> {
    method: Method,
    kind: Metric,
    /// Object of the request. `None` for a request to the bucket itself.
    key: Option<&'a Key>,
    /// Path and query of the URL.
    target: String,
    headers: HeaderMap,
    body: Parts,
}

/// Object metadata in the JSON API, where numbers are strings.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Described {
    name: String,
    size: Option<String>,
    generation: Option<String>,
    crc32c: Option<String>,
    md5_hash: Option<String>,
    content_encoding: Option<String>,
    updated: Option<String>,
}

impl Described {
    fn meta(self) -> Result<Meta> {
        let size = self.size.as_deref().and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| {
            Error::corrupt("the store's response", format!("has no size for `{}`", self.name.escape_debug()))
        })?;
        let crc = self.crc32c.as_deref().and_then(|text| digest(Algorithm::Crc32c, text));
        let md5 = self.md5_hash.as_deref().and_then(|text| digest(Algorithm::Md5, text));
        Ok(Meta {
            key: Key::from(self.name.as_str()),
            size,
            version: self.generation.map(Version),
            digests: crc.into_iter().chain(md5).collect(),
            encoding: self.content_encoding.filter(|name| !name.is_empty()),
            // Round down to whole seconds, as in the Last-Modified header of reads. Listings and reads then agree.
            modified_s: self.updated.as_deref().and_then(http_date::iso8601).map(f64::floor),
        })
    }
}

/// Decodes a digest in base64: a big-endian CRC-32C, or the bytes of an MD5.
fn digest(algorithm: Algorithm, text: &str) -> Option<Digest> {
    let len = if algorithm == Algorithm::Md5 { 16 } else { 4 };
    let value = BASE64_STANDARD.decode(text.trim()).ok().filter(|value| value.len() == len)?;
    Some(Digest { algorithm, value })
}

impl Bucket {
    fn place_of(&self, key: Option<&Key>) -> String {
        match key {
            Some(key) => crate::place(&self.root, key),
            None => self.root.to_string(),
        }
    }

    fn refused(&self, key: &Key, reason: &str) -> Error {
        Error::KeyRefused { key: key.to_string(), place: self.root.to_string(), reason: reason.to_owned() }
    }

    /// Builds a request for `/storage/v1/b/BUCKET/o/KEY?query`. The key, including its slashes, is percent-encoded.
    fn object<'a>(&self, method: Method, kind: Metric, key: &'a Key, query: &str) -> Ask<'a> {
        let name = percent_encode(key.as_bytes(), QUERY);
        let mark = if query.is_empty() { "" } else { "?" };
        let target = format!("/storage/v1/b/{}/o/{name}{mark}{query}", self.root.authority);
        Ask { method, kind, key: Some(key), target, headers: HeaderMap::new(), body: Parts::default() }
    }

    /// Sends one request and returns its response if the status is a success.
    async fn send(&self, mut ask: Ask<'_>, deadline: Deadline) -> Result<Response<Incoming>> {
        let place = self.place_of(ask.key);
        if let Some(key) = ask.key {
            match key.as_bytes() {
                b"" => return Err(Error::NotFound { place }),
                b"." | b".." => return Err(self.refused(key, "objects on Google cannot be named `.` or `..`")),
                bytes if bytes.len() > 1024 => return Err(self.refused(key, "the key is longer than 1,024 bytes")),
                bytes if bytes.contains(&b'\r') || bytes.contains(&b'\n') => {
                    return Err(self.refused(key, "object names on Google cannot contain line breaks"));
                }
                _ if key.as_str().is_none() => return Err(self.refused(key, "object names on Google must be UTF-8")),
                _ => {}
            }
        }
        let what = format!("{} {place}", ask.method);
        deadline.check(&what)?;
        let work = async {
            let uri = format!("{}{}", self.shown, ask.target);
            let uri: Uri = uri.parse().map_err(|_| Error::bug("a request has no valid URI"))?;
            if ask.method == Method::POST || ask.method == Method::PUT {
                ask.headers.insert(header::CONTENT_LENGTH, ask.body.left().into());
            }
            let mut request = http::Request::new(());
            *request.method_mut() = ask.method.clone();
            *request.uri_mut() = uri;
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
                .map_err(|error| error.at(&self.shown))?;
            // Status 308 means that a resumable upload expects more bytes.
            if answer.status().is_success() || (ask.method == Method::PUT && answer.status().as_u16() == 308) {
                return Ok(answer);
            }
            let (head, body) = answer.into_parts();
            if head.status == StatusCode::UNAUTHORIZED && self.authorizer.renews(stamp) {
                // `Retry` sends the request again with a new token.
                return Err(Error::Server { place, status: 401, reason: "the token expired".to_owned() });
            }
            Err(self.error(&ask.method, ask.key, head.status, &head.headers, &error_body(body).await))
        };
        within(deadline, &what, work).await.inspect_err(|error| count_error(&self.metrics, error))
    }

    fn error(&self, method: &Method, key: Option<&Key>, code: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
        #[derive(Default, Deserialize)]
        struct Inner {
            #[serde(default)]
            message: String,
        }
        #[derive(Deserialize)]
        struct Outer {
            error: Inner,
        }
        let message = serde_json::from_slice::<Outer>(body).map(|outer| outer.error.message).unwrap_or_default();
        let reason = if message.is_empty() { status::reason_phrase(code) } else { status::shown(&message) };
        let place = self.place_of(key);
        match code.as_u16() {
            // Only the message distinguishes a missing bucket from a missing object.
            404 if message.contains("bucket does not exist") => Error::NotFound { place: self.root.to_string() },
            // The precondition contains an invalid version, which the object cannot have.
            304 => Error::Changed { place, want: String::new(), have: "another".to_owned() },
            400 if message.to_ascii_lowercase().contains("crc32c") => {
                Error::corrupt(place, format!("arrived damaged at the store ({reason})"))
            }
            _ => status::of(place, &self.shown, method, code, headers, reason),
        }
    }

    /// Parses the object metadata in a response.
    async fn described(&self, key: &Key, answer: Response<Incoming>, deadline: Deadline) -> Result<Meta> {
        let place = self.place_of(Some(key));
        let body = body(answer.into_body(), ONE, deadline, &place).await?;
        let described: Described =
            serde_json::from_slice(&body).map_err(|_| ranged_get::odd(&place, "no object metadata"))?;
        let meta = described.meta()?;
        if meta.key != *key {
            return Err(ranged_get::odd(&place, "the metadata of another object"));
        }
        Ok(meta)
    }
}

/// Returns the version as the value of a generation parameter. Returns `None` if it is not a valid generation, because
/// versions from a manifest are untrusted.
fn generation(version: &Version) -> Option<&str> {
    let is_one = !version.0.is_empty() && version.0.len() <= 20 && version.0.bytes().all(|byte| byte.is_ascii_digit());
    is_one.then_some(version.0.as_str())
}

#[async_trait]
impl Remote for Bucket {
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
        let answer = self.send(self.object(Method::GET, Metric::Heads, key, ""), deadline).await?;
        self.described(key, answer, deadline).await
    }

    async fn get(
        &self,
        key: &Key,
        pin: Option<&Version>,
        range: Option<HeaderValue>,
        deadline: Deadline,
    ) -> Result<Response<Incoming>> {
        let query = match pin {
            Some(version) => match generation(version) {
                Some(generation) => format!("alt=media&ifGenerationMatch={generation}"),
                None => {
                    let (place, want) = (self.place(key), version.to_string());
                    return Err(Error::Changed { place, want, have: "another".to_owned() });
                }
            },
            None => "alt=media".to_owned(),
        };
        let mut ask = self.object(Method::GET, Metric::Gets, key, &query);
        // Without this header, Google decompresses objects with `Content-Encoding: gzip` and ignores ranges.
        ask.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        if let Some(range) = range {
            ask.headers.insert(header::RANGE, range);
        }
        self.send(ask, deadline).await
    }

    fn meta(&self, key: &Key, size: u64, headers: &HeaderMap) -> Meta {
        // The header may occur twice, or once with both hashes.
        let hashes = headers.get_all("x-goog-hash").iter().filter_map(|value| value.to_str().ok());
        let digests = hashes.flat_map(|text| text.split(',')).filter_map(|hash| match hash.trim().split_once('=')? {
            ("crc32c", text) => digest(Algorithm::Crc32c, text),
            ("md5", text) => digest(Algorithm::Md5, text),
            _ => None,
        });
        let encoding = text(headers, "x-goog-stored-content-encoding").or(text(headers, "content-encoding"));
        Meta {
            key: key.clone(),
            size,
            version: text(headers, "x-goog-generation").map(|generation| Version(generation.to_owned())),
            digests: digests.collect(),
            encoding: encoding.filter(|name| !name.is_empty() && *name != "identity").map(str::to_owned),
            modified_s: text(headers, "last-modified").and_then(http_date::http),
        }
    }

    fn slices(&self) -> bool {
        false
    }
}

#[async_trait]
impl Store for Gcs {
    fn root(&self) -> &Url {
        &self.bucket.root
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        list::stream(self.bucket.clone(), prefix.clone(), after.cloned(), deadline)
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        self.bucket.head(key, deadline).await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let remote: Arc<dyn Remote> = self.bucket.clone();
        ranged_get::ranges(&remote, object, ranges, self.verifies, deadline).await
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        put::put(&self.bucket, key, parts, options, deadline).await
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(self)
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        let delete = |key: Key| async move {
            self.bucket.send(self.bucket.object(Method::DELETE, Metric::Deletes, &key, ""), deadline).await
        };
        delete_each(keys, &self.bucket.place_of(None), delete).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_gcs_emulator_host_takes_what_googles_libraries_take() {
        assert_eq!(emulator("127.0.0.1:4443", false).unwrap(), "http://127.0.0.1:4443");
        assert_eq!(emulator("http://localhost:1/", false).unwrap(), "http://localhost:1");
        for host in ["http://u:secret@127.0.0.1", "http://127.0.0.1/?secret", "ftp://127.0.0.1", "10.0.0.1:80"] {
            let error = emulator(host, false).unwrap_err();
            assert!(error.code() == "config" && !error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn test_gcs_hashes_are_read_in_each_of_their_forms() {
        let gcs = Gcs::new("b", &GcsSettings::default(), Arc::default()).unwrap();
        let mut headers = HeaderMap::new();
        headers.append("x-goog-hash", "crc32c=4waSgw==,md5=JfnnlDI7RTiF9RgfG2JNCw==".parse().unwrap());
        headers.append("x-goog-hash", "crc32c=short".parse().unwrap());
        let digests = gcs.bucket.meta(&Key::from("k"), 9, &headers).digests;
        let digests: Vec<String> = digests.iter().map(ToString::to_string).collect();
        assert_eq!(digests, ["crc32c:e3069283", "md5:25f9e794323b453885f5181f1b624d0b"]);
    }

    #[test]
    fn test_gcs_generation_is_digits_alone() {
        assert_eq!(generation(&Version("123".into())), Some("123"));
        for text in ["", "1&x=2", "-1", "etag"] {
            assert_eq!(generation(&Version(text.into())), None);
        }
    }
}
