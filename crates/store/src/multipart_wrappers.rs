// SPDX-License-Identifier: Apache-2.0
//! Multipart uploads through the wrappers: sent again by `Retry`, broken by `Fault`, held to a rate by `ThrottledStore`.

use async_trait::async_trait;
use bytes::Bytes;
use penstock_types::{Deadline, Digest, Error, Key, Result};
use std::time::Duration;

use crate::multipart::{MultipartLimits, MultipartStore, Part, PartSpec, UploadId};
use crate::{Fault, Meta, MeteredStore, PutOptions, Retry, Store, ThrottledStore};

/// The inner store's own door: a wrapper gives one only where there is one.
pub(crate) fn door(inner: &dyn Store) -> Result<&dyn MultipartStore> {
    inner.uploads().ok_or_else(|| Error::bug("an upload in parts to a store that has none"))
}

fn total(bytes: &[Bytes]) -> u64 {
    bytes.iter().map(|bytes| bytes.len() as u64).sum()
}

/// An upload that a request ended may have been ended by the one before it, whose answer was lost: what is there is
/// ours if it is of this size and has one of these digests, and none other.
pub(crate) fn is_ours(standing: &Meta, size: u64, whole: &[Digest]) -> bool {
    let both = |want: &&Digest| standing.digests.iter().any(|have| have.algorithm == want.algorithm);
    let mut comparable = whole.iter().filter(both).peekable();
    standing.size == size && comparable.peek().is_some() && comparable.all(|want| standing.digests.contains(want))
}

macro_rules! again {
    ($self:ident, $what:literal, $key:ident, $deadline:ident, $limit:expr, $call:expr) => {{
        let mut tries = $self.tries($what, $key, $deadline);
        loop {
            match tries.attempt($limit, $call).await {
                Err(error) => tries.after(error).await?,
                done => break done,
            }
        }
    }};
}

#[async_trait]
impl MultipartStore for Retry {
    fn terms(&self) -> MultipartLimits {
        door(self.inner()).map_or(
            MultipartLimits {
                least: 1,
                multiple: 1,
                most_parts: 1,
                is_ordered: true,
                whole: penstock_types::Algorithm::Crc32c,
            },
            |door| door.terms(),
        )
    }

    async fn begin(&self, key: &Key, options: &PutOptions, deadline: Deadline) -> Result<UploadId> {
        let inner = door(self.inner())?;
        again!(self, "POST", key, deadline, self.attempt_timeout(), inner.begin(key, options, deadline))
    }

    async fn held(&self, key: &Key, id: &UploadId, parts: &[Part], deadline: Deadline) -> Result<Vec<Part>> {
        let inner = door(self.inner())?;
        again!(self, "LIST", key, deadline, self.attempt_timeout(), inner.held(key, id, parts, deadline))
    }

    async fn part(
        &self,
        key: &Key,
        id: &UploadId,
        at: &PartSpec,
        bytes: Vec<Bytes>,
        deadline: Deadline,
    ) -> Result<Part> {
        let inner = door(self.inner())?;
        // At least 1 MB/s is expected, as of a whole object.
        let limit = self.attempt_timeout() + Duration::from_micros(total(&bytes));
        again!(self, "PUT", key, deadline, limit, inner.part(key, id, at, bytes.clone(), deadline))
    }

    async fn finish(
        &self,
        key: &Key,
        id: &UploadId,
        parts: &[Part],
        whole: &[Digest],
        options: &PutOptions,
        deadline: Deadline,
    ) -> Result<Meta> {
        let inner = door(self.inner())?;
        let size: u64 = parts.iter().map(|part| part.size).sum();
        // Stores put large objects together before they answer.
        let limit = self.attempt_timeout() + Duration::from_micros(size / 10);
        let mut tries = self.tries("POST", key, deadline);
        let mut is_doubtful = false;
        loop {
            match tries.attempt(limit, inner.finish(key, id, parts, whole, options, deadline)).await {
                Err(error @ (Error::Precondition { .. } | Error::NotFound { .. })) if is_doubtful => {
                    let standing = self.head(key, deadline).await?;
                    return if is_ours(&standing, size, whole) { Ok(standing) } else { Err(error) };
                }
                Err(error) => {
                    is_doubtful |= !matches!(error, Error::Throttled { .. });
                    tries.after(error).await?;
                }
                done => return done,
            }
        }
    }

    async fn abort(&self, key: &Key, id: &UploadId, deadline: Deadline) -> Result<()> {
        let inner = door(self.inner())?;
        again!(self, "DELETE", key, deadline, self.attempt_timeout(), inner.abort(key, id, deadline))
    }
}

macro_rules! through {
    ($wrapper:ty, |$self:ident, $key:ident, $bytes:ident, $deadline:ident| $before:expr) => {
        #[async_trait]
        impl MultipartStore for $wrapper {
            fn terms(&self) -> MultipartLimits {
                let none = MultipartLimits {
                    least: 1,
                    multiple: 1,
                    most_parts: 1,
                    is_ordered: true,
                    whole: penstock_types::Algorithm::Crc32c,
                };
                door(self.inner()).map_or(none, |door| door.terms())
            }

            async fn begin(&self, $key: &Key, options: &PutOptions, $deadline: Deadline) -> Result<UploadId> {
                let ($self, $bytes) = (self, 0);
                $before;
                door(self.inner())?.begin($key, options, $deadline).await
            }

            async fn held(&self, $key: &Key, id: &UploadId, parts: &[Part], $deadline: Deadline) -> Result<Vec<Part>> {
                let ($self, $bytes) = (self, 0);
                $before;
                door(self.inner())?.held($key, id, parts, $deadline).await
            }

            async fn part(
                &self,
                $key: &Key,
                id: &UploadId,
                at: &PartSpec,
                bytes: Vec<Bytes>,
                $deadline: Deadline,
            ) -> Result<Part> {
                let ($self, $bytes) = (self, total(&bytes));
                $before;
                door(self.inner())?.part($key, id, at, bytes, $deadline).await
            }

            async fn finish(
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
                door(self.inner())?.finish($key, id, parts, whole, options, $deadline).await
            }

            async fn abort(&self, $key: &Key, id: &UploadId, $deadline: Deadline) -> Result<()> {
                let ($self, $bytes) = (self, 0);
                $before;
                door(self.inner())?.abort($key, id, $deadline).await
            }
        }
    };
}

through!(ThrottledStore, |shape, key, bytes, deadline| shape.pass(key, bytes, deadline).await?);
through!(Fault, |fault, key, _bytes, _deadline| fault.strike(key).await?);
through!(MeteredStore, |count, _key, bytes, _deadline| count.uploaded(bytes));
