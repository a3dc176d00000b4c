// SPDX-License-Identifier: Apache-2.0
//! Lists the files of a dataset page by page, through the Hub's `tree` endpoint. The pages of a commit never change. A
//! listing that was interrupted or throttled therefore continues after the last page that it has read.

use std::mem::take;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, Method, Uri};
use penstock_types::{Deadline, Error, Key, Metric, Result, lock};
use serde::Deserialize;

use super::{Dataset, meta_of};
use crate::page_tokens::PageTokens;
use crate::transport::{Remote, body, text};
use crate::{ListStream, Meta, Version};

/// Maximum size of a page in bytes: 1,000 entries.
const PAGE_LIMIT: usize = 32 << 20;

/// Entry of a tree: a file or a folder.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: Option<String>,
    lfs: Option<Lfs>,
}

/// A file that is stored outside of Git.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Pages of a listing that have been read so far.
#[derive(Default)]
pub(super) struct Listed {
    found: Vec<Meta>,
    tokens: PageTokens,
}

/// Attempt to list a folder. If an error or a timeout ends the attempt, the next attempt continues after the pages that
/// were read. Concurrent attempts do not share pages.
struct Attempt<'a> {
    dataset: &'a Dataset,
    folder: &'a Key,
    listed: Listed,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.listed.tokens.next().is_some() {
            lock(&self.dataset.listed).insert(self.folder.clone(), take(&mut self.listed));
        }
    }
}

/// Lists the files below `prefix`, sorted by the bytes of their names.
pub(super) fn stream(
    dataset: Arc<Dataset>,
    prefix: Key,
    after: Option<Key>,
    deadline: Deadline,
) -> ListStream<'static> {
    stream::once(async move {
        let cut = prefix.as_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let mut found = dataset.files(&prefix.head(cut), deadline).await?;
        found.retain(|meta| {
            meta.key.as_bytes().starts_with(prefix.as_bytes()) && after.as_ref().is_none_or(|after| meta.key > *after)
        });
        // Sort the files, because the Hub does not document the order of its pages.
        found.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        found.dedup_by(|a, b| a.key == b.key);
        Ok::<_, Error>(stream::iter(found).map(Ok::<_, Error>))
    })
    .try_flatten()
    .boxed()
}

impl Dataset {
    /// Returns the files in a folder and its subfolders. Returns no files if the folder does not exist.
    async fn files(&self, folder: &Key, deadline: Deadline) -> Result<Vec<Meta>> {
        let listed = lock(&self.listed).remove(folder).unwrap_or_default();
        let mut attempt = Attempt { dataset: self, folder, listed };
        let found = self.pages(folder, &mut attempt.listed, deadline).await;
        if found.as_ref().is_err_and(|error| !error.retryable()) {
            attempt.listed = Listed::default();
        }
        found
    }

    /// Reads the pages of a folder that `listed` does not contain yet. Returns all files.
    async fn pages(&self, folder: &Key, listed: &mut Listed, deadline: Deadline) -> Result<Vec<Meta>> {
        let commit = self.commit(deadline).await?;
        let place = self.place(folder);
        let base = format!("{}/api/datasets/{}/tree/{commit}", self.shown, self.name);
        let folder_key = (!folder.is_empty()).then_some(folder.as_bytes());
        loop {
            let next = listed.tokens.next();
            let is_first = next.is_none();
            let uri: Uri = match next {
                // Use only the path and the query of the link, so that no other host receives the token.
                Some(path) => format!("{}{path}", self.shown).parse().map_err(|_| odd(&place, "an invalid link"))?,
                None => crate::transport::uri(&base, folder_key, "recursive=true&expand=false")?,
            };
            let headers = HeaderMap::new();
            let sent = self.send(&Method::GET, Metric::Lists, (uri, &place), &headers, false, deadline).await;
            let answer = match sent {
                Ok(sent) => sent.response,
                // The folder is missing. If the commit were missing, the error would name the revision instead.
                Err(Error::NotFound { place: missing }) if is_first && missing == place => return Ok(Vec::new()),
                Err(error) => return Err(error),
            };
            let (head, page) = answer.into_parts();
            let page = body(page, PAGE_LIMIT, deadline, &place).await?;
            let page: Vec<Entry> =
                serde_json::from_slice(&page).map_err(|error| odd(&place, &format!("a malformed page ({error})")))?;
            let link = text(&head.headers, "link").and_then(next_of);
            let has_more = listed.tokens.advance(link, &place).map_err(|_| odd(&place, "pages that repeat"))?;
            listed.found.extend(page.into_iter().filter(|entry| entry.kind == "file").map(Entry::meta));
            if !has_more {
                return Ok(take(&mut listed.found));
            }
        }
    }
}

/// Error for an invalid page. A retry would return the same page, because a commit does not change.
fn odd(place: &str, what: &str) -> Error {
    Error::System { place: place.to_owned(), reason: format!("the listing has {what}") }
}

impl Entry {
    fn meta(self) -> Meta {
        let (version, size) = match self.lfs {
            Some(Lfs { oid, size }) => (Some(oid), size),
            None => (self.oid, self.size),
        };
        // Older versions of the Hub return `sha256:` before the hash.
        let version = version.map(|oid| Version(oid.strip_prefix("sha256:").unwrap_or(&oid).to_owned()));
        meta_of(Key::from(self.path.as_str()), size, version)
    }
}

/// Returns the path and query of the next page from a Link header: `<https://HOST/api/…?cursor=…>; rel="next"`.
fn next_of(link: &str) -> Option<String> {
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let url = next.trim().strip_prefix('<')?.split('>').next()?;
    let uri: Uri = url.parse().ok()?;
    Some(uri.path_and_query()?.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_hub_next_page_is_the_path_of_its_link() {
        let link = "<https://other.example/api/datasets/o/n/tree/c?recursive=true&cursor=Zm9v%3D>; rel=\"next\"";
        assert_eq!(next_of(link).as_deref(), Some("/api/datasets/o/n/tree/c?recursive=true&cursor=Zm9v%3D"));
        assert_eq!(next_of("<https://h/x>; rel=\"prev\""), None);
        assert_eq!(next_of("nonsense; rel=\"next\""), None);
    }

    #[test]
    fn test_hub_entry_of_lfs_has_its_sha256() {
        let text = r#"{"type":"file","oid":"a1","size":134,"path":"d/x.parquet","lfs":{"oid":"OID","size":9,"pointerSize":134}}"#;
        let entry: Entry = serde_json::from_str(&text.replace("OID", &"ab".repeat(32))).unwrap();
        let meta = entry.meta();
        assert_eq!((meta.size, meta.digests.len()), (9, 1));
        let small: Entry = serde_json::from_str(r#"{"type":"file","oid":"a1","size":7,"path":"r"}"#).unwrap();
        assert_eq!(small.meta().version, Some(Version("a1".to_owned())));
    }
}
