// SPDX-License-Identifier: Apache-2.0
//! Where a key lives: as a plain file below the folder where that can be, else in the side store under a hashed name.
//!
//! A key is data: nothing in it can name a file outside the folder.

use md5::{Digest as _, Md5};
use percent_encoding::percent_decode_str;

/// The folder's own state: the facts log, uploads in flight and the objects that cannot be plain files. Never listed.
pub(crate) const STATE: &str = ".penstock-emulator";

/// Linux refuses longer names of one path component.
const LONGEST_NAME: usize = 255;

/// The path below the folder of a key that can be a plain file; `None` for one that cannot (`..`, empty parts, long
/// names, a trailing slash, our own state).
pub(crate) fn plain_path(key: &str) -> Option<&str> {
    let fits = !key.is_empty()
        && !key.contains('\0')
        && key.split('/').all(|part| !part.is_empty() && part != "." && part != ".." && part.len() <= LONGEST_NAME)
        && key.split('/').next() != Some(STATE);
    fits.then_some(key)
}

/// The file name of a key in the side store.
pub(crate) fn side_name(key: &str) -> String {
    hex(&Md5::digest(key.as_bytes()))
}

/// Lower-case hexadecimal.
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
