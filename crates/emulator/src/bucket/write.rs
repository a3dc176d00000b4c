// SPDX-License-Identifier: Apache-2.0
//! Writes: PUT of a whole object, and deletes of objects.

use std::io;

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::headers::{StoredHeaders, put_checksum};
use super::{Bucket, Failure, blocking};
use crate::fs_backend::Folder;
use crate::preconditions::{Deleting, check_write};
use crate::request_body::{Promise, receive};

impl Bucket {
    pub(super) async fn put(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.check_name(&req.input.bucket)?;
        let promise = Promise::of(&req.headers);
        let kept = StoredHeaders::of(&req.headers, req.input.metadata, req.input.tagging.as_deref())?;
        let received = receive(self.folder.clone(), req.input.body, promise, req.trailing_headers).await?;
        let fact = kept.fact(received.etag.clone(), received.checksum.clone());
        let (folder, key, temp) = (self.folder.clone(), req.input.key, received.temp);
        let (if_match, if_none_match) = (req.input.if_match, req.input.if_none_match);
        blocking(move || {
            folder.commit::<Failure>(&key, temp, fact, |there| {
                Ok(check_write(if_match.as_ref(), if_none_match.as_ref(), there)?)
            })
        })
        .await?;
        let output = PutObjectOutput { e_tag: Some(ETag::Strong(received.etag)), ..Default::default() };
        let mut response = S3Response::new(output);
        put_checksum(&mut response.headers, received.checksum.as_ref());
        Ok(response)
    }

    pub(super) async fn delete(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.check_name(&req.input.bucket)?;
        let input = req.input;
        let deleting = Deleting {
            if_match: input.if_match,
            last_modified: input.if_match_last_modified_time,
            size: input.if_match_size,
        };
        let folder = self.folder.clone();
        blocking(move || remove(&folder, &input.key, &deleting)).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    pub(super) async fn delete_many(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.check_name(&req.input.bucket)?;
        let delete = req.input.delete;
        if delete.objects.len() > 1000 {
            return Err(s3_error!(MalformedXML, "at most 1000 keys can be deleted in one request"));
        }
        let folder = self.folder.clone();
        let quiet = delete.quiet.unwrap_or(false);
        let output = blocking(move || {
            let (mut deleted, mut errors) = (Vec::new(), Vec::new());
            for object in delete.objects {
                let deleting = Deleting {
                    if_match: object.e_tag.map(ETagCondition::ETag),
                    last_modified: object.last_modified_time,
                    size: object.size,
                };
                match remove(&folder, &object.key, &deleting) {
                    Ok(()) if quiet => {}
                    Ok(()) => deleted.push(DeletedObject { key: Some(object.key), ..Default::default() }),
                    Err(Failure(error)) => errors.push(Error {
                        code: Some(error.code().as_str().to_owned()),
                        message: error.message().map(str::to_owned),
                        key: Some(object.key),
                        ..Default::default()
                    }),
                }
            }
            Ok::<_, io::Error>(DeleteObjectsOutput {
                deleted: Some(deleted),
                errors: (!errors.is_empty()).then_some(errors),
                ..Default::default()
            })
        })
        .await?;
        Ok(S3Response::new(output))
    }
}

fn remove(folder: &Folder, key: &str, deleting: &Deleting) -> Result<(), Failure> {
    folder.remove(key, |found| deleting.check(found).map_err(Failure))
}
