// SPDX-License-Identifier: Apache-2.0
//! Binding of the byte-level BPE tokenizers that the core supports.

use std::sync::Mutex;

use penstock_record::byte_pairs::{BytePairs, WordCache};
use penstock_types::lock;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::array::Memory;

/// Tokens of all texts, number of tokens of each text, and indices of the texts that the caller must encode.
type PyEncoded<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<usize>);

/// A byte-level BPE tokenizer.
#[pyclass(name = "BytePairs", module = "penstock._native", frozen)]
pub struct PyBytePairs {
    pairs: BytePairs,
    /// Word caches that no thread is using now.
    caches: Mutex<Vec<WordCache>>,
}

/// Encoded texts: the tokens of all texts, the number of tokens of each text, and the indices of the texts that the
/// caller must encode.
#[derive(Default)]
struct Encoded {
    tokens: Vec<u32>,
    lengths: Vec<u32>,
    left: Vec<usize>,
}

#[pymethods]
impl PyBytePairs {
    /// Reads a tokenizer from its JSON. Returns None if the core does not support all steps of the tokenizer.
    #[staticmethod]
    fn of_json(py: Python<'_>, json: &str) -> Option<Self> {
        py.detach(|| Some(Self { pairs: BytePairs::of_json(json)?, caches: Mutex::default() }))
    }

    /// Encodes UTF-8 texts. `offsets` are the bounds of the texts in `values`. The tokens `before` and `after` are
    /// added to each text. Returns the tokens of all texts and the number of tokens of each text, as uint32. Also
    /// returns the indices of the texts that the caller must encode; these texts have no tokens in the result.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        offsets: &Bound<'py, PyAny>,
        before: Vec<u32>,
        after: Vec<u32>,
        threads: usize,
    ) -> PyResult<PyEncoded<'py>> {
        let (values, offsets) = (Memory::of(values, false)?, PyBuffer::<i64>::get(offsets)?.to_vec(py)?);
        let texts: Option<Vec<&[u8]>> =
            offsets.windows(2).map(|bounds| values.slice().get(bounds[0] as usize..bounds[1] as usize)).collect();
        let texts = texts.ok_or_else(|| {
            PyValueError::new_err("offsets must be ascending and must not exceed the length of values")
        })?;
        let found = py.detach(|| self.encode_in_threads(&texts, &before, &after, threads));
        let tokens = packed(py, found.iter().flat_map(|part| &part.tokens))?;
        let lengths = packed(py, found.iter().flat_map(|part| &part.lengths))?;
        let left = found.iter().flat_map(|part| part.left.iter().copied()).collect();
        Ok((tokens, lengths, left))
    }
}

/// Copies numbers to little-endian bytes.
fn packed<'py, 'n>(py: Python<'py>, numbers: impl Iterator<Item = &'n u32> + Clone) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, 4 * numbers.clone().count(), |out| {
        for (to, number) in out.chunks_exact_mut(4).zip(numbers) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        Ok(())
    })
}

impl PyBytePairs {
    fn encode_in_threads(&self, texts: &[&[u8]], before: &[u32], after: &[u32], threads: usize) -> Vec<Encoded> {
        let total: usize = texts.iter().map(|text| text.len()).sum();
        let each = total.div_ceil(threads.max(1)).max(MIN_THREAD_BYTES);
        let (mut starts, mut filled) = (vec![0], 0);
        for (at, text) in texts.iter().enumerate() {
            if filled >= each {
                starts.push(at);
                filled = 0;
            }
            filled += text.len();
        }
        let end_of = |part: usize| starts.get(part + 1).copied().unwrap_or(texts.len());
        let encode = |part: usize| self.encode_part(texts, starts[part]..end_of(part), before, after);
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..starts.len()).map(|part| scope.spawn(move || encode(part))).collect();
            let mut found = vec![encode(0)];
            found.extend(others.into_iter().map(|other| other.join().unwrap_or_else(|p| std::panic::resume_unwind(p))));
            found
        })
    }

    fn encode_part(&self, texts: &[&[u8]], part: std::ops::Range<usize>, before: &[u32], after: &[u32]) -> Encoded {
        let mut cache = lock(&self.caches).pop().unwrap_or_default();
        let mut found = Encoded::default();
        for number in part {
            let start = found.tokens.len();
            found.tokens.extend_from_slice(before);
            if self.pairs.encode(texts[number], &mut cache, &mut found.tokens) {
                found.tokens.extend_from_slice(after);
            } else {
                found.tokens.truncate(start);
                found.left.push(number);
            }
            found.lengths.push((found.tokens.len() - start) as u32);
        }
        lock(&self.caches).push(cache);
        found
    }
}

/// Minimum number of bytes that a thread encodes. Starting a thread takes about 20 µs.
const MIN_THREAD_BYTES: usize = 32 << 10;
