// SPDX-License-Identifier: Apache-2.0
//! GetObjectAttributes: returns size, ETag, checksum and parts of an object, without its bytes.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result};

use super::headers::{checksum_type, state};
use super::{Bucket, blocking};
use crate::object_metadata::{Checksum as StoredChecksum, Fact};
use crate::preconditions::{modified, no_such_key};

/// Maximum number of parts in one response.
const MAX_PARTS: i32 = 1000;

impl Bucket {
    pub(super) async fn attributes(
        &self,
        req: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let (folder, key) = (self.folder.clone(), input.key);
        let found = blocking(move || folder.find(&key)).await?.ok_or_else(no_such_key)?;
        // One header may contain several names, separated by commas.
        let names: Vec<_> = input.object_attributes.iter().flat_map(|names| names.as_str().split(',')).collect();
        let wants = |name: &str| names.iter().any(|wanted| wanted.trim() == name);
        let fact = found.fact.as_deref();
        let checksum = fact.and_then(|fact| fact.checksum.clone()).filter(|_| wants(ObjectAttributes::CHECKSUM));
        let parts = fact.filter(|fact| !fact.parts.is_empty() && wants(ObjectAttributes::OBJECT_PARTS));
        Ok(S3Response::new(GetObjectAttributesOutput {
            e_tag: wants(ObjectAttributes::ETAG).then(|| ETag::Strong(found.etag.clone())),
            checksum: checksum.map(|checksum| {
                let kind = Some(checksum_type(checksum.composite));
                let mut output = Checksum { checksum_type: kind, ..Default::default() };
                state!(output, &Some(checksum));
                output
            }),
            object_parts: parts.map(|fact| parts_of(fact, input.part_number_marker, input.max_parts)),
            object_size: wants(ObjectAttributes::OBJECT_SIZE).then_some(found.stamp.size as i64),
            storage_class: wants(ObjectAttributes::STORAGE_CLASS)
                .then(|| StorageClass::from_static(StorageClass::STANDARD)),
            last_modified: Some(modified(found.stamp)),
            ..Default::default()
        }))
    }
}

/// Returns the parts whose numbers are greater than the marker.
fn parts_of(fact: &Fact, marker: Option<i32>, max_parts: Option<i32>) -> GetObjectAttributesParts {
    let total = fact.parts.len() as i32;
    let after = marker.unwrap_or(0).clamp(0, total);
    let max_parts = max_parts.unwrap_or(MAX_PARTS).clamp(0, MAX_PARTS);
    let last = total.min(after + max_parts);
    let parts = (after..last).map(|at| {
        let number = Some(at + 1);
        let size = Some(fact.parts[at as usize] as i64);
        let mut part = ObjectPart { part_number: number, size, ..Default::default() };
        let value = fact.part_checksums.get(at as usize).cloned();
        let checksum = fact.checksum.clone().zip(value).map(|(whole, value)| StoredChecksum { value, ..whole });
        state!(part, &checksum);
        part
    });
    GetObjectAttributesParts {
        is_truncated: Some(last < total),
        max_parts: Some(max_parts),
        next_part_number_marker: Some(last),
        part_number_marker: Some(after),
        parts: Some(parts.collect()),
        total_parts_count: Some(total),
    }
}
