// SPDX-License-Identifier: Apache-2.0
//! Format for transposed content: splits elements into byte planes and bit planes, and compresses the planes with zstd.
//! Penstock uses the format for its own copies that are read many times, because the format is smaller than gzip and
//! cheaper to decode.
//!
//! Layout: a header, the stored length of each block, a CRC-32C of the header and the lengths, then the blocks. The
//! header holds the magic, the element width, the number of bit planes, the block size and the content size. Each block
//! is shuffled and compressed independently. A block that zstd does not make smaller is stored uncompressed. Blocks
//! have no checksums, because the code that manages such copies has its own checksums. Checksums inside the records are
//! preserved, but the checksums of the original codec are lost.

use std::cell::RefCell;

use penstock_types::{Error, Result, with_separators};

use crate::bitshuffle::{from_bits, to_bits};
use crate::byteshuffle::{shuffle, unshuffle};
use crate::checksum::crc32c;
use crate::output::above_limit;
use crate::{SizedCodec, decompress_exact};

/// Magic bytes. The last byte is the format version.
const MAGIC: [u8; 8] = *b"pstkpln1";

const HEADER: usize = 24;

/// Content size of a block in bytes. Compared with blocks of this size, zstd is a fifth slower with 64 KiB blocks, and
/// a tenth faster with 1 MiB blocks. Blocks of 1 MiB do not fit in any L2 cache (decision 0531).
const BLOCK: usize = 512 << 10;

/// Maximum content size of a block. A hostile header can make a reader allocate at most twice this size, in addition to
/// the content.
const MAX_BLOCK: usize = 1 << 20;

/// zstd compression level. Higher levels take longer and save no space (decision 0531).
const LEVEL: i32 = 1;

/// Number of blocks on which each layout is tried. The blocks are spread over the content.
const TRIED: usize = 2;

/// Layout of the planes: elements are `width` bytes wide, and their `bits` lowest byte planes are split into bit
/// planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planes {
    width: u8,
    bits: u8,
}

#[derive(Default)]
struct Rooms {
    bytes: Vec<u8>,
    bits: Vec<u8>,
}

thread_local! {
    static ROOMS: RefCell<Rooms> = RefCell::default();
}

impl Planes {
    /// All layouts: for each width, only byte planes, the lowest plane split into bits, or all planes split into bits.
    const ALL: [Self; 11] = [
        Self { width: 1, bits: 0 },
        Self { width: 1, bits: 1 },
        Self { width: 2, bits: 0 },
        Self { width: 2, bits: 1 },
        Self { width: 2, bits: 2 },
        Self { width: 4, bits: 0 },
        Self { width: 4, bits: 1 },
        Self { width: 4, bits: 4 },
        Self { width: 8, bits: 0 },
        Self { width: 8, bits: 1 },
        Self { width: 8, bits: 8 },
    ];

    /// Creates a layout. Returns `None` unless the width is 1, 2, 4 or 8 and `bits` is at most the width.
    pub fn new(width: u8, bits: u8) -> Option<Self> {
        matches!(width, 1 | 2 | 4 | 8).then_some(Self { width, bits }).filter(|form| form.bits <= form.width)
    }

    /// Returns the layout that makes `content` smallest. Estimates the size from a few blocks of `content`.
    ///
    /// # Errors
    /// `Bug` if zstd fails.
    pub fn best(content: &[u8]) -> Result<Self> {
        let blocks = content.len().div_ceil(BLOCK);
        let step = blocks.div_ceil(TRIED).max(1);
        let mut best = (usize::MAX, Self::ALL[0]);
        for form in Self::ALL {
            let mut bytes = 0;
            // Skip the first block if there are several, because it contains headers.
            for at in (step / 2..blocks).step_by(step) {
                bytes += form.block_of(content, at)?.len();
            }
            // Layouts with more bit planes take longer to decode, so a later layout must be at least 2 % smaller.
            if best.0 == usize::MAX || bytes < best.0 - best.0 / 50 {
                best = (bytes, form);
            }
        }
        Ok(best.1)
    }

    /// Number of bytes of a block that become bit planes. The number is 0 if the plane size is not a multiple of eight.
    fn bits_of(self, block: usize) -> usize {
        let plane = block / usize::from(self.width);
        if plane.is_multiple_of(8) { plane * usize::from(self.bits) } else { 0 }
    }

    /// Encodes block `number` of the content.
    fn block_of(self, content: &[u8], number: usize) -> Result<Vec<u8>> {
        let start = number * BLOCK;
        let block = &content[start..content.len().min(start + BLOCK)];
        let packed = ROOMS.with_borrow_mut(|Rooms { bytes, bits }| {
            bytes.resize(block.len(), 0);
            shuffle(block, bytes, usize::from(self.width));
            let in_bits = self.bits_of(block.len());
            bits.resize(in_bits, 0);
            let plane = (block.len() / usize::from(self.width)).max(1);
            bytes[..in_bits]
                .chunks_exact(plane)
                .zip(bits.chunks_exact_mut(plane))
                .for_each(|(from, to)| to_bits(from, to));
            bytes[..in_bits].copy_from_slice(bits);
            let packed = zstd::bulk::compress(bytes, LEVEL)?;
            std::io::Result::Ok(if packed.len() < block.len() { packed } else { bytes.clone() })
        });
        packed.map_err(|error| Error::bug(format!("zstd: {error}")))
    }

    /// Joins the planes of a decompressed block in `bytes` and writes the elements to `out`.
    fn put_together(self, bytes: &mut [u8], bits: &mut Vec<u8>, out: &mut [u8]) {
        let in_bits = self.bits_of(bytes.len());
        if bits.len() < in_bits {
            bits.resize(in_bits, 0);
        }
        let plane = (bytes.len() / usize::from(self.width)).max(1);
        for (from, to) in bytes[..in_bits].chunks_exact_mut(plane).zip(bits.chunks_exact_mut(plane)) {
            from_bits(from, to);
            from.copy_from_slice(to);
        }
        unshuffle(bytes, out, usize::from(self.width));
    }
}

/// Splits `content` into planes of layout `form` and compresses them.
///
/// # Errors
/// `Bug` if zstd fails.
pub fn transpose(content: &[u8], form: Planes) -> Result<Vec<u8>> {
    let blocks = content.len().div_ceil(BLOCK);
    let table = HEADER + 4 * blocks;
    let mut out = Vec::with_capacity(table + 4);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[form.width, form.bits, 0, 0]);
    out.extend_from_slice(&(BLOCK as u32).to_le_bytes());
    out.extend_from_slice(&(content.len() as u64).to_le_bytes());
    out.resize(table + 4, 0);
    for at in 0..blocks {
        let block = form.block_of(content, at)?;
        out[HEADER + 4 * at..][..4].copy_from_slice(&(block.len() as u32).to_le_bytes());
        out.extend_from_slice(&block);
    }
    let sum = crc32c(&out[..table]);
    out[table..table + 4].copy_from_slice(&sum.to_le_bytes());
    Ok(out)
}

/// Parsed header and table of block lengths.
struct Header<'a> {
    form: Planes,
    block: usize,
    content: usize,
    lens: &'a [[u8; 4]],
    blocks: &'a [u8],
}

fn header<'a>(input: &'a [u8], limit: u64, place: &str) -> Result<Header<'a>> {
    let damaged = |problem: String| Error::corrupt(place, format!("is a damaged transposed copy: {problem}"));
    let Some((header, rest)) = input.split_first_chunk::<HEADER>() else {
        return Err(damaged(format!("want a header of {HEADER} bytes, have {}", input.len())));
    };
    if header[..8] != MAGIC {
        return Err(damaged("wrong magic number".to_owned()));
    }
    let block = header[12..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
    let content = header.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let form = Planes::new(header[8], header[9]).filter(|_| (1..=MAX_BLOCK).contains(&block));
    let Some(form) = form else {
        let [width, bits] = [header[8], header[9]];
        return Err(damaged(format!(
            "invalid header (elements of {width} bytes, {bits} bit planes, blocks of {block} bytes)"
        )));
    };
    if content > limit {
        return Err(above_limit(limit, place));
    }
    let count = usize::try_from(content.div_ceil(block as u64)).ok().filter(|&count| count <= rest.len() / 4);
    let table = count.and_then(|count| Some((rest.get(..4 * count)?, rest.get(4 * count..)?)));
    let Some((table, (sum, blocks))) = table.and_then(|(table, rest)| Some((table, rest.split_first_chunk::<4>()?)))
    else {
        return Err(damaged(format!(
            "{} bytes are too few for {} bytes of content",
            input.len(),
            with_separators(content)
        )));
    };
    if crc32c(&input[..HEADER + table.len()]).to_le_bytes() != *sum {
        return Err(damaged("the checksum of the block table is wrong".to_owned()));
    }
    let lens = table.as_chunks::<4>().0;
    if lens.iter().map(|len| u64::from(u32::from_le_bytes(*len))).sum::<u64>() != blocks.len() as u64 {
        return Err(damaged("the block sizes do not match the block table".to_owned()));
    }
    Ok(Header { form, block, content: content as usize, lens, blocks })
}

/// Decompresses the output of [`transpose`] into `out`, replacing the content of `out`. `limit` is the maximum content
/// size in bytes. After an error, `out` is empty. `place` names the object in error messages.
///
/// # Errors
/// [`Error::Corrupt`] for damaged or hostile input, and for content above the limit.
pub fn restore_transposed(input: &[u8], out: &mut Vec<u8>, limit: u64, place: &str) -> Result<()> {
    let done = header(input, limit, place).and_then(|header| fill(&header, out, place));
    if done.is_err() {
        out.clear();
    }
    done
}

fn fill(header: &Header<'_>, out: &mut Vec<u8>, place: &str) -> Result<()> {
    // Existing bytes will be overwritten, so only new bytes are zeroed.
    out.truncate(header.content);
    let more = header.content - out.len();
    out.try_reserve_exact(more).map_err(|_| Error::BudgetExceeded {
        what: format!("inflating {place}"),
        need: header.content as u64,
        budget: out.capacity() as u64,
    })?;
    out.resize(header.content, 0);
    ROOMS.with_borrow_mut(|Rooms { bytes, bits }| {
        bytes.resize(header.block, 0);
        let mut blocks = header.blocks;
        for (len, block) in header.lens.iter().zip(out.chunks_mut(header.block)) {
            // `split_at` cannot panic, because `header` has checked that the lengths add up to the size of the blocks.
            let (stored, behind) = blocks.split_at(u32::from_le_bytes(*len) as usize);
            blocks = behind;
            let bytes = &mut bytes[..block.len()];
            if stored.len() == block.len() {
                bytes.copy_from_slice(stored);
            } else {
                decompress_exact(SizedCodec::Zstd, stored, bytes, place)?;
            }
            header.form.put_together(bytes, bits, block);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Small numbers, as in volumes: the upper bits of all numbers are equal.
    fn counts(elements: usize, width: u8) -> Vec<u8> {
        let value = |at: usize| (at.wrapping_mul(2_654_435_761) >> 20) as u64 % 11;
        (0..elements).flat_map(|at| value(at).to_le_bytes()[..usize::from(width)].to_vec()).collect()
    }

    #[test]
    fn planes_of_whole_numbers_are_smaller_than_their_bytes_by_their_own_width() {
        for width in [2u8, 4, 8] {
            let content = counts(300_000, width);
            let form = Planes::best(&content).unwrap();
            assert_eq!(form.width, width);
            let bytes = transpose(&content, Planes::new(1, 0).unwrap()).unwrap();
            assert!(transpose(&content, form).unwrap().len() < bytes.len());
        }
    }

    #[test]
    fn planes_above_the_limit_and_forms_that_are_none_are_refused() {
        let content = counts(1000, 2);
        let planes = transpose(&content, Planes::new(2, 1).unwrap()).unwrap();
        let mut out = Vec::new();
        assert!(
            restore_transposed(&planes, &mut out, 1999, "p").unwrap_err().to_string().contains("limit of 1,999 bytes")
        );
        assert!(Planes::new(3, 0).is_none() && Planes::new(2, 3).is_none() && Planes::new(0, 0).is_none());
    }

    proptest! {
        #[test]
        fn prop_planes_give_back_any_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..9000),
            repeats in 1usize..100,
            before in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let content = bytes.repeat(repeats);
            for form in Planes::ALL {
                let planes = transpose(&content, form).unwrap();
                let mut out = before.clone();
                restore_transposed(&planes, &mut out, content.len() as u64, "p").unwrap();
                prop_assert!(out == content);
            }
        }

        #[test]
        fn prop_damaged_planes_err_or_are_of_the_said_size(
            content in prop::collection::vec(0u8..3, 0..3000),
            at: prop::sample::Index,
            to: u8,
            cut: prop::sample::Index,
            is_mended: bool,
        ) {
            let mut planes = transpose(&content, Planes { width: 2, bits: 1 }).unwrap();
            let mut out = Vec::new();
            prop_assert!(restore_transposed(&planes[..cut.index(planes.len())], &mut out, 1 << 20, "p").is_err());
            let at = at.index(planes.len());
            planes[at] = to;
            let table = HEADER + 4 * content.len().div_ceil(BLOCK);
            if is_mended {
                let sum = crc32c(&planes[..table]);
                planes[table..table + 4].copy_from_slice(&sum.to_le_bytes());
            }
            if restore_transposed(&planes, &mut out, 1 << 20, "p").is_ok() {
                prop_assert_eq!(out.len() as u64, u64::from_le_bytes(planes[16..HEADER].try_into().unwrap()));
                prop_assert!(is_mended || out.len() == content.len());
            }
        }
    }
}
