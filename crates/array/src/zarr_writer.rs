// SPDX-License-Identifier: Apache-2.0
//! Writes the objects of a Zarr array: a chunk, or a whole shard, at a time. `zarrs` encodes them.

use std::sync::Arc;

use bytes::Bytes;
use penstock_store::{Opened, PutOptions};
use penstock_types::{Deadline, Error, Result, with_separators};
use zarrs::array::{Array, ArrayBytes, ArrayMetadata, ArrayToBytesCodecTraits, CodecOptions};

/// Writer of one array, below `opened.prefix`. Its metadata is written by the caller.
#[derive(Debug)]
pub struct ZarrWriter {
    opened: Opened,
    array: Array<()>,
    place: String,
    object_bytes: usize,
}

impl ZarrWriter {
    /// A writer for the array with this metadata (`zarr.json`, or `.zarray` of version 2).
    ///
    /// Errs with `Unsupported` for a codec or type that `zarrs` does not have.
    pub fn new(opened: Opened, metadata: &str) -> Result<Self> {
        let place = penstock_store::place(opened.store.root(), &opened.prefix);
        let refused = |problem: String| Error::Unsupported {
            what: format!("{place}: {problem}"),
            by: "the Zarr writer".to_owned(),
        };
        let metadata = ArrayMetadata::try_from(metadata).map_err(|problem| refused(problem.to_string()))?;
        let array =
            Array::new_with_metadata(Arc::new(()), "/", metadata).map_err(|problem| refused(problem.to_string()))?;
        let element =
            array.data_type().fixed_size().ok_or_else(|| refused("its elements have no fixed size".to_owned()))?;
        let origin = vec![0; array.dimensionality()];
        let shape = array.chunk_shape_usize(&origin).map_err(|problem| refused(problem.to_string()))?;
        let object_bytes = shape.iter().product::<usize>() * element;
        Ok(Self { opened, array, place, object_bytes })
    }

    /// The stored bytes of an object; `None` if all elements are the fill value, so that it is not stored. `data` holds
    /// a whole chunk or shard in C order, with the fill value outside of the array.
    pub fn encode(&self, cell: &[u64], data: &[u8], threads: usize) -> Result<Option<Vec<u8>>> {
        if data.len() != self.object_bytes {
            let (have, want) = (with_separators(data.len() as u64), with_separators(self.object_bytes as u64));
            return Err(Error::bug(format!("{have} bytes for the chunk {cell:?} of {} (want {want})", self.place)));
        }
        let bug = |problem: String| Error::bug(format!("chunk {cell:?} of {}: {problem}", self.place));
        let shape = self.array.chunk_shape(cell).map_err(|problem| bug(problem.to_string()))?;
        let bytes = ArrayBytes::new_flen(data);
        if bytes.is_fill_value(self.array.fill_value()) {
            return Ok(None);
        }
        let options = CodecOptions::default().with_concurrent_target(threads.max(1)).with_store_empty_chunks(false);
        let encoded = self
            .array
            .codecs()
            .encode(bytes, &shape, self.array.data_type(), self.array.fill_value(), &options)
            .map_err(|problem| bug(problem.to_string()))?;
        Ok(Some(encoded.into_owned()))
    }

    /// Key of an object, below the array.
    pub fn key(&self, cell: &[u64]) -> String {
        self.array.chunk_key(cell).to_string()
    }

    /// Writes an object; one that exists is replaced. Returns its size.
    pub async fn put(&self, cell: &[u64], stored: Vec<u8>, deadline: Deadline) -> Result<u64> {
        let key = self.opened.prefix.join(self.key(cell).as_bytes());
        let size = stored.len() as u64;
        self.opened.store.put(&key, vec![Bytes::from(stored)], &PutOptions::default(), deadline).await?;
        Ok(size)
    }
}
