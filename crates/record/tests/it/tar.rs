// SPDX-License-Identifier: Apache-2.0
//! Tests that archives written by Python's tarfile (golden) and by the `tar` crate (random) are read correctly, and
//! that a damaged archive gives one error that names the location.

use penstock_codec::{Codec, decompress_into};
use penstock_record::tar::{Members, Samples, split_name};
use penstock_types::Error;
use proptest::prelude::*;

fn golden(name: &str) -> (Vec<u8>, String) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let stored = std::fs::read(format!("{folder}/{name}.tar.gz")).unwrap();
    let mut bytes = Vec::new();
    decompress_into(Codec::Gzip, &stored, &mut bytes, 1 << 20, name).unwrap();
    (bytes, std::fs::read_to_string(format!("{folder}/{name}.tar.txt")).unwrap())
}

fn problem(bytes: &[u8]) -> String {
    let mut members = Members::new(bytes, "a.tar");
    let error = members.find_map(Result::err).expect("an error");
    assert!(members.next().is_none(), "nothing follows an error");
    error.to_string()
}

#[test]
fn tar_member_offsets_match_tarfile_in_every_format() {
    for name in ["ustar", "gnu", "pax", "pax_global"] {
        let (bytes, want) = golden(name);
        let mut members = Members::new(&bytes, name);
        let mut have = String::new();
        for member in members.by_ref() {
            let member = member.unwrap();
            have += &format!("{}\t{}\t{}\n", String::from_utf8_lossy(&member.name), member.offset, member.size);
        }
        assert_eq!(have, want, "{name}");
        assert!(members.skipped() >= 4);
    }
}

#[test]
fn samples_are_consecutive_members_of_a_key() {
    let (bytes, _) = golden("ustar");
    let samples: Vec<_> = Samples::new(&bytes, "p").map(Result::unwrap).collect();
    let shown: Vec<_> = samples
        .iter()
        .map(|sample| {
            let exts: Vec<_> = sample.parts.iter().map(|part| part.ext.as_str()).collect();
            (String::from_utf8_lossy(&sample.key), exts.join(" "))
        })
        .collect();
    // The links between the members have no content and do not split a sample.
    assert_eq!(shown, [("train/000".into(), "jpg cls".to_owned()), ("train/001".into(), "jpg seg.png".to_owned())]);
    let part = samples[0].part("jpg").unwrap();
    assert_eq!(&bytes[part.offset as usize..][..part.size as usize], b"jpeg".repeat(200));
    assert!(samples[0].part("png").is_none());
}

#[test]
fn sample_alone_reads_from_its_span() {
    for name in ["gnu", "pax"] {
        let (bytes, _) = golden(name);
        let samples: Vec<_> = Samples::new(&bytes, "p").map(Result::unwrap).collect();
        assert!(samples.len() >= 4, "{name}");
        for sample in samples {
            let span = &bytes[sample.offset as usize..][..sample.len as usize];
            let again: Vec<_> = Samples::of(Members::at(span, sample.offset, "p")).map(Result::unwrap).collect();
            assert_eq!(again, [sample]);
        }
    }
}

#[test]
fn split_name_is_webdataset_s() {
    for (name, want) in [
        ("a.jpg", Some(("a", "jpg"))),
        ("d.d/a.b.C", Some(("d.d/a", "b.C"))),
        ("./a.jpg", Some(("./a", "jpg"))),
        ("a.", Some(("a", ""))),
        ("d/a", None),
        (".hidden", None),
        ("d/._a.jpg", None),
        ("__meta__", None),
        ("__meta__/a.json", None),
        ("__key__.json", Some(("__key__", "json"))),
        ("", None),
    ] {
        assert_eq!(split_name(name.as_bytes()), want.map(|(key, ext)| (key.as_bytes(), ext.as_bytes())), "{name}");
    }
}

#[test]
fn two_members_of_one_extension_are_refused() {
    let bytes = archive(&[("a.jpg".into(), vec![1]), ("a.JPG".into(), vec![2])]);
    let error = Samples::new(&bytes, "a.tar").find_map(Result::err).unwrap().to_string();
    assert_eq!(error, "a.tar is not a WebDataset: sample `a` has two `.jpg` members (byte 1,024)");
}

#[test]
fn other_bytes_are_no_tar() {
    assert_eq!(problem(&[7; 600]), "a.tar is not a tar archive: its first header has no checksum");
    assert_eq!(
        problem(&[7; 5]),
        "a.tar is not a tar archive, or ends inside its first header (want 512 bytes, have 5)"
    );
    for (bytes, kind) in [(&b"short"[..], "text"), (b"BZh91AY&SY", "bzip2-compressed data")] {
        assert_eq!(problem(bytes), format!("a.tar is not a tar archive: it looks like {kind}"));
    }
    assert!(Members::new(b"", "p").next().is_none());
}

#[test]
fn damaged_header_is_named_with_its_place() {
    let mut bytes = archive(&[("a.jpg".into(), vec![1; 600]), ("b.jpg".into(), vec![2])]);
    bytes[512 + 1024 + 3] ^= 1;
    assert_eq!(problem(&bytes), "a.tar is damaged: the header of member 1 at byte 1,536 does not match its checksum");
}

#[test]
fn member_longer_than_the_archive_is_named_with_numbers() {
    // Octal, base 256, and a base-256 number that overflows when it is rounded up to whole blocks.
    let sizes: [([u8; 12], &str); 3] = [
        (*b"77777777777\0", "8,589,934,591"),
        ([0x80, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff], "1,099,511,627,775"),
        ([0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], "9,223,372,036,854,775,807"),
    ];
    for (size, shown) in sizes {
        let mut bytes = archive(&[("a.jpg".into(), vec![1; 600])]);
        bytes[124..136].copy_from_slice(&size);
        mend(&mut bytes[..512]);
        let want = format!("a.tar ends inside member 0 (byte 512: want {shown} bytes in whole blocks, have 2,048)");
        assert_eq!(problem(&bytes), want);
    }
    // Negative.
    let mut bytes = archive(&[("a.jpg".into(), vec![1])]);
    bytes[124..136].fill(0xff);
    mend(&mut bytes[..512]);
    assert_eq!(problem(&bytes), "a.tar is not a tar archive: its first header has a size that is not a number");
}

#[test]
fn sparse_files_and_other_volumes_are_refused() {
    for (kind, what) in [(b'S', "a sparse file"), (b'M', "the continuation of a file from another volume")] {
        let mut bytes = archive(&[("a.jpg".into(), vec![1])]);
        bytes[156] = kind;
        mend(&mut bytes[..512]);
        let error = Members::new(&bytes, "a.tar").find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Unsupported { .. }));
        assert_eq!(error.to_string(), format!("{what} in a.tar (byte 0) is not supported by the tar reader"));
    }
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_pax_extensions([("GNU.sparse.major", &b"1"[..])]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(0);
    builder.append_data(&mut header, "a.jpg", &b""[..]).unwrap();
    assert!(problem(&builder.into_inner().unwrap()).starts_with("a sparse file in a.tar"));
}

#[test]
fn pax_size_wins_over_the_header_s() {
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_pax_extensions([("size", &b"5"[..]), ("path", b"other.txt")]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(5);
    builder.append_data(&mut header, "a.jpg", &b"hello"[..]).unwrap();
    let mut bytes = builder.into_inner().unwrap();
    bytes[1024 + 124..1024 + 136].copy_from_slice(b"00000000000\0");
    mend(&mut bytes[1024..1536]);
    let members: Vec<_> = Members::new(&bytes, "p").map(Result::unwrap).collect();
    assert_eq!((&*members[0].name, members[0].size, members[0].header_offset), (&b"other.txt"[..], 5, 0));
}

/// Recomputes the checksum of a changed header.
fn mend(header: &mut [u8]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn archive(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, content.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}

fn files() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    let content = prop::collection::vec(any::<u8>(), 0..1600);
    prop::collection::vec(("[a-c]{1,3}(/[a-z]{1,150}){0,2}[a-z.]{0,6}x", content), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn prop_members_are_those_of_the_tar_crate(files in files()) {
        let bytes = archive(&files);
        let members: Vec<_> = Members::new(&bytes, "p").map(Result::unwrap).collect();
        let read: Vec<_> = members.iter().map(|member| {
            let content = &bytes[member.offset as usize..][..member.size as usize];
            (String::from_utf8(member.name.to_vec()).unwrap(), content.to_vec())
        }).collect();
        prop_assert_eq!(read, files);
        let mut at = 0;
        for member in &members {
            prop_assert_eq!(member.header_offset, at);
            at = member.end();
        }
    }

    #[test]
    fn prop_cut_anywhere_loses_nothing_quietly(files in files(), cut: prop::sample::Index) {
        let bytes = archive(&files);
        let whole: Vec<_> = Members::new(&bytes, "p").map(Result::unwrap).collect();
        let len = cut.index(bytes.len() + 1);
        let between = whole.iter().map(penstock_record::tar::Member::end).chain([0]).any(|end| end == len as u64);
        let after = whole.last().map_or(0, |last| last.end()) + 512 <= len as u64;
        let read: Result<Vec<_>, _> = Members::new(&bytes[..len], "p").collect();
        prop_assert_eq!(read.is_ok(), between || after);
    }

    #[test]
    fn prop_noise_ends_without_a_panic(files in files(), at: prop::sample::Index, with: u8) {
        let mut bytes = archive(&files);
        let at = at.index(bytes.len());
        bytes[at] = with;
        let members = Members::new(&bytes, "p").count();
        prop_assert!(members <= bytes.len() / 512 + 1);
        let _ = Samples::new(&bytes, "p").count();
    }
}
