// SPDX-License-Identifier: Apache-2.0
//! Lists objects in pages. A listing can start after any key.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, Method};
use penstock_types::{Deadline, Error, Key, Metric, Result};
use serde::Deserialize;

use super::{Ask, Bucket, Described};
use crate::page_tokens::PageTokens;
use crate::transport::client::Parts;
use crate::transport::{body, pair};
use crate::{ListStream, Meta};

/// Maximum size of a page in bytes: 1,000 escaped names of 1,024 bytes, with their metadata.
const PAGE_LIMIT: usize = 32 << 20;
/// Requested metadata fields; the complete metadata is five times as large.
const FIELDS: &str = "nextPageToken,items(name,size,generation,crc32c,md5Hash,contentEncoding,updated)";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    #[serde(default)]
    items: Vec<Described>,
    next_page_token: Option<String>,
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
        let objects = listing.page().await?;
        Ok(Some((stream::iter(objects).map(Ok), listing)))
    })
    .try_flatten()
    .boxed()
}

impl Listing {
    async fn page(&mut self) -> Result<Vec<Meta>> {
        if [Some(&self.prefix), self.after.as_ref()].into_iter().flatten().any(|key| key.as_str().is_none()) {
            return Err(self.bucket.refused(&self.prefix, "object names on Google must be UTF-8"));
        }
        let mut query = vec![pair("fields", FIELDS.as_bytes())];
        if !self.prefix.is_empty() {
            query.push(pair("prefix", self.prefix.as_bytes()));
        }
        // Google's start offset is inclusive, so the code below skips the key itself.
        if let Some(after) = self.after.as_ref().filter(|after| !after.is_empty()) {
            query.push(pair("startOffset", after.as_bytes()));
        }
        if let Some(token) = self.tokens.next() {
            query.push(pair("pageToken", token.as_bytes()));
        }
        let target = format!("/storage/v1/b/{}/o?{}", self.bucket.root.authority, query.join("&"));
        let ask = Ask {
            method: Method::GET,
            kind: Metric::Lists,
            key: None,
            target,
            headers: HeaderMap::new(),
            body: Parts::default(),
        };
        let answer = self.bucket.send(ask, self.deadline).await?;
        let place = self.bucket.place_of(Some(&self.prefix));
        let body = body(answer.into_body(), PAGE_LIMIT, self.deadline, &place).await?;
        let server_error = |reason: String| Error::Server { place: place.clone(), status: 200, reason };
        let page: Page =
            serde_json::from_slice(&body).map_err(|error| server_error(format!("malformed listing: {error}")))?;
        let next = page.next_page_token.filter(|token| !token.is_empty());
        self.is_done = !self.tokens.advance(next, &place)?;
        let objects = page.items.into_iter().map(Described::meta).collect::<Result<Vec<_>>>();
        let objects = objects.map_err(|error| server_error(error.to_string()))?;
        let after = self.after.as_ref();
        Ok(objects.into_iter().filter(|meta| after.is_none_or(|after| meta.key > *after)).collect())
    }
}
