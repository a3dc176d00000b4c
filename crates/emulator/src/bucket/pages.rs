// SPDX-License-Identifier: Apache-2.0
//! Listings: converts one page of keys to a response of LIST version 1 or 2. `crate::list` computes the page.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::{Bucket, blocking};
use crate::list::{Item, Query, page};
use crate::preconditions::modified;

/// Maximum page size, as in S3.
const MAX_KEYS: i32 = 1000;

/// Owner of every object; the endpoint has only one account.
const OWNER: &str = "penstock";

/// Characters that `encoding-type=url` does not encode. A space becomes `%20`, because every client can decode that. A
/// `+` becomes `%2B`.
const KEY_CHARACTERS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b'/');

impl Bucket {
    async fn list(&self, query: Query) -> S3Result<(Vec<Item>, bool)> {
        let folder = self.folder.clone();
        blocking(move || page(&folder, &query)).await
    }

    pub(super) async fn page_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let max_keys = most(input.max_keys)?;
        // S3 treats an empty delimiter like a missing one.
        let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
        let prefix = input.prefix.clone().unwrap_or_default();
        let (after, done) = match input.continuation_token.as_deref().filter(|token| !token.is_empty()) {
            Some(token) => {
                let (is_prefix, last) = read_token(token)?;
                (last.clone(), is_prefix.then_some(last))
            }
            None => {
                let after = input.start_after.clone().unwrap_or_default();
                (after.clone(), Some(after))
            }
        };
        let query = Query { prefix, delimiter: delimiter.clone(), after, done, most: max_keys as usize };
        let (items, more) = self.list(query).await?;
        let encoding = input.encoding_type.as_ref();
        let next = items.last().filter(|_| more).map(token_of);
        let key_count = items.len() as i32;
        let (contents, prefixes) = sorted_out(items, encoding, input.fetch_owner.unwrap_or(false));
        Ok(S3Response::new(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(encoded(input.prefix.unwrap_or_default(), encoding)),
            delimiter: delimiter.map(|text| encoded(text, encoding)),
            start_after: input.start_after.map(|text| encoded(text, encoding)),
            max_keys: Some(max_keys),
            key_count: Some(key_count),
            is_truncated: Some(more),
            continuation_token: input.continuation_token,
            next_continuation_token: next,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            encoding_type: input.encoding_type,
            ..Default::default()
        }))
    }

    pub(super) async fn page_v1(&self, req: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        let input = req.input;
        self.check_name(&input.bucket)?;
        let max_keys = most(input.max_keys)?;
        // S3 treats an empty delimiter like a missing one.
        let delimiter = input.delimiter.filter(|delimiter| !delimiter.is_empty());
        let after = input.marker.clone().unwrap_or_default();
        let query = Query {
            prefix: input.prefix.clone().unwrap_or_default(),
            delimiter: delimiter.clone(),
            done: Some(after.clone()),
            after,
            most: max_keys as usize,
        };
        let (items, more) = self.list(query).await?;
        let encoding = input.encoding_type.as_ref();
        // Without a delimiter, clients continue after the last key. S3 sends this field only if the request has a
        // delimiter. Sending it without a delimiter does no harm.
        let next = items.last().filter(|_| more).map(|item| encoded(item.name().to_owned(), encoding));
        let (contents, prefixes) = sorted_out(items, encoding, true);
        Ok(S3Response::new(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(encoded(input.prefix.unwrap_or_default(), encoding)),
            marker: Some(encoded(input.marker.unwrap_or_default(), encoding)),
            delimiter: delimiter.map(|text| encoded(text, encoding)),
            max_keys: Some(max_keys),
            is_truncated: Some(more),
            next_marker: next,
            contents: Some(contents),
            common_prefixes: Some(prefixes),
            encoding_type: input.encoding_type,
            ..Default::default()
        }))
    }
}

fn encoded(text: String, encoding: Option<&EncodingType>) -> String {
    match encoding {
        Some(kind) if kind.as_str() == EncodingType::URL => utf8_percent_encode(&text, KEY_CHARACTERS).to_string(),
        _ => text,
    }
}

/// Returns the page size that the request asks for, but at most [`MAX_KEYS`].
fn most(asked: Option<i32>) -> S3Result<i32> {
    match asked.unwrap_or(MAX_KEYS) {
        asked if asked < 0 => Err(s3_error!(InvalidArgument, "max-keys must not be negative")),
        asked => Ok(asked.min(MAX_KEYS)),
    }
}

/// Splits the items of a page into objects and common prefixes, and converts both to the types of s3s.
fn sorted_out(items: Vec<Item>, encoding: Option<&EncodingType>, with_owner: bool) -> (Vec<Object>, Vec<CommonPrefix>) {
    let owner = with_owner.then(|| Owner { display_name: Some(OWNER.to_owned()), id: Some(OWNER.to_owned()) });
    let (mut objects, mut prefixes) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Item::Object { key, stamp, etag } => objects.push(Object {
                key: Some(encoded(key, encoding)),
                size: Some(stamp.size as i64),
                e_tag: Some(ETag::Strong(etag)),
                last_modified: Some(modified(stamp)),
                owner: owner.clone(),
                storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                ..Object::default()
            }),
            Item::Prefix(prefix) => prefixes.push(CommonPrefix { prefix: Some(encoded(prefix, encoding)) }),
        }
    }
    (objects, prefixes)
}

/// Creates a continuation token from the last item of the page. The token also records whether this item is a common
/// prefix.
fn token_of(item: &Item) -> String {
    let kind = if matches!(item, Item::Prefix(_)) { 'p' } else { 'k' };
    URL_SAFE_NO_PAD.encode(format!("{kind}{}", item.name()))
}

fn read_token(token: &str) -> S3Result<(bool, String)> {
    let bad = || s3_error!(InvalidArgument, "The continuation token provided is incorrect");
    let text = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(bad)?;
    let is_prefix = match text.as_bytes().first() {
        Some(b'p') => true,
        Some(b'k') => false,
        _ => return Err(bad()),
    };
    Ok((is_prefix, text[1..].to_owned()))
}
