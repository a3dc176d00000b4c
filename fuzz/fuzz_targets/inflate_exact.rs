// SPDX-License-Identifier: Apache-2.0
//! Inflation into a slot: no panic, nothing outside the slot, and the verdict of gzip is that of the whole-object path.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_codec::{Codec, Packing, inflate_exact, inflate_into};

fuzz_target!(|data: &[u8]| {
    let Some((&[a, b], data)) = data.split_first_chunk::<2>() else { return };
    let mut out = vec![0; usize::from(u16::from_le_bytes([a, b]))];
    for packing in [Packing::Deflate, Packing::Zlib, Packing::Zstd, Packing::Lz4Block] {
        let _ = inflate_exact(packing, data, &mut out, "p");
    }
    let exact = inflate_exact(Packing::Gzip, data, &mut out, "p");
    let mut whole = Vec::new();
    let same = inflate_into(Codec::Gzip, data, &mut whole, out.len() as u64, "p").is_ok() && whole.len() == out.len();
    assert_eq!(exact.is_ok(), same);
});
