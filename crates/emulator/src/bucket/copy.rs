// SPDX-License-Identifier: Apache-2.0
//! Copies within the bucket: CopyObject, and UploadPartCopy of a whole object or a range.

use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;

use http::HeaderMap;
use md5::{Digest as _, Md5};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::headers::{StoredHeaders, state};
use super::parts::check_part_number;
use super::{Bucket, Failure, blocking};
use crate::fs_backend::{Folder, Found, read_range};
use crate::key_path::hex;
use crate::object_metadata::{Checksum as StoredChecksum, Stamp};
use crate::preconditions::{Reading, modified, no_such_key};
use crate::request_body::{Received, hasher, value_of};

/// Builds the preconditions on the source of a copy. This is a macro because CopyObject and UploadPartCopy have
/// different input types with the same fields.
macro_rules! source_conditions {
    ($input:expr) => {
        Reading {
            if_match: $input.copy_source_if_match,
            if_none_match: $input.copy_source_if_none_match,
            if_modified_since: $input.copy_source_if_modified_since,
            if_unmodified_since: $input.copy_source_if_unmodified_since,
        }
    };
}

/// Finds the source object. Returns an error if the object does not exist or does not meet the preconditions.
fn find_source(folder: &Folder, key: &str, conditions: &Reading) -> Result<Found, Failure> {
    let Some(found) = folder.find(key)? else { return Err(no_such_key().into()) };
    conditions.check(&found).map_err(|_| s3_error!(PreconditionFailed))?;
    Ok(found)
}

/// Copies a range of a file to a temporary file, and computes its MD5 and the checksum `algorithm`.
fn copy_range(folder: &Folder, file: &File, range: Range<u64>, algorithm: Option<String>) -> io::Result<Received> {
    let mut temp = folder.temp()?;
    let mut md5 = Md5::new();
    let mut sums = algorithm.as_deref().map(hasher);
    let size = read_range(file, range.clone(), |bytes| {
        md5.update(bytes);
        if let Some(sums) = &mut sums {
            sums.update(bytes);
        }
        temp.file.write_all(bytes)
    })?;
    if size < range.end - range.start {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was copied"));
    }
    let value = sums.and_then(value_of);
    let checksum = algorithm.zip(value).map(|(algorithm, value)| StoredChecksum { algorithm, value, composite: false });
    Ok(Received { temp, size, etag: hex(&md5.finalize()), checksum })
}

/// Parses an `x-amz-copy-source-range` header: `bytes=FIRST-LAST`. Both offsets must be inside the source object.
fn source_range(text: &str, size: u64) -> S3Result<Range<u64>> {
    let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let ends = text.strip_prefix("bytes=").and_then(|ends| ends.split_once('-'));
    let ends = ends.and_then(|(first, last)| Some((number(first)?, number(last)?)));
    let Some((first, last)) = ends.filter(|(first, last): &(u64, u64)| first <= last) else {
        return Err(s3_error!(
            InvalidArgument,
            "The x-amz-copy-source-range value must be of the form bytes=first-last"
        ));
    };
    if last >= size {
        let text = format!("Range specified is not valid for source object of size: {size}");
        return Err(s3s::S3Error::with_message(s3s::S3ErrorCode::InvalidRange, text));
    }
    Ok(first..last + 1)
}

impl Bucket {
    /// Returns the key of a copy's source, which must be in this bucket.
    ///
    /// S3 decodes a `+` in this header as a space, as in a query string; clients encode a plus sign as `%2B`. s3s does
    /// not decode the `+`, so this method parses the header again.
    fn source_key(&self, headers: &HeaderMap) -> S3Result<Box<str>> {
        let header = headers.get("x-amz-copy-source").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let source = CopySource::parse(&header.replace('+', "%20"));
        let Ok(CopySource::Bucket { bucket, key, .. }) = source else {
            return Err(s3_error!(NotImplemented, "only objects of this bucket can be copied"));
        };
        self.check_name(&bucket)?;
        Ok(key)
    }

    pub(super) async fn copy_part(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        check_part_number(input.part_number)?;
        let source = self.source_key(&req.headers)?;
        let algorithm = self.uploads.algorithm(&input.upload_id, &input.key)?;
        let conditions = source_conditions!(input);
        let (folder, range) = (self.folder.clone(), input.copy_source_range);
        let received = blocking(move || {
            let found = find_source(&folder, &source, &conditions)?;
            let size = found.stamp.size;
            let range = range.map_or(Ok(0..size), |text| source_range(&text, size))?;
            Ok::<_, Failure>(copy_range(&folder, &found.file, range, algorithm)?)
        })
        .await?;
        let mut copied = CopyPartResult {
            e_tag: Some(ETag::Strong(received.etag.clone())),
            last_modified: Some(modified(Stamp::now())),
            ..Default::default()
        };
        state!(copied, &received.checksum);
        self.uploads.add_part(&input.upload_id, input.part_number, received)?;
        Ok(S3Response::new(UploadPartCopyOutput { copy_part_result: Some(copied), ..Default::default() }))
    }

    pub(super) async fn copy(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let source = self.source_key(&req.headers)?;
        let replaces = input.metadata_directive.is_some_and(|how| how.as_str() == MetadataDirective::REPLACE);
        let retags = input.tagging_directive.is_some_and(|how| how.as_str() == TaggingDirective::REPLACE);
        if source.as_ref() == input.key && !replaces && !retags && input.storage_class.is_none() {
            let text = "This copy request is illegal because it copies an object to itself without changing it.";
            return Err(s3_error!(InvalidRequest, "{}", text));
        }
        let sent = StoredHeaders::of(&req.headers, input.metadata, input.tagging.as_deref())?;
        let conditions = source_conditions!(input);
        let (folder, key) = (self.folder.clone(), input.key);
        let etag = blocking(move || {
            let found = find_source(&folder, &source, &conditions)?;
            let Received { temp, etag, .. } = copy_range(&folder, &found.file, 0..found.stamp.size, None)?;
            let old = found.fact.as_deref();
            let mut kept = old.map(StoredHeaders::of_fact).unwrap_or_default();
            if replaces {
                (kept.headers, kept.metadata) = (sent.headers, sent.metadata);
            }
            if retags {
                kept.tags = sent.tags;
            }
            let checksum = old.and_then(|fact| fact.checksum.clone()).filter(|checksum| !checksum.composite);
            folder.commit::<Failure>(&key, temp, kept.fact(etag.clone(), checksum), |_| Ok(()))?;
            Ok::<_, Failure>(etag)
        })
        .await?;
        let copied = CopyObjectResult {
            e_tag: Some(ETag::Strong(etag)),
            last_modified: Some(modified(Stamp::now())),
            ..Default::default()
        };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(copied), ..Default::default() }))
    }
}
