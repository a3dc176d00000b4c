// SPDX-License-Identifier: Apache-2.0
//! The bucket: implements S3's operations on a folder.
//!
//! This module implements operations on the bucket itself. Submodules implement reads of an object (`read`,
//! `attributes`), writes and deletes (`write`, `copy`), listings (`pages`), multipart uploads (`uploads`, `parts`) and
//! tags (`tags`). `headers` defines the metadata that is stored with an object.

mod attributes;
mod copy;
mod headers;
mod pages;
mod parts;
mod read;
mod tags;
mod uploads;
mod write;

use std::io;
use std::sync::Arc;

use s3s::dto::*;
use s3s::{S3, S3Error, S3Request, S3Response, S3Result, s3_error};

use crate::fs_backend::Folder;
use crate::list::{Query, page};
use crate::object_metadata::Stamp;
use crate::preconditions::modified;
use crate::request_body::{internal, io_error};
pub(crate) use uploads::MultipartStore;

/// Region that the endpoint reports. Requests may be signed for any region.
pub(crate) const REGION: &str = "us-east-1";

/// The S3 bucket that the emulator serves.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) name: Arc<str>,
    pub(crate) folder: Arc<Folder>,
    pub(crate) uploads: Arc<MultipartStore>,
    pub(crate) began: Stamp,
}

/// Runs blocking work on the folder in the blocking thread pool.
async fn blocking<T, E>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> S3Result<T>
where
    T: Send + 'static,
    E: Into<Failure> + Send + 'static,
{
    let done = tokio::task::spawn_blocking(move || work().map_err(Into::into));
    done.await.map_err(internal)?.map_err(|Failure(error)| error)
}

/// An S3 error, or a file system error that was converted to an S3 error.
struct Failure(S3Error);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(io_error(error))
    }
}

impl From<S3Error> for Failure {
    fn from(error: S3Error) -> Self {
        Self(error)
    }
}

impl Bucket {
    fn check_name(&self, name: &str) -> S3Result<()> {
        if *name == *self.name {
            return Ok(());
        }
        Err(s3_error!(NoSuchBucket, "The specified bucket does not exist"))
    }
}

#[async_trait::async_trait]
impl S3 for Bucket {
    async fn list_buckets(&self, _req: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let name = Some(self.name.to_string());
        let bucket = Bucket_ { name, creation_date: Some(modified(self.began)), ..Default::default() };
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(vec![bucket]), ..Default::default() }))
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.check_name(&req.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput { bucket_region: Some(REGION.to_owned()), ..Default::default() }))
    }

    async fn create_bucket(&self, req: S3Request<CreateBucketInput>) -> S3Result<S3Response<CreateBucketOutput>> {
        if *req.input.bucket == *self.name {
            // In us-east-1, S3 returns 200 if the client already owns the bucket. In other regions, S3 returns
            // BucketAlreadyOwnedByYou.
            let location = Some(format!("/{}", self.name));
            return Ok(S3Response::new(CreateBucketOutput { location }));
        }
        Err(s3_error!(AccessDenied, "This endpoint serves one folder as one bucket"))
    }

    async fn delete_bucket(&self, req: S3Request<DeleteBucketInput>) -> S3Result<S3Response<DeleteBucketOutput>> {
        self.check_name(&req.input.bucket)?;
        let folder = self.folder.clone();
        let query = Query { most: 1, ..Query::default() };
        let (items, _) = blocking(move || page(&folder, &query)).await?;
        if !items.is_empty() {
            return Err(s3_error!(BucketNotEmpty, "The bucket you tried to delete is not empty"));
        }
        Err(s3_error!(AccessDenied, "This endpoint serves one folder as one bucket"))
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.check_name(&req.input.bucket)?;
        // An empty response means us-east-1.
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        self.check_name(&req.input.bucket)?;
        Ok(S3Response::new(GetBucketVersioningOutput::default()))
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        self.get(req).await
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        self.head(req).await
    }

    async fn get_object_attributes(
        &self,
        req: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        self.attributes(req).await
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        self.put(req).await
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        self.copy(req).await
    }

    async fn delete_object(&self, req: S3Request<DeleteObjectInput>) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.delete(req).await
    }

    async fn delete_objects(&self, req: S3Request<DeleteObjectsInput>) -> S3Result<S3Response<DeleteObjectsOutput>> {
        self.delete_many(req).await
    }

    async fn put_object_tagging(
        &self,
        req: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        self.put_tags(req).await
    }

    async fn get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        self.get_tags(req).await
    }

    async fn delete_object_tagging(
        &self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        self.delete_tags(req).await
    }

    async fn list_objects_v2(&self, req: S3Request<ListObjectsV2Input>) -> S3Result<S3Response<ListObjectsV2Output>> {
        self.page_v2(req).await
    }

    async fn list_objects(&self, req: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        self.page_v1(req).await
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        self.create_upload(req)
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        self.take_part(req).await
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        self.copy_part(req).await
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        self.complete_upload(req).await
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.abort_upload(req)
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        self.parts(req)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        self.open_uploads(req)
    }
}

/// Alias for the type `Bucket` of s3s, because this module's own type has the same name.
type Bucket_ = s3s::dto::Bucket;
