// SPDX-License-Identifier: Apache-2.0
//! Writes large objects as multipart uploads over several connections. The object becomes visible when the last request
//! succeeds. After a failure, the parts are deleted.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Limited};
use penstock_types::{Algorithm, Deadline, Digest, Error, Key, Metric, Result, unix_now};

use super::error::ErrorBody;
use super::{Ask, Bucket, add_encoding, checksum_header, error};
use crate::transport::{add_precondition, client::Parts, cut, pair, unmet, unquoted, within, xml};
use crate::{Meta, PutOptions, Version, checksum};

/// Normal size of a part in bytes. Parts are larger if the object would otherwise need more than 10,000 parts.
const PART: u64 = 16 << 20;
/// Maximum number of parts of an object.
pub(super) const MAX_PARTS: u64 = 10_000;
/// Maximum number of parts in flight.
const AT_ONCE: usize = 4;

pub(super) const ALGORITHM: &str = "x-amz-checksum-algorithm";

pub(super) async fn put(
    bucket: &Bucket,
    key: &Key,
    parts: Vec<Bytes>,
    size: u64,
    options: &PutOptions,
    deadline: Deadline,
) -> Result<Meta> {
    let whole = checksum::of_parts(Algorithm::Crc32c, &parts).ok_or_else(|| Error::bug("no CRC-32C"))?;
    let mut ask = Ask { query: "uploads=", ..Ask::new(Method::POST, Metric::Puts, Some(key)) };
    ask.headers.insert(ALGORITHM, HeaderValue::from_static("CRC32C"));
    ask.headers.insert("x-amz-checksum-type", HeaderValue::from_static("FULL_OBJECT"));
    add_encoding(&mut ask.headers, options)?;
    let upload = begun(bucket, key, ask, deadline).await?;
    let upload = pair("uploadId", upload.as_bytes());
    match finish(bucket, key, &upload, cut(parts, PART.max(size.div_ceil(MAX_PARTS))), &whole, options, deadline).await
    {
        Ok(version) => Ok(Meta {
            key: key.clone(),
            size,
            version,
            digests: vec![whole],
            encoding: options.encoding.clone(),
            modified_s: Some(unix_now().as_secs_f64()),
        }),
        Err(error) => {
            // Ignore errors of this cleanup: the error of the upload is returned. The cleanup has its own deadline.
            let ask = Ask { query: &upload, ..Ask::new(Method::DELETE, Metric::Puts, Some(key)) };
            let _ = bucket.send(ask, Deadline::within(std::time::Duration::from_secs(10))).await;
            Err(unmet(error, &options.precondition))
        }
    }
}

/// Starts an upload and returns its ID.
pub(super) async fn begun(bucket: &Bucket, key: &Key, ask: Ask<'_>, deadline: Deadline) -> Result<String> {
    let begun = answered(bucket, key, ask, deadline).await?;
    let mut upload = String::new();
    xml::elements(&begun, |path, text| {
        if let [_, "UploadId"] = path {
            upload = text;
        }
    })?;
    if upload.is_empty() {
        return Err(Error::Server {
            place: bucket.place_of(Some(key)),
            status: 200,
            reason: "the response has no UploadId".to_owned(),
        });
    }
    Ok(upload)
}

async fn finish(
    bucket: &Bucket,
    key: &Key,
    upload: &str,
    parts: Vec<Vec<Bytes>>,
    whole: &Digest,
    options: &PutOptions,
    deadline: Deadline,
) -> Result<Option<Version>> {
    let sent: Vec<String> = stream::iter(parts.into_iter().zip(1..))
        .map(|(part, number)| send_part(bucket, key, upload, number, part, deadline))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    complete(bucket, key, upload, &sent, whole, options, deadline).await
}

/// Completes an upload. The request contains the entries of all parts, and the CRC of the whole object.
pub(super) async fn complete(
    bucket: &Bucket,
    key: &Key,
    upload: &str,
    lines: &[String],
    whole: &Digest,
    options: &PutOptions,
    deadline: Deadline,
) -> Result<Option<Version>> {
    let body = format!("<CompleteMultipartUpload>{}</CompleteMultipartUpload>", lines.concat());
    let mut ask = Ask { query: upload, ..Ask::new(Method::POST, Metric::Puts, Some(key)) };
    let (name, value) = name_value(whole)?;
    ask.headers.insert(name, value);
    ask.headers.insert("x-amz-checksum-type", HeaderValue::from_static("FULL_OBJECT"));
    ask.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    add_precondition(&mut ask.headers, &options.precondition)?;
    ask.body = Parts::new([Bytes::from(body)]);
    let done = answered(bucket, key, ask, deadline).await?;
    let (mut etag, mut crc, mut is_full) = (None, None, false);
    xml::elements(&done, |path, text| match path {
        [_, "ETag"] => etag = Some(text),
        [_, "ChecksumCRC32C"] => crc = Some(text),
        [_, "ChecksumType"] => is_full = text == "FULL_OBJECT",
        _ => {}
    })?;
    // S3 responds before it has joined the parts, so a response with status 200 may contain an error.
    let reply = ErrorBody::parse(&done);
    if !reply.code.is_empty() {
        let status = if reply.code == "InternalError" { 500 } else { 400 };
        let status = http::StatusCode::from_u16(status).unwrap_or_default();
        return Err(error::of_status(bucket, &Method::POST, Some(key), status, &HeaderMap::new(), &reply));
    }
    let wanted = name_value(whole)?.1;
    if is_full && crc.as_deref().is_some_and(|have| wanted != have) {
        let problem = format!("was written with {whole}, but its store has {}", crc.unwrap_or_default());
        return Err(Error::corrupt(bucket.place_of(Some(key)), problem));
    }
    Ok(etag.map(|etag| Version(unquoted(&etag).to_owned())))
}

fn name_value(digest: &Digest) -> Result<(http::HeaderName, HeaderValue)> {
    checksum_header(digest).ok_or_else(|| Error::bug("no checksum header exists for a digest"))
}

/// Builds the XML entry of a part in the list of parts.
pub(super) fn line(crc: &Digest, etag: &str, number: u32) -> String {
    let crc = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, &crc.value);
    format!("<Part><ChecksumCRC32C>{crc}</ChecksumCRC32C><ETag>{etag}</ETag><PartNumber>{number}</PartNumber></Part>")
}

/// Sends a part. Returns the part's XML entry for the list of parts.
async fn send_part(
    bucket: &Bucket,
    key: &Key,
    upload: &str,
    number: u32,
    part: Vec<Bytes>,
    deadline: Deadline,
) -> Result<String> {
    let (crc, tag) = sent_part(bucket, key, upload, number, part, deadline).await?;
    let etag = xml::escaped(&format!("\"{tag}\"")).ok_or_else(|| Error::bug("an ETag cannot be written"))?;
    Ok(line(&Digest::of_u32(Algorithm::Crc32c, crc), &etag, number))
}

/// Sends a part. Returns its CRC-32C and its ETag.
pub(super) async fn sent_part(
    bucket: &Bucket,
    key: &Key,
    upload: &str,
    number: u32,
    part: Vec<Bytes>,
    deadline: Deadline,
) -> Result<(u32, String)> {
    let query = format!("partNumber={number}&{upload}");
    let mut ask = Ask { query: &query, ..Ask::new(Method::PUT, Metric::Puts, Some(key)) };
    let crc = checksum::crc32c_of(&part);
    let (name, value) = name_value(&Digest::of_u32(Algorithm::Crc32c, crc))?;
    ask.headers.insert(name, value);
    ask.body = Parts::new(part);
    let answer = bucket.send(ask, deadline).await?;
    let etag = answer.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
    match etag {
        Some(etag) if xml::escaped(etag).is_some() => Ok((crc, unquoted(etag).to_owned())),
        _ => Err(Error::Server {
            place: bucket.place_of(Some(key)),
            status: 200,
            reason: format!("the response has no ETag for part {number}"),
        }),
    }
}

/// Sends a request and reads its response.
pub(super) async fn answered(bucket: &Bucket, key: &Key, ask: Ask<'_>, deadline: Deadline) -> Result<Bytes> {
    let answer = bucket.send(ask, deadline).await?;
    let place = bucket.place_of(Some(key));
    within(deadline, &format!("POST {place}"), async {
        let body = Limited::new(answer.into_body(), 1 << 20).collect().await;
        Ok(body.map_err(|error| Error::Unreachable { place: place.clone(), reason: error.to_string() })?.to_bytes())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_cut_keeps_the_bytes_in_parts_of_the_size(lens in proptest::collection::vec(0usize..50, 0..12), size in 1u64..40) {
            let mut next = 0u8;
            let parts: Vec<Bytes> = lens.iter().map(|&len| (0..len).map(|_| { next = next.wrapping_add(1); next }).collect()).collect();
            let want = parts.concat();
            let out = cut(parts, size);
            let lens: Vec<u64> = out.iter().map(|part| part.iter().map(|bytes| bytes.len() as u64).sum()).collect();
            prop_assert_eq!(out.concat().concat(), want);
            prop_assert!(lens.iter().rev().skip(1).all(|&len| len == size));
            prop_assert!(lens.last().is_none_or(|&len| len <= size));
        }
    }
}
