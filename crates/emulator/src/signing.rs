// SPDX-License-Identifier: Apache-2.0
//! Checks of S3 signatures that `s3s` lacks. Also converts a date format that `s3s` does not parse.

use http::{HeaderValue, Request, header};
use s3s::dto::{Timestamp, TimestampFormat};

use crate::key_path::decoded;

/// Maximum lifetime of a presigned URL on S3: one week.
const MAX_EXPIRES_S: i64 = 7 * 24 * 3600;

/// Returns the first `x-amz-` header of a signed request that the signature does not cover. S3 rejects such requests.
/// Otherwise, an attacker could add a header to an intercepted request, for example the source of a copy.
pub(crate) fn unsigned_header<B>(request: &Request<B>) -> Option<&str> {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let in_header = header.filter(|text| text.starts_with("AWS4-HMAC-SHA256")).and_then(|text| {
        text.split([',', ' ']).find_map(|part| part.trim().strip_prefix("SignedHeaders=")).map(str::to_owned)
    });
    let in_query = || {
        let query = request.uri().query().unwrap_or("");
        query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-SignedHeaders=")).map(decoded)
    };
    let signed = in_header.or_else(in_query)?.to_ascii_lowercase();
    let names = request.headers().keys().map(http::HeaderName::as_str);
    names.filter(|name| name.starts_with("x-amz-")).find(|name| !signed.split(';').any(|signed| signed == *name))
}

/// Returns true if the lifetime of a presigned URL is negative or longer than S3 allows.
pub(crate) fn has_bad_expiry<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or("");
    let expires = query.split('&').find_map(|pair| pair.strip_prefix("X-Amz-Expires="));
    expires.and_then(|text| text.parse().ok()).is_some_and(|expires| !(0..=MAX_EXPIRES_S).contains(&expires))
}

/// Adds `x-amz-date`, which `s3s` requires, to a version 4 request that has only a `Date` header. Version 2 requests
/// are not changed, because their signature would have to cover the added header.
pub(crate) fn add_amz_date<B>(request: &mut Request<B>) {
    let headers = request.headers();
    let is_v4 =
        headers.get(header::AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(b"AWS4-HMAC-SHA256"));
    if !is_v4 || headers.contains_key("x-amz-date") {
        return;
    }
    let date = headers.get(header::DATE).and_then(|date| date.to_str().ok());
    // botocore writes the UTC time zone as -0000.
    let date = date.map(|date| date.replace("-0000", "GMT").replace("+0000", "GMT"));
    let time = date.and_then(|date| Timestamp::parse(TimestampFormat::HttpDate, &date).ok());
    let mut text = Vec::new();
    if time.is_none_or(|time| time.format(TimestampFormat::DateTime, &mut text).is_err()) {
        return;
    }
    // Convert 2026-11-23T06:02:09.000Z to 20261123T060209Z.
    let text = String::from_utf8_lossy(&text);
    let mut short = text.split(['.', 'Z']).next().unwrap_or_default().replace(['-', ':'], "");
    short.push('Z');
    if let Ok(value) = HeaderValue::from_str(&short) {
        request.headers_mut().insert("x-amz-date", value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&'static str, &'static str)]) -> Request<()> {
        let mut request = Request::builder().uri(uri).body(()).unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_static(value));
        }
        request
    }

    #[test]
    fn presigned_url_lives_a_week_at_most() {
        for (uri, is_bad) in
            [("/b/k", false), ("/b/k?X-Amz-Expires=0", false), ("/b/k?X-Amz-Expires=604800&X-Amz-Date=x", false)]
        {
            assert_eq!(has_bad_expiry(&request(uri, &[])), is_bad, "{uri}");
        }
        assert!(has_bad_expiry(&request("/b/k?a=1&X-Amz-Expires=604801", &[])));
        assert!(has_bad_expiry(&request("/b/k?X-Amz-Expires=-7", &[])));
    }

    #[test]
    fn date_header_of_a_signed_request_becomes_its_amz_date() {
        let date = ("date", "Mon, 23 Nov 2026 06:02:09 GMT");
        let dated = |headers: &[(&'static str, &'static str)]| {
            let mut request = request("/", headers);
            add_amz_date(&mut request);
            request.headers().get("x-amz-date").map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(dated(&[date, ("authorization", "AWS4-HMAC-SHA256 x")]).as_deref(), Some("20261123T060209Z"));
        let by_botocore = [("date", "Mon, 23 Nov 2026 06:02:09 -0000"), ("authorization", "AWS4-HMAC-SHA256 x")];
        assert_eq!(dated(&by_botocore).as_deref(), Some("20261123T060209Z"));
        assert_eq!(dated(&[date]), None);
        assert_eq!(dated(&[date, ("authorization", "AWS access:signature")]), None);
        assert_eq!(dated(&[("date", "soon"), ("authorization", "AWS4-HMAC-SHA256 x")]), None);
        let both = [date, ("authorization", "AWS4-HMAC-SHA256 x"), ("x-amz-date", "20000101T000000Z")];
        assert_eq!(dated(&both).as_deref(), Some("20000101T000000Z"));
    }
}
