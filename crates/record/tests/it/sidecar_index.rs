// SPDX-License-Identifier: Apache-2.0
//! Tests that indexes in the formats of other programs yield the same records as a scan, and that stale indexes are
//! detected.

use penstock_record::sidecar_index::{parse_shard_list, parse_tar_index, parse_tfrecord_index};
use penstock_record::tar::{Members, Samples};
use penstock_record::tfrecord::{scan, write_frame};
use proptest::prelude::*;

/// Creates an index as DALI's `tfrecord2idx` does: offset and length of each frame.
fn dali_tfrecord(bytes: &[u8]) -> String {
    scan(bytes, "p").unwrap().iter().map(|span| format!("{} {}\n", span.offset, span.len + 16)).collect()
}

/// Creates an index as DALI's `wds2idx.py` does, in version 1.2.
fn dali_tar(bytes: &[u8]) -> String {
    let names: Vec<_> = Members::new(bytes, "p").map(Result::unwrap).collect();
    let samples: Vec<_> = Samples::new(bytes, "p").map(Result::unwrap).collect();
    let line = |sample: &penstock_record::tar::Sample<'_>| {
        let part = |part: &penstock_record::tar::SampleMember| {
            let name = &names.iter().find(|member| member.offset == part.offset).unwrap().name;
            format!("{} {} {} {}", part.ext, part.offset, part.size, String::from_utf8_lossy(name))
        };
        sample.parts.iter().map(part).collect::<Vec<_>>().join(" ") + "\n"
    };
    format!("v1.2 {}\n", samples.len()) + &samples.iter().map(line).collect::<String>()
}

fn ustar() -> Vec<u8> {
    let stored = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/ustar.tar.gz")).unwrap();
    let mut bytes = Vec::new();
    penstock_codec::decompress_into(penstock_codec::Codec::Gzip, &stored, &mut bytes, 1 << 20, "p").unwrap();
    bytes
}

#[test]
fn index_of_a_tar_gives_its_samples() {
    let bytes = ustar();
    let index = dali_tar(&bytes);
    assert!(index.starts_with("v1.2 2\njpg 1024 800 train/000.jpg cls 2560 1 train/000.cls\n"), "{index}");
    let want: Vec<_> = Samples::new(&bytes, "p").map(Result::unwrap).collect();
    assert_eq!(parse_tar_index(index.as_bytes(), bytes.len() as u64, "a.idx").unwrap(), want);
    let unnamed = parse_tar_index(b"v1.1 2\njpg 512 9 cls 1536 1\npng 2560 0\n", 4096, "a.idx").unwrap();
    assert_eq!(unnamed.iter().map(|sample| &*sample.key).collect::<Vec<_>>(), [b"0", b"1"]);
    assert_eq!((unnamed[0].offset, unnamed[0].len, unnamed[1].part("png").unwrap().offset), (0, 2048, 2560));
}

#[test]
fn indexes_that_do_not_fit_are_found_out() {
    let tar = |text: &str| parse_tar_index(text.as_bytes(), 4096, "a.idx").unwrap_err().to_string();
    assert_eq!(tar(""), "a.idx is not a DALI index: the file is empty");
    assert_eq!(tar("hello"), "a.idx is not an index: line 1 is `hello` (want `v1.2 SAMPLES`)");
    assert_eq!(tar("v1.2 2\njpg 512 9 a.jpg\n"), "a.idx lists 1 samples, but declares 2");
    assert_eq!(
        tar("v1.2 1\njpg 512\n"),
        "a.idx is not an index: line 2 is `jpg 512` (want `EXT OFFSET SIZE NAME` for each part)"
    );
    assert_eq!(
        tar("v1.2 1\njpg 512 9999 a.jpg\n"),
        "a.idx has 9,999 bytes at byte 512 in line 2, outside the object of 4,096 bytes: \
         the index is stale or belongs to a different object"
    );
    let record = |text: &str| parse_tfrecord_index(text.as_bytes(), 60, "a.idx").unwrap_err().to_string();
    assert_eq!(record("0 60 1\n"), "a.idx is not an index: line 1 is `0 60 1` (want `OFFSET LENGTH`)");
    assert_eq!(
        record("0 20\n20 20\n"),
        "a.idx ends at byte 40, but the object has 60 bytes: the index is stale or belongs to a different object"
    );
    for wrong in ["0 20\n21 20", "0 61", "0 15", "18446744073709551615 20", "0 18446744073709551615"] {
        assert!(record(wrong).ends_with("belongs to a different object"), "{wrong}");
    }
}

#[test]
fn shard_lists_of_wids_are_read() {
    let json = br#"{"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [
        {"url": "train-000.tar", "md5sum": "00", "nsamples": 17, "filesize": 4096}, {"url": "gs://b/train-001.tar"}]}"#;
    let shards = parse_shard_list(json, "index.json").unwrap();
    assert_eq!((shards[0].url.as_str(), shards[0].samples, shards[0].size), ("train-000.tar", Some(17), Some(4096)));
    assert_eq!((shards[1].url.as_str(), shards[1].samples), ("gs://b/train-001.tar", None));
    assert!(parse_shard_list(b"[]", "p").unwrap_err().to_string().starts_with("p is not a list of shards: "));
    let error = parse_shard_list(br#"{"wids_version": 2, "shardlist": []}"#, "p").unwrap_err().to_string();
    assert_eq!(error, "version 2 of wids (p) is not supported by the shard list reader");
}

proptest! {
    #[test]
    fn prop_index_of_a_tfrecord_is_its_scan(payloads: Vec<Vec<u8>>) {
        let mut bytes = Vec::new();
        payloads.iter().for_each(|payload| write_frame(payload, &mut bytes));
        let spans = parse_tfrecord_index(dali_tfrecord(&bytes).as_bytes(), bytes.len() as u64, "p").unwrap();
        prop_assert_eq!(spans, scan(&bytes, "p").unwrap());
    }

    #[test]
    fn prop_noise_ends_without_a_panic(text in "(v1\\.[0-3] [0-9]\n)?([a-z]{1,3} [0-9]{1,20} [0-9]{1,20} [a-z.]{0,4}[ \n]?){0,4}", len: u64) {
        let _ = parse_tar_index(text.as_bytes(), len, "p");
        let _ = parse_tfrecord_index(text.as_bytes(), len, "p");
        let _ = parse_shard_list(text.as_bytes(), "p");
    }
}
