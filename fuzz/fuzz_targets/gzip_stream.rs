// SPDX-License-Identifier: Apache-2.0
//! A gzip object in pieces and in stretches (see `stream`).
#![no_main]

mod stream;

use libfuzzer_sys::fuzz_target;
use penstock_codec::Codec;

fuzz_target!(|data: &[u8]| stream::check(Codec::Gzip, data));
