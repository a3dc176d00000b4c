// SPDX-License-Identifier: Apache-2.0
//! Key filter: selects objects of a dataset by glob patterns over their keys. The filter only compares names: it opens
//! no object and lists no folder.
//!
//! A pattern that contains a `/` is matched against the whole key; any other pattern is matched against the last
//! component of the key. `*` and `?` match within a folder, `**` matches across folders, and `[a-z]` matches one
//! character. `{a,b}` and `{00..99}` match any of their alternatives.

use std::fmt;

use penstock_types::{Error, Key, Result};

use crate::glob::{Glob, NamedKeys, plain_len};
use crate::key_names::last_component;

/// Maximum number of patterns per command. The number is limited because each pattern is tried on every key.
const MAX_PATTERNS: usize = 4096;

/// Filter of keys: patterns that a key must match, and patterns that it must not match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyFilter {
    /// Pattern of the dataset's URL. The whole key must match it, and its literal prefix limits the listing.
    within: Option<(Vec<u8>, Glob)>,
    accepts_missing: bool,
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    text: String,
    glob: Glob,
    whole: bool,
}

impl Pattern {
    fn new(flag: &str, text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::config(flag, "the pattern is empty"));
        }
        let anchored = text.strip_prefix('/').unwrap_or(text);
        Ok(Self { text: text.to_owned(), glob: Glob::new(anchored.as_bytes()), whole: text.contains('/') })
    }

    fn takes(&self, key: &[u8]) -> bool {
        self.glob.matches(if self.whole { key } else { last_component(key) })
    }
}

impl KeyFilter {
    /// Creates a filter for keys that match a pattern of `include` and no pattern of `exclude`. An empty `include`
    /// matches every key.
    pub fn new<T: AsRef<str>>(include: &[T], exclude: &[T]) -> Result<Self> {
        let patterns = |flag: &str, texts: &[T]| -> Result<Vec<Pattern>> {
            if texts.len() > MAX_PATTERNS {
                return Err(Error::config(
                    flag,
                    format!("at most {MAX_PATTERNS} patterns are allowed (got {})", texts.len()),
                ));
            }
            texts.iter().map(|text| Pattern::new(flag, text.as_ref())).collect()
        };
        Ok(Self {
            within: None,
            accepts_missing: false,
            include: patterns("--select", include)?,
            exclude: patterns("--exclude", exclude)?,
        })
    }

    /// Also requires that a key match the pattern of the dataset's URL.
    pub fn within(mut self, pattern: Vec<u8>) -> Self {
        let glob = Glob::new(&pattern);
        self.within = Some((pattern, glob));
        self
    }

    /// Allows a listing to lack objects that the URL names, for example in braces.
    pub fn accepting_missing(self) -> Self {
        Self { accepts_missing: true, ..self }
    }

    /// True if the filter selects every key.
    pub fn is_all(&self) -> bool {
        self.within.is_none() && self.include.is_empty() && self.exclude.is_empty()
    }

    /// True if the filter selects this key (relative to the dataset's folder).
    pub fn takes(&self, key: &Key) -> bool {
        let key = key.as_bytes();
        self.within.as_ref().is_none_or(|(_, glob)| glob.matches(key))
            && (self.include.is_empty() || self.include.iter().any(|pattern| pattern.takes(key)))
            && !self.exclude.iter().any(|pattern| pattern.takes(key))
    }

    /// Common prefix of all selected keys. A listing can be limited to this prefix.
    pub fn literal_prefix(&self) -> &[u8] {
        let Some((pattern, _)) = &self.within else { return b"" };
        &pattern[..plain_len(pattern)]
    }

    /// Complete names in the pattern of the dataset's URL, which a listing must contain.
    pub fn named_keys(&self) -> NamedKeys {
        let within = self.within.as_ref().filter(|_| !self.accepts_missing);
        within.map_or_else(NamedKeys::default, |(pattern, _)| NamedKeys::new(pattern))
    }

    /// The patterns as text, for error messages and for comparing requests. Empty if the filter selects every key.
    pub fn text(&self) -> String {
        let mut words: Vec<String> = Vec::new();
        words.extend(self.within.iter().map(|(pattern, _)| String::from_utf8_lossy(pattern).into_owned()));
        words.extend(self.include.iter().map(|pattern| format!("--select {}", pattern.text)));
        words.extend(self.exclude.iter().map(|pattern| format!("--exclude {}", pattern.text)));
        words.join(" ")
    }

    /// Error for a filter that selects no object. `what` is text such as `any object under s3://b/train/`.
    pub fn none_of(&self, what: impl fmt::Display) -> Error {
        Error::NotFound { place: format!("{what} that matches {}", self.text()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(include: &[&str], exclude: &[&str], key: &str) -> bool {
        KeyFilter::new(include, exclude).unwrap().takes(&Key::from(key))
    }

    #[test]
    fn select_without_a_slash_looks_at_the_last_component_and_with_one_at_all() {
        assert!(taken(&[], &[], "anything"));
        assert!(taken(&["*.gz"], &[], "a/b/x.gz") && !taken(&["*.gz"], &[], "a.gz/x"));
        assert!(taken(&["train/*"], &[], "train/x") && !taken(&["train/*"], &[], "a/train/x"));
        assert!(taken(&["/x"], &[], "x") && !taken(&["/x"], &[], "a/x"));
        assert!(taken(&["a", "b"], &[], "b") && !taken(&["a", "b"], &["b"], "b"));
        assert!(!taken(&[], &["**/tmp/**"], "a/tmp/x"));
        assert!(KeyFilter::new(&[""], &[]).is_err());
    }

    #[test]
    fn select_of_a_url_names_what_all_its_keys_begin_with() {
        let select = KeyFilter::default().within(b"train/a-*/x?.gz".to_vec());
        assert_eq!(select.literal_prefix(), b"train/a-");
        assert!(select.takes(&Key::from("train/a-1/x2.gz")) && !select.takes(&Key::from("train/a-1/y.gz")));
        assert!(!select.is_all() && KeyFilter::default().is_all());
    }

    proptest! {
        #[test]
        fn prop_select_survives_any_pattern_and_key(pattern in ".{1,30}", key in prop::collection::vec(any::<u8>(), 0..40)) {
            let select = KeyFilter::new(&[pattern.as_str()], &["*.x"]).unwrap();
            let _ = select.takes(&Key::new(key));
        }
    }
}
