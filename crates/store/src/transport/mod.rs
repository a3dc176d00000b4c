// SPDX-License-Identifier: Apache-2.0
//! HTTP transport for all stores that use HTTP: the client, ranged reads, XML, and the meaning of plain statuses.

pub(crate) mod client;
mod proxy;
pub(crate) mod read;
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

/// Characters that signatures do not encode; in a path, `/` too. Dots stay, so `..` reaches the store unchanged.
pub(crate) const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
pub(crate) const PATH: &AsciiSet = &QUERY.remove(b'/');

/// A store as `read` uses it: sends one request at a time and interprets the response.
#[async_trait]
pub(crate) trait Remote: Send + Sync + 'static {
    /// A key, for errors.
    fn place(&self, key: &Key) -> String;

    /// The endpoint, for errors.
    fn shown(&self) -> &str;

    fn metrics(&self) -> &Arc<Metrics>;

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta>;

    /// Sends one GET, for a range or (`None`) for everything, and returns its response if that is a success.
    async fn get(
        &self,
        key: &Key,
        pin: Option<&Version>,
        range: Option<HeaderValue>,
        deadline: Deadline,
    ) -> Result<Response<Incoming>>;

    /// Metadata in the headers of a response, for an object of `size` bytes.
    fn meta(&self, key: &Key, size: u64, headers: &HeaderMap) -> Meta;

    /// Adds a digest that needs another request; used for whole objects that arrived without one.
    async fn vouched(&self, meta: Meta, _: &HeaderMap, _: Deadline) -> Result<Meta> {
        Ok(meta)
    }

    /// A server may answer a ranged read with the whole body; the ranges are then cut out here.
    fn slices(&self) -> bool;
}

/// Runs `work` until the deadline.
pub(crate) async fn within<T>(deadline: Deadline, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    match deadline.instant() {
        Some(at) => tokio::time::timeout_at(at.into(), work).await.unwrap_or_else(|_| Err(deadline.error(what))),
        None => work.await,
    }
}

/// The whole body of a small response; more than `limit` bytes, or an interrupted body, is an error at `place`.
pub(crate) async fn body(body: Incoming, limit: usize, deadline: Deadline, place: &str) -> Result<Bytes> {
    within(deadline, place, async {
        let body = Limited::new(body, limit).collect().await;
        let broken = |reason: String| Error::Unreachable {
            place: place.to_owned(),
            reason: format!("the answer cannot be read: {reason}"),
        };
        Ok(body.map_err(|error| broken(client::innermost(&*error)))?.to_bytes())
    })
    .await
}

/// Body of an error, limited in size and time.
pub(crate) async fn error_body(body: Incoming) -> Bytes {
    const LIMIT: usize = 64 << 10;
    const BODY_TIMEOUT: Duration = Duration::from_secs(5);
    let body = tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, LIMIT).collect()).await;
    body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default()
}

/// A query parameter `name=value`.
pub(crate) fn pair(name: &str, value: &[u8]) -> String {
    format!("{name}={}", percent_encode(value, QUERY))
}

/// The URI of a key below `base`, or of `base` itself.
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

/// Adds a precondition to a write, where versions are ETags.
pub(crate) fn add_precondition(headers: &mut HeaderMap, precondition: &Precondition) -> Result<()> {
    match precondition {
        Precondition::None => None,
        Precondition::Absent => headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("*")),
        Precondition::Matches(version) => headers.insert(header::IF_MATCH, quoted(version)?),
    };
    Ok(())
}

/// Adds the unmet condition of a write to the error.
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

/// Error of a request that could not be signed, with `advice` for a user without credentials.
pub(crate) fn unsigned(error: &reqsign_core::Error, place: &str, advice: &str) -> Error {
    let place = place.to_owned();
    // After the first colon a message may quote a file, a command or a server.
    let text = error.to_string();
    let problem = text.split(':').next().unwrap_or_default();
    match error.kind() {
        _ if error.is_retryable() => Error::Unreachable { place, reason: format!("no credentials: {problem}") },
        ErrorKind::RequestInvalid => Error::bug(format!("a request cannot be signed: {problem}")),
        _ => Error::Denied { place, reason: format!("no credentials ({problem}): {advice}") },
    }
}

/// A header's text, if it is text.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Removes the quotes of an ETag; a weak one is kept as it is.
pub(crate) fn unquoted(etag: &str) -> &str {
    etag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(etag)
}

/// Header value of a version.
pub(crate) fn quoted(version: &Version) -> Result<HeaderValue> {
    let text = if version.0.starts_with("W/") { version.0.clone() } else { format!("\"{}\"", version.0) };
    HeaderValue::from_str(&text)
        .map_err(|_| Error::config("version", format!("`{}` is not an ETag", text.escape_debug())))
}

/// A user's text as a header value.
pub(crate) fn header_of(what: &str, text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text)
        .map_err(|_| Error::config(what, format!("`{}` is not a valid header value", text.escape_debug())))
}

/// True for names and addresses of this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Link-local, or a name or address of a cloud's metadata service.
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

/// Deletes keys one by one, some concurrently. A missing key is not an error; a missing `root` is.
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

/// Cuts the same bytes into parts of `size` without a copy.
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
