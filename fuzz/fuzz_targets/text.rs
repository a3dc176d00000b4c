// SPDX-License-Identifier: Apache-2.0
//! Fuzzes JSON lines, CSV, Arrow IPC and Megatron-LM's indexes: no panic, and no record or value outside the object.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::{arrow, csv, jsonl, megatron};

fuzz_target!(|data: &[u8]| {
    for line in jsonl::lines(data, "p").into_iter().flatten() {
        if let Ok(line) = jsonl::Line::parse(&data[line], "p") {
            for name in line.names() {
                let _ = line.value(&name, "p");
            }
        }
    }
    for row in csv::rows(data, b',') {
        assert!(!csv::cells(&data[row], b',', "p").unwrap().is_empty());
    }
    let size = data.len() as u64;
    if let Ok(documents) = megatron::documents(data, size, "p") {
        assert!(documents.iter().all(|range| range.start <= range.end && range.end <= size));
    }
    let Ok(file) = arrow::File::open(data.to_vec().into(), "p") else { return };
    for (batch, rows) in file.starts().windows(2).enumerate() {
        let reader = file.batch(batch, 1 << 20);
        for row in 0..(rows[1] - rows[0]).min(8) {
            for column in 0..file.columns().len() {
                let _ = reader.value(column, row);
            }
        }
    }
});
