// SPDX-License-Identifier: Apache-2.0
//! Megatron-LM's `.idx` files. Each one lists the element type, the sequence lengths and the document boundaries of the
//! `.bin` file of tokens beside it.
//!
//! Layout, little-endian: `MMIDIDX\0\0`, version (u64: 1), type code (u8), number of sequences n (u64), number of
//! document boundaries m (u64), n lengths in tokens (i32), n offsets in bytes (i64), m boundaries (i64: the index of
//! the first sequence of each document, then n).

use std::ops::Range;

use penstock_types::{DType, Error, Result, with_separators};

/// Size of the header in bytes.
pub const HEADER_LEN: usize = 34;

const MAGIC: &[u8] = b"MMIDIDX\0\0";

/// Header of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Element type of the tokens.
    pub dtype: DType,
    /// Number of sequences.
    pub sequences: u64,
    /// Number of document boundaries, which is the number of documents plus one.
    pub boundaries: u64,
}

/// Parses the first [`HEADER_LEN`] bytes of an index. `place` names the index in error messages.
///
/// # Errors
/// [`Error::Corrupt`] if the bytes are not an index header, [`Error::Unsupported`] for another version.
pub fn header(head: &[u8], place: &str) -> Result<Header> {
    if !head.starts_with(MAGIC) {
        let (old, hint) = (head.starts_with(b"TNTIDX"), "write it again with Megatron-LM's tools/preprocess_data.py");
        return Err(match old {
            true => Error::Unsupported {
                what: format!("the legacy index {place} (TNTIDX; {hint})"),
                by: "the Megatron reader".to_owned(),
            },
            false => Error::corrupt(place, "is not a Megatron index: it does not begin with MMIDIDX"),
        });
    }
    let short = || {
        let (want, have) = (HEADER_LEN, with_separators(head.len() as u64));
        Error::corrupt(place, format!("ends inside its header (want {want} bytes, have {have})"))
    };
    let number = |at: usize| head.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_le_bytes(*bytes));
    let (version, code) = (number(9).ok_or_else(short)?, *head.get(17).ok_or_else(short)?);
    let (sequences, boundaries) = (number(18).ok_or_else(short)?, number(26).ok_or_else(short)?);
    if version != 1 {
        let (what, by) = (format!("version {version} of the index {place}"), "the Megatron reader".to_owned());
        return Err(Error::Unsupported { what, by });
    }
    let dtype = match code {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F64,
        7 => DType::F32,
        8 => DType::U16,
        _ => return Err(Error::corrupt(place, format!("has an unknown element type (code {code})"))),
    };
    Ok(Header { dtype, sequences, boundaries })
}

/// Parses an index and returns the byte range of each document of the `.bin` file, which has `size` bytes.
///
/// # Errors
/// [`Error::Corrupt`] if the index is truncated, or if a sequence or document extends past the end of the `.bin` file.
pub fn documents(index: &[u8], size: u64, place: &str) -> Result<Vec<Range<u64>>> {
    let Header { dtype, sequences, boundaries } = header(index, place)?;
    let body = index.get(HEADER_LEN..).unwrap_or_default();
    let need = u128::from(sequences) * 12 + u128::from(boundaries) * 8;
    // Some versions add one byte per sequence (the mode of the sequence) at the end.
    if need > body.len() as u128 {
        let (have, sequences) = (with_separators(index.len() as u64), with_separators(sequences));
        let want = need + HEADER_LEN as u128;
        let problem = format!("ends inside its tables (want {want} bytes for {sequences} sequences, have {have})");
        return Err(Error::corrupt(place, problem));
    }
    let count = sequences as usize;
    let (lengths, rest) = body.split_at(count * 4);
    let (offsets, rest) = rest.split_at(count * 8);
    let lengths = lengths.as_chunks::<4>().0;
    let offsets = offsets.as_chunks::<8>().0;
    let bounds = &rest.as_chunks::<8>().0[..boundaries as usize];
    let stale = |sequence: usize, offset: i64, length: i32| {
        let (offset, size) = (with_separators(offset.max(0) as u64), with_separators(size));
        let problem = format!(
            "places sequence {sequence} ({length} values of {dtype}) at byte {offset} of an object of {size} bytes: the \
             index is stale or belongs to a different object"
        );
        Error::corrupt(place, problem)
    };
    // A document is read as one range, so its sequences must be stored one after another.
    let (mut ends, mut starts) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (sequence, (length, offset)) in lengths.iter().zip(offsets).enumerate() {
        let (length, offset) = (i32::from_le_bytes(*length), i64::from_le_bytes(*offset));
        let start = u64::try_from(offset).map_err(|_| stale(sequence, offset, length))?;
        let tokens = u64::try_from(length).map_err(|_| stale(sequence, offset, length))?;
        let end = start.checked_add(tokens * dtype.size() as u64).filter(|&end| end <= size);
        let end = end.ok_or_else(|| stale(sequence, offset, length))?;
        starts.push(start);
        ends.push(end);
    }
    let unordered = |document: usize, why: &str| {
        let (at, all) = (with_separators(document as u64), with_separators(boundaries));
        Error::corrupt(place, format!("has an invalid boundary {at} of {all}: {why}"))
    };
    let mut documents = Vec::with_capacity(bounds.len().saturating_sub(1));
    for (document, pair) in bounds.windows(2).enumerate() {
        let (first, last) = (i64::from_le_bytes(pair[0]), i64::from_le_bytes(pair[1]));
        let range = usize::try_from(first).ok().zip(usize::try_from(last).ok());
        let Some((first, last)) = range.filter(|&(first, last)| first <= last && last <= count) else {
            return Err(unordered(document, "it is not within the sequences"));
        };
        if (first + 1..last).any(|sequence| starts[sequence] != ends[sequence - 1]) {
            return Err(unordered(document, "its sequences are not stored one after another"));
        }
        let empty = starts.get(first).copied().unwrap_or(0);
        documents.push(if first == last { empty..empty } else { starts[first]..ends[last - 1] });
    }
    Ok(documents)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(code: u8, lengths: &[i32], bounds: &[i64], size: i64) -> Vec<u8> {
        let mut bytes = [MAGIC, &1u64.to_le_bytes(), &[code]].concat();
        bytes.extend((lengths.len() as u64).to_le_bytes());
        bytes.extend((bounds.len() as u64).to_le_bytes());
        bytes.extend(lengths.iter().flat_map(|length| length.to_le_bytes()));
        let mut at = 0i64;
        for length in lengths {
            bytes.extend(at.to_le_bytes());
            at += i64::from(*length) * size;
        }
        bytes.extend(bounds.iter().flat_map(|bound| bound.to_le_bytes()));
        bytes
    }

    #[test]
    fn documents_are_ranges_of_their_sequences() {
        let bytes = index(8, &[3, 0, 2, 1], &[0, 1, 3, 3, 4], 2);
        assert_eq!(header(&bytes, "p").unwrap(), Header { dtype: DType::U16, sequences: 4, boundaries: 5 });
        assert_eq!(documents(&bytes, 12, "p").unwrap(), [0..6, 6..10, 10..10, 10..12]);
        assert_eq!(documents(&index(4, &[], &[0], 4), 0, "p").unwrap(), []);
        let problem = |bytes: &[u8], size| documents(bytes, size, "p").unwrap_err().to_string();
        assert!(
            problem(&bytes, 11).starts_with("p places sequence 3 (1 values of uint16) at byte 10 of an object of 11")
        );
        assert!(
            problem(&bytes[..60], 12).starts_with("p ends inside its tables (want 122 bytes for 4 sequences, have 60)")
        );
        assert!(problem(&bytes[..20], 12).starts_with("p ends inside its header (want 34 bytes, have 20)"));
        assert!(problem(b"MMID", 12).starts_with("p is not a Megatron index"));
        assert!(problem(&index(9, &[], &[0], 4), 0).ends_with("has an unknown element type (code 9)"));
        assert!(problem(&index(8, &[1, 1], &[0, 3], 2), 4).starts_with("p has an invalid boundary 0 of 2"));
        assert!(problem(&index(8, &[1, 1], &[2, 1], 2), 4).starts_with("p has an invalid boundary 0 of 2"));
        assert!(header(b"TNTIDX\0\0", "p").unwrap_err().to_string().starts_with("the legacy index p (TNTIDX"));
    }

    proptest! {
        #[test]
        fn prop_damaged_index_gives_ranges_inside_the_object_or_an_error(
            lengths in prop::collection::vec(0..50i32, 0..8), at: prop::sample::Index, to: u8, cut: prop::sample::Index,
        ) {
            let size = lengths.iter().sum::<i32>() as u64 * 4;
            let mut bytes = index(4, &lengths, &(0..=lengths.len() as i64).collect::<Vec<_>>(), 4);
            prop_assert_eq!(documents(&bytes, size, "p").unwrap().len(), lengths.len());
            let at = at.index(bytes.len());
            bytes[at] = to;
            bytes.truncate(cut.index(bytes.len() * 2 + 1).min(bytes.len()));
            if let Ok(documents) = documents(&bytes, size, "p") {
                prop_assert!(documents.iter().all(|range| range.start <= range.end && range.end <= size));
            }
        }
    }
}
