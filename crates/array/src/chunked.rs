// SPDX-License-Identifier: Apache-2.0
//! Reads boxes (one index range per axis) of a chunked array (Zarr versions 2 and 3, HDF5). A batch of boxes is planned
//! as a whole: each chunk is read once, nearby chunks share a request, and threads decode the chunks into the caller's
//! memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use futures::{StreamExt, TryStreamExt, stream};
use penstock_record::chunk::{Step, decode_into, hdf5_steps, zarr};
use penstock_store::{ObjectRef, Opened, Version};
use penstock_types::{ByteRange, DType, Deadline, Error, Key, Result, TensorSpec, lock, with_separators};
use serde::Deserialize;
use tokio::runtime::Handle;

use crate::fetch::{FetchStats, MergePolicy, Want, fetch};
use crate::{OutBuffer, Region};

/// Maximum size of a block in bytes. A contiguous array (an HDF5 dataset without chunks) is read block by block.
const BLOCK_BYTES: usize = 64 << 10;

/// Maximum size of a decoded chunk in bytes. Each thread holds one decoded chunk in memory.
const MAX_CHUNK: usize = 4 << 30;

/// Location of a chunk in an HDF5 file, and the filters that were not applied to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRef {
    /// Byte offset in the file.
    pub offset: u64,
    /// Number of stored bytes.
    pub len: u64,
    /// Bit mask: bit `n` is set if filter `n` was not applied.
    pub skipped: u32,
}

/// Locations of the chunks of an array that is stored in one file.
#[derive(Debug, Clone)]
pub struct ChunkTable {
    /// The HDF5 file.
    pub object: ObjectRef,
    /// Decoding steps for each value of [`ChunkRef::skipped`] that occurs.
    pub steps: HashMap<u32, Vec<Step>>,
    /// Chunks, indexed by their position in the chunk grid. A chunk that is not in the map was never written.
    pub chunks: HashMap<Vec<usize>, ChunkRef>,
    /// Byte offset of the first element, if the array is contiguous.
    pub contiguous: Option<u64>,
}

/// A chunked or contiguous dataset, as `penstock.feed.hdf5_chunks` describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    dtype: String,
    #[serde(default)]
    big_endian: bool,
    shape: Vec<usize>,
    #[serde(default)]
    chunk_shape: Option<Vec<usize>>,
    #[serde(default)]
    filters: Vec<(u16, Vec<u32>)>,
    fill: Vec<u8>,
    #[serde(default)]
    offset: Option<u64>,
    #[serde(default)]
    chunks: Vec<(u64, u64, u64, u32)>,
}

/// Size and version of an existing object.
type Existing = (u64, Option<Version>);

/// Offset and length of each chunk of a shard; `None` for a chunk that was never written.
type ShardIndex = Arc<Vec<Option<(u64, u64)>>>;

#[derive(Debug)]
enum Layout {
    Zarr {
        array: Box<zarr::Array>,
        /// Size and version of each object, by the object's key relative to the array. `None` if the store cannot list.
        listed: Option<HashMap<Vec<u8>, Existing>>,
        indexes: Mutex<HashMap<Vec<usize>, ShardIndex>>,
    },
    Table(ChunkTable),
}

/// A chunked or contiguous array, open for reading.
#[derive(Debug)]
pub struct ChunkedArray {
    opened: Opened,
    layout: Layout,
    dtype: DType,
    shape: Vec<usize>,
    chunk_shape: Vec<usize>,
    fill: Vec<u8>,
    policy: MergePolicy,
    /// Read counters.
    pub stats: FetchStats,
}

/// Location of a chunk's bytes.
enum Stored {
    /// Byte range of the chunk, and the bit mask of filters that were not applied to the chunk.
    At(Want, u32),
    /// The chunk was never written.
    Missing,
}

thread_local! {
    static CHUNK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ChunkedArray {
    /// Opens the Zarr array below `opened.prefix`, given its metadata. Lists the array's objects if the store can list.
    pub async fn open_zarr(opened: Opened, metadata: &[u8], policy: MergePolicy, deadline: Deadline) -> Result<Self> {
        let place = penstock_store::place(opened.store.root(), &opened.prefix);
        let array = zarr::Array::parse(metadata, &place)?;
        check_chunk(array.spec.dtype, &array.chunk_shape, &place)?;
        let listed = match opened.store.capabilities().list {
            false => None,
            true => {
                let mut stream = opened.store.list(&opened.prefix, None, deadline);
                let mut listed = HashMap::new();
                while let Some(meta) = stream.try_next().await? {
                    let key = meta.key.as_bytes();
                    let key = key.strip_prefix(opened.prefix.as_bytes()).unwrap_or(key).to_vec();
                    listed.insert(key, (meta.size, meta.version));
                }
                Some(listed)
            }
        };
        Ok(Self {
            dtype: array.spec.dtype,
            shape: array.spec.shape.clone(),
            chunk_shape: array.chunk_shape.clone(),
            fill: array.fill.clone(),
            layout: Layout::Zarr { array: Box::new(array), listed, indexes: Mutex::default() },
            opened,
            policy,
            stats: FetchStats::default(),
        })
    }

    /// Opens a dataset of the HDF5 file `object`. `described` is the JSON that `penstock.feed.hdf5_chunks` produced.
    ///
    /// Errs with `Config` if the description is invalid, `Corrupt` if a chunk is outside the file's `size`, and
    /// `Unsupported` for an unsupported filter.
    pub fn open_hdf5(
        opened: Opened,
        object: ObjectRef,
        size: u64,
        described: &str,
        policy: MergePolicy,
    ) -> Result<Self> {
        let place = penstock_store::place(opened.store.root(), &object.key);
        let described: Described =
            serde_json::from_str(described).map_err(|problem| Error::config("dataset", problem.to_string()))?;
        let dtype: DType = described.dtype.parse()?;
        if described.fill.len() != dtype.size()
            || described.chunk_shape.as_ref().is_some_and(|chunk| chunk.contains(&0))
        {
            let problem = "the chunk shape is invalid, or the fill value has the wrong size";
            return Err(Error::config("dataset", problem.to_owned()));
        }
        let spec = TensorSpec { dtype, shape: described.shape.clone() };
        let within = |start: u64, len: u64| match start.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => {
                let (start, len, all) = (with_separators(start), with_separators(len), with_separators(size));
                Err(Error::corrupt(
                    &*place,
                    format!("has a chunk of {len} bytes at byte {start}, but has only {all} bytes"),
                ))
            }
        };
        if let Some(start) = described.offset {
            within(start, spec.size_bytes()? as u64)?;
        }
        let chunk_shape = described.chunk_shape.unwrap_or_default();
        let grid: Vec<u64> =
            described.shape.iter().zip(&chunk_shape).map(|(side, chunk)| side.div_ceil(*chunk) as u64).collect();
        let filters: Vec<(u16, &[u32])> =
            described.filters.iter().map(|(id, values)| (*id, values.as_slice())).collect();
        let steps_of = |skipped: u32| -> Result<Vec<Step>> {
            let mut steps = hdf5_steps(&filters, skipped, &place)?;
            if described.big_endian && dtype.size() > 1 {
                steps.push(Step::Swap(dtype.size()));
            }
            Ok(steps)
        };
        let mut table =
            ChunkTable { object, steps: HashMap::new(), chunks: HashMap::new(), contiguous: described.offset };
        table.steps.insert(0, steps_of(0)?);
        for &(number, offset, len, skipped) in &described.chunks {
            within(offset, len)?;
            if let Entry::Vacant(entry) = table.steps.entry(skipped) {
                entry.insert(steps_of(skipped)?);
            }
            let mut rest = number;
            let mut cell = vec![0; grid.len()];
            for (at, side) in cell.iter_mut().zip(&grid).rev() {
                *at = (rest % side.max(&1)) as usize;
                rest /= side.max(&1);
            }
            table.chunks.insert(cell, ChunkRef { offset, len, skipped });
        }
        // A dataset that has neither chunks nor an offset was never written. It is read as one missing chunk.
        let chunk_shape = match chunk_shape.is_empty() {
            true => block_shape(&described.shape, dtype.size()),
            false => chunk_shape,
        };
        check_chunk(dtype, &chunk_shape, &place)?;
        Ok(Self::of_table(opened, table, dtype, described.shape, chunk_shape, described.fill, policy))
    }

    /// Opens an array from a known chunk table. `chunk_shape` is ignored for a contiguous array.
    pub fn of_table(
        opened: Opened,
        table: ChunkTable,
        dtype: DType,
        shape: Vec<usize>,
        chunk_shape: Vec<usize>,
        fill: Vec<u8>,
        policy: MergePolicy,
    ) -> Self {
        let chunk_shape = if table.contiguous.is_some() { block_shape(&shape, dtype.size()) } else { chunk_shape };
        Self {
            opened,
            layout: Layout::Table(table),
            dtype,
            shape,
            chunk_shape,
            fill,
            policy,
            stats: FetchStats::default(),
        }
    }

    /// Type of an element.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape of the array.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Shape of a chunk: the smallest part that can be decoded alone.
    pub fn chunk_shape(&self) -> &[usize] {
        &self.chunk_shape
    }

    /// Reads boxes into `out`, one box after another, each in C order. Each chunk is read and decoded once.
    ///
    /// Errs with `Config` for a box outside the array, `Corrupt` for a damaged chunk, and `NotFound` for an object that
    /// was listed but no longer exists.
    pub fn read_many(
        &self,
        runtime: &Handle,
        boxes: &[Region],
        out: OutBuffer<'_>,
        threads: usize,
        deadline: Deadline,
    ) -> Result<()> {
        let element = self.dtype.size();
        let mut bases = Vec::with_capacity(boxes.len());
        let mut total = 0usize;
        for region in boxes {
            let is_inside = region.0.len() == self.shape.len()
                && region.0.iter().zip(&self.shape).all(|(range, &side)| range.start <= range.end && range.end <= side);
            if !is_inside {
                return Err(Error::config(
                    "box",
                    format!("{:?} is not within the array of shape {:?}", region.0, self.shape),
                ));
            }
            bases.push(total);
            total += region.elements() * element;
        }
        if total != out.len() {
            return Err(Error::bug(format!("{} bytes for boxes of {total}", out.len())));
        }
        // The chunks to read, in the order of their first use. Each chunk is stored with the boxes that need it.
        let mut needs: Vec<(Vec<usize>, Vec<usize>)> = Vec::new();
        let mut numbers: HashMap<Vec<usize>, usize> = HashMap::new();
        for (number, region) in boxes.iter().enumerate() {
            for cell in region.cells(&self.chunk_shape) {
                let at = *numbers.entry(cell.clone()).or_insert_with(|| {
                    needs.push((cell, Vec::new()));
                    needs.len() - 1
                });
                needs[at].1.push(number);
            }
        }
        let (objects, stored) = self.locate(runtime, &needs, deadline)?;
        let chunk_len = self.chunk_shape.iter().product::<usize>() * element;
        let put = |cell: &[usize], within: &[usize], data: &[u8]| -> Result<()> {
            for &number in within {
                // SAFETY: chunks do not overlap, and each chunk is decoded once, so no two threads write the same
                // bytes.
                unsafe { boxes[number].copy_from_cell(cell, &self.chunk_shape, element, data, out, bases[number])? };
            }
            Ok(())
        };
        let mut wants = Vec::new();
        let mut items = Vec::new();
        let mut blank = Vec::new();
        for ((cell, within), stored) in needs.iter().zip(stored) {
            match stored {
                Stored::At(want, skipped) => {
                    wants.push(want);
                    items.push((cell, within, skipped));
                }
                Stored::Missing => {
                    if blank.is_empty() {
                        blank = self.fill.repeat(chunk_len / element);
                    }
                    put(cell, within, &blank)?;
                }
            }
        }
        let decode = |number: usize, bytes: &[u8]| -> Result<()> {
            let (cell, within, skipped) = items[number];
            let steps = self.steps(skipped)?;
            if steps.is_empty() && bytes.len() != chunk_len && !self.is_contiguous() {
                let (have, want) = (with_separators(bytes.len() as u64), with_separators(chunk_len as u64));
                let place = self.place(&objects[wants[number].object], cell);
                return Err(Error::corrupt(place, format!("has {have} bytes (want {want})")));
            }
            if steps.is_empty() && bytes.len() == chunk_len {
                return put(cell, within, bytes);
            }
            CHUNK.with_borrow_mut(|chunk| {
                chunk.resize(chunk_len, 0);
                // The last block of a contiguous array can be shorter than the others.
                let len = if self.is_contiguous() { bytes.len().min(chunk_len) } else { chunk_len };
                if steps.is_empty() {
                    chunk[..len].copy_from_slice(&bytes[..len]);
                } else {
                    let place = self.place(&objects[wants[number].object], cell);
                    decode_into(steps, bytes, &mut chunk[..len], &place)?;
                }
                put(cell, within, chunk)
            })
        };
        let store = &*self.opened.store;
        fetch(runtime, store, &objects, &wants, &self.policy, threads, deadline, &self.stats, &decode)?;
        self.stats.bytes_returned.fetch_add(total as u64, Ordering::Relaxed);
        Ok(())
    }

    fn place(&self, object: &ObjectRef, cell: &[usize]) -> String {
        format!("chunk {cell:?} of {}", penstock_store::place(self.opened.store.root(), &object.key))
    }

    fn is_contiguous(&self) -> bool {
        matches!(&self.layout, Layout::Table(table) if table.contiguous.is_some())
    }

    fn steps(&self, skipped: u32) -> Result<&[Step]> {
        match &self.layout {
            Layout::Zarr { array, .. } => Ok(&array.steps),
            Layout::Table(table) => match table.steps.get(&skipped) {
                Some(steps) => Ok(steps),
                None => Err(Error::bug(format!("no steps for the skipped filters {skipped:#b}"))),
            },
        }
    }

    /// Finds the objects that contain the needed chunks, and the location of each chunk in them.
    fn locate(
        &self,
        runtime: &Handle,
        needs: &[(Vec<usize>, Vec<usize>)],
        deadline: Deadline,
    ) -> Result<(Vec<ObjectRef>, Vec<Stored>)> {
        match &self.layout {
            Layout::Table(table) => {
                let stored = needs.iter().map(|(cell, _)| self.in_table(table, cell)).collect();
                Ok((vec![table.object.clone()], stored))
            }
            Layout::Zarr { array, listed, indexes } => {
                // Number of chunks per object along each axis; 1 without shards.
                let per_object: Vec<usize> =
                    array.object_shape().iter().zip(&self.chunk_shape).map(|(outer, inner)| outer / inner).collect();
                let cell_of =
                    |cell: &[usize]| -> Vec<usize> { cell.iter().zip(&per_object).map(|(at, per)| at / per).collect() };
                let mut cells: Vec<Vec<usize>> = needs.iter().map(|(cell, _)| cell_of(cell)).collect();
                cells.sort_unstable();
                cells.dedup();
                let keys = |cell: &Vec<usize>| array.key(cell).into_bytes();
                // Size and version of each existing object.
                let found: HashMap<Vec<usize>, Existing> = match listed {
                    Some(listed) => {
                        cells.iter().filter_map(|cell| Some((cell.clone(), listed.get(&keys(cell))?.clone()))).collect()
                    }
                    None => runtime.block_on(
                        stream::iter(cells.clone())
                            .map(|cell| async move {
                                let key = self.opened.prefix.join(&keys(&cell));
                                match self.opened.store.head(&key, deadline).await {
                                    Ok(meta) => Ok(Some((cell, (meta.size, meta.version)))),
                                    Err(Error::NotFound { .. }) => Ok(None),
                                    Err(error) => Err(error),
                                }
                            })
                            .buffer_unordered(self.policy.in_flight)
                            .try_filter_map(async |found| Ok(found))
                            .try_collect(),
                    )?,
                };
                let mut objects = Vec::with_capacity(found.len());
                let mut places: HashMap<&Vec<usize>, (usize, u64)> = HashMap::new();
                for cell in &cells {
                    if let Some((size, version)) = found.get(cell) {
                        places.insert(cell, (objects.len(), *size));
                        let key: Key = self.opened.prefix.join(&keys(cell));
                        objects.push(ObjectRef { key, version: version.clone() });
                    }
                }
                let shards = match &array.sharding {
                    None => HashMap::new(),
                    Some(sharding) => self.shard_indexes(runtime, sharding, indexes, &objects, &places, deadline)?,
                };
                let stored = needs.iter().map(|(cell, _)| {
                    let outer = cell_of(cell);
                    let Some(&(object, size)) = places.get(&outer) else { return Ok(Stored::Missing) };
                    if array.sharding.is_none() {
                        return Ok(Stored::At(Want { object, range: ByteRange::new(0, size) }, 0));
                    }
                    let number = cell.iter().zip(&per_object).fold(0, |number, (at, per)| number * per + at % per);
                    match shards.get(&outer).and_then(|index| index.get(number)) {
                        Some(Some((offset, len))) => {
                            Ok(Stored::At(Want { object, range: ByteRange::new(*offset, *len) }, 0))
                        }
                        Some(None) => Ok(Stored::Missing),
                        None => Err(Error::bug(format!("no index of the shard {outer:?}"))),
                    }
                });
                let stored = stored.collect::<Result<_>>()?;
                Ok((objects, stored))
            }
        }
    }

    /// Returns the chunk index of each given shard. An index is read once and then cached.
    fn shard_indexes(
        &self,
        runtime: &Handle,
        sharding: &zarr::Sharding,
        known: &Mutex<HashMap<Vec<usize>, ShardIndex>>,
        objects: &[ObjectRef],
        places: &HashMap<&Vec<usize>, (usize, u64)>,
        deadline: Deadline,
    ) -> Result<HashMap<Vec<usize>, ShardIndex>> {
        let len = sharding.index_len() as u64;
        let mut found = HashMap::new();
        let mut missing: Vec<(&Vec<usize>, u64)> = Vec::new();
        let mut wants = Vec::new();
        {
            let known = lock(known);
            for (&cell, &(object, size)) in places {
                if let Some(index) = known.get(cell) {
                    found.insert(cell.clone(), index.clone());
                    continue;
                }
                let Some(end) = size.checked_sub(len) else {
                    let place = penstock_store::place(self.opened.store.root(), &objects[object].key);
                    return Err(Error::corrupt(
                        place,
                        format!("is smaller than its shard index (want {len} bytes, have {size})"),
                    ));
                };
                missing.push((cell, size));
                wants.push(Want { object, range: ByteRange::new(if sharding.index_first { 0 } else { end }, len) });
            }
        }
        let parsed: Mutex<Vec<(Vec<usize>, ShardIndex)>> = Mutex::default();
        let parse = |number: usize, bytes: &[u8]| {
            let (cell, size) = missing[number];
            let place = penstock_store::place(self.opened.store.root(), &objects[wants[number].object].key);
            let index = Arc::new(sharding.parse_index(bytes, size, &place)?);
            lock(&parsed).push((cell.clone(), index));
            Ok(())
        };
        let store = &*self.opened.store;
        fetch(runtime, store, objects, &wants, &self.policy, 1, deadline, &self.stats, &parse)?;
        for (cell, index) in parsed.into_inner().unwrap_or_default() {
            lock(known).insert(cell.clone(), index.clone());
            found.insert(cell, index);
        }
        Ok(found)
    }

    fn in_table(&self, table: &ChunkTable, cell: &[usize]) -> Stored {
        let element = self.dtype.size() as u64;
        if let Some(start) = table.contiguous {
            // Index of the block's first element in C order.
            let first = cell
                .iter()
                .zip(&self.chunk_shape)
                .zip(&self.shape)
                .fold(0u64, |at, ((cell, block), side)| at * *side as u64 + (cell * block) as u64);
            let all = self.shape.iter().product::<usize>() as u64;
            let len = (self.chunk_shape.iter().product::<usize>() as u64).min(all - first);
            let range = ByteRange::new(start + first * element, len * element);
            return Stored::At(Want { object: 0, range }, 0);
        }
        match table.chunks.get(cell) {
            Some(chunk) => {
                Stored::At(Want { object: 0, range: ByteRange::new(chunk.offset, chunk.len) }, chunk.skipped)
            }
            None => Stored::Missing,
        }
    }
}

/// Rejects chunks of more than [`MAX_CHUNK`] bytes before memory is allocated for them.
fn check_chunk(dtype: DType, shape: &[usize], place: &str) -> Result<()> {
    match (TensorSpec { dtype, shape: shape.to_vec() }).size_bytes() {
        Ok(bytes) if bytes <= MAX_CHUNK => Ok(()),
        _ => {
            let what = format!(
                "{place}: a chunk of shape {shape:?}, larger than {} bytes,",
                with_separators(MAX_CHUNK as u64)
            );
            Err(Error::Unsupported { what, by: "the chunk reader".to_owned() })
        }
    }
}

/// Block shape of a contiguous array. A block spans as many of the last axes as fit in [`BLOCK_BYTES`], and has length
/// 1 along the other axes.
fn block_shape(shape: &[usize], element: usize) -> Vec<usize> {
    let mut block = vec![1; shape.len()];
    let mut bytes = element;
    for (side, &whole) in block.iter_mut().zip(shape).rev() {
        if bytes * whole.max(1) > BLOCK_BYTES {
            // Only the last axis may be split. If another axis were split, a block would not be contiguous in the file.
            *side = if bytes == element { (BLOCK_BYTES / bytes).min(whole).max(1) } else { 1 };
            break;
        }
        *side = whole.max(1);
        bytes *= *side;
    }
    block
}
