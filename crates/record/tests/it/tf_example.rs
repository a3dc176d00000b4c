// SPDX-License-Identifier: Apache-2.0
//! Tests tf.Example against the rules of the wire format: golden bytes, unusual but valid encodings, and hostile bytes.

use std::collections::BTreeMap;

use penstock_record::tf_example::{Example, Feature, FeatureValue, encode_example, find_feature, read_feature_into};
use penstock_types::{DType, Error, TensorSpec};
use proptest::prelude::*;

fn spec(dtype: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec { dtype, shape: shape.to_vec() }
}

fn read(payload: &[u8], name: &str, dtype: DType, shape: &[usize]) -> Result<Vec<u8>, String> {
    let spec = spec(dtype, shape);
    let mut out = vec![0xaa; spec.size_bytes().unwrap()];
    match read_feature_into(payload, name, &spec, &mut out, "s3://b/k record 3") {
        Ok(()) => Ok(out),
        Err(error @ Error::Corrupt { .. }) => Err(error.to_string()),
        Err(other) => panic!("{other}"),
    }
}

/// Encodes a length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 128);
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// Encodes an Example with these `Feature` messages; the key comes first in each map entry.
fn example(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entries: Vec<_> = entries
        .iter()
        .map(|(name, feature)| field(1, &[field(1, name.as_bytes()), field(2, feature)].concat()))
        .collect();
    field(1, &entries.concat())
}

/// Example with x = bytes "ab", y = 1.0, z = [3, -1]; encoded by hand from tensorflow/core/example/*.proto.
#[rustfmt::skip]
const GOLDEN: &[u8] = &[
    0x0a, 0x32, // Example.features, 50 bytes
        0x0a, 0x0b, // an entry of Features.feature, 11 bytes
            0x0a, 0x01, b'x', // its key
            0x12, 0x06, 0x0a, 0x04, // its value: Feature.bytes_list
                0x0a, 0x02, b'a', b'b', // BytesList.value
        0x0a, 0x0d, 0x0a, 0x01, b'y',
            0x12, 0x08, 0x12, 0x06, // Feature.float_list
                0x0a, 0x04, 0x00, 0x00, 0x80, 0x3f, // FloatList.value, packed: 1.0
        0x0a, 0x14, 0x0a, 0x01, b'z',
            0x12, 0x0f, 0x1a, 0x0d, // Feature.int64_list
                0x0a, 0x0b, // Int64List.value, packed: 3, -1
                0x03, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
];

#[test]
fn encode_example_gives_the_golden_bytes() {
    let features =
        [("x", FeatureValue::Bytes(b"ab")), ("y", FeatureValue::Floats(&[1.0])), ("z", FeatureValue::Ints(&[3, -1]))];
    assert_eq!(encode_example(&features), GOLDEN);
}

#[test]
fn read_feature_reads_the_golden_bytes() {
    assert_eq!(read(GOLDEN, "x", DType::U8, &[2]).unwrap(), b"ab");
    assert_eq!(read(GOLDEN, "x", DType::I16, &[1]).unwrap(), b"ab");
    assert_eq!(read(GOLDEN, "y", DType::F32, &[1]).unwrap(), 1f32.to_le_bytes());
    assert_eq!(read(GOLDEN, "y", DType::F64, &[1]).unwrap(), 1f64.to_le_bytes());
    assert_eq!(read(GOLDEN, "z", DType::I8, &[2]).unwrap(), [3, 0xff]);
    assert_eq!(read(GOLDEN, "z", DType::I64, &[2, 1]).unwrap(), [3i64.to_le_bytes(), (-1i64).to_le_bytes()].concat());
    let all = Example::parse(GOLDEN, "p").unwrap();
    assert_eq!(all.features().iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["x", "y", "z"]);
    let Some(Feature::Ints(ints)) = all.get("z") else { panic!("z is ints") };
    assert_eq!(ints.iter().collect::<Vec<_>>(), [3, -1]);
    assert_eq!(find_feature(GOLDEN, "w").unwrap(), None);
}

#[test]
fn read_feature_of_wrong_name_kind_or_length_says_so() {
    let want = |name, dtype, shape: &[usize], text: &str| {
        assert_eq!(read(GOLDEN, name, dtype, shape).unwrap_err(), format!("s3://b/k record 3 {text}"));
    };
    want("w", DType::F32, &[1], "has no feature `w` (its features: `x`, `y`, `z`)");
    want("x", DType::I16, &[3, 4], "feature `x` has 2 bytes, want int16 [3, 4]: 24 bytes");
    want("y", DType::F32, &[2000], "feature `y` has 1 floats, want float32 [2000]: 2,000");
    want("y", DType::I16, &[1], "feature `y` is of kind float_list (1 values), want int16 [1]");
    want("z", DType::F32, &[2], "feature `z` is of kind int64_list (2 values), want float32 [2]");
    want("z", DType::U8, &[2], "feature `z` contains -1, which is not of type uint8");
    let text = read(&GOLDEN[..30], "x", DType::U8, &[2]).unwrap_err();
    assert_eq!(text, "s3://b/k record 3 is not a tf.Example: it ends inside a field");
    assert_eq!(
        read(b"", "x", DType::U8, &[2]).unwrap_err(),
        "s3://b/k record 3 has no feature `x` (the record has 0 features)"
    );
}

#[test]
fn read_feature_takes_lists_packed_and_not() {
    // FloatList.value and Int64List.value as unpacked fields between packed ones.
    let floats = [field(1, &1f32.to_le_bytes()), vec![0x0d, 0, 0, 0, 0x40], field(1, &[])].concat();
    let ints = [vec![0x08, 5, 0x08, 6], field(1, &[7, 8]), vec![0x08, 9]].concat();
    let payload = example(&[("f", field(2, &floats)), ("i", field(3, &ints))]);
    assert_eq!(read(&payload, "f", DType::F32, &[2]).unwrap(), [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat());
    assert_eq!(read(&payload, "i", DType::U8, &[5]).unwrap(), [5, 6, 7, 8, 9]);
    let torn = example(&[("f", field(2, &field(1, &[1, 2, 3]))), ("i", field(3, &field(1, &[0x80])))]);
    assert!(read(&torn, "f", DType::F32, &[1]).unwrap_err().ends_with("has a float list that ends inside a float"));
    assert!(read(&torn, "i", DType::I64, &[1]).unwrap_err().ends_with("ends inside a number"));
}

#[test]
fn read_feature_follows_protobufs_rules_of_merging() {
    let bytes = |value: &[u8]| field(1, &field(1, value));
    // Of two entries with equal names, the last replaces the first, even across two `features` messages.
    let payload = [example(&[("x", bytes(b"old")), ("y", bytes(b"y"))]), example(&[("x", bytes(b"new"))])].concat();
    assert_eq!(read(&payload, "x", DType::U8, &[3]).unwrap(), b"new");
    assert_eq!(read(&payload, "y", DType::U8, &[1]).unwrap(), b"y");
    let all = Example::parse(&payload, "p").unwrap();
    assert_eq!(all.get("x"), Some(&Feature::Bytes(vec![b"new"])));
    assert_eq!(all.features().len(), 2);
    // The last entry also replaces the first if it has no kind.
    let payload = example(&[("x", bytes(b"old")), ("x", vec![])]);
    assert_eq!(find_feature(&payload, "x").unwrap(), None);
    assert!(Example::parse(&payload, "p").unwrap().features().is_empty());
    // The value comes before the key, with unknown fields of every wire type in between.
    let unknown = [
        &[0x78, 1][..],
        &[0x79, 1, 2, 3, 4, 5, 6, 7, 8],
        &field(15, b"?"),
        &[0x7b, 0x08, 1, 0x7c], // a group
        &[0x7d, 1, 2, 3, 4],
    ]
    .concat();
    let list = [field(1, b"a"), unknown.clone()].concat();
    let feature = [unknown.clone(), field(1, &list)].concat();
    let entry = [field(2, &feature), unknown.clone(), field(1, b"x")].concat();
    let payload = [unknown.clone(), field(1, &[field(1, &entry)].concat()), unknown].concat();
    assert_eq!(find_feature(&payload, "x").unwrap(), Some(Feature::Bytes(vec![b"a"])));
    // Two pieces of a value are merged.
    let two = [field(1, b"x"), field(2, &bytes(b"a")), field(2, &bytes(b"b"))].concat();
    let payload = field(1, &field(1, &two));
    assert_eq!(find_feature(&payload, "x").unwrap(), Some(Feature::Bytes(vec![b"a", b"b"])));
    // In a oneof, a later field of another kind replaces the earlier one.
    let both = [bytes(b"a"), field(3, &field(1, &[5]))].concat();
    assert_eq!(find_feature(&example(&[("x", both)]), "x").unwrap().unwrap().kind(), "int64_list");
    // A known field number with another wire type counts as an unknown field.
    let payload = [vec![0x08, 1], example(&[("x", bytes(b"a"))])].concat();
    assert_eq!(find_feature(&payload, "x").unwrap(), Some(Feature::Bytes(vec![b"a"])));
    // An entry without a key has an empty name.
    let payload = field(1, &field(1, &field(2, &bytes(b"a"))));
    assert_eq!(find_feature(&payload, "").unwrap(), Some(Feature::Bytes(vec![b"a"])));
}

#[test]
fn example_name_that_is_no_text_errs() {
    let entry = [field(1, &[0xff]), field(2, &field(1, b""))].concat();
    let payload = field(1, &field(1, &entry));
    assert!(Example::parse(&payload, "p").unwrap_err().to_string().contains("not UTF-8"));
    assert!(read(&payload, "x", DType::U8, &[1]).unwrap_err().contains("has no feature `x` (its features: `\\xff`)"));
}

#[test]
fn many_equal_and_many_different_names_are_walked_once() {
    let entry = field(1, &[field(1, b"x"), field(2, &field(1, &field(1, b"a")))].concat());
    let payload = field(1, &entry).repeat(100_000);
    assert_eq!(find_feature(&payload, "x").unwrap(), Some(Feature::Bytes(vec![b"a"])));
    assert_eq!(Example::parse(&payload, "p").unwrap().features().len(), 1);
    let names: Vec<_> = (0..50_000).map(|n| format!("n{n}")).collect();
    let features: Vec<_> = names.iter().map(|name| (name.as_str(), FeatureValue::Ints(&[1]))).collect();
    assert_eq!(Example::parse(&encode_example(&features), "p").unwrap().features().len(), 50_000);
}

#[derive(Debug, Clone)]
enum Owned {
    Bytes(Vec<Vec<u8>>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

fn owned() -> impl Strategy<Value = Owned> {
    prop_oneof![
        any::<Vec<Vec<u8>>>().prop_map(Owned::Bytes),
        any::<Vec<f32>>().prop_map(Owned::Floats),
        any::<Vec<i64>>().prop_map(Owned::Ints),
    ]
}

fn bits(values: impl Iterator<Item = f32>) -> Vec<u32> {
    values.map(f32::to_bits).collect()
}

proptest! {
    #[test]
    fn prop_example_round_trips(features in prop::collection::btree_map(".{0,12}", owned(), 0..6)) {
        let spans: BTreeMap<&str, Vec<&[u8]>> = features
            .iter()
            .map(|(name, value)| match value {
                Owned::Bytes(values) => (name.as_str(), values.iter().map(Vec::as_slice).collect()),
                _ => (name.as_str(), Vec::new()),
            })
            .collect();
        let values: Vec<_> = features
            .iter()
            .map(|(name, value)| match value {
                Owned::Bytes(_) => (name.as_str(), FeatureValue::BytesList(&spans[name.as_str()])),
                Owned::Floats(values) => (name.as_str(), FeatureValue::Floats(values)),
                Owned::Ints(values) => (name.as_str(), FeatureValue::Ints(values)),
            })
            .collect();
        let payload = encode_example(&values);
        let all = Example::parse(&payload, "p").unwrap();
        prop_assert_eq!(all.features().len(), features.len());
        for (name, value) in &features {
            let found = find_feature(&payload, name).unwrap().unwrap();
            prop_assert_eq!(all.get(name), Some(&found));
            match (value, &found) {
                (Owned::Bytes(values), Feature::Bytes(found)) => prop_assert_eq!(values, found),
                (Owned::Floats(values), Feature::Floats(found)) => {
                    prop_assert_eq!(bits(values.iter().copied()), bits(found.iter()));
                }
                (Owned::Ints(values), Feature::Ints(found)) => {
                    prop_assert_eq!(values, &found.iter().collect::<Vec<_>>());
                }
                (value, found) => prop_assert!(false, "{:?} became {:?}", value, found),
            }
        }
    }

    #[test]
    fn prop_damaged_example_never_panics(cut in 0..=GOLDEN.len(), at in 0..GOLDEN.len(), byte: u8, dtype in 0..9usize) {
        let mut payload = GOLDEN.to_vec();
        payload[at] = byte;
        let payload = &payload[..cut];
        for name in ["x", "y", "z", ""] {
            let _ = read(payload, name, DType::ALL[dtype], &[2]);
            let _ = find_feature(payload, name);
        }
        let _ = Example::parse(payload, "p");
    }

    #[test]
    fn prop_noise_never_panics(payload: Vec<u8>) {
        let _ = read(&payload, "x", DType::F32, &[2]);
        let _ = Example::parse(&payload, "p");
    }
}
