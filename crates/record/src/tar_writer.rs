// SPDX-License-Identifier: Apache-2.0
//! Writes tar members. The output is deterministic: no time, owner or group is stored.
//!
//! For a name of at most 100 ASCII bytes, the header is a plain ustar header, with the same bytes as Python's `tarfile`
//! writes. Any other name is stored in an additional pax header, as POSIX.1-2001 defines.

use penstock_types::{Error, Result, with_separators};

use crate::tar_header::BLOCK;

/// The two empty blocks at the end of an archive.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// Maximum size of a member: the header has 11 octal digits for the size.
const MAX_SIZE: u64 = (1 << 33) - 1;

/// Maximum length of a name in a ustar header.
const MAX_NAME: usize = 100;

/// Appends a file whose content is the concatenation of `parts`.
pub fn write_member(name: &str, parts: &[&[u8]], out: &mut Vec<u8>) -> Result<()> {
    let size = parts.iter().map(|part| part.len()).sum::<usize>();
    if size as u64 > MAX_SIZE {
        let problem = format!("has {} bytes, more than a tar header can state", with_separators(size as u64));
        return Err(Error::config(format!("tar member `{name}`"), problem));
    }
    if name.len() > MAX_NAME || !name.is_ascii() {
        let record = pax_record("path", name);
        header(b"././@PaxHeader", record.len(), b'x', out);
        content(&[record.as_bytes()], out);
    }
    let short: Vec<u8> = name.chars().map(|c| if c.is_ascii() { c as u8 } else { b'?' }).take(MAX_NAME).collect();
    out.reserve(2 * BLOCK + size);
    header(&short, size, b'0', out);
    content(parts, out);
    Ok(())
}

/// A pax record: its own length in decimal, a space, KEY=VALUE and a newline.
fn pax_record(key: &str, value: &str) -> String {
    let rest = key.len() + value.len() + 3;
    let mut len = rest;
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    format!("{len} {key}={value}\n")
}

fn header(name: &[u8], size: usize, kind: u8, out: &mut Vec<u8>) {
    let mut block = [0u8; BLOCK];
    let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    out.extend_from_slice(&block);
}

fn content(parts: &[&[u8]], out: &mut Vec<u8>) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;
    use crate::tar::Samples;

    #[test]
    fn prop_members_are_read_by_the_tar_crate() {
        proptest!(|(members in proptest::collection::vec(("[a-zé/]{1,150}\\.x", proptest::collection::vec(any::<u8>(), 0..1500)), 0..5))| {
            let mut out = Vec::new();
            for (name, data) in &members {
                let (head, tail) = data.split_at(data.len() / 3);
                write_member(name, &[head, tail], &mut out).unwrap();
            }
            prop_assert_eq!(out.len() % BLOCK, 0);
            out.extend_from_slice(&END);
            let mut archive = tar::Archive::new(out.as_slice());
            let mut read = Vec::new();
            for entry in archive.entries().unwrap() {
                let mut entry = entry.unwrap();
                let name = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
                let mut data = Vec::new();
                entry.read_to_end(&mut data).unwrap();
                read.push((name, data));
            }
            prop_assert_eq!(read, members);
        });
    }

    #[test]
    fn tar_writer_long_unicode_name_is_one_sample() {
        let key = "ü".repeat(120);
        let mut out = Vec::new();
        write_member(&format!("{key}.txt"), &[b"a"], &mut out).unwrap();
        write_member(&format!("{key}.cls"), &[b"1"], &mut out).unwrap();
        let end = out.len() as u64;
        out.extend_from_slice(&END);
        let samples: Vec<_> = Samples::new(&out, "a.tar").map(Result::unwrap).collect();
        assert_eq!((samples.len(), &*samples[0].key, samples[0].len), (1, key.as_bytes(), end));
    }
}
