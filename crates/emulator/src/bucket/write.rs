// SPDX-License-Identifier: Apache-2.0
//! Writes: PUT of a whole object, copies within the bucket, deletes.

use std::io::{self, Write as _};

use md5::{Digest as _, Md5};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::headers::{Kept, put_checksum};
use super::{Bucket, Failure, blocking};
use crate::condition::{Deleting, Reading, check_write, modified, no_such_key};
use crate::facts::Stamp;
use crate::folder::{Folder, read_all};
use crate::incoming::{Promise, receive};
use crate::seat::hex;

impl Bucket {
    pub(super) async fn put(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.check_name(&req.input.bucket)?;
        let promise = Promise::of(&req.headers);
        let kept = Kept::of(&req.headers, req.input.metadata, req.input.tagging.as_deref())?;
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

    pub(super) async fn copy(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let CopySource::Bucket { bucket, key: source, .. } = input.copy_source else {
            return Err(s3_error!(NotImplemented, "only objects of this bucket can be copied"));
        };
        self.check_name(&bucket)?;
        let replaces = input.metadata_directive.is_some_and(|how| how.as_str() == MetadataDirective::REPLACE);
        let retags = input.tagging_directive.is_some_and(|how| how.as_str() == TaggingDirective::REPLACE);
        if source.as_ref() == input.key && !replaces && !retags && input.storage_class.is_none() {
            let text = "This copy request is illegal because it copies an object to itself without changing it.";
            return Err(s3_error!(InvalidRequest, "{}", text));
        }
        let sent = Kept::of(&req.headers, input.metadata, input.tagging.as_deref())?;
        let reading = Reading {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let (folder, key) = (self.folder.clone(), input.key);
        let etag = blocking(move || {
            let Some(found) = folder.find(&source)? else { return Err(Failure(no_such_key())) };
            reading.check(&found).map_err(|_| s3_error!(PreconditionFailed))?;
            let mut temp = folder.temp()?;
            let mut md5 = Md5::new();
            read_all(&found.file, |bytes| {
                md5.update(bytes);
                temp.file.write_all(bytes)
            })?;
            let etag = hex(&md5.finalize());
            let old = found.fact.as_deref();
            let mut kept = old.map(Kept::of_fact).unwrap_or_default();
            if replaces {
                (kept.headers, kept.metadata) = (sent.headers, sent.metadata);
            }
            if retags {
                kept.tags = sent.tags;
            }
            let checksum = old.and_then(|fact| fact.checksum.clone()).filter(|checksum| !checksum.composite);
            folder.commit::<Failure>(&key, temp, kept.fact(etag.clone(), checksum), |_| Ok(()))?;
            Ok(etag)
        })
        .await?;
        let copied = CopyObjectResult {
            e_tag: Some(ETag::Strong(etag)),
            last_modified: Some(modified(Stamp::now())),
            ..Default::default()
        };
        Ok(S3Response::new(CopyObjectOutput { copy_object_result: Some(copied), ..Default::default() }))
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
