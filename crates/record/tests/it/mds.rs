// SPDX-License-Identifier: Apache-2.0
//! Tests that shards written by MosaicML's own writer are read correctly, and that pickles, truncated shards and wrong
//! offset tables are rejected.

use std::collections::BTreeMap;

use crate::goldens;
use penstock_codec::{Codec, decompress_into};
use penstock_record::mds::{Column, Encoding, Shard, parse_index, sample_columns};
use penstock_types::{DType, Error};
use proptest::prelude::*;

fn shards(folder: &str) -> Vec<(Vec<Column>, Vec<u8>)> {
    let files = goldens::files("mds");
    let index = parse_index(&files[&format!("{folder}/index.json")], "index.json").unwrap();
    index
        .into_iter()
        .map(|info| {
            let stored = &files[&format!("{folder}/{}", info.name)];
            assert_eq!(stored.len() as u64, info.stored);
            let mut bytes = Vec::new();
            decompress_into(info.codec, stored, &mut bytes, info.size, &info.name).unwrap();
            assert_eq!(Shard::new(&bytes, "p").unwrap().len() as u64, info.samples);
            (info.columns, bytes)
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn shards_of_mosaicml_read_as_it_wrote_them() {
    let files = goldens::files("mds");
    for folder in ["plain", "zstd", "gz"] {
        let mut number = 0;
        for (columns, bytes) in shards(folder) {
            let shard = Shard::new(&bytes, "shard").unwrap();
            for at in 0..shard.len() {
                let parts = shard.columns(at, &columns).unwrap();
                let value = |name: &str| {
                    let column = columns.iter().position(|column| column.name == name).unwrap();
                    let part = parts[column];
                    (&columns[column].encoding, &bytes[part.offset as usize..][..part.size as usize])
                };
                let tensor = |name: &str| {
                    let (encoding, value) = value(name);
                    encoding.tensor(value, name).unwrap()
                };
                let want: serde_json::Value = serde_json::from_slice(&files[&format!("want/{number}")]).unwrap();
                assert_eq!(hex(value("bytes").1), want["bytes"]);
                assert_eq!(value("text").1, format!("sample {number} é").as_bytes());
                for name in ["fixed", "free", "typed", "f32"] {
                    assert_eq!(hex(tensor(name).1), want[name].as_str().unwrap(), "{name}");
                }
                assert_eq!(tensor("fixed").0.shape, [2, 3]);
                assert_eq!(tensor("free").0.shape, [number + 1]);
                assert_eq!(
                    (tensor("typed").0.dtype, tensor("typed").0.shape),
                    (DType::F32, vec![number + 1, number + 2])
                );
                assert_eq!(tensor("count").1, (number as i64 - 3).to_le_bytes());
                assert_eq!(tensor("u16").1, (number as u16 * 1000).to_le_bytes());
                assert_eq!((tensor("pil").0.shape, tensor("pil").1), (vec![2, 5], &[number as u8; 10][..]));
                assert_eq!(value("info").1, format!("{{\"at\": {number}}}").as_bytes());
                assert!(value("picture").1.starts_with(b"\x89PNG"));
                let (offset, len) = shard.span(at);
                let alone = sample_columns(&bytes[offset as usize..][..len as usize], &columns, "p").unwrap();
                assert!(alone.iter().zip(&parts).all(|(alone, part)| alone.offset + offset == part.offset));
                number += 1;
            }
        }
        assert_eq!(number, 7);
    }
}

fn index(edit: impl Fn(&mut serde_json::Value)) -> Result<Vec<penstock_record::mds::ShardInfo>, Error> {
    let mut json = serde_json::from_slice(&goldens::files("mds")["zstd/index.json"]).unwrap();
    edit(&mut json);
    parse_index(&serde_json::to_vec(&json).unwrap(), "index.json")
}

#[test]
fn indexes_that_are_not_read_say_why() {
    let error = |edit: &dyn Fn(&mut serde_json::Value)| index(edit).unwrap_err().to_string();
    assert_eq!(
        error(&|json| json["shards"][1]["compression"] = "br:11".into()),
        "MDS shards compressed by Brotli (`br`: shard.00001.mds.zstd) (index.json) is not supported by the MDS reader"
    );
    assert_eq!(
        error(&|json| json["version"] = 1.into()),
        "version 1 of MDS (index.json) is not supported by the MDS reader"
    );
    assert_eq!(
        error(&|json| drop(json["shards"][0]["column_sizes"].as_array_mut().unwrap().pop())),
        "index.json is not an MDS index: shard 0 has 11 column names, 11 encodings and 10 sizes"
    );
    assert!(
        parse_index(b"{}", "p").unwrap_err().to_string().starts_with("p is not an MDS index: missing field `version`")
    );
    let json_lines = br#"{"version": 2, "shards": [{"version": 2, "format": "json", "samples": 1, "compression": null,
        "columns": {"a": "int"}, "newline": "\n", "raw_data": {"basename": "shard.00000.json", "bytes": 9, "hashes": {}}}]}"#;
    assert_eq!(
        parse_index(json_lines, "d/index.json").unwrap_err().to_string(),
        "MosaicML Streaming's JSON Lines shards (format `json`) (d/index.json) is not supported by the MDS reader"
    );
}

#[test]
fn encodings_are_of_their_declared_types() {
    let array = |dtype| Encoding::Array { dtype, shape: None };
    for (text, want) in [
        ("str", Encoding::Text),
        ("str_decimal", Encoding::Text),
        ("str_int", Encoding::Digits(DType::I64)),
        ("str_float", Encoding::Digits(DType::F64)),
        ("uint32", Encoding::Scalar(DType::U32)),
        ("ndarray", array(None)),
        ("ndarray:uint64", array(Some(DType::U64))),
        ("ndarray:uint32:2,3", Encoding::Array { dtype: Some(DType::U32), shape: Some(vec![2, 3]) }),
        ("pkl", Encoding::Bytes),
        ("ndarray:complex64", Encoding::Bytes),
        ("quaternion", Encoding::Bytes),
    ] {
        let shards = index(|json| json["shards"][0]["column_encodings"][4] = text.into()).unwrap();
        assert_eq!((&shards[0].columns[4].encoding, shards[0].codec), (&want, Codec::Zstd), "{text}");
    }
}

#[test]
fn shard_whose_table_is_wrong_is_refused() {
    let (_, bytes) = shards("plain").remove(0);
    let error = |bytes: &[u8]| Shard::new(bytes, "a.mds").unwrap_err().to_string();
    assert_eq!(error(&bytes[..bytes.len() - 1]), "a.mds has 1,752 bytes, but its last sample ends at byte 1,753");
    assert_eq!(error(&bytes[..20]), "a.mds is not an MDS shard: its 20 bytes cannot contain the offsets of 5 samples");
    assert_eq!(
        error(b""),
        "a.mds is not an MDS shard: its 0 bytes cannot contain the offsets of an unknown number of samples"
    );
    let mut swapped = bytes.clone();
    swapped.copy_within(8..12, 16);
    swapped[12..16].copy_from_slice(&bytes[16..20]);
    assert_eq!(error(&swapped), "a.mds contains sample 2, which ends before it begins");
    let (columns, _) = shards("plain").remove(0);
    let error = sample_columns(&[0; 40], &columns, "sample 3").unwrap_err().to_string();
    assert_eq!(error, "sample 3 has 40 bytes, but its columns need 54");
}

#[test]
fn arrays_that_lie_are_refused() {
    let free = Encoding::Array { dtype: None, shape: None };
    for (value, want) in [
        (&b""[..], "v ends inside its array's header (have 0 bytes)"),
        (&[7, 4, 1], "v has an unknown element type (7)"),
        (&[32, 4, 1], "v has 0 bytes, but uint32 [1] needs 4"),
        (&[34, 8, 2], "v ends inside its array's header (have 3 bytes)"),
        (&[34, 4, 2, 0, 0, 0, 0], "v has 4 bytes, but float32 [2] needs 8"),
        (
            &[66, 11, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
            "v has 0 bytes, but float64 [18446744073709551615, 18446744073709551615] needs more than the address space",
        ),
    ] {
        assert_eq!(free.tensor(value, "v").unwrap_err().to_string(), want);
    }
}

proptest! {
    #[test]
    fn prop_damaged_shards_end_without_a_panic(at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
        let (columns, bytes) = shards("plain").remove(1);
        let mut damaged = bytes.clone();
        let at = at.index(damaged.len());
        damaged[at] = with;
        for bytes in [&damaged[..], &bytes[..cut.index(bytes.len())]] {
            let Ok(shard) = Shard::new(bytes, "p") else { continue };
            for at in 0..shard.len() {
                let Ok(parts) = shard.columns(at, &columns) else { continue };
                for part in parts {
                    let _ = columns[part.column].encoding.tensor(&bytes[part.offset as usize..][..part.size as usize], "p");
                }
            }
        }
        let mut json: BTreeMap<String, Vec<u8>> = goldens::files("mds");
        let mut json = json.remove("plain/index.json").unwrap();
        let at = cut.index(json.len());
        json[at] = with;
        let _ = parse_index(&json, "p");
    }
}
