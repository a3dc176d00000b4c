// SPDX-License-Identifier: Apache-2.0
//! Resumable uploads, with one session per object. Parts are sent in order. The size of each part is a multiple of 256
//! KiB, except for the last part, which completes the object.
//!
//! Google ignores bytes that it has already stored, and returns the number of stored bytes. A part can therefore be
//! sent again without first querying the status of the upload. The last part is sent with the CRC-32C of the whole
//! object, which is also compared with the CRC-32C in the response.

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::Method;
use http::header::{self, HeaderMap, HeaderValue};
use penstock_types::{Algorithm, Deadline, Digest, Error, Key, Metric, Result};
use percent_encoding::percent_decode_str;

use super::put::condition;
use super::{Ask, Bucket, Gcs};
use crate::multipart::{MultipartLimits, MultipartStore, Part, PartSpec, UploadId};
use crate::transport::client::Parts;
use crate::transport::{Remote, header_of, pair, text, unmet};
use crate::{Meta, PutOptions, checksum};

/// Part sizes must be a multiple of this number of bytes.
const UNIT: u64 = 256 << 10;
/// Maximum number of requests for one part. Google may store only the beginning of the part that a request contains.
const RESTS: u32 = 64;

impl Bucket {
    fn session(&self, method: Method, key: &Key, id: &UploadId) -> Ask<'static> {
        let target = format!(
            "/upload/storage/v1/b/{}/o?uploadType=resumable&{}&{}",
            self.root.authority,
            pair("name", key.as_bytes()),
            pair("upload_id", id.0.as_bytes())
        );
        Ask { method, kind: Metric::Puts, key: None, target, headers: HeaderMap::new(), body: Parts::default() }
    }
}

/// Parses the session ID in the upload URL that Google returns. The rest of the URL is not used, because requests go to
/// the configured endpoint.
fn id_of(location: &str) -> Option<UploadId> {
    let query = location.split_once('?')?.1;
    let value = query.split('&').find_map(|pair| pair.strip_prefix("upload_id="))?;
    let id = percent_decode_str(value).decode_utf8().ok()?;
    (!id.is_empty()).then(|| UploadId(id.into_owned()))
}

/// Returns the number of stored bytes from a response which requests more bytes (`Range: bytes=0-N`).
fn taken(headers: &HeaderMap) -> u64 {
    let last = text(headers, "range").and_then(|range| range.rsplit('-').next()?.trim().parse::<u64>().ok());
    last.map_or(0, |last| last.saturating_add(1))
}

/// Returns the bytes after the first `skip` bytes.
fn behind(bytes: Vec<Bytes>, mut skip: u64) -> Vec<Bytes> {
    bytes
        .into_iter()
        .filter_map(|mut piece| {
            let cut = skip.min(piece.len() as u64);
            skip -= cut;
            let rest = piece.split_off(cut as usize);
            (!rest.is_empty()).then_some(rest)
        })
        .collect()
}

#[async_trait]
impl MultipartStore for Gcs {
    fn limits(&self) -> MultipartLimits {
        MultipartLimits { least: UNIT, multiple: UNIT, max_parts: u64::MAX, is_ordered: true, whole: Algorithm::Crc32c }
    }

    async fn create(&self, key: &Key, options: &PutOptions, deadline: Deadline) -> Result<UploadId> {
        let bucket = &self.bucket;
        let Some(name) = key.as_str() else { return Err(bucket.refused(key, "object names on Google must be UTF-8")) };
        let mut described = serde_json::json!({"name": name, "contentType": "application/octet-stream"});
        if let Some(encoding) = &options.encoding {
            described["contentEncoding"] = encoding.as_str().into();
        }
        let condition = condition(bucket, key, &options.precondition)?;
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json; charset=UTF-8"));
        let ask = Ask {
            method: Method::POST,
            kind: Metric::Puts,
            key: Some(key),
            target: format!("/upload/storage/v1/b/{}/o?uploadType=resumable{condition}", bucket.root.authority),
            headers,
            body: Parts::new([Bytes::from(described.to_string())]),
        };
        let answer = bucket.send(ask, deadline).await.map_err(|error| unmet(error, &options.precondition))?;
        text(answer.headers(), "location").and_then(id_of).ok_or_else(|| Error::Server {
            place: bucket.place_of(Some(key)),
            status: answer.status().as_u16(),
            reason: "the Location header has no upload_id".to_owned(),
        })
    }

    /// Returns all parts of the journal, because Google keeps all bytes that it has acknowledged. If the session no
    /// longer exists, sending the next part fails.
    async fn list_parts(&self, _key: &Key, _id: &UploadId, parts: &[Part], _deadline: Deadline) -> Result<Vec<Part>> {
        Ok(parts.to_vec())
    }

    async fn put_part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part> {
        let (bucket, place) = (&self.bucket, self.bucket.place_of(Some(key)));
        let size: u64 = bytes.iter().map(|bytes| bytes.len() as u64).sum();
        let crc32c = checksum::crc32c_of(&bytes);
        let (end, mut begin) = (at.offset + size, at.offset);
        let total = if at.ends.is_some() { end.to_string() } else { "*".to_owned() };
        for _ in 0..RESTS {
            let mut ask = bucket.session(Method::PUT, key, id);
            let range = match end.checked_sub(begin) {
                Some(1..) => format!("bytes {begin}-{}/{total}", end - 1),
                _ => format!("bytes */{total}"),
            };
            ask.headers.insert(header::CONTENT_RANGE, header_of("content-range", &range)?);
            if let Some(crc) = at.ends {
                let crc = format!("crc32c={}", BASE64_STANDARD.encode(crc.to_be_bytes()));
                ask.headers.insert("x-goog-hash", header_of("x-goog-hash", &crc)?);
            }
            ask.body = Parts::new(behind(bytes.clone(), begin - at.offset));
            let answer = bucket.send(ask, deadline).await.map_err(|error| match error {
                // The session has expired, or the bucket no longer exists. In both cases, the caller starts a new
                // session. If the bucket is missing, that request reports it.
                Error::NotFound { .. } => Error::NotFound { place: place.clone() },
                Error::System { reason, .. } if reason.contains("returned HTTP 499") => {
                    Error::NotFound { place: place.clone() }
                }
                error => error,
            })?;
            if answer.status().as_u16() != 308 {
                let meta = bucket.described(key, answer, deadline).await?;
                let tag = meta.version.map(|version| version.0).unwrap_or_default();
                if at.ends.is_none() || meta.size != end {
                    let problem = format!("has {} of {end} bytes after its upload", meta.size);
                    return Err(Error::corrupt(place, problem));
                }
                return Ok(Part { number: at.number, offset: at.offset, size, crc32c, tag });
            }
            let have = taken(answer.headers());
            if have >= end && at.ends.is_none() {
                return Ok(Part { number: at.number, offset: at.offset, size, crc32c, tag: String::new() });
            }
            if have < at.offset {
                // Google has lost acknowledged bytes, so the upload must start again from the beginning.
                return Err(Error::NotFound { place });
            }
            begin = have.min(end);
        }
        Err(Error::Server { place, status: 308, reason: format!("the upload stopped at {begin} of {end} bytes") })
    }

    async fn complete(
        &self,
        key: &Key,
        _id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta> {
        let meta = self.bucket.head(key, deadline).await?;
        let ours = parts.last().map(|part| part.tag.clone()).filter(|tag| !tag.is_empty());
        if ours.is_some() && meta.version.as_ref().map(|version| &version.0) != ours.as_ref() {
            let reason = "another writer replaced it during completion".to_owned();
            return Err(Error::Precondition { place: self.bucket.place_of(Some(key)), reason });
        }
        for want in whole {
            let have = meta.digests.iter().find(|have| have.algorithm == want.algorithm);
            if let Some(have) = have.filter(|have| *have != want) {
                // The object has the wrong content. Delete the object unless another writer has already replaced it.
                let mut ask = self.bucket.object(Method::DELETE, Metric::Deletes, key, "");
                if let Some(tag) = &ours {
                    ask.target.push_str(&format!("?ifGenerationMatch={tag}"));
                }
                let _ = self.bucket.send(ask, deadline).await;
                let problem = format!("was written with {want}, but its store has {have}");
                return Err(Error::corrupt(self.bucket.place_of(Some(key)), problem));
            }
        }
        Ok(Meta { encoding: meta.encoding.or_else(|| options.encoding.clone()), ..meta })
    }

    async fn abort(&self, key: &Key, id: &UploadId, deadline: Deadline) -> Result<()> {
        match self.bucket.send(self.bucket.session(Method::DELETE, key, id), deadline).await {
            // Google confirms with status 499.
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(Error::System { reason, .. }) if reason.contains("returned HTTP 499") => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_session_id_is_taken_from_the_query_and_nothing_else() {
        let id = id_of("http://elsewhere/x?uploadType=resumable&name=a%20b&upload_id=AB%2Fc").unwrap();
        assert_eq!((id.0.as_str(), format!("{id:?}")), ("AB/c", "UploadId(..)".to_owned()));
        for location in ["", "http://h/", "http://h/?upload_id=", "http://h/?x=upload_id", "http://h/?upload_id=%ff"] {
            assert!(id_of(location).is_none(), "{location}");
        }
    }

    #[test]
    fn test_rest_of_a_part_begins_where_the_store_stopped() {
        let pieces = || vec![Bytes::from_static(b"abc"), Bytes::from_static(b"de")];
        for (skip, want) in [(0, "abcde"), (2, "cde"), (3, "de"), (5, ""), (9, "")] {
            assert_eq!(behind(pieces(), skip).concat(), want.as_bytes());
        }
        let mut headers = HeaderMap::new();
        assert_eq!(taken(&headers), 0);
        headers.insert("range", HeaderValue::from_static("bytes=0-41"));
        assert_eq!(taken(&headers), 42);
    }
}
