// SPDX-License-Identifier: Apache-2.0
//! Fuzzes the record index: no panic, and no more records than the file can hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_dataset::Entry;
use penstock_dataset::RecordIndex;
use penstock_types::Key;

fuzz_target!(|data: (u8, Vec<u8>)| {
    let (objects, bytes) = data;
    let entries: Vec<Entry> = (0..objects % 8).map(|at| Entry::new(Key::from(&*format!("o{at}.tar")), 9)).collect();
    let len = bytes.len() as u64;
    if let Some(index) = RecordIndex::parse(bytes, &entries) {
        for object in 0..10 {
            let count = index.count(object).unwrap_or(0);
            assert!(count * 16 <= len);
            assert!(index.span(object, count).is_none());
            (0..count).for_each(|record| assert!(index.span(object, record).is_some()));
        }
    }
});
