// SPDX-License-Identifier: Apache-2.0
//! Golden archives of `tests/golden`, read by this crate's tar reader.

use std::collections::BTreeMap;

use penstock_codec::{Codec, decompress_into};
use penstock_record::tar::Members;

/// Returns the files in `tests/golden/NAME.tar.gz`, by name.
pub fn files(name: &str) -> BTreeMap<String, Vec<u8>> {
    let stored = std::fs::read(format!("{}/tests/golden/{name}.tar.gz", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut bytes = Vec::new();
    decompress_into(Codec::Gzip, &stored, &mut bytes, 64 << 20, name).unwrap();
    let content = |offset: u64, size: u64| bytes[offset as usize..][..size as usize].to_vec();
    Members::new(&bytes, name)
        .map(Result::unwrap)
        .map(|member| (String::from_utf8(member.name.to_vec()).unwrap(), content(member.offset, member.size)))
        .collect()
}
