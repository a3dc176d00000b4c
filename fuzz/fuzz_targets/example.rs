// SPDX-License-Identifier: Apache-2.0
//! tf.Example: no panic, and the two ways to read a feature agree.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::example::{Example, find_feature, read_feature_into};
use penstock_types::{DType, TensorSpec};

fuzz_target!(|data: &[u8]| {
    if let Ok(example) = Example::parse(data, "p") {
        for (name, feature) in example.features() {
            assert_eq!(find_feature(data, name).unwrap().as_ref(), Some(feature));
        }
    }
    for dtype in DType::ALL {
        for name in ["x", ""] {
            let mut out = vec![0; 2 * dtype.size()];
            let _ = read_feature_into(data, name, &TensorSpec { dtype, shape: vec![2] }, &mut out, "p");
        }
    }
});
