// SPDX-License-Identifier: Apache-2.0
//! Decoder for the Blosc 1 container, which Zarr and HDF5 plug-ins write. A container has blocks, each with one or
//! several streams (blosclz, LZ4, zlib, zstd), with byte or bit shuffle. Snappy and Blosc 2 features are rejected.

use std::cell::RefCell;

use penstock_codec::{SizedCodec, decompress_exact, unshuffle};
use penstock_types::{Error, Result, with_separators};

use super::shuffle::unshuffle_bits;

const HEADER: usize = 16;
/// Maximum element size, in bytes, for which a block is split into streams, one per byte of an element.
const MAX_SPLITS: usize = 16;
/// Minimum size of a stream, in bytes, for which a block is split.
const MIN_STREAM: usize = 128;

fn le_u32(bytes: &[u8], at: usize) -> Option<usize> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes) as usize)
}

thread_local! {
    static BLOCK: RefCell<Vec<u8>> = RefCell::default();
}

/// Decodes the Blosc container in `input` into `out`, which has the decoded size.
pub(super) fn decode(input: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    let corrupt = |problem: String| Error::corrupt(place, format!("is a damaged Blosc buffer: {problem}"));
    let Some(&[version, _, flags, element, ..]) = input.first_chunk::<HEADER>() else {
        return Err(corrupt(format!("{} bytes are too few for a header (want {HEADER})", input.len())));
    };
    let [size, block, stored] = [4, 8, 12].map(|at| le_u32(input, at).unwrap_or(0));
    if version != 2 {
        let what = format!("version {version} of Blosc's format ({place})");
        return Err(Error::Unsupported { what, by: "the chunk reader (version 2)".to_owned() });
    }
    if stored != input.len() {
        return Err(corrupt(format!(
            "its header declares {} bytes, but it has {}",
            with_separators(stored as u64),
            with_separators(input.len() as u64)
        )));
    }
    if size != out.len() {
        return Err(Error::corrupt(
            place,
            format!(
                "is a chunk of {} bytes (want {})",
                with_separators(size as u64),
                with_separators(out.len() as u64)
            ),
        ));
    }
    if out.is_empty() {
        return Ok(());
    }
    let element = usize::from(element).max(1);
    if flags & 2 != 0 {
        // The data are neither compressed nor shuffled.
        let data = &input[HEADER..];
        if data.len() != out.len() {
            return Err(corrupt(format!(
                "its content has {} bytes (want {})",
                with_separators(data.len() as u64),
                with_separators(size as u64)
            )));
        }
        out.copy_from_slice(data);
        return Ok(());
    }
    if block == 0 || size.div_ceil(block) > (input.len() - HEADER) / 4 {
        return Err(corrupt(format!(
            "it cannot contain {} bytes in blocks of {}",
            with_separators(size as u64),
            with_separators(block as u64)
        )));
    }
    let packing = match flags >> 5 {
        0 => None,
        1 => Some(SizedCodec::Lz4Block),
        3 => Some(SizedCodec::Zlib),
        4 => Some(SizedCodec::Zstd),
        other => {
            let what = format!("Blosc's compressor {other} ({place})");
            return Err(Error::Unsupported { what, by: "the chunk reader".to_owned() });
        }
    };
    let (bytes, bits) = (flags & 1 != 0 && element > 1, flags & 4 != 0 && block >= element);
    BLOCK.with_borrow_mut(|room| {
        for (number, target) in out.chunks_mut(block).enumerate() {
            let start = le_u32(input, HEADER + 4 * number).unwrap_or(usize::MAX);
            let source = input
                .get(start..)
                .ok_or_else(|| corrupt(format!("block {number} begins after the end of the buffer")))?;
            let whole = target.len() == block;
            let split = flags & 0x10 == 0 && whole && element <= MAX_SPLITS && block / element >= MIN_STREAM;
            let streams = if split { element } else { 1 };
            if !bytes && !bits {
                streams_into(source, target, streams, packing, place, number)?;
                continue;
            }
            if room.len() < target.len() {
                room.resize(target.len(), 0);
            }
            let shuffled = &mut room[..target.len()];
            streams_into(source, shuffled, streams, packing, place, number)?;
            if bits { unshuffle_bits(shuffled, target, element) } else { unshuffle(shuffled, target, element) }
        }
        Ok(())
    })
}

fn streams_into(
    mut source: &[u8],
    target: &mut [u8],
    streams: usize,
    packing: Option<SizedCodec>,
    place: &str,
    number: usize,
) -> Result<()> {
    let corrupt = |problem: &str| Error::corrupt(place, format!("is a damaged Blosc buffer: block {number} {problem}"));
    let len = target.len() / streams;
    if len * streams != target.len() {
        return Err(corrupt("is not divisible into its streams"));
    }
    for slot in target.chunks_exact_mut(len.max(1)) {
        let stored = le_u32(source, 0).and_then(|stored| source[4..].get(..stored));
        let stored = stored.ok_or_else(|| corrupt("ends inside a stream"))?;
        source = &source[4 + stored.len()..];
        match packing {
            // A stream that compression did not shrink is stored uncompressed.
            _ if stored.len() == slot.len() => slot.copy_from_slice(stored),
            Some(packing) => decompress_exact(packing, stored, slot, place)?,
            None if blosclz(stored, slot).is_some() => {}
            None => return Err(corrupt("is damaged blosclz")),
        }
    }
    Ok(())
}

/// Maximum distance of a match in the short form.
const NEAR: usize = 8191;

/// Decompresses blosclz, Blosc's own codec, which is derived from FastLZ. Reads literals and matches until `input`
/// ends; `None` if the result does not fill `out` exactly.
fn blosclz(input: &[u8], out: &mut [u8]) -> Option<()> {
    let (mut at, mut made) = (1usize, 0usize);
    let mut control = usize::from(*input.first()? & 31);
    loop {
        if control >= 32 {
            let (mut len, mut back) = ((control >> 5) - 1, (control & 31) << 8);
            if len == 6 {
                loop {
                    let more = usize::from(*input.get(at)?);
                    at += 1;
                    len += more;
                    if more != 255 {
                        break;
                    }
                }
            }
            let low = usize::from(*input.get(at)?);
            at += 1;
            if low == 255 && back == 31 << 8 {
                let &[high, low] = input.get(at..)?.first_chunk::<2>()?;
                at += 2;
                back = usize::from(u16::from_be_bytes([high, low])) + NEAR;
            } else {
                back += low;
            }
            let (len, from) = (len + 3, made.checked_sub(back + 1)?);
            // A stream ends with literals, so another item follows each match.
            let next = *input.get(at)?;
            at += 1;
            let slot = out.get_mut(..made + len)?;
            match back + 1 {
                1 => {
                    let last = slot[from];
                    slot[made..].fill(last);
                }
                back if back >= len => slot.copy_within(from..from + len, made),
                _ => (0..len).for_each(|step| slot[made + step] = slot[from + step]),
            }
            made += len;
            control = usize::from(next);
        } else {
            let literals = input.get(at..at + control + 1)?;
            out.get_mut(made..made + literals.len())?.copy_from_slice(literals);
            at += literals.len();
            made += literals.len();
            if at == input.len() {
                return (made == out.len()).then_some(());
            }
            control = usize::from(input[at]);
            at += 1;
        }
    }
}
