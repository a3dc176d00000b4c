// SPDX-License-Identifier: Apache-2.0
//! Fuzzes MDS shards and their index: no panic, and no value outside its sample.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::mds::{Column, Encoding, Shard, parse_index};
use penstock_types::DType;

fuzz_target!(|data: &[u8]| {
    let _ = parse_index(data, "p");
    let column = |encoding, size| Column { name: String::new(), encoding, size };
    let columns = [
        column(Encoding::Array { dtype: None, shape: None }, None),
        column(Encoding::Array { dtype: Some(DType::F32), shape: None }, None),
        column(Encoding::Scalar(DType::I64), Some(8)),
        column(Encoding::Pixels, None),
    ];
    for column in &columns {
        let _ = column.encoding.tensor(data, "p");
    }
    let Ok(shard) = Shard::new(data, "p") else { return };
    for at in 0..shard.len() {
        let (offset, len) = shard.span(at);
        for part in shard.columns(at, &columns).unwrap_or_default() {
            assert!(part.offset >= offset && part.offset + part.size <= offset + len);
            let value = &data[part.offset as usize..][..part.size as usize];
            if let Ok((spec, data)) = columns[part.column].encoding.tensor(value, "p") {
                assert_eq!(spec.size_bytes().unwrap(), data.len());
            }
        }
    }
});
