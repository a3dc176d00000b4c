// SPDX-License-Identifier: Apache-2.0
//! Measures how many images per second one thread decodes: `image_rate FOLDER SECONDS` prints one line per mode.
//! `benches/image_decode.py` runs it and compares it with Pillow and torchvision.
#![allow(clippy::print_stdout)]

use penstock_record::image::{Crop, ImageSpec, Layout, decode_into};
use penstock_types::{DType, Stopwatch};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(seconds)) = (arguments.next(), arguments.next().and_then(|text| text.parse::<f64>().ok()))
    else {
        println!("image_rate FOLDER SECONDS");
        return;
    };
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let images: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
    let random = ImageSpec { crop: Crop::RANDOM, flip: 0.5, ..ImageSpec::new(224, 224) };
    let normalised = ImageSpec {
        dtype: DType::F32,
        layout: Layout::Chw,
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
        ..random.clone()
    };
    let center = ImageSpec { crop: Crop::Center { resize: 256 }, ..ImageSpec::new(224, 224) };
    for (name, spec) in [("random-uint8", random), ("random-float32-chw", normalised), ("center-uint8", center)] {
        let mut out = vec![0; spec.tensor().size_bytes().unwrap()];
        let (mut count, watch) = (0u64, Stopwatch::start());
        while watch.elapsed().as_secs_f64() < seconds {
            let image = &images[count as usize % images.len()];
            decode_into(image, &spec, count, &mut out, "image").unwrap();
            count += 1;
        }
        println!("{name} {:.1}", count as f64 / watch.elapsed().as_secs_f64());
    }
}
