// SPDX-License-Identifier: Apache-2.0
//! Fuzzes byte-plane content: no panic, output within the limit, and any bytes survive a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_codec::checksum::crc32c;
use penstock_codec::{Planes, restore_transposed, transpose};

const LIMIT: u64 = 1 << 16;
const HEADER: usize = 24;

fuzz_target!(|data: &[u8]| {
    let mut out = Vec::new();
    let _ = restore_transposed(data, &mut out, LIMIT, "p");
    assert!(out.len() as u64 <= LIMIT);
    let Some((&[width, bits, blocks], data)) = data.split_first_chunk::<3>() else { return };
    // A fuzzer does not find valid checksums and sizes by itself, so a valid header for a table of `blocks` entries is
    // built.
    let table = HEADER + 4 * usize::from(blocks);
    if data.len() >= table + 4 {
        let mut mended = b"pstkpln1".to_vec();
        mended.extend_from_slice(&[width, bits, 0, 0]);
        mended.extend_from_slice(&data[12..table]);
        mended.extend_from_slice(&crc32c(&mended).to_le_bytes());
        mended.extend_from_slice(&data[table..]);
        let _ = restore_transposed(&mended, &mut out, LIMIT, "p");
        assert!(out.len() as u64 <= LIMIT);
    }
    if let Some(form) = Planes::new(width, bits) {
        let planes = transpose(data, form).unwrap();
        restore_transposed(&planes, &mut out, data.len() as u64, "p").unwrap();
        assert!(out == data);
    }
});
