// SPDX-License-Identifier: Apache-2.0
//! Array chunks: decodes chunks of Zarr (versions 2 and 3) and HDF5 into a batch slot, and copies a chunk to its array
//! rows. Also parses Zarr's metadata and shard indexes.
//!
//! The decompressed size of a chunk follows from its shape; a chunk with another size is damaged. A batch slot holds
//! plain elements in C order. Filters that reorder or transform values (for example, transpose, delta, scale-offset or
//! n-bit) are therefore rejected, and so are szip, bz2 and lzma. The error names the filter.

mod blosc;
mod fletcher;
mod shuffle;
pub mod zarr;

use std::cell::RefCell;
use std::ops::Range;

use penstock_codec::checksum::crc32c;
use penstock_codec::{SizedCodec, decompress_exact, unshuffle};
use penstock_types::{Error, Result, with_separators};

use crate::byteswap::swap_into;

/// Decoding step that reverses one filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Decompresses a stream that does not contain its decompressed size.
    Inflate(SizedCodec),
    /// Decompresses numcodecs' LZ4: a four-byte size, then an LZ4 block.
    SizedLz4,
    /// Decodes a Blosc 1 container, including its shuffle.
    Blosc,
    /// Verifies and removes a CRC-32C in the last four bytes.
    Crc32c,
    /// Verifies and removes HDF5's Fletcher-32 in the last four bytes.
    Fletcher32,
    /// Reverses the byte shuffle of elements of this size: in the input, all first bytes come first, then all second
    /// bytes, and so on.
    Unshuffle(usize),
    /// Swaps big-endian elements of this size to little-endian.
    Swap(usize),
}

impl Step {
    /// Input size of the step for an output of `after` bytes; `None` if this size cannot be computed, as for compressed
    /// data.
    fn before(self, after: usize) -> Option<usize> {
        match self {
            Self::Inflate(_) | Self::SizedLz4 | Self::Blosc => None,
            Self::Crc32c | Self::Fletcher32 => after.checked_add(4),
            Self::Unshuffle(_) | Self::Swap(_) => Some(after),
        }
    }
}

/// Builds the decoding steps for HDF5 filters. `filters` holds the number and the parameters of each filter in file
/// order; `skipped` has a bit set for each filter that was not applied to this chunk.
pub fn hdf5_steps(filters: &[(u16, &[u32])], skipped: u32, place: &str) -> Result<Vec<Step>> {
    let refused = |name: String| {
        Err(Error::Unsupported { what: format!("{name} of {place}"), by: "the HDF5 chunk reader".to_owned() })
    };
    let mut steps = Vec::with_capacity(filters.len());
    for (number, &(filter, values)) in filters.iter().enumerate() {
        if number < 32 && skipped >> number & 1 == 1 {
            continue;
        }
        steps.push(match filter {
            1 => Step::Inflate(SizedCodec::Zlib),
            2 => match values.first() {
                Some(&size) if size > 0 => Step::Unshuffle(size as usize),
                _ => return Err(Error::corrupt(place, "has a shuffle filter without an element size")),
            },
            3 => Step::Fletcher32,
            4 => return refused("the szip filter".to_owned()),
            5 => return refused("the n-bit filter".to_owned()),
            6 => return refused("the scale-offset filter".to_owned()),
            32_001 => Step::Blosc,
            32_015 => Step::Inflate(SizedCodec::Zstd),
            other => return refused(unread_filter(other)),
        });
    }
    steps.reverse();
    Ok(steps)
}

/// Name and number of an HDF5 filter that no step supports. The name comes from the filter registry, because files need
/// not store the name.
fn unread_filter(number: u16) -> String {
    let name = match number {
        305 => "LZO",
        307 => "bzip2",
        32_000 => "LZF",
        32_004 => "LZ4",
        32_008 => "bitshuffle",
        32_013 => "ZFP",
        32_017 => "SZ",
        32_026 => "Blosc2",
        _ => return format!("filter {number}"),
    };
    format!("the {name} filter ({number})")
}

thread_local! {
    // Buffers for the output of intermediate steps.
    static ROOMS: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::default();
}

enum At {
    Stored(Range<usize>),
    Room(Range<usize>),
}

/// Decodes the chunk `stored` with `steps`, in order, into `out`, which has the size of the decoded chunk. `place`
/// names the chunk in messages.
pub fn decode_into(steps: &[Step], stored: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    // Output sizes are computed backwards from the size of the decoded chunk; before the last decompression they are
    // unknown.
    let mut sizes: Vec<Option<usize>> = vec![None; steps.len()];
    let mut size = Some(out.len());
    for (slot, step) in sizes.iter_mut().zip(steps).rev() {
        *slot = size;
        size = size.and_then(|size| step.before(size));
    }
    ROOMS.with_borrow_mut(|(room, other)| {
        let mut at = At::Stored(0..stored.len());
        for (number, (step, size)) in steps.iter().zip(sizes).enumerate() {
            let (input, range) = match &at {
                At::Stored(range) => (&stored[range.clone()], range.clone()),
                At::Room(range) => (&room[range.clone()], range.clone()),
            };
            if let Step::Crc32c | Step::Fletcher32 = step {
                let Some((data, sum)) = input.split_last_chunk::<4>() else {
                    return Err(Error::corrupt(
                        place,
                        format!("ends inside its checksum (have {} bytes)", input.len()),
                    ));
                };
                let (want, sound, name) = match step {
                    Step::Crc32c => (u32::from_le_bytes(*sum), crc32c(data) == u32::from_le_bytes(*sum), "CRC-32C"),
                    _ => (u32::from_le_bytes(*sum), fletcher::matches(data, u32::from_le_bytes(*sum)), "Fletcher-32"),
                };
                if !sound {
                    return Err(Error::corrupt(
                        place,
                        format!("is damaged: its {name} does not match (want {want:#010x})"),
                    ));
                }
                let range = range.start..range.end - 4;
                at = match at {
                    At::Stored(_) => At::Stored(range),
                    At::Room(_) => At::Room(range),
                };
                continue;
            }
            let Some(size) = size else {
                let what = format!("nested compression ({place})");
                return Err(Error::Unsupported { what, by: "the chunk reader".to_owned() });
            };
            if number + 1 == steps.len() {
                return apply(*step, input, out, place);
            }
            if other.len() < size {
                let refused =
                    |_| Error::BudgetExceeded { what: format!("decoding {place}"), need: size as u64, budget: 0 };
                other.try_reserve(size - other.len()).map_err(refused)?;
                other.resize(size, 0);
            }
            apply(*step, input, &mut other[..size], place)?;
            at = At::Room(0..size);
            std::mem::swap(room, other);
        }
        let rest = match at {
            At::Stored(range) => &stored[range],
            At::Room(range) => &room[range],
        };
        sized(rest, out.len(), place)?;
        out.copy_from_slice(rest);
        Ok(())
    })
}

fn sized(have: &[u8], want: usize, place: &str) -> Result<()> {
    if have.len() == want {
        return Ok(());
    }
    let (have, want) = (with_separators(have.len() as u64), with_separators(want as u64));
    Err(Error::corrupt(place, format!("is a chunk of {have} bytes (want {want})")))
}

fn apply(step: Step, input: &[u8], out: &mut [u8], place: &str) -> Result<()> {
    match step {
        Step::Inflate(packing) => decompress_exact(packing, input, out, place),
        Step::SizedLz4 => match input.split_first_chunk::<4>() {
            Some((size, block)) if u32::from_le_bytes(*size) as usize == out.len() => {
                decompress_exact(SizedCodec::Lz4Block, block, out, place)
            }
            Some((size, _)) => {
                let (have, want) =
                    (with_separators(u32::from_le_bytes(*size).into()), with_separators(out.len() as u64));
                Err(Error::corrupt(place, format!("is a chunk of {have} bytes (want {want})")))
            }
            None => Err(Error::corrupt(place, "ends inside the size of its LZ4 block")),
        },
        Step::Blosc => blosc::decode(input, out, place),
        Step::Unshuffle(size) => {
            sized(input, out.len(), place)?;
            unshuffle(input, out, size);
            Ok(())
        }
        Step::Swap(size) => {
            sized(input, out.len(), place)?;
            swap_into(input, out, size);
            Ok(())
        }
        Step::Crc32c | Step::Fletcher32 => Err(Error::bug("a checksum filter produces no bytes")),
    }
}

/// Copies the part of a decoded chunk that belongs to `rows` (a range of the first axis) to `out`. `out` holds these
/// rows of the whole array, in C order. The array has the shape `shape`; the chunk has the shape `chunk_shape` and the
/// grid position `chunk`. Elements of the chunk outside the array are ignored.
pub fn copy_rows(
    data: &[u8],
    chunk_shape: &[usize],
    chunk: &[usize],
    shape: &[usize],
    element: usize,
    rows: Range<usize>,
    out: &mut [u8],
) -> Result<()> {
    let bug = |what: &str| Err(Error::bug(format!("a chunk {chunk:?} of {chunk_shape:?} in {shape:?}: {what}")));
    let axes = shape.len();
    if axes == 0 || chunk_shape.len() != axes || chunk.len() != axes || chunk_shape.contains(&0) {
        return bug("the axes differ");
    }
    let bytes = |shape: &[usize]| shape.iter().try_fold(element, |size, &side| size.checked_mul(side));
    let row = bytes(&shape[1..]);
    let whole = row.and_then(|row| row.checked_mul(rows.len()));
    if bytes(chunk_shape) != Some(data.len()) || whole != Some(out.len()) || rows.end > shape[0] {
        return bug("the sizes differ");
    }
    // For each axis: start of the overlap in the chunk, its start in `out`, and its length.
    let mut common = Vec::with_capacity(axes);
    for axis in 0..axes {
        let Some(start) = chunk[axis].checked_mul(chunk_shape[axis]) else { return bug("it is outside the array") };
        let within = if axis == 0 { rows.clone() } else { 0..shape[axis] };
        let (from, to) = (start.max(within.start), start.saturating_add(chunk_shape[axis]).min(within.end));
        if from >= to {
            return Ok(());
        }
        common.push((from - start, from - within.start, to - from));
    }
    // Inner axes that the overlap covers completely in both chunk and array are copied in one piece.
    let mut inner = axes - 1;
    let mut piece = common[inner].2 * element;
    while inner > 0 && common[inner].2 == chunk_shape[inner] && common[inner].2 == shape[inner] {
        inner -= 1;
        piece *= common[inner].2;
    }
    let out_shape = |axis: usize| if axis == 0 { rows.len() } else { shape[axis] };
    let mut index = vec![0usize; inner];
    loop {
        let (mut from, mut to) = (0, 0);
        for axis in 0..axes {
            let step = index.get(axis).copied().unwrap_or(0);
            from = from * chunk_shape[axis] + common[axis].0 + step;
            to = to * out_shape(axis) + common[axis].1 + step;
        }
        out[to * element..][..piece].copy_from_slice(&data[from * element..][..piece]);
        let Some(axis) = (0..inner).rev().find(|&axis| index[axis] + 1 < common[axis].2) else { return Ok(()) };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}
