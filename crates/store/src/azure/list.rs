// SPDX-License-Identifier: Apache-2.0
//! Lists a container with List Blobs: a flat listing in pages, in the byte order of names. Azure can start a listing
//! only at one of its own markers. A listing that starts after a key therefore also reads the pages before that key.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use http::Method;
use penstock_types::{Deadline, Error, Key, Metric, Result};

use super::{Ask, Container, md5};
use crate::page_tokens::PageTokens;
use crate::transport::{body, pair, unquoted, xml};
use crate::{ListStream, Meta, Version, http_date};

/// Maximum size of a page in bytes: 5,000 escaped names of 1,024 characters, with their properties.
const PAGE_LIMIT: usize = 64 << 20;

#[derive(Debug, Default)]
struct Page {
    blobs: Vec<Meta>,
    /// Marker of the next page; `None` after the last page.
    next: Option<String>,
}

struct Listing {
    container: Arc<Container>,
    prefix: Key,
    after: Option<Key>,
    last: Option<Key>,
    tokens: PageTokens,
    is_done: bool,
    deadline: Deadline,
}

pub(super) fn stream(
    container: Arc<Container>,
    prefix: Key,
    after: Option<Key>,
    deadline: Deadline,
) -> ListStream<'static> {
    let listing =
        Listing { container, prefix, after, last: None, tokens: PageTokens::default(), is_done: false, deadline };
    stream::try_unfold(listing, |mut listing| async move {
        if listing.is_done {
            return Ok(None);
        }
        let blobs = listing.page().await?;
        Ok(Some((stream::iter(blobs).map(Ok), listing)))
    })
    .try_flatten()
    .boxed()
}

impl Listing {
    async fn page(&mut self) -> Result<Vec<Meta>> {
        if self.prefix.as_str().is_none() {
            return Err(self.container.refused(&self.prefix, "blob names on Azure must be UTF-8"));
        }
        // XML cannot express control characters, so no blob name contains them.
        if self.prefix.as_bytes().iter().any(u8::is_ascii_control) {
            self.is_done = true;
            return Ok(Vec::new());
        }
        let mut query = vec!["restype=container".to_owned(), "comp=list".to_owned()];
        if !self.prefix.is_empty() {
            query.push(pair("prefix", self.prefix.as_bytes()));
        }
        if let Some(marker) = self.tokens.next() {
            query.push(pair("marker", marker.as_bytes()));
        }
        let ask = Ask { query: query.join("&"), ..Ask::new(Method::GET, Metric::Lists, None) };
        let answer = self.container.send(ask, self.deadline).await?;
        let place = self.container.place_of(Some(&self.prefix));
        let body = body(answer.into_body(), PAGE_LIMIT, self.deadline, &place).await?;
        let malformed = |reason: String| Error::Server { place: place.clone(), status: 200, reason };
        let page = parse(&body).map_err(|error| malformed(error.to_string()))?;
        self.is_done = !self.tokens.advance(page.next, &place)?;
        for blob in &page.blobs {
            if self.last.as_ref().is_some_and(|last| *last >= blob.key) {
                return Err(Error::Unsupported {
                    what: format!(
                        "the listing order of {} (not in byte order at `{}`, as in accounts with a hierarchical \
                         namespace)",
                        self.container.root, blob.key
                    ),
                    by: "Penstock".to_owned(),
                });
            }
            self.last = Some(blob.key.clone());
        }
        let after = self.after.clone();
        Ok(page.blobs.into_iter().filter(|blob| after.as_ref().is_none_or(|after| blob.key > *after)).collect())
    }
}

/// Fields of a blob that were parsed so far from its XML element.
#[derive(Default)]
struct Entry {
    name: Option<String>,
    size: Option<u64>,
    etag: Option<String>,
    md5: Option<String>,
    encoding: Option<String>,
    modified_s: Option<f64>,
    is_folder: bool,
}

/// Parses a page. Returns `Corrupt` if `body` is not a valid page.
fn parse(body: &[u8]) -> Result<Page> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut entry = Entry::default();
    let (mut is_list, mut next) = (false, None);
    // The page may begin with a byte order mark.
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    xml::elements(body, |path, text| {
        is_list |= path.first() == Some(&"EnumerationResults");
        match path {
            [_, "NextMarker"] => next = Some(text).filter(|marker| !marker.is_empty()),
            [_, "Blobs", "Blob"] => entries.push(std::mem::take(&mut entry)),
            [_, "Blobs", "Blob", "Name"] => entry.name = Some(text),
            [_, "Blobs", "Blob", "Properties", field] => match *field {
                "Content-Length" => entry.size = text.parse().ok(),
                "Etag" => entry.etag = Some(text),
                "Content-MD5" => entry.md5 = Some(text),
                "Content-Encoding" => entry.encoding = Some(text).filter(|name| !name.is_empty()),
                "Last-Modified" => entry.modified_s = http_date::http(&text),
                "ResourceType" => entry.is_folder = text == "directory",
                _ => {}
            },
            _ => {}
        }
    })?;
    let bad = |problem: String| Error::corrupt("the store's listing", problem);
    if !is_list {
        return Err(bad("is not an EnumerationResults document".to_owned()));
    }
    let blobs = entries
        .into_iter()
        .filter(|entry| !entry.is_folder)
        .map(|entry| {
            let name = entry.name.ok_or_else(|| bad("has a blob without a name".to_owned()))?;
            let key = Key::from(name.as_str());
            let size = entry.size.ok_or_else(|| bad(format!("has no size for `{key}`")))?;
            Ok(Meta {
                key,
                size,
                version: entry.etag.map(|etag| Version(unquoted(&etag).to_owned())),
                digests: entry.md5.as_deref().and_then(md5).into_iter().collect(),
                encoding: entry.encoding,
                modified_s: entry.modified_s,
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Page { blobs, next })
}
