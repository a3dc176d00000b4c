// SPDX-License-Identifier: Apache-2.0
//! URLs and keys of objects. Keys are bytes, because a store may contain any bytes in a key. Keys are untrusted input.

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
    /// Datasets of the Hugging Face Hub.
    Hub,
}

impl Scheme {
    const ALL: [Self; 9] =
        [Self::File, Self::Memory, Self::S3, Self::Azure, Self::Gcs, Self::Http, Self::Https, Self::Hdfs, Self::Hub];

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
            Self::Hub => "hf",
        }
    }
}

/// Key of an object below its store's root. A key consists of bytes; it is not a path and not necessarily UTF-8.
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

    /// Returns the key as a folder prefix: appends `/` if it is missing, so that `a` does not match `ab`. The empty key
    /// stays empty.
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

/// Formats the key and escapes control and non-UTF-8 bytes, so that a hostile key cannot manipulate a terminal.
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

/// URL of an object or of a key prefix: `s3://bucket/key`, `file:///folder/key`, or a plain path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    /// Kind of store.
    pub scheme: Scheme,
    /// Bucket, container or host. Empty for `file`, and for `hdfs` if the URL names no NameNode. For `hf`:
    /// `datasets/ORG/NAME`, followed by `@REVISION` if the URL has a revision.
    pub authority: String,
    /// Key, without any escaping. For `file`, it is the path without its leading `/`.
    pub key: Key,
}

impl Url {
    /// Returns a URL of the same store with another key.
    pub fn with_key(&self, key: Key) -> Self {
        Self { key, ..self.clone() }
    }

    /// Returns the URL of a Hub dataset without its revision. Other URLs are not changed.
    pub fn without_revision(&self) -> Self {
        match (self.scheme, self.authority.split_once('@')) {
            (Scheme::Hub, Some((dataset, _))) => Self { authority: dataset.to_owned(), ..self.clone() },
            _ => self.clone(),
        }
    }

    /// Returns the URL with its key as a folder prefix.
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

/// Pairs of schemes: the name that another program (Hadoop, gcsfs, adlfs) uses, and Penstock's name.
const SYNONYMS: [(&str, &str); 6] =
    [("s3a", "s3"), ("s3n", "s3"), ("gcs", "gs"), ("azure", "az"), ("abfs", "az"), ("abfss", "az")];

/// Hadoop's schemes for Azure. Such a URL may contain the account:
/// `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY`.
const HADOOP_AZURE: [&str; 4] = ["abfs", "abfss", "wasb", "wasbs"];

/// Parses a URL. The text is taken literally, not percent-decoded, because keys may contain `%` and `+`. Only URLs of
/// web servers are percent-decoded, as in browsers. They must not contain a query, because it may be a signature or
/// select generated content. A text without a scheme must be an absolute path; the caller resolves relative paths.
impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((name, rest)) = text.split_once("://") else {
            return Self::from_path(std::path::Path::new(text));
        };
        let usual = SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name, |(_, usual)| usual);
        if name == Scheme::Hub.name() {
            return hub_url(rest);
        }
        // The account is a setting, because the credentials are for one account. If a URL could name another account,
        // the error would occur only at the first request.
        if HADOOP_AZURE.contains(&name)
            && (name.starts_with("wasb") || rest.split('/').next().unwrap_or("").contains('@'))
        {
            let problem = format!(
                "`{name}://` URLs with an account are not supported; write az://CONTAINER/KEY, and set AZURE_STORAGE_ACCOUNT \
                 to the account"
            );
            return Err(Error::config("url", problem));
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

/// Parses `datasets/ORG/NAME[@REVISION][/KEY]`. A revision is a branch, a tag or a commit. The slashes in the revisions
/// `refs/convert/NAME` and `refs/pr/NUMBER` are stored as `%2F`, as in the Hub's own URLs. Errors do not contain the
/// text, because it may contain a token.
fn hub_url(rest: &str) -> Result<Url> {
    let bad = |problem: &str| Error::config("url", problem);
    let form =
        "hf:// must be followed by datasets/ORG/NAME[@REVISION][/FILE] (models, spaces and buckets are not supported)";
    let mut parts = rest.splitn(4, '/');
    let (Some("datasets"), Some(org), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(bad(form));
    };
    let (mut key, (name, revision)) = (parts.next().unwrap_or_default(), name.split_once('@').unwrap_or((name, "")));
    let is_name = |text: &str| {
        let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !text.is_empty() && text.len() <= 96 && text.chars().all(is_valid) && text.chars().any(|c| c != '.')
    };
    let mut revision = revision.to_owned();
    if revision == "refs"
        && let Some((kind @ ("convert" | "pr"), after)) = key.split_once('/')
    {
        let (number, after) = after.split_once('/').unwrap_or((after, ""));
        (revision, key) = (format!("refs%2F{kind}%2F{number}"), after);
    }
    let is_revision = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '%' | '~' | '+');
    if !is_name(org) || !is_name(name) || !revision.chars().all(is_revision) || revision.len() > 255 {
        return Err(bad(form));
    }
    let mark = if revision.is_empty() { "" } else { "@" };
    Ok(Url { scheme: Scheme::Hub, authority: format!("datasets/{org}/{name}{mark}{revision}"), key: Key::from(key) })
}

/// Rejects a bucket URL that contains credentials. The error does not contain the URL, because errors are logged.
fn refuse_secrets(authority: &str, key: &str) -> Result<()> {
    let bad = |problem: &str| Err(Error::config("url", problem));
    // A secret may contain a `/`, where the authority then ends. The authority still contains the `:` before the
    // secret, and no bucket name contains a `:`.
    if authority.contains(['@', ':']) {
        return bad(
            "the URL contains credentials or a port; to set credentials, use environment variables, credential files or a \
             login",
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
        assert_eq!("abfss://c/k".parse::<Url>().unwrap().to_string(), "az://c/k");
        assert!("s3:///k".parse::<Url>().is_err());
    }

    #[test]
    fn hub_url_has_a_dataset_with_a_revision_and_a_key() {
        for (text, authority, key) in [
            ("hf://datasets/o/n", "datasets/o/n", ""),
            ("hf://datasets/o/n@v1/a/b.parquet", "datasets/o/n@v1", "a/b.parquet"),
            ("hf://datasets/o/n@refs/convert/parquet/d/x", "datasets/o/n@refs%2Fconvert%2Fparquet", "d/x"),
            ("hf://datasets/o/n@refs%2Fpr%2F3/x", "datasets/o/n@refs%2Fpr%2F3", "x"),
            ("hf://datasets/o/n/@x", "datasets/o/n", "@x"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!((url.authority.as_str(), &url.key), (authority, &Key::from(key)), "{text}");
            assert_eq!(url.to_string().parse::<Url>().unwrap(), url);
            assert_eq!(url.without_revision().authority, "datasets/o/n");
        }
        for text in [
            "hf://datasets/o",
            "hf://o/n",
            "hf://models/o/n",
            "hf://hf_secret@datasets/o/n",
            "hf://datasets/../n",
            "hf://datasets/o/n@a b/x",
            "hf://",
            "hf://datasets/o/n@x@y/k",
        ] {
            let error = text.parse::<Url>().unwrap_err();
            assert!(error.code() == "config" && !error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn azure_url_with_an_account_is_refused_with_the_form_to_write() {
        for text in ["abfss://box@account.dfs.core.windows.net/k", "abfs://u:secret@box/k", "wasbs://box@a.blob/k"] {
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains("az://CONTAINER/KEY") && !error.contains("secret"), "{error}");
        }
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
