// SPDX-License-Identifier: Apache-2.0
//! URLs and keys of objects. Keys are bytes, because a store may contain any bytes in a key. They are untrusted.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::{Error, Result};

/// Kind of store, from the scheme of a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// A local folder.
    File,
    /// In-process memory.
    Memory,
    /// S3 and compatible stores.
    S3,
    /// Azure Blob Storage.
    Azure,
    /// Google Cloud Storage.
    Gcs,
    /// Plain web server.
    Http,
    /// Plain web server with TLS.
    Https,
    /// HDFS.
    Hdfs,
}

impl Scheme {
    const ALL: [Self; 8] =
        [Self::File, Self::Memory, Self::S3, Self::Azure, Self::Gcs, Self::Http, Self::Https, Self::Hdfs];

    /// Name of the scheme, as written before `://`.
    pub fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Memory => "memory",
            Self::S3 => "s3",
            Self::Azure => "az",
            Self::Gcs => "gs",
            Self::Http => "http",
            Self::Https => "https",
            Self::Hdfs => "hdfs",
        }
    }
}

/// Key of an object below its store's root. A key consists of bytes: it is not a path and not necessarily UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key(Bytes);

impl Key {
    /// Creates a key from bytes.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns true for the empty key, which is the root.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the key with `tail` appended byte for byte; no separator is added.
    pub fn join(&self, tail: &[u8]) -> Self {
        let mut bytes = self.0.to_vec();
        bytes.extend_from_slice(tail);
        Self(bytes.into())
    }

    /// Returns the key as a folder prefix: it ends in `/` unless it is empty, so that `a` does not match `ab`.
    pub fn as_folder(&self) -> Self {
        if self.is_empty() || self.0.ends_with(b"/") { self.clone() } else { self.join(b"/") }
    }

    /// Returns the part of the key after `prefix`; `None` if the key does not begin with it.
    pub fn strip_prefix(&self, prefix: &Key) -> Option<Key> {
        self.0.starts_with(&prefix.0).then(|| Self(self.0.slice(prefix.0.len()..)))
    }

    /// Returns the first `len` bytes of the key without copying.
    pub fn head(&self, len: usize) -> Self {
        Self(self.0.slice(..len.min(self.0.len())))
    }

    /// Returns the key as text if it is valid UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

/// Formats the key with control and non-UTF-8 bytes escaped, so that a hostile key cannot manipulate a terminal.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
            }
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// URL of a store with a key or key prefix in it: `s3://bucket/key`, `file:///folder/key`, or a plain path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    /// Kind of store.
    pub scheme: Scheme,
    /// Bucket, container or host. Empty for `file`, and for `hdfs` if the Hadoop configuration's default is used.
    pub authority: String,
    /// Key, without any escaping. For `file`, it is the path without its leading `/`.
    pub key: Key,
}

impl Url {
    /// Returns a URL of the same store with another key.
    pub fn with_key(&self, key: Key) -> Self {
        Self { key, ..self.clone() }
    }

    /// Returns the same URL with its key as a folder prefix.
    pub fn as_folder(&self) -> Self {
        self.with_key(self.key.as_folder())
    }

    /// Returns the local path of a `file` URL.
    pub fn to_path(&self) -> Option<std::path::PathBuf> {
        use std::os::unix::ffi::OsStrExt;
        (self.scheme == Scheme::File).then(|| {
            let mut bytes = b"/".to_vec();
            bytes.extend_from_slice(self.key.as_bytes());
            std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
        })
    }

    /// Returns the `file` URL of an absolute path.
    pub fn from_path(path: &std::path::Path) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let bytes = path.as_os_str().as_bytes();
        let Some(tail) = bytes.strip_prefix(b"/") else {
            return Err(Error::config("path", format!("must be absolute (got `{}`)", path.display())));
        };
        Ok(Self { scheme: Scheme::File, authority: String::new(), key: Key::new(tail.to_vec()) })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/", self.scheme.name(), self.authority)?;
        match self.scheme {
            Scheme::Http | Scheme::Https => self.key.as_bytes().iter().try_for_each(|&byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                    write!(f, "{}", char::from(byte))
                }
                _ => write!(f, "%{byte:02X}"),
            }),
            _ => write!(f, "{}", self.key),
        }
    }
}

/// Schemes that other programs (Hadoop, gcsfs, adlfs) use for the supported stores.
const SYNONYMS: [(&str, &str); 4] = [("s3a", "s3"), ("s3n", "s3"), ("gcs", "gs"), ("azure", "az")];

/// Parses a URL. Text is taken literally, not percent-decoded, because keys may contain `%` and `+`. Only URLs of web
/// servers are percent-decoded, as in browsers; their queries are rejected, because they are signatures or parameters
/// of generated content. A text without a scheme must be an absolute path. The caller resolves relative paths, because
/// it knows the working directory.
impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((name, rest)) = text.split_once("://") else {
            return Self::from_path(std::path::Path::new(text));
        };
        let usual = SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name, |(_, usual)| usual);
        if name == "hf" {
            return Err(Error::Unsupported { what: Error::HUB.to_owned(), by: "penstock".to_owned() });
        }
        let Some(scheme) = Scheme::ALL.into_iter().find(|scheme| scheme.name() == usual) else {
            return Err(Error::config(
                "url",
                format!(
                    "`{name}://` is not one of {}",
                    Scheme::ALL.map(|scheme| format!("{}://", scheme.name())).join(", ")
                ),
            ));
        };
        if scheme == Scheme::File {
            // `file://host/path` is rejected; `file:///path` and `file://localhost/path` are local.
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            return Self::from_path(std::path::Path::new(path));
        }
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        // `hdfs:///path` refers to the default file system of the Hadoop configuration.
        if authority.is_empty() && scheme != Scheme::Hdfs {
            return Err(Error::config("url", format!("{name}:// requires a bucket name")));
        }
        if matches!(scheme, Scheme::S3 | Scheme::Azure | Scheme::Gcs) {
            refuse_secrets(authority, key)?;
        }
        let key = match scheme {
            Scheme::Http | Scheme::Https if rest.contains(['?', '#', '@']) => web_key(authority, key)?,
            Scheme::Http | Scheme::Https => percent_decoded(key),
            _ => Key::from(key),
        };
        Ok(Self { scheme, authority: authority.to_owned(), key })
    }
}

/// Rejects a bucket URL that contains credentials. The error does not contain the URL, because errors appear in logs.
fn refuse_secrets(authority: &str, key: &str) -> Result<()> {
    let bad = |problem: &str| Err(Error::config("url", problem));
    // A secret may contain a `/`, which then ends the authority. The `:` before the secret remains in the authority,
    // and no bucket name contains a `:`.
    if authority.contains(['@', ':']) {
        return bad(
            "the URL contains credentials or a port; set credentials by environment variables, files or a login",
        );
    }
    let query = key.rsplit_once('?').map(|(_, query)| query.to_ascii_lowercase()).unwrap_or_default();
    let is_signature = |name: &str| {
        matches!(name, "sig" | "signature" | "x-amz-signature" | "x-goog-signature" | "x-amz-security-token")
    };
    if query.split('&').filter_map(|pair| pair.split_once('=')).any(|(name, _)| is_signature(name)) {
        return bad("the URL is signed; put a SAS in AZURE_STORAGE_SAS_TOKEN (other signatures are not supported)");
    }
    Ok(())
}

/// Parses the key of a web URL. Rejects a URL with a query, a fragment or a password. The error does not contain the
/// URL, because these parts may be secret.
fn web_key(authority: &str, key: &str) -> Result<Key> {
    let bad = |problem: &str| Err(Error::config("url", problem));
    if authority.contains('@') {
        return bad("the URL contains a user name or a password, which Penstock does not send to web servers");
    }
    if authority.contains(['?', '#']) || key.contains(['?', '#']) {
        return bad(
            "the URL contains a query or a fragment; write a `?` in a name as %3F (signed URLs are not supported)",
        );
    }
    Ok(percent_decoded(key))
}

/// Decodes percent-encoded bytes such as `%2F`. Any other `%` is taken literally.
fn percent_decoded(text: &str) -> Key {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    Key::new(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_text_round_trips() {
        for text in ["s3://b/k/with space+and%20", "file:///data/x", "memory://m/", "az://c/a//b"] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), text);
        }
        assert_eq!("/data/x".parse::<Url>().unwrap().to_string(), "file:///data/x");
        for (text, ours) in [("s3a://b/k", "s3://b/k"), ("gcs://b/k", "gs://b/k"), ("azure://c/k", "az://c/k")] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), ours);
        }
        assert!("ftp://x/y".parse::<Url>().is_err());
        let error = "hf://datasets/a/b".parse::<Url>().unwrap_err();
        assert_eq!(error.code(), "unsupported");
        assert!(error.hint().unwrap().contains("huggingface.co/datasets"));
        assert!("s3:///k".parse::<Url>().is_err());
    }

    #[test]
    fn web_url_is_percent_encoded_in_text_and_bytes_within() {
        let url: Url = "https://h:8/a%20b/%ff+c%".parse().unwrap();
        assert_eq!(url.key.as_bytes(), b"a b/\xff+c%");
        assert_eq!(url.to_string(), "https://h:8/a%20b/%FF%2Bc%25");
        assert_eq!(url.to_string().parse::<Url>().unwrap(), url);
        for text in ["http://h/k?sig=secret", "http://h/k#secret", "http://u:secret@h/k", "http://h?secret"] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert_eq!("http://h/mail@home".parse::<Url>().unwrap().key, Key::from("mail@home"));
    }

    #[test]
    fn bucket_url_with_credentials_is_refused_without_showing_them() {
        for text in [
            "s3://AKIA:secret@bucket/k",
            "gs://secret@bucket",
            "s3://AKIA:secret/with/slash@bucket/k",
            "az://u:secret@box/k",
            "az://box/k?sv=1&sig=secret",
            "s3://b/k?X-Amz-Credential=x&X-Amz-Signature=secret",
            "s3:///secret",
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.code() == "config" && !error.to_string().contains("secret"), "{error}");
        }
        for text in ["s3://b/mail@home", "s3://b/what?", "s3://b/a?b=c", "az://b/sig=x"] {
            assert_eq!(text.parse::<Url>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn key_print_escapes_what_could_draw() {
        assert_eq!(Key::new(&b"a\x1b[2J\xffb"[..]).to_string(), "a\\u{1b}[2J\\xffb");
    }

    #[test]
    fn folder_does_not_match_its_longer_neighbour() {
        let url: Url = "s3://b/a".parse().unwrap();
        assert!(Key::from("ab/x").strip_prefix(&url.as_folder().key).is_none());
        assert_eq!(Key::from("a/x").strip_prefix(&url.as_folder().key), Some(Key::from("x")));
    }
}
