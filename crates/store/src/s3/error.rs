// SPDX-License-Identifier: Apache-2.0
//! Converts an S3 error response to a Penstock error.

use http::{HeaderMap, Method, Response, StatusCode};
use hyper::body::Incoming;
use penstock_types::{Error, Key};

use super::Bucket;
use crate::transport::{self, status::shown, xml};

/// Parsed body of an error response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ErrorBody {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) region: String,
}

impl ErrorBody {
    pub(super) fn parse(body: &[u8]) -> Self {
        let mut error = Self::default();
        // If the body cannot be parsed, the error is built from the status alone.
        let _ = xml::elements(body, |path, text| match path {
            ["Error", "Code"] => error.code = shown(&text),
            ["Error", "Message"] => error.message = shown(&text),
            ["Error", "Region"] => error.region = shown(&text),
            _ => {}
        });
        error
    }
}

pub(super) async fn of_answer(
    bucket: &Bucket,
    method: &Method,
    key: Option<&Key>,
    answer: Response<Incoming>,
) -> Error {
    let (head, body) = answer.into_parts();
    let mut error = ErrorBody::parse(&transport::error_body(body).await);
    if error.code.is_empty()
        && let Some(code) = head.headers.get("x-amz-error-code").and_then(|code| code.to_str().ok())
    {
        error.code = shown(code);
    }
    of_status(bucket, method, key, head.status, &head.headers, &error)
}

/// Returns true if the store rejected the request because the credential has expired. A response to HEAD has no body,
/// so every status 400 counts.
pub(super) fn tells_expiry(method: &Method, status: StatusCode, error: &Error) -> bool {
    match error {
        Error::Denied { reason, .. } => {
            ["ExpiredToken", "TokenRefreshRequired", "InvalidToken"].iter().any(|code| reason.starts_with(code))
        }
        _ => method == Method::HEAD && status == StatusCode::BAD_REQUEST,
    }
}

/// Builds the error for a status and its parsed response body.
pub(super) fn of_status(
    bucket: &Bucket,
    method: &Method,
    key: Option<&Key>,
    status: StatusCode,
    headers: &HeaderMap,
    error: &ErrorBody,
) -> Error {
    let place = bucket.place_of(key);
    let code = error.code.as_str();
    let reason = match (code, error.message.as_str()) {
        ("", "") => status.canonical_reason().unwrap_or("no reason given").to_owned(),
        (code, "") => code.to_owned(),
        ("", message) => message.to_owned(),
        (code, message) => format!("{code}: {message}"),
    };
    match (status.as_u16(), code) {
        // Some stores return these codes with status 404, but `NotFound` and its hint would mislead the user.
        (_, "InvalidAccessKeyId" | "XAdminUserNotFound" | "SignatureDoesNotMatch" | "AccessDenied") => {
            Error::Denied { place, reason }
        }
        (_, "NoSuchBucket") => Error::NotFound { place: bucket.place_of(None) },
        (_, "KeyTooLongError" | "KeyTooLong") => match key {
            Some(key) => bucket.refused(key, "the key is longer than 1,024 bytes"),
            None => Error::NotFound { place },
        },
        (
            _,
            "BadDigest"
            | "InvalidDigest"
            | "XAmzContentChecksumMismatch"
            | "XAmzContentSHA256Mismatch"
            | "IncompleteBody"
            | "ChecksumMismatch",
        ) => Error::corrupt(place, format!("arrived damaged at the store ({reason})")),
        (_, "SlowDown" | "Throttling" | "ThrottlingException" | "TooManyRequests" | "RequestLimitExceeded")
        | (429 | 503, _) => transport::status::throttled(place, status, headers),
        (404, "NoSuchUpload") => Error::Server { place, status: 404, reason },
        (301 | 302 | 307 | 308, _) | (400, "AuthorizationHeaderMalformed") if region(headers, error).is_some() => {
            let region = region(headers, error).unwrap_or_default();
            let ours = bucket.endpoint.region();
            Error::config("AWS_REGION", format!("bucket {} is in {region}, not in {ours}", bucket.root.authority))
        }
        (301 | 302 | 307 | 308, _) => Error::config(
            "AWS_ENDPOINT_URL",
            format!("{} redirects requests for {place} ({status})", bucket.endpoint.shown()),
        ),
        (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "AuthorizationHeaderMalformed") => {
            Error::Denied { place, reason }
        }
        (400, "RequestTimeout") | (409, "OperationAborted" | "ConditionalRequestConflict") => {
            Error::Server { place, status: status.as_u16(), reason }
        }
        (409, "ObjectParentIsFile" | "ExistingObjectIsDirectory") => match key {
            Some(key) => {
                bucket.refused(key, "this store maps keys to files, and the key conflicts with a file or folder")
            }
            None => Error::System { place, reason },
        },
        _ => transport::status::of(place, bucket.endpoint.shown(), method, status, headers, reason),
    }
}

fn region<'a>(headers: &'a HeaderMap, body: &'a ErrorBody) -> Option<&'a str> {
    let header = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
    header.or(Some(body.region.as_str())).filter(|region| !region.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_error_body_gives_code_and_message_and_nothing_else() {
        let body = ErrorBody::parse(
            b"<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>not &lt;yours&gt;\x07</Message>\
              <AWSAccessKeyId>AKIDSECRET</AWSAccessKeyId><StringToSign>secret</StringToSign></Error>",
        );
        assert_eq!(body.code, "SignatureDoesNotMatch");
        assert_eq!(body.message, "not <yours> ");
        assert!(!format!("{body:?}").to_lowercase().contains("secret"));
        assert_eq!(ErrorBody::parse(b"<html>no"), ErrorBody::default());
    }
}
