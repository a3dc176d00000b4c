// SPDX-License-Identifier: Apache-2.0
//! Parses Zarr's array metadata (`zarr.json` of version 3, `.zarray` of version 2) and shard indexes: shape, chunk
//! grid, object keys, filters and fill value.

use penstock_codec::SizedCodec;
use penstock_codec::checksum::crc32c;
use penstock_types::{DType, Error, Result, TensorSpec, with_separators};
use serde_json::Value;

use super::{Step, decode_into};

/// Metadata of a Zarr array.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Element type and shape of the array.
    pub spec: TensorSpec,
    /// Shape of a chunk. In a sharded array, this is the shape of an inner chunk, not of a shard.
    pub chunk_shape: Vec<usize>,
    /// Decoding steps for the codecs of a chunk.
    pub steps: Vec<Step>,
    /// Fill value: the little-endian bytes of an element that was never written.
    pub fill: Vec<u8>,
    /// Layout of the shards; `None` if each object holds one chunk.
    pub sharding: Option<Sharding>,
    prefix: &'static str,
    separator: char,
}

/// Layout of the inner chunks in a shard object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sharding {
    /// Shape of the array region that one shard covers.
    pub shard_shape: Vec<usize>,
    /// True if the index is at the start of the object, false if it is at the end.
    pub index_first: bool,
    chunks: usize,
    index_steps: Vec<Step>,
}

impl Sharding {
    /// Number of inner chunks in a shard.
    pub fn chunks(&self) -> usize {
        self.chunks
    }

    /// Size of the index in bytes.
    pub fn index_len(&self) -> usize {
        16 * self.chunks + 4 * self.index_steps.iter().filter(|step| **step == Step::Crc32c).count()
    }

    /// Parses a shard index. Returns the offset and length of each inner chunk in the object, in C order; `None` for
    /// chunks that were never written. `stored` holds the bytes of the index, `object_len` is the size of the object.
    pub fn parse_index(&self, stored: &[u8], object_len: u64, place: &str) -> Result<Vec<Option<(u64, u64)>>> {
        if stored.len() != self.index_len() {
            let (have, want) = (with_separators(stored.len() as u64), with_separators(self.index_len() as u64));
            return Err(Error::corrupt(place, format!("has a shard index of {have} bytes (want {want})")));
        }
        let mut index = vec![0; 16 * self.chunks];
        decode_into(&self.index_steps, stored, &mut index, place)?;
        let chunk = |(number, entry): (usize, &[u8; 16])| {
            let [offset, len] =
                [0, 8].map(|at| entry[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)));
            if (offset, len) == (u64::MAX, u64::MAX) {
                return Ok(None);
            }
            match offset.checked_add(len) {
                Some(end) if end <= object_len => Ok(Some((offset, len))),
                _ => {
                    let (offset, len, all) =
                        (with_separators(offset), with_separators(len), with_separators(object_len));
                    let text =
                        format!("has chunk {number} at byte {offset} with {len} bytes, but has only {all} bytes");
                    Err(Error::corrupt(place, text))
                }
            }
        };
        index.as_chunks::<16>().0.iter().enumerate().map(chunk).collect()
    }

    /// Bytes of the index of an object whose chunks lie at these offsets, with these lengths.
    pub fn encode_index(&self, chunks: &[Option<(u64, u64)>]) -> Vec<u8> {
        let mut index: Vec<u8> = chunks
            .iter()
            .map(|chunk| chunk.unwrap_or((u64::MAX, u64::MAX)))
            .flat_map(|(offset, len)| [offset.to_le_bytes(), len.to_le_bytes()])
            .flatten()
            .collect();
        for _ in self.index_steps.iter().filter(|step| **step == Step::Crc32c) {
            let sum = crc32c(&index);
            index.extend_from_slice(&sum.to_le_bytes());
        }
        index
    }
}

impl Array {
    /// Shape of the array region that one object covers: that of a shard, or of a chunk if the array is not sharded.
    pub fn object_shape(&self) -> &[usize] {
        self.sharding.as_ref().map_or(&self.chunk_shape, |sharding| &sharding.shard_shape)
    }

    /// Number of objects along each axis.
    pub fn grid(&self) -> Vec<usize> {
        self.spec.shape.iter().zip(self.object_shape()).map(|(side, chunk)| side.div_ceil(*chunk)).collect()
    }

    /// Key of the object at grid position `at`, relative to the array's key.
    pub fn key(&self, at: &[usize]) -> String {
        let numbers: Vec<String> = at.iter().map(usize::to_string).collect();
        let numbers = numbers.join(&self.separator.to_string());
        match (self.prefix, numbers.is_empty()) {
            ("", true) => "0".to_owned(),
            ("", false) => numbers,
            (prefix, true) => prefix.to_owned(),
            (prefix, false) => format!("{prefix}{}{numbers}", self.separator),
        }
    }

    /// Size of a decoded chunk in bytes.
    pub fn chunk_len(&self) -> Result<usize> {
        TensorSpec { dtype: self.spec.dtype, shape: self.chunk_shape.clone() }.size_bytes()
    }

    /// Parses metadata of version 2 or 3; `place` names the metadata in messages.
    pub fn parse(json: &[u8], place: &str) -> Result<Self> {
        let reader = Reader { place };
        let json: Value = serde_json::from_slice(json).map_err(|problem| reader.corrupt(&problem.to_string()))?;
        let array = match json["zarr_format"].as_u64() {
            Some(2) => reader.version_2(&json)?,
            Some(3) => reader.version_3(&json)?,
            _ => return Err(reader.corrupt("`zarr_format` is neither 2 nor 3")),
        };
        array.spec.size_bytes()?;
        array.chunk_len()?;
        Ok(array)
    }
}

struct Reader<'a> {
    place: &'a str,
}

impl Reader<'_> {
    fn corrupt(&self, problem: &str) -> Error {
        Error::corrupt(self.place, format!("is not valid Zarr array metadata: {problem}"))
    }

    fn refused(&self, what: String) -> Error {
        Error::Unsupported { what: format!("{what} ({})", self.place), by: "the Zarr reader".to_owned() }
    }

    fn shape(&self, value: &Value, name: &str) -> Result<Vec<usize>> {
        let sides = value.as_array().map(|sides| sides.iter().map(|side| usize::try_from(side.as_u64()?).ok()));
        let sides: Option<Vec<usize>> = sides.and_then(Iterator::collect);
        sides.filter(|sides| sides.len() <= 64).ok_or_else(|| self.corrupt(&format!("`{name}` is not a valid shape")))
    }

    fn chunks(&self, value: &Value, name: &str, axes: usize) -> Result<Vec<usize>> {
        let shape = self.shape(value, name)?;
        match shape.len() == axes && !shape.contains(&0) {
            true => Ok(shape),
            false => Err(self.corrupt(&format!("`{name}` is {shape:?}, but the array has {axes} axes"))),
        }
    }

    fn fill(&self, value: &Value, dtype: DType) -> Result<Vec<u8>> {
        let wrong = || self.corrupt(&format!("`fill_value` {value} is not of type {dtype}"));
        let bits = |text: &str| text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let float = || match value {
            Value::Null => Some(0.0),
            Value::String(text) => match text.as_str() {
                "NaN" => Some(f64::NAN),
                "Infinity" => Some(f64::INFINITY),
                "-Infinity" => Some(f64::NEG_INFINITY),
                _ => None,
            },
            value => value.as_f64(),
        };
        if let (Some(bits), DType::F16 | DType::F32 | DType::F64) = (value.as_str().and_then(bits), dtype) {
            return Ok(bits.to_le_bytes()[..dtype.size()].to_vec());
        }
        match dtype {
            DType::F64 => float().map(|value| value.to_le_bytes().to_vec()),
            DType::F32 => float().map(|value| (value as f32).to_le_bytes().to_vec()),
            // For float16, only fill values that need no rounding are supported.
            DType::F16 => float()
                .and_then(|value| match value {
                    0.0 => Some(0u16),
                    1.0 => Some(0x3c00),
                    -1.0 => Some(0xbc00),
                    f64::INFINITY => Some(0x7c00),
                    f64::NEG_INFINITY => Some(0xfc00),
                    value if value.is_nan() => Some(0x7e00),
                    _ => None,
                })
                .map(|bits| bits.to_le_bytes().to_vec()),
            _ => {
                let number = match value {
                    Value::Null => Some(0),
                    Value::Bool(value) => Some(i64::from(*value)),
                    value => value.as_i64(),
                };
                number.map(|number| number.to_le_bytes()[..dtype.size()].to_vec())
            }
        }
        .ok_or_else(wrong)
    }

    fn version_2(&self, json: &Value) -> Result<Array> {
        let shape = self.shape(&json["shape"], "shape")?;
        let chunk_shape = self.chunks(&json["chunks"], "chunks", shape.len())?;
        let text = json["dtype"].as_str().ok_or_else(|| self.refused(format!("element type {}", json["dtype"])))?;
        let (dtype, big) = crate::npy::element_type(text)
            .ok_or_else(|| self.refused(format!("element type `{}`", text.escape_default())))?;
        if json["order"] == "F" && shape.len() > 1 {
            return Err(self.refused("Fortran order".to_owned()));
        }
        let mut steps = Vec::new();
        match &json["compressor"] {
            Value::Null => {}
            compressor => steps.push(self.codec(compressor["id"].as_str().unwrap_or_default())?),
        }
        for filter in json["filters"].as_array().into_iter().flatten().rev() {
            let size =
                filter["elementsize"].as_u64().and_then(|size| usize::try_from(size).ok()).filter(|&size| size > 0);
            match (filter["id"].as_str().unwrap_or_default(), size) {
                ("shuffle", size) => steps.push(Step::Unshuffle(size.unwrap_or(4))),
                ("crc32c", _) => steps.push(Step::Crc32c),
                ("fletcher32", _) => steps.push(Step::Fletcher32),
                (id, _) => steps.push(self.codec(id)?),
            }
        }
        if big {
            steps.push(Step::Swap(dtype.size()));
        }
        let fill = self.fill(&json["fill_value"], dtype)?;
        let separator = if json["dimension_separator"] == "/" { '/' } else { '.' };
        Ok(Array { spec: TensorSpec { dtype, shape }, chunk_shape, steps, fill, sharding: None, prefix: "", separator })
    }

    fn codec(&self, id: &str) -> Result<Step> {
        Ok(match id.strip_prefix("numcodecs.").unwrap_or(id) {
            "zlib" => Step::Inflate(SizedCodec::Zlib),
            "gzip" => Step::Inflate(SizedCodec::Gzip),
            "zstd" => Step::Inflate(SizedCodec::Zstd),
            "lz4" => Step::SizedLz4,
            "blosc" => Step::Blosc,
            other => return Err(self.refused(format!("codec `{}`", other.escape_default()))),
        })
    }

    fn version_3(&self, json: &Value) -> Result<Array> {
        if json["node_type"] != "array" {
            return Err(self.corrupt(&format!("`node_type` is {} (want \"array\")", json["node_type"])));
        }
        let shape = self.shape(&json["shape"], "shape")?;
        let dtype = match json["data_type"].as_str() {
            Some("bool") => DType::U8,
            Some(name) => {
                name.parse().map_err(|_| self.refused(format!("element type `{}`", name.escape_default())))?
            }
            None => return Err(self.refused(format!("element type {}", json["data_type"]))),
        };
        let grid = &json["chunk_grid"];
        if grid["name"] != "regular" {
            return Err(self.refused(format!("chunk grid {}", grid["name"])));
        }
        let outer = self.chunks(&grid["configuration"]["chunk_shape"], "chunk_shape", shape.len())?;
        let (prefix, usual) = match json["chunk_key_encoding"]["name"].as_str() {
            Some("default") => ("c", '/'),
            Some("v2") => ("", '.'),
            _ => return Err(self.refused(format!("chunk key encoding {}", json["chunk_key_encoding"]["name"]))),
        };
        let separator = match json["chunk_key_encoding"]["configuration"]["separator"].as_str() {
            Some("/") => '/',
            Some(".") => '.',
            _ => usual,
        };
        let codecs = json["codecs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (chunk_shape, steps, sharding) = match codecs {
            [only] if only["name"] == "sharding_indexed" => {
                let settings = &only["configuration"];
                let inner = self.chunks(&settings["chunk_shape"], "chunk_shape", shape.len())?;
                if inner.iter().zip(&outer).any(|(inner, outer)| outer % inner != 0) {
                    return Err(
                        self.corrupt(&format!("shards of {outer:?} are not divisible into chunks of {inner:?}"))
                    );
                }
                let chunks =
                    inner.iter().zip(&outer).try_fold(1usize, |count, (inner, outer)| count.checked_mul(outer / inner));
                let chunks = chunks
                    .filter(|&chunks| chunks <= 1 << 28)
                    .ok_or_else(|| self.corrupt("a shard has too many chunks"))?;
                let list = |name: &str| settings[name].as_array().map(Vec::as_slice).unwrap_or_default();
                let index_steps = self.steps(list("index_codecs"), 8)?;
                if !matches!(index_steps.as_slice(), [] | [Step::Crc32c]) {
                    return Err(self.refused("a shard index that is compressed or big-endian".to_owned()));
                }
                let index_first = settings["index_location"] == "start";
                let sharding = Sharding { shard_shape: outer, index_first, chunks, index_steps };
                (inner, self.steps(list("codecs"), dtype.size())?, Some(sharding))
            }
            codecs => (outer, self.steps(codecs, dtype.size())?, None),
        };
        let fill = self.fill(&json["fill_value"], dtype)?;
        Ok(Array { spec: TensorSpec { dtype, shape }, chunk_shape, steps, fill, sharding, prefix, separator })
    }

    fn steps(&self, codecs: &[Value], element: usize) -> Result<Vec<Step>> {
        let mut steps = Vec::with_capacity(codecs.len());
        for codec in codecs {
            // A codec is given either as an object with a name, or only by its name.
            let name = codec.as_str().or_else(|| codec["name"].as_str()).unwrap_or_default();
            match name {
                "bytes" | "endian" if codec["configuration"]["endian"] == "big" && element > 1 => {
                    steps.push(Step::Swap(element))
                }
                "bytes" | "endian" => {}
                "crc32c" => steps.push(Step::Crc32c),
                name => steps.push(self.codec(name)?),
            }
        }
        steps.reverse();
        Ok(steps)
    }
}
