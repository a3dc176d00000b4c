// SPDX-License-Identifier: Apache-2.0
//! Patches of arrays: defines the boxes of an array that are samples, divides them into blocks, and copies them from
//! chunks.
//!
//! Along an axis, patch j starts at element `j * stride`. A block contains the patches that start in one *cell* of the
//! array. A cell consists of whole shards (or chunks, if the array has no shards). If the patches of a cell would take
//! more than [`BLOCK_BYTES`], the cell is divided. The chunks of a block are decoded into one box of each array. The
//! block's patches are copied from this box.

use std::collections::HashMap;
use std::ops::Range;

use penstock_record::chunk::decode_into;
use penstock_types::{ByteRange, DType, Error, Result, TensorSpec, with_separators};
use serde::{Deserialize, Serialize};

use super::{Block, Blocks, Column, Extent, FindChunk, Layout, MAX_CHUNKS, Piece, Stored};

/// Name of the value that holds the index of a patch's first element.
pub(crate) const ORIGIN: &str = "origin";

/// Name of the value that holds the number of the patch's file, if the dataset has several files.
pub(crate) const FILE: &str = "file";

/// Maximum size of a block's patches in bytes, unless a single patch is larger. All batches of a shuffle window are in
/// memory. With larger blocks, a window would contain patches from fewer places of the volume.
const BLOCK_BYTES: usize = 64 << 20;

/// Maximum size of the patches in a default shuffle window, in bytes.
const WINDOW_BYTES: u64 = 512 << 20;

/// Maximum number of blocks in a default shuffle window.
const MAX_WINDOW: u64 = 16;

/// Patches of arrays as samples, as the user requested them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchSpec {
    /// Shape of a patch, with one number for each axis of the arrays.
    pub shape: Vec<usize>,
    /// Number of elements between the starts of neighbouring patches, for each axis.
    pub stride: Vec<usize>,
    /// True if patches that extend beyond the array are filled with zeros; false if they are left out.
    #[serde(default)]
    pub pads: bool,
}

/// A patch within the decoded box that contains its block's patches.
#[derive(Debug, Clone, PartialEq)]
pub struct Patch<'a> {
    /// Element type.
    pub dtype: DType,
    /// Shape of the patch.
    pub shape: &'a [usize],
    /// Index in the box of the patch's first element.
    pub start: Vec<usize>,
    /// Shape of the box.
    pub box_shape: &'a [usize],
    /// Elements of the box, little-endian in C order.
    pub bytes: &'a [u8],
}

impl Patch<'_> {
    /// Size of the patch in bytes.
    pub fn size_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Copies the elements into `out`, which has the size of the patch.
    pub fn copy_to(&self, out: &mut [u8]) {
        let zero = vec![0; self.shape.len()];
        let (from, to) = ((self.box_shape, self.start.as_slice()), (self.shape, zero.as_slice()));
        each_run(self.shape, from, to, self.dtype.size(), |from, to, len| {
            out[to..to + len].copy_from_slice(&self.bytes[from..from + len]);
        });
    }

    /// Returns the elements of the patch.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.size_bytes()];
        self.copy_to(&mut out);
        out
    }
}

/// Calls `run` for each contiguous run of elements of a box of shape `extent`, which is copied from one array to
/// another. `run` gets the byte offsets of the run in the two arrays, and the length of the run in bytes. Each array is
/// given by its shape and by the index at which the box starts in it.
fn each_run(
    extent: &[usize],
    (from_shape, from_start): (&[usize], &[usize]),
    (to_shape, to_start): (&[usize], &[usize]),
    element: usize,
    mut run: impl FnMut(usize, usize, usize),
) {
    if extent.contains(&0) {
        return;
    }
    // Inner axes that the box covers completely in both arrays are copied as one piece.
    let mut inner = extent.len() - 1;
    let mut len = extent[inner] * element;
    while inner > 0 && extent[inner] == from_shape[inner] && extent[inner] == to_shape[inner] {
        inner -= 1;
        len *= extent[inner];
    }
    let mut index = vec![0; inner];
    loop {
        let offset = |shape: &[usize], start: &[usize]| {
            let place = |(at, axis): (usize, usize)| at * shape[axis] + start[axis] + index.get(axis).unwrap_or(&0);
            (0..shape.len()).fold(0, |at, axis| place((at, axis))) * element
        };
        run(offset(from_shape, from_start), offset(to_shape, to_start), len);
        let Some(axis) = (0..inner).rev().find(|&axis| index[axis] + 1 < extent[axis]) else { return };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

/// One axis of an array that is divided into patches.
#[derive(Debug)]
struct Axis {
    /// Number of elements along the axis.
    len: usize,
    patch: usize,
    stride: usize,
    /// Number of patches along the axis.
    count: usize,
    /// Number of elements of a cell along the axis.
    cell: usize,
}

impl Axis {
    /// Number of cells in which a patch starts.
    fn cells(&self) -> usize {
        ((self.count - 1) * self.stride + 1).div_ceil(self.cell)
    }

    /// Numbers of the patches that start in a cell.
    fn numbers(&self, cell: usize) -> Range<usize> {
        let first = |cell: usize| (cell * self.cell).div_ceil(self.stride).min(self.count);
        first(cell)..first(cell + 1)
    }

    /// Maximum number of patches per cell.
    fn per_cell(&self) -> usize {
        self.cell.div_ceil(self.stride).min(self.count)
    }

    /// Returns a smaller cell, which has about half the size. If possible, the smaller cell consists of whole chunks.
    fn smaller(&self, chunk: usize) -> Option<usize> {
        let half = self.cell.min(self.count * self.stride).div_ceil(2);
        let whole = |of: usize| Some(half.div_ceil(of) * of).filter(|&cell| cell < self.cell);
        whole(chunk).or_else(|| whole(self.stride)).filter(|_| self.per_cell() > 1)
    }

    /// Indices, ascending, of the chunks (`side` elements each) that contain elements of the patches `numbers`.
    fn chunks(&self, numbers: &Range<usize>, side: usize) -> Vec<usize> {
        let mut found: Vec<usize> = Vec::new();
        for number in numbers.clone() {
            let start = number * self.stride;
            let end = (start + self.patch).min(self.len);
            let next = found.last().map_or(0, |&last| last + 1);
            found.extend((start / side).max(next)..end.div_ceil(side));
        }
        found
    }
}

/// For each chunk along an axis, the cells whose patches use it, as (first, last). `None` for a chunk that no patch
/// uses.
type Users = Vec<Option<(u32, u32)>>;

fn users(axis: &Axis, side: usize) -> Users {
    let mut users: Users = vec![None; axis.len.div_ceil(side)];
    for cell in 0..axis.cells() {
        for chunk in axis.chunks(&axis.numbers(cell), side) {
            let cell = cell as u32;
            users[chunk] = Some((users[chunk].map_or(cell, |(first, _)| first), cell));
        }
    }
    users
}

/// Calls `each` for every combination of indices below `sides`, in C order.
fn each_index(sides: &[usize], mut each: impl FnMut(&[usize]) -> Result<()>) -> Result<()> {
    if sides.contains(&0) {
        return Ok(());
    }
    let mut index = vec![0; sides.len()];
    loop {
        each(&index)?;
        let Some(axis) = (0..sides.len()).rev().find(|&axis| index[axis] + 1 < sides[axis]) else { return Ok(()) };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

fn refused(problem: String) -> Error {
    Error::config("patches", problem)
}

impl PatchSpec {
    /// Checks the patches against an array's shape. Returns the axes, with cells of one element.
    fn axes(&self, name: &str, shape: &[usize], place: &str) -> Result<Vec<Axis>> {
        if self.shape.len() != shape.len() || self.stride.len() != shape.len() {
            let (have, want) = (self.shape.len(), shape.len());
            return Err(refused(format!(
                "{place}: `{name}` has shape {shape:?}, so the patch shape and stride must have {want} numbers (got {have} and {}); \
                 for 2-D patches, use 1 for the axis perpendicular to the patches",
                self.stride.len()
            )));
        }
        let axis = |((&len, &patch), &stride): ((&usize, &usize), &usize)| {
            if patch == 0 || stride == 0 {
                let (patch, stride) = (&self.shape, &self.stride);
                return Err(refused(format!("shape and stride must be at least 1 (got {patch:?} and {stride:?})")));
            }
            if patch > len && (!self.pads || len == 0) {
                let patch = &self.shape;
                return Err(refused(format!(
                    "{place}: a patch of shape {patch:?} is larger than array `{name}` of shape {shape:?}"
                )));
            }
            let count = match len.checked_sub(patch) {
                None => 1,
                // If the stride is larger than a patch, the last patch could start beyond the array.
                Some(rest) if self.pads => (rest.div_ceil(stride) + 1).min(len.div_ceil(stride)),
                Some(rest) => rest / stride + 1,
            };
            // The end of the last patch must fit in an integer.
            let end = (count - 1).checked_mul(stride).and_then(|start| start.checked_add(patch.max(stride)));
            end.ok_or_else(|| refused(format!("a stride of {stride} is too large")))?;
            Ok(Axis { len, patch, stride, count, cell: 1 })
        };
        shape.iter().zip(&self.shape).zip(&self.stride).map(axis).collect()
    }

    /// Sets the cells: whole shards or chunks of `column`. Divides a cell if its patches have more than
    /// [`BLOCK_BYTES`].
    fn set_cells(axes: &mut [Axis], column: &Column, patch_bytes: usize) {
        for (number, axis) in axes.iter_mut().enumerate() {
            let unit = match (column.flat, &column.shard_shape) {
                // In an array without chunks, whole rows of the last axis are read.
                (Some(_), _) if number > 0 && number + 1 == column.spec.shape.len() => axis.len,
                (Some(_), _) => 1,
                (None, Some(shard)) => shard[number],
                (None, None) => column.chunk_shape[number],
            };
            axis.cell = axis.patch.max(axis.stride).div_ceil(unit).saturating_mul(unit);
        }
        loop {
            let patches = axes.iter().map(Axis::per_cell).fold(patch_bytes, usize::saturating_mul);
            let chunk = |number: usize| if column.flat.is_some() { 1 } else { column.chunk_shape[number] };
            let smaller = |number: usize| Some((number, axes[number].smaller(chunk(number))?));
            // Dividing the last axis of contiguous rows saves no read, because rows are read completely.
            let is_row = |number: usize| column.flat.is_some() && number > 0 && number + 1 == axes.len();
            let rank = |&(number, _): &(usize, usize)| (!is_row(number), axes[number].per_cell());
            let widest = (0..axes.len()).filter_map(smaller).max_by_key(rank);
            match widest {
                Some((number, cell)) if patches > BLOCK_BYTES => axes[number].cell = cell,
                _ => return,
            }
        }
    }
}

impl Blocks {
    /// Creates an empty set of blocks for patches.
    pub fn of_patches(spec: PatchSpec) -> Self {
        Self { patches: Some(spec), ..Self::default() }
    }

    /// Adds parallel arrays of the same shape that are divided into patches. The arguments are those of
    /// [`Blocks::add`].
    pub(super) fn add_patches(
        &mut self,
        spec: &PatchSpec,
        place: &str,
        mut columns: Vec<Column>,
        find: FindChunk<'_>,
    ) -> Result<()> {
        let Some(first) = columns.first() else {
            return Err(Error::config("format", format!("{place}: at least one array is required")));
        };
        let shape = first.spec.shape.clone();
        if let Some(other) = columns.iter().find(|column| column.spec.shape != shape) {
            let (name, have) = (&other.name, &other.spec.shape);
            let problem = format!(
                "{place}: array `{name}` has shape {have:?}, but array `{}` has shape {shape:?}; select arrays of equal shape \
                 with format=",
                first.name
            );
            return Err(refused(problem));
        }
        let mut axes = spec.axes(&first.name, &shape, place)?;
        let mut patch_bytes = Vec::with_capacity(columns.len());
        for column in &columns {
            if column.chunk_shape.len() != shape.len() || column.chunk_shape.contains(&0) {
                let problem = format!(
                    "{place}: the chunk shape {:?} of array `{}` is not valid",
                    column.chunk_shape, column.name
                );
                return Err(Error::config("format", problem));
            }
            if [ORIGIN, FILE].contains(&column.name.as_str()) {
                return Err(refused(format!("{place}: an array cannot have the name `{}`", column.name)));
            }
            TensorSpec { dtype: column.spec.dtype, shape: column.chunk_shape.clone() }.size_bytes()?;
            patch_bytes.push(TensorSpec { dtype: column.spec.dtype, shape: spec.shape.clone() }.size_bytes()?);
        }
        if let Some(before) = self.layouts.first() {
            let facts = |columns: &[Column]| -> Vec<(String, DType)> {
                columns.iter().map(|column| (column.name.clone(), column.spec.dtype)).collect()
            };
            if facts(&before.columns) != facts(&columns) {
                let problem = format!("{place}: the names or types of the arrays differ from those of the first file");
                return Err(Error::config("format", problem));
            }
        }
        let widest = (0..columns.len()).max_by_key(|&at| (patch_bytes[at], std::cmp::Reverse(at))).unwrap_or(0);
        let all = patch_bytes.iter().copied().fold(0, usize::saturating_add);
        PatchSpec::set_cells(&mut axes, &columns[widest], all);
        for column in columns.iter_mut().filter(|column| column.flat.is_some()) {
            // A chunk must be contiguous in the file. It therefore has one index of each outer axis, the cell's length
            // of the second-to-last axis, and the whole last axis.
            let count = axes.len();
            let side = |(number, axis): (usize, &Axis)| match number + 2 {
                _ if number > 0 && number + 1 == count => axis.len,
                after if after >= count => axis.cell.min(axis.len),
                _ => 1,
            };
            column.chunk_shape = axes.iter().enumerate().map(side).collect();
        }
        let too_many = || Error::Unsupported {
            what: format!("more than {} chunks in the blocks of {place}", with_separators(MAX_CHUNKS as u64)),
            by: "the feed".to_owned(),
        };
        let cells: Vec<usize> = axes.iter().map(Axis::cells).collect();
        if cells.iter().try_fold(1usize, |all, &side| all.checked_mul(side)).is_none_or(|all| all > MAX_CHUNKS) {
            return Err(too_many());
        }
        let users: Vec<Vec<Users>> = columns
            .iter()
            .map(|column| axes.iter().zip(&column.chunk_shape).map(|(axis, &side)| users(axis, side)).collect())
            .collect();
        // Chunks that the same blocks use are in the same group. Group 0 is for chunks that only one block uses.
        let mut groups: HashMap<Vec<(u32, u32)>, u32> = HashMap::new();
        let layout = self.layouts.len();
        each_index(&cells, |cell| {
            let numbers: Vec<Range<usize>> = axes.iter().zip(cell).map(|(axis, &cell)| axis.numbers(cell)).collect();
            let mut pieces = Vec::new();
            for (column, of) in columns.iter().enumerate() {
                let chunks: Vec<Vec<usize>> =
                    (0..axes.len()).map(|axis| axes[axis].chunks(&numbers[axis], of.chunk_shape[axis])).collect();
                let sides: Vec<usize> = chunks.iter().map(Vec::len).collect();
                let count = sides.iter().try_fold(1usize, |count, &side| count.checked_mul(side));
                self.chunks = count.and_then(|count| count.checked_add(self.chunks)).unwrap_or(usize::MAX);
                if self.chunks > MAX_CHUNKS {
                    return Err(too_many());
                }
                let from = pieces.len();
                each_index(&sides, |index| {
                    let at: Box<[usize]> = index.iter().zip(&chunks).map(|(&index, chunks)| chunks[index]).collect();
                    let stored = match of.flat {
                        Some((object, offset)) => {
                            Some(Stored { object, range: of.flat_range(&at, offset), steps: None })
                        }
                        None => find(column, &at)?,
                    };
                    let used: Vec<(u32, u32)> =
                        at.iter().zip(&users[column]).filter_map(|(&chunk, users)| users[chunk]).collect();
                    let is_own = used.iter().all(|(first, last)| first == last);
                    let next = groups.len() as u32 + 1;
                    let is_first = used.iter().zip(cell).all(|((first, _), &cell)| *first as usize == cell);
                    let group = if is_own { 0 } else { *groups.entry(used).or_insert(next) };
                    let size = stored.as_ref().filter(|_| is_first).map_or(0, |stored| stored.range.len);
                    self.needed_bytes += size;
                    self.shared_bytes += if is_own { 0 } else { size };
                    pieces.push(Piece { column, stored, group: Some(group), at });
                    Ok(())
                })?;
                // Sort the chunks by position, so that adjacent chunks are read together.
                pieces[from..].sort_by_key(|piece| piece.stored.as_ref().map(|lies| (lies.object, lies.range.start)));
            }
            let cell = cell.iter().map(|&cell| cell as u32).collect();
            let extent = Extent::Patches { cell, numbers: numbers.into() };
            self.blocks.push(Block { layout, extent, pieces, place: place.to_owned() });
            Ok(())
        })?;
        self.layouts.push(Layout { columns, row_bytes: patch_bytes });
        Ok(())
    }

    /// Maximum number of blocks in a default shuffle window. `None` if the samples are rows.
    pub fn max_window(&self) -> Option<u64> {
        self.patches.as_ref()?;
        let patch: u64 = self.layouts.first()?.row_bytes.iter().map(|&bytes| bytes as u64).sum();
        let most = self.blocks.iter().map(Block::records).max().unwrap_or(1) as u64;
        Some((WINDOW_BYTES / most.saturating_mul(patch).max(1)).clamp(2, MAX_WINDOW))
    }

    /// Stored size in bytes of the chunks that several blocks use: the maximum of all blocks, and the total.
    pub fn shared(&self) -> (u64, u64) {
        let of = |block: &Block| block.pieces.iter().filter(|piece| piece.is_shared()).map(Piece::bytes).sum();
        (self.blocks.iter().map(of).max().unwrap_or(0), self.shared_bytes)
    }

    /// Name of a block of patches. The name is the same in every copy of the dataset.
    pub(super) fn patches_name(&self, layout: usize, cell: &[u32]) -> String {
        let Some(spec) = &self.patches else { return String::new() };
        let text = |sides: &[usize]| sides.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
        let cell: Vec<String> = cell.iter().map(|cell| format!("{cell:07}")).collect();
        let edges = if spec.pads { "pad" } else { "drop" };
        let (shape, stride) = (text(&spec.shape), text(&spec.stride));
        format!("{layout:06}/patches-{shape}-by-{stride}-{edges}/{}", cell.join("-"))
    }

    /// Shape of the box that contains a block's patches, and the index in the array of the box's first element.
    pub(crate) fn patch_box(&self, numbers: &[Range<usize>]) -> (Vec<usize>, Vec<usize>) {
        let (mut shape, mut start) = (Vec::new(), Vec::new());
        for (axis, numbers) in numbers.iter().enumerate() {
            let Some(spec) = &self.patches else { break };
            start.push(numbers.start * spec.stride[axis]);
            shape.push((numbers.end - 1 - numbers.start) * spec.stride[axis] + spec.shape[axis]);
        }
        (shape, start)
    }

    /// Decodes the boxes of all arrays of a block into `out`, one box after another.
    pub(super) fn unpack_patches(
        &self,
        block: &Block,
        numbers: &[Range<usize>],
        stored: &[u8],
        out: &mut [u8],
        name: &dyn Fn(usize) -> String,
    ) -> Result<()> {
        let (box_shape, box_start) = self.patch_box(numbers);
        let elements: usize = box_shape.iter().product();
        let (mut at, mut before, mut room) = (0, 0, Vec::new());
        for (column, of) in self.layouts[block.layout].columns.iter().enumerate() {
            let element = of.spec.dtype.size();
            let region = &mut out[before..before + elements * element];
            before += region.len();
            let end = |axis: usize| box_start[axis] + box_shape[axis];
            if (0..box_shape.len()).any(|axis| end(axis) > of.spec.shape[axis]) {
                region.fill(0); // the memory was used before, and no chunk covers the elements beyond the array
            }
            for piece in block.pieces.iter().filter(|piece| piece.column == column) {
                let start: Vec<usize> = piece.at.iter().zip(&of.chunk_shape).map(|(at, side)| at * side).collect();
                let shape = of.shape_of(&start);
                let common: Vec<Range<usize>> = (0..shape.len())
                    .map(|axis| {
                        let last = (start[axis] + shape[axis]).min(of.spec.shape[axis]).min(end(axis));
                        start[axis].max(box_start[axis])..last
                    })
                    .collect();
                let extent: Vec<usize> = common.iter().map(ExactSizeIterator::len).collect();
                let within = |start: &[usize]| -> Vec<usize> {
                    common.iter().zip(start).map(|(common, start)| common.start - start).collect()
                };
                let (from, to) = (within(&start), within(&box_start));
                let Some(lies) = &piece.stored else {
                    each_run(&extent, (&box_shape, &to), (&box_shape, &to), element, |_, to, len| {
                        region[to..to + len].chunks_exact_mut(element).for_each(|one| one.copy_from_slice(&of.fill));
                    });
                    continue;
                };
                let place = || format!("{} chunk {:?} of `{}`", name(lies.object), piece.at, of.name);
                let len = lies.range.len as usize;
                let Some(bytes) = stored.get(at..at + len) else {
                    return Err(Error::bug(format!("the block's stored bytes end inside {}", place())));
                };
                at += len;
                let steps = lies.steps.as_deref().unwrap_or(&of.steps);
                let size = shape.iter().product::<usize>() * element;
                // A chunk whose elements are contiguous in the box is decoded without a buffer.
                if extent == shape && shape[1..] == box_shape[1..] {
                    let to = to[0] * box_shape[1..].iter().product::<usize>() * element;
                    decode_into(steps, bytes, &mut region[to..to + size], &place())?;
                    continue;
                }
                room.resize(size, 0);
                decode_into(steps, bytes, &mut room, &place())?;
                each_run(&extent, (&shape, &from), (&box_shape, &to), element, |from, to, len| {
                    region[to..to + len].copy_from_slice(&room[from..from + len]);
                });
            }
        }
        Ok(())
    }

    /// Number of a patch along each axis, from its index in its block.
    fn patch_numbers(numbers: &[Range<usize>], record: u64) -> Vec<usize> {
        let (mut rest, mut found) = (record as usize, vec![0; numbers.len()]);
        for (axis, range) in numbers.iter().enumerate().rev() {
            found[axis] = range.start + rest % range.len();
            rest /= range.len();
        }
        found
    }

    /// Index in the array of a patch's first element, and the number of the file.
    pub(crate) fn origin(&self, block: u64, record: u64) -> (Vec<i64>, i64) {
        let block = &self.blocks[block as usize];
        let (Extent::Patches { numbers, .. }, Some(spec)) = (&block.extent, &self.patches) else {
            return (Vec::new(), 0);
        };
        let start = Self::patch_numbers(numbers, record).into_iter().zip(&spec.stride);
        (start.map(|(number, stride)| (number * stride) as i64).collect(), block.layout as i64)
    }
}

impl Column {
    /// Shape of the chunk that starts at `start`.
    fn shape_of(&self, start: &[usize]) -> Vec<usize> {
        let side = |axis: usize| match self.flat {
            Some(_) => self.chunk_shape[axis].min(self.spec.shape[axis] - start[axis]),
            None => self.chunk_shape[axis],
        };
        (0..start.len()).map(side).collect()
    }

    /// Byte range of chunk `at` of an array of contiguous rows. The array's elements start at `offset`.
    fn flat_range(&self, at: &[usize], offset: u64) -> ByteRange {
        let start: Vec<usize> = at.iter().zip(&self.chunk_shape).map(|(at, side)| at * side).collect();
        let element = self.spec.dtype.size() as u64;
        let first = start.iter().zip(&self.spec.shape).fold(0, |at, (&start, &side)| at * side as u64 + start as u64);
        let count: u64 = self.shape_of(&start).iter().map(|&side| side as u64).product();
        ByteRange::new(offset + first * element, count * element)
    }
}
