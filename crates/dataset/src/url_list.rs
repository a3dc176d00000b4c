// SPDX-License-Identifier: Apache-2.0
//! URL list: reads a text file of URLs as a dataset, if the publisher's server cannot list objects.
//!
//! Each line holds one URL, and all URLs are on one web server. The size and the digests of the object (`md5:HEX`,
//! `sha256:HEX`) may follow the URL in any order. `#` starts a comment. Google's `TsvHttpData-1.0` lists are supported
//! too. Keys are relative to the longest folder that all URLs share. Owns the text format. Requests the sizes that the
//! text does not contain.

use std::io::Read;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, TryStreamExt, stream};
use penstock_store::{Meta, Store};
use penstock_types::{Algorithm, Deadline, Digest, Error, Key, Result, Scheme, Url};

use crate::key_filter::KeyFilter;
use crate::manifest::{Entry, Manifest};

/// Maximum file size, about 10^7 objects. A larger file is rejected before it is parsed.
const MAX_BYTES: u64 = 1 << 30;
/// Number of bytes that are read to recognise a URL list.
const HEAD: u64 = 64 << 10;
/// Maximum number of concurrent requests for sizes.
const AT_ONCE: usize = 64;
/// First line of Google's lists: URL, size and MD5 in base64, separated by tabs.
const TSV: &str = "TsvHttpData-1.0";

/// Object on one line of a URL list.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// Key relative to the list's folder.
    pub key: Key,
    /// Stored size in bytes, if the line contains a size.
    pub size: Option<u64>,
    /// Digests on the line.
    pub digests: Vec<Digest>,
}

/// A parsed URL list.
#[derive(Debug, Clone, PartialEq)]
pub struct UrlList {
    /// The longest folder that all URLs share.
    pub folder: Url,
    /// Objects in the order of the file.
    pub objects: Vec<Listed>,
}

/// True if the text starts like a URL list.
fn begins(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let first = lines(&text).next();
    first.is_some_and(|(_, line)| line == TSV || line.starts_with("http://") || line.starts_with("https://"))
}

/// Returns the trimmed lines with their line numbers, without empty lines and comments.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let trimmed = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    trimmed.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

impl UrlList {
    /// Reads a local URL list. Returns `None` if the URL is not that of a local file, or if the file is not a URL list.
    pub fn load(url: &Url) -> Result<Option<Self>> {
        let Some(path) = url.to_path().filter(|path| path.is_file()) else { return Ok(None) };
        let place = path.display().to_string();
        let io = |error: std::io::Error| Error::System { place: place.clone(), reason: error.to_string() };
        let mut file = std::fs::File::open(&path).map_err(io)?;
        let mut bytes = Vec::new();
        file.by_ref().take(HEAD).read_to_end(&mut bytes).map_err(io)?;
        if !begins(&bytes) {
            return Ok(None);
        }
        file.take(MAX_BYTES + 1 - bytes.len() as u64).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Error::config(place, format!("a list of URLs must have at most {MAX_BYTES} bytes")));
        }
        Self::parse(&bytes, &place).map(Some)
    }

    /// Parses a URL list. `place` names the file in errors. An error does not show the rejected line, because the line
    /// could contain a secret.
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self> {
        let bad = |line: usize, problem: &str| Error::config(format!("{place} line {line}"), problem);
        let text = std::str::from_utf8(bytes).map_err(|error| {
            bad(bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1, "must be UTF-8")
        })?;
        let (mut urls, mut objects) = (Vec::<Url>::new(), Vec::new());
        let mut is_tsv = false;
        for (number, line) in lines(text) {
            if line == TSV && urls.is_empty() {
                is_tsv = true;
                continue;
            }
            let mut words = line.split_whitespace();
            let url: Url = words
                .next()
                .unwrap_or_default()
                .parse()
                .map_err(|_| bad(number, "must begin with the URL of a web server, without a query"))?;
            if !matches!(url.scheme, Scheme::Http | Scheme::Https) {
                return Err(bad(number, "the URL must begin with http:// or https://"));
            }
            if url.key.is_empty() || url.key.as_bytes().ends_with(b"/") {
                return Err(bad(number, "the URL must name an object, not a folder"));
            }
            if urls.first().is_some_and(|first| first.scheme != url.scheme || first.authority != url.authority) {
                return Err(bad(
                    number,
                    "the server differs from that of earlier lines; all URLs of a list must be on one server",
                ));
            }
            let mut listed = Listed { key: Key::default(), size: None, digests: Vec::new() };
            for word in words {
                match fact(word, is_tsv) {
                    Some(Fact::Size(size)) if listed.size.is_none() => listed.size = Some(size),
                    Some(Fact::Digest(digest)) => listed.digests.push(digest),
                    _ => {
                        return Err(bad(number, "the URL may be followed only by a size and digests such as md5:HEX"));
                    }
                }
            }
            urls.push(url);
            objects.push(listed);
        }
        let Some(first) = urls.first() else { return Err(Error::NotFound { place: format!("any URL in {place}") }) };
        let shared = urls.iter().fold(first.key.as_bytes(), |shared, url| {
            let same = shared.iter().zip(url.key.as_bytes()).take_while(|(a, b)| a == b).count();
            &shared[..same]
        });
        let cut = shared.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let folder = first.with_key(first.key.head(cut));
        for (listed, url) in objects.iter_mut().zip(&urls) {
            listed.key = url.key.strip_prefix(&folder.key).unwrap_or_default();
        }
        let mut sorted: Vec<&Key> = objects.iter().map(|listed| &listed.key).collect();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::config(place, format!("`{}` is listed twice", pair[0]))),
            None => Ok(Self { folder, objects }),
        }
    }

    /// Returns the manifest of the selected objects. `store` is opened at the list's folder, and its keys start with
    /// `prefix`. Requests the metadata of each object whose size is unknown. Always requests the metadata of the first
    /// object, to find out what the server supports.
    pub async fn manifest(
        self,
        store: &dyn Store,
        prefix: &Key,
        select: &KeyFilter,
        deadline: Deadline,
    ) -> Result<Manifest> {
        let Self { folder, mut objects } = self;
        objects.retain(|listed| select.takes(&listed.key));
        if objects.is_empty() {
            return Err(select.none_of("any object of the list"));
        }
        let entries: Vec<Entry> = stream::iter(objects.into_iter().enumerate())
            .map(|(at, Listed { key, size, digests })| async move {
                match size {
                    Some(size) if at > 0 => Ok(Entry { digests, ..Entry::new(key, size) }),
                    _ => {
                        let meta = store.head(&prefix.join(key.as_bytes()), deadline).await?;
                        entry(key, size, digests, meta, store.root())
                    }
                }
            })
            .buffered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(Manifest::new(folder.to_string(), entries))
    }
}

/// Creates the entry of an object from its line and the server's metadata.
fn entry(key: Key, size: Option<u64>, digests: Vec<Digest>, meta: Meta, root: &Url) -> Result<Entry> {
    match size {
        Some(want) if want != meta.size => Err(Error::resized(penstock_store::place(root, &meta.key), want, meta.size)),
        _ => {
            let mut entry = Entry::of_meta(key, meta);
            entry.digests.extend(digests);
            Ok(entry)
        }
    }
}

enum Fact {
    Size(u64),
    Digest(Digest),
}

/// Parses a word that follows the URL. Returns `None` for an unknown word.
fn fact(word: &str, is_tsv: bool) -> Option<Fact> {
    if let Ok(size) = word.parse() {
        return Some(Fact::Size(size));
    }
    if is_tsv {
        let value = BASE64_STANDARD.decode(word).ok().filter(|value| value.len() == 16)?;
        return Some(Fact::Digest(Digest { algorithm: Algorithm::Md5, value }));
    }
    let digest: Digest = word.to_ascii_lowercase().parse().ok()?;
    let bytes = match digest.algorithm {
        Algorithm::Crc32 | Algorithm::Crc32c => 4,
        Algorithm::Crc64Nvme => 8,
        Algorithm::Md5 | Algorithm::Xxh3 => 16,
        Algorithm::Sha1 => 20,
        Algorithm::Sha256 => 32,
        Algorithm::Parts(..) => return None,
    };
    (digest.value.len() == bytes).then_some(Fact::Digest(digest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Result<UrlList> {
        UrlList::parse(text.as_bytes(), "urls.txt")
    }

    #[test]
    fn url_list_shares_folder_and_keeps_stated_facts() {
        let list = parsed(
            "\u{feff}# a set\r\nhttps://h:1/d/train/a%20b.gz 12 md5:000102030405060708090A0B0C0D0E0F\r\n\r\n\
             https://h:1/d/train-2/c\n",
        )
        .unwrap();
        assert_eq!(list.folder.to_string(), "https://h:1/d/");
        let keys: Vec<String> = list.objects.iter().map(|listed| listed.key.to_string()).collect();
        assert_eq!(keys, ["train/a b.gz", "train-2/c"]);
        assert_eq!((list.objects[0].size, list.objects[1].size), (Some(12), None));
        assert_eq!(list.objects[0].digests[0].to_string(), "md5:000102030405060708090a0b0c0d0e0f");
        let one = parsed("http://h/d/x").unwrap();
        assert_eq!((one.folder.to_string(), one.objects[0].key.to_string()), ("http://h/d/".into(), "x".into()));
    }

    #[test]
    fn list_in_googles_format_has_sizes_and_md5() {
        let list = parsed("TsvHttpData-1.0\nhttp://h/x\t3\tkAFQmDzST7DWlj99KOF/cg==\n").unwrap();
        assert_eq!(list.objects[0].size, Some(3));
        assert_eq!(list.objects[0].digests[0].to_string(), "md5:900150983cd24fb0d6963f7d28e17f72");
    }

    #[test]
    fn url_list_invalid_line_is_refused_without_its_text() {
        for (text, line) in [
            ("http://h/a\nhttp://h/b?sig=secret", "line 2"),
            ("http://h/a\nhttp://other/secret", "line 2"),
            ("http://h/a\nhttps://h/secret", "line 2"),
            ("http://h/a\ns3://b/secret", "line 2"),
            ("http://h/secret/", "line 1"),
            ("http://h/a 1 2", "line 1"),
            ("http://h/a md5:secret", "line 1"),
            ("http://h/a md5:00", "line 1"),
            ("http://h/a secret.bin", "line 1"),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(line) && !error.contains("secret"), "{error}");
        }
        assert!(parsed("http://h/a\nhttp://h/%61").unwrap_err().to_string().contains("twice"));
        assert_eq!(parsed("# nothing").unwrap_err().code(), "not-found");
        assert!(UrlList::parse(b"http://h/a\n\xff", "p").unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn list_is_known_by_its_first_line() {
        for (text, is_list) in [
            ("# c\n\nhttps://h/x", true),
            ("TsvHttpData-1.0\nhttp://h/x", true),
            ("see http://h/x", false),
            ("", false),
            ("{\"penstock_manifest\": 1}", false),
        ] {
            assert_eq!(begins(text.as_bytes()), is_list, "{text}");
        }
    }

    proptest! {
        #[test]
        fn prop_parse_of_any_text_does_not_panic(text in "(http://h/[a-z/%?#0-9]{0,9}[ \t]?[a-z0-9:+/=]{0,9}\n?|\\PC{0,9}\n){0,6}") {
            let _ = parsed(&text);
        }
    }
}
