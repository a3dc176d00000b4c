// SPDX-License-Identifier: Apache-2.0
//! Splits an object into frames that can be decompressed independently: gzip members, zstd frames and LZ4 frames. Most
//! frames are found without decompression. The result is runs of whole frames, which the caller can decompress in
//! parallel.
//!
//! zstd frames, LZ4 frames and bgzf members (with a `BC` field in the header, as in SAM and BAM files) contain their
//! length. Other gzip members do not contain their length, so this module treats any bytes that look like a gzip header
//! as the start of a member. Decompression verifies this guess: the preceding run must end exactly where the guessed
//! member starts (see [`crate::decompress_frames`]). A wrong guess costs time, but the result stays correct.

use crate::Codec;
use crate::gzip::{MAX_OF_ONE, TRAILER};
use crate::lz4;

/// gzip's magic number and the method byte of DEFLATE.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];
/// Size of a gzip header without optional fields.
const GZIP_HEADER: usize = 10;
/// Minimum size of a gzip member: a header, an empty DEFLATE stream and a trailer.
const MIN_GZIP: usize = GZIP_HEADER + 2 + TRAILER;
const ZSTD: u32 = 0xfd2f_b528;
/// Maximum decompressed size of a zstd block.
const ZSTD_BLOCK: u64 = 128 << 10;

/// A run of consecutive whole frames of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRun {
    /// Number of stored bytes. The run begins where the previous run ends.
    pub stored: usize,
    /// Decompressed size, from the headers or trailers. The size is exact for gzip and for frames that contain their
    /// size. For other frames, the size is an upper bound.
    pub content: u64,
}

/// Target size of a run of frames. A run ends with the frame that reaches one of the two sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameRunSize {
    /// Number of stored bytes.
    pub stored: usize,
    /// Number of decompressed bytes.
    pub content: u64,
}

impl Default for FrameRunSize {
    /// Returns a size for which two conditions hold. The content is still in a core's cache when it is hashed and
    /// written, and passing a run between threads costs little compared with decompressing it.
    fn default() -> Self {
        Self { stored: 512 << 10, content: 2 << 20 }
    }
}

/// Splits `window`, which starts at the beginning of a frame, into runs of frames. The runs are adjacent and start at
/// the beginning of the window. Bytes after the last run belong to an incomplete frame or to no frame. `is_end` means
/// that the object ends with the window.
///
/// None of the lengths is trusted, because all of them come from the object.
pub fn split_frames(codec: Codec, window: &[u8], is_end: bool, size: FrameRunSize) -> Vec<FrameRun> {
    let (mut stretches, mut open) = (Vec::new(), FrameRun { stored: 0, content: 0 });
    let mut at = 0;
    while at < window.len() {
        let rest = &window[at..];
        let block = match codec {
            Codec::None => None,
            Codec::Gzip => gzip_member(rest, is_end),
            Codec::Zstd => zstd_frame(rest),
            Codec::Lz4 => lz4_frame(rest),
        };
        let Some(block) = block.filter(|block| (1..=rest.len()).contains(&block.stored)) else { break };
        at += block.stored;
        open.stored += block.stored;
        open.content = open.content.saturating_add(block.content);
        if open.stored >= size.stored || open.content >= size.content {
            stretches.push(std::mem::replace(&mut open, FrameRun { stored: 0, content: 0 }));
        }
    }
    if open.stored > 0 {
        stretches.push(open);
    }
    stretches
}

/// Returns the gzip member at the start of `bytes`.
fn gzip_member(bytes: &[u8], is_end: bool) -> Option<FrameRun> {
    if !is_gzip_header(bytes) {
        return None;
    }
    if let Some(stored) = bgzf_size(bytes) {
        return bytes.get(..stored).and_then(gzip_content).map(|content| FrameRun { stored, content });
    }
    let mut from = MIN_GZIP;
    while let Some(next) = bytes.get(from..).and_then(|rest| find(rest, GZIP)) {
        let stored = from + next;
        if is_gzip_header(&bytes[stored..])
            && let Some(content) = gzip_content(&bytes[..stored])
        {
            return Some(FrameRun { stored, content });
        }
        from = stored + 1;
    }
    // This is the last member: no later header marks its end.
    let content = gzip_content(bytes).filter(|_| is_end)?;
    Some(FrameRun { stored: bytes.len(), content })
}

/// Returns true for ten header bytes that a compressor could write: no reserved flags, a valid level and a valid
/// system.
fn is_gzip_header(bytes: &[u8]) -> bool {
    let Some([a, b, c, flags, _, _, _, _, level, system]) = bytes.first_chunk::<GZIP_HEADER>() else { return false };
    [*a, *b, *c] == GZIP && flags & 0xe0 == 0 && matches!(level, 0 | 2 | 4) && matches!(system, 0..=13 | 255)
}

/// Returns the size in the trailer of `member`; `None` if a valid member cannot have that size.
fn gzip_content(member: &[u8]) -> Option<u64> {
    let says = u64::from(u32::from_le_bytes(*member.last_chunk::<4>()?));
    (member.len() >= MIN_GZIP && says <= (member.len() as u64).saturating_mul(MAX_OF_ONE)).then_some(says)
}

/// Returns the stored size of a bgzf member, from the `BC` field among its extra fields.
fn bgzf_size(bytes: &[u8]) -> Option<usize> {
    const EXTRA: u8 = 4;
    if bytes.get(3)? & EXTRA == 0 {
        return None;
    }
    let len = u16::from_le_bytes(*bytes.get(GZIP_HEADER..)?.first_chunk()?);
    let mut fields = bytes.get(GZIP_HEADER + 2..)?.get(..usize::from(len))?;
    while let Some(([id, other, a, b], rest)) = fields.split_first_chunk::<4>() {
        let body = rest.get(..usize::from(u16::from_le_bytes([*a, *b])))?;
        if [*id, *other] == *b"BC"
            && let [low, high] = body
        {
            let stored = usize::from(u16::from_le_bytes([*low, *high])) + 1;
            return (stored >= MIN_GZIP).then_some(stored);
        }
        fields = &rest[body.len()..];
    }
    None
}

/// Returns the offset of the first `needle` in `bytes`.
fn find(bytes: &[u8], needle: [u8; 3]) -> Option<usize> {
    memchr::memmem::find(bytes, &needle)
}

/// Reads the little-endian 32-bit word at the start of `bytes`.
fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk::<4>().map(|four| u32::from_le_bytes(*four))
}

/// Returns the skippable frame at the start of `bytes`; zstd and LZ4 share this format.
fn skippable(bytes: &[u8]) -> Option<FrameRun> {
    let len = usize::try_from(word(bytes.get(4..)?)?).ok()?;
    Some(FrameRun { stored: len.checked_add(8)?, content: 0 })
}

/// Returns the zstd frame at the start of `bytes`. The size of the frame is the sum of the sizes of its header and its
/// blocks. Each block states its size.
fn zstd_frame(bytes: &[u8]) -> Option<FrameRun> {
    match word(bytes)? {
        ZSTD => {}
        magic if magic & !0xf == lz4::SKIPPABLE => return skippable(bytes),
        _ => return None,
    }
    let flags = *bytes.get(4)?;
    let is_single_segment = flags & 0x20 != 0;
    let size_len = match (flags >> 6, is_single_segment) {
        (0, false) => 0,
        (0, true) => 1,
        (1, _) => 2,
        (2, _) => 4,
        _ => 8,
    };
    let dictionary_len = [0, 1, 2, 4][usize::from(flags & 3)];
    let size_at = 5 + usize::from(!is_single_segment) + dictionary_len;
    let mut little = [0; 8];
    little[..size_len].copy_from_slice(bytes.get(size_at..size_at + size_len)?);
    let content_size = match size_len {
        0 => None,
        // The two-byte size field has an offset of 256, because the one-byte field covers the smaller sizes.
        2 => Some(u64::from_le_bytes(little) + 256),
        _ => Some(u64::from_le_bytes(little)),
    };
    let (mut at, mut most) = (size_at + size_len, 0u64);
    loop {
        let header = bytes.get(at..)?.first_chunk::<3>()?;
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let len = header >> 3;
        let (stored, content) = match header >> 1 & 3 {
            0 => (len, u64::from(len)),
            1 => (1, u64::from(len)),
            2 => (len, ZSTD_BLOCK),
            _ => return None,
        };
        at += 3 + stored as usize;
        most += content.min(ZSTD_BLOCK);
        if header & 1 == 1 {
            break;
        }
    }
    let stored = at + if flags & 4 != 0 { 4 } else { 0 };
    Some(FrameRun { stored, content: content_size.unwrap_or(most).min(most) })
}

/// Returns the LZ4 frame at the start of `bytes`. The size of the frame is the sum of the sizes of its header and its
/// blocks. Each block states its size.
fn lz4_frame(bytes: &[u8]) -> Option<FrameRun> {
    match word(bytes)? {
        lz4::MAGIC => {}
        magic if magic & !0xf == lz4::SKIPPABLE => return skippable(bytes),
        _ => return None,
    }
    let &[flags, descriptor] = bytes.get(4..)?.first_chunk::<2>()?;
    let block_most = 1u64 << (8 + 2 * u32::from(descriptor >> 4 & 7));
    let set = |bit: u8| usize::from(flags >> bit & 1);
    let (sums, sized, sum, dictionary) = (set(4), set(3), set(2), set(0));
    let mut at = 6 + 8 * sized + 4 * dictionary + 1;
    let mut most = 0u64;
    loop {
        let len = word(bytes.get(at..)?)?;
        at += 4;
        if len == 0 {
            break;
        }
        let stored = (len & 0x7fff_ffff) as usize;
        // One compressed byte expands to at most 255 bytes.
        most += (stored as u64).saturating_mul(255).min(block_most);
        at += stored + 4 * sums;
    }
    let content_size =
        (sized == 1).then(|| bytes.get(6..)?.first_chunk::<8>().map(|eight| u64::from_le_bytes(*eight))).flatten();
    Some(FrameRun { stored: at + 4 * sum, content: content_size.unwrap_or(most).min(most) })
}
