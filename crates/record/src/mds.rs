// SPDX-License-Identifier: Apache-2.0
//! MosaicML's MDS format: parses the index (`index.json`, version 2), the samples of a shard, and the positions of
//! their columns.
//!
//! A shard contains a count, `count + 1` offsets, the writer's settings, and the samples. A sample contains the sizes
//! of its variable-length columns, followed by all columns. Values are returned as slices; [`Encoding::tensor`]
//! interprets a value as a tensor. Pickled columns, and columns with user-registered encodings, are returned as bytes.
//! No pickled or user-registered code is ever executed.

use std::collections::HashSet;

use penstock_codec::Codec;
use penstock_types::{DType, Error, Result, TensorSpec, with_separators};
use serde::Deserialize;

/// How a column's values are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoding {
    /// `bytes`, and byte strings in other formats: `jpeg`, `png`, `json`, `pkl`, lists of images, user-registered
    /// encodings.
    Bytes,
    /// UTF-8 text: `str`, and `str_decimal`, whose numbers no element type can represent.
    Text,
    /// A number as text: `str_int`, `str_float`.
    Digits(DType),
    /// One number: `int` and the NumPy scalars.
    Scalar(DType),
    /// `ndarray`. If the encoding does not state the element type or the shape, each value does.
    Array {
        /// Element type, if all values share it.
        dtype: Option<DType>,
        /// Shape, if all values share it.
        shape: Option<Vec<usize>>,
    },
    /// `pil`: width, height, mode and pixels. The value is a tensor if each channel has one byte.
    Pixels,
}

impl Encoding {
    /// Parses the text of an encoding from an index.
    fn parse(text: &str) -> Self {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        match name {
            "str" | "str_decimal" => Self::Text,
            "str_int" => Self::Digits(DType::I64),
            "str_float" => Self::Digits(DType::F64),
            "int" => Self::Scalar(DType::I64),
            "pil" => Self::Pixels,
            "ndarray" => Self::array(settings).unwrap_or(Self::Bytes),
            other => other.parse().map_or(Self::Bytes, Self::Scalar),
        }
    }

    /// Parses the settings of `ndarray`: `DTYPE:SHAPE`, `DTYPE` or an empty text.
    fn array(settings: &str) -> Option<Self> {
        let (dtype, shape) = settings.split_once(':').unwrap_or((settings, ""));
        let dtype = Some(dtype).filter(|dtype| !dtype.is_empty()).map(str::parse).transpose().ok()?;
        let shape = Some(shape).filter(|shape| !shape.is_empty());
        let shape = shape.map(|shape| shape.split(',').map(str::parse).collect()).transpose().ok()?;
        Some(Self::Array { dtype, shape })
    }

    /// Returns type and shape of a value, and its elements without a copy, little-endian and in C order. `place` names
    /// the value in messages.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes do not match the encoding, [`Error::Unsupported`] if the value is not a tensor.
    pub fn tensor<'a>(&self, value: &'a [u8], place: &str) -> Result<(TensorSpec, &'a [u8])> {
        let unsupported = |what: &str| {
            Err(Error::Unsupported { what: format!("{what} as a tensor ({place})"), by: "the MDS reader".to_owned() })
        };
        let cut = || Error::corrupt(place, format!("ends inside its array's header (have {} bytes)", value.len()));
        let (spec, data) = match self {
            Self::Bytes | Self::Text | Self::Digits(_) => {
                (TensorSpec { dtype: DType::U8, shape: vec![value.len()] }, value)
            }
            Self::Scalar(dtype) => (TensorSpec { dtype: *dtype, shape: vec![] }, value),
            Self::Array { dtype, shape } => {
                let (dtype, rest) = match dtype {
                    Some(dtype) => (*dtype, value),
                    None => {
                        let (&code, rest) = value.split_first().ok_or_else(cut)?;
                        match array_type(code) {
                            Some(dtype) => (dtype, rest),
                            None => return Err(Error::corrupt(place, format!("has an unknown element type ({code})"))),
                        }
                    }
                };
                let (shape, data) = match shape {
                    Some(shape) => (shape.clone(), rest),
                    None => array_shape(rest).ok_or_else(cut)?,
                };
                (TensorSpec { dtype, shape }, data)
            }
            Self::Pixels => {
                let (head, rest) = value.split_first_chunk::<12>().ok_or_else(cut)?;
                let [width, height, mode] = std::array::from_fn(|at| le_u32(head, 4 * at) as usize);
                let (mode, pixels) = rest.split_at_checked(mode).ok_or_else(cut)?;
                let shape = match mode {
                    b"L" | b"P" => vec![height, width],
                    b"LA" => vec![height, width, 2],
                    b"RGB" | b"YCbCr" | b"LAB" | b"HSV" => vec![height, width, 3],
                    b"RGBA" | b"CMYK" | b"RGBX" => vec![height, width, 4],
                    other => return unsupported(&format!("Pillow's mode `{}`", other.escape_ascii())),
                };
                (TensorSpec { dtype: DType::U8, shape }, pixels)
            }
        };
        match spec.size_bytes() {
            Ok(want) if want == data.len() => Ok((spec, data)),
            want => {
                let want =
                    want.map_or_else(|_| "more than the address space".to_owned(), |want| with_separators(want as u64));
                let (dtype, shape, have) = (spec.dtype, &spec.shape, with_separators(data.len() as u64));
                Err(Error::corrupt(place, format!("has {have} bytes, but {dtype} {shape:?} needs {want}")))
            }
        }
    }
}

fn array_type(code: u8) -> Option<DType> {
    Some(match code {
        8 => DType::U8,
        9 => DType::I8,
        16 => DType::U16,
        17 => DType::I16,
        18 => DType::F16,
        32 => DType::U32,
        33 => DType::I32,
        34 => DType::F32,
        64 => DType::U64,
        65 => DType::I64,
        66 => DType::F64,
        _ => return None,
    })
}

/// Parses the shape that precedes an array: one byte with the number of dimensions and the width of each size, followed
/// by the sizes.
fn array_shape(value: &[u8]) -> Option<(Vec<usize>, &[u8])> {
    let (&byte, rest) = value.split_first()?;
    let size = 1usize << (byte & 3);
    let (shape, data) = rest.split_at_checked(usize::from(byte >> 2) * size)?;
    let side = |side: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(side);
        usize::try_from(u64::from_le_bytes(bytes)).ok()
    };
    Some((shape.chunks_exact(size).map(side).collect::<Option<_>>()?, data))
}

fn le_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// A column of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// How the values are stored.
    pub encoding: Encoding,
    /// Size of each value in bytes, if all values have the same size.
    pub size: Option<u32>,
}

/// Description of a shard in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardInfo {
    /// Name of the stored object, relative to the index. If the index lists a compressed object, the name is that of
    /// the compressed object.
    pub name: String,
    /// Stored size in bytes.
    pub stored: u64,
    /// Size after decompression, in bytes.
    pub size: u64,
    /// Codec of the object.
    pub codec: Codec,
    /// Number of samples.
    pub samples: u64,
    /// Columns, in stored order.
    pub columns: Vec<Column>,
}

#[derive(Deserialize)]
struct RawIndex {
    version: u64,
    shards: Vec<RawShard>,
}

#[derive(Deserialize)]
struct RawShard {
    version: u64,
    format: String,
    samples: u64,
    compression: Option<String>,
    // Shards in Streaming's other formats lack these fields.
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u32>>,
    raw_data: RawFile,
    zip_data: Option<RawFile>,
}

#[derive(Deserialize)]
struct RawFile {
    basename: String,
    bytes: u64,
}

/// Parses an `index.json`; `place` names the index in messages.
pub fn parse_index(json: &[u8], place: &str) -> Result<Vec<ShardInfo>> {
    let corrupt = |problem: String| Error::corrupt(place, format!("is not an MDS index: {problem}"));
    let unsupported =
        |what: String| Error::Unsupported { what: format!("{what} ({place})"), by: "the MDS reader".to_owned() };
    let index: RawIndex = serde_json::from_slice(json).map_err(|problem| corrupt(problem.to_string()))?;
    if index.version != 2 {
        return Err(unsupported(format!("version {} of MDS", index.version)));
    }
    let mut shards: Vec<ShardInfo> = Vec::with_capacity(index.shards.len());
    for (number, raw) in index.shards.into_iter().enumerate() {
        if raw.version != 2 || raw.format != "mds" {
            let (format, version) = (raw.format.escape_default(), raw.version);
            return Err(unsupported(match raw.format.as_str() {
                "json" => "MosaicML Streaming's JSON Lines shards (format `json`)".to_owned(),
                "csv" | "tsv" | "xsv" => format!("MosaicML Streaming's text tables (format `{format}`)"),
                _ => format!("MosaicML Streaming's format `{format}`, version {version}"),
            }));
        }
        let (count, encodings, sizes) = (raw.column_names.len(), raw.column_encodings.len(), raw.column_sizes.len());
        if count == 0 || encodings != count || sizes != count {
            return Err(corrupt(format!(
                "shard {number} has {count} column names, {encodings} encodings and {sizes} sizes"
            )));
        }
        if raw.column_names.iter().collect::<HashSet<_>>().len() != count {
            return Err(corrupt(format!("shard {number} has two columns with the same name")));
        }
        let fields = raw.column_names.into_iter().zip(raw.column_encodings).zip(raw.column_sizes);
        let column = |((name, encoding), size): ((String, String), Option<u32>)| Column {
            name,
            encoding: Encoding::parse(&encoding),
            // A size of 0 means a variable size: the writer stores the size of the value in each sample.
            size: size.filter(|&size| size > 0),
        };
        let columns: Vec<Column> = fields.map(column).collect();
        let size = raw.raw_data.bytes;
        let compression = raw.compression.unwrap_or_default();
        let (file, codec) = match (raw.zip_data, compression.split(':').next().unwrap_or_default()) {
            (None, _) => (raw.raw_data, Codec::None),
            (Some(file), "gz") => (file, Codec::Gzip),
            (Some(file), "zstd") => (file, Codec::Zstd),
            (Some(file), other) => {
                let algorithm = match other {
                    "br" => "Brotli",
                    "bz2" => "bzip2",
                    "snappy" => "Snappy",
                    _ => "an unknown algorithm",
                };
                let (other, name) = (other.escape_default(), file.basename.escape_debug());
                return Err(unsupported(format!("MDS shards compressed by {algorithm} (`{other}`: {name})")));
            }
        };
        let (name, stored, samples) = (file.basename, file.bytes, raw.samples);
        shards.push(ShardInfo { name, stored, size, codec, samples, columns });
    }
    Ok(shards)
}

/// Location of a column's value in a shard or sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSpan {
    /// Index of the column.
    pub column: usize,
    /// Offset at which the value begins.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
}

/// The decompressed bytes of a shard.
#[derive(Debug, Clone, Copy)]
pub struct Shard<'a> {
    bytes: &'a [u8],
    count: usize,
    place: &'a str,
}

impl<'a> Shard<'a> {
    /// Wraps the bytes of a shard and checks the shard's header; `place` names the shard in messages.
    pub fn new(bytes: &'a [u8], place: &'a str) -> Result<Self> {
        let count = bytes.first_chunk().map(|count| u32::from_le_bytes(*count) as usize);
        let head = count.and_then(|count| count.checked_add(2)?.checked_mul(4));
        match (count, head) {
            (Some(count), Some(head)) if head <= bytes.len() => {
                let shard = Self { bytes, count, place };
                let offset = |at: usize| le_u32(bytes, 4 + 4 * at) as usize;
                let last = offset(count);
                if last != bytes.len() || offset(0) < head {
                    let (last, len) = (with_separators(last as u64), with_separators(bytes.len() as u64));
                    return Err(Error::corrupt(
                        place,
                        format!("has {len} bytes, but its last sample ends at byte {last}"),
                    ));
                }
                match (0..count).find(|&at| offset(at) > offset(at + 1)) {
                    Some(at) => {
                        Err(Error::corrupt(place, format!("contains sample {at}, which ends before it begins")))
                    }
                    None => Ok(shard),
                }
            }
            _ => {
                let (len, count) = (
                    with_separators(bytes.len() as u64),
                    count.map_or_else(|| "an unknown number of".to_owned(), |count| with_separators(count as u64)),
                );
                Err(Error::corrupt(
                    place,
                    format!("is not an MDS shard: its {len} bytes cannot contain the offsets of {count} samples"),
                ))
            }
        }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Offset and length of sample `at`, which must be less than `len()`.
    pub fn span(&self, at: usize) -> (u64, u64) {
        let offset = |at: usize| u64::from(le_u32(self.bytes, 4 + 4 * at));
        debug_assert!(at < self.count);
        (offset(at), offset(at + 1).saturating_sub(offset(at)))
    }

    /// Locations of the columns of sample `at`, as offsets in the shard.
    pub fn columns(&self, at: usize, columns: &[Column]) -> Result<Vec<ColumnSpan>> {
        let (offset, len) = self.span(at);
        let sample = &self.bytes[offset as usize..][..len as usize];
        let mut parts = sample_columns(sample, columns, &format!("sample {at} of {}", self.place))?;
        parts.iter_mut().for_each(|part| part.offset += offset);
        Ok(parts)
    }
}

/// Locations of the columns in one sample, whose bytes are `sample`; `place` names the sample in messages.
pub fn sample_columns(sample: &[u8], columns: &[Column], place: &str) -> Result<Vec<ColumnSpan>> {
    let head = 4 * columns.iter().filter(|column| column.size.is_none()).count() as u64;
    let (mut at, mut offset) = (0, head);
    let parts: Vec<ColumnSpan> = columns
        .iter()
        .enumerate()
        .map(|(column, Column { size, .. })| {
            let size = u64::from(size.unwrap_or_else(|| {
                at += 4;
                le_u32(sample, at - 4)
            }));
            offset += size;
            ColumnSpan { column, offset: offset - size, size }
        })
        .collect();
    if offset != sample.len() as u64 {
        let (want, have) = (with_separators(offset), with_separators(sample.len() as u64));
        return Err(Error::corrupt(place, format!("has {have} bytes, but its columns need {want}")));
    }
    Ok(parts)
}
