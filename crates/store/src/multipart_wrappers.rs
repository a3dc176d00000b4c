// SPDX-License-Identifier: Apache-2.0
//! Multipart uploads of the store wrappers. `Retry` repeats failed requests, `Fault` injects faults, and
//! `ThrottledStore` slows requests down.

use async_trait::async_trait;
use bytes::Bytes;
use penstock_types::{Deadline, Digest, Error, Key, Result};
use std::time::Duration;

use crate::multipart::{MultipartLimits, MultipartStore, Part, PartSpec, UploadId};
use crate::{Fault, Meta, MeteredStore, PutOptions, Retry, Store, ThrottledStore};

/// Returns the inner store's multipart interface. A wrapper supports multipart uploads only if its inner store does.
pub(crate) fn multipart(inner: &dyn Store) -> Result<&dyn MultipartStore> {
    inner.multipart().ok_or_else(|| Error::bug("a multipart upload to a store that does not support multipart uploads"))
}

fn total(bytes: &[Bytes]) -> u64 {
    bytes.iter().map(|bytes| bytes.len() as u64).sum()
}

/// Returns true if an existing object is the result of this upload. Needed if the response to the completing request
/// was lost: the next attempt then finds the object. The object must have this size and at least one of these digests.
/// It must not have a digest that differs from them.
pub(crate) fn is_ours(existing: &Meta, size: u64, whole: &[Digest]) -> bool {
    let both = |want: &&Digest| existing.digests.iter().any(|have| have.algorithm == want.algorithm);
    let mut comparable = whole.iter().filter(both).peekable();
    existing.size == size && comparable.peek().is_some() && comparable.all(|want| existing.digests.contains(want))
}

macro_rules! again {
    ($self:ident, $what:literal, $key:ident, $deadline:ident, $limit:expr, $call:expr) => {{
        let mut attempts = $self.attempts($what, $key, $deadline);
        loop {
            match attempts.attempt($limit, $call).await {
                Err(error) => attempts.after(error).await?,
                done => break done,
            }
        }
    }};
}

#[async_trait]
impl MultipartStore for Retry {
    fn limits(&self) -> MultipartLimits {
        multipart(self.inner()).map_or(
            MultipartLimits {
                least: 1,
                multiple: 1,
                max_parts: 1,
                is_ordered: true,
                whole: penstock_types::Algorithm::Crc32c,
            },
            |multipart| multipart.limits(),
        )
    }

    async fn create(&self, key: &Key, options: &PutOptions, deadline: Deadline) -> Result<UploadId> {
        let inner = multipart(self.inner())?;
        again!(self, "POST", key, deadline, self.attempt_timeout(), inner.create(key, options, deadline))
    }

    async fn list_parts(&self, key: &Key, id: &UploadId, parts: &[Part], deadline: Deadline) -> Result<Vec<Part>> {
        let inner = multipart(self.inner())?;
        again!(self, "LIST", key, deadline, self.attempt_timeout(), inner.list_parts(key, id, parts, deadline))
    }

    async fn put_part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part> {
        let inner = multipart(self.inner())?;
        // Allow for a rate as low as 1 MB/s, as for a whole object.
        let limit = self.attempt_timeout() + Duration::from_micros(total(&bytes));
        again!(self, "PUT", key, deadline, limit, inner.put_part(key, id, at, bytes.clone(), deadline))
    }

    async fn complete(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta> {
        let inner = multipart(self.inner())?;
        let size: u64 = parts.iter().map(|part| part.size).sum();
        // Allow more time for large objects, because some stores join the parts before they respond.
        let limit = self.attempt_timeout() + Duration::from_micros(size / 10);
        let mut attempts = self.attempts("POST", key, deadline);
        let mut is_doubtful = false;
        loop {
            match attempts.attempt(limit, inner.complete(key, id, parts, whole, options, deadline)).await {
                Err(error @ (Error::Precondition { .. } | Error::NotFound { .. })) if is_doubtful => {
                    let existing = self.head(key, deadline).await?;
                    return if is_ours(&existing, size, whole) { Ok(existing) } else { Err(error) };
                }
                Err(error) => {
                    is_doubtful |= !matches!(error, Error::Throttled { .. });
                    attempts.after(error).await?;
                }
                done => return done,
            }
        }
    }

    async fn abort(&self, key: &Key, id: &UploadId, deadline: Deadline) -> Result<()> {
        let inner = multipart(self.inner())?;
        again!(self, "DELETE", key, deadline, self.attempt_timeout(), inner.abort(key, id, deadline))
    }
}

macro_rules! through {
    ($wrapper:ty, |$self:ident, $key:ident, $bytes:ident, $deadline:ident| $before:expr) => {
        #[async_trait]
        impl MultipartStore for $wrapper {
            fn limits(&self) -> MultipartLimits {
                let none = MultipartLimits {
                    least: 1,
                    multiple: 1,
                    max_parts: 1,
                    is_ordered: true,
                    whole: penstock_types::Algorithm::Crc32c,
                };
                multipart(self.inner()).map_or(none, |multipart| multipart.limits())
            }

            async fn create(&self, $key: &Key, options: &PutOptions, $deadline: Deadline) -> Result<UploadId> {
                let ($self, $bytes) = (self, 0);
                $before;
                multipart(self.inner())?.create($key, options, $deadline).await
            }

            async fn list_parts(
                &self,
                $key: &Key,
                id: &UploadId,
                parts: &[Part],
                $deadline: Deadline,
            ) -> Result<Vec<Part>> {
                let ($self, $bytes) = (self, 0);
                $before;
                multipart(self.inner())?.list_parts($key, id, parts, $deadline).await
            }

            async fn put_part(
                &self,
                $key: &Key,
                id: &UploadId,
                at: &PartSpec,
                bytes: Vec<Bytes>,
                $deadline: Deadline,
            ) -> Result<Part> {
                let ($self, $bytes) = (self, total(&bytes));
                $before;
                multipart(self.inner())?.put_part($key, id, at, bytes, $deadline).await
            }

            async fn complete(
                &self,
                $key: &Key,
                id: &UploadId,
                parts: &[Part],
                whole: &[Digest],
                options: &PutOptions,
                $deadline: Deadline,
            ) -> Result<Meta> {
                let ($self, $bytes) = (self, 0);
                $before;
                multipart(self.inner())?.complete($key, id, parts, whole, options, $deadline).await
            }

            async fn abort(&self, $key: &Key, id: &UploadId, $deadline: Deadline) -> Result<()> {
                let ($self, $bytes) = (self, 0);
                $before;
                multipart(self.inner())?.abort($key, id, $deadline).await
            }
        }
    };
}

through!(ThrottledStore, |shape, key, bytes, deadline| shape.pass(key, bytes, deadline).await?);
through!(Fault, |fault, key, _bytes, _deadline| fault.strike(key).await?);
through!(MeteredStore, |count, _key, bytes, _deadline| count.uploaded(bytes));
