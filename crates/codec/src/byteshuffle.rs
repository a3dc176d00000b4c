// SPDX-License-Identifier: Apache-2.0
//! Byte shuffle (as in Blosc): groups byte k of all elements so that similar bytes are adjacent, and restores the
//! original order.

/// Number of elements processed at once. The output of one step stays in the cache.
const RUN: usize = 512;

/// Splits elements of `size` bytes into planes: the first byte of each element, then the second byte of each, and so
/// on. Trailing bytes that do not fill an element are copied unchanged. Both buffers have the same length.
pub fn shuffle(input: &[u8], out: &mut [u8], size: usize) {
    match size {
        0 | 1 => out.copy_from_slice(input),
        2 => taken_apart::<2>(input, out),
        4 => taken_apart::<4>(input, out),
        8 => taken_apart::<8>(input, out),
        _ => {
            let count = input.len() / size;
            for (at, element) in input.chunks_exact(size).enumerate() {
                for (byte, value) in element.iter().enumerate() {
                    out[byte * count + at] = *value;
                }
            }
            rest(input, out, count * size);
        }
    }
}

/// Joins planes into elements of `size` bytes. Trailing bytes that do not fill an element are copied unchanged. Both
/// buffers have the same length.
pub fn unshuffle(input: &[u8], out: &mut [u8], size: usize) {
    match size {
        0 | 1 => out.copy_from_slice(input),
        2 => put_together::<2>(input, out),
        4 => put_together::<4>(input, out),
        8 => put_together::<8>(input, out),
        _ => {
            let count = input.len() / size;
            for (at, element) in out.chunks_exact_mut(size).enumerate() {
                for (byte, slot) in element.iter_mut().enumerate() {
                    *slot = input[byte * count + at];
                }
            }
            rest(input, out, count * size);
        }
    }
}

fn rest(input: &[u8], out: &mut [u8], whole: usize) {
    out[whole..].copy_from_slice(&input[whole..]);
}

fn taken_apart<const N: usize>(input: &[u8], out: &mut [u8]) {
    let count = input.len() / N;
    for (run, elements) in input.as_chunks::<N>().0.chunks(RUN).enumerate() {
        for byte in 0..N {
            let plane = &mut out[byte * count + run * RUN..][..elements.len()];
            plane.iter_mut().zip(elements).for_each(|(slot, element)| *slot = element[byte]);
        }
    }
    rest(input, out, count * N);
}

/// Joins eight planes into eight-byte elements. The function is always inlined, so that it is compiled for the CPU
/// features of its caller.
#[inline(always)]
pub(crate) fn unshuffle_eight(input: &[u8], out: &mut [u8]) {
    put_together::<8>(input, out);
}

#[inline(always)]
fn put_together<const N: usize>(input: &[u8], out: &mut [u8]) {
    let count = input.len() / N;
    let planes: [&[u8]; N] = std::array::from_fn(|byte| &input[byte * count..][..count]);
    for (run, elements) in out[..count * N].as_chunks_mut::<N>().0.chunks_mut(RUN).enumerate() {
        let planes = planes.map(|plane| &plane[run * RUN..][..elements.len()]);
        for (at, element) in elements.iter_mut().enumerate() {
            *element = std::array::from_fn(|byte| planes[byte][at]);
        }
    }
    rest(input, out, count * N);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reference implementation without optimisation.
    fn naive(input: &[u8], size: usize) -> Vec<u8> {
        let count = input.len() / size;
        let mut out: Vec<u8> = (0..count * size).map(|at| input[at % count * size + at / count]).collect();
        out.extend_from_slice(&input[count * size..]);
        out
    }

    proptest! {
        #[test]
        fn prop_shuffle_is_the_naive_one_and_unshuffle_undoes_it(
            bytes in prop::collection::vec(any::<u8>(), 0..9000),
            size in prop::sample::select(vec![1usize, 2, 3, 4, 7, 8, 16]),
        ) {
            let mut out = vec![0xaa; bytes.len()];
            shuffle(&bytes, &mut out, size);
            prop_assert_eq!(&out, &naive(&bytes, size));
            let mut back = vec![0x55; bytes.len()];
            unshuffle(&out, &mut back, size);
            prop_assert_eq!(&back, &bytes);
        }
    }
}
