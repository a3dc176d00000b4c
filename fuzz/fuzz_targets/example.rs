// SPDX-License-Identifier: Apache-2.0
//! Fuzzes tf.Example and tf.SequenceExample: no panic, and both ways to read a feature agree.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::tf_example::{Example, find_feature, read_feature_into};
use penstock_record::tf_sequence_example::{feature_list_names, find_feature_list};
use penstock_types::{DType, TensorSpec};

fuzz_target!(|data: &[u8]| {
    if let Ok(example) = Example::parse(data, "p") {
        for (name, feature) in example.features() {
            assert_eq!(find_feature(data, name).unwrap().as_ref(), Some(feature));
        }
    }
    for name in feature_list_names(data, "p").unwrap_or_default() {
        let Ok(name) = std::str::from_utf8(name) else { continue };
        let _ = find_feature_list(data, name, "p");
    }
    for dtype in DType::ALL {
        for name in ["x", ""] {
            let mut out = vec![0; 2 * dtype.size()];
            let _ = read_feature_into(data, name, &TensorSpec { dtype, shape: vec![2] }, &mut out, "p");
        }
    }
});
