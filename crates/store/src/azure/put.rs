// SPDX-License-Identifier: Apache-2.0
//! Writes blobs. A small blob is sent with Put Blob, a large one with Put Block and Put Block List. A large blob
//! becomes visible when its block list is committed. Azure deletes uncommitted blocks after a week. Each request
//! contains an MD5, which Azure verifies.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Response};
use hyper::body::Incoming;
use penstock_types::{Algorithm, Deadline, Digest, Error, Key, Metric, Result, unix_now};

use super::{Ask, Container};
use crate::transport::client::Parts;
use crate::transport::{add_precondition, cut, header_of, pair, unmet, unquoted};
use crate::{Meta, PutOptions, Version, checksum};

/// Maximum size in bytes of a blob that is sent in one request. Larger blobs are sent in blocks.
const SINGLE: u64 = 64 << 20;
/// Normal size of a block in bytes. Blocks are larger if the blob would otherwise need more than 50,000 blocks.
const BLOCK: u64 = 16 << 20;
const MAX_BLOCKS: u64 = 50_000;
/// Maximum number of concurrent block uploads.
const AT_ONCE: usize = 4;

pub(super) fn md5(parts: &[Bytes]) -> Result<(Digest, HeaderValue)> {
    let digest = checksum::of_parts(Algorithm::Md5, parts).ok_or_else(|| Error::bug("no MD5"))?;
    let value = HeaderValue::from_str(&BASE64_STANDARD.encode(&digest.value));
    Ok((digest, value.map_err(|_| Error::bug("base64 is not ASCII"))?))
}

pub(super) async fn put(
    container: &Container,
    key: &Key,
    parts: Vec<Bytes>,
    options: &PutOptions,
    deadline: Deadline,
) -> Result<Meta> {
    container.check_key(key)?;
    checksum::check_parts(options.checksum.as_ref(), &parts, || container.place_of(Some(key)))?;
    let size: u64 = parts.iter().map(|part| part.len() as u64).sum();
    let (digest, header) = md5(&parts)?;
    let mut headers = HeaderMap::new();
    // Azure stores this MD5 with the blob and returns it with every read.
    headers.insert("x-ms-blob-content-md5", header.clone());
    if let Some(encoding) = &options.encoding {
        headers.insert("x-ms-blob-content-encoding", header_of("encoding", encoding)?);
    }
    add_precondition(&mut headers, &options.precondition)?;
    let mut ask = Ask::new(Method::PUT, Metric::Puts, Some(key));
    ask.headers = headers;
    let answer = if size > SINGLE {
        let blocks = blocks(container, key, parts, size, deadline).await?;
        ask.query = "comp=blocklist".to_owned();
        ask.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        ask.body = Parts::new([Bytes::from(blocks)]);
        container.send(ask, deadline).await
    } else {
        ask.headers.insert("x-ms-blob-type", HeaderValue::from_static("BlockBlob"));
        ask.headers.insert("content-md5", header);
        ask.body = Parts::new(parts);
        container.send(ask, deadline).await
    };
    let answer = answer.map_err(|error| unmet(error, &options.precondition))?;
    Ok(Meta {
        key: key.clone(),
        size,
        version: version(&answer),
        digests: vec![digest],
        encoding: options.encoding.clone(),
        modified_s: Some(unix_now().as_secs_f64()),
    })
}

pub(super) fn version(answer: &Response<Incoming>) -> Option<Version> {
    let etag = answer.headers().get(header::ETAG)?.to_str().ok()?;
    Some(Version(unquoted(etag).to_owned()))
}

/// Sends the blocks and returns the XML block list.
async fn blocks(container: &Container, key: &Key, parts: Vec<Bytes>, size: u64, deadline: Deadline) -> Result<String> {
    // Blocks with the same name replace each other, so each upload needs its own names.
    let writer = rand::random::<u64>();
    let sent: Vec<String> = stream::iter(cut(parts, BLOCK.max(size.div_ceil(MAX_BLOCKS))).into_iter().enumerate())
        .map(|(number, part)| async move {
            let id = BASE64_STANDARD.encode(format!("{writer:016x}-{number:08}"));
            let mut ask = Ask::new(Method::PUT, Metric::Puts, Some(key));
            ask.query = format!("comp=block&{}", pair("blockid", id.as_bytes()));
            ask.headers.insert("content-md5", md5(&part)?.1);
            ask.body = Parts::new(part);
            container.send(ask, deadline).await?;
            Ok::<_, Error>(format!("<Uncommitted>{id}</Uncommitted>"))
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    Ok(format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>{}</BlockList>", sent.concat()))
}
