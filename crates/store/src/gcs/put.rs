// SPDX-License-Identifier: Apache-2.0
//! Writes an object of any size in one request, which contains both metadata and bytes. Google verifies the CRC-32C of
//! the bytes before the object becomes visible.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::Method;
use http::header::{self, HeaderMap};
use penstock_types::{Algorithm, Deadline, Error, Key, Metric, Result};

use super::{Ask, Bucket, generation};
use crate::transport::client::Parts;
use crate::transport::{header_of, unmet};
use crate::{Meta, Precondition, PutOptions, checksum};

/// Returns the precondition of a write as query parameters, which the caller appends to a URL.
pub(super) fn condition(bucket: &Bucket, key: &Key, precondition: &Precondition) -> Result<String> {
    Ok(match precondition {
        Precondition::None => String::new(),
        Precondition::Absent => "&ifGenerationMatch=0".to_owned(),
        Precondition::Matches(version) => match generation(version) {
            Some(generation) => format!("&ifGenerationMatch={generation}"),
            None => {
                let reason = format!("version {version} is no longer current");
                return Err(Error::Precondition { place: bucket.place_of(Some(key)), reason });
            }
        },
    })
}

pub(super) async fn put(
    bucket: &Bucket,
    key: &Key,
    parts: Vec<Bytes>,
    options: &PutOptions,
    deadline: Deadline,
) -> Result<Meta> {
    checksum::check_parts(options.checksum.as_ref(), &parts, || bucket.place_of(Some(key)))?;
    let Some(name) = key.as_str() else { return Err(bucket.refused(key, "object names on Google must be UTF-8")) };
    let crc = checksum::of_parts(Algorithm::Crc32c, &parts).ok_or_else(|| Error::bug("no CRC-32C"))?;
    let mut described = serde_json::json!({
        "name": name,
        "crc32c": BASE64_STANDARD.encode(&crc.value),
        "contentType": "application/octet-stream",
    });
    if let Some(encoding) = &options.encoding {
        described["contentEncoding"] = encoding.as_str().into();
    }
    let condition = condition(bucket, key, &options.precondition)?;
    // The boundary is random, so that the object's bytes do not contain it.
    let boundary = format!("penstock-{:032x}", rand::random::<u128>());
    let head = format!(
        "--{boundary}\r\ncontent-type: application/json; charset=UTF-8\r\n\r\n{described}\r\n--{boundary}\r\n\
         content-type: application/octet-stream\r\n\r\n"
    );
    let tail = format!("\r\n--{boundary}--\r\n");
    let mut headers = HeaderMap::new();
    let kind = format!("multipart/related; boundary={boundary}");
    headers.insert(header::CONTENT_TYPE, header_of("content-type", &kind)?);
    let body = std::iter::once(Bytes::from(head)).chain(parts).chain([Bytes::from(tail)]);
    let ask = Ask {
        method: Method::POST,
        kind: Metric::Puts,
        key: Some(key),
        target: format!("/upload/storage/v1/b/{}/o?uploadType=multipart{condition}", bucket.root.authority),
        headers,
        body: Parts::new(body),
    };
    let answer = bucket.send(ask, deadline).await.map_err(|error| unmet(error, &options.precondition))?;
    let meta = bucket.described(key, answer, deadline).await?;
    match meta.digests.iter().find(|digest| digest.algorithm == Algorithm::Crc32c) {
        Some(have) if *have != crc => {
            let problem = format!("was written with {crc}, but its store has {have}");
            Err(Error::corrupt(bucket.place_of(Some(key)), problem))
        }
        _ => Ok(meta),
    }
}
