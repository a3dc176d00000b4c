// SPDX-License-Identifier: Apache-2.0
//! Fuzzes tar archives: no panic, members inside the archive and in order, and each sample inside its own span.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::tar::{Members, Samples, sniff};

fuzz_target!(|data: &[u8]| {
    // A fuzzer does not find valid checksums by itself, so each block at which the walk may look for a header gets one.
    let mut data = data.to_vec();
    let mut at = 0;
    while at + 512 <= data.len() && data[at] != 0 {
        data[at + 148..at + 156].fill(b' ');
        let sum: u32 = data[at..at + 512].iter().map(|&byte| u32::from(byte)).sum();
        data[at + 148..at + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        at += 512 * (1 + usize::from(data[at + 511] & 3));
    }
    sniff(&data);
    let mut end = 0;
    for member in Members::new(&data, "p") {
        let Ok(member) = member else { break };
        assert!(member.header_offset >= end && member.offset >= member.header_offset + 512);
        end = member.end();
        assert!(end <= data.len() as u64 && member.size <= end - member.offset);
    }
    let mut global = false;
    for sample in Samples::new(&data, "p") {
        let Ok(sample) = sample else { break };
        let span = &data[sample.offset as usize..][..sample.len as usize];
        global |= data.as_chunks::<512>().0.iter().any(|block| block[156] == b'g');
        if !global {
            let again = Samples::of(Members::at(span, sample.offset, "p")).next().unwrap().unwrap();
            assert_eq!(again, sample);
        }
    }
});
