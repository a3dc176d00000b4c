// SPDX-License-Identifier: Apache-2.0
//! Fuzzes SEG-Y file headers: no panic, and no trace outside the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_array::segy::{Layout, Overrides};

fuzz_target!(|data: &[u8]| {
    let overrides = Overrides { allow_trailing: data.first().is_some_and(|byte| byte & 1 == 1), ..Overrides::default() };
    if let Ok(found) = Layout::parse(data, data.len() as u64, &overrides, None, "p") {
        assert!(found.traces == 0 || found.trace_start(found.traces - 1) + found.trace_bytes <= found.size);
    }
});
