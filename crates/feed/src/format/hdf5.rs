// SPDX-License-Identifier: Apache-2.0
//! HDF5 datasets as samples. When a dataset is opened, h5py reads the positions of its chunks, and the format's JSON
//! document stores these positions. This module parses no HDF5 structures, but checks every position against the size
//! of the file.

use penstock_record::chunk::{Step, hdf5_steps};
use penstock_types::{ByteRange, DType, Error, Result, TensorSpec, with_separators};
use serde::{Deserialize, Serialize};

use crate::chunked_arrays::{Blocks, Column, Stored, numbers};
use penstock_dataset::manifest::Manifest;

/// Approximate number of bytes that are read together from an HDF5 dataset without chunks.
const FLAT: usize = 1 << 20;

/// HDF5 datasets of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Key of the file, relative to the listing's folder.
    pub key: String,
    /// Size of the file in bytes when the dataset was opened.
    pub size: u64,
    /// HDF5 datasets of the file. They are in the same order as the names of the HDF5 datasets in the format.
    pub arrays: Vec<Array>,
}

/// One HDF5 dataset of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Array {
    /// Element type, such as `float32`.
    pub dtype: String,
    /// True if the elements are big-endian.
    #[serde(default)]
    pub big_endian: bool,
    /// Shape of the HDF5 dataset.
    pub shape: Vec<usize>,
    /// Shape of a chunk; `None` if the dataset has no chunks (contiguous rows).
    #[serde(default)]
    pub chunk_shape: Option<Vec<usize>>,
    /// Filters as (HDF5 filter number, parameters).
    #[serde(default)]
    pub filters: Vec<(u16, Vec<u32>)>,
    /// Fill value: the bytes of one little-endian element.
    pub fill: Vec<u8>,
    /// For contiguous rows: offset of the first row. `None` if no row was written.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Chunks as (number in C order, offset, size in bytes, bit mask of skipped filters).
    #[serde(default)]
    pub chunks: Vec<(u64, u64, u64, u32)>,
}

/// Adds the blocks of these files, in the order of the files.
pub(super) fn blocks(mut blocks: Blocks, datasets: &[String], files: &[File], listing: &Manifest) -> Result<Blocks> {
    let numbers = numbers(listing);
    for file in files {
        let place = format!("{}{}", listing.url, file.key);
        let Some(&object) = numbers.get(file.key.as_bytes()) else {
            return Err(Error::config("format", format!("it describes {place}, which is missing from the listing")));
        };
        let size = listing.objects[object].size;
        if size != file.size {
            return Err(Error::resized(place, size, file.size));
        }
        if file.arrays.len() != datasets.len() {
            return Err(Error::config(
                "format",
                format!(
                    "{place}: the format describes {} HDF5 datasets, but contains {} dataset names",
                    file.arrays.len(),
                    datasets.len()
                ),
            ));
        }
        let within = |start: u64, len: u64| match start.checked_add(len) {
            Some(end) if end <= size => Ok(ByteRange::new(start, len)),
            _ => {
                let (start, len, all) = (with_separators(start), with_separators(len), with_separators(size));
                Err(Error::corrupt(
                    &*place,
                    format!("has a chunk of {len} bytes at byte {start}, but has only {all} bytes"),
                ))
            }
        };
        let mut columns = Vec::with_capacity(datasets.len());
        for (name, array) in datasets.iter().zip(&file.arrays) {
            columns.push(column(name, array, object, &place, &within)?);
        }
        // Bit i of a chunk's mask is set if filter i of the array was not applied to the chunk.
        let steps = |array: &Array, mask: u32| undo(array, mask, &place);
        blocks.add(&place, columns, |column, at| {
            let array = &file.arrays[column];
            let Some(chunk) = &array.chunk_shape else { return Ok(None) };
            let grid = array.shape.iter().zip(chunk).map(|(side, chunk)| side.div_ceil(*chunk));
            let number = at.iter().zip(grid).fold(0u64, |number, (at, side)| number * side as u64 + *at as u64);
            let Ok(found) = array.chunks.binary_search_by_key(&number, |chunk| chunk.0) else { return Ok(None) };
            let (_, offset, len, mask) = array.chunks[found];
            let steps = if mask == 0 { None } else { Some(steps(array, mask)?) };
            Ok(Some(Stored { object, range: within(offset, len)?, steps }))
        })?;
    }
    Ok(blocks)
}

fn undo(array: &Array, mask: u32, place: &str) -> Result<Vec<Step>> {
    let filters: Vec<(u16, &[u32])> = array.filters.iter().map(|(id, values)| (*id, values.as_slice())).collect();
    let mut steps = hdf5_steps(&filters, mask, place)?;
    let size = array.dtype.parse::<DType>()?.size();
    if array.big_endian && size > 1 {
        steps.push(Step::Swap(size));
    }
    Ok(steps)
}

fn column(
    name: &str,
    array: &Array,
    object: usize,
    place: &str,
    within: &dyn Fn(u64, u64) -> Result<ByteRange>,
) -> Result<Column> {
    let spec = TensorSpec { dtype: array.dtype.parse()?, shape: array.shape.clone() };
    let flat_height = || {
        let rest = TensorSpec { dtype: spec.dtype, shape: spec.shape.get(1..).unwrap_or_default().to_vec() };
        Ok::<usize, Error>((FLAT / rest.size_bytes()?.max(1)).max(1))
    };
    let chunk_shape = match &array.chunk_shape {
        Some(shape) => shape.clone(),
        None => {
            let mut shape = spec.shape.clone();
            if let Some(first) = shape.first_mut() {
                *first = flat_height()?;
            }
            // An axis of length zero is kept: `Blocks::add` rejects such an array.
            shape
        }
    };
    if array.chunks.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
        return Err(Error::config("format", format!("{place}: the chunks of `{name}` are out of order")));
    }
    let flat = match (&array.chunk_shape, array.offset) {
        (None, Some(offset)) => Some((object, within(offset, spec.size_bytes()? as u64)?.start)),
        _ => None,
    };
    let steps = undo(array, 0, place)?;
    let (name, fill) = (name.trim_matches('/').to_owned(), array.fill.clone());
    Ok(Column { name, spec, chunk_shape, shard_shape: None, flat, steps, fill })
}
