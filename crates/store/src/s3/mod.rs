// SPDX-License-Identifier: Apache-2.0
//! S3 and compatible stores: reads and writes one bucket over HTTP/1.1 with many connections. `reqsign` signs the
//! requests.
//!
//! This module builds the requests to a bucket and interprets the responses. It sends every request once; `Retry`
//! repeats failed requests. No error and no `Debug` output contains a secret or a signed URL.

mod chain;
mod composite_checksum;
mod delete;
mod endpoint;
mod error;
mod get;
mod large_put;
mod list;
mod multipart;
mod put;
mod sign;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response};
use hyper::body::Incoming;
use penstock_types::{Algorithm, ByteRange, Deadline, Digest, Error, Key, Metric, Metrics, Result, Scheme, Url};

use self::endpoint::Endpoint;
use self::sign::Sign;
use crate::metered::count_error;
use crate::transport::client::{Http, Parts};
use crate::transport::{Remote, ranged_get, text, unquoted, within};
use crate::{
    Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, S3Settings, Store, Version,
    http_date,
};

/// S3 bucket as a store. Cheap to clone.
#[derive(Clone)]
pub struct S3 {
    bucket: Arc<Bucket>,
    verifies: bool,
}

struct Bucket {
    root: Url,
    endpoint: Endpoint,
    http: Http,
    sign: Sign,
    metrics: Arc<Metrics>,
    verifies_md5: bool,
    verifies_parts: bool,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3")
            .field("root", &self.bucket.root.to_string())
            .field("endpoint", &self.bucket.endpoint.shown())
            .finish_non_exhaustive()
    }
}

/// Parameters of a request.
struct Ask<'a> {
    method: Method,
    kind: Metric,
    /// Object of the request. `None` for a request to the bucket itself.
    key: Option<&'a Key>,
    query: &'a str,
    headers: HeaderMap,
    body: Parts,
}

impl<'a> Ask<'a> {
    fn new(method: Method, kind: Metric, key: Option<&'a Key>) -> Self {
        Self { method, kind, key, query: "", headers: HeaderMap::new(), body: Parts::default() }
    }
}

impl S3 {
    /// Creates the store of a bucket without sending a request. Returns a `Config` error for an invalid endpoint or
    /// bucket name.
    pub fn new(bucket: &str, settings: &S3Settings, metrics: Arc<Metrics>) -> Result<Self> {
        let endpoint = Endpoint::new(bucket, settings)?;
        let http = Http::trusting(settings.variables.get("AWS_CA_BUNDLE").map(Path::new))?;
        let sign = Sign::new(settings, endpoint.region(), &http);
        let root = Url { scheme: Scheme::S3, authority: bucket.to_owned(), key: Key::default() };
        let (verifies_md5, verifies_parts) = (settings.verifies_md5, settings.verifies_parts);
        let bucket = Bucket { root, endpoint, http, sign, metrics, verifies_md5, verifies_parts };
        Ok(Self { bucket: Arc::new(bucket), verifies: true })
    }

    /// Disables the verification of checksums of whole objects, because the caller (`Retry`) verifies them.
    pub(crate) fn unverified(self) -> Self {
        Self { verifies: false, ..self }
    }
}

impl Bucket {
    fn place_of(&self, key: Option<&Key>) -> String {
        match key {
            Some(key) => crate::place(&self.root, key),
            None => self.root.to_string(),
        }
    }

    /// Sends one request and returns its response if the status is a success.
    async fn send(&self, ask: Ask<'_>, deadline: Deadline) -> Result<Response<Incoming>> {
        let place = self.place_of(ask.key);
        if let Some(key) = ask.key {
            if key.is_empty() {
                return Err(Error::NotFound { place });
            }
            if key.as_str().is_none() {
                return Err(self.refused(key, "S3 keys must be UTF-8"));
            }
        }
        let what = format!("{} {place}", ask.method);
        deadline.check(&what)?;
        let work = async {
            let mut request = http::Request::new(());
            *request.method_mut() = ask.method.clone();
            *request.uri_mut() = self.endpoint.uri(ask.key.map(Key::as_bytes), ask.query)?;
            *request.headers_mut() = ask.headers;
            let (mut head, ()) = request.into_parts();
            let stamp = self.sign.sign(&mut head, &place).await?;
            self.metrics.count(Metric::Requests);
            self.metrics.count(ask.kind);
            self.metrics.add(Metric::BytesSent, ask.body.left());
            let answer = self
                .http
                .send(http::Request::from_parts(head, ask.body))
                .await
                .map_err(|error| error.at(self.endpoint.shown()))?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            let status = answer.status();
            let error = error::of_answer(self, &ask.method, ask.key, answer).await;
            Err(match error::tells_expiry(&ask.method, status, &error) && self.sign.renews(stamp) {
                // `Retry` sends the request again with a new credential.
                true => Error::Server { place, status: status.as_u16(), reason: "the credentials expired".to_owned() },
                false => error,
            })
        };
        within(deadline, &what, work).await.inspect_err(|error| count_error(&self.metrics, error))
    }

    fn refused(&self, key: &Key, reason: &str) -> Error {
        Error::KeyRefused { key: key.to_string(), place: self.place_of(None), reason: reason.to_owned() }
    }

    /// Builds the metadata of an object of `size` bytes from the headers of a response.
    fn described(&self, key: &Key, size: u64, headers: &HeaderMap) -> Meta {
        let text = |name: &str| text(headers, name);
        let etag = text("etag").map(unquoted);
        let mut digests = checksums(headers);
        if self.verifies_md5
            && !is_encrypted(headers)
            && let Some(etag) = etag
            && etag.len() == 32
            && let Ok(md5) = format!("md5:{etag}").parse()
        {
            digests.push(md5);
        }
        Meta {
            key: key.clone(),
            size,
            version: etag.map(|etag| Version(etag.to_owned())),
            digests,
            encoding: text("content-encoding").and_then(stored_encoding),
            modified_s: text("last-modified").and_then(http_date::http),
        }
    }
}

/// Returns true if the object is encrypted in such a way that its ETag is not an MD5.
fn is_encrypted(headers: &HeaderMap) -> bool {
    text(headers, "x-amz-server-side-encryption").is_some_and(|how| how != "AES256")
        || text(headers, "x-amz-server-side-encryption-customer-algorithm").is_some()
}

/// Returns the Content-Encoding without `aws-chunked`, which describes the transfer encoding and not the object.
fn stored_encoding(text: &str) -> Option<String> {
    let kept: Vec<&str> =
        text.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "aws-chunked").collect();
    (!kept.is_empty()).then(|| kept.join(", "))
}

const CHECKSUMS: [(&str, Algorithm, usize); 5] = [
    ("x-amz-checksum-crc32c", Algorithm::Crc32c, 4),
    ("x-amz-checksum-crc64nvme", Algorithm::Crc64Nvme, 8),
    ("x-amz-checksum-crc32", Algorithm::Crc32, 4),
    ("x-amz-checksum-sha256", Algorithm::Sha256, 32),
    ("x-amz-checksum-sha1", Algorithm::Sha1, 20),
];

/// Returns the whole-object checksums in a response. `composite_checksum` handles composite checksums of multipart
/// uploads (`COMPOSITE`).
fn checksums(headers: &HeaderMap) -> Vec<Digest> {
    if headers.get("x-amz-checksum-type").is_some_and(|kind| kind != "FULL_OBJECT") {
        return Vec::new();
    }
    // If the response for a multipart upload has no checksum type, the server computes no whole-object checksums for
    // such uploads. Their checksums are then composite, even without a suffix such as `-3` (moto's HEAD). Only
    // CRC64NVME always covers the whole object.
    let has_only_part_sums =
        !headers.contains_key("x-amz-checksum-type") && text(headers, "etag").is_some_and(is_multipart);
    let decode = |text: &HeaderValue| base64::Engine::decode(&base64::prelude::BASE64_STANDARD, text).ok();
    CHECKSUMS
        .iter()
        .filter(|(_, algorithm, _)| !has_only_part_sums || *algorithm == Algorithm::Crc64Nvme)
        .filter_map(|&(name, algorithm, len)| {
            let value = decode(headers.get(name)?).filter(|value| value.len() == len)?;
            Some(Digest { algorithm, value })
        })
        .collect()
}

/// Returns true for the ETag of a multipart upload, such as `d41d8cd98f00b204e9800998ecf8427e-3`.
fn is_multipart(etag: &str) -> bool {
    unquoted(etag).split_once('-').is_some_and(|(digest, parts)| {
        digest.len() == 32 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()) && parts.parse::<u32>().is_ok()
    })
}

/// Returns the request header for a digest. Returns `None` if S3 has no header for its algorithm.
fn checksum_header(digest: &Digest) -> Option<(HeaderName, HeaderValue)> {
    let name = match digest.algorithm {
        Algorithm::Md5 => "content-md5",
        algorithm => CHECKSUMS.iter().find(|(_, known, _)| *known == algorithm)?.0,
    };
    let value = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &digest.value);
    Some((HeaderName::from_static(name), HeaderValue::from_str(&value).ok()?))
}

#[async_trait]
impl Store for S3 {
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
        delete::delete(&self.bucket, keys, deadline).await
    }
}

fn add_encoding(headers: &mut HeaderMap, options: &PutOptions) -> Result<()> {
    if let Some(encoding) = &options.encoding {
        let value = HeaderValue::from_str(encoding).map_err(|_| {
            Error::config("encoding", format!("`{}` is not a valid header value", encoding.escape_debug()))
        })?;
        headers.insert(http::header::CONTENT_ENCODING, value);
    }
    Ok(())
}
