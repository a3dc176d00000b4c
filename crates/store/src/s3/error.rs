// SPDX-License-Identifier: Apache-2.0
//! From an answer that is no success to the error that a caller can act on.

use std::time::Duration;

use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use penstock_types::{Error, Key, unix_now};

use super::{Bucket, xml};
use crate::dates;

/// Bytes of an error's body that are read; the time that reading may take.
const LIMIT: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// Characters of a store's own words that are shown.
const SHOWN: usize = 200;

/// What an error's body says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) region: String,
}

impl Said {
    pub(super) fn parse(body: &[u8]) -> Self {
        let mut said = Self::default();
        // What cannot be parsed says nothing; the status still does.
        let _ = xml::elements(body, |path, text| match path {
            ["Error", "Code"] => said.code = shown(&text),
            ["Error", "Message"] => said.message = shown(&text),
            ["Error", "Region"] => said.region = shown(&text),
            _ => {}
        });
        said
    }
}

/// Cut, and without what could draw on a terminal.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

pub(super) async fn of_answer(
    bucket: &Bucket,
    method: &Method,
    key: Option<&Key>,
    answer: Response<Incoming>,
) -> Error {
    let (head, body) = answer.into_parts();
    let body = tokio::time::timeout(PATIENCE, Limited::new(body, LIMIT).collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    let mut said = Said::parse(&body);
    if said.code.is_empty()
        && let Some(code) = head.headers.get("x-amz-error-code").and_then(|code| code.to_str().ok())
    {
        said.code = shown(code);
    }
    of_status(bucket, method, key, head.status, &head.headers, &said)
}

/// The error of a status and what was said with it.
pub(super) fn of_status(
    bucket: &Bucket,
    method: &Method,
    key: Option<&Key>,
    status: StatusCode,
    headers: &HeaderMap,
    said: &Said,
) -> Error {
    let place = bucket.place(key);
    let code = said.code.as_str();
    let reason = match (code, said.message.as_str()) {
        ("", "") => status.canonical_reason().unwrap_or("no reason given").to_owned(),
        (code, "") => code.to_owned(),
        ("", message) => message.to_owned(),
        (code, message) => format!("{code}: {message}"),
    };
    let is_read = *method == Method::GET || *method == Method::HEAD;
    match (status.as_u16(), code) {
        // Some answer 404 here, whose advice would mislead.
        (_, "InvalidAccessKeyId" | "XAdminUserNotFound" | "SignatureDoesNotMatch" | "AccessDenied") => {
            Error::Denied { place, reason }
        }
        (_, "NoSuchBucket") => Error::NotFound { place: bucket.place(None) },
        (_, "KeyTooLongError" | "KeyTooLong") => match key {
            Some(key) => bucket.refused(key, "it is longer than 1024 bytes"),
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
        | (429 | 503, _) => Error::Throttled {
            place,
            refused: 1,
            sent: 1,
            window: Duration::ZERO,
            retry_after: headers.get("retry-after").and_then(|value| retry_after(value.to_str().ok()?)),
        },
        (404, "NoSuchUpload") => Error::Server { place, status: 404, reason },
        (404, _) => Error::NotFound { place },
        (301 | 302 | 307 | 308, _) | (400, "AuthorizationHeaderMalformed") if region(headers, said).is_some() => {
            let region = region(headers, said).unwrap_or_default();
            let ours = bucket.endpoint.region();
            Error::config("AWS_REGION", format!("bucket {} is in {region}, not in {ours}", bucket.root.authority))
        }
        (301 | 302 | 307 | 308, _) => Error::config(
            "AWS_ENDPOINT_URL",
            format!("{} sends requests for {place} elsewhere ({status})", bucket.endpoint.shown()),
        ),
        (401 | 403, _)
        | (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" | "AuthorizationHeaderMalformed") => {
            Error::Denied { place, reason }
        }
        (412, _) if is_read => Error::Changed { place, want: String::new(), have: "another".to_owned() },
        (412, _) => Error::Precondition { place, reason: "its condition does not hold".to_owned() },
        (416, _) => Error::corrupt(place, "has no bytes where they were asked for"),
        (405 | 501, _) => {
            Error::Unsupported { what: format!("{method} {place} ({reason})"), by: bucket.endpoint.shown().to_owned() }
        }
        (408 | 500..=599, _) | (400, "RequestTimeout") | (409, "OperationAborted" | "ConditionalRequestConflict") => {
            Error::Server { place, status: status.as_u16(), reason }
        }
        (409, "ObjectParentIsFile" | "ExistingObjectIsDirectory") => match key {
            Some(key) => bucket.refused(key, "this store keeps objects as files, and a file stands against a folder"),
            None => Error::System { place, reason },
        },
        (status, _) => Error::System { place, reason: format!("the store answered {status}: {reason}") },
    }
}

fn region<'a>(headers: &'a HeaderMap, said: &'a Said) -> Option<&'a str> {
    let header = headers.get("x-amz-bucket-region").and_then(|value| value.to_str().ok());
    header.or(Some(said.region.as_str())).filter(|region| !region.is_empty())
}

/// Retry-After: seconds, or a date.
pub(super) fn retry_after(text: &str) -> Option<Duration> {
    let text = text.trim();
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => Some(Duration::from_secs_f64((dates::http(text)? - unix_now().as_secs_f64()).max(0.0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_error_body_gives_code_and_message_and_nothing_else() {
        let said = Said::parse(
            b"<?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>not &lt;yours&gt;\x07</Message>\
              <AWSAccessKeyId>AKIDSECRET</AWSAccessKeyId><StringToSign>secret</StringToSign></Error>",
        );
        assert_eq!(said.code, "SignatureDoesNotMatch");
        assert_eq!(said.message, "not <yours> ");
        assert!(!format!("{said:?}").to_lowercase().contains("secret"));
        assert_eq!(Said::parse(b"<html>no"), Said::default());
    }

    #[test]
    fn test_retry_after_takes_seconds_and_dates() {
        assert_eq!(retry_after("3"), Some(Duration::from_secs(3)));
        assert_eq!(retry_after("0.25"), Some(Duration::from_millis(250)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert!(retry_after("Fri, 31 Dec 9999 23:59:59 GMT").unwrap() > Duration::from_secs(1 << 30));
        for text in ["", "soon", "-1", "nan", "inf", "1e300"] {
            assert_eq!(retry_after(text), None, "{text}");
        }
    }
}
