// SPDX-License-Identifier: Apache-2.0
//! Fuzzes image decoding, including libjpeg-turbo's C code: no panic, no access out of bounds, and the same key always
//! gives the same sample.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::image::{Crop, ImageSpec, Layout, decode_into, probe};
use penstock_types::DType;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let _ = probe(data, "p");
    let crop = [Crop::None, Crop::Center { resize: 40 }, Crop::RANDOM][usize::from(choice) % 3];
    let spec = ImageSpec {
        crop,
        flip: 0.5,
        orient: choice & 16 != 0,
        exact: choice & 128 != 0,
        dtype: if choice & 32 != 0 { DType::F32 } else { DType::U8 },
        layout: if choice & 64 != 0 { Layout::Chw } else { Layout::Hwc },
        max_pixels: 1 << 18,
        ..ImageSpec::new(24, 32)
    };
    let mut out = vec![0; spec.tensor().size_bytes().unwrap()];
    let mut again = vec![1; out.len()];
    let first = decode_into(data, &spec, u64::from(choice), &mut out, "p");
    let second = decode_into(data, &spec, u64::from(choice), &mut again, "p");
    assert_eq!(first, second);
    if first.is_ok() {
        assert!(out == again);
    }
});
