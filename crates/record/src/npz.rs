// SPDX-License-Identifier: Apache-2.0
//! Reads zip archives such as NumPy's `.npz`: finds the members through the central directory, and returns their
//! content.
//!
//! Supports stored and deflated members, zip64, and archives that follow other bytes. Verifies the CRC-32 of every
//! member that is read. Encryption, other compression methods and multi-file archives are rejected.

use std::borrow::Cow;

use penstock_codec::{SizedCodec, crc32, decompress_exact};
use penstock_types::{Error, Result, with_separators};

const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
const END_LEN: usize = 22;
const ENTRY_LEN: usize = 46;
const LOCAL_LEN: usize = 30;
/// Maximum expansion by DEFLATE: 1,032 output bytes per input byte. A directory entry with a larger size is wrong.
const MAX_OF_ONE: u64 = 1032;

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Name, including `.npy`.
    pub name: &'a [u8],
    /// Offset of the content.
    pub offset: u64,
    /// Stored size in bytes.
    pub stored: u64,
    /// Decompressed size in bytes.
    pub size: u64,
    /// True if the member is deflated.
    pub deflated: bool,
    crc32: u32,
}

/// Directory of one archive: its members in directory order.
#[derive(Debug, Clone)]
pub struct Directory<'a> {
    bytes: &'a [u8],
    entries: Vec<Entry<'a>>,
    place: &'a str,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl<'a> Directory<'a> {
    /// Parses the directory of the archive `bytes`; `place` names the archive in messages.
    pub fn parse(bytes: &'a [u8], place: &'a str) -> Result<Self> {
        let corrupt = |problem: String| Error::corrupt(place, problem);
        // The end record is at the end of the archive; only a comment of at most 65,535 bytes may follow it.
        let from = bytes.len().saturating_sub(END_LEN + usize::from(u16::MAX));
        let end = (from..=bytes.len().saturating_sub(END_LEN))
            .rev()
            .find(|&at| u32_at(bytes, at) == END && at + END_LEN + usize::from(u16_at(bytes, at + 20)) == bytes.len())
            .ok_or_else(|| {
                let len = with_separators(bytes.len() as u64);
                corrupt(format!("is not a zip archive, or is truncated: its {len} bytes do not end with a directory"))
            })?;
        let mut count = u64::from(u16_at(bytes, end + 10));
        let mut len = u64::from(u32_at(bytes, end + 12));
        let mut start = u64::from(u32_at(bytes, end + 16));
        let mut disks = u32::from(u16_at(bytes, end + 4)) | u32::from(u16_at(bytes, end + 6));
        let mut directory_end = end;
        let wide = count == 0xffff || len == 0xffff_ffff || start == 0xffff_ffff;
        if let Some(at) = end.checked_sub(20).filter(|&at| wide && u32_at(bytes, at) == LOCATOR_64) {
            // Bytes in front of the archive make the stated offset of the zip64 record wrong. The record is therefore
            // expected directly before its locator (no known writer adds extensible data in between).
            let record = at.checked_sub(56).filter(|&record| u32_at(bytes, record) == END_64);
            let record = record.ok_or_else(|| corrupt("lacks its zip64 record".to_owned()))?;
            count = u64_at(bytes, record + 32);
            len = u64_at(bytes, record + 40);
            start = u64_at(bytes, record + 48);
            disks = u32_at(bytes, record + 16) | u32_at(bytes, record + 20);
            directory_end = record;
        }
        if disks != 0 {
            return Err(Error::Unsupported {
                what: format!("a multi-file archive ({place})"),
                by: "the zip reader".to_owned(),
            });
        }
        // Data in front of the archive (such as a self-extractor) shift all offsets by their length.
        let shift = (directory_end as u64).checked_sub(len).and_then(|at| at.checked_sub(start)).ok_or_else(|| {
            corrupt(format!(
                "has a zip directory of {} bytes at byte {}, which does not fit into the archive",
                with_separators(len),
                with_separators(start)
            ))
        })?;
        let directory = &bytes[(directory_end as u64 - len) as usize..directory_end];
        if count > (directory.len() / ENTRY_LEN) as u64 {
            let (count, len) = (with_separators(count), with_separators(len));
            return Err(corrupt(format!("has a zip directory of {len} bytes that cannot contain {count} members")));
        }
        let mut entries = Vec::with_capacity(count as usize);
        let mut at = 0;
        for number in 0..count {
            let rest = &directory[at..];
            let lens = [28, 30, 32].map(|at| usize::from(u16_at(rest, at)));
            let [name_len, extra_len, _] = lens;
            let whole = ENTRY_LEN + lens.iter().sum::<usize>();
            if rest.len() < whole || u32_at(rest, 0) != ENTRY {
                return Err(corrupt(format!("has a damaged zip directory at member {number}")));
            }
            let (name, extra) = rest[ENTRY_LEN..ENTRY_LEN + name_len + extra_len].split_at(name_len);
            entries.push(entry(bytes, rest, name, extra, shift).map_err(|problem| member_error(place, name, problem))?);
            at += whole;
        }
        Ok(Self { bytes, entries, place })
    }

    /// Members of the archive.
    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// Returns the member with this name, with or without `.npy`. If several members have this name, returns the last
    /// one, as other readers do.
    pub fn get(&self, name: &str) -> Option<&Entry<'a>> {
        let wanted = |entry: &&Entry<'a>| {
            entry.name == name.as_bytes() || entry.name.strip_suffix(b".npy") == Some(name.as_bytes())
        };
        self.entries.iter().rev().find(wanted)
    }

    /// Returns the content of a member: borrowed if the member is stored, otherwise decompressed into `entry.size`
    /// bytes. Verifies the checksum.
    pub fn read(&self, entry: &Entry<'a>) -> Result<Cow<'a, [u8]>> {
        let stored = usize::try_from(entry.offset).ok().zip(usize::try_from(entry.stored).ok());
        let stored = stored.and_then(|(offset, len)| self.bytes.get(offset..)?.get(..len));
        let stored = stored.ok_or_else(|| {
            member_error(self.place, entry.name, Problem::Corrupt("is outside the archive".to_owned()))
        })?;
        let content = if entry.deflated {
            let (place, mut inflated) = (self.member(entry), Vec::new());
            if inflated.try_reserve_exact(entry.size as usize).is_err() {
                return Err(Error::BudgetExceeded { what: place, need: entry.size, budget: 0 });
            }
            inflated.resize(entry.size as usize, 0);
            decompress_exact(SizedCodec::Deflate, stored, &mut inflated, &place)?;
            Cow::Owned(inflated)
        } else {
            Cow::Borrowed(stored)
        };
        let is = crc32(&content);
        if is != entry.crc32 {
            let text = format!("is damaged: CRC-32 is {is:#010x}, want {:#010x}", entry.crc32);
            return Err(Error::corrupt(self.member(entry), text));
        }
        Ok(content)
    }

    /// Describes a member, for messages.
    pub fn member(&self, entry: &Entry<'_>) -> String {
        format!("member `{}` of {}", entry.name.escape_ascii(), self.place)
    }
}

enum Problem {
    Corrupt(String),
    Unsupported(String),
}

fn member_error(place: &str, name: &[u8], problem: Problem) -> Error {
    let member = format!("member `{}` of {place}", name.escape_ascii());
    match problem {
        Problem::Corrupt(text) => Error::corrupt(member, text),
        Problem::Unsupported(what) => {
            Error::Unsupported { what: format!("{what} of {member}"), by: "the zip reader".to_owned() }
        }
    }
}

fn entry<'a>(bytes: &[u8], fields: &[u8], name: &'a [u8], extra: &[u8], shift: u64) -> Result<Entry<'a>, Problem> {
    let (flags, method) = (u16_at(fields, 8), u16_at(fields, 10));
    let mut stored = u64::from(u32_at(fields, 20));
    let mut size = u64::from(u32_at(fields, 24));
    let mut local = u64::from(u32_at(fields, 42));
    let mut wide = zip64(extra);
    // The zip64 record contains only those of these values that do not fit into 32 bits, in this order.
    for value in [&mut size, &mut stored, &mut local] {
        if *value == 0xffff_ffff
            && let Some((first, rest)) = wide.split_first_chunk::<8>()
        {
            *value = u64::from_le_bytes(*first);
            wide = rest;
        }
    }
    if flags & 1 != 0 {
        return Err(Problem::Unsupported("encryption".to_owned()));
    }
    let deflated = match method {
        0 => false,
        8 => true,
        other => return Err(Problem::Unsupported(format!("compression method {other}"))),
    };
    let corrupt = |text: String| Problem::Corrupt(text);
    let at = local.checked_add(shift).and_then(|at| usize::try_from(at).ok()).unwrap_or(usize::MAX);
    let header = bytes.get(at..).and_then(|rest| rest.get(..LOCAL_LEN)).filter(|header| u32_at(header, 0) == LOCAL);
    let header = header.ok_or_else(|| corrupt(format!("has no header at byte {}", with_separators(local))))?;
    let offset = (at + LOCAL_LEN + usize::from(u16_at(header, 26)) + usize::from(u16_at(header, 28))) as u64;
    let room = (bytes.len() as u64).checked_sub(offset);
    let room = room
        .ok_or_else(|| corrupt(format!("begins at byte {}, beyond the end of the archive", with_separators(offset))))?;
    if stored > room {
        return Err(corrupt(format!(
            "has {} stored bytes, but only {} are left",
            with_separators(stored),
            with_separators(room)
        )));
    }
    let most = if deflated { stored.saturating_mul(MAX_OF_ONE) } else { stored };
    if size > most || (!deflated && size != stored) {
        return Err(corrupt(format!(
            "states an impossible size: {} stored bytes cannot decompress to {} bytes",
            with_separators(stored),
            with_separators(size)
        )));
    }
    Ok(Entry { name, offset, stored, size, deflated, crc32: u32_at(fields, 16) })
}

/// Returns the zip64 record from a member's extra fields; empty if the fields lack this record.
fn zip64(mut extra: &[u8]) -> &[u8] {
    while extra.len() >= 4 {
        let (id, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let Some(value) = extra.get(4..4 + len) else { break };
        if id == 1 {
            return value;
        }
        extra = &extra[4 + len..];
    }
    &[]
}
