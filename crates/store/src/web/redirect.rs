// SPDX-License-Identifier: Apache-2.0
//! Checks redirects. The scheme must not change, and the target must not be an internal address. Errors do not contain
//! the target, because it may be a signed URL.

use std::net::IpAddr;

use http::Uri;
use http::uri::Authority;
use penstock_types::{Error, Result};

use crate::transport::is_loopback;

/// Maximum number of redirects that one request follows.
pub(crate) const MAX_REDIRECTS: usize = 5;

/// Returns the target of a redirect. `location` is the Location header in the response to a request for `from`. `place`
/// is the URL of the original request, and `home` its host.
pub(crate) fn follow(from: &Uri, location: &str, home: &Authority, place: &str) -> Result<Uri> {
    let refused = |why: &str| {
        let reason = format!("its server redirects {why}");
        Error::System { place: place.to_owned(), reason }
    };
    let (scheme, authority) = (from.scheme_str().unwrap_or_default(), from.authority());
    let here = authority.map(Authority::as_str).unwrap_or_default();
    let location = location.split('#').next().unwrap_or_default();
    let absolute = if location.is_empty() {
        return Err(refused("without a Location header"));
    } else if location.split(['/', '?']).next().is_some_and(|first| first.contains(':')) {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{here}{location}")
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{here}{folder}/{location}")
    };
    let to: Uri = absolute.parse().map_err(|_| refused("to an invalid URL"))?;
    let Some(host) = to.authority().filter(|authority| !authority.as_str().contains('@')).map(Authority::host) else {
        return Err(refused("to a URL with a password or without a host"));
    };
    if to.scheme_str() != Some(scheme) {
        return Err(refused(&format!("from {scheme}:// to another scheme; Penstock does not follow such redirects")));
    }
    if is_inward(host) && !host.eq_ignore_ascii_case(home.host()) {
        return Err(refused(
            "to an address of this machine or of a metadata service; Penstock does not follow such redirects",
        ));
    }
    // The target has a `/` appended, so the key is a folder and not an object.
    if to.authority() == authority && to.path().strip_suffix('/') == Some(from.path()) {
        return Err(Error::NotFound { place: place.to_owned() });
    }
    Ok(to)
}

/// Returns true for addresses of this machine and for link-local addresses.
fn is_inward(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    is_loopback(host)
        || address.is_ok_and(|address| match address {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_unspecified(),
            IpAddr::V6(v6) => {
                let inner = v6.to_ipv4_mapped();
                v6.is_unicast_link_local()
                    || v6.is_unspecified()
                    || inner.is_some_and(|v4| v4.is_loopback() || v4.is_link_local())
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(from: &str, location: &str) -> Result<String> {
        let from: Uri = from.parse().unwrap();
        let home = from.authority().unwrap().clone();
        follow(&from, location, &home, "the place").map(|uri| uri.to_string())
    }

    #[test]
    fn test_redirect_forms_are_resolved() {
        for (location, want) in [
            ("http://b.example/y?sig=1", "http://b.example/y?sig=1"),
            ("//b.example/y", "http://b.example/y"),
            ("/y", "http://a.example/y"),
            ("z#part", "http://a.example/d/z"),
            ("/y?u=http://c", "http://a.example/y?u=http://c"),
        ] {
            assert_eq!(to("http://a.example/d/x", location).unwrap(), want);
        }
        assert_eq!(to("http://127.0.0.1:1/x", "http://127.0.0.1:2/x").unwrap(), "http://127.0.0.1:2/x");
    }

    #[test]
    fn test_redirect_inwards_or_to_another_scheme_is_refused() {
        for location in [
            "",
            "https://a.example/secret",
            "ftp://a.example/secret",
            "http://127.0.0.1/secret",
            "http://localhost:1/secret",
            "http://169.254.169.254/latest/secret",
            "http://[::ffff:169.254.169.254]/secret",
            "http://[fe80::1]/secret",
            "http://user:secret@b.example/",
            "http://a b/secret",
        ] {
            let error = to("http://a.example/d/x", location).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert_eq!(to("http://a.example/d/x", "x/").unwrap_err().code(), "not-found");
    }
}
