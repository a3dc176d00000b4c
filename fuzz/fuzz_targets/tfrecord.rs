// SPDX-License-Identifier: Apache-2.0
//! Fuzzes TFRecord framing: no panic, records that cover the bytes without gaps, and parsed records survive a round
//! trip.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_codec::checksum::crc32c_masked;
use penstock_record::tfrecord::{Frames, count, frame_len, scan, write_frame};

fuzz_target!(|data: &[u8]| {
    // A fuzzer does not find valid CRCs by itself, so half of the inputs get a valid CRC in their first header.
    let mut data = data.to_vec();
    if data.first().is_some_and(|first| first & 1 == 1) && data.len() >= 12 {
        let sum = crc32c_masked(&data[..8]);
        data[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    match scan(&data, "p") {
        Ok(spans) => {
            assert_eq!(spans.iter().map(|span| frame_len(span.len)).sum::<u64>(), data.len() as u64);
            assert_eq!(count(&data, "p").unwrap(), spans.len() as u64);
        }
        Err(_) => assert!(count(&data, "p").is_err()),
    }
    let mut again = Vec::new();
    let mut sound = true;
    for frame in Frames::new(&data, "p", true) {
        match frame {
            Ok(frame) => write_frame(frame.payload, &mut again),
            Err(_) => sound = false,
        }
    }
    assert!(data.starts_with(&again));
    assert_eq!(sound, again.len() == data.len());
});
