// SPDX-License-Identifier: Apache-2.0
//! Fuzzes decompression of a whole gzip object: no panic, output within the limit, and the same result as streaming.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_codec::{Codec, StreamDecoder, decompress_into};

const LIMIT: u64 = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let mut out = Vec::new();
    let whole = decompress_into(Codec::Gzip, data, &mut out, LIMIT, "p");
    assert!(out.capacity() as u64 <= LIMIT);
    let mut streamed = Vec::new();
    let mut inflater = StreamDecoder::new(Codec::Gzip, LIMIT, "p");
    let pushed = inflater.push(data, &mut |bytes| {
        streamed.extend_from_slice(bytes);
        Ok(())
    });
    let ended = pushed.and_then(|()| inflater.finish());
    assert_eq!(whole.is_ok(), ended.is_ok(), "{whole:?} {ended:?}");
    if whole.is_ok() {
        assert!(out == streamed);
    }
});
