// SPDX-License-Identifier: Apache-2.0
//! Tests that chunks written by zarr-python, numcodecs and h5py decode to the original values, and that damaged chunks
//! and unsupported filters are rejected.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::goldens;
use penstock_record::chunk::zarr::Array;
use penstock_record::chunk::{Step, copy_rows, decode_into, hdf5_steps};
use penstock_types::{DType, Error};
use proptest::prelude::*;

fn files() -> &'static BTreeMap<String, Vec<u8>> {
    static FILES: OnceLock<BTreeMap<String, Vec<u8>>> = OnceLock::new();
    FILES.get_or_init(|| goldens::files("chunk"))
}

fn array(name: &str) -> Result<Array, Error> {
    let json =
        [".zarray", "zarr.json"].into_iter().find_map(|file| files().get(&format!("zarr/{name}/{file}"))).unwrap();
    Array::parse(json, name)
}

fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> =
        files().keys().filter_map(|name| name.strip_prefix("zarr/")?.split('/').next()).collect();
    names.dedup();
    names
}

/// Reads the whole array by decoding every object and chunk.
fn read(name: &str) -> Result<Vec<u8>, Error> {
    let array = array(name)?;
    let (shape, element) = (&array.spec.shape, array.spec.dtype.size());
    let mut out = array.fill.repeat(array.spec.elements()?);
    for row in 0..array.grid()[0] {
        let stored = &files()[&format!("zarr/{name}/{}", array.key(&[row, 0]))];
        let mut chunk = vec![0; array.chunk_len()?];
        match &array.sharding {
            None => {
                decode_into(&array.steps, stored, &mut chunk, name)?;
                copy_rows(&chunk, &array.chunk_shape, &[row, 0], shape, element, 0..shape[0], &mut out)?;
            }
            Some(sharding) => {
                let (first, last) = (&stored[..sharding.index_len()], &stored[stored.len() - sharding.index_len()..]);
                let index = if sharding.index_first { first } else { last };
                for (at, span) in sharding.parse_index(index, stored.len() as u64, name)?.into_iter().enumerate() {
                    let Some((offset, len)) = span else { continue };
                    decode_into(&array.steps, &stored[offset as usize..][..len as usize], &mut chunk, name)?;
                    let place = [row * sharding.chunks() + at, 0];
                    copy_rows(&chunk, &array.chunk_shape, &place, shape, element, 0..shape[0], &mut out)?;
                }
            }
        }
    }
    Ok(out)
}

fn counted(dtype: DType) -> Vec<u8> {
    (0..35u8)
        .flat_map(|value| match dtype {
            DType::F32 => f32::from(value).to_le_bytes().to_vec(),
            DType::F64 => f64::from(value).to_le_bytes().to_vec(),
            dtype => u64::from(value).to_le_bytes()[..dtype.size()].to_vec(),
        })
        .collect()
}

#[test]
fn arrays_of_zarr_python_read_as_it_wrote_them() {
    let mut count = 0;
    for name in names() {
        let refused = match name {
            "v2_bz2" => "codec `bz2` (v2_bz2)",
            "v2_delta" => "codec `delta` (v2_delta)",
            "v2_fortran" => "Fortran order (v2_fortran)",
            "v3_transpose" => "codec `transpose` (v3_transpose)",
            _ => {
                assert!(read(name).unwrap() == counted(array(name).unwrap().spec.dtype), "{name}");
                count += 1;
                continue;
            }
        };
        assert_eq!(array(name).unwrap_err().to_string(), format!("{refused} is not supported by the Zarr reader"));
    }
    assert!(count >= 31, "{count}");
    assert_eq!(array("v3_fill").unwrap().fill, 9i32.to_le_bytes());
}

#[test]
fn keys_follow_the_metadata_s_encoding() {
    assert_eq!(array("v3_zstd").unwrap().key(&[1, 2]), "c/1/2");
    assert_eq!(array("v2_zlib").unwrap().key(&[1, 2]), "1.2");
    assert_eq!(array("v2_dots").unwrap().key(&[1, 2]), "1/2");
    assert_eq!((array("v2_zlib").unwrap().key(&[]), array("v3_zstd").unwrap().key(&[])), ("0".into(), "c".into()));
    assert_eq!(array("v3_shard").unwrap().grid(), [2, 1]);
}

#[test]
fn buffers_of_blosc_inflate_whatever_wrote_them() {
    for (name, packed) in files().iter().filter(|(name, _)| name.starts_with("blosc/") || name.starts_with("noise/")) {
        let want = &files()[&format!("{}.raw", name.split('/').next().unwrap())];
        let mut out = vec![0; want.len()];
        decode_into(&[Step::Blosc], packed, &mut out, name).unwrap();
        assert!(out == *want, "{name}");
    }
}

/// Number and parameters of an HDF5 filter.
type Filter = (u16, &'static [u32]);

#[test]
fn chunks_of_hdf5_decode_by_its_filters() {
    let want: Vec<u8> = (0..48i32).flat_map(i32::to_le_bytes).collect();
    let (deflate, shuffle, fletcher): (Filter, Filter, Filter) = ((1, &[4]), (2, &[4]), (3, &[]));
    for (name, filters) in [
        ("none", vec![]),
        ("deflate", vec![deflate]),
        ("shuffle", vec![shuffle, deflate]),
        ("fletcher", vec![fletcher]),
        ("all", vec![fletcher, shuffle, deflate]),
        ("all", vec![shuffle, deflate, fletcher]),
    ] {
        let steps = hdf5_steps(&filters, 0, name).unwrap();
        let mut out = vec![0; want.len()];
        let read = decode_into(&steps, &files()[&format!("h5/{name}")], &mut out, name);
        // Depending on its version, h5py applies the checksum first or last, so only one of the two orders can be
        // decoded.
        if name != "all" {
            read.unwrap();
            assert_eq!(out, want, "{name}");
        } else if read.is_ok() {
            assert_eq!(out, want);
        }
    }
    let all = [vec![fletcher, shuffle, deflate], vec![shuffle, deflate, fletcher]].map(|filters| {
        decode_into(&hdf5_steps(&filters, 0, "p").unwrap(), &files()["h5/all"], &mut vec![0; want.len()], "p").is_ok()
    });
    assert_eq!(all.iter().filter(|&&read| read).count(), 1);
    let mut odd = [0; 7];
    decode_into(&[Step::Fletcher32], &files()["h5/odd"], &mut odd, "p").unwrap();
    assert_eq!(odd, [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(hdf5_steps(&[deflate, shuffle], 0b01, "p").unwrap(), [Step::Unshuffle(4)]);
    let error = hdf5_steps(&[(4, &[])], 0, "a.h5").unwrap_err().to_string();
    assert_eq!(error, "the szip filter of a.h5 is not supported by the HDF5 chunk reader");
    for (number, name) in [(32_026, "the Blosc2 filter (32026)"), (32_100, "filter 32100")] {
        let error = hdf5_steps(&[(number, &[])], 0, "a.h5").unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name} of a.h5 is not supported")), "{error}");
    }
}

#[test]
fn damage_is_found_by_checksums_and_sizes() {
    let error = |steps: &[Step], bytes: &[u8], len| {
        decode_into(steps, bytes, &mut vec![0; len], "c/0").unwrap_err().to_string()
    };
    let mut bytes = files()["h5/fletcher"].clone();
    bytes[7] ^= 1;
    assert!(
        error(&[Step::Fletcher32], &bytes, 192).starts_with("c/0 is damaged: its Fletcher-32 does not match (want 0x")
    );
    let mut bytes = files()["zarr/v3_crc_only/c/0/0"].clone();
    bytes[3] ^= 1;
    assert!(error(&[Step::Crc32c], &bytes, 20).starts_with("c/0 is damaged: its CRC-32C does not match (want 0x"));
    assert_eq!(error(&[Step::Crc32c], b"abc", 20), "c/0 ends inside its checksum (have 3 bytes)");
    assert_eq!(error(&[], b"abc", 20), "c/0 is a chunk of 3 bytes (want 20)");
    let blosc = &files()["blosc/lz41"];
    assert_eq!(error(&[Step::Blosc], blosc, 20), "c/0 is a chunk of 80,004 bytes (want 20)");
    assert!(error(&[Step::Blosc], &blosc[..blosc.len() - 1], 80_004).starts_with("c/0 is a damaged Blosc buffer: "));
    let array = array("v3_shard").unwrap();
    let stored = &files()["zarr/v3_shard/c/0/0"];
    let sharding = array.sharding.unwrap();
    let index = &stored[stored.len() - sharding.index_len()..];
    assert!(sharding.parse_index(index, 10, "c/0").unwrap_err().to_string().starts_with("c/0 has chunk 0 at byte "));
    let error = sharding.parse_index(&index[1..], 10, "c/0").unwrap_err().to_string();
    assert_eq!(error, "c/0 has a shard index of 35 bytes (want 36)");
}

#[test]
fn metadata_that_are_none_say_why() {
    for (json, want) in [
        ("[]", "m is not valid Zarr array metadata: `zarr_format` is neither 2 nor 3"),
        (
            r#"{"zarr_format":3,"node_type":"group"}"#,
            "m is not valid Zarr array metadata: `node_type` is \"group\" (want \"array\")",
        ),
        (r#"{"zarr_format":2,"shape":[-1]}"#, "m is not valid Zarr array metadata: `shape` is not a valid shape"),
        (
            r#"{"zarr_format":2,"shape":[3],"chunks":[0]}"#,
            "m is not valid Zarr array metadata: `chunks` is [0], but the array has 1 axes",
        ),
        (
            r#"{"zarr_format":2,"shape":[3],"chunks":[2],"dtype":"<c8"}"#,
            "element type `<c8` (m) is not supported by the Zarr reader",
        ),
        (
            r#"{"zarr_format":2,"shape":[3],"chunks":[2],"dtype":"<i4","fill_value":0.5}"#,
            "m is not valid Zarr array metadata: `fill_value` 0.5 is not of type int32",
        ),
    ] {
        assert_eq!(Array::parse(json.as_bytes(), "m").unwrap_err().to_string(), want, "{json}");
    }
}

proptest! {
    #[test]
    fn prop_copy_rows_puts_every_element_where_it_belongs(
        shape in prop::collection::vec(1..6usize, 1..4), chunk in prop::collection::vec(1..5usize, 3), rows in (0..6usize, 0..6usize),
    ) {
        let chunk_shape = &chunk[..shape.len()];
        let rows = rows.0.min(shape[0])..rows.0.max(rows.1).min(shape[0]);
        let inner: usize = shape[1..].iter().product();
        let mut out = vec![0xffu8; 2 * rows.len() * inner];
        let grid: Vec<usize> = shape.iter().zip(chunk_shape).map(|(side, chunk)| side.div_ceil(*chunk)).collect();
        for number in 0..grid.iter().product() {
            let at = unravel(number, &grid);
            let data: Vec<u8> = (0..chunk_shape.iter().product::<usize>()).flat_map(|number| {
                let place = unravel(number, chunk_shape);
                let value = shape.iter().enumerate().fold(0, |value, (axis, side)| value * side + at[axis] * chunk_shape[axis] + place[axis]);
                (value as u16).to_le_bytes()
            }).collect();
            copy_rows(&data, chunk_shape, &at, &shape, 2, rows.clone(), &mut out).unwrap();
        }
        let want: Vec<u8> = (rows.start * inner..rows.end * inner).flat_map(|value| (value as u16).to_le_bytes()).collect();
        prop_assert_eq!(out, want);
    }

    #[test]
    fn prop_damaged_chunks_end_without_a_panic(which: prop::sample::Index, at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
        let all: Vec<_> = files().iter().filter(|(name, _)| !name.ends_with("raw")).collect();
        let (name, bytes) = all[which.index(all.len())];
        let mut bytes = bytes.clone();
        let at = at.index(bytes.len());
        bytes[at] = with;
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            let _ = Array::parse(bytes, name);
            let mut out = vec![0; if name.starts_with("blosc/") { 80_004 } else { 192 }];
            for steps in [&[Step::Blosc][..], &[Step::Fletcher32, Step::SizedLz4, Step::Unshuffle(4)], &[Step::Crc32c, Step::Swap(8)]] {
                let _ = decode_into(steps, bytes, &mut out, name);
            }
        }
    }
}

fn unravel(mut number: usize, shape: &[usize]) -> Vec<usize> {
    let mut at: Vec<usize> = shape
        .iter()
        .rev()
        .map(|side| {
            let place = number % side;
            number /= side;
            place
        })
        .collect();
    at.reverse();
    at
}
