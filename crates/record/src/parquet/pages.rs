// SPDX-License-Identifier: Apache-2.0
//! Page reader for one column chunk, used by the column readers of the `parquet` crate.
//!
//! The crate's own page reader allocates any size that a page header states. The decompressed content of gzip and
//! Brotli pages can exceed even the stated size. This reader compares every stated size with the memory limit, or with
//! the available bytes, before it allocates.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::parquet::basic::{Compression, Encoding, Type as Physical};
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ColumnChunkMetaData;
use ::parquet::file::reader::ChunkReader;
use bytes::Bytes;
use penstock_codec::crc32;
use penstock_types::{Error, Result, with_separators};

use super::page_header::{DATA, DATA_V2, DICTIONARY, Header};
use super::thrift::{Input, Problem};
use super::{RUN, codecs};

/// Old versions of parquet-mr did not count the header of the dictionary page in a chunk's size. Pages may therefore
/// extend this many bytes beyond the chunk (PARQUET-816).
const SLACK: u64 = 100;

/// Number of bytes that are first read for a header; a header with long statistics is larger.
const HEADER: u64 = 64 << 10;

/// Decoded size of a byte string without its content.
const STRING_BYTES: usize = 32;
/// Decoded size of the two levels of a value.
const LEVEL_BYTES: usize = 4;

/// Decoded size of one length, either of a byte string or of its prefix.
const DELTA_BYTES: usize = 8;

/// Reads the pages of one column chunk.
pub(super) struct Pages<R> {
    file: Arc<R>,
    /// Offset of the next header; after that header was read, the offset of its page.
    at: u64,
    /// End offset of the chunk, according to the footer.
    end: u64,
    /// Upper bound of the end offset of the last page.
    bound: u64,
    /// Number of levels that no page has provided yet, according to the footer.
    levels_left: u64,
    next: Option<Header>,
    codec: Compression,
    column: Facts,
    limit: usize,
    decoded: Arc<AtomicUsize>,
    place: String,
}

/// Schema and encoding properties of a column.
struct Facts {
    physical: Physical,
    /// Length of each byte string, if the column has fixed-size byte strings.
    len: usize,
    has_definitions: bool,
    has_repetitions: bool,
    /// True if the footer lists the encoding in which values share prefixes. Such values are decoded one by one.
    may_be_prefixed: bool,
}

impl<R: ChunkReader> Pages<R> {
    /// Creates a reader for the pages of `chunk`, a column chunk of `file`. No page may need more than `limit` bytes.
    /// `decoded` counts the decoded bytes of a list column, because the crate decodes whole rows of any length. The
    /// caller sets `decoded` to 0 before each read, so that the limit also applies to one read.
    pub(super) fn new(
        file: Arc<R>,
        chunk: &ColumnChunkMetaData,
        limit: usize,
        decoded: Arc<AtomicUsize>,
        place: &str,
    ) -> Result<Self> {
        let descriptor = chunk.column_descr();
        // Some writers store offset 0 if there is no dictionary.
        let dictionary = chunk.dictionary_page_offset().filter(|&at| at > 0);
        let start = dictionary.map_or(chunk.data_page_offset(), |at| at.min(chunk.data_page_offset()));
        let lies = || Error::corrupt(place, "is damaged Parquet: its chunk is outside the file");
        let at = u64::try_from(start).map_err(|_| lies())?;
        let end = u64::try_from(chunk.compressed_size()).ok().and_then(|len| at.checked_add(len));
        let end = end.filter(|&end| end <= file.len()).ok_or_else(lies)?;
        let bound = end.saturating_add(SLACK).min(file.len());
        let column = Facts {
            physical: descriptor.physical_type(),
            len: usize::try_from(descriptor.type_length()).unwrap_or(0),
            has_definitions: descriptor.max_def_level() > 0,
            has_repetitions: descriptor.max_rep_level() > 0,
            may_be_prefixed: may_be_prefixed(chunk),
        };
        let levels_left = u64::try_from(chunk.num_values()).unwrap_or(0);
        let (codec, place) = (chunk.compression(), place.to_owned());
        Ok(Self { file, at, end, bound, levels_left, next: None, codec, column, limit, decoded, place })
    }

    fn damaged(&self, problem: impl std::fmt::Display) -> Error {
        Error::corrupt(&*self.place, format!("is damaged Parquet: a page {problem}"))
    }

    fn budget(&self, what: &str, need: usize) -> Error {
        let what = format!("{what} of {}", self.place);
        Error::BudgetExceeded { what, need: need as u64, budget: self.limit as u64 }
    }

    /// Reads the header of the next non-empty page; `None` after the last page.
    fn header(&mut self) -> Result<Option<Header>, ParquetError> {
        loop {
            if let Some(header) = self.next {
                return Ok(Some(header));
            }
            // The chunk ends at the size in the footer, unless some levels are still missing: see `SLACK`.
            if self.at >= self.bound || (self.at >= self.end && self.levels_left == 0) {
                return Ok(None);
            }
            let header = match self.parse(HEADER.min(self.bound - self.at))? {
                Ok(header) => header,
                Err(_) if self.at >= self.end => return Ok(None),
                Err(problem) => {
                    let at = with_separators(self.at);
                    return Err(external(self.damaged(format!("has a damaged header at byte {at}: {problem}"))));
                }
            };
            if header.compressed as u64 > self.bound - self.at {
                let (size, at) = (with_separators(header.compressed as u64), with_separators(self.at));
                return Err(external(self.damaged(format!("of {size} bytes at byte {at} extends beyond its chunk"))));
            }
            // Skip pages of unknown kinds, and pages without values, which pyarrow sometimes writes. The crate would
            // stop at such a page.
            if header.kind == DICTIONARY || (header.is_data() && header.values > 0) {
                self.next = Some(header);
            } else {
                self.at += header.compressed as u64;
            }
        }
    }

    /// Parses the header in the next `len` bytes. If these bytes do not contain the whole header, tries all remaining
    /// bytes.
    fn parse(&mut self, len: u64) -> Result<Result<Header, Problem>, ParquetError> {
        let left = self.bound - self.at;
        let bytes = self.file.get_bytes(self.at, usize::try_from(len).unwrap_or(usize::MAX))?;
        let mut input = Input::new(&bytes);
        match Header::read(&mut input) {
            Ok(header) => {
                self.at += (bytes.len() - input.left()) as u64;
                Ok(Ok(header))
            }
            Err(_) if len < left => self.parse(left),
            Err(problem) => Ok(Err(problem)),
        }
    }

    /// Consumes the next header; returns it together with the offset of its page.
    fn take(&mut self) -> Result<Option<(Header, u64)>, ParquetError> {
        let Some(header) = self.header()? else { return Ok(None) };
        let body = self.at;
        self.next = None;
        self.at += header.compressed as u64;
        if header.is_data() {
            self.levels_left = self.levels_left.saturating_sub(u64::from(header.values));
        }
        Ok(Some((header, body)))
    }

    fn page(&self, header: &Header, stored: Bytes) -> Result<Page> {
        if let Some(want) = header.crc
            && crc32(&stored) != want
        {
            let is = crc32(&stored);
            return Err(self.damaged(format!("has the checksum {is:#010x} (want {want:#010x})")));
        }
        let levels = header.definition_len as usize + header.repetition_len as usize;
        if levels > header.uncompressed || levels > stored.len() {
            return Err(self.damaged(format!("of {} bytes states levels of {levels} bytes", header.uncompressed)));
        }
        // parquet-cpp before 2.0 compressed pages of version 2, but marked them as uncompressed (ARROW-10353).
        let is_compressed = header.is_compressed || stored.len() != header.uncompressed;
        let content = if self.codec == Compression::UNCOMPRESSED || !is_compressed {
            stored
        } else {
            if header.uncompressed > self.limit {
                return Err(self.budget("a page", header.uncompressed));
            }
            codecs::page(self.codec, &stored[..levels], &stored[levels..], header.uncompressed, &self.place)?.into()
        };
        let encoding = self.encoding(header.encoding)?;
        self.check(header, encoding, &content)?;
        Ok(match header.kind {
            DICTIONARY => {
                Page::DictionaryPage { buf: content, num_values: header.values, encoding, is_sorted: header.is_sorted }
            }
            DATA => Page::DataPage {
                buf: content,
                num_values: header.values,
                encoding,
                def_level_encoding: self.encoding(header.definition_encoding)?,
                rep_level_encoding: self.encoding(header.repetition_encoding)?,
                statistics: None,
            },
            _ => Page::DataPageV2 {
                buf: content,
                num_values: header.values,
                encoding,
                num_nulls: header.nulls,
                num_rows: header.rows,
                def_levels_byte_len: header.definition_len,
                rep_levels_byte_len: header.repetition_len,
                is_compressed: header.is_compressed,
                statistics: None,
            },
        })
    }

    fn encoding(&self, number: i32) -> Result<Encoding> {
        Ok(match number {
            0 => Encoding::PLAIN,
            2 => Encoding::PLAIN_DICTIONARY,
            3 => Encoding::RLE,
            #[expect(deprecated, reason = "old files have it")]
            4 => Encoding::BIT_PACKED,
            5 => Encoding::DELTA_BINARY_PACKED,
            6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
            7 => Encoding::DELTA_BYTE_ARRAY,
            8 => Encoding::RLE_DICTIONARY,
            9 => Encoding::BYTE_STREAM_SPLIT,
            other => {
                return Err(Error::Unsupported {
                    what: format!("encoding {other} of a page ({})", self.place),
                    by: "the Parquet reader".to_owned(),
                });
            }
        })
    }

    /// Decoded size of one value, without the content of a byte string.
    fn value_bytes(&self) -> usize {
        match self.column.physical {
            Physical::BOOLEAN => 1,
            Physical::INT32 | Physical::FLOAT => 4,
            Physical::INT64 | Physical::DOUBLE => 8,
            Physical::INT96 => 12,
            Physical::BYTE_ARRAY | Physical::FIXED_LEN_BYTE_ARRAY => STRING_BYTES,
        }
    }

    /// Returns an error if the page states sizes for which the crate would allocate more than the limit.
    fn check(&self, header: &Header, encoding: Encoding, content: &[u8]) -> Result<()> {
        let values = header.values as usize;
        let within = |need: usize, what: &str| if need > self.limit { Err(self.budget(what, need)) } else { Ok(()) };
        if header.kind == DICTIONARY {
            // The crate decodes the whole dictionary at once.
            let least = match self.column.physical {
                Physical::BYTE_ARRAY => 4,
                Physical::FIXED_LEN_BYTE_ARRAY => self.column.len.max(1),
                Physical::BOOLEAN => return within(values, "a dictionary"),
                _ => self.value_bytes(),
            };
            if values > content.len() / least {
                let (count, len) = (with_separators(values as u64), with_separators(content.len() as u64));
                return Err(self.damaged(format!("of {len} bytes cannot contain a dictionary of {count} values")));
            }
            return within(values.saturating_mul(self.value_bytes()), "a dictionary");
        }
        if self.column.has_repetitions {
            let bytes = values.saturating_mul(LEVEL_BYTES + self.value_bytes());
            let decoded = self.decoded.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
            within(decoded, "a list")?;
        }
        let prefixed = encoding == Encoding::DELTA_BYTE_ARRAY;
        if prefixed || encoding == Encoding::DELTA_LENGTH_BYTE_ARRAY {
            // The crate allocates as many lengths as the page states (first those of the prefixes, if values have
            // prefixes).
            let mut lengths = Input::new(self.values_of(header, content)?);
            for _ in 0..1 + usize::from(prefixed) {
                let stated = skip_deltas(&mut lengths).map_err(|problem| self.damaged(problem))?;
                if stated > values as u64 {
                    let (stated, values) = (with_separators(stated), with_separators(values as u64));
                    return Err(self.damaged(format!("of {values} values states {stated} lengths")));
                }
            }
            within(values.saturating_mul(DELTA_BYTES), "the lengths in a page")?;
            // Each value may be as long as the page, and several values are decoded at once.
            let at_once = if self.column.may_be_prefixed { 1 } else { RUN };
            if prefixed {
                within(content.len().saturating_mul(at_once.min(values)), "values with prefixes")?;
            }
        }
        Ok(())
    }

    /// Returns the bytes of a data page that follow the levels.
    fn values_of<'a>(&self, header: &Header, content: &'a [u8]) -> Result<&'a [u8]> {
        let mut rest = content;
        if header.kind == DATA_V2 {
            let levels = header.definition_len as usize + header.repetition_len as usize;
            return content.get(levels..).ok_or_else(|| self.damaged("ends inside its levels"));
        }
        for _ in 0..usize::from(self.column.has_repetitions) + usize::from(self.column.has_definitions) {
            let behind = rest.split_first_chunk::<4>().and_then(|(len, rest)| {
                let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
                rest.get(len..)
            });
            rest = behind.ok_or_else(|| self.damaged("ends inside its levels"))?;
        }
        Ok(rest)
    }
}

/// True if values of a chunk may share prefixes: a few bytes of a page may then expand to many.
pub(super) fn may_be_prefixed(chunk: &ColumnChunkMetaData) -> bool {
    chunk.encodings().any(|encoding| encoding == Encoding::DELTA_BYTE_ARRAY)
}

/// Skips a list of delta-encoded integers; returns the number of integers.
fn skip_deltas(input: &mut Input<'_>) -> Result<u64, Problem> {
    let (block, minis, count) = (input.varint()?, input.varint()?, input.varint()?);
    input.varint()?; // the first value
    if minis == 0 || block % minis != 0 {
        return Err("has delta blocks that are not divisible into miniblocks");
    }
    let in_mini = block / minis;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        input.varint()?; // the minimum delta of the block
        for &width in input.take(minis)? {
            // After the last value, only the bit widths of the remaining miniblocks follow.
            if left > 0 {
                left = left.saturating_sub(in_mini.max(1));
                input.skip_bytes(in_mini.saturating_mul(width.into()) / 8)?;
            }
        }
    }
    Ok(count)
}

/// Wraps a Penstock error, so that it can be passed through the crate.
fn external(error: Error) -> ParquetError {
    ParquetError::External(Box::new(error))
}

impl<R: ChunkReader> PageReader for Pages<R> {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let Some((header, body)) = self.take()? else { return Ok(None) };
        let stored = self.file.get_bytes(body, header.compressed)?;
        self.page(&header, stored).map(Some).map_err(external)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        Ok(self.header()?.map(|header| PageMetadata {
            num_rows: (header.kind == DATA_V2).then_some(header.rows as usize),
            num_levels: header.is_data().then_some(header.values as usize),
            is_dict: header.kind == DICTIONARY,
        }))
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.take().map(drop)
    }
}

impl<R: ChunkReader> Iterator for Pages<R> {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
