// SPDX-License-Identifier: Apache-2.0
//! Multipart uploads of block blobs. All block names of an upload begin with the upload ID. Azure deletes uncommitted
//! blocks after a week.

use std::collections::HashMap;

use async_trait::async_trait;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::Method;
use http::header::{self, HeaderMap, HeaderValue};
use penstock_types::{Algorithm, Deadline, Digest, Error, Key, Metric, Result, unix_now};

use super::put::{md5, version};
use super::{Ask, Azure};
use crate::multipart::{MultipartLimits, MultipartStore, Part, PartSpec, UploadId};
use crate::transport::client::Parts;
use crate::transport::{add_precondition, body, header_of, pair, unmet, xml};
use crate::{Meta, PutOptions, checksum};

/// Maximum size of a block list in bytes. A list has up to 100,000 blocks, each with about a hundred bytes of XML.
const LIST_LIMIT: usize = 32 << 20;

/// Returns the name of a block. Azure requires names of equal length for all blocks of a blob.
fn name(id: &UploadId, number: u32) -> String {
    BASE64_STANDARD.encode(format!("{}-{number:08}", id.0))
}

#[async_trait]
impl MultipartStore for Azure {
    fn limits(&self) -> MultipartLimits {
        MultipartLimits { least: 1, multiple: 1, max_parts: 50_000, is_ordered: false, whole: Algorithm::Md5 }
    }

    async fn create(&self, key: &Key, _options: &PutOptions, _deadline: Deadline) -> Result<UploadId> {
        self.container.check_key(key)?;
        // Blocks with the same name replace each other, so each upload needs its own names.
        Ok(UploadId(format!("{:016x}", rand::random::<u64>())))
    }

    async fn list_parts(&self, key: &Key, id: &UploadId, parts: &[Part], deadline: Deadline) -> Result<Vec<Part>> {
        let mut ask = Ask::new(Method::GET, Metric::Lists, Some(key));
        ask.query = "blocklisttype=uncommitted&comp=blocklist".to_owned();
        let answer = self.container.send(ask, deadline).await?;
        let body = body(answer.into_body(), LIST_LIMIT, deadline, &self.container.place_of(Some(key))).await?;
        let mut sizes: HashMap<String, u64> = HashMap::new();
        let mut named = String::new();
        xml::elements(&body, |path, text| match path {
            [_, "UncommittedBlocks", "Block", "Name"] => named = text,
            [_, "UncommittedBlocks", "Block", "Size"] => {
                if let Ok(size) = text.parse() {
                    sizes.insert(std::mem::take(&mut named), size);
                }
            }
            _ => {}
        })?;
        Ok(parts.iter().filter(|part| sizes.get(&name(id, part.number)) == Some(&part.size)).cloned().collect())
    }

    async fn put_part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part> {
        let name = name(id, at.number);
        let size = bytes.iter().map(|bytes| bytes.len() as u64).sum();
        let crc32c = checksum::crc32c_of(&bytes);
        let mut ask = Ask::new(Method::PUT, Metric::Puts, Some(key));
        ask.query = format!("comp=block&{}", pair("blockid", name.as_bytes()));
        ask.headers.insert("content-md5", md5(&bytes)?.1);
        ask.body = Parts::new(bytes);
        self.container.send(ask, deadline).await?;
        Ok(Part { number: at.number, offset: at.offset, size, crc32c, tag: name })
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
        let list: String = parts.iter().map(|part| format!("<Uncommitted>{}</Uncommitted>", part.tag)).collect();
        let list = format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>{list}</BlockList>");
        let mut headers = HeaderMap::new();
        let kept = whole.iter().find(|digest| digest.algorithm == Algorithm::Md5);
        if let Some(md5) = kept {
            let value = HeaderValue::from_str(&BASE64_STANDARD.encode(&md5.value));
            headers.insert("x-ms-blob-content-md5", value.map_err(|_| Error::bug("base64 is not ASCII"))?);
        }
        if let Some(encoding) = &options.encoding {
            headers.insert("x-ms-blob-content-encoding", header_of("encoding", encoding)?);
        }
        add_precondition(&mut headers, &options.precondition)?;
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        let mut ask = Ask::new(Method::PUT, Metric::Puts, Some(key));
        ask.query = "comp=blocklist".to_owned();
        ask.headers = headers;
        ask.body = Parts::new([Bytes::from(list)]);
        let answer = match self.container.send(ask, deadline).await {
            Ok(answer) => answer,
            // Some blocks have expired, or Azure discarded them when another writer committed a block list.
            Err(Error::System { place, reason }) if reason.contains("InvalidBlockList") => {
                return Err(Error::NotFound { place });
            }
            Err(error) => return Err(unmet(error, &options.precondition)),
        };
        Ok(Meta {
            key: key.clone(),
            size: parts.iter().map(|part| part.size).sum(),
            version: version(&answer),
            digests: kept.into_iter().cloned().collect(),
            encoding: options.encoding.clone(),
            modified_s: Some(unix_now().as_secs_f64()),
        })
    }

    /// Does nothing: Azure has no request to abort an upload, and deletes uncommitted blocks after a week.
    async fn abort(&self, _key: &Key, _id: &UploadId, _deadline: Deadline) -> Result<()> {
        Ok(())
    }
}
