// SPDX-License-Identifier: Apache-2.0
//! Finds damaged and missing pages of an Ogg file, which `symphonia` skips silently.

use std::collections::HashMap;

use penstock_types::{Error, Result, with_separators};
use symphonia::core::checksum::Crc32;
use symphonia::core::io::Monitor;

const MAGIC: &[u8] = b"OggS";
const HEADER: usize = 27;
/// Flags of the first and the last page of a stream.
const FIRST: u8 = 2;
const LAST: u8 = 4;

/// A page whose checksum is correct.
struct Page {
    flags: u8,
    serial: u32,
    sequence: u32,
    len: usize,
}

impl Page {
    /// Reads the page at the start of `bytes`; `None` if the page is cut off or damaged.
    fn read(bytes: &[u8]) -> Option<Self> {
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let lengths = bytes.get(HEADER..HEADER + usize::from(header[26]))?;
        let len = HEADER + lengths.len() + lengths.iter().map(|len| usize::from(*len)).sum::<usize>();
        let rest = bytes.get(HEADER..len)?;
        let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        // The checksum is computed with zeros in its own field.
        let mut unsigned = *header;
        unsigned[22..26].fill(0);
        let mut crc = Crc32::new(0);
        crc.process_buf_bytes(&unsigned);
        crc.process_buf_bytes(rest);
        let is_right = header.starts_with(MAGIC) && crc.crc() == number(22);
        is_right.then(|| Self { flags: header[5], serial: number(14), sequence: number(18), len })
    }
}

/// Checks that all pages up to the end of each stream are present and undamaged.
///
/// # Errors
/// `Corrupt` if a page is damaged or missing; `Mismatch` for chained streams (one after another).
pub(super) fn check(bytes: &[u8], place: &str) -> Result<()> {
    let wrong = |problem: String| Error::corrupt(place, format!("is a damaged Ogg file: {problem}"));
    let chained = || Error::mismatch(place, "is a chained Ogg file, which penstock.audio does not read");
    // Serial number and next sequence number of each stream that has not ended.
    let mut streams: HashMap<u32, u32> = HashMap::new();
    let (mut at, mut is_started) = (0, false);
    for number in 1u64.. {
        if at == bytes.len() {
            return Err(wrong("it is cut off: its last page is missing".to_owned()));
        }
        let missing = || {
            let (number, at) = (with_separators(number), with_separators(at as u64));
            wrong(format!("its page {number} at byte {at} is damaged or missing"))
        };
        let page = Page::read(&bytes[at..]).ok_or_else(missing)?;
        if page.flags & FIRST != 0 {
            if is_started {
                return Err(chained());
            }
            if streams.insert(page.serial, page.sequence).is_some() {
                return Err(missing());
            }
        }
        is_started |= page.flags & FIRST == 0;
        let next = streams.get_mut(&page.serial).filter(|next| **next == page.sequence).ok_or_else(missing)?;
        *next = next.wrapping_add(1);
        if page.flags & LAST != 0 {
            streams.remove(&page.serial);
        }
        at += page.len;
        if streams.is_empty() {
            break;
        }
    }
    if bytes[at..].starts_with(MAGIC) { Err(chained()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(flags: u8, serial: u32, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut page = [MAGIC, &[0, flags], &[0; 8]].concat();
        page.extend([serial.to_le_bytes(), sequence.to_le_bytes(), [0; 4]].concat());
        page.extend([1, body.len() as u8]);
        page.extend(body);
        let mut crc = Crc32::new(0);
        crc.process_buf_bytes(&page);
        page[22..26].copy_from_slice(&crc.crc().to_le_bytes());
        page
    }

    #[test]
    fn every_damaged_missing_or_repeated_page_is_found() {
        let pages = [
            page(FIRST, 7, 0, b"head"),
            page(FIRST, 9, 4, b"other"),
            page(0, 7, 1, b"one"),
            page(LAST, 9, 5, b""),
            page(0, 7, 2, b"two"),
            page(LAST, 7, 3, b"three"),
        ];
        let whole = pages.concat();
        check(&whole, "p").unwrap();
        check(&[&whole, &b"TAG and zeros\0\0"[..]].concat(), "p").unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert!(matches!(check(&damaged, "p"), Err(Error::Corrupt { .. })), "byte {at}");
            assert!(matches!(check(&whole[..at], "p"), Err(Error::Corrupt { .. })), "cut at {at}");
        }
        for at in 0..pages.len() {
            let mut other = pages.to_vec();
            let removed = other.remove(at);
            assert!(check(&other.concat(), "p").is_err(), "without page {at}");
            other.splice(at..at, [removed.clone(), removed]);
            assert!(check(&other.concat(), "p").is_err(), "page {at} twice");
        }
        let mut damaged = whole.clone();
        damaged[pages[..2].concat().len() + 29] ^= 1;
        let error = check(&damaged, "p").unwrap_err().to_string();
        assert_eq!(error, "p is a damaged Ogg file: its page 3 at byte 65 is damaged or missing");
        for chained in [whole.repeat(2), [&pages[0][..], &pages[2], &whole].concat()] {
            assert!(matches!(check(&chained, "p"), Err(Error::Mismatch { .. })));
        }
    }
}
