// SPDX-License-Identifier: Apache-2.0
//! Cache entry file: a cached object, or a range of one. The file contains the object's bytes (as stored, or
//! transposed), a CRC-32C per block, the object's store metadata and a fixed-size footer. This module owns the file
//! format, but no folder, lock or limit.
//!
//! A file that a crash or a bad disk damaged counts as missing (`None`). It causes no error, and its data is never
//! returned.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use penstock_codec::checksum::crc32c;
use penstock_store::{BufferPool, Meta, ObjectRef, Version};
use penstock_types::{ByteRange, Digest, Key, Url};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Block size: number of bytes that one checksum covers. A range read verifies less than one extra block at each end.
pub(super) const BLOCK: u64 = 1 << 20;

/// Minimum read size, in bytes, for which a pooled buffer costs less than new memory.
const BUFFERED: usize = 64 << 10;

const MAGIC: [u8; 8] = *b"penstch1";
const FOOTER: u64 = 32;

/// Maximum size of the metadata before the footer. Penstock never writes larger metadata.
const MAX_HEAD: u64 = 64 << 10;

/// Form in which an entry stores an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// The object's stored bytes: all of them, or a range.
    Stored(ByteRange),
    /// The object's whole content, as a transposed copy.
    Planes,
}

/// Name of an entry: a hash of the object's store, key and version. For a range, the hash includes the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name(pub u128);

impl Name {
    /// Returns the entry name of an object. Returns `None` if the object has no version, because a later object with
    /// the same key would get the same name.
    pub fn of(root: &Url, object: &ObjectRef, form: Form) -> Option<Self> {
        let version = object.version.as_ref()?;
        let mut hash = Xxh3::new();
        for part in [root.to_string().as_bytes(), object.key.as_bytes(), version.0.as_bytes()] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        match form {
            Form::Stored(range) if range.is_whole() => {}
            Form::Stored(range) => {
                hash.update(&range.start.to_le_bytes());
                hash.update(&range.len.to_le_bytes());
            }
            // The hash includes the version of the copy's format, so a cache ignores copies in other formats.
            Form::Planes => hash.update(b"planes1"),
        }
        Some(Self(hash.digest128()))
    }

    pub fn hex(self) -> String {
        format!("{:032x}", self.0)
    }

    pub fn from_hex(text: &str) -> Option<Self> {
        let name = Self(u128::from_str_radix(text, 16).ok()?);
        // Accept only names in the form that Penstock writes (32 lower-case digits).
        (name.hex() == text).then_some(name)
    }
}

/// Metadata in an entry: the object's identity, which detects hash collisions, and the metadata that the store
/// returned.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    root: String,
    key: Vec<u8>,
    version: Version,
    /// Only for a range: offset of the range in the object, and the object's size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stretch: Option<(u64, u64)>,
    /// Only for a transposed copy: the object's stored size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    planes_of: Option<u64>,
    digests: Vec<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encoding: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    modified_s: Option<f64>,
}

/// Writes an entry block by block.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    file: &'a File,
    crcs: Vec<u32>,
    size: u64,
}

impl<'a> Writer<'a> {
    /// Creates a writer for an entry of `size` bytes. `file` must be empty.
    pub fn new(file: &'a File, size: u64) -> Self {
        Self::resumed(file, size, Vec::new())
    }

    /// Creates a writer that continues an entry. `crcs` are the checksums of the blocks that are already written.
    pub fn resumed(file: &'a File, size: u64, mut crcs: Vec<u32>) -> Self {
        crcs.resize(size.div_ceil(BLOCK) as usize, 0);
        Self { file, crcs, size }
    }

    /// Returns the checksums of the blocks written so far.
    pub fn into_crcs(self) -> Vec<u32> {
        self.crcs
    }

    /// Writes `bytes` at `offset` of the entry. The offset must be a multiple of [`BLOCK`]. The end must be a multiple
    /// of [`BLOCK`] or the end of the entry.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        let is_cut = !end.is_multiple_of(BLOCK) && end != self.size;
        if !offset.is_multiple_of(BLOCK) || end > self.size || is_cut {
            return Err(Error::new(ErrorKind::InvalidInput, "not whole blocks of the entry"));
        }
        for (crc, block) in self.crcs[(offset / BLOCK) as usize..].iter_mut().zip(bytes.chunks(BLOCK as usize)) {
            *crc = crc32c(block);
        }
        self.file.write_all_at(bytes, offset)
    }

    /// Finishes the entry of the object that `meta` describes, in the given `form`. The file is not synced to disk: if
    /// a power failure loses data, the checksums detect the loss, and the object is fetched again.
    pub fn finish(self, root: &Url, meta: &Meta, form: Form) -> Result<()> {
        let version = meta.version.clone().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "no version"))?;
        let head = serde_json::to_vec(&Head {
            root: root.to_string(),
            key: meta.key.as_bytes().to_vec(),
            version,
            stretch: match form {
                Form::Stored(range) if !range.is_whole() => Some((range.start, meta.size)),
                Form::Stored(_) | Form::Planes => None,
            },
            planes_of: (form == Form::Planes).then_some(meta.size),
            digests: meta.digests.clone(),
            encoding: meta.encoding.clone(),
            modified_s: meta.modified_s,
        })?;
        let mut tail: Vec<u8> = self.crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect();
        tail.extend_from_slice(&head);
        let check = crc32c(&tail);
        tail.extend_from_slice(&MAGIC);
        tail.extend_from_slice(&self.size.to_le_bytes());
        tail.extend_from_slice(&(head.len() as u64).to_le_bytes());
        tail.extend_from_slice(&check.to_le_bytes());
        tail.extend_from_slice(&[0; 4]);
        self.file.write_all_at(&tail, self.size)
    }
}

/// Size on disk of an entry with `size` bytes of data.
pub(super) fn disk_bytes(size: u64) -> u64 {
    size + size.div_ceil(BLOCK) * 4 + FOOTER + 512
}

/// A finished entry, open for reading.
#[derive(Debug)]
pub(super) struct Entry {
    file: File,
    crcs: Vec<u32>,
    /// Metadata of the object, as its store returned it.
    pub meta: Meta,
    /// Offset in the object at which the entry's data begins.
    start: u64,
    size: u64,
}

impl Entry {
    /// Opens the entry in `file`. Returns `None` if the entry is not for `object` in this form, or if its footer is
    /// inconsistent.
    pub fn open(file: File, root: &Url, object: &ObjectRef, form: Form) -> Option<Self> {
        let len = file.metadata().ok()?.len();
        let mut footer = [0; FOOTER as usize];
        file.read_exact_at(&mut footer, len.checked_sub(FOOTER)?).ok()?;
        let number = |at: usize| footer[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let (size, head) = (number(8)?, number(16)?);
        let table = size.div_ceil(BLOCK).checked_mul(4)?;
        if footer[..8] != MAGIC
            || head > MAX_HEAD
            || size.checked_add(table)?.checked_add(head)?.checked_add(FOOTER)? != len
        {
            return None;
        }
        let mut tail = vec![0; usize::try_from(table + head).ok()?];
        file.read_exact_at(&mut tail, size).ok()?;
        if crc32c(&tail).to_le_bytes() != footer[24..28] {
            return None;
        }
        let (table, head) = tail.split_at(table as usize);
        let head: Head = serde_json::from_slice(head).ok()?;
        if head.root != root.to_string()
            || head.key != object.key.as_bytes()
            || Some(&head.version) != object.version.as_ref()
        {
            return None;
        }
        let (start, object_size) = head.stretch.unwrap_or((0, head.planes_of.unwrap_or(size)));
        let held = match (head.planes_of, head.stretch) {
            (Some(_), _) => Form::Planes,
            (None, Some(_)) => Form::Stored(ByteRange::new(start, size)),
            (None, None) => Form::Stored(ByteRange::WHOLE),
        };
        if held != form {
            return None;
        }
        let crcs = table.as_chunks::<4>().0.iter().map(|crc| u32::from_le_bytes(*crc)).collect();
        let meta = Meta {
            key: Key::new(head.key),
            size: object_size,
            version: Some(head.version),
            digests: head.digests,
            encoding: head.encoding,
            modified_s: head.modified_s,
        };
        Some(Self { file, crcs, meta, start, size })
    }

    /// Returns a range of the object's stored bytes, shortened at the object's end. Returns `None` if a block is
    /// corrupt, or if the entry does not contain the range.
    pub fn read(&self, range: ByteRange, buffers: &Arc<BufferPool>) -> Result<Option<Bytes>> {
        let (start, end) = (range.start.min(self.meta.size), range.end(self.meta.size));
        if start >= end {
            return Ok(Some(Bytes::new()));
        }
        match (start.checked_sub(self.start), end.checked_sub(self.start)) {
            (Some(start), Some(end)) => self.held(start, end, buffers),
            _ => Ok(None),
        }
    }

    /// Returns all bytes of the entry. Returns `None` if a block is corrupt.
    pub fn read_all(&self, buffers: &Arc<BufferPool>) -> Result<Option<Bytes>> {
        self.held(0, self.size, buffers)
    }

    /// Returns the bytes `start..end` of the entry. Returns `None` if a block is corrupt, and an error if memory is
    /// exhausted.
    fn held(&self, start: u64, end: u64, buffers: &Arc<BufferPool>) -> Result<Option<Bytes>> {
        let from = start / BLOCK * BLOCK;
        let to = end.div_ceil(BLOCK).saturating_mul(BLOCK).min(self.size);
        if end > self.size {
            return Ok(None);
        }
        let bytes = usize::try_from(to - from).map_err(|_| ErrorKind::OutOfMemory)?;
        let asked = (start - from) as usize..(end - from) as usize;
        if bytes < BUFFERED {
            let mut read = vec![0; bytes];
            return Ok(self.read_blocks(from, &mut read).then(|| Bytes::from(read).slice(asked)));
        }
        let mut read = buffers.take(bytes)?;
        Ok(self.read_blocks(from, &mut read.as_mut()[..bytes]).then(|| read.freeze(asked)))
    }

    /// Reads whole blocks, starting at `from`. Verifies each block while it is still in the CPU cache. Returns false if
    /// a block is corrupt.
    fn read_blocks(&self, from: u64, into: &mut [u8]) -> bool {
        let first = (from / BLOCK) as usize;
        into.chunks_mut(BLOCK as usize).zip(&self.crcs[first..]).enumerate().all(|(at, (block, crc))| {
            self.file.read_exact_at(block, from + at as u64 * BLOCK).is_ok() && crc32c(block) == *crc
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: Form = Form::Stored(ByteRange::WHOLE);

    fn root() -> Url {
        "memory://b/".parse().unwrap()
    }

    fn read(entry: &Entry, range: ByteRange) -> Option<Bytes> {
        entry.read(range, &BufferPool::of_process()).unwrap()
    }

    fn object(version: &str) -> ObjectRef {
        ObjectRef { key: Key::new(&b"a/\xff"[..]), version: Some(Version(version.into())) }
    }

    fn written(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().unwrap();
        let mut writer = Writer::new(&file, bytes.len() as u64);
        for (at, part) in bytes.chunks(2 * BLOCK as usize).enumerate() {
            writer.write(at as u64 * 2 * BLOCK, part).unwrap();
        }
        let meta = Meta {
            key: object("1").key,
            size: bytes.len() as u64,
            version: object("1").version,
            digests: vec![],
            encoding: Some("gzip".into()),
            modified_s: Some(1.5),
        };
        writer.finish(&root(), &meta, WHOLE).unwrap();
        file
    }

    fn noise(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[test]
    fn entry_gives_back_what_was_written() {
        let bytes = noise(5 * BLOCK as usize / 2);
        let entry = Entry::open(written(&bytes), &root(), &object("1"), WHOLE).unwrap();
        assert_eq!(read(&entry, ByteRange::WHOLE).unwrap(), bytes);
        assert_eq!((entry.meta.encoding.as_deref(), entry.meta.modified_s), (Some("gzip"), Some(1.5)));
        assert_eq!(read(&entry, ByteRange::new(BLOCK - 3, 7)).unwrap(), bytes[BLOCK as usize - 3..][..7]);
        assert_eq!(read(&entry, ByteRange::new(bytes.len() as u64 - 2, 99)).unwrap(), bytes[bytes.len() - 2..]);
    }

    #[test]
    fn entry_of_no_bytes_is_an_entry() {
        let entry = Entry::open(written(&[]), &root(), &object("1"), WHOLE).unwrap();
        assert_eq!(read(&entry, ByteRange::WHOLE).unwrap(), Bytes::new());
    }

    #[test]
    fn entry_of_a_stretch_gives_its_bytes_and_no_others() {
        let bytes = noise(9000);
        let (file, range) = (tempfile::tempfile().unwrap(), ByteRange::new(4000, 3000));
        let mut writer = Writer::new(&file, 3000);
        writer.write(0, &bytes[4000..7000]).unwrap();
        let (key, version) = (object("1").key, object("1").version);
        let meta = Meta { key, size: 9000, version, digests: vec![], encoding: None, modified_s: None };
        writer.finish(&root(), &meta, Form::Stored(range)).unwrap();
        let open = |range| Entry::open(file.try_clone().unwrap(), &root(), &object("1"), Form::Stored(range));
        assert!(open(ByteRange::WHOLE).is_none() && open(ByteRange::new(4000, 2999)).is_none());
        let entry = open(range).unwrap();
        assert_eq!((entry.meta.size, read(&entry, range).unwrap()), (9000, Bytes::from(bytes[4000..7000].to_vec())));
        assert_eq!(read(&entry, ByteRange::new(6999, 1)).unwrap(), bytes[6999..7000]);
        assert!(read(&entry, ByteRange::new(3999, 2)).is_none() && read(&entry, ByteRange::new(6999, 2)).is_none());
        assert!(read(&entry, ByteRange::WHOLE).is_none());
    }

    #[test]
    fn entry_in_planes_is_no_entry_as_stored_and_the_other_way_round() {
        let (file, planes) = (tempfile::tempfile().unwrap(), noise(500));
        let mut writer = Writer::new(&file, 500);
        writer.write(0, &planes).unwrap();
        let (key, version) = (object("1").key, object("1").version);
        let meta = Meta { key, size: 70, version, digests: vec![], encoding: None, modified_s: None };
        writer.finish(&root(), &meta, Form::Planes).unwrap();
        assert!(Entry::open(file.try_clone().unwrap(), &root(), &object("1"), WHOLE).is_none());
        let entry = Entry::open(file, &root(), &object("1"), Form::Planes).unwrap();
        assert_eq!(
            (entry.meta.size, entry.read_all(&BufferPool::of_process()).unwrap().unwrap()),
            (70, Bytes::from(planes))
        );
        assert!(Entry::open(written(&noise(10)), &root(), &object("1"), Form::Planes).is_none());
        assert_ne!(Name::of(&root(), &object("1"), WHOLE), Name::of(&root(), &object("1"), Form::Planes));
    }

    #[test]
    fn entry_of_another_version_or_root_is_none() {
        let bytes = noise(10);
        assert!(Entry::open(written(&bytes), &root(), &object("2"), WHOLE).is_none());
        assert!(Entry::open(written(&bytes), &"memory://c/".parse().unwrap(), &object("1"), WHOLE).is_none());
    }

    proptest! {
        #[test]
        fn prop_a_flipped_bit_anywhere_is_never_served(at in 0usize..5000, bit in 0u8..8) {
            let bytes = noise(4000);
            let file = written(&bytes);
            let len = file.metadata().unwrap().len() as usize;
            let at = at % len;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at as u64).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << bit)], at as u64).unwrap();
            let read = Entry::open(file, &root(), &object("1"), WHOLE).and_then(|entry| read(&entry, ByteRange::WHOLE));
            // The last four bytes of the footer are padding and have no meaning.
            prop_assert!(read.is_none() || (at >= len - 4 && read.unwrap() == bytes));
        }

        #[test]
        fn prop_a_cut_or_longer_file_is_none(change in -40i64..40) {
            let file = written(&noise(300));
            let len = file.metadata().unwrap().len() as i64;
            file.set_len((len + change) as u64).unwrap();
            prop_assert_eq!(Entry::open(file, &root(), &object("1"), WHOLE).is_some(), change == 0);
        }
    }
}
