// SPDX-License-Identifier: Apache-2.0
//! Fuzzes index files of other programs: no panic, and no span outside the object.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::sidecar_index::{parse_shard_list, parse_tar_index, parse_tfrecord_index};

const LEN: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    for span in parse_tfrecord_index(data, LEN, "p").unwrap_or_default() {
        assert!(span.offset + span.len + 16 <= LEN);
    }
    for sample in parse_tar_index(data, LEN, "p").unwrap_or_default() {
        assert!(sample.offset + sample.len <= LEN);
        assert!(sample.parts.iter().all(|part| part.offset + part.size <= LEN));
    }
    let _ = parse_shard_list(data, "p");
    // Any object length must be safe, including the largest.
    let _ = parse_tar_index(data, u64::MAX, "p");
});
