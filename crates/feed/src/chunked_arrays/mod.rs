// SPDX-License-Identifier: Apache-2.0
//! Chunked arrays as a dataset: sample i is index i along the first axis of one array, or of several parallel arrays.
//!
//! Owns the *block*, which takes the place of an object in the sample order. One array has the rows with the most
//! bytes; a block is the range of rows that one row of chunks covers in that array. The block contains every chunk, of
//! any array, that stores some of these rows. A chunk is a range of an object. A block is fetched completely, and its
//! chunks are decoded into its rows. Missing chunks get the fill value. This module fetches nothing itself.
//!
//! If the arrays are divided into patches, the samples of a block are patches instead of rows (see `patches`).

use std::collections::BTreeMap;
use std::ops::Range;

use penstock_record::chunk::{Step, copy_rows, decode_into};
use penstock_types::{ByteRange, DType, Error, Key, Result, TensorSpec, with_separators};

use penstock_dataset::manifest::{Entry, Manifest};
use penstock_dataset::record_index::Span;

mod patches;

pub use self::patches::PatchSpec;
pub(crate) use self::patches::{FILE, ORIGIN, Patch};

/// Maximum number of chunks per dataset. Each chunk takes about 100 bytes of memory while the dataset is open.
pub(super) const MAX_CHUNKS: usize = 1 << 22;

/// An array. Each array is one column of the samples.
#[derive(Debug)]
pub(super) struct Column {
    /// Name of the array, which is also the name of its value in a record.
    pub name: String,
    /// Element type and shape of the array.
    pub spec: TensorSpec,
    /// Shape of a chunk. Chunks at the array's end have the full shape, unless the array is `flat`.
    pub chunk_shape: Vec<usize>,
    /// Shape of a shard: an object that contains several chunks. `None` if the array has no shards.
    pub shard_shape: Option<Vec<usize>>,
    /// For an array of contiguous rows: index of its object, and offset of its first row. Each chunk of such an array
    /// contains exactly the rows of one block.
    pub flat: Option<(usize, u64)>,
    /// Steps that decode a chunk by reversing its filters.
    pub steps: Vec<Step>,
    /// Fill value: the bytes of one element.
    pub fill: Vec<u8>,
}

/// Location of a stored chunk.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    /// Index of the object in the listing.
    pub object: usize,
    pub range: ByteRange,
    /// Decoding steps of this chunk, if some of the array's filters were not applied to it; otherwise `None`.
    pub steps: Option<Vec<Step>>,
}

/// Function that returns the location of a chunk, given its column and its position in the grid of chunks.
pub(super) type FindChunk<'a> = &'a mut dyn FnMut(usize, &[usize]) -> Result<Option<Stored>>;

/// A chunk of a block.
#[derive(Debug)]
pub(super) struct Piece {
    pub column: usize,
    /// Position of the chunk in the array's grid of chunks.
    pub at: Box<[usize]>,
    /// Location of the chunk; `None` if it was never written.
    pub stored: Option<Stored>,
    /// Number of the chunk's group. All chunks of a group are used by the same blocks, which therefore read them
    /// together. Group 0 is for chunks that only one block uses. `None` for a chunk that is always read alone.
    pub group: Option<u32>,
}

impl Piece {
    /// True if other blocks also use this chunk.
    pub fn is_shared(&self) -> bool {
        self.group != Some(0)
    }

    /// Stored size of the chunk in bytes.
    pub fn bytes(&self) -> u64 {
        self.stored.as_ref().map_or(0, |stored| stored.range.len)
    }
}

/// The samples of a block.
#[derive(Debug)]
pub(super) enum Extent {
    /// Rows along the first axis.
    Rows(Range<usize>),
    /// Patches that start in one cell of the array.
    Patches {
        /// Position of the cell in the grid of cells.
        cell: Box<[u32]>,
        /// Range of patch numbers along each axis.
        numbers: Box<[Range<usize>]>,
    },
}

#[derive(Debug)]
pub(super) struct Block {
    pub layout: usize,
    pub extent: Extent,
    pub pieces: Vec<Piece>,
    /// Name of the dataset in error messages.
    pub place: String,
}

/// Parallel arrays with the same number of rows.
#[derive(Debug)]
pub(super) struct Layout {
    pub columns: Vec<Column>,
    /// Size in bytes of a row (or patch), for each array.
    pub row_bytes: Vec<usize>,
}

/// Dataset of chunked arrays, divided into blocks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    pub layouts: Vec<Layout>,
    pub blocks: Vec<Block>,
    pub chunks: usize,
    /// Patches into which the arrays are divided; `None` if the samples are rows.
    pub patches: Option<PatchSpec>,
    /// For patches: stored size, in bytes, of all chunks that contain a part of a patch.
    pub needed_bytes: u64,
    /// For patches: stored size, in bytes, of the chunks that several blocks use.
    pub shared_bytes: u64,
}

impl Blocks {
    /// Adds parallel arrays. `find` returns the location of a chunk, given its column and its position in the grid of
    /// chunks. `place` is the name of the arrays in error messages.
    pub fn add(
        &mut self,
        place: &str,
        mut columns: Vec<Column>,
        mut find: impl FnMut(usize, &[usize]) -> Result<Option<Stored>>,
    ) -> Result<()> {
        if let Some(spec) = self.patches.clone() {
            return self.add_patches(&spec, place, columns, &mut find);
        }
        let mut row_bytes = Vec::with_capacity(columns.len());
        for column in &columns {
            let (spec, axes) = (&column.spec, column.spec.shape.len());
            if axes == 0 || column.chunk_shape.len() != axes || column.chunk_shape.contains(&0) {
                let (name, shape, chunks) = (&column.name, &spec.shape, &column.chunk_shape);
                let problem = match axes {
                    0 => format!("`{name}` is a single value, not an array; select arrays with at least one dimension"),
                    _ => format!("`{name}` of shape {shape:?} in chunks of {chunks:?} has no rows to use as samples"),
                };
                return Err(Error::config("format", format!("{place}: {problem}")));
            }
            let row = TensorSpec { dtype: spec.dtype, shape: spec.shape[1..].to_vec() }.size_bytes()?;
            if row == 0 || column.fill.len() != spec.dtype.size() {
                return Err(Error::config(
                    "format",
                    format!("{place}: a row of `{}` has 0 bytes, so it cannot be a sample", column.name),
                ));
            }
            TensorSpec { dtype: spec.dtype, shape: column.chunk_shape.clone() }.size_bytes()?;
            row_bytes.push(row);
        }
        let Some(first) = columns.first() else {
            return Err(Error::config("format", format!("{place}: at least one array is required")));
        };
        let samples = first.spec.shape[0];
        if let Some(other) = columns.iter().find(|column| column.spec.shape[0] != samples) {
            let (name, want) = (&first.name, with_separators(samples as u64));
            let problem = format!(
                "`{}` has {} rows, but `{name}` has {want}",
                other.name,
                with_separators(other.spec.shape[0] as u64)
            );
            return Err(Error::config(
                "format",
                format!("{place}: {problem}; select arrays with equal row counts (see penstock.formats)"),
            ));
        }
        if let Some(before) = self.layouts.first() {
            let facts = |columns: &[Column]| -> Vec<(String, DType, Vec<usize>)> {
                let fact = |of: &Column| (of.name.clone(), of.spec.dtype, of.spec.shape[1..].to_vec());
                columns.iter().map(fact).collect()
            };
            if facts(&before.columns) != facts(&columns) {
                return Err(Error::config(
                    "format",
                    format!("{place}: the names, types or shapes of the arrays differ from those of the first object"),
                ));
            }
        }
        let widest = (0..columns.len()).max_by_key(|&at| (row_bytes[at], std::cmp::Reverse(at))).unwrap_or(0);
        let height = columns[widest].chunk_shape[0];
        columns.iter_mut().filter(|column| column.flat.is_some()).for_each(|column| column.chunk_shape[0] = height);
        let too_many = || Error::Unsupported {
            what: format!("more than {} chunks ({place})", with_separators(MAX_CHUNKS as u64)),
            by: "the feed".to_owned(),
        };
        if samples.div_ceil(height) > MAX_CHUNKS {
            return Err(too_many());
        }
        let mut start = 0;
        while start < samples {
            let rows = start..start.saturating_add(height).min(samples);
            let mut pieces = Vec::new();
            for (column, of) in columns.iter().enumerate() {
                let grid: Vec<Range<usize>> = (0..of.spec.shape.len())
                    .map(|axis| match axis {
                        0 => rows.start / of.chunk_shape[0]..rows.end.div_ceil(of.chunk_shape[0]),
                        _ => 0..of.spec.shape[axis].div_ceil(of.chunk_shape[axis]),
                    })
                    .collect();
                let count = grid.iter().try_fold(1usize, |count, side| count.checked_mul(side.len()));
                self.chunks = count.and_then(|count| count.checked_add(self.chunks)).unwrap_or(usize::MAX);
                if self.chunks > MAX_CHUNKS {
                    return Err(too_many());
                }
                let mut at: Vec<usize> = grid.iter().map(|side| side.start).collect();
                loop {
                    let stored = match of.flat {
                        // A chunk of contiguous rows contains exactly the rows of its block.
                        Some((object, offset)) => {
                            let row = row_bytes[column] as u64;
                            let range = ByteRange::new(offset + rows.start as u64 * row, rows.len() as u64 * row);
                            Some(Stored { object, range, steps: None })
                        }
                        None => find(column, &at)?,
                    };
                    let (first, height) = (at[0] * of.chunk_shape[0], of.chunk_shape[0]);
                    let is_own = first >= rows.start && first.saturating_add(height).min(samples) <= rows.end;
                    pieces.push(Piece { column, stored, group: is_own.then_some(0), at: at.as_slice().into() });
                    let Some(axis) = (0..at.len()).rev().find(|&axis| at[axis] + 1 < grid[axis].end) else { break };
                    at[axis] += 1;
                    for later in axis + 1..at.len() {
                        at[later] = grid[later].start;
                    }
                }
            }
            let (layout, end) = (self.layouts.len(), rows.end);
            self.blocks.push(Block { layout, extent: Extent::Rows(rows), pieces, place: place.to_owned() });
            start = end;
        }
        self.layouts.push(Layout { columns, row_bytes });
        Ok(())
    }

    /// Returns a manifest with one object per block, for the sample order. Each object has a unique name; its size is
    /// the stored size of the block.
    pub fn manifest(&self, listing: &Manifest) -> Manifest {
        let entry = |block: &Block| {
            let size = block.stored().map(|stored| stored.range.len).sum();
            let name = match &block.extent {
                Extent::Rows(rows) => format!("{:06}/rows-{:012}", block.layout, rows.start),
                Extent::Patches { cell, .. } => self.patches_name(block.layout, cell),
            };
            Entry::new(Key::from(name.as_str()), size)
        };
        let objects = self.blocks.iter().map(entry).collect();
        Manifest { objects, source: None, url: listing.url.clone(), ..*listing }
    }

    /// Name of a block in error messages.
    pub fn place(&self, block: u64) -> String {
        let block = &self.blocks[block as usize];
        match &block.extent {
            Extent::Rows(rows) => format!("{} rows {} to {}", block.place, rows.start, rows.end - 1),
            Extent::Patches { numbers, .. } => {
                let (shape, start) = self.patch_box(numbers);
                format!("{} patches in the box of shape {shape:?} that starts at {start:?}", block.place)
            }
        }
    }

    /// Returns the name, element type and shape of each value in a record.
    pub fn parts(&self) -> Vec<(&str, TensorSpec)> {
        let shape = |of: &Column| match &self.patches {
            Some(spec) => spec.shape.clone(),
            None => of.spec.shape[1..].to_vec(),
        };
        let part = |of: &Column| TensorSpec { dtype: of.spec.dtype, shape: shape(of) };
        let columns = self.layouts.first().map(|layout| layout.columns.as_slice()).unwrap_or_default();
        let mut parts: Vec<(&str, TensorSpec)> =
            columns.iter().map(|column| (column.name.as_str(), part(column))).collect();
        if let Some(spec) = &self.patches {
            let index = |shape: Vec<usize>| TensorSpec { dtype: DType::I64, shape };
            parts.push((ORIGIN, index(vec![spec.shape.len()])));
            if self.layouts.len() > 1 {
                parts.push((FILE, index(Vec::new())));
            }
        }
        parts
    }

    /// Size of a record in bytes: the concatenated rows of all arrays.
    pub fn row_bytes(&self) -> usize {
        self.layouts.first().map_or(0, |layout| layout.row_bytes.iter().sum())
    }

    /// Maximum memory, in bytes, for decoding a block, in addition to the block's stored bytes.
    pub fn max_work(&self) -> u64 {
        self.blocks.iter().map(|block| self.work(block)).max().unwrap_or(0)
    }

    /// Memory, in bytes, for decoding a block, in addition to the block's stored bytes.
    fn work(&self, block: &Block) -> u64 {
        let layout = &self.layouts[block.layout];
        // Decoding a chunk takes two buffers between the filters, and one buffer for the decoded chunk.
        let chunks = layout.columns.iter().map(Column::chunk_bytes).max().unwrap_or(0).saturating_mul(3);
        let twice = if self.patches.is_none() && layout.columns.len() > 1 { 2 } else { 1 };
        self.decoded_bytes(block).unwrap_or(u64::MAX).saturating_mul(twice).saturating_add(chunks)
    }

    /// Size in bytes of a decoded block: of its rows, or of the boxes that contain its patches.
    fn decoded_bytes(&self, block: &Block) -> Option<u64> {
        let layout = &self.layouts[block.layout];
        let sizes: Vec<u64> = match &block.extent {
            Extent::Rows(_) => layout.row_bytes.iter().map(|&row| row as u64).collect(),
            Extent::Patches { .. } => layout.columns.iter().map(|column| column.spec.dtype.size() as u64).collect(),
        };
        let times = match &block.extent {
            Extent::Rows(rows) => rows.len() as u64,
            Extent::Patches { numbers, .. } => {
                let (shape, _) = self.patch_box(numbers);
                shape.iter().try_fold(1u64, |all, &side| all.checked_mul(side as u64))?
            }
        };
        sizes.into_iter().try_fold(0u64, |all, size| all.checked_add(size.checked_mul(times)?))
    }

    /// Positions of a block's records in its decoded bytes. Patches may overlap, so the span of a patch is the whole
    /// block.
    pub fn spans(&self, number: u64, content: &[u8], spans: &mut Vec<Span>) {
        let block = &self.blocks[number as usize];
        let (len, step) = match &block.extent {
            Extent::Rows(_) => (self.row_bytes() as u64, self.row_bytes() as u64),
            Extent::Patches { .. } => (content.len() as u64, 0),
        };
        spans.extend((0..block.records() as u64).map(|record| Span { offset: record * step, len, crc: 0 }));
    }

    /// Decodes a block into `out`: row by row, with the values of all arrays concatenated. `stored` contains the
    /// block's stored chunks, concatenated. `name` returns the name of an object for error messages.
    pub fn unpack(
        &self,
        number: u64,
        stored: &[u8],
        out: &mut Vec<u8>,
        limit: u64,
        name: &dyn Fn(usize) -> String,
    ) -> Result<()> {
        let block = &self.blocks[number as usize];
        let (layout, work) = (&self.layouts[block.layout], self.work(block));
        let size = self.decoded_bytes(block).and_then(|size| usize::try_from(size).ok());
        let too_large = || Error::BudgetExceeded { what: self.place(number), need: work, budget: limit };
        let size = size.filter(|_| work <= limit).ok_or_else(too_large)?;
        if out.len() < size {
            out.try_reserve(size - out.len()).map_err(|_| too_large())?;
        }
        out.resize(size, 0);
        let range = match &block.extent {
            Extent::Rows(range) => range,
            Extent::Patches { numbers, .. } => return self.unpack_patches(block, numbers, stored, out, name),
        };
        let rows = range.len();
        let (mut at, mut room, mut chunk) = (0, Vec::new(), Vec::new());
        let (record, mut before) = (self.row_bytes(), 0);
        for (column, of) in layout.columns.iter().enumerate() {
            let row = layout.row_bytes[column];
            let is_only = layout.columns.len() == 1;
            let into = if is_only {
                out.as_mut_slice()
            } else {
                room.resize(rows * row, 0);
                room.as_mut_slice()
            };
            let pieces = || block.pieces.iter().filter(|piece| piece.column == column);
            if pieces().any(|piece| piece.stored.is_none()) {
                into.chunks_exact_mut(of.fill.len()).for_each(|element| element.copy_from_slice(&of.fill));
            }
            for piece in pieces() {
                let Some(lies) = &piece.stored else { continue };
                let len = lies.range.len as usize;
                let place = || format!("{} chunk {:?} of `{}`", name(lies.object), piece.at, of.name);
                let Some(bytes) = stored.get(at..at + len) else {
                    return Err(Error::bug(format!("the block's stored bytes end inside {}", place())));
                };
                at += len;
                of.decode(piece, lies, bytes, range, into, &mut chunk, &place())?;
            }
            if !is_only {
                for (from, to) in room.chunks_exact(row).zip(out.chunks_exact_mut(record)) {
                    to[before..before + row].copy_from_slice(from);
                }
            }
            before += row;
        }
        Ok(())
    }
}

impl Column {
    fn chunk_bytes(&self) -> u64 {
        let sides = self.chunk_shape.iter().map(|&side| side as u64);
        sides.fold(self.spec.dtype.size() as u64, u64::saturating_mul)
    }

    #[allow(clippy::too_many_arguments)]
    fn decode(
        &self,
        piece: &Piece,
        lies: &Stored,
        bytes: &[u8],
        rows: &Range<usize>,
        into: &mut [u8],
        chunk: &mut Vec<u8>,
        place: &str,
    ) -> Result<()> {
        let steps = lies.steps.as_deref().unwrap_or(&self.steps);
        let first = piece.at[0] * self.chunk_shape[0];
        let is_all = first == rows.start && self.chunk_shape[0] == rows.len();
        if self.flat.is_some() || is_all && self.chunk_shape[1..] == self.spec.shape[1..] {
            return decode_into(steps, bytes, into, place);
        }
        chunk.resize(TensorSpec { dtype: self.spec.dtype, shape: self.chunk_shape.clone() }.size_bytes()?, 0);
        decode_into(steps, bytes, chunk, place)?;
        copy_rows(chunk, &self.chunk_shape, &piece.at, &self.spec.shape, self.spec.dtype.size(), rows.clone(), into)
    }
}

impl Block {
    /// Number of samples.
    pub fn records(&self) -> usize {
        match &self.extent {
            Extent::Rows(rows) => rows.len(),
            Extent::Patches { numbers, .. } => numbers.iter().map(ExactSizeIterator::len).product(),
        }
    }

    /// Returns the locations of the block's stored chunks, in the order in which `unpack` expects the chunks.
    pub fn stored(&self) -> impl Iterator<Item = &Stored> {
        self.pieces.iter().filter_map(|piece| piece.stored.as_ref())
    }

    /// Returns the block's reads as (object, range), in the order in which `unpack` expects the bytes. Adjacent chunks
    /// are merged into one read if the same blocks use them; all these blocks then send the same read. Reads are split
    /// at `most` bytes.
    pub fn stretches(&self, most: u64) -> Vec<(usize, ByteRange)> {
        let mut joined: Vec<(usize, ByteRange, Option<u32>)> = Vec::new();
        for piece in &self.pieces {
            let Some(&Stored { object, range, .. }) = piece.stored.as_ref() else { continue };
            match joined.last_mut() {
                Some((last, before, group))
                    if group.is_some()
                        && *group == piece.group
                        && *last == object
                        && before.start + before.len == range.start =>
                {
                    before.len += range.len;
                }
                _ => joined.push((object, range, piece.group)),
            }
        }
        let cut = |(object, ByteRange { start, len }, _)| {
            let part = move |at| (object, ByteRange::new(start + at, most.min(len - at)));
            (0..len).step_by(most as usize).map(part)
        };
        joined.into_iter().flat_map(cut).collect()
    }
}

/// Maps each key of a listing to its index in the listing.
pub(super) fn numbers(listing: &Manifest) -> BTreeMap<&[u8], usize> {
    listing.objects.iter().enumerate().map(|(number, entry)| (entry.key.as_bytes(), number)).collect()
}
