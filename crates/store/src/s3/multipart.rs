// SPDX-License-Identifier: Apache-2.0
//! Multipart uploads that one process can start and another process can complete.

use async_trait::async_trait;
use bytes::Bytes;
use http::Method;
use http::header::HeaderValue;
use penstock_types::{Algorithm, Deadline, Digest, Error, Key, Metric, Result, unix_now};

use super::add_encoding;
use super::large_put::{self, answered};
use super::{Ask, S3};
use crate::multipart::{MultipartLimits, MultipartStore, Part, PartSpec, UploadId};
use crate::transport::{pair, unmet, unquoted, xml};
use crate::{Meta, PutOptions, checksum};

/// Maximum number of pages in a listing of parts: 10 pages for 10,000 parts, and one spare page.
const PAGES: usize = 11;

fn query(id: &UploadId) -> String {
    pair("uploadId", id.0.as_bytes())
}

/// Converts the error for an unknown upload to `NotFound`. Leaves other errors unchanged.
fn gone(error: Error) -> Error {
    match error {
        Error::Server { place, status: 404, .. } => Error::NotFound { place },
        error => error,
    }
}

#[async_trait]
impl MultipartStore for S3 {
    fn limits(&self) -> MultipartLimits {
        MultipartLimits {
            least: 5 << 20,
            multiple: 1 << 20,
            max_parts: large_put::MAX_PARTS,
            is_ordered: false,
            whole: Algorithm::Crc32c,
        }
    }

    async fn create(&self, key: &Key, options: &PutOptions, deadline: Deadline) -> Result<UploadId> {
        let mut ask = Ask { query: "uploads=", ..Ask::new(Method::POST, Metric::Puts, Some(key)) };
        ask.headers.insert(large_put::ALGORITHM, HeaderValue::from_static("CRC32C"));
        ask.headers.insert("x-amz-checksum-type", HeaderValue::from_static("FULL_OBJECT"));
        add_encoding(&mut ask.headers, options)?;
        large_put::begun(&self.bucket, key, ask, deadline).await.map(UploadId)
    }

    async fn list_parts(&self, key: &Key, id: &UploadId, parts: &[Part], deadline: Deadline) -> Result<Vec<Part>> {
        let mut found: Vec<(u64, u64, String)> = Vec::new();
        let mut after = 0u64;
        for _ in 0..PAGES {
            let query = format!("{}&part-number-marker={after}", query(id));
            let ask = Ask { query: &query, ..Ask::new(Method::GET, Metric::Lists, Some(key)) };
            let page = answered(&self.bucket, key, ask, deadline).await.map_err(gone)?;
            let (mut number, mut size, mut tag) = (None, None, None);
            let (mut more, mut next) = (false, after);
            xml::elements(&page, |path, text| match path {
                [_, "IsTruncated"] => more = text == "true",
                [_, "NextPartNumberMarker"] => next = text.parse().unwrap_or(after),
                [_, "Part", "PartNumber"] => number = text.parse().ok(),
                [_, "Part", "Size"] => size = text.parse().ok(),
                [_, "Part", "ETag"] => tag = Some(unquoted(&text).to_owned()),
                [_, "Part"] => {
                    if let (Some(number), Some(size), Some(tag)) = (number.take(), size.take(), tag.take()) {
                        found.push((number, size, tag));
                    }
                }
                _ => {}
            })?;
            if !more || next <= after {
                break;
            }
            after = next;
        }
        let is_held = |part: &&Part| {
            found.iter().any(|(number, size, tag)| {
                *number == u64::from(part.number) + 1 && *size == part.size && *tag == part.tag
            })
        };
        Ok(parts.iter().filter(is_held).cloned().collect())
    }

    async fn put_part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part> {
        let size = bytes.iter().map(|bytes| bytes.len() as u64).sum();
        let sent = large_put::sent_part(&self.bucket, key, &query(id), at.number + 1, bytes, deadline).await;
        let (crc32c, tag) = sent.map_err(gone)?;
        Ok(Part { number: at.number, offset: at.offset, size, crc32c, tag })
    }

    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta> {
        let lines: Option<Vec<String>> = parts
            .iter()
            .map(|part| {
                let etag = xml::escaped(&format!("\"{}\"", part.tag))?;
                Some(large_put::line(&Digest::of_u32(Algorithm::Crc32c, part.crc32c), &etag, part.number + 1))
            })
            .collect();
        let lines = lines.ok_or_else(|| Error::bug("a part's ETag cannot be written"))?;
        let crc = whole.iter().find(|digest| digest.algorithm == Algorithm::Crc32c);
        let crc = crc.cloned().or_else(|| checksum::combined(parts)).ok_or_else(|| Error::bug("no CRC-32C"))?;
        let version = large_put::complete(&self.bucket, key, &query(id), &lines, &crc, options, deadline).await;
        Ok(Meta {
            key: key.clone(),
            size: parts.iter().map(|part| part.size).sum(),
            version: version.map_err(|error| unmet(gone(error), &options.precondition))?,
            digests: vec![crc],
            encoding: options.encoding.clone(),
            modified_s: Some(unix_now().as_secs_f64()),
        })
    }

    async fn abort(&self, key: &Key, id: &UploadId, deadline: Deadline) -> Result<()> {
        let query = query(id);
        let ask = Ask { query: &query, ..Ask::new(Method::DELETE, Metric::Puts, Some(key)) };
        match self.bucket.send(ask, deadline).await.map_err(gone) {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
