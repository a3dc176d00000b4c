// SPDX-License-Identifier: Apache-2.0
//! Parts of multipart uploads. Receives and lists parts, and checks part numbers.

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Bucket;
use super::headers::state;
use super::uploads::open_upload;
use crate::preconditions::modified;
use crate::request_body::{Promise, receive};

const MAX_PARTS: i32 = 10_000;

impl Bucket {
    pub(super) async fn take_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        check_part_number(input.part_number)?;
        let algorithm = self.uploads.algorithm(&input.upload_id, &input.key)?;
        let mut promise = Promise::of(&req.headers);
        if promise.checksum.is_none() {
            promise.checksum = algorithm.map(|name| (name, None));
        }
        let received = receive(self.folder.clone(), input.body, promise, req.trailing_headers).await?;
        let mut output = UploadPartOutput { e_tag: Some(ETag::Strong(received.etag.clone())), ..Default::default() };
        state!(output, &received.checksum);
        self.uploads.add_part(&input.upload_id, input.part_number, received)?;
        Ok(S3Response::new(output))
    }

    pub(super) fn parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let all = self.uploads.all();
        let upload = open_upload(&all, &input.upload_id, &input.key)?;
        let most = input.max_parts.unwrap_or(1000).clamp(1, 1000) as usize;
        let after: i32 = input.part_number_marker.unwrap_or(0);
        let mut rest = upload.parts.range(after.saturating_add(1)..);
        let parts: Vec<Part> = rest
            .by_ref()
            .take(most)
            .map(|(number, held)| {
                let mut part = Part {
                    part_number: Some(*number),
                    size: Some(held.received.size as i64),
                    e_tag: Some(ETag::Strong(held.received.etag.clone())),
                    last_modified: Some(modified(held.at)),
                    ..Default::default()
                };
                state!(part, &held.received.checksum);
                part
            })
            .collect();
        let more = rest.next().is_some();
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            is_truncated: Some(more),
            max_parts: Some(most as i32),
            next_part_number_marker: parts.last().filter(|_| more).and_then(|part| part.part_number),
            parts: Some(parts),
            ..Default::default()
        }))
    }
}

pub(super) fn check_part_number(number: i32) -> S3Result<()> {
    if (1..=MAX_PARTS).contains(&number) {
        return Ok(());
    }
    Err(s3_error!(InvalidArgument, "Part number must be an integer between 1 and 10000, inclusive"))
}
