// SPDX-License-Identifier: Apache-2.0
//! HTTP transport for all stores that use HTTP: the client, ranged reads, an XML parser, and errors for statuses.

pub(crate) mod client;
mod proxy;
pub(crate) mod ranged_get;
pub(crate) mod status;
mod tls;
pub(crate) mod xml;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::HeaderValue;
use http::{HeaderMap, Response, Uri, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use penstock_types::{Deadline, Error, Key, Metrics, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use reqsign_core::ErrorKind;

use crate::{Meta, Precondition, Version};

/// Characters that are percent-encoded in queries, as in request signatures. In paths, `/` is not encoded. Dots are
/// never encoded, so `..` reaches the store unchanged.
pub(crate) const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
pub(crate) const PATH: &AsciiSet = &QUERY.remove(b'/');

/// HTTP store that `ranged_get` reads from: sends single requests and interprets their responses.
#[async_trait]
pub(crate) trait Remote: Send + Sync + 'static {
    /// URL of a key, for error messages.
    fn place(&self, key: &Key) -> String;

    /// Endpoint as text for error messages.
    fn shown(&self) -> &str;

    fn metrics(&self) -> &Arc<Metrics>;

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta>;

    /// Sends one GET for `range`, or for the whole object if `range` is `None`. Returns the response if its status is a
    /// success.
    async fn get(
        &self,
        key: &Key,
        pin: Option<&Version>,
        range: Option<HeaderValue>,
        deadline: Deadline,
    ) -> Result<Response<Incoming>>;

    /// Builds the metadata of an object of `size` bytes from the headers of a response.
    fn meta(&self, key: &Key, size: u64, headers: &HeaderMap) -> Meta;

    /// Adds a digest that requires another request to the metadata. Called for reads of whole objects.
    async fn vouched(&self, meta: Meta, _: &HeaderMap, _: Deadline) -> Result<Meta> {
        Ok(meta)
    }

    /// Returns true if the server may respond to a ranged read with the whole object. The ranges are then cut from it.
    fn slices(&self) -> bool;
}

/// Runs `work`. Returns an error if it has not finished at the deadline.
pub(crate) async fn within<T>(deadline: Deadline, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    match deadline.instant() {
        Some(at) => tokio::time::timeout_at(at.into(), work).await.unwrap_or_else(|_| Err(deadline.error(what))),
        None => work.await,
    }
}

/// Reads the whole body of a small response. Returns an error for more than `limit` bytes or an interrupted body.
pub(crate) async fn body(body: Incoming, limit: usize, deadline: Deadline, place: &str) -> Result<Bytes> {
    within(deadline, place, async {
        let body = Limited::new(body, limit).collect().await;
        let broken = |reason: String| Error::Unreachable {
            place: place.to_owned(),
            reason: format!("the response cannot be read: {reason}"),
        };
        Ok(body.map_err(|error| broken(client::innermost(&*error)))?.to_bytes())
    })
    .await
}

/// Reads the body of an error response. Its size and the time for reading it are limited.
pub(crate) async fn error_body(body: Incoming) -> Bytes {
    const LIMIT: usize = 64 << 10;
    const BODY_TIMEOUT: Duration = Duration::from_secs(5);
    let body = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, LIMIT).collect()).await;
    body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default()
}

/// Formats a query parameter as `name=value`, percent-encoded.
pub(crate) fn pair(name: &str, value: &[u8]) -> String {
    format!("{name}={}", percent_encode(value, QUERY))
}

/// Builds the URI of a key below `base`, or of `base` itself if `key` is `None`.
pub(crate) fn uri(base: &str, key: Option<&[u8]>, query: &str) -> Result<Uri> {
    let mut text = base.to_owned();
    if let Some(key) = key {
        text.push('/');
        text.extend(percent_encode(key, PATH));
    }
    if !query.is_empty() {
        text.push('?');
        text.push_str(query);
    }
    text.parse().map_err(|_| Error::Unsupported {
        what: format!("a key of {} bytes", key.map_or(0, <[u8]>::len)),
        by: "HTTP".to_owned(),
    })
}

/// Adds the headers for a precondition to a write, for stores whose versions are ETags.
pub(crate) fn add_precondition(headers: &mut HeaderMap, precondition: &Precondition) -> Result<()> {
    match precondition {
        Precondition::None => None,
        Precondition::Absent => headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*")),
        Precondition::Matches(version) => headers.insert(header::IF_MATCH, quoted(version)?),
    };
    Ok(())
}

/// If the error means that the precondition of a write was not met, adds a description of the precondition.
pub(crate) fn unmet(error: Error, precondition: &Precondition) -> Error {
    match (error, precondition) {
        (Error::Precondition { place, .. }, Precondition::Absent) => {
            Error::Precondition { place, reason: "an object with this key already exists".to_owned() }
        }
        (Error::Precondition { place, .. } | Error::NotFound { place }, Precondition::Matches(version)) => {
            Error::Precondition { place, reason: format!("version {version} is no longer current") }
        }
        (error, Precondition::None | Precondition::Absent | Precondition::Matches(_)) => error,
    }
}

/// Builds the error of a request that could not be signed. `advice` is the hint if the user has no credentials.
pub(crate) fn unsigned(error: &reqsign_core::Error, place: &str, advice: &str) -> Error {
    let place = place.to_owned();
    // Keep only the text before the first colon, because the rest may quote a file, a command or a server.
    let text = error.to_string();
    let problem = text.split(':').next().unwrap_or_default();
    match error.kind() {
        _ if error.is_retryable() => Error::Unreachable { place, reason: format!("no credentials: {problem}") },
        ErrorKind::RequestInvalid => Error::bug(format!("a request cannot be signed: {problem}")),
        _ => Error::Denied { place, reason: format!("no credentials ({problem}): {advice}") },
    }
}

/// Returns the value of a header as text. Returns `None` if the header is missing or its value is not text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Removes the quotes of an ETag. A weak ETag is not changed.
pub(crate) fn unquoted(etag: &str) -> &str {
    etag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(etag)
}

/// Formats a version as a quoted ETag header value.
pub(crate) fn quoted(version: &Version) -> Result<HeaderValue> {
    let text = if version.0.starts_with("W/") { version.0.clone() } else { format!("\"{}\"", version.0) };
    HeaderValue::from_str(&text)
        .map_err(|_| Error::config("version", format!("`{}` is not a valid ETag", text.escape_debug())))
}

/// Converts a text that the user has set to a header value.
pub(crate) fn header_of(what: &str, text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text)
        .map_err(|_| Error::config(what, format!("`{}` is not a valid header value", text.escape_debug())))
}

/// Parses the endpoint URL in the setting `what`, and returns its scheme and host. Plain HTTP is allowed to this
/// machine. If `allows_http` is set, it is also allowed to other machines.
pub(crate) fn origin(what: &str, url: &str, allows_http: bool) -> Result<String> {
    // The URL may contain a password. Errors may contain the URL only after the check below.
    let bad = |problem: &str| Error::config(what, problem);
    let uri: Uri = url.parse().map_err(|_| bad("not a valid URL"))?;
    let authority = uri.authority().ok_or_else(|| bad("the URL has no host"))?;
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(bad("the URL contains a password or a query"));
    }
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") if allows_http || is_loopback(authority.host()) => {}
        Some("http") => {
            return Err(bad(&format!(
                "http://{authority} is plain http to another machine: use https, or set PENSTOCK_ALLOW_HTTP=1 on a network \
                 that you trust"
            )));
        }
        _ => return Err(bad("the URL must begin with https:// or http://")),
    }
    Ok(format!("{}://{authority}", uri.scheme_str().unwrap_or("http")))
}

/// Returns true for names and addresses of this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns true for link-local addresses, and for names and addresses of the clouds' metadata services.
pub(crate) fn is_metadata(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_link_local() || address.octets() == [100, 100, 100, 200],
        Ok(IpAddr::V6(address)) => {
            address.to_ipv4_mapped().is_some_and(|address| address.is_link_local())
                || address.segments()[0] & 0xffc0 == 0xfe80
                || address.segments()[..2] == [0xfd00, 0x0ec2]
        }
        Err(_) => {
            let host = host.trim_end_matches('.').to_ascii_lowercase();
            matches!(host.as_str(), "metadata" | "metadata.google.internal")
        }
    }
}

/// Deletes keys with one request each, several at a time. A missing key is not an error, but a missing `root` (the
/// bucket or container) is.
pub(crate) async fn delete_each<T, F>(keys: &[Key], root: &str, delete: impl Fn(Key) -> F) -> Result<()>
where
    F: Future<Output = Result<T>>,
{
    const AT_ONCE: usize = 16;
    let gone = |deleted: Result<T>| match deleted {
        Ok(_) => Ok(()),
        Err(Error::NotFound { place }) if place != root => Ok(()),
        Err(error) => Err(error),
    };
    stream::iter(keys.to_vec()).map(delete).buffer_unordered(AT_ONCE).map(gone).try_collect().await
}

/// Splits a list of buffers into parts of `size` bytes without copying.
pub(crate) fn cut(parts: Vec<Bytes>, size: u64) -> Vec<Vec<Bytes>> {
    let mut rest: VecDeque<Bytes> = parts.into();
    let mut out = Vec::new();
    let (mut part, mut room) = (Vec::new(), size);
    while let Some(mut bytes) = rest.pop_front() {
        if bytes.len() as u64 > room {
            rest.push_front(bytes.split_off(room as usize));
        }
        room -= bytes.len() as u64;
        part.push(bytes);
        if room == 0 {
            out.push(std::mem::take(&mut part));
            room = size;
        }
    }
    if !part.is_empty() {
        out.push(part);
    }
    out
}
