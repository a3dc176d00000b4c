// SPDX-License-Identifier: Apache-2.0
//! Glob patterns in URLs, such as `s3://b/train/*.tfrecord.gz`. `*` and `?` match within a folder, and `**` matches
//! across folders. `[a-z]` matches one character, `{train,val}` matches either word, and `{000..099}` matches any of
//! these numbers.

mod braces;

use std::collections::{BTreeSet, HashSet};

use penstock_types::{Error, Key, Result, Url};

use crate::key_names::is_index_name;

/// Maximum number of names in a pattern that are compared with a listing.
const MAX_NAMES: usize = 1 << 20;

/// Splits a URL into the folder that contains its pattern, and the pattern relative to that folder. Returns `None` if
/// the URL has no pattern.
pub fn split_glob(url: &Url) -> Option<(Url, Vec<u8>)> {
    let key = url.key.as_bytes();
    let first = plain_len(key);
    if first == key.len() {
        return None;
    }
    let cut = key[..first].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    Some((url.with_key(Key::new(key[..cut].to_vec())), key[cut..].to_vec()))
}

/// Length of a pattern's literal prefix: the number of bytes before its first special character.
pub fn plain_len(pattern: &[u8]) -> usize {
    let special = pattern.iter().position(|byte| matches!(byte, b'*' | b'?' | b'['));
    braces::first(pattern).into_iter().chain(special).min().unwrap_or(pattern.len())
}

/// True if the whole of `name` matches `pattern`. The time is at most proportional to pattern length × name length,
/// because each `*` is tried at every byte.
pub fn glob_matches(pattern: &[u8], name: &[u8]) -> bool {
    Glob::new(pattern).matches(name)
}

/// A parsed pattern, which can be matched against many names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob {
    /// Alternatives without wildcards, in a set, because a pattern may list every object of a dataset.
    names: HashSet<Vec<u8>>,
    patterns: Vec<Vec<Token>>,
}

impl Glob {
    /// Parses a pattern.
    pub fn new(pattern: &[u8]) -> Self {
        let (mut names, mut patterns) = (HashSet::new(), Vec::new());
        for each in braces::expand(pattern) {
            let tokens = tokens(&each);
            if tokens.iter().all(|token| matches!(token, Token::Byte(_))) {
                names.insert(each);
            } else {
                patterns.push(tokens);
            }
        }
        Self { names, patterns }
    }

    /// True if the whole of `name` matches the pattern.
    pub fn matches(&self, name: &[u8]) -> bool {
        self.names.contains(name) || self.patterns.iter().any(|tokens| fits(tokens, name))
    }
}

/// Complete names that a pattern contains. Alternatives in braces are included: `s-{000..127}.tar` contains 128 names.
/// Finds the names that a listing lacks; without this check, a reader of all shards would silently skip a lost shard.
#[derive(Default)]
pub struct NamedKeys {
    all: usize,
    missing: BTreeSet<Vec<u8>>,
    /// Missing names that are folders.
    folders: HashSet<Vec<u8>>,
}

impl NamedKeys {
    /// Collects the complete names in `pattern`, except those of index files. Collects no names if the pattern has more
    /// than a million alternatives.
    pub fn new(pattern: &[u8]) -> Self {
        let is_name =
            |each: &Vec<u8>| tokens(each).iter().all(|token| matches!(token, Token::Byte(_))) && !is_index_name(each);
        let missing: BTreeSet<_> =
            braces::expand_each(pattern, MAX_NAMES).unwrap_or_default().into_iter().filter(is_name).collect();
        Self { all: missing.len(), missing, folders: HashSet::new() }
    }

    /// Marks an object of the listing as present.
    pub fn found(&mut self, name: &[u8]) {
        if self.missing.is_empty() || self.missing.remove(name) {
            return;
        }
        for (at, _) in name.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            if self.missing.contains(&name[..at]) && !self.folders.contains(&name[..at]) {
                self.folders.insert(name[..at].to_vec());
            }
        }
    }

    /// Returns `NotFound` if the listing of `folder` lacked a name.
    pub fn check(&self, folder: &Url) -> Result<()> {
        let Some(first) = self.missing.first() else { return Ok(()) };
        let is_folder = self.folders.contains(first);
        let first = folder.with_key(folder.key.as_folder().join(first));
        if is_folder {
            let problem = format!("{first} is a folder; write `/**` after it to select its objects");
            return Err(Error::config("url", problem));
        }
        let (missing, all) = (self.missing.len(), self.all);
        let which = match (missing, all) {
            (1, 1) => String::new(),
            (1, _) => format!(" (one of the {all} objects that the URL names)"),
            _ => format!(" (the first of {missing} missing objects; the URL names {all})"),
        };
        Err(Error::NotFound { place: format!("{first}{which}") })
    }
}

fn fits(tokens: &[Token], name: &[u8]) -> bool {
    // reached[i]: the first i tokens of the pattern match the bytes of the name that were read so far.
    let close = |reached: &mut Vec<bool>| {
        for at in 0..tokens.len() {
            if reached[at] && matches!(tokens[at], Token::Star | Token::StarStar | Token::AnyFolders) {
                reached[at + 1] = true;
            }
        }
    };
    let mut reached = vec![false; tokens.len() + 1];
    reached[0] = true;
    close(&mut reached);
    let mut next = vec![false; tokens.len() + 1];
    for &byte in name {
        next.fill(false);
        for at in 0..tokens.len() {
            if !reached[at] {
                continue;
            }
            match &tokens[at] {
                Token::Byte(want) => next[at + 1] |= *want == byte,
                Token::One => next[at + 1] |= byte != b'/',
                Token::OneOf(bytes, negated) => next[at + 1] |= byte != b'/' && bytes.contains(&byte) != *negated,
                Token::Star => next[at] |= byte != b'/',
                Token::StarStar => next[at] = true,
                Token::AnyFolders => {
                    next[at] = true;
                    // `**/` matches zero bytes, or bytes that end with a slash, so `**/a` does not match `ba`.
                    next[at + 1] |= byte == b'/';
                }
            }
        }
        for at in 0..tokens.len() {
            if next[at] && matches!(tokens[at], Token::Star | Token::StarStar) {
                next[at + 1] = true;
            }
        }
        std::mem::swap(&mut reached, &mut next);
    }
    reached[tokens.len()]
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Byte(u8),
    One,
    OneOf(Vec<u8>, bool),
    Star,
    StarStar,
    /// `**/`: any number of folders, including zero.
    AnyFolders,
}

fn tokens(pattern: &[u8]) -> Vec<Token> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < pattern.len() {
        let rest = &pattern[at..];
        let (token, taken) = match rest {
            [b'*', b'*', b'/', ..] => (Token::AnyFolders, 3),
            [b'*', b'*', ..] => (Token::StarStar, 2),
            [b'*', ..] => (Token::Star, 1),
            [b'?', ..] => (Token::One, 1),
            [b'[', inner @ ..] => match inner.iter().skip(1).position(|&byte| byte == b']') {
                Some(end) => (one_of(&inner[..=end]), end + 3),
                None => (Token::Byte(b'['), 1),
            },
            _ => (Token::Byte(rest[0]), 1),
        };
        found.push(token);
        at += taken;
    }
    found
}

fn one_of(inner: &[u8]) -> Token {
    let (negated, inner) = match inner {
        [b'!' | b'^', rest @ ..] if !rest.is_empty() => (true, rest),
        _ => (false, inner),
    };
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < inner.len() {
        if let [from, b'-', to, ..] = inner[at..] {
            bytes.extend(from..=to);
            at += 3;
        } else {
            bytes.push(inner[at]);
            at += 1;
        }
    }
    Token::OneOf(bytes, negated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_of_a_url_begins_at_its_last_plain_folder() {
        let (folder, pattern) = split_glob(&"s3://b/a/train-*/x?.gz".parse().unwrap()).unwrap();
        assert_eq!((folder.to_string().as_str(), pattern.as_slice()), ("s3://b/a/", &b"train-*/x?.gz"[..]));
        assert!(split_glob(&"s3://b/a/train".parse().unwrap()).is_none());
        assert!(split_glob(&"s3://b/a/{id}".parse().unwrap()).is_none());
        let (folder, pattern) = split_glob(&"s3://b/a/{x,y}/z.gz".parse().unwrap()).unwrap();
        assert_eq!((folder.to_string().as_str(), pattern.as_slice()), ("s3://b/a/", &b"{x,y}/z.gz"[..]));
    }

    #[test]
    fn named_keys_that_a_listing_lacks_are_found() {
        let folder: Url = "s3://b/a/".parse().unwrap();
        for (pattern, missing) in [
            ("*.gz", ""),
            ("{x,y}-*.gz", ""),
            ("{1..2000000}", ""),
            ("s-{1..2..x}", "s3://b/a/s-{1..2..x}"),
            ("{s-1,s-1.idx,index.json}", ""),
            ("{s-1,x*}", ""),
            ("s-{1..2}", "s3://b/a/s-2 (one of the 2 objects that the URL names)"),
            ("{s-1,s-3,t-{a..b}}", "s3://b/a/s-3 (the first of 3 missing objects; the URL names 4)"),
            ("s-[", "s3://b/a/s-["),
        ] {
            let mut named = NamedKeys::new(pattern.as_bytes());
            named.found(b"s-1");
            let problem = named.check(&folder).err().map_or(String::new(), |error| error.to_string());
            assert_eq!(problem.strip_suffix(" does not exist").unwrap_or_default(), missing, "{pattern}");
        }
        let mut named = NamedKeys::new(b"{s-1,train}");
        [&b"s-1"[..], b"train/a", b"train/b"].iter().for_each(|name| named.found(name));
        let error = named.check(&folder).unwrap_err().to_string();
        assert!(error.contains("s3://b/a/train is a folder"), "{error}");
    }

    #[test]
    fn glob_takes_what_a_shell_would() {
        for (pattern, yes, no) in [
            ("*.gz", vec!["a.gz", ".gz"], vec!["a/b.gz", "a.gzz"]),
            ("a?c", vec!["abc"], vec!["ac", "a/c"]),
            ("**.gz", vec!["a/b.gz", "b.gz"], vec!["b.gx"]),
            ("**/a", vec!["a", "x/a", "x/y/a"], vec!["ba", "x/ba"]),
            ("x[0-2]y[!z]", vec!["x1ya"], vec!["x3ya", "x1yz"]),
            ("[", vec!["["], vec!["a"]),
            ("t-*-of-*", vec!["t-00-of-10"], vec!["t-00"]),
            ("{train,val}/*.tar", vec!["train/a.tar", "val/b.tar"], vec!["test/a.tar", "{train,val}/a.tar"]),
            ("s-{008..012}.tar", vec!["s-008.tar", "s-012.tar"], vec!["s-007.tar", "s-013.tar", "s-8.tar"]),
        ] {
            assert!(yes.iter().all(|name| glob_matches(pattern.as_bytes(), name.as_bytes())), "{pattern} {yes:?}");
            assert!(!no.iter().any(|name| glob_matches(pattern.as_bytes(), name.as_bytes())), "{pattern} {no:?}");
        }
        let hostile = "*a".repeat(200);
        assert!(!glob_matches(hostile.as_bytes(), &[b'a'; 150]));
    }
}
