// SPDX-License-Identifier: Apache-2.0
//! Boxes of an array, and copying the part of a chunk that lies inside a box.

use std::ops::Range;

use penstock_types::{Error, Result};

use crate::OutBuffer;

/// A box: a range of each axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region(pub Vec<Range<usize>>);

impl Region {
    /// Shape of the box.
    pub fn shape(&self) -> Vec<usize> {
        self.0.iter().map(|range| range.len()).collect()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.0.iter().map(|range| range.len()).product()
    }

    /// Grid positions of the cells (each of shape `cell`) that intersect the box, in C order.
    pub fn cells(&self, cell: &[usize]) -> Vec<Vec<usize>> {
        if self.elements() == 0 {
            return Vec::new();
        }
        let spans: Vec<Range<usize>> =
            self.0.iter().zip(cell).map(|(range, &side)| range.start / side..range.end.div_ceil(side)).collect();
        let mut at: Vec<usize> = spans.iter().map(|span| span.start).collect();
        let mut cells = Vec::with_capacity(spans.iter().map(|span| span.len()).product());
        loop {
            cells.push(at.clone());
            let Some(axis) = (0..at.len()).rev().find(|&axis| at[axis] + 1 < spans[axis].end) else { return cells };
            at[axis] += 1;
            for later in axis + 1..at.len() {
                at[later] = spans[later].start;
            }
        }
    }

    /// Copies the intersection of this box and a cell into `out`. The cell is at grid position `cell`, has the shape
    /// `cell_shape`, and contains the elements `data`. In `out`, the box starts at byte `base` and is in C order.
    ///
    /// # Safety
    /// No other thread may write these elements of `out` during the call.
    pub unsafe fn copy_from_cell(
        &self,
        cell: &[usize],
        cell_shape: &[usize],
        element: usize,
        data: &[u8],
        out: OutBuffer<'_>,
        base: usize,
    ) -> Result<()> {
        let axes = self.0.len();
        if cell.len() != axes
            || cell_shape.len() != axes
            || data.len() != cell_shape.iter().product::<usize>() * element
        {
            return Err(Error::bug(format!("the chunk {cell:?} of shape {cell_shape:?} has {} bytes", data.len())));
        }
        if axes == 0 {
            // SAFETY: the caller ensures that no other thread writes these bytes.
            unsafe { out.part(base, element)? }.copy_from_slice(data);
            return Ok(());
        }
        // For each axis: start of the intersection within the cell, its start within the box, and its length.
        let mut common = Vec::with_capacity(axes);
        for (axis, range) in self.0.iter().enumerate() {
            let start = cell[axis] * cell_shape[axis];
            let (from, to) = (start.max(range.start), (start + cell_shape[axis]).min(range.end));
            if from >= to {
                return Ok(());
            }
            common.push((from - start, from - range.start, to - from));
        }
        let shape = self.shape();
        // Innermost axes are copied as one piece if the intersection covers them completely, in both the cell and the
        // box.
        let mut inner = axes - 1;
        let mut piece = common[inner].2 * element;
        while inner > 0 && common[inner].2 == cell_shape[inner] && common[inner].2 == shape[inner] {
            inner -= 1;
            piece *= common[inner].2;
        }
        let mut index = vec![0usize; inner];
        loop {
            let (mut from, mut to) = (0, 0);
            for axis in 0..axes {
                let step = index.get(axis).copied().unwrap_or(0);
                from = from * cell_shape[axis] + common[axis].0 + step;
                to = to * shape[axis] + common[axis].1 + step;
            }
            // SAFETY: the caller ensures that no other thread writes these bytes.
            unsafe { out.part(base + to * element, piece)? }.copy_from_slice(&data[from * element..][..piece]);
            let Some(axis) = (0..inner).rev().find(|&axis| index[axis] + 1 < common[axis].2) else { return Ok(()) };
            index[axis] += 1;
            index[axis + 1..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(shape: &[usize], cell_shape: &[usize], region: &Region) -> Vec<u8> {
        let mut out = vec![255; region.elements()];
        let shared = OutBuffer::new(&mut out);
        for cell in region.cells(cell_shape) {
            // An element's value is the sum of its coordinates, weighted by 1, 3 and 7, modulo 251.
            let data: Vec<u8> = Region(cell_shape.iter().map(|&side| 0..side).collect())
                .cells(&vec![1; shape.len()])
                .iter()
                .map(|at| {
                    value(
                        &at.iter().enumerate().map(|(axis, at)| cell[axis] * cell_shape[axis] + at).collect::<Vec<_>>(),
                    )
                })
                .collect();
            // SAFETY: only this thread writes.
            unsafe { region.copy_from_cell(&cell, cell_shape, 1, &data, shared, 0).unwrap() };
        }
        out
    }

    fn value(at: &[usize]) -> u8 {
        (at.iter().zip([1, 3, 7]).map(|(at, weight)| at * weight).sum::<usize>() % 251) as u8
    }

    proptest! {
        #[test]
        fn prop_region_of_cells_holds_each_element(
            sides in prop::collection::vec((1usize..12, 1usize..6, 0usize..12, 0usize..12), 1..4)
        ) {
            let shape: Vec<usize> = sides.iter().map(|side| side.0).collect();
            let cells: Vec<usize> = sides.iter().map(|side| side.1).collect();
            let region = Region(sides.iter().map(|&(side, _, a, b)| {
                let (a, b) = (a.min(side), b.min(side));
                a.min(b)..a.max(b)
            }).collect());
            let out = filled(&shape, &cells, &region);
            let want: Vec<u8> = region.cells(&vec![1; shape.len()]).iter().map(|at| value(at)).collect();
            prop_assert_eq!(out, want);
        }
    }
}
