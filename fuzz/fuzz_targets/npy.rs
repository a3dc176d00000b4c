// SPDX-License-Identifier: Apache-2.0
//! Fuzzes .npy and zip files: no panic, and no member outside its archive.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::{npy, npz};

fuzz_target!(|data: &[u8]| {
    if let Ok(header) = npy::parse(data, "p") {
        assert!(header.data_offset <= data.len());
        if header.data_len().unwrap() <= data.len() {
            let mut out = vec![0; header.data_len().unwrap()];
            let _ = npy::read_into(data, &header.spec, &mut out, "p");
        }
    }
    if let Ok(directory) = npz::Directory::parse(data, "p") {
        for entry in directory.entries().iter().take(8) {
            assert!(entry.offset + entry.stored <= data.len() as u64);
            let _ = directory.read(entry);
        }
    }
});
