// SPDX-License-Identifier: Apache-2.0
//! Tests that images written by Pillow decode to the values that Pillow and torchvision compute, and that damaged,
//! oversized and unsupported images are rejected.
//!
//! The tolerances are: none for a whole image that is not resized; 1 for an image that is resized from full scale; a
//! mean difference of 2.5 for a JPEG that is first decoded at a smaller scale. That scale uses another filter than
//! Pillow, so the difference is not an error.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::goldens;
use penstock_record::image::{Crop, ImageSpec, Kind, Layout, decode_into, probe};
use penstock_types::{DType, Error};
use proptest::prelude::*;

fn files() -> &'static BTreeMap<String, Vec<u8>> {
    static FILES: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| goldens::files("image"))
}

fn images() -> impl Iterator<Item = (&'static str, &'static [u8])> {
    files()
        .iter()
        .filter(|(name, _)| name.ends_with("jpg") || name.ends_with("png"))
        .map(|(name, bytes)| (&**name, &**bytes))
}

fn decode(bytes: &[u8], spec: &ImageSpec, key: u64, name: &str) -> Vec<u8> {
    spec.check().unwrap();
    let mut out = vec![7; spec.tensor().size_bytes().unwrap()];
    decode_into(bytes, spec, key, &mut out, name).unwrap();
    out
}

fn problem(bytes: &[u8], spec: &ImageSpec) -> String {
    let mut out = vec![0; spec.tensor().size_bytes().unwrap()];
    decode_into(bytes, spec, 1, &mut out, "a.jpg").unwrap_err().to_string()
}

/// Returns the mean and the maximum difference of two images.
fn apart(have: &[u8], want: &[u8]) -> (f64, u8) {
    assert_eq!(have.len(), want.len());
    let apart = || have.iter().zip(want).map(|(have, want)| have.abs_diff(*want));
    (apart().map(f64::from).sum::<f64>() / have.len() as f64, apart().max().unwrap())
}

#[test]
fn images_not_resized_are_pillow_s_bytes() {
    let mut count = 0;
    for (name, bytes) in images() {
        let Some(want) = files().get(&format!("{name}.full")) else { continue };
        let probe = probe(bytes, name).unwrap();
        assert_eq!(probe.kind, if name.ends_with("jpg") { Kind::Jpeg } else { Kind::Png });
        assert!(decode(bytes, &ImageSpec::new(probe.height, probe.width), 1, name) == *want, "{name}");
        count += 1;
    }
    assert!(count >= 15);
}

#[test]
fn images_resized_are_pillow_s_within_the_tolerance() {
    for (name, bytes) in images() {
        let mut spec = ImageSpec { orient: name.starts_with("exif"), ..ImageSpec::new(24, 32) };
        let mut wants = vec![(Crop::None, 0, "none".to_owned()), (Crop::Center { resize: 40 }, 0, "center".to_owned())];
        wants.extend((1..=3).map(|key| (Crop::RANDOM, key, format!("random.{key}"))));
        for (crop, key, suffix) in wants {
            spec.crop = crop;
            let have = decode(bytes, &spec, key, name);
            let (mean, most) = apart(&have, &files()[&format!("{name}.{suffix}")]);
            let (mean_limit, max_limit) = if name.starts_with("large") { (2.5, 60) } else { (0.5, 1) };
            assert!(mean <= mean_limit && most <= max_limit, "{name}.{suffix}: mean {mean:.3}, most {most}");
            let exact = decode(bytes, &ImageSpec { exact: true, ..spec.clone() }, key, name);
            let (mean, most) = apart(&exact, &files()[&format!("{name}.{suffix}")]);
            assert!(mean <= 0.5 && most <= 1, "{name}.{suffix}, exact: mean {mean:.3}, most {most}");
        }
    }
}

#[test]
fn orientation_is_left_alone_unless_asked() {
    let plain = decode(&files()["exif1.jpg"], &ImageSpec::new(33, 47), 1, "1");
    for orientation in 1..=8 {
        let name = format!("exif{orientation}.jpg");
        assert_eq!(probe(&files()[&name], &name).unwrap().orientation, orientation);
        assert!(decode(&files()[&name], &ImageSpec::new(33, 47), 1, &name) == plain);
    }
}

#[test]
fn flip_layout_and_normalisation_are_those_of_the_plain_sample() {
    for (name, bytes) in images() {
        let orient = name.starts_with("exif");
        let plain = ImageSpec { crop: Crop::RANDOM, orient, ..ImageSpec::new(24, 32) };
        let rgb = decode(bytes, &plain, 5, name);
        let at = |y: usize, x: usize, c: usize| rgb[(y * 32 + x) * 3 + c];
        for (flip, layout, dtype) in [0.0, 1.0].into_iter().flat_map(|flip| {
            [Layout::Hwc, Layout::Chw]
                .into_iter()
                .flat_map(move |layout| [DType::U8, DType::F32].map(|dtype| (flip, layout, dtype)))
        }) {
            let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
            let spec = ImageSpec { flip, layout, dtype, mean, std, ..plain.clone() };
            let have = decode(bytes, &spec, 5, name);
            for (number, value) in have.chunks_exact(dtype.size()).enumerate() {
                let (y, x, c) = match layout {
                    Layout::Hwc => (number / 96, number / 3 % 32, number % 3),
                    Layout::Chw => (number / 32 % 24, number % 32, number / 768),
                };
                let want = at(y, if flip == 1.0 { 31 - x } else { x }, c);
                match dtype {
                    DType::U8 => assert_eq!(value, [want], "{name}"),
                    _ => {
                        let value = f32::from_le_bytes(value.try_into().unwrap());
                        let want = (f32::from(want) / 255.0 - mean[c]) / std[c];
                        assert!((value - want).abs() <= 1e-5, "{name}: {value} {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn half_of_the_keys_flip() {
    let spec = ImageSpec { flip: 0.5, ..ImageSpec::new(8, 8) };
    let bytes = &files()["420.jpg"];
    let plain = decode(bytes, &ImageSpec::new(8, 8), 0, "p");
    let flipped = (0..200).filter(|&key| decode(bytes, &spec, key, "p") != plain).count();
    assert!((70..=130).contains(&flipped), "{flipped} of 200");
}

#[test]
fn absurd_sizes_are_refused_before_memory_is_taken() {
    let mut bytes = files()["420.jpg"].clone();
    let frame = bytes.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    bytes[frame + 5..frame + 9].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    let spec = ImageSpec::new(24, 32);
    assert_eq!(
        problem(&bytes, &spec),
        "a.jpg is an image of 65,535 x 65,535 pixels (allowed: 1 to 100,000,000 pixels)"
    );
    let spec = ImageSpec { max_pixels: 47 * 33 - 1, ..spec };
    assert_eq!(problem(&files()["rgb.png"], &spec), "a.jpg is an image of 47 x 33 pixels (allowed: 1 to 1,550 pixels)");
    bytes[frame + 5..frame + 9].copy_from_slice(&[0, 0, 0, 47]);
    assert_eq!(problem(&bytes, &spec), "a.jpg is an image of 47 x 0 pixels (allowed: 1 to 1,550 pixels)");
}

/// Found by the fuzzer: the png crate accepts a palette that does not consist of whole colours, and more alpha values
/// than colours.
#[test]
fn palette_that_is_no_list_of_colours_is_refused() {
    let chunk = |name: &[u8; 4], body: &[u8]| {
        let named = [&name[..], body].concat();
        [&(body.len() as u32).to_be_bytes()[..], &named, &penstock_codec::crc32(&named).to_be_bytes()].concat()
    };
    let header = [0, 0, 0, 2, 0, 0, 0, 2, 8, 3, 0, 0, 0];
    let picture = |palette: &[u8], alphas: &[u8]| {
        let alphas = if alphas.is_empty() { Vec::new() } else { chunk(b"tRNS", alphas) };
        let parts =
            [chunk(b"IHDR", &header), chunk(b"PLTE", palette), alphas, chunk(b"IDAT", b"x"), chunk(b"IEND", b"")];
        [&b"\x89PNG\r\n\x1a\n"[..], &parts.concat()].concat()
    };
    let spec = ImageSpec::new(8, 8);
    let refused = |palette: &[u8], alphas: &[u8]| problem(&picture(palette, alphas), &spec);
    assert_eq!(refused(&[7; 49], &[]), "a.jpg is a damaged PNG: its palette has 49 bytes and 0 alpha values");
    for (palette, alphas) in [(&[7; 3][..], &[1; 2][..]), (&[], &[]), (&[7; 1], &[]), (&[7; 900], &[])] {
        assert!(refused(palette, alphas).starts_with("a.jpg is a damaged PNG: "), "{palette:?} {alphas:?}");
    }
}

#[test]
fn cut_images_are_refused_wherever_the_crop_lies() {
    for name in ["420.jpg", "largeprogressive.jpg", "large420.jpg", "rgb.png", "palette.png"] {
        let bytes = &files()[name];
        for crop in [Crop::None, Crop::RANDOM] {
            let spec = ImageSpec { crop, ..ImageSpec::new(24, 32) };
            for len in [bytes.len() / 4, bytes.len() / 2, bytes.len() * 9 / 10] {
                problem(&bytes[..len], &spec);
            }
        }
    }
    let bytes = &files()["420.jpg"];
    let text = problem(&bytes[..bytes.len() - 20], &ImageSpec::new(24, 32));
    let len = penstock_types::with_separators(bytes.len() as u64 - 20);
    assert_eq!(text, format!("a.jpg is a truncated JPEG (no end marker in its {len} bytes)"));
}

/// libjpeg ignores bytes between markers, and so do Pillow and torchvision.
#[test]
fn stray_bytes_between_markers_are_passed_over() {
    let bytes = &files()["420.jpg"];
    let spec = ImageSpec { crop: Crop::Center { resize: 40 }, ..ImageSpec::new(24, 32) };
    let want = decode(bytes, &spec, 1, "420.jpg");
    let table = bytes.windows(2).position(|pair| pair == [0xff, 0xdb]).unwrap();
    for stray in [&b"junk"[..], &[0], &[0xff], &[0xff, 0], &[1, 0xff, 0, 0xff, 0xff], &[0xff, 0xd0, 9], &[0; 5000]] {
        let odd = [&bytes[..table], stray, &bytes[table..]].concat();
        assert!(decode(&odd, &spec, 1, "odd.jpg") == want, "{stray:?}");
    }
    assert!(problem(&[&[0xff, 0xd8][..], &[7; 90]].concat(), &spec).contains("ends inside its JPEG headers"));
}

#[test]
fn other_kinds_are_refused_by_name() {
    let spec = ImageSpec::new(24, 32);
    for (head, want) in [
        (&b"GIF89a.."[..], "GIF (a.jpg) is not supported by image decoding (JPEG, PNG, WebP, TIFF)"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "a.jpg is a damaged WebP: IO Error: failed to fill whole buffer"),
        (
            b"II*\0",
            "a.jpg cannot be decoded as TIFF: failed to fill whole buffer (if another program can read the image, convert it to PNG)",
        ),
        (b"hello", "a.jpg is not an image (it begins `hello`)"),
        (
            b"",
            "a.jpg has no image (0 bytes or a null); skip such samples with on_error=\"skip\"; to keep samples with a null, give the field a default or a mask",
        ),
        (b"\xff\xd8\xff", "a.jpg ends inside its JPEG headers (byte 2 of 3)"),
        (b"\xff\xd8\xff\xc3\0\x0b\x08\0\x10\0\x10", "a.jpg ends inside its JPEG headers (byte 2 of 11)"),
        (b"\xff\xd8\xff\xc3\0\x09\x08\0\x10\0\x10\x01\0", "lossless JPEG (a.jpg) is not supported by image decoding"),
        (b"\xff\xd8\xff\xc0\0\x09\x0c\0\x10\0\x10\x01\0", "12-bit JPEG (a.jpg) is not supported by image decoding"),
        (b"\x89PNG\r\n\x1a\n", "a.jpg is a damaged PNG: its 8 bytes do not begin with a header"),
    ] {
        assert_eq!(problem(head, &spec), want);
    }
    let mut out = vec![0; 24 * 32 * 3];
    assert!(matches!(decode_into(b"GIF89a", &spec, 1, &mut out, "p"), Err(Error::Unsupported { .. })));
}

#[test]
fn specs_that_cannot_be_are_refused() {
    let base = ImageSpec::new(224, 224);
    for (spec, want) in [
        (ImageSpec { height: 0, ..base.clone() }, "image: 0 x 224 is not a valid image size"),
        (ImageSpec { dtype: DType::I64, ..base.clone() }, "image: dtype must be uint8, uint16 or float32 (got int64)"),
        (ImageSpec { flip: 1.5, ..base.clone() }, "image: flip must be a probability from 0 to 1 (got 1.5)"),
        (
            ImageSpec { std: [0.0; 3], ..base.clone() },
            "image: mean must be finite, and std finite and non-zero (got [0.0, 0.0, 0.0] and [0.0, 0.0, 0.0])",
        ),
        (
            ImageSpec { crop: Crop::Center { resize: 200 }, ..base.clone() },
            "image: a crop of 224 x 224 does not fit an image resized to 200",
        ),
        (
            ImageSpec { crop: Crop::Random { area: (0.0, 1.0), ratio: (1.0, 1.0) }, ..base.clone() },
            "image: no crop can have area 0..1 and ratio 1..1",
        ),
    ] {
        assert_eq!(spec.check().unwrap_err().to_string(), want);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn prop_damaged_images_end_without_a_panic(which in 0..40usize, at: prop::sample::Index, with: u8, cut: prop::sample::Index, key: u64) {
        let all: Vec<_> = images().collect();
        let (name, bytes) = all[which % all.len()];
        let mut bytes = bytes.to_vec();
        let at = at.index(bytes.len());
        bytes[at] = with;
        let spec = ImageSpec { crop: Crop::RANDOM, orient: true, max_pixels: 1 << 20, ..ImageSpec::new(9, 5) };
        let mut out = vec![0; 9 * 5 * 3];
        let _ = decode_into(&bytes, &spec, key, &mut out, name);
        let _ = decode_into(&bytes[..cut.index(bytes.len())], &spec, key, &mut out, name);
    }
}
