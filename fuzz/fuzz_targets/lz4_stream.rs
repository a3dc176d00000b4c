// SPDX-License-Identifier: Apache-2.0
//! Fuzzes streaming and frame-wise decompression of LZ4 (see `stream`).
#![no_main]

mod stream;

use libfuzzer_sys::fuzz_target;
use penstock_codec::Codec;

fuzz_target!(|data: &[u8]| stream::check(Codec::Lz4, data));
