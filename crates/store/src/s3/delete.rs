// SPDX-License-Identifier: Apache-2.0
//! Deletes objects, with up to 1,000 keys per request. Keys that XML cannot express are deleted one by one.

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::{self, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use penstock_types::{Algorithm, Deadline, Error, Key, Metric, Result};

use super::error::ErrorBody;
use super::{Ask, Bucket, checksum_header, error};
use crate::checksum;
use crate::transport::{client::Parts, within, xml};

/// Maximum number of keys per request.
const MAX_KEYS: usize = 1000;
/// Maximum number of concurrent requests that each delete a single key.
const AT_ONCE: usize = 8;

pub(super) async fn delete(bucket: &Bucket, keys: &[Key], deadline: Deadline) -> Result<()> {
    let (bulk, single): (Vec<_>, Vec<_>) = keys
        .iter()
        .map(|key| (key, key.as_str().filter(|text| !text.is_empty() && keys.len() > 1).and_then(xml::escaped)))
        .partition(|(_, text)| text.is_some());
    for batch in bulk.chunks(MAX_KEYS) {
        let texts: Vec<&str> = batch.iter().filter_map(|(_, text)| text.as_deref()).collect();
        delete_batch(bucket, &texts, deadline).await?;
        bucket.metrics.add(Metric::Deletes, batch.len() as u64);
    }
    let single: Vec<Key> = single.into_iter().map(|(key, _)| key.clone()).collect();
    stream::iter(single)
        .map(|key| async move {
            match bucket.send(Ask::new(Method::DELETE, Metric::Deletes, Some(&key)), deadline).await {
                Ok(_) => Ok(()),
                Err(Error::NotFound { place }) if place != bucket.place_of(None) || key.is_empty() => Ok(()),
                Err(error) => Err(error),
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn delete_batch(bucket: &Bucket, keys: &[&str], deadline: Deadline) -> Result<()> {
    let objects: String = keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
    let body = Bytes::from(format!("<Delete><Quiet>true</Quiet>{objects}</Delete>"));
    let mut ask = Ask { query: "delete=", ..Ask::new(Method::POST, Metric::Puts, None) };
    for algorithm in [Algorithm::Crc32c, Algorithm::Md5] {
        // AWS accepts either digest. Many compatible stores require the MD5.
        let digest = checksum::of_parts(algorithm, std::slice::from_ref(&body));
        let (name, value) = digest.as_ref().and_then(checksum_header).ok_or_else(|| Error::bug("no digest"))?;
        ask.headers.insert(name, value);
    }
    ask.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    ask.body = Parts::new([body]);
    let answer = bucket.send(ask, deadline).await?;
    let place = bucket.place_of(None);
    let body = within(deadline, &format!("DELETE {place}"), async {
        let body = Limited::new(answer.into_body(), 4 << 20).collect().await;
        Ok(body.map_err(|error| Error::Unreachable { place: place.clone(), reason: error.to_string() })?.to_bytes())
    })
    .await?;
    let mut failed: Vec<(String, ErrorBody)> = Vec::new();
    let mut one = (String::new(), ErrorBody::default());
    xml::elements(&body, |path, text| match path {
        [_, "Error"] => failed.push(std::mem::take(&mut one)),
        [_, "Error", "Key"] => one.0 = text,
        [_, "Error", "Code"] => one.1.code = text,
        [_, "Error", "Message"] => one.1.message = text,
        _ => {}
    })?;
    match failed.into_iter().find(|(_, reply)| reply.code != "NoSuchKey") {
        None => Ok(()),
        Some((key, reply)) => {
            let status = match reply.code.as_str() {
                "AccessDenied" => StatusCode::FORBIDDEN,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            let key = Key::from(key.as_str());
            Err(error::of_status(bucket, &Method::POST, Some(&key), status, &HeaderMap::new(), &reply))
        }
    }
}
