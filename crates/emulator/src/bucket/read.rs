// SPDX-License-Identifier: Apache-2.0
//! Reads of one object: HEAD, and GET of the whole object, a range or a part.

use std::io;

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::headers::{metadata_of, object_headers, put_header};
use super::{Bucket, Failure, blocking};
use crate::fs_backend::{Folder, Found, read_all};
use crate::object_metadata::{Checksum as StoredChecksum, Fact};
use crate::preconditions::{Reading, modified, no_such_key};
use crate::request_body::{hasher, value_of};
use crate::response_body::Outgoing;

/// Parameters of a GET or HEAD request.
struct Asked {
    key: String,
    range: Option<Range>,
    part_number: Option<i32>,
    reading: Reading,
    wants_sum: bool,
}

/// Creates an [`Asked`] from the input of GET or HEAD. A macro, because the two input types have the same fields.
macro_rules! asked {
    ($input:expr) => {
        Asked {
            key: $input.key,
            range: $input.range,
            part_number: $input.part_number,
            reading: Reading {
                if_match: $input.if_match,
                if_none_match: $input.if_none_match,
                if_modified_since: $input.if_modified_since,
                if_unmodified_since: $input.if_unmodified_since,
            },
            wants_sum: $input.checksum_mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED),
        }
    };
}

/// Response to GET or HEAD, without the body.
struct Described {
    found: Found,
    checksum: Option<StoredChecksum>,
    range: std::ops::Range<u64>,
    is_partial: bool,
    /// Number of parts of a multipart object. Set only if the request contains a part number.
    parts_count: Option<i32>,
}

impl Described {
    fn fact(&self) -> Option<&Fact> {
        self.found.fact.as_deref()
    }

    fn length(&self) -> i64 {
        (self.range.end - self.range.start) as i64
    }

    fn content_range(&self) -> Option<String> {
        let Self { range, found, .. } = self;
        self.is_partial.then(|| format!("bytes {}-{}/{}", range.start, range.end.saturating_sub(1), found.stamp.size))
    }
}

/// Byte range and checksum of one part of an object.
struct PartOf {
    range: std::ops::Range<u64>,
    checksum: Option<StoredChecksum>,
}

/// Returns the part with this number, and the total number of parts. An object that was uploaded in one request counts
/// as a single part.
fn part_of(found: &Found, number: i32) -> S3Result<(PartOf, Option<i32>)> {
    let fact = found.fact.as_deref();
    let parts = fact.map(|fact| fact.parts.as_slice()).unwrap_or_default();
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let part = match (parts, at) {
        ([], Some(0)) => Some(PartOf { range: 0..found.stamp.size, checksum: None }),
        (parts, Some(at)) if at < parts.len() => {
            let start = parts[..at].iter().sum();
            let checksum = fact.and_then(|fact| {
                let value = fact.part_checksums.get(at)?.clone();
                Some(StoredChecksum { value, ..fact.checksum.clone()? })
            });
            Some(PartOf { range: start..start + parts[at], checksum })
        }
        _ => None,
    };
    let count = (!parts.is_empty()).then_some(parts.len() as i32);
    // Ceph also returns `InvalidPart`; MinIO and SeaweedFS return 416 InvalidPartNumber.
    part.map(|part| (part, count))
        .ok_or_else(|| s3_error!(InvalidPart, "The object does not have a part of that number"))
}

impl Bucket {
    async fn describe(&self, asked: Asked) -> S3Result<Described> {
        let Asked { key, range, part_number, reading, wants_sum } = asked;
        if range.is_some() && part_number.is_some() {
            return Err(s3_error!(InvalidRequest, "Cannot specify both Range header and partNumber query parameter"));
        }
        let (folder, is_ranged) = (self.folder.clone(), range.is_some());
        blocking(move || {
            let Some(found) = folder.find(&key)? else { return Err(Failure(no_such_key())) };
            reading.check(&found)?;
            let size = found.stamp.size;
            let whole = PartOf { range: 0..size, checksum: None };
            let (PartOf { range, checksum }, parts_count) = match (range, part_number) {
                (None, None) => (whole, None),
                (None, Some(number)) => part_of(&found, number)?,
                (Some(range), _) => {
                    let refused = |_| Failure(s3_error!(InvalidRange, "The requested range is not satisfiable"));
                    (PartOf { range: range.check(size).map_err(refused)?, ..whole }, None)
                }
            };
            let is_partial = is_ranged || (part_number.is_some() && size > 0);
            // S3 returns the checksum of a whole object or of a part, but not of a range.
            let is_whole = !is_ranged && parts_count.is_none();
            let checksum = match wants_sum {
                true if is_whole => Some(checksum_of(&folder, &key, &found)?),
                true => checksum,
                false => None,
            };
            Ok::<_, Failure>(Described { found, checksum, range, is_partial, parts_count })
        })
        .await
    }

    pub(super) async fn get(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let seen = self.describe(asked!(input)).await?;
        let output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(seen.length()),
            content_range: seen.content_range(),
            e_tag: Some(ETag::Strong(seen.found.etag.clone())),
            last_modified: Some(modified(seen.found.stamp)),
            metadata: metadata_of(seen.fact()),
            parts_count: seen.parts_count,
            ..Default::default()
        };
        let mut headers = object_headers(seen.fact(), seen.checksum.as_ref());
        for (name, value) in [
            ("content-type", input.response_content_type),
            ("content-encoding", input.response_content_encoding),
            ("content-disposition", input.response_content_disposition),
            ("cache-control", input.response_cache_control),
        ] {
            if let Some(value) = value {
                put_header(&mut headers, name, &value);
            }
        }
        let body = StreamingBlob::new(Outgoing::new(seen.found.file, seen.range));
        Ok(S3Response::with_headers(GetObjectOutput { body: Some(body), ..output }, headers))
    }

    pub(super) async fn head(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let seen = self.describe(asked!(input)).await?;
        let output = HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: Some(seen.length()),
            e_tag: Some(ETag::Strong(seen.found.etag.clone())),
            last_modified: Some(modified(seen.found.stamp)),
            metadata: metadata_of(seen.fact()),
            parts_count: seen.parts_count,
            ..Default::default()
        };
        let mut response = S3Response::with_headers(output, object_headers(seen.fact(), seen.checksum.as_ref()));
        if let Some(text) = seen.content_range() {
            put_header(&mut response.headers, "content-range", &text);
            response.status = Some(http::StatusCode::PARTIAL_CONTENT);
        }
        Ok(response)
    }
}

/// Returns the checksum that the client sent with the object. If the client sent none, computes a CRC32C, once for each
/// version of the file.
fn checksum_of(folder: &Folder, key: &str, found: &Found) -> io::Result<StoredChecksum> {
    if let Some(known) = found.fact.as_ref().and_then(|fact| fact.checksum.clone()) {
        return Ok(known);
    }
    let mut sums = hasher("CRC32C");
    let read = read_all(&found.file, |bytes| {
        sums.update(bytes);
        Ok(())
    })?;
    if read < found.stamp.size {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"));
    }
    let value = value_of(sums).ok_or_else(|| io::Error::other("no CRC32C was computed"))?;
    let checksum = StoredChecksum { algorithm: "CRC32C".to_owned(), value, composite: false };
    let known = found.fact.as_deref().cloned().unwrap_or_default();
    let fact = Fact { stamp: found.stamp, checksum: Some(checksum.clone()), ..known };
    folder.facts.put(key, Some(fact), false)?;
    Ok(checksum)
}
