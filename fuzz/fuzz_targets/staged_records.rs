// SPDX-License-Identifier: Apache-2.0
//! Fuzzes the log in which a stage records the positions of records: no panic, and no more records than the log can
//! hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_dataset::record_offsets::records_noted;

fuzz_target!(|data: &[u8]| {
    assert!(records_noted(data) * 16 <= data.len());
});
