// SPDX-License-Identifier: Apache-2.0
//! Lists objects from the index pages of Apache, nginx, lighttpd and Python's server. Follows the links that lead below
//! each page, one folder at a time. Pages are untrusted. Links that lead out of the prefix are ignored. The depth, the
//! number of pages and the size of a page are limited.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, Method};
use penstock_types::{Deadline, Error, Key, Metric, Result};
use percent_encoding::percent_decode;

use super::Site;
use crate::ListStream;
use crate::transport::{Remote, body, text};

/// Maximum size of an index page in bytes: 400,000 names of 100 bytes, each contained twice, with markup.
const PAGE_LIMIT: usize = 128 << 20;
/// Maximum folder depth. If links form a cycle, the listing reaches this limit or `PAGES`.
const DEPTH: usize = 32;
/// Maximum number of pages of one listing.
const PAGES: u32 = 100_000;
/// Maximum number of concurrent HEAD requests. They request sizes and versions, which index pages do not contain.
const AT_ONCE: usize = 16;

struct Walk {
    site: Arc<Site>,
    prefix: Key,
    after: Option<Key>,
    /// Folders and objects that remain to be visited, in reverse order. Keys of folders end in `/`.
    open: Vec<Key>,
    pages: u32,
    deadline: Deadline,
}

pub(super) fn stream(site: Arc<Site>, prefix: Key, after: Option<Key>, deadline: Deadline) -> ListStream<'static> {
    let cut = prefix.as_bytes().iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    let open = vec![Key::new(prefix.as_bytes()[..cut].to_vec())];
    let walk = Walk { site: site.clone(), prefix, after, open, pages: 0, deadline };
    stream::try_unfold(walk, |mut walk| async move { Ok(walk.next().await?.map(|key| (key, walk))) })
        .map_ok(move |key| {
            let site = site.clone();
            async move {
                match site.head(&key, deadline).await {
                    Ok(meta) => Ok(Some(meta)),
                    // The object was deleted after the server generated the page, or it never existed.
                    Err(Error::NotFound { .. }) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        })
        .try_buffered(AT_ONCE)
        .try_filter_map(|meta| std::future::ready(Ok(meta)))
        .boxed()
}

impl Walk {
    /// Returns the next object in the byte order of keys.
    async fn next(&mut self) -> Result<Option<Key>> {
        while let Some(key) = self.open.pop() {
            if !key.is_empty() && !key.as_bytes().ends_with(b"/") {
                return Ok(Some(key));
            }
            let mut found = self.page(&key).await?;
            found.retain(|key| self.is_wanted(key));
            found.reverse();
            self.open.append(&mut found);
        }
        Ok(None)
    }

    fn is_wanted(&self, key: &Key) -> bool {
        let (bytes, prefix) = (key.as_bytes(), self.prefix.as_bytes());
        let is_folder = bytes.ends_with(b"/");
        let is_under = bytes.starts_with(prefix) || (is_folder && prefix.starts_with(bytes));
        let is_after =
            self.after.as_ref().is_none_or(|after| key > after || (is_folder && after.as_bytes().starts_with(bytes)));
        is_under && is_after
    }

    /// Returns the keys on the page of a folder, sorted. Returns no keys if the folder does not exist.
    async fn page(&mut self, folder: &Key) -> Result<Vec<Key>> {
        let place = self.site.place(folder);
        let bad = |problem: String| Error::Unsupported { what: format!("a listing of {place}"), by: problem };
        self.pages += 1;
        if self.pages > PAGES || folder.as_bytes().iter().filter(|byte| **byte == b'/').count() > DEPTH {
            let what = format!("a listing of {place} with more than {DEPTH} folder levels or {PAGES} index pages");
            return Err(Error::Unsupported { what, by: "Penstock".to_owned() });
        }
        let answer = self.site.send(&Method::GET, Metric::Lists, folder, HeaderMap::new(), self.deadline).await;
        let answer = match answer {
            // No page contains a key with `..`, so the listing of such a folder is empty.
            Err(Error::NotFound { .. } | Error::KeyRefused { .. }) => return Ok(Vec::new()),
            Err(Error::Denied { .. }) => {
                return Err(bad("its server, which denies access to its index page".to_owned()));
            }
            answer => answer?,
        };
        let (head, page) = answer.into_parts();
        let kind = text(&head.headers, "content-type").unwrap_or_default().to_ascii_lowercase();
        if !kind.starts_with("text/html") && !kind.starts_with("application/xhtml") {
            return Err(bad("its server, which returns no index page".to_owned()));
        }
        let page = body(page, PAGE_LIMIT, self.deadline, &place).await?;
        Ok(links(&page, self.site.shown(), folder))
    }
}

/// Returns the keys below `folder` to which its page links, in byte order. Keys of folders end in `/`. Keys below a
/// linked folder are omitted, because the page of that folder lists them.
fn links(page: &[u8], origin: &str, folder: &Key) -> Vec<Key> {
    let mut keys: Vec<Key> = hrefs(page).filter_map(|href| target(&href, origin, folder)).collect();
    keys.sort();
    let mut kept: Vec<Key> = Vec::with_capacity(keys.len());
    for key in keys {
        let is_seen = kept.last().is_some_and(|last| {
            *last == key || (last.as_bytes().ends_with(b"/") && key.as_bytes().starts_with(last.as_bytes()))
        });
        if !is_seen {
            kept.push(key);
        }
    }
    kept
}

/// Returns the key to which a link on the page of `folder` refers; `None` for links that lead elsewhere.
fn target(href: &[u8], origin: &str, folder: &Key) -> Option<Key> {
    let href = href.split(|byte| *byte == b'#').next()?;
    // Ignore links with a query, because they sort the page or lead to generated pages.
    if href.is_empty() || href.contains(&b'?') {
        return None;
    }
    let path = match href.strip_prefix(origin.as_bytes()) {
        Some(path) if path.starts_with(b"/") => path,
        Some(_) => return None,
        None if href.split(|byte| *byte == b'/').next()?.contains(&b':') || href.starts_with(b"//") => return None,
        None => href,
    };
    let key = match path.strip_prefix(b"/") {
        Some(absolute) => Key::new(percent_decode(absolute).collect::<Vec<u8>>()),
        None => {
            let relative = path.strip_prefix(b"./").unwrap_or(path);
            folder.join(&percent_decode(relative).collect::<Vec<u8>>())
        }
    };
    let below = key.strip_prefix(folder)?;
    let below = below.as_bytes().strip_suffix(b"/").unwrap_or(below.as_bytes());
    let is_plain = |part: &[u8]| !part.is_empty() && part != b"." && part != b"..";
    below.split(|byte| *byte == b'/').all(is_plain).then_some(key)
}

/// Returns the `href` of each `<a>` element, with character references resolved.
fn hrefs(page: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    let mut rest = page;
    std::iter::from_fn(move || {
        loop {
            let at = rest.iter().position(|byte| *byte == b'<')?;
            rest = &rest[at + 1..];
            let [b'a' | b'A', space, ..] = rest else { continue };
            if !space.is_ascii_whitespace() {
                continue;
            }
            let (tag, after) = tag(&rest[1..]);
            rest = after;
            if let Some(href) = attribute(tag, b"href") {
                return Some(unescaped(href));
            }
        }
    })
}

/// Splits `bytes` at the tag's closing `>`. A `>` inside quotes does not end the tag.
fn tag(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut quote = None;
    for (at, &byte) in bytes.iter().enumerate() {
        match (quote, byte) {
            (None, b'>') => return (&bytes[..at], &bytes[at + 1..]),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if byte == open => quote = None,
            _ => {}
        }
    }
    (&bytes[..0], &bytes[..0])
}

/// Returns the value of an attribute.
fn attribute<'a>(mut tag: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    loop {
        tag = tag.trim_ascii_start();
        let end = tag.iter().position(|byte| *byte == b'=' || byte.is_ascii_whitespace()).unwrap_or(tag.len());
        if end == 0 && tag.is_empty() {
            return None;
        }
        let found = &tag[..end];
        tag = tag[end..].trim_ascii_start();
        let Some(rest) = tag.strip_prefix(b"=") else { continue };
        let rest = rest.trim_ascii_start();
        let (value, after) = match rest.first() {
            Some(quote @ (b'"' | b'\'')) => {
                let end = rest[1..].iter().position(|byte| byte == quote)?;
                (&rest[1..=end], &rest[end + 2..])
            }
            _ => rest.split_at(rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len())),
        };
        if found.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        tag = after;
    }
}

/// Resolves HTML character references: numeric ones, and the five named ones that index pages contain.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'&') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let end = rest.iter().take(12).position(|byte| *byte == b';');
        match end.and_then(|end| Some((reference(&rest[1..end])?, end))) {
            Some((c, end)) => {
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[end + 1..];
            }
            None => {
                out.push(b'&');
                rest = &rest[1..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

fn reference(name: &[u8]) -> Option<char> {
    match name {
        b"amp" => Some('&'),
        b"lt" => Some('<'),
        b"gt" => Some('>'),
        b"quot" => Some('"'),
        b"apos" => Some('\''),
        [b'#', b'x' | b'X', hex @ ..] => char::from_u32(u32::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?),
        [b'#', decimal @ ..] => char::from_u32(std::str::from_utf8(decimal).ok()?.parse().ok()?),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ORIGIN: &str = "http://h:80";

    fn of(page: &str) -> Vec<String> {
        links(page.as_bytes(), ORIGIN, &Key::from("d/e/")).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn test_index_pages_of_three_servers_are_read() {
        let apache = r#"<table><tr><th><a href="?C=N;O=D">Name</a></th></tr><tr><td><a href="/d/">Parent Directory</a></td></tr>
            <tr><td><img src="/icons/x.gif" alt="[ ]"></td><td><a href="a%20b.gz">a b.gz</a></td><td align="right">1.2K</td></tr>
            <tr><td><A HREF='sub/'>sub/</A></td></tr></table>"#;
        assert_eq!(of(apache), ["d/e/a b.gz", "d/e/sub/"]);
        let nginx = "<h1>Index of /d/e/</h1><hr><pre><a href=\"../\">../</a>\n<a href=\"x.tfrecord\">x.tfrecord</a> 1 2\n</pre>";
        assert_eq!(of(nginx), ["d/e/x.tfrecord"]);
        let python = "<ul><li><a href=\"q%3Fm%23h\">q?m#h</a></li><li><a href=\"a%26b\">a&amp;b</a></li></ul>";
        assert_eq!(of(python), ["d/e/a&b", "d/e/q?m#h"]);
    }

    #[test]
    fn test_index_links_that_lead_elsewhere_are_not_followed() {
        for href in [
            "../x",
            "/x",
            "/d/ex",
            "..",
            "./",
            ".",
            "",
            "#top",
            "x?y",
            "//h:80/d/e/x",
            "https://h:80/d/e/x",
            "http://h:80.evil/d/e/x",
            "http://other/d/e/x",
            "mailto:x@y",
            "javascript:x",
            "%2e%2e/x",
            "a/../../x",
            "a/%2E%2E/x",
            "a//b",
            "/d/e/",
            "%2E",
        ] {
            assert_eq!(of(&format!("<a href=\"{href}\">")), [""; 0], "{href}");
        }
        for (href, want) in [
            ("http://h:80/d/e/x", "d/e/x"),
            ("/d/e/x/", "d/e/x/"),
            ("./x", "d/e/x"),
            ("x/y", "d/e/x/y"),
            ("...", "d/e/..."),
        ] {
            assert_eq!(of(&format!("<a class=x  href = \"{href}\" >")), [want], "{href}");
        }
    }

    #[test]
    fn test_index_order_is_that_of_bytes_and_folders_swallow_their_contents() {
        let page: String = ["a0", "a/", "a.x", "a-", "a/x", "b/c", "a-", "b/c/"]
            .iter()
            .map(|name| format!("<a href='{name}'>{name}</a>"))
            .collect();
        assert_eq!(of(&page), ["d/e/a-", "d/e/a.x", "d/e/a/", "d/e/a0", "d/e/b/c", "d/e/b/c/"]);
    }

    proptest! {
        #[test]
        fn prop_index_of_any_bytes_does_not_panic(page in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = links(&page, ORIGIN, &Key::from("d/"));
        }

        #[test]
        fn prop_index_of_anything_like_html_stays_below(page in "(<[aA] (x=)?href=[\"']?|[./&;#%2eEfF?a:\"'>]){0,40}") {
            for key in links(page.as_bytes(), ORIGIN, &Key::from("d/e/")) {
                let below = key.strip_prefix(&Key::from("d/e/")).unwrap();
                prop_assert!(!below.is_empty());
                prop_assert!(below.as_bytes().split(|byte| *byte == b'/').all(|part| part != b".."));
            }
        }
    }
}
