// SPDX-License-Identifier: Apache-2.0
//! Fuzzes decompression into a buffer of known size: no panic, no write out of bounds, and for gzip the same result as
//! decompression of the whole object.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_codec::{Codec, SizedCodec, decompress_exact, decompress_into};

fuzz_target!(|data: &[u8]| {
    let Some((&[a, b], data)) = data.split_first_chunk::<2>() else { return };
    let mut out = vec![0; usize::from(u16::from_le_bytes([a, b]))];
    for packing in [SizedCodec::Deflate, SizedCodec::Zlib, SizedCodec::Zstd, SizedCodec::Lz4Block] {
        let _ = decompress_exact(packing, data, &mut out, "p");
    }
    let exact = decompress_exact(SizedCodec::Gzip, data, &mut out, "p");
    let mut whole = Vec::new();
    let same = decompress_into(Codec::Gzip, data, &mut whole, out.len() as u64, "p").is_ok() && whole.len() == out.len();
    assert_eq!(exact.is_ok(), same);
});
