// SPDX-License-Identifier: Apache-2.0
//! Fuzzes array chunks and Zarr metadata: no panic, and no write outside the output buffer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::chunk::zarr::Array;
use penstock_record::chunk::{Step, decode_into};

fuzz_target!(|data: &[u8]| {
    if let Ok(array) = Array::parse(data, "p") {
        array.key(&array.grid());
        if let Some(sharding) = &array.sharding {
            let _ = sharding.parse_index(data, 1 << 20, "p");
        }
    }
    let Some((&[a, b], data)) = data.split_first_chunk::<2>() else { return };
    let mut out = vec![0; usize::from(u16::from_le_bytes([a, b]))];
    // A fuzzer does not find valid sizes by itself, so the sizes in the header are set to match the buffers.
    let mut blosc = data.to_vec();
    if blosc.len() >= 16 {
        blosc[0] = 2;
        blosc[4..8].copy_from_slice(&(out.len() as u32).to_le_bytes());
        blosc[12..16].copy_from_slice(&(data.len() as u32).to_le_bytes());
    }
    let _ = decode_into(&[Step::Blosc], &blosc, &mut out, "p");
    for steps in [&[Step::SizedLz4, Step::Unshuffle(3)][..], &[Step::Fletcher32], &[Step::Crc32c, Step::Swap(4)]] {
        let _ = decode_into(steps, data, &mut out, "p");
    }
});
