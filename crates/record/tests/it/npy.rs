// SPDX-License-Identifier: Apache-2.0
//! Tests that arrays written by NumPy and zipfile are read correctly, and that truncated, damaged and unsupported
//! arrays are rejected with a reason.

use crate::goldens;
use penstock_record::{npy, npz};
use penstock_types::{DType, Error, TensorSpec};
use proptest::prelude::*;

#[test]
fn arrays_of_numpy_read_as_it_wrote_them() {
    let files = goldens::files("npy");
    let mut count = 0;
    for (name, want) in files.iter().filter_map(|(name, raw)| Some((name.strip_suffix(".raw")?, raw))) {
        let bytes = &files[&format!("{name}.npy")];
        let header = npy::parse(bytes, name).unwrap();
        let spec = &header.spec;
        let fortran = if header.fortran_order { "True" } else { "False" };
        let text = format!("{} {:?} {fortran}", spec.dtype, spec.shape);
        assert_eq!(text.as_bytes(), files[&format!("{name}.txt")], "{name}");
        let mut out = vec![0; spec.size_bytes().unwrap()];
        let read = npy::read_into(bytes, spec, &mut out, name);
        if header.fortran_order {
            assert!(matches!(read, Err(Error::Unsupported { .. })));
            assert_eq!(&bytes[header.data_offset..], want);
        } else {
            read.unwrap();
            assert_eq!(&out, want, "{name}");
        }
        assert_eq!(header.boolean, name == "bool");
        count += 1;
    }
    assert!(count >= 23);
}

#[test]
fn element_types_without_a_tensor_are_refused_by_name() {
    let files = goldens::files("npy");
    for (name, what) in [
        ("structured", "the structured element type (`[(\\'a\\', \\'<f4\\'), (\\'b\\', \\'<i8\\', (2, 2))]`)"),
        ("complex", "the element type (`<c8`)"),
        ("string", "the element type (`<U2`)"),
        ("bytes", "the element type (`|S2`)"),
        ("object", "the element type of pickled objects (`|O`)"),
        ("time", "the element type (`<M8[s]`)"),
    ] {
        let error = npy::parse(&files[&format!("refused_{name}.npy")], "a.npy").unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }));
        assert_eq!(error.to_string(), format!("{what} of a.npy is not supported by the .npy reader"));
    }
}

fn with_header(text: &str) -> Vec<u8> {
    [&npy::MAGIC[..], &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

#[test]
fn header_damage_is_named() {
    for (text, want) in [
        ("{'descr': '<f4', 'shape': (2,), }", "has no `fortran_order`"),
        ("{'descr': '<f4', 'fortran_order': False, }", "has no `shape`"),
        ("{'fortran_order': False, 'shape': (2,), }", "has no `descr`"),
        (
            "{'descr': '<f4', 'fortran_order': 1, 'shape': (2,), }",
            "has a `fortran_order` that is neither True nor False",
        ),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,-1), }", "has a shape that is not a tuple of sizes"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", "has the unknown key `x`"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} + 1", "has text after its closing brace"),
        ("{'descr': '<f4", "ends inside a string"),
        ("{'descr': [('a'", "ends inside a list"),
        ("", "lacks a `{`"),
    ] {
        let error = npy::parse(&with_header(text), "a.npy").unwrap_err().to_string();
        assert_eq!(error, format!("a.npy has a .npy header that {want}"), "{text}");
    }
    let huge = with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (4294967296, 4294967296), }");
    let error = npy::parse(&huge, "a.npy").unwrap_err().to_string();
    assert_eq!(error, "a.npy has the shape [4294967296, 4294967296], larger than the address space");
    assert_eq!(
        npy::parse(b"\x89PNG\r\n\x1a\n", "p").unwrap_err().to_string(),
        "p is not a .npy file (it begins `\\x89PNG\\r\\n`)"
    );
    assert_eq!(npy::parse(b"", "p").unwrap_err().to_string(), "p is not a .npy file (it has 0 bytes)");
    let python2 = with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 2L), }");
    assert_eq!(npy::parse(&python2, "p").unwrap().spec.shape, [3, 2]);
}

#[test]
fn array_of_another_type_or_length_is_named_with_both() {
    let bytes = &goldens::files("npy")["f4.npy"];
    let read = |bytes: &[u8], dtype, shape: &[usize]| {
        let spec = TensorSpec { dtype, shape: shape.to_vec() };
        npy::read_into(bytes, &spec, &mut vec![0; spec.size_bytes().unwrap()], "a.npy").unwrap_err().to_string()
    };
    assert_eq!(read(bytes, DType::F32, &[5, 3]), "a.npy contains float32 [3, 5] (want float32 [5, 3])");
    assert_eq!(read(bytes, DType::I32, &[3, 5]), "a.npy contains float32 [3, 5] (want int32 [3, 5])");
    let cut = &bytes[..bytes.len() - 1];
    assert_eq!(read(cut, DType::F32, &[3, 5]), "a.npy ends inside its array (want 60 bytes, have 59)");
    let longer = [bytes, &[0][..]].concat();
    assert_eq!(read(&longer, DType::F32, &[3, 5]), "a.npy continues after its array (want 60 bytes, have 61)");
}

#[test]
fn members_of_npz_files_read_as_numpy_wrote_them() {
    let files = goldens::files("npy");
    let want: Vec<u8> = (0..600u16).flat_map(|value| f32::from(value).to_le_bytes()).collect();
    for name in ["stored.npz", "deflated.npz", "zip64.npz", "prefixed.npz"] {
        let directory = npz::Directory::parse(&files[name], name).unwrap();
        assert_eq!(directory.entries().iter().map(|entry| entry.name).collect::<Vec<_>>(), [b"x.npy", b"y.npy"]);
        let entry = directory.get("x").unwrap();
        assert_eq!(directory.get("x.npy"), Some(entry));
        assert_eq!(entry.deflated, name != "stored.npz");
        let content = directory.read(entry).unwrap();
        let spec = TensorSpec { dtype: DType::F32, shape: vec![20, 30] };
        let mut out = vec![0; want.len()];
        npy::read_into(&content, &spec, &mut out, &directory.member(entry)).unwrap();
        assert_eq!(out, want);
        assert!(directory.get("z").is_none());
    }
    let error = npz::Directory::parse(&files["bzip2.npz"], "a.npz").unwrap_err().to_string();
    assert_eq!(error, "compression method 12 of member `x.npy` of a.npz is not supported by the zip reader");
}

#[test]
fn npz_damage_is_found_by_its_checksum() {
    let files = goldens::files("npy");
    let mut bytes = files["stored.npz"].clone();
    let at = npz::Directory::parse(&bytes, "p").unwrap().get("x").unwrap().offset as usize + 500;
    bytes[at] ^= 1;
    let directory = npz::Directory::parse(&bytes, "a.npz").unwrap();
    let error = directory.read(directory.get("x").unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("member `x.npy` of a.npz is damaged: CRC-32 is 0x"), "{error}");
    let error = npz::Directory::parse(&bytes[..bytes.len() - 1], "a.npz").unwrap_err().to_string();
    assert!(error.starts_with("a.npz is not a zip archive, or is truncated: its "), "{error}");
    assert!(npz::Directory::parse(b"", "p").is_err());
}

proptest! {
    #[test]
    fn prop_npz_with_any_byte_changed_ends_without_a_panic(which in 0..4usize, at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
        let name = ["stored.npz", "deflated.npz", "zip64.npz", "prefixed.npz"][which];
        let mut bytes = goldens::files("npy")[name].clone();
        let at = at.index(bytes.len());
        bytes[at] = with;
        for bytes in [&bytes[..], &bytes[cut.index(bytes.len())..]] {
            let Ok(directory) = npz::Directory::parse(bytes, "p") else { continue };
            for entry in directory.entries() {
                if let Ok(content) = directory.read(entry) {
                    let _ = npy::parse(&content, "p");
                }
            }
        }
    }

    #[test]
    fn prop_npy_header_with_any_byte_changed_ends_without_a_panic(at in 0..128usize, with: u8) {
        let mut bytes = goldens::files("npy")["f4.npy"].clone();
        bytes[at] = with;
        let _ = npy::parse(&bytes, "p");
        let _ = npy::parse(&bytes[..at], "p");
    }
}

/// Found by the fuzzer: a member of 0 bytes whose header states a name that extends beyond the archive.
#[test]
fn member_that_begins_beyond_its_archive_is_refused() {
    let mut local = [0u8; 30];
    local[..4].copy_from_slice(b"PK\x03\x04");
    local[26..28].copy_from_slice(&[0xff, 0xff]);
    let mut entry = [0u8; 46];
    entry[..4].copy_from_slice(b"PK\x01\x02");
    let mut end = [0u8; 22];
    end[..4].copy_from_slice(b"PK\x05\x06");
    end[10] = 1; // number of members
    end[12] = 46; // size of the directory
    end[16] = 30; // offset of the directory
    let bytes = [&local[..], &entry, &end].concat();
    let error = npz::Directory::parse(&bytes, "a.npz").unwrap_err().to_string();
    assert_eq!(error, "member `` of a.npz begins at byte 65,565, beyond the end of the archive");
}
