// SPDX-License-Identifier: Apache-2.0
//! Bindings for the writer: encodes samples into a shard in memory, and collects statistics of the samples' values.

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use penstock_codec::{Codec, checksum, compress};
use penstock_dataset::record_offsets::log_entry;
use penstock_record::tar_writer::{END, write_member};
use penstock_record::tf_example::{FeatureValue, append_example};
use penstock_record::tfrecord::frame_in_place;
use penstock_record::value_stats::ValueStats;
use penstock_types::{DType, Error, Key, lock};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::array::Memory;
use crate::errors::raise;
use crate::runtime::enter;

/// Value of a feature. The variant keeps the value's memory valid.
enum Held<'py> {
    Bytes(Bound<'py, PyBytes>),
    List(Vec<Bound<'py, PyBytes>>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Elements(Memory, DType),
}

impl<'py> Held<'py> {
    /// Reads a value. `kind` is the kind that the writer chose for the value's field.
    fn of(kind: &str, value: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = value.py();
        Ok(match kind {
            "bytes" => Self::Bytes(value.cast::<PyBytes>()?.clone()),
            "bytes_list" => Self::List(value.extract()?),
            "int" => Self::Ints(vec![value.extract()?]),
            "float" => Self::Floats(vec![value.extract()?]),
            "ints" => Self::Ints(PyBuffer::<i64>::get(value)?.to_vec(py)?),
            "floats" => Self::Floats(PyBuffer::<f32>::get(value)?.to_vec(py)?),
            dtype => Self::Elements(Memory::of(value, false)?, dtype.parse().map_err(|error| raise(py, error))?),
        })
    }

    fn note(&self, stats: &mut FieldStats) {
        match self {
            Self::Bytes(value) => stats.sizes.add(value.as_bytes().len() as f64),
            Self::List(values) => {
                stats.sizes.add(values.iter().map(|value| value.as_bytes().len()).sum::<usize>() as f64)
            }
            Self::Ints(values) => {
                stats.sizes.add(8.0 * values.len() as f64);
                stats.values.add_ints(values);
            }
            Self::Floats(values) => {
                stats.sizes.add(4.0 * values.len() as f64);
                stats.values.add_floats(values);
            }
            Self::Elements(memory, dtype) => {
                stats.sizes.add(memory.slice().len() as f64);
                stats.values.add_elements(*dtype, memory.slice());
            }
        }
    }
}

#[derive(Default, Clone)]
struct FieldStats {
    /// Sizes of the samples' values in bytes.
    sizes: ValueStats,
    values: ValueStats,
}

/// Statistics as (count, number of NaNs, minimum, maximum, sum).
type PyStats = (u64, u64, f64, f64, f64);

fn as_tuple(stats: &ValueStats) -> PyStats {
    (stats.count, stats.nan, stats.min, stats.max, stats.sum)
}

/// Memory of stored shards, which later shards reuse. New memory would cost a page fault per 4 KiB.
#[pyclass(name = "ShardMemory", module = "penstock._native", frozen)]
#[derive(Default, Clone)]
pub struct PyShardMemory(Arc<Mutex<Vec<Vec<u8>>>>);

/// Maximum number of stored shards whose memory is kept for reuse.
const MAX_SPARE: usize = 2;

#[pymethods]
impl PyShardMemory {
    #[new]
    fn new() -> Self {
        Self::default()
    }
}

impl PyShardMemory {
    fn take(&self) -> Vec<u8> {
        lock(&self.0).pop().unwrap_or_default()
    }

    fn put(&self, mut bytes: Vec<u8>) {
        let mut spare = lock(&self.0);
        if spare.len() < MAX_SPARE && bytes.capacity() > 0 {
            bytes.clear();
            spare.push(bytes);
        }
    }
}

/// A shard in memory, to which samples are appended.
#[pyclass(name = "ShardBuffer", module = "penstock._native")]
pub struct PyShardBuffer {
    bytes: Vec<u8>,
    memory: PyShardMemory,
    is_tar: bool,
    /// Byte offset at which the last record starts.
    last: usize,
    records: u64,
    fields: Vec<FieldStats>,
}

#[pymethods]
impl PyShardBuffer {
    #[new]
    fn new(fields: usize, is_tar: bool, memory: &Bound<'_, PyShardMemory>) -> Self {
        let memory = memory.get().clone();
        let fields = vec![FieldStats::default(); fields];
        Self { bytes: memory.take(), memory, is_tar, last: 0, records: 0, fields }
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes.len()
    }

    #[getter]
    fn records(&self) -> u64 {
        self.records
    }

    /// Appends a TFRecord with a tf.Example of these features. A feature is (field, name, kind, value).
    fn add_example(&mut self, py: Python<'_>, features: &Bound<'_, PyList>) -> PyResult<()> {
        let mut held = Vec::with_capacity(features.len());
        for feature in features.iter() {
            let (field, name, kind, value): (usize, String, Bound<'_, PyAny>, Bound<'_, PyAny>) = feature.extract()?;
            let value = Held::of(kind.extract()?, &value)?;
            value.note(self.stats(py, field)?);
            held.push((name, value));
        }
        let lists: Vec<Vec<&[u8]>> = held
            .iter()
            .map(|(_, value)| match value {
                Held::List(values) => values.iter().map(|value| value.as_bytes()).collect(),
                _ => Vec::new(),
            })
            .collect();
        let features: Vec<_> = held
            .iter()
            .zip(&lists)
            .map(|((name, value), list)| {
                let value = match value {
                    Held::Bytes(value) => FeatureValue::Bytes(value.as_bytes()),
                    Held::List(_) => FeatureValue::BytesList(list),
                    Held::Ints(values) => FeatureValue::Ints(values),
                    Held::Floats(values) => FeatureValue::Floats(values),
                    Held::Elements(memory, _) => FeatureValue::Bytes(memory.slice()),
                };
                (name.as_str(), value)
            })
            .collect();
        self.last = self.bytes.len();
        let out = &mut self.bytes;
        py.detach(|| frame_in_place(out, |out| append_example(&features, out)));
        self.records += 1;
        Ok(())
    }

    /// Appends tar members, each given as (field, name, head, kind, value). The content of a member is the head and the
    /// value.
    fn add_members(&mut self, py: Python<'_>, members: &Bound<'_, PyList>) -> PyResult<()> {
        let start = self.bytes.len();
        for member in members.iter() {
            let (field, name, head, kind, value): (usize, String, Bound<'_, PyBytes>, String, Bound<'_, PyAny>) =
                member.extract()?;
            let value = Held::of(&kind, &value)?;
            value.note(self.stats(py, field)?);
            let content = match &value {
                Held::Bytes(value) => value.as_bytes(),
                Held::Elements(memory, _) => memory.slice(),
                _ => return Err(raise(py, Error::bug(format!("a tar member of kind {kind}")))),
            };
            let (head, out) = (head.as_bytes(), &mut self.bytes);
            enter(py, || write_member(&name, &[head, content], out))?;
        }
        self.last = start;
        self.records += 1;
        Ok(())
    }

    /// Adds a number to the statistics of a field whose values are stored as text.
    fn note(&mut self, py: Python<'_>, field: usize, value: f64) -> PyResult<()> {
        self.stats(py, field)?.values.add(value);
        Ok(())
    }

    /// CRC-32C of the last record in this buffer.
    fn last_crc32c(&self, py: Python<'_>) -> u32 {
        py.detach(|| checksum::crc32c(&self.bytes[self.last..]))
    }

    /// For each field, returns the statistics of its sizes and the statistics of its values.
    fn statistics(&self) -> Vec<(PyStats, PyStats)> {
        self.fields.iter().map(|field| (as_tuple(&field.sizes), as_tuple(&field.values))).collect()
    }

    /// Completes and compresses the shard, and empties this buffer. Returns the bytes to store.
    fn finish(&mut self, py: Python<'_>, codec: &str, level: Option<i32>) -> PyResult<PyShardBytes> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let (is_tar, memory) = (self.is_tar, self.memory.clone());
        enter(py, move || {
            let codec: Codec = codec.parse()?;
            if is_tar {
                bytes.extend_from_slice(&END);
            }
            let stored = match codec {
                Codec::None => bytes,
                _ => {
                    let stored = compress(codec, &bytes, level.unwrap_or_else(|| codec.default_level()))?;
                    memory.put(bytes);
                    stored
                }
            };
            let crc32c = checksum::crc32c(&stored);
            Ok(PyShardBytes { bytes: stored, memory: (codec == Codec::None).then_some(memory), crc32c })
        })
    }
}

impl PyShardBuffer {
    fn stats(&mut self, py: Python<'_>, field: usize) -> PyResult<&mut FieldStats> {
        self.fields.get_mut(field).ok_or_else(|| raise(py, Error::bug(format!("no field {field}"))))
    }
}

/// The stored bytes of a shard, readable through the buffer protocol.
#[pyclass(name = "ShardBytes", module = "penstock._native", frozen)]
pub struct PyShardBytes {
    bytes: Vec<u8>,
    /// Pool to which the memory of `bytes` returns. `None` for compressed bytes: their sizes differ too much to reuse
    /// the memory.
    memory: Option<PyShardMemory>,
    crc32c: u32,
}

impl Drop for PyShardBytes {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            memory.put(std::mem::take(&mut self.bytes));
        }
    }
}

#[pymethods]
impl PyShardBytes {
    #[getter]
    fn crc32c(&self) -> u32 {
        self.crc32c
    }

    fn __len__(&self) -> usize {
        self.bytes.len()
    }

    /// # Safety
    /// Python calls this method with a `view` to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let bytes = &slf.get().bytes;
        let (start, len) = (bytes.as_ptr().cast::<c_void>().cast_mut(), bytes.len() as isize);
        // SAFETY: the bytes are never changed, and live as long as `slf`, which the view keeps alive.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::take(slf.py()).unwrap_or_else(|| PyBufferError::new_err("the bytes are read-only"))),
        }
    }
}

/// Encodes one tar member.
#[pyfunction]
pub fn tar_member<'py>(py: Python<'py>, name: &str, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    enter(py, || write_member(name, &[data], &mut out))?;
    Ok(PyBytes::new(py, &out))
}

/// Returns the entry for a file in the log of record offsets. With this entry, a reader can read single records by
/// range without a scan. The result is empty if the file is compressed or its format has no record offsets.
#[pyfunction]
pub fn record_offsets<'py>(py: Python<'py>, path: PathBuf, name: &str) -> Bound<'py, PyBytes> {
    let key = Key::from(name);
    let entry = py.detach(|| log_entry(&path, &key));
    PyBytes::new(py, &entry.unwrap_or_default())
}
