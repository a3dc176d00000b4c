// SPDX-License-Identifier: Apache-2.0
//! Maps keys to file paths. If possible, the path equals the key. Otherwise, the file is named by a hash of the key,
//! and lies in the side store (a hidden folder).
//!
//! Keys are untrusted: no key can name a file outside the folder.

use md5::{Digest as _, Md5};
use penstock_store::rooted::refusal;
use percent_encoding::percent_decode_str;

/// Name of the emulator's state folder. It contains the metadata log, uploads in flight, and objects that cannot be
/// plain files. It is never listed.
pub(crate) const STATE: &str = ".penstock-emulator";

/// Returns the path of a key, relative to the folder. Returns `None` if the key cannot be a plain file: it contains
/// `..`, empty components or long names, ends in a slash, or names the state folder.
pub(crate) fn plain_path(key: &str) -> Option<&str> {
    let fits = refusal(key.as_bytes()).is_none() && key.split('/').next() != Some(STATE);
    fits.then_some(key)
}

/// Returns the file name of a key in the side store: a hash of the key.
pub(crate) fn side_name(key: &str) -> String {
    hex(&Md5::digest(key.as_bytes()))
}

/// Formats bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_path_of_ordinary_key_is_itself() {
        for key in ["a", "a/b", "a b/ü+%.gz", "..a/b..", &"x".repeat(255)] {
            assert_eq!(plain_path(key), Some(key));
        }
    }

    #[test]
    fn plain_path_of_key_no_folder_holds_is_none() {
        let long = "x".repeat(256);
        for key in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", &long, ".penstock-emulator/tmp/x", "a\0b"] {
            assert_eq!(plain_path(key), None, "{key:?}");
        }
    }

    proptest! {
        #[test]
        fn prop_plain_path_never_leaves_the_folder(key in "[a./\\\\ ]{0,24}") {
            if let Some(path) = plain_path(&key) {
                let parts = std::path::Path::new(path).components();
                prop_assert!(parts.into_iter().all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }
    }
}
