// SPDX-License-Identifier: Apache-2.0
//! Composite checksums of S3 multipart uploads: a checksum of the parts' checksums (`COMPOSITE`) or, for older uploads,
//! an ETag that is the MD5 of the parts' MD5s (`...-8`). Neither contains the size of the parts, only their number. A
//! HEAD request for the first part returns its size. A HEAD request for the last part shows whether all parts have the
//! same size. If their sizes differ, no checksum is verified.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use http::header::{self, HeaderMap};
use penstock_types::{Algorithm, Deadline, Digest, Error, Metric, PartDigest, Result};

use super::{Ask, Bucket, is_encrypted};
use crate::transport::{quoted, ranged_get, text, unquoted};
use crate::{Meta, checksum};

/// Composite checksum from the headers of a response, and the number of parts.
#[derive(Debug, PartialEq)]
struct CompositeChecksum {
    kind: PartDigest,
    value: Vec<u8>,
    parts: u64,
}

/// Adds the composite digest to the metadata of a whole object, unless the metadata contain a better digest.
pub(super) async fn vouched(bucket: &Bucket, mut meta: Meta, headers: &HeaderMap, deadline: Deadline) -> Result<Meta> {
    if checksum::cheapest(&meta.digests).is_none()
        && let Some(CompositeChecksum { kind, value, parts }) = composite(headers, bucket.verifies_md5)
        && let Some(part_bytes) = part_bytes(bucket, &meta, parts, deadline).await?
    {
        meta.digests.push(Digest { algorithm: Algorithm::Parts(kind, part_bytes), value });
    }
    Ok(meta)
}

/// Parses the composite checksum and the number of parts in the headers of a response.
fn composite(headers: &HeaderMap, takes_md5: bool) -> Option<CompositeChecksum> {
    let counted = |text: &str| {
        let (value, parts) = text.rsplit_once('-')?;
        Some((
            value.to_owned(),
            parts.parse::<u64>().ok().filter(|parts| (1..=super::large_put::MAX_PARTS).contains(parts))?,
        ))
    };
    let crc = |name: &str, kind: PartDigest| {
        let (value, parts) = counted(text(headers, name)?)?;
        let value = BASE64_STANDARD.decode(value).ok().filter(|value| value.len() == 4)?;
        Some(CompositeChecksum { kind, value, parts })
    };
    let md5 = || {
        let (value, parts) = counted(unquoted(text(headers, "etag")?))?;
        let value = format!("md5:{value}").parse::<Digest>().ok()?.value;
        Some(CompositeChecksum { kind: PartDigest::Md5, value, parts }).filter(|composite| composite.value.len() == 16)
    };
    crc("x-amz-checksum-crc32c", PartDigest::Crc32c)
        .or_else(|| crc("x-amz-checksum-crc32", PartDigest::Crc32))
        .or_else(|| (takes_md5 && !is_encrypted(headers)).then(md5)?)
}

/// Returns the common size of all parts but the last, which may be shorter; `None` if it is unknown or sizes differ.
async fn part_bytes(bucket: &Bucket, meta: &Meta, parts: u64, deadline: Deadline) -> Result<Option<u64>> {
    if meta.size == 0 || parts == 1 {
        return Ok(Some(meta.size).filter(|size| *size > 0));
    }
    if !bucket.verifies_parts {
        return Ok(None);
    }
    let Some(first) = length_of(bucket, meta, 1, deadline).await? else { return Ok(None) };
    if first == 0 || meta.size.div_ceil(first) != parts {
        return Ok(None);
    }
    // If there are two parts, the size of the second part follows from the size of the first.
    if parts > 2 && length_of(bucket, meta, parts, deadline).await? != Some(meta.size - first * (parts - 1)) {
        return Ok(None);
    }
    Ok(Some(first))
}

/// Returns the size of one part in bytes. Returns `None` if the store does not return it.
async fn length_of(bucket: &Bucket, meta: &Meta, number: u64, deadline: Deadline) -> Result<Option<u64>> {
    let query = format!("partNumber={number}");
    let mut ask = Ask { query: &query, ..Ask::new(Method::HEAD, Metric::Heads, Some(&meta.key)) };
    if let Some(version) = &meta.version {
        ask.headers.insert(header::IF_MATCH, quoted(version)?);
    }
    match bucket.send(ask, deadline).await {
        Ok(answer) => ranged_get::length(bucket, &meta.key, answer.headers()).map(Some),
        // moto compares If-Match with the ETag of the part and returns 412. Ignoring this error is safe: if the object
        // was replaced, the read itself returns `Changed`, because it is pinned to a version.
        Err(Error::Changed { .. }) => Ok(None),
        Err(error) if error.retryable() => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn test_composite_prefers_a_crc_and_takes_an_etag_only_where_it_may_be_md5s() {
        let etag = ("etag", "\"0123456789abcdef0123456789abcdef-3\"");
        let crc = headers(&[("x-amz-checksum-crc32", "AAAAAQ==-2"), etag]);
        let want = CompositeChecksum { kind: PartDigest::Crc32, value: vec![0, 0, 0, 1], parts: 2 };
        assert_eq!(composite(&crc, true), Some(want));
        let md5 = composite(&headers(&[etag]), true).unwrap();
        assert_eq!((md5.kind, md5.parts, md5.value.len()), (PartDigest::Md5, 3, 16));
        assert_eq!(composite(&headers(&[etag]), false), None);
        assert_eq!(composite(&headers(&[etag, ("x-amz-server-side-encryption", "aws:kms")]), true), None);
        for odd in ["AAAAAQ==", "AAAAAQ==-0", "AAAAAQ==-10001", "AAAAAQ==-x", "AAA=-2", "-2", "\"0123-2\""] {
            assert_eq!(composite(&headers(&[("x-amz-checksum-crc32c", odd), ("etag", odd)]), true), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn prop_composite_of_any_headers_does_not_panic(crc in "[ -~]{0,20}", etag in "[ -~]{0,40}") {
            let _ = composite(&headers(&[("x-amz-checksum-crc32c", &crc), ("etag", &etag)]), true);
        }
    }
}
