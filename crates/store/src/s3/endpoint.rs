// SPDX-License-Identifier: Apache-2.0
//! Builds the URI of a request from the endpoint, the bucket and the key. Every byte of the key is preserved.

use http::Uri;
use penstock_types::{Error, Result};

use crate::S3Settings;
use crate::transport::{is_loopback, uri};

/// Endpoint of one bucket.
pub(super) struct Endpoint {
    scheme: &'static str,
    authority: String,
    /// URL path of the bucket. Empty if the host name contains the bucket name.
    base: String,
    region: String,
    shown: String,
}

impl Endpoint {
    pub(super) fn new(bucket: &str, settings: &S3Settings) -> Result<Self> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if bucket.is_empty() || bucket.len() > 255 || !bucket.chars().all(is_name) || bucket.chars().all(|c| c == '.') {
            return Err(Error::config("bucket", format!("`{}` is not a valid bucket name", bucket.escape_debug())));
        }
        let region = settings.region.clone().unwrap_or_else(|| "us-east-1".to_owned());
        if !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(Error::config("AWS_REGION", format!("`{}` is not a valid region name", region.escape_debug())));
        }
        let Some(url) = &settings.endpoint else {
            let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
            let host = format!("s3.{region}.{domain}");
            // AWS's certificate covers only one more label in the host name. A bucket name with dots is therefore part
            // of the path.
            let (authority, base) = match bucket.contains('.') {
                true => (host, format!("/{bucket}")),
                false => (format!("{bucket}.{host}"), String::new()),
            };
            let shown = format!("https://{authority}");
            return Ok(Self { scheme: "https", authority, base, region, shown });
        };
        // The URL may contain a password. Errors may contain the URL only after the check below.
        let bad = |problem: &str| Error::config("AWS_ENDPOINT_URL", problem);
        let uri: Uri = url.parse().map_err(|_| bad("not a valid URL"))?;
        let authority = uri.authority().ok_or_else(|| bad("the URL has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad(
                "the URL contains a user name or a password; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead",
            ));
        }
        if uri.query().is_some() {
            return Err(bad("the URL contains a query"));
        }
        let scheme = match uri.scheme_str() {
            Some("https") => "https",
            Some("http") if settings.allows_http || is_loopback(authority.host()) => "http",
            Some("http") => {
                return Err(bad(&format!(
                    "http://{authority} is plain http to another machine: use https, or set PENSTOCK_ALLOW_HTTP=1 on a \
                     network that you trust"
                )));
            }
            _ => return Err(bad("the URL must begin with https:// or http://")),
        };
        Ok(Self {
            scheme,
            authority: authority.as_str().to_owned(),
            base: format!("{}/{bucket}", uri.path().trim_end_matches('/')),
            region,
            shown: format!("{scheme}://{authority}"),
        })
    }

    pub(super) fn region(&self) -> &str {
        &self.region
    }

    /// Endpoint as text for error messages.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the URI of a key, or of the bucket if `key` is `None`.
    pub(super) fn uri(&self, key: Option<&[u8]>, query: &str) -> Result<Uri> {
        let Self { scheme, authority, base, .. } = self;
        let root = if key.is_none() && base.is_empty() { "/" } else { "" };
        uri(&format!("{scheme}://{authority}{base}{root}"), key, query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(url: Option<&str>, bucket: &str) -> Result<Endpoint> {
        let endpoint = url.map(str::to_owned);
        Endpoint::new(bucket, &S3Settings { endpoint, ..S3Settings::default() })
    }

    fn wire(url: Option<&str>, bucket: &str, key: &[u8]) -> String {
        endpoint(url, bucket).unwrap().uri(Some(key), "").unwrap().to_string()
    }

    #[test]
    fn test_uri_of_odd_keys_keeps_every_byte() {
        let base = Some("http://127.0.0.1:9000/");
        for (key, want) in [
            ("a b+c%20&=?#", "a%20b%2Bc%2520%26%3D%3F%23"),
            ("../x/./y", "../x/./y"),
            ("//lead//", "//lead//"),
            ("é~-_.", "%C3%A9~-_."),
        ] {
            assert_eq!(wire(base, "b", key.as_bytes()), format!("http://127.0.0.1:9000/b/{want}"));
        }
    }

    #[test]
    fn test_aws_hosts_name_the_bucket_unless_it_has_dots() {
        assert_eq!(wire(None, "b", b"k"), "https://b.s3.us-east-1.amazonaws.com/k");
        assert_eq!(wire(None, "b.c", b"k"), "https://s3.us-east-1.amazonaws.com/b.c/k");
    }

    #[test]
    fn test_plain_http_is_for_this_machine_unless_allowed() {
        for url in ["http://localhost:1", "http://127.9.9.9", "http://[::1]:80", "https://elsewhere"] {
            assert!(endpoint(Some(url), "b").is_ok(), "{url}");
        }
        let error = endpoint(Some("http://10.0.0.1:9000"), "b").err().unwrap();
        assert!(error.to_string().contains("PENSTOCK_ALLOW_HTTP=1"), "{error}");
        let settings = S3Settings { endpoint: Some("http://10.0.0.1".into()), allows_http: true, ..Default::default() };
        assert!(Endpoint::new("b", &settings).is_ok());
    }

    #[test]
    fn test_endpoints_that_cannot_be_are_refused_without_their_password() {
        for url in ["http://user:secret@127.0.0.1", "ftp://127.0.0.1", "127.0.0.1:9000", "http://127.0.0.1/?x=secret"] {
            let error = endpoint(Some(url), "b").err().unwrap();
            assert_eq!(error.code(), "config");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        for bucket in ["", "a/b", "a b", "..", "a?b"] {
            assert!(endpoint(None, bucket).is_err(), "{bucket}");
        }
    }
}
