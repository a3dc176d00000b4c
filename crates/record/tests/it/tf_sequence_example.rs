// SPDX-License-Identifier: Apache-2.0
//! Tests that tf.SequenceExample messages written by TensorFlow are read correctly.

use penstock_record::tf_example::{Example, Feature};
use penstock_record::tf_sequence_example::{feature_list_names, find_feature_list};
use proptest::prelude::*;

/// Output of TensorFlow 2.21's `tf.train.SequenceExample` with deterministic serialisation. Context: id = 5. Feature
/// lists: frames = f0, frame1, (empty); label = 1, -2, 3; score = [0.5], [1.5, 2.5], [].
const GOLDEN: &str = "0a0d0a0b0a02696412051a030a010512760a240a066672616d6573121a0a060a040a0266300a0a0a080a066672616d65310a0\
    40a020a000a270a056c6162656c121e0a051a030a01010a0e1a0c0a0afeffffffffffffffff010a051a030a01030a250a0573636f7265121c0a0812\
    060a040000003f0a0c120a0a080000c03f000020400a021200";

fn golden() -> Vec<u8> {
    let digits: Vec<u8> = GOLDEN.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[test]
fn sequence_of_tensorflow_reads_as_it_wrote_it() {
    let bytes = golden();
    assert_eq!(feature_list_names(&bytes, "p").unwrap(), [&b"frames"[..], b"label", b"score"]);
    let Some(Feature::Ints(id)) = Example::parse(&bytes, "p").unwrap().get("id").cloned() else { panic!("no id") };
    assert_eq!(id.iter().collect::<Vec<_>>(), [5]);
    let frames = find_feature_list(&bytes, "frames", "p").unwrap().unwrap();
    let frames: Vec<_> = frames.steps().iter().map(|step| step.clone().unwrap()).collect();
    assert_eq!(frames, [&b"f0"[..], b"frame1", b""].map(|frame| Feature::Bytes(vec![frame])));
    let labels = find_feature_list(&bytes, "label", "p").unwrap().unwrap();
    let ints = labels.steps().iter().flatten().flat_map(|step| match step {
        Feature::Ints(ints) => ints.iter().collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    });
    assert_eq!(ints.collect::<Vec<_>>(), [1, -2, 3]);
    let scores = find_feature_list(&bytes, "score", "p").unwrap().unwrap();
    assert_eq!(scores.steps().iter().flatten().map(Feature::len).collect::<Vec<_>>(), [1, 2, 0]);
    assert!(find_feature_list(&bytes, "none", "p").unwrap().is_none());
}

#[test]
fn sequence_that_is_cut_is_refused() {
    let error = find_feature_list(&golden()[..40], "score", "a record 3").unwrap_err().to_string();
    assert_eq!(error, "a record 3 is not a tf.SequenceExample: it ends inside a field");
}

/// Encodes a length-delimited field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut len = bytes.len();
    while len >= 128 {
        out.push(len as u8 | 128);
        len >>= 7;
    }
    out.push(len as u8);
    out.extend_from_slice(bytes);
    out
}

proptest! {
    #[test]
    fn prop_steps_packed_or_not_read_alike(steps: Vec<Vec<i16>>, packed: bool, split: bool) {
        let features: Vec<Vec<u8>> = steps.iter().map(|values| {
            let list: Vec<u8> = values.iter().flat_map(|&value| {
                let mut varint = Vec::new();
                let mut rest = i64::from(value) as u64;
                while rest >= 128 { varint.push(rest as u8 | 128); rest >>= 7; }
                varint.push(rest as u8);
                if packed { field(1, &varint) } else { [&[8][..], &varint].concat() }
            }).collect();
            field(1, &field(3, &list))
        }).collect();
        let (first, second) = features.split_at(if split { features.len() / 2 } else { 0 });
        let entry = [field(1, b"x"), field(2, &first.concat()), field(2, &second.concat())].concat();
        let bytes = field(2, &field(1, &entry));
        let list = find_feature_list(&bytes, "x", "p").unwrap().unwrap();
        prop_assert_eq!(list.len(), steps.len());
        for (step, values) in list.steps().iter().zip(&steps) {
            let Some(Feature::Ints(ints)) = step else { panic!("{step:?}") };
            prop_assert_eq!(ints.iter().collect::<Vec<_>>(), values.iter().map(|&value| i64::from(value)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn prop_noise_ends_without_a_panic(at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
        let mut bytes = golden();
        let at = at.index(bytes.len());
        bytes[at] = with;
        for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
            for name in ["frames", "label", "score"] {
                let _ = find_feature_list(bytes, name, "p");
            }
        }
    }
}
