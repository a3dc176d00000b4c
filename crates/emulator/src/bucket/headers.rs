// SPDX-License-Identifier: Apache-2.0
//! Headers that are stored with an object. They come from the write request, and reads return them.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use s3s::S3Result;
use s3s::dto::{ChecksumType, Metadata};

use super::tags::{Tags, parse_tags};
use crate::object_metadata::{Checksum, Fact};

/// Headers, metadata and tags stored with an object.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredHeaders {
    pub headers: BTreeMap<String, String>,
    pub metadata: BTreeMap<String, String>,
    pub tags: Tags,
}

impl StoredHeaders {
    /// Collects the headers, metadata and tags that a write stores. `tagging` is the value of `x-amz-tagging`.
    pub(super) fn of(headers: &HeaderMap, metadata: Option<Metadata>, tagging: Option<&str>) -> S3Result<Self> {
        let tags = tagging.map(parse_tags).transpose()?.unwrap_or_default();
        Ok(Self { headers: stored_headers(headers), metadata: metadata.into_iter().flatten().collect(), tags })
    }

    pub(super) fn of_fact(fact: &Fact) -> Self {
        Self { headers: fact.headers.clone(), metadata: fact.metadata.clone(), tags: fact.tags.clone() }
    }

    /// Creates the metadata of an object that is being written. The stamp is set when the file gets its final name.
    pub(super) fn fact(self, etag: String, checksum: Option<Checksum>) -> Fact {
        let Self { headers, metadata, tags } = self;
        Fact { etag: Some(etag), checksum, headers, metadata, tags, ..Fact::default() }
    }
}

/// Selects the request headers that S3 stores with an object and returns with every read.
fn stored_headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let names =
        ["content-type", "content-encoding", "content-language", "content-disposition", "cache-control", "expires"];
    let mut kept = BTreeMap::new();
    for name in names {
        let Some(value) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
        let value = if name == "content-encoding" {
            // `aws-chunked` describes the transfer encoding, not the object.
            let codings = value.split(',').map(str::trim).filter(|coding| *coding != "aws-chunked");
            codings.collect::<Vec<_>>().join(", ")
        } else {
            value.to_owned()
        };
        if !value.is_empty() {
            kept.insert(name.to_owned(), value);
        }
    }
    kept
}

pub(super) fn put_header(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
        headers.insert(name, value);
    }
}

/// Builds the response headers of an object: the stored headers, the number of tags and, if requested, the checksum.
pub(super) fn object_headers(fact: Option<&Fact>, checksum: Option<&Checksum>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    put_header(&mut headers, "content-type", "binary/octet-stream");
    for (name, value) in fact.into_iter().flat_map(|fact| &fact.headers) {
        put_header(&mut headers, name, value);
    }
    if let Some(count) = fact.map(|fact| fact.tags.len()).filter(|count| *count > 0) {
        headers.insert("x-amz-tagging-count", HeaderValue::from(count));
    }
    put_checksum(&mut headers, checksum);
    headers
}

pub(super) fn put_checksum(headers: &mut HeaderMap, checksum: Option<&Checksum>) {
    let Some(checksum) = checksum else { return };
    put_header(headers, &format!("x-amz-checksum-{}", checksum.algorithm.to_lowercase()), &checksum.value);
    put_header(headers, "x-amz-checksum-type", checksum_type(checksum.composite).as_str());
}

pub(super) fn checksum_type(is_composite: bool) -> ChecksumType {
    ChecksumType::from_static(if is_composite { ChecksumType::COMPOSITE } else { ChecksumType::FULL_OBJECT })
}

pub(super) fn metadata_of(fact: Option<&Fact>) -> Option<Metadata> {
    let pairs = &fact?.metadata;
    (!pairs.is_empty()).then(|| pairs.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// Returns the checksum that a request states for an object or part, for the given algorithm.
macro_rules! stated {
    ($input:expr, $algorithm:expr) => {
        match $algorithm {
            "CRC32C" => $input.checksum_crc32c.clone(),
            "CRC32" => $input.checksum_crc32.clone(),
            "CRC64NVME" => $input.checksum_crc64nvme.clone(),
            "SHA1" => $input.checksum_sha1.clone(),
            "SHA256" => $input.checksum_sha256.clone(),
            _ => None,
        }
    };
}

/// Sets the output field that belongs to the checksum's algorithm.
macro_rules! state {
    ($output:expr, $checksum:expr) => {
        if let Some(checksum) = $checksum {
            let value = Some(checksum.value.clone());
            match checksum.algorithm.as_str() {
                "CRC32C" => $output.checksum_crc32c = value,
                "CRC32" => $output.checksum_crc32 = value,
                "CRC64NVME" => $output.checksum_crc64nvme = value,
                "SHA1" => $output.checksum_sha1 = value,
                "SHA256" => $output.checksum_sha256 = value,
                _ => {}
            }
        }
    };
}
pub(super) use {state, stated};
