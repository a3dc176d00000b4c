// SPDX-License-Identifier: Apache-2.0
//! Fuzzes image decoding (JPEG, PNG, WebP, TIFF; as pixels and as labels), including libjpeg-turbo's C code: no panic, no access out of bounds, and the same key always
//! gives the same sample.
#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_record::image::{Augment, Crop, Geometry, ImageSpec, Layout, Mask, MaskSpec, decode_into, probe};
use penstock_types::DType;

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let _ = probe(data, "p");
    let crop = [Crop::None, Crop::Center { resize: 40 }, Crop::RANDOM, Crop::Pad { fill: 7 }][usize::from(choice) % 4];
    let is_wide = choice & 8 != 0;
    let augment = match choice & 4 {
        0 => Vec::new(),
        _ => vec![Augment::Rand { count: 2, magnitude: 9, bins: 31, fill: 0 }],
    };
    let spec = ImageSpec {
        channels: if is_wide { [1, 3, 4][usize::from(choice) % 3] } else { 3 },
        augment: if is_wide { Vec::new() } else { augment },
        crop,
        flip: 0.5,
        orient: choice & 16 != 0,
        exact: choice & 128 != 0,
        dtype: match choice & 32 {
            0 if is_wide => DType::U16,
            0 => DType::U8,
            _ => DType::F32,
        },
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
    if let (Ok(geometry), Ok(mask)) = (Geometry::of(data, &spec, 1, "p"), Mask::decode(data, 1 << 18, "p")) {
        let spec = MaskSpec { dtype: DType::I64, fill: 0, max_pixels: 1 << 18 };
        assert_eq!(mask.sample(&spec, &geometry).map(|labels| labels.len()), Ok(24 * 32 * 8));
    }
});
