// SPDX-License-Identifier: Apache-2.0
//! Lists objects with ListObjectsV2. The response contains URL-encoded keys, so that every byte of a key is preserved.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use http_body_util::{BodyExt, Limited};
use penstock_types::{Deadline, Error, Key, Metric, Result};
use percent_encoding::percent_decode;

use super::{Ask, Bucket};
use crate::page_tokens::PageTokens;
use crate::transport::{client::innermost, pair, unquoted, within, xml};
use crate::{ListStream, Meta, Version, http_date};

/// Maximum size of a page in bytes: four times the size of 1,000 URL-encoded keys of 1,024 bytes each.
const PAGE_LIMIT: usize = 16 << 20;

/// One page of a listing.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    pub(super) objects: Vec<Meta>,
    /// Token of the next page; `None` on the last page.
    pub(super) next: Option<String>,
}

struct Listing {
    bucket: Arc<Bucket>,
    prefix: Key,
    after: Option<Key>,
    tokens: PageTokens,
    is_done: bool,
    deadline: Deadline,
}

pub(super) fn stream(bucket: Arc<Bucket>, prefix: Key, after: Option<Key>, deadline: Deadline) -> ListStream<'static> {
    let listing = Listing { bucket, prefix, after, tokens: PageTokens::default(), is_done: false, deadline };
    stream::try_unfold(listing, |mut listing| async move {
        if listing.is_done {
            return Ok(None);
        }
        let page = listing.page().await?;
        let place = listing.bucket.place_of(Some(&listing.prefix));
        listing.is_done = !listing.tokens.advance(page.next, &place)?;
        Ok(Some((stream::iter(page.objects).map(Ok), listing)))
    })
    .try_flatten()
    .boxed()
}

impl Listing {
    async fn page(&self) -> Result<Page> {
        let mut query = vec!["list-type=2".to_owned(), "encoding-type=url".to_owned()];
        if !self.prefix.is_empty() {
            query.push(pair("prefix", self.prefix.as_bytes()));
        }
        match (self.tokens.next(), &self.after) {
            (Some(token), _) => query.push(pair("continuation-token", token.as_bytes())),
            (None, Some(after)) if !after.is_empty() => query.push(pair("start-after", after.as_bytes())),
            _ => {}
        }
        let query = query.join("&");
        let ask = Ask { query: &query, ..Ask::new(Method::GET, Metric::Lists, None) };
        if [Some(&self.prefix), self.after.as_ref()].into_iter().flatten().any(|key| key.as_str().is_none()) {
            return Err(self.bucket.refused(&self.prefix, "S3 keys must be UTF-8"));
        }
        let answer = self.bucket.send(ask, self.deadline).await?;
        let place = self.bucket.place_of(Some(&self.prefix));
        let broken = |reason: String| Error::Unreachable { place: self.bucket.endpoint.shown().to_owned(), reason };
        let body: Bytes = within(self.deadline, &format!("LIST {place}"), async {
            let body = Limited::new(answer.into_body(), PAGE_LIMIT).collect().await;
            Ok(body.map_err(|error| broken(innermost(&*error)))?.to_bytes())
        })
        .await?;
        parse(&body).map_err(|error| Error::Server { place, status: 200, reason: error.to_string() })
    }
}

/// Fields of an object that were parsed so far from its XML element.
#[derive(Default)]
struct Entry {
    key: Option<String>,
    size: Option<u64>,
    etag: Option<String>,
    modified_s: Option<f64>,
}

/// Parses a page. Returns `Corrupt` if `body` is not a valid page.
pub(super) fn parse(body: &[u8]) -> Result<Page> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut entry = Entry::default();
    let (mut is_truncated, mut is_encoded, mut is_list, mut next) = (false, false, false, None);
    xml::elements(body, |path, text| {
        is_list |= path.first() == Some(&"ListBucketResult");
        match path {
            [_, "IsTruncated"] => is_truncated = text == "true",
            [_, "EncodingType"] => is_encoded = text == "url",
            [_, "NextContinuationToken"] => next = Some(text),
            // The fields of an entry may appear in any order, so the entry is complete only at the end of its element.
            [_, "Contents"] => entries.push(std::mem::take(&mut entry)),
            [_, "Contents", field] => match *field {
                "Key" => entry.key = Some(text),
                "Size" => entry.size = text.parse().ok(),
                "ETag" => entry.etag = Some(text),
                "LastModified" => entry.modified_s = http_date::iso8601(&text),
                _ => {}
            },
            _ => {}
        }
    })?;
    let bad = |problem: String| Error::corrupt("the store's listing", problem);
    if !is_list {
        return Err(bad("is not a ListBucketResult document".to_owned()));
    }
    let objects = entries
        .into_iter()
        .map(|entry| {
            let key = entry.key.ok_or_else(|| bad("has an object without a key".to_owned()))?;
            let key = if is_encoded { decode(&key) } else { Key::from(key.as_str()) };
            let size = entry.size.ok_or_else(|| bad(format!("has no size for `{key}`")))?;
            Ok(Meta {
                key,
                size,
                version: entry.etag.map(|etag| Version(unquoted(&etag).to_owned())),
                digests: Vec::new(),
                encoding: None,
                modified_s: entry.modified_s,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    match (is_truncated, next) {
        (true, None) => Err(bad("is truncated, but has no token for the next page".to_owned())),
        (true, next) => Ok(Page { objects, next }),
        (false, _) => Ok(Page { objects, next: None }),
    }
}

/// Decodes a URL-encoded key. As in HTML forms, a plus sign means a space.
fn decode(text: &str) -> Key {
    let spaced: Vec<u8> = text.bytes().map(|byte| if byte == b'+' { b' ' } else { byte }).collect();
    Key::new(percent_decode(&spaced).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(encoding: &str, key: &str, tail: &str) -> String {
        format!(
            "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>\
             {encoding}<Contents><ETag>&quot;e&quot;</ETag><Key>{key}</Key>\
             <LastModified>1970-01-01T00:00:02.000Z</LastModified><Size>7</Size><Owner><ID>Key</ID></Owner></Contents>{tail}</ListBucketResult>"
        )
    }

    const URL: &str = "<EncodingType>url</EncodingType>";

    #[test]
    fn test_list_keys_are_decoded_only_where_they_were_encoded() {
        let of = |encoding, key| parse(page(encoding, key, "").as_bytes()).unwrap().objects[0].key.clone();
        assert_eq!(of(URL, "a+b%2Bc%25%FF%00"), Key::new(&b"a b+c%\xff\0"[..]));
        assert_eq!(of("", "a+b%2Bc"), Key::from("a+b%2Bc"));
        assert_eq!(of("", "a&lt;&#x0D;b"), Key::from("a<\rb"));
    }

    #[test]
    fn test_list_entry_has_size_version_and_time() {
        let page = parse(page(URL, "k", "<IsTruncated>false</IsTruncated>").as_bytes()).unwrap();
        let object = &page.objects[0];
        assert_eq!((object.size, object.modified_s), (7, Some(2.0)));
        assert_eq!(object.version, Some(Version("e".to_owned())));
        assert_eq!(page.next, None);
    }

    #[test]
    fn test_list_that_cannot_go_on_errs() {
        let truncated = "<IsTruncated>true</IsTruncated>";
        assert!(parse(page(URL, "k", truncated).as_bytes()).is_err());
        let next = format!("{truncated}<NextContinuationToken>t</NextContinuationToken>");
        assert_eq!(parse(page(URL, "k", &next).as_bytes()).unwrap().next.as_deref(), Some("t"));
        assert!(parse(b"<html></html>").is_err());
        assert!(parse(b"").is_err());
    }

    proptest! {
        #[test]
        fn prop_list_parse_of_any_bytes_does_not_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&body);
        }

        #[test]
        fn prop_list_parse_of_damaged_pages_does_not_panic(at in 0usize..400, byte in any::<u8>(), cut in 0usize..400) {
            let mut body = page(URL, "k%20", "<IsTruncated>true</IsTruncated>").into_bytes();
            let at = at % body.len();
            body[at] = byte;
            body.truncate(cut);
            let _ = parse(&body);
        }

        #[test]
        fn prop_list_keys_survive_url_encoding(key in proptest::collection::vec(any::<u8>(), 1..40)) {
            let text = percent_encoding::percent_encode(&key, percent_encoding::NON_ALPHANUMERIC).to_string();
            let read = parse(page(URL, &text, "").as_bytes()).unwrap();
            prop_assert_eq!(read.objects[0].key.as_bytes(), &key[..]);
        }
    }
}
