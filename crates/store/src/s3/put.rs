// SPDX-License-Identifier: Apache-2.0
//! Writes objects. A small object is sent in one PUT request, a large one in several parts. S3 verifies the CRC-32C of
//! each request.

use bytes::Bytes;
use http::Method;
use http::header::{self};
use penstock_types::{Algorithm, Deadline, Error, Key, Metric, Result, unix_now};

use super::{Ask, Bucket, add_encoding, checksum_header, large_put};
use crate::transport::{add_precondition, client::Parts, unmet, unquoted};
use crate::{Meta, PutOptions, Version, checksum};

/// Maximum size, in bytes, of an object that is sent in one request. S3 accepts up to 5 GiB in one request, but parts
/// can use several connections.
const SINGLE: u64 = 64 << 20;

pub(super) async fn put(
    bucket: &Bucket,
    key: &Key,
    parts: Vec<Bytes>,
    options: &PutOptions,
    deadline: Deadline,
) -> Result<Meta> {
    let size: u64 = parts.iter().map(|part| part.len() as u64).sum();
    if size > SINGLE {
        checksum::check_parts(options.checksum.as_ref(), &parts, || bucket.place_of(Some(key)))?;
        return large_put::put(bucket, key, parts, size, options, deadline).await;
    }
    let mut ask = Ask::new(Method::PUT, Metric::Puts, Some(key));
    // Send the caller's digest if S3 has a header for it. Otherwise, send the CRC-32C that is computed here.
    let digest = match &options.checksum {
        Some(digest) if checksum_header(digest).is_some() => digest.clone(),
        _ => checksum::of_parts(Algorithm::Crc32c, &parts).ok_or_else(|| Error::bug("no CRC-32C"))?,
    };
    let (name, value) = checksum_header(&digest).ok_or_else(|| Error::bug("no checksum header exists for a digest"))?;
    ask.headers.insert(name, value);
    add_precondition(&mut ask.headers, &options.precondition)?;
    add_encoding(&mut ask.headers, options)?;
    ask.body = Parts::new(parts);
    let answer = bucket.send(ask, deadline).await.map_err(|error| unmet(error, &options.precondition))?;
    let etag = answer.headers().get(header::ETAG).and_then(|etag| etag.to_str().ok());
    Ok(Meta {
        key: key.clone(),
        size,
        version: etag.map(|etag| Version(unquoted(etag).to_owned())),
        digests: vec![digest],
        encoding: options.encoding.clone(),
        modified_s: Some(unix_now().as_secs_f64()),
    })
}
