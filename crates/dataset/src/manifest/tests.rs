// SPDX-License-Identifier: Apache-2.0
use bytes::Bytes;
use penstock_store::{Memory, PutOptions, Store, Version};
use penstock_types::{Deadline, Url};
use proptest::prelude::*;

use super::*;

fn indexed(name: &str, keys: &[&[u8]], url: &str) -> Result<Manifest> {
    let store = Memory::named(name);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for key in keys {
            let body = if key.ends_with(b"/") { Bytes::new() } else { Bytes::from_static(b"x") };
            store.put(&Key::new(key.to_vec()), vec![body], &PutOptions::default(), Deadline::NEVER).await?;
        }
        let url: Url = url.parse()?;
        index(&store, &url.key.clone(), &url, Deadline::NEVER).await
    })
}

fn keys(manifest: &Manifest) -> Vec<String> {
    manifest.objects.iter().map(|entry| entry.key.to_string()).collect()
}

#[test]
fn index_lists_the_folder_and_not_its_longer_neighbour() {
    let manifest = indexed("index-a", &[b"d/a.tfrecord.gz", b"d/b", b"dd/c", b"d/"], "memory://index-a/d").unwrap();
    assert_eq!(
        (keys(&manifest), manifest.url.as_str()),
        (vec!["a.tfrecord.gz".into(), "b".into()], "memory://index-a/d/")
    );
    assert_eq!(manifest.objects[0].codec, Codec::Gzip);
    assert_eq!(manifest.objects[0].format, RecordFormat::TfRecord);
    assert!(manifest.objects[0].version.is_some() && !manifest.objects[0].digests.is_empty());
}

#[test]
fn index_skips_our_own_state_at_any_level() {
    let listed: [&[u8]; 4] = [b".penstock/stage/journal", b"a", b"x/.penstock-y/z", b"x/b"];
    assert_eq!(keys(&indexed("index-b", &listed, "memory://index-b/").unwrap()), ["a", "x/b"]);
}

#[test]
fn index_of_one_object_is_relative_to_its_folder() {
    let manifest = indexed("index-c", &[b"p/q/one.npy", b"p/q/one.npy2"], "memory://index-c/p/q/one.npy").unwrap();
    assert_eq!((keys(&manifest), manifest.url.as_str()), (vec!["one.npy".into()], "memory://index-c/p/q/"));
}

#[test]
fn narrowed_manifest_is_that_of_the_folder_or_object() {
    let all: [&[u8]; 4] = [b"a/x.npy", b"a/y.npy", b"ab/z.npy", b"w.npy"];
    let whole = indexed("index-n", &all, "memory://index-n/").unwrap();
    for part in ["", "a/", "a", "a/x.npy", "w.npy"] {
        let url = format!("memory://index-n/{part}");
        let listed = indexed("index-n", &[], &url).unwrap();
        let narrowed = whole.clone().narrowed(&url.parse().unwrap()).unwrap();
        assert_eq!((keys(&narrowed), &narrowed.url), (keys(&listed), &listed.url), "{part}");
    }
    for url in ["memory://index-n/b", "memory://index-n/w.npy/"] {
        let error = whole.clone().narrowed(&url.parse().unwrap()).unwrap_err();
        assert_eq!(error.code(), "not-found", "{url}");
    }
    let part = indexed("index-n", &[], "memory://index-n/a/").unwrap();
    assert_eq!(part.narrowed(&"memory://index-n/ab/".parse().unwrap()).unwrap_err().code(), "not-found");
}

#[test]
fn index_of_nothing_is_not_found() {
    let error = indexed("index-d", &[b"a"], "memory://index-d/nothing/").unwrap_err();
    assert_eq!(error.code(), "not-found");
    assert!(error.to_string().contains("memory://index-d/nothing/"), "{error}");
}

#[test]
fn manifest_order_and_fingerprint_are_those_of_the_inflated_copy() {
    let make = |names: &[&str]| {
        Manifest::new("memory://m/".into(), names.iter().map(|name| Entry::new(Key::from(*name), 1)).collect())
    };
    let (stored, staged) = (make(&["a-b.gz", "a.gz", "c.zst"]), make(&["c", "a", "a-b"]));
    assert_eq!(keys(&stored), ["a.gz", "a-b.gz", "c.zst"]);
    assert_eq!(keys(&staged), ["a", "a-b", "c"]);
    assert_eq!(stored.fingerprint(&[]), staged.fingerprint(&[]));
    assert_eq!(stored.fingerprint(&[1, 2, 3]), staged.fingerprint(&[1, 2, 3]));
    assert_ne!(stored.fingerprint(&[1, 2, 3]), staged.fingerprint(&[1, 3, 2]));
    assert_ne!(make(&["a"]).fingerprint(&[]), make(&["b"]).fingerprint(&[]));
}

#[test]
fn manifest_of_another_kind_is_refused() {
    for (text, says) in [
        (&b"{}"[..], "is not a Penstock manifest"),
        (b"[1", "is not a Penstock manifest"),
        (b"{\"penstock_manifest\":3}", "version 3"),
        (b"{\"penstock_manifest\":1,\"url\":\"u\",\"created_s\":0,\"objects\":[{\"key\":\"a\",\"size\":-1}]}", "manifest"),
        (
            b"{\"penstock_manifest\":1,\"url\":\"u\",\"created_s\":0,\"objects\":[{\"key\":\"a\",\"size\":1,\"codec\":\"none\",\"format\":\"raw\"},{\"key\":\"a\",\"size\":1,\"codec\":\"none\",\"format\":\"raw\"}]}",
            "twice",
        ),
    ] {
        let error = Manifest::from_json(text, "m.json").unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn manifest_names_formats_by_suffix() {
    let of = |name: &str| RecordFormat::of_name(name.as_bytes());
    assert_eq!(of("a/b.TFRecord.gz"), RecordFormat::TfRecord);
    assert_eq!(of("train.tfrecord-00001-of-00100"), RecordFormat::TfRecord);
    assert_eq!((of("a.tfrec"), of("a.tfrec.GZ")), (RecordFormat::TfRecord, RecordFormat::TfRecord));
    assert_eq!(
        (of("x.tar.zst"), of("v.npy"), of("i.JPEG")),
        (RecordFormat::Tar, RecordFormat::Npy, RecordFormat::Jpeg)
    );
    assert_eq!(of("notes.tfrecord/readme"), RecordFormat::Raw);
}

proptest! {
    #[test]
    fn prop_manifest_round_trips_any_key(names in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 1..40), 0..20)) {
        let objects = names.into_iter().enumerate().map(|(at, name)| {
            let mut entry = Entry::new(Key::new(name), at as u64);
            entry.version = (at % 2 == 0).then(|| Version(format!("\"v{at}\"")));
            entry.modified_s = (at % 3 == 0).then_some(1.7e9 + at as f64);
            entry.digests = ["crc32:00c0ffee", "crc32c@8388608:00c0ffee", "md5@5242880:00112233445566778899aabbccddeeff"]
                [..at % 4].iter().map(|digest| digest.parse().unwrap()).collect();
            entry.records = (at % 4 == 0).then_some(at as u64);
            entry.origin = (at % 5 == 0).then(|| Box::new(Origin {
                encoded: [Codec::None, Codec::Gzip, Codec::Zstd][at % 3],
                transform: (at % 2 == 0).then(|| "decompress,zstd:3".to_owned()),
                modified_s: (at % 2 == 1).then_some(1.6e9),
                ..Origin::of(&Entry::new(Key::new(vec![0xff, 0x2f]), 3))
            }));
            entry.decompressed = (at % 6 == 0).then(|| Box::new(Decompressed { size: 9, digests: vec!["crc32c:00c0ffee".parse().unwrap()] }));
            entry
        });
        let mut manifest = Manifest::new("memory://m/".into(), objects.collect());
        manifest.created_s = 1.7e9; // a float in JSON need not be exact to the last bit
        let json = manifest.to_json().unwrap();
        prop_assert_eq!(&Manifest::from_bytes(&json, "m").unwrap(), &manifest);
        let parquet = manifest.to_parquet().unwrap();
        prop_assert_eq!(&Manifest::from_bytes(&parquet, "m").unwrap(), &manifest);
    }

    /// A sealed Parquet file with a flipped bit or a missing end is rejected with one error.
    #[test]
    fn prop_manifest_damaged_parquet_is_one_error(at in 0usize..6000, bit in 0u8..8, cut: bool) {
        let mut bytes = small().to_parquet().unwrap();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
        let error = Manifest::from_bytes(&bytes, "m").map(|manifest| manifest.objects.len());
        prop_assert!(error.is_err(), "{at} {bit} {cut}: {error:?}");
    }

    /// Without the seal, damage is not detected; reading such a file must still end without a panic.
    #[test]
    fn prop_manifest_unsealed_parquet_is_survived(at in 28usize..6000, byte: u8, more in 28usize..6000, other: u8) {
        let mut bytes = small().to_parquet().unwrap();
        bytes[4..12].fill(b'?');
        let len = bytes.len();
        bytes[28 + at % (len - 28)] = byte;
        bytes[28 + more % (len - 28)] = other;
        let _ = Manifest::from_bytes(&bytes, "m");
    }

    #[test]
    fn prop_manifest_reader_survives_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Manifest::from_json(&bytes, "m");
    }
}

#[test]
fn manifest_is_replaced_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.json");
    let mut first = Manifest::new("memory://m/".into(), vec![Entry::new(Key::from("a"), 1)]);
    first.created_s = 1.7e9;
    first.save(&path).unwrap();
    first.save(&path).unwrap();
    assert_eq!(Manifest::load(&path).unwrap(), first);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert_eq!(first.save(&folder.path().join("no/m.json")).unwrap_err().code(), "not-found");
}

fn small() -> Manifest {
    let objects = (0..200).map(|at| {
        let mut entry = Entry::new(Key::from(format!("d/{at:04}.tfrecord.gz").as_str()), at * 7);
        entry.version = (at % 2 == 0).then(|| Version(format!("\"{at:032x}\"")));
        entry.digests =
            vec!["crc32c:00c0ffee".parse().unwrap(), "md5:00112233445566778899aabbccddeeff".parse().unwrap()];
        entry.encoding = Some("gzip".to_owned());
        entry
    });
    Manifest { source: Some("s3://b/".to_owned()), ..Manifest::new("file:///d/".to_owned(), objects.collect()) }
}

#[test]
fn manifest_of_a_copy_becomes_that_of_its_source() {
    let origin = Origin { decoded: Codec::Gzip, ..Origin::of(&Entry::new(Key::from("a.gz"), 5)) };
    let mut copy = Entry::new(Key::from("a"), 50);
    copy.digests = vec!["crc32c:00c0ffee".parse().unwrap()];
    copy.origin = Some(Box::new(origin));
    let staged =
        Manifest { source: Some("s3://b/x/".to_owned()), ..Manifest::new("file:///d/".to_owned(), vec![copy.clone()]) };
    let source = staged.of_source().unwrap();
    assert_eq!((source.url.as_str(), source.objects[0].key.to_string()), ("s3://b/x/", "a.gz".to_owned()));
    assert_eq!((source.objects[0].size, source.objects[0].decompressed_size()), (5, Some(50)));
    assert!(Manifest::new("file:///d/".to_owned(), vec![copy]).of_source().is_none());
}

#[test]
fn manifest_files_are_of_the_format_that_their_name_or_number_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = small();
    for (name, begins) in [("m.json", &b"{\"pen"[..]), ("m.PARQUET", b"PAR1"), ("m", b"{\"pen")] {
        let path = folder.path().join(name);
        manifest.save(&path).unwrap();
        assert!(std::fs::read(&path).unwrap().starts_with(begins), "{name}");
        assert_eq!(Manifest::load(&path).unwrap(), manifest, "{name}");
    }
    let path = folder.path().join("any");
    manifest.save_as(&path, ManifestFormat::Parquet).unwrap();
    assert_eq!(Manifest::load(&path).unwrap(), manifest);
    assert_eq!(ManifestFormat::for_objects(ManifestFormat::PARQUET_FROM), ManifestFormat::Parquet);
    assert_eq!("json".parse::<ManifestFormat>().unwrap(), ManifestFormat::Json);
    assert!("xml".parse::<ManifestFormat>().is_err());
}

/// Writes and reads a manifest that is larger than one row group and larger than one page of keys.
#[test]
fn manifest_of_many_groups_round_trips() {
    let objects = (0..70_000u64).map(|at| Entry::new(Key::from(format!("d/{at:08}.bin").as_str()), at)).collect();
    let manifest = Manifest::new("memory://m/".to_owned(), objects);
    let bytes = manifest.to_parquet().unwrap();
    assert!(bytes.len() < 1_000_000, "{}", bytes.len());
    assert_eq!(Manifest::from_bytes(&bytes, "m").unwrap(), manifest);
}

/// Reads files written by version 1; see tests/stage/version_1.
#[test]
fn manifest_of_version_1_reads_as_version_2() {
    let json: &[u8] = include_bytes!("../../../../tests/stage/version_1/manifest.json");
    let manifest = Manifest::from_bytes(json, "m").unwrap();
    let (first, last) = (&manifest.objects[0], &manifest.objects[2]);
    let origin =
        |entry: &Entry| entry.origin.clone().map(|o| (o.decoded, o.codec_source, o.encoded, o.transform)).unwrap();
    let transform = Some("decompress,zstd:3".to_owned());
    assert_eq!(origin(first), (Codec::Gzip, Some(CodecSource::Suffix), Codec::Zstd, transform.clone()));
    assert_eq!(origin(last), (Codec::None, None, Codec::Zstd, transform));
    assert_eq!((first.decompressed_size(), last.decompressed_size()), (Some(29), None));
    let parquet = include_bytes!("../../../../tests/stage/version_1/manifest.parquet");
    assert_eq!(Manifest::from_bytes(parquet, "m").unwrap().objects, manifest.objects);

    let written = String::from_utf8(manifest.to_json().unwrap()).unwrap();
    assert!(written.starts_with("{\"penstock_manifest\":2,"), "{written}");
    assert!(!["undone", "packed", "asked", "inflate"].iter().any(|old| written.contains(old)), "{written}");
    assert_eq!(Manifest::from_bytes(written.as_bytes(), "m").unwrap(), manifest);
}
