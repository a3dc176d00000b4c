// SPDX-License-Identifier: Apache-2.0
//! Preconditions of reads, writes and deletes, checked in the order of RFC 9110 §13.2.2.

use http::{HeaderMap, HeaderValue, StatusCode};
use s3s::dto::{ETag, ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

use crate::fs_backend::Found;
use crate::object_metadata::Stamp;

/// Preconditions of a GET or HEAD.
#[derive(Default)]
pub(crate) struct Reading {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
    pub if_modified_since: Option<Timestamp>,
    pub if_unmodified_since: Option<Timestamp>,
}

/// Returns a file's mtime, rounded down to whole seconds, as S3 reports it.
pub(crate) fn modified(stamp: Stamp) -> Timestamp {
    let since = std::time::Duration::from_nanos(stamp.modified_ns.max(0) as u64);
    Timestamp::from(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(since.as_secs()))
}

fn seconds(time: &Timestamp) -> i64 {
    let mut text = Vec::new();
    let written = time.format(TimestampFormat::EpochSeconds, &mut text);
    let text = String::from_utf8_lossy(&text);
    written.ok().and_then(|()| text.split('.').next()?.parse().ok()).unwrap_or(0)
}

fn matches(condition: &ETagCondition, etag: &str) -> bool {
    // S3 has only strong ETags. If-None-Match uses the weak comparison, so the weak form of the same ETag also matches.
    condition.is_any() || condition.as_etag().is_some_and(|wanted| wanted.value() == etag)
}

pub(crate) fn no_such_key() -> S3Error {
    s3_error!(NoSuchKey, "The specified key does not exist.")
}

fn precondition_failed() -> S3Error {
    s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold")
}

impl Reading {
    /// Returns an error if a precondition fails: 412, or 304 with the headers that HTTP caches need.
    pub(crate) fn check(&self, found: &Found) -> S3Result<()> {
        let at = seconds(&modified(found.stamp));
        // If-Match uses the strong comparison. If it is present, If-Unmodified-Since is ignored.
        let is_weak = |condition: &ETagCondition| matches!(condition.as_etag(), Some(ETag::Weak(_)));
        let holds = match (&self.if_match, &self.if_unmodified_since) {
            (Some(condition), _) => matches(condition, &found.etag) && !is_weak(condition),
            (None, Some(since)) => at <= seconds(since),
            (None, None) => true,
        };
        if !holds {
            return Err(precondition_failed());
        }
        let unchanged = match (&self.if_none_match, &self.if_modified_since) {
            (Some(condition), _) => matches(condition, &found.etag),
            (None, Some(since)) => at <= seconds(since),
            _ => false,
        };
        if !unchanged {
            return Ok(());
        }
        let mut error = S3Error::new(S3ErrorCode::NotModified);
        error.set_status_code(StatusCode::NOT_MODIFIED);
        let mut headers = HeaderMap::new();
        if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", found.etag)) {
            headers.insert(http::header::ETAG, tag);
        }
        error.set_headers(headers);
        Err(error)
    }
}

/// Preconditions of a delete. As on S3, deleting a missing object succeeds even with preconditions.
pub(crate) struct Deleting {
    pub if_match: Option<ETagCondition>,
    pub last_modified: Option<Timestamp>,
    pub size: Option<i64>,
}

impl Deleting {
    /// Returns a 412 error if a precondition fails.
    pub(crate) fn check(&self, found: &Found) -> S3Result<()> {
        let at = seconds(&modified(found.stamp));
        let holds = self.if_match.as_ref().is_none_or(|condition| matches(condition, &found.etag))
            && self.last_modified.as_ref().is_none_or(|time| seconds(time) == at)
            && self.size.is_none_or(|size| u64::try_from(size) == Ok(found.stamp.size));
        if holds { Ok(()) } else { Err(precondition_failed()) }
    }
}

/// Checks the preconditions of a write against the existing object.
pub(crate) fn check_write(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
    there: Option<&Found>,
) -> S3Result<()> {
    if let Some(condition) = if_match {
        let Some(found) = there else { return Err(no_such_key()) };
        if !matches(condition, &found.etag) {
            return Err(precondition_failed());
        }
    }
    if let (Some(condition), Some(found)) = (if_none_match, there)
        && matches(condition, &found.etag)
    {
        return Err(precondition_failed());
    }
    Ok(())
}
