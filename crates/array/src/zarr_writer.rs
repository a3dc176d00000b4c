// SPDX-License-Identifier: Apache-2.0
//! Writes the objects of a Zarr array, one chunk or one whole shard per call. `zarrs` encodes the chunks.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;

use bytes::Bytes;
use penstock_record::chunk::zarr;
use penstock_store::{Buffer, BufferPool, Opened, PutOptions};
use penstock_types::{Deadline, Error, Result};
use serde_json::Value;
use zarrs::array::{
    Array, ArrayBytes, ArrayMetadata, ArrayToBytesCodecTraits, CodecChain, CodecOptions, DataType, FillValue,
};

use crate::{Region, StridedBytes};

/// Writer of one array, below `opened.prefix`. The caller writes the array's metadata.
#[derive(Debug)]
pub struct ZarrWriter {
    opened: Opened,
    array: Array<()>,
    place: String,
    object: ChunkEncoder,
    shard: Option<Shard>,
}

/// Encoder of chunks that all have the same shape.
#[derive(Debug)]
struct ChunkEncoder {
    codecs: Arc<CodecChain>,
    data_type: DataType,
    fill: FillValue,
    shape: Vec<NonZeroU64>,
    /// Shape of a chunk; the last axis counts bytes.
    byte_shape: Vec<usize>,
}

/// Layout of shards whose chunks this module encodes one by one. `zarrs` would first collect the whole shard in memory,
/// and then copy it twice.
#[derive(Debug)]
struct Shard {
    sharding: zarr::Sharding,
    chunk: ChunkEncoder,
}

thread_local! {
    /// Buffer for a chunk that is copied from strided memory. The buffer is reused, because new memory for each chunk
    /// would cost more than the copy.
    static CHUNK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ChunkEncoder {
    /// Encodes a chunk. Returns `None` if all elements are the fill value. Elements outside `data` get the fill value.
    fn encode(&self, data: &StridedBytes<'_>, options: &CodecOptions) -> Result<Option<Vec<u8>>, String> {
        let len: usize = self.byte_shape.iter().product();
        if let Some(whole) = data.as_slice().filter(|bytes| bytes.len() == len) {
            return self.encode_whole(whole, options);
        }
        CHUNK.with_borrow_mut(|chunk| {
            chunk.resize(len, 0);
            if data.shape() != self.byte_shape {
                let fill = self.fill.as_ne_bytes();
                chunk.chunks_exact_mut(fill.len()).for_each(|element| element.copy_from_slice(fill));
            }
            data.copy_into(chunk, &self.byte_shape).map_err(|error| error.to_string())?;
            self.encode_whole(chunk, options)
        })
    }

    fn encode_whole(&self, data: &[u8], options: &CodecOptions) -> Result<Option<Vec<u8>>, String> {
        let bytes = ArrayBytes::new_flen(data);
        if bytes.is_fill_value(&self.fill) {
            return Ok(None);
        }
        let encoded = self.codecs.encode(bytes, &self.shape, &self.data_type, &self.fill, options);
        Ok(Some(encoded.map_err(|problem| problem.to_string())?.into_owned()))
    }
}

impl Shard {
    /// Returns the shard layout. Returns `None` if the array has no shards, or if only `zarrs` can encode its shards.
    /// Errs if the metadata cannot be parsed.
    fn of(metadata: &str, place: &str, object: &ChunkEncoder) -> Result<Option<Self>, String> {
        let document: Value = serde_json::from_str(metadata).map_err(|problem| problem.to_string())?;
        let [outer] = document["codecs"].as_array().map_or(&[][..], Vec::as_slice) else { return Ok(None) };
        let inner = &outer["configuration"]["codecs"];
        if outer["name"] != "sharding_indexed" || inner[0]["name"] == "sharding_indexed" {
            return Ok(None);
        }
        let Ok(zarr::Array { sharding: Some(sharding), chunk_shape, spec, .. }) =
            zarr::Array::parse(metadata.as_bytes(), place)
        else {
            return Ok(None);
        };
        let inner: Vec<_> = serde_json::from_value(inner.clone()).map_err(|problem| problem.to_string())?;
        let codecs = CodecChain::from_metadata(&inner).map_err(|problem| problem.to_string())?;
        let Some(shape) = chunk_shape.iter().map(|&side| NonZeroU64::new(side as u64)).collect() else {
            return Ok(None);
        };
        let mut byte_shape = chunk_shape;
        match byte_shape.last_mut() {
            Some(side) => *side *= spec.dtype.size(),
            None => return Ok(None),
        }
        let (data_type, fill) = (object.data_type.clone(), object.fill.clone());
        Ok(Some(Self {
            sharding,
            chunk: ChunkEncoder { codecs: Arc::new(codecs), data_type, fill, shape, byte_shape },
        }))
    }

    /// Encodes a shard. Returns `None` if all elements are the fill value.
    fn encode(&self, shard_shape: &[usize], data: &StridedBytes<'_>) -> Result<Option<Bytes>> {
        let options = CodecOptions::default().with_concurrent_target(1);
        let index_len = self.sharding.index_len();
        let first = if self.sharding.index_first { index_len } else { 0 };
        let chunks = Region(shard_shape.iter().map(|&side| 0..side).collect()).cells(&self.chunk.byte_shape);
        let mut index = Vec::with_capacity(chunks.len());
        let capacity = shard_shape.iter().product::<usize>() + index_len + 1024 * chunks.len();
        let mut stored = Appended { buffer: take(capacity)?, len: first };
        for cell in chunks {
            let start: Vec<usize> = cell.iter().zip(&self.chunk.byte_shape).map(|(at, side)| at * side).collect();
            let part = data.part(&start, &self.chunk.byte_shape)?;
            let encoded = if part.shape().contains(&0) {
                None
            } else {
                self.chunk.encode(&part, &options).map_err(Error::bug)?
            };
            index.push(match encoded {
                Some(bytes) => {
                    let offset = stored.len as u64;
                    stored.append(&bytes)?;
                    Some((offset, bytes.len() as u64))
                }
                None => None,
            });
        }
        if index.iter().all(Option::is_none) {
            return Ok(None);
        }
        let index = self.sharding.encode_index(&index);
        if self.sharding.index_first {
            stored.buffer[..first].copy_from_slice(&index);
        } else {
            stored.append(&index)?;
        }
        Ok(Some(stored.buffer.freeze(0..stored.len)))
    }
}

/// A buffer from the process's buffer pool that grows as bytes are appended.
struct Appended {
    buffer: Buffer,
    len: usize,
}

impl Appended {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let end = self.len + bytes.len();
        if end > self.buffer.len() {
            let mut larger = take(2 * end)?;
            larger[..self.len].copy_from_slice(&self.buffer[..self.len]);
            self.buffer = larger;
        }
        self.buffer[self.len..end].copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }
}

fn take(bytes: usize) -> Result<Buffer> {
    BufferPool::of_process().take(bytes).map_err(|error| Error::from_io("memory of a shard", &error))
}

impl ZarrWriter {
    /// Creates a writer for the array with this metadata (the text of `zarr.json`, or of `.zarray` in version 2).
    ///
    /// Errs with `Unsupported` if `zarrs` does not support a codec or the element type.
    pub fn new(opened: Opened, metadata: &str) -> Result<Self> {
        let place = penstock_store::place(opened.store.root(), &opened.prefix);
        let refused = |problem: String| Error::Unsupported {
            what: format!("{place} ({problem})"),
            by: "the Zarr writer".to_owned(),
        };
        let parsed = ArrayMetadata::try_from(metadata).map_err(|problem| refused(problem.to_string()))?;
        let array =
            Array::new_with_metadata(Arc::new(()), "/", parsed).map_err(|problem| refused(problem.to_string()))?;
        let element =
            array.data_type().fixed_size().ok_or_else(|| refused("its elements have no fixed size".to_owned()))?;
        let origin = vec![0; array.dimensionality()];
        let shape = array.chunk_shape(&origin).map_err(|problem| refused(problem.to_string()))?;
        let mut byte_shape: Vec<usize> = shape.iter().map(|side| side.get() as usize).collect();
        match byte_shape.last_mut() {
            Some(side) => *side *= element,
            None => byte_shape.push(element),
        }
        let object = ChunkEncoder {
            codecs: array.codecs(),
            data_type: array.data_type().clone(),
            fill: array.fill_value().clone(),
            shape: shape.to_vec(),
            byte_shape,
        };
        let shard = Shard::of(metadata, &place, &object).map_err(refused)?;
        Ok(Self { opened, array, place, object, shard })
    }

    /// Encodes an object. Returns `None` if all elements are the fill value; such an object is not stored. `data` is a
    /// whole chunk or shard or, at the edge of the array, the part that lies inside the array. A whole chunk or shard
    /// may also be passed as one flat axis.
    pub fn encode(&self, cell: &[u64], data: &StridedBytes<'_>, threads: usize) -> Result<Option<Bytes>> {
        let is_box = data.shape().len() == self.object.byte_shape.len();
        if is_box && data.shape().iter().zip(&self.object.byte_shape).any(|(own, side)| own > side) {
            let text =
                format!("{:?} bytes for an object of {:?} in {}", data.shape(), self.object.byte_shape, self.place);
            return Err(Error::bug(text));
        }
        if let Some(shard) = self.shard.as_ref().filter(|_| is_box) {
            return shard.encode(&self.object.byte_shape, data);
        }
        let options = CodecOptions::default().with_concurrent_target(threads.max(1)).with_store_empty_chunks(false);
        let encoded = self.object.encode(data, &options);
        let encoded = encoded.map_err(|problem| Error::bug(format!("chunk {cell:?} of {}: {problem}", self.place)))?;
        Ok(encoded.map(Bytes::from))
    }

    /// Key of an object, relative to the array's folder.
    pub fn key(&self, cell: &[u64]) -> String {
        self.array.chunk_key(cell).to_string()
    }

    /// Writes an object, replacing an existing one. Returns its size in bytes.
    pub async fn put(&self, cell: &[u64], stored: Bytes, deadline: Deadline) -> Result<u64> {
        let key = self.opened.prefix.join(self.key(cell).as_bytes());
        let size = stored.len() as u64;
        self.opened.store.put(&key, vec![stored], &PutOptions::default(), deadline).await?;
        Ok(size)
    }
}
