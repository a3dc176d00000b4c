// SPDX-License-Identifier: Apache-2.0
//! Strided box in the caller's memory, such as a NumPy slice: rows of contiguous bytes with constant strides.

use std::marker::PhantomData;

use penstock_types::{Error, Result};

/// A readable box of bytes. The last axis counts bytes and is contiguous; the other axes have strides.
#[derive(Debug)]
pub struct StridedBytes<'a> {
    start: *const u8,
    shape: Vec<usize>,
    strides: Vec<isize>,
    lifetime: PhantomData<&'a [u8]>,
}

// SAFETY: the bytes are only read, and the caller of `new` ensures that no thread writes them.
unsafe impl Send for StridedBytes<'_> {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for StridedBytes<'_> {}

impl<'a> StridedBytes<'a> {
    /// Creates a box whose element at `index` is at `start + index · strides`. Returns a `Bug` error if the
    /// last axis is not contiguous.
    ///
    /// # Safety
    /// All elements must be readable for `'a`, and no thread may write them during that time.
    pub unsafe fn new(start: *const u8, shape: &[usize], strides: &[isize]) -> Result<Self> {
        if shape.is_empty() || shape.len() != strides.len() || shape.last() > Some(&1) && strides.last() != Some(&1) {
            return Err(Error::bug(format!("a box of {shape:?} bytes with strides {strides:?}")));
        }
        Ok(Self { start, shape: shape.to_vec(), strides: strides.to_vec(), lifetime: PhantomData })
    }

    /// Shape of the box; the last axis counts bytes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the part of the box that begins at `start` and has at most the shape `sides`. The last axis counts
    /// bytes.
    pub fn part(&self, start: &[usize], sides: &[usize]) -> Result<StridedBytes<'a>> {
        if start.len() != self.shape.len() || sides.len() != self.shape.len() {
            return Err(Error::bug(format!("a part at {start:?} of a box of {:?}", self.shape)));
        }
        let start: Vec<usize> = start.iter().zip(&self.shape).map(|(&at, &side)| at.min(side)).collect();
        let shape = start.iter().zip(&self.shape).zip(sides).map(|((at, own), &side)| side.min(own - at)).collect();
        let offset: isize = start.iter().zip(&self.strides).map(|(&at, stride)| at as isize * stride).sum();
        // `wrapping_offset`, because the start of an empty part may be outside the memory.
        let first = self.start.wrapping_offset(offset);
        Ok(StridedBytes { start: first, shape, strides: self.strides.clone(), lifetime: PhantomData })
    }

    /// Returns the first axis from which the box is contiguous: this axis and all later axes form one piece.
    fn contiguous_from(&self) -> usize {
        let mut bytes = 1isize;
        let mut axis = self.shape.len();
        while axis > 0 && (self.shape[axis - 1] <= 1 || self.strides[axis - 1] == bytes) {
            bytes *= self.shape[axis - 1] as isize;
            axis -= 1;
        }
        axis
    }

    /// Returns all bytes if they are contiguous in C order.
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        let len: usize = self.shape.iter().product();
        if len == 0 {
            return Some(&[]);
        }
        // SAFETY: the caller of `new` ensures that these bytes are readable.
        (self.contiguous_from() == 0).then(|| unsafe { std::slice::from_raw_parts(self.start, len) })
    }

    /// Copies the box to the origin of `out`, an array of shape `out_shape` in C order. `out_shape` must be at least as
    /// large as the box along each axis.
    pub fn copy_into(&self, out: &mut [u8], out_shape: &[usize]) -> Result<()> {
        let axes = self.shape.len();
        let fits = out_shape.len() == axes && self.shape.iter().zip(out_shape).all(|(own, other)| own <= other);
        if !fits || out.len() != out_shape.iter().product::<usize>() {
            return Err(Error::bug(format!("a box of {:?} bytes does not fit into {out_shape:?}", self.shape)));
        }
        if self.shape.contains(&0) {
            return Ok(());
        }
        // Inner axes that are contiguous in the box and in `out` are copied as one piece.
        let from = self.contiguous_from();
        let mut inner = axes - 1;
        let mut piece = self.shape[inner];
        while inner > 0 && inner > from && self.shape[inner] == out_shape[inner] {
            inner -= 1;
            piece *= self.shape[inner];
        }
        let mut index = vec![0usize; inner];
        loop {
            let (mut offset, mut to) = (0isize, 0usize);
            for (axis, side) in out_shape.iter().enumerate() {
                let at = index.get(axis).copied().unwrap_or(0);
                offset += at as isize * self.strides[axis];
                to = to * side + at;
            }
            // SAFETY: the piece is within the box, which is readable, as the caller of `new` ensures.
            let bytes = unsafe { std::slice::from_raw_parts(self.start.offset(offset), piece) };
            out[to..to + piece].copy_from_slice(bytes);
            let Some(axis) = (0..inner).rev().find(|&axis| index[axis] + 1 < self.shape[axis]) else { return Ok(()) };
            index[axis] += 1;
            index[axis + 1..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_box_is_copied_to_the_origin(
            sides in prop::collection::vec((1usize..6, 0usize..4, 0usize..4), 1..4), is_whole: bool,
        ) {
            // Along each axis, the memory has `before` elements before the box and `after` elements after it.
            let whole: Vec<usize> = sides.iter().map(|(side, before, after)| side + before + after).collect();
            let shape: Vec<usize> = sides.iter().map(|(side, ..)| *side).collect();
            let strides: Vec<isize> = (0..whole.len()).map(|axis| whole[axis + 1..].iter().product::<usize>() as isize).collect();
            let memory: Vec<u8> = (0..whole.iter().product::<usize>()).map(|at| (at % 251) as u8).collect();
            let origin: isize = sides.iter().zip(&strides).map(|((_, before, _), stride)| *before as isize * stride).sum();
            let out_shape: Vec<usize> = if is_whole { shape.clone() } else { shape.iter().map(|side| side + 2).collect() };
            let mut out = vec![255; out_shape.iter().product()];
            // SAFETY: the box is within `memory`, which outlives it.
            let view = unsafe { StridedBytes::new(memory.as_ptr().offset(origin), &shape, &strides).unwrap() };
            view.copy_into(&mut out, &out_shape).unwrap();
            for (number, &found) in out.iter().enumerate() {
                let (mut rest, mut at, mut is_inside) = (number, 0isize, true);
                for axis in (0..shape.len()).rev() {
                    let index = rest % out_shape[axis];
                    rest /= out_shape[axis];
                    is_inside &= index < shape[axis];
                    at += index as isize * strides[axis];
                }
                prop_assert_eq!(found, if is_inside { memory[(origin + at) as usize] } else { 255 });
            }
            if let Some(slice) = view.as_slice() {
                prop_assert_eq!(slice.len(), shape.iter().product::<usize>());
                prop_assert_eq!(slice[0], memory[origin as usize]);
            }
        }
    }
}
