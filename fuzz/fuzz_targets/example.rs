// SPDX-License-Identifier: Apache-2.0
//! tf.Example: no panic, and the two ways to read a feature agree; tf.SequenceExample beside it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::tf_example::{Example, feature_len, find_feature, read_feature_into, read_ragged_into};
use penstock_record::tf_sequence_example::{feature_list_names, find_feature_list, write_feature_list};
use penstock_types::{DType, TensorSpec};

fuzz_target!(|data: &[u8]| {
    if let Ok(example) = Example::parse(data, "p") {
        for (name, feature) in example.features() {
            assert_eq!(find_feature(data, name).unwrap().as_ref(), Some(feature));
        }
    }
    for name in feature_list_names(data, "p").unwrap_or_default() {
        let Ok(name) = std::str::from_utf8(name) else { continue };
        let list = find_feature_list(data, name, "p").unwrap_or_default().unwrap_or_default();
        let step = TensorSpec { dtype: DType::I64, shape: vec![1] };
        let mut out = vec![0; 8 * list.len()];
        let _ = write_feature_list(&list, name, &step, &mut out, "p");
        let _ = list.lens(DType::F32);
    }
    for dtype in DType::ALL {
        if let Ok(len) = feature_len(data, "x", dtype, "p") {
            let mut out = vec![0; len * dtype.size()];
            let _ = read_ragged_into(data, "x", dtype, &mut out, "p");
        }
        for name in ["x", ""] {
            let mut out = vec![0; 2 * dtype.size()];
            let _ = read_feature_into(data, name, &TensorSpec { dtype, shape: vec![2] }, &mut out, "p");
        }
    }
});
