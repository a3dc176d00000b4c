// SPDX-License-Identifier: Apache-2.0
//! Object tags: parses the `x-amz-tagging` header of a write, and implements GET, PUT and DELETE of `?tagging`.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

use super::{Bucket, blocking};
use crate::preconditions::no_such_key;

/// Tags: a map from key to value.
pub(super) type Tags = BTreeMap<String, String>;

const MAX_TAGS: usize = 10;
/// Maximum length of a tag's key, in Unicode characters.
const MAX_TAG_KEY: usize = 128;
/// Maximum length of a tag's value, in Unicode characters.
const MAX_TAG_VALUE: usize = 256;

/// Parses an `x-amz-tagging` header: `a=1&b=2`, percent-encoded.
pub(super) fn parse_tags(text: &str) -> S3Result<Tags> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8().map(Into::into).ok();
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        decode(key).zip(decode(value)).ok_or_else(|| invalid("a tag is not UTF-8"))
    });
    collect_tags(pairs)
}

/// Collects key-value pairs, and checks them against S3's limits.
fn collect_tags(pairs: impl Iterator<Item = S3Result<(String, String)>>) -> S3Result<Tags> {
    let mut tags = Tags::new();
    for pair in pairs {
        let (key, value) = pair?;
        if !(1..=MAX_TAG_KEY).contains(&key.chars().count()) {
            return Err(invalid("a tag's key must have 1 to 128 characters"));
        }
        if value.chars().count() > MAX_TAG_VALUE {
            return Err(invalid("a tag's value must have at most 256 characters"));
        }
        if tags.insert(key, value).is_some() {
            return Err(invalid("two tags have the same key"));
        }
    }
    if tags.len() > MAX_TAGS {
        return Err(invalid("an object can have at most 10 tags"));
    }
    Ok(tags)
}

fn invalid(message: &'static str) -> S3Error {
    S3Error::with_message(S3ErrorCode::InvalidTag, message)
}

impl Bucket {
    pub(super) async fn put_tags(
        &self,
        req: S3Request<PutObjectTaggingInput>,
    ) -> S3Result<S3Response<PutObjectTaggingOutput>> {
        self.check_name(&req.input.bucket)?;
        let pairs = req.input.tagging.tag_set.into_iter();
        let pairs = pairs.map(|tag| Ok((tag.key.unwrap_or_default(), tag.value.unwrap_or_default())));
        self.replace_tags(req.input.key, collect_tags(pairs)?).await?;
        Ok(S3Response::new(PutObjectTaggingOutput::default()))
    }

    pub(super) async fn delete_tags(
        &self,
        req: S3Request<DeleteObjectTaggingInput>,
    ) -> S3Result<S3Response<DeleteObjectTaggingOutput>> {
        self.check_name(&req.input.bucket)?;
        self.replace_tags(req.input.key, Tags::new()).await?;
        let mut response = S3Response::new(DeleteObjectTaggingOutput::default());
        response.status = Some(http::StatusCode::NO_CONTENT);
        Ok(response)
    }

    pub(super) async fn get_tags(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        self.check_name(&req.input.bucket)?;
        let (folder, key) = (self.folder.clone(), req.input.key);
        let found = blocking(move || folder.find(&key)).await?.ok_or_else(no_such_key)?;
        let tags = found.fact.iter().flat_map(|fact| &fact.tags);
        let tag_set = tags.map(|(key, value)| Tag { key: Some(key.clone()), value: Some(value.clone()) }).collect();
        Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id: None }))
    }

    async fn replace_tags(&self, key: String, tags: Tags) -> S3Result<()> {
        let folder = self.folder.clone();
        let found = blocking(move || folder.amend(&key, |fact| fact.tags = tags)).await?;
        if found { Ok(()) } else { Err(no_such_key()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_tags_decodes_pairs_and_allows_a_missing_value() {
        let tags = parse_tags("foo=bar&bar&a%20b=%C3%BC+x").unwrap();
        let want = [("a b", "ü x"), ("bar", ""), ("foo", "bar")];
        assert_eq!(tags, want.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn parse_tags_refuses_what_exceeds_the_limits() {
        let eleven = (0..11).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join("&");
        let (long_key, long_value) = (format!("{}=v", "k".repeat(129)), format!("k={}", "v".repeat(257)));
        for text in [&*eleven, &*long_key, &*long_value, "=v", "k=1&k=2", "k=%FF"] {
            assert_eq!(parse_tags(text).unwrap_err().code(), &S3ErrorCode::InvalidTag, "{text}");
        }
    }
}
