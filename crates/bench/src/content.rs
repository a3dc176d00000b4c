// SPDX-License-Identifier: Apache-2.0
//! Generates and checks the content of written files. Apart from a given percentage of zeros, the bytes cannot be
//! compressed. No two pages are equal, and every byte can be computed again from its position.
//!
//! The content is one mebibyte of random noise, repeated. Each page starts with a stamp: eight bytes computed from the
//! salt (a seed), the file number and the page number. Generating or checking a block costs one pass over memory, and
//! storage that deduplicates finds no duplicates.

/// Period of the noise. It is larger than the windows of gzip and lz4, and than the blocks that file systems compress.
const PERIOD: usize = 1 << 20;
const PAGE: u64 = 4096;

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Generates the content of files for one salt.
#[derive(Debug)]
pub struct Content {
    salt: u64,
    noise: Vec<u8>,
}

impl Content {
    /// Builds the noise for `salt`. In each page, `compressible` percent of the bytes are zeros.
    pub fn new(salt: u64, compressible: u32) -> Self {
        let random = (PAGE as usize * (100 - compressible.min(100)) as usize) / 100;
        let mut noise = vec![0; PERIOD];
        let mut state = mix(salt ^ 0x70656e73746f636b);
        for page in noise.chunks_mut(PAGE as usize) {
            for word in page[..random].chunks_mut(8) {
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let len = word.len();
                word.copy_from_slice(&mix(state).to_le_bytes()[..len]);
            }
        }
        Self { salt, noise }
    }

    fn stamp(&self, file: u64, page: u64) -> [u8; 8] {
        mix(self.salt ^ mix(file.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(page))).to_le_bytes()
    }

    /// Returns the stamps that overlap the `len` bytes from `offset`. Each item contains the stamp's position in the
    /// block, the stamp, and the range of the stamp's bytes that are inside the block.
    fn stamps(
        &self,
        file: u64,
        offset: u64,
        len: usize,
    ) -> impl Iterator<Item = (usize, [u8; 8], std::ops::Range<usize>)> {
        let end = offset + len as u64;
        (offset.saturating_sub(7) / PAGE..end.div_ceil(PAGE)).filter_map(move |page| {
            let at = page * PAGE;
            let (from, to) = (at.max(offset), (at + 8).min(end));
            (from < to).then(|| {
                let part = (from - at) as usize..(to - at) as usize;
                ((from - offset) as usize, self.stamp(file, page), part)
            })
        })
    }

    /// Fills `block` with the content of `file` at `offset`.
    pub fn fill(&self, block: &mut [u8], file: u64, offset: u64) {
        let mut done = 0;
        while done < block.len() {
            let from = ((offset + done as u64) % PERIOD as u64) as usize;
            let len = (PERIOD - from).min(block.len() - done);
            block[done..done + len].copy_from_slice(&self.noise[from..from + len]);
            done += len;
        }
        for (at, stamp, part) in self.stamps(file, offset, block.len()) {
            block[at..at + part.len()].copy_from_slice(&stamp[part]);
        }
    }

    /// Fills a block that is written many times. [`Self::touch`] then changes it before each write.
    pub fn prepare(&self, block: &mut [u8]) {
        self.fill(block, u64::MAX, 0);
    }

    /// Changes every page of a prepared block. Cheaper than [`Self::fill`], but the content cannot be verified later.
    #[inline]
    pub fn touch(&self, block: &mut [u8], serial: u64) {
        for (page, bytes) in block.chunks_mut(PAGE as usize).enumerate() {
            if let Some(head) = bytes.first_chunk_mut::<8>() {
                *head = mix(self.salt ^ serial.wrapping_add((page as u64) << 48)).to_le_bytes();
            }
        }
    }

    /// Compares `block`, read from `offset` of `file`, with the written content. Returns the first different position.
    pub fn differs(&self, block: &[u8], file: u64, offset: u64) -> Option<u64> {
        let mut first: Option<usize> = None;
        let mut note = |at: usize| first = Some(first.map_or(at, |known| known.min(at)));
        for (at, stamp, part) in self.stamps(file, offset, block.len()) {
            if let Some(bad) = block[at..at + part.len()].iter().zip(&stamp[part]).position(|(a, b)| a != b) {
                note(at + bad);
            }
        }
        let mut done = 0;
        while done < block.len() {
            let position = offset + done as u64;
            let within = (position % PAGE) as usize;
            let len = (PAGE as usize - within).min(block.len() - done);
            // Skip the bytes of the stamp, which were compared above.
            let skip = 8usize.saturating_sub(within).min(len);
            let from = (position % PERIOD as u64) as usize;
            let (have, want) = (&block[done + skip..done + len], &self.noise[from + skip..from + len]);
            if have != want
                && let Some(bad) = have.iter().zip(want).position(|(a, b)| a != b)
            {
                note(done + skip + bad);
                break;
            }
            done += len;
        }
        first.map(|at| offset + at as u64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prop_content_is_a_function_of_its_place(offset in 0u64..3 << 20, len in 1usize..20_000, cut in 0usize..20_000) {
            let content = Content::new(7, 0);
            let mut whole = vec![0; len];
            content.fill(&mut whole, 3, offset);
            let cut = cut.min(len);
            let mut parts = vec![0; len];
            content.fill(&mut parts[..cut], 3, offset);
            content.fill(&mut parts[cut..], 3, offset + cut as u64);
            prop_assert_eq!(&whole, &parts);
            prop_assert_eq!(content.differs(&whole, 3, offset), None);
        }

        #[test]
        fn prop_content_one_wrong_byte_is_found_where_it_is(offset in 0u64..3 << 20, len in 1usize..20_000, at in 0usize..20_000) {
            let content = Content::new(7, 50);
            let at = at % len;
            let mut block = vec![0; len];
            content.fill(&mut block, 3, offset);
            block[at] ^= 0x40;
            prop_assert_eq!(content.differs(&block, 3, offset), Some(offset + at as u64));
        }
    }

    #[test]
    fn test_content_of_another_file_or_salt_differs() {
        let mut block = vec![0; 8192];
        Content::new(1, 0).fill(&mut block, 5, 0);
        assert!(Content::new(1, 0).differs(&block, 6, 0).is_some());
        assert!(Content::new(2, 0).differs(&block, 5, 0).is_some());
    }

    #[test]
    fn test_content_touched_blocks_have_no_page_in_common() {
        let content = Content::new(1, 0);
        let mut block = vec![0; 16384];
        content.prepare(&mut block);
        let mut seen = std::collections::HashSet::new();
        for serial in 0..8 {
            content.touch(&mut block, serial);
            assert!(block.chunks(4096).all(|page| seen.insert(page.to_vec())));
        }
    }
}
