// SPDX-License-Identifier: Apache-2.0
//! Continuation tokens of a listing in pages. A server may return the same pages again, directly or in a longer cycle.
//! The listing then fails instead of repeating the pages for ever.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use penstock_types::{Error, Result};

/// Token of the next page, and hashes of all earlier tokens. Each page of up to 5,000 keys adds a hash of 8 bytes.
///
/// With 10^7 pages, the probability that two of the 64-bit hashes collide is 3e-6.
#[derive(Default)]
pub(crate) struct PageTokens {
    next: Option<String>,
    seen: HashSet<u64>,
    hasher: RandomState,
}

impl PageTokens {
    /// Returns the token of the next page. Returns `None` if the next page is the first one.
    pub(crate) fn next(&self) -> Option<&str> {
        self.next.as_deref()
    }

    /// Records the token at the end of a page of `place`. Returns false after the last page. Returns a `Server` error
    /// if an earlier page had the same token.
    pub(crate) fn advance(&mut self, next: Option<String>, place: &str) -> Result<bool> {
        if let Some(token) = &next
            && !self.seen.insert(self.hasher.hash_one(token))
        {
            let reason = format!("page {} of the listing ends with the token of an earlier page", self.seen.len() + 1);
            return Err(Error::Server { place: place.to_owned(), status: 200, reason });
        }
        self.next = next;
        Ok(self.next.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_page_tokens_that_repeat_in_any_cycle_end_the_listing() {
        for cycle in [1, 2, 5] {
            let mut tokens = PageTokens::default();
            let pages = (0..100).map(|page| tokens.advance(Some(format!("{}", page % cycle)), "s3://b/"));
            let error = pages.into_iter().find_map(Result::err).expect("a cycle is noticed");
            assert!(error.to_string().contains(&format!("page {}", cycle + 1)), "{error}");
        }
    }

    #[test]
    fn test_page_tokens_that_differ_go_to_the_last_page() {
        let mut tokens = PageTokens::default();
        assert!(tokens.next().is_none());
        for page in 0..1000 {
            assert!(tokens.advance(Some(page.to_string()), "s3://b/").unwrap());
        }
        assert_eq!(tokens.next(), Some("999"));
        assert!(!tokens.advance(None, "s3://b/").unwrap());
    }
}
