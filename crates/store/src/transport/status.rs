// SPDX-License-Identifier: Apache-2.0
//! Converts HTTP status codes to errors. A store that has its own error codes checks those codes first.

use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use penstock_types::{Error, unix_now};

use crate::http_date;

/// Maximum number of characters of a store's message that an error contains.
const SHOWN: usize = 200;

/// Truncates a store's message, and replaces control characters, which could manipulate a terminal.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns the wait that a response requests in Retry-After (a number of seconds or a date). If Retry-After is missing,
/// returns the time until the quota in a RateLimit header is reset. The Hugging Face Hub sends such a header:
/// `"api";r=0;t=55` (IETF draft-ietf-httpapi-ratelimit-headers).
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok();
    match text("retry-after") {
        Some(after) => wait(after),
        None => wait(text("ratelimit")?.split(';').find_map(|part| part.trim().strip_prefix("t="))?),
    }
}

fn wait(text: &str) -> Option<Duration> {
    let text = text.trim();
    match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => Some(Duration::from_secs_f64((http_date::http(text)? - unix_now().as_secs_f64()).max(0.0))),
    }
}

/// Returns the error for a request that the store throttled.
pub(crate) fn throttled(place: String, status: StatusCode, headers: &HeaderMap) -> Error {
    let (retry_after, status) = (retry_after(headers), status.as_u16());
    Error::Throttled { place, refused: 1, sent: 1, window: Duration::ZERO, retry_after, status }
}

/// Returns the error for a status without a store-specific code. `reason` is the store's message, `by` its endpoint.
pub(crate) fn of(
    place: String,
    by: &str,
    method: &Method,
    status: StatusCode,
    headers: &HeaderMap,
    reason: String,
) -> Error {
    let is_read = *method == Method::GET || *method == Method::HEAD;
    match status.as_u16() {
        429 | 503 => throttled(place, status, headers),
        404 | 410 => Error::NotFound { place },
        401 | 403 | 407 => Error::Denied { place, reason },
        412 if is_read => Error::Changed { place, want: String::new(), have: "another".to_owned() },
        412 => Error::Precondition { place, reason: "the precondition of the write was not met".to_owned() },
        416 => Error::corrupt(place, "has no bytes in the requested range"),
        405 | 501 => Error::Unsupported { what: format!("{method} {place} ({reason})"), by: by.to_owned() },
        408 | 500..=599 => Error::Server { place, status: status.as_u16(), reason },
        status => Error::System { place, reason: format!("the store returned HTTP {status}: {reason}") },
    }
}

/// Returns the standard text for a status, for responses without a message.
pub(crate) fn reason_phrase(status: StatusCode) -> String {
    status.canonical_reason().unwrap_or("no reason given").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_rate_limit_reset_is_used_without_a_retry_after() {
        let mut headers = HeaderMap::new();
        headers.insert("ratelimit", "\"resolvers\";r=0;t=55".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(55)));
        headers.insert("retry-after", "2".parse().unwrap());
        assert_eq!(retry_after(&headers), Some(Duration::from_secs(2)));
        headers.clear();
        headers.insert("ratelimit", "odd".parse().unwrap());
        assert_eq!(retry_after(&headers), None);
    }

    #[test]
    fn test_retry_after_takes_seconds_and_dates() {
        assert_eq!(wait("3"), Some(Duration::from_secs(3)));
        assert_eq!(wait("0.25"), Some(Duration::from_millis(250)));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert!(wait("Fri, 31 Dec 9999 23:59:59 GMT").unwrap() > Duration::from_secs(1 << 30));
        for text in ["", "soon", "-1", "nan", "inf", "1e300"] {
            assert_eq!(wait(text), None, "{text}");
        }
    }
}
