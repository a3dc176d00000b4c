// SPDX-License-Identifier: Apache-2.0
//! Bindings for seismic volumes: reads SEG-Y traces and boxes of chunked arrays into NumPy memory, and writes Zarr
//! objects and SEG-Y traces.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_array::segy::{Overrides, SampleFormat, SegyReader, TraceBuffers, Traces};
use penstock_array::{ChunkedArray, FetchStats, MergePolicy, OutBuffer, Region, StridedBytes, ZarrWriter};
use penstock_store::{ObjectRef, ObjectWriter, Opened, Precondition, PutOptions, StoreSettings, Version, open};
use penstock_types::{Deadline, Error, Key, Result, Scheme, Url, duration, lock};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::raise;
use crate::runtime::{enter, enter_async, runtime};

/// Opens the folder of a URL. Also returns the merge policy for reads from this folder (local or remote).
fn opened(url: &str, env: &HashMap<String, String>) -> Result<(Opened, MergePolicy)> {
    let url: Url = url.parse()?;
    let policy = if url.scheme == Scheme::File { MergePolicy::LOCAL } else { MergePolicy::REMOTE };
    Ok((open(&url.as_folder(), &StoreSettings::from_env(env)?, Default::default())?, policy))
}

/// A contiguous byte buffer of a Python object. The buffer stays exported while this value exists, so its memory stays
/// valid.
pub(crate) struct Memory {
    /// Keeps the memory behind `start` valid.
    _buffer: PyBuffer<u8>,
    start: *mut u8,
    len: usize,
}

// SAFETY: `_buffer` keeps the memory valid, and the Python caller does not use the memory during the call.
unsafe impl Send for Memory {}
// SAFETY: as for `Send`.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) fn of(value: &Bound<'_, PyAny>, is_written: bool) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(value)?;
        if !buffer.is_c_contiguous() || is_written && buffer.readonly() {
            return Err(PyBufferError::new_err(
                "the buffer must be contiguous; an output buffer must also be writable",
            ));
        }
        let (start, len) = (buffer.buf_ptr().cast(), buffer.len_bytes());
        Ok(Self { _buffer: buffer, start, len })
    }

    pub(crate) fn slice(&self) -> &[u8] {
        match self.len {
            0 => &[],
            // SAFETY: `self._buffer` keeps these `len` bytes valid.
            len => unsafe { std::slice::from_raw_parts(self.start, len) },
        }
    }

    /// Returns the writable memory that a read will fill.
    fn out(&mut self) -> OutBuffer<'_> {
        match self.len {
            0 => OutBuffer::new(&mut []),
            // SAFETY: `self._buffer` keeps the memory valid and writable. The caller does not use the memory during the
            // call.
            len => OutBuffer::new(unsafe { std::slice::from_raw_parts_mut(self.start, len) }),
        }
    }
}

fn stats_of<'py>(py: Python<'py>, stats: &FetchStats) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    let value = |number: &AtomicU64| number.load(Ordering::Relaxed);
    found.set_item("requests", value(&stats.requests))?;
    found.set_item("bytes_read", value(&stats.bytes_read))?;
    found.set_item("bytes_needed", value(&stats.bytes_needed))?;
    found.set_item("bytes_returned", value(&stats.bytes_returned))?;
    found.set_item("in_flight", value(&stats.in_flight))?;
    found.set_item("max_in_flight", value(&stats.max_in_flight))?;
    Ok(found)
}

/// Serializes the IBM words that float32 cannot represent. Each entry is trace (8 bytes), sample (8 bytes) and IBM word
/// (4 bytes), all little-endian.
fn packed(exceptions: &[(u64, u64, u32)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 * exceptions.len());
    for (trace, sample, word) in exceptions {
        bytes.extend_from_slice(&trace.to_le_bytes());
        bytes.extend_from_slice(&sample.to_le_bytes());
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// An open SEG-Y file.
#[pyclass(name = "SegyFile", module = "penstock._native", frozen)]
pub struct PySegyFile {
    reader: Arc<SegyReader>,
    deadline: Duration,
}

#[pymethods]
impl PySegyFile {
    #[new]
    #[pyo3(signature = (folder, name, env, *, overrides="{}", timeout_s=600.0))]
    fn new(
        py: Python<'_>,
        folder: &str,
        name: &[u8],
        env: HashMap<String, String>,
        overrides: &str,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let (opened, policy, deadline, overrides) = enter(py, || {
            let overrides: Overrides =
                serde_json::from_str(overrides).map_err(|problem| Error::config("overrides", problem.to_string()))?;
            let (opened, policy) = opened(folder, &env)?;
            Ok((opened, policy, duration("timeout_s", timeout_s)?, overrides))
        })?;
        let key = opened.prefix.join(name);
        let reader = enter_async(py, async move {
            SegyReader::open(opened.store, key, policy, &overrides, Deadline::within(deadline)).await
        })?;
        Ok(Self { reader: Arc::new(reader), deadline })
    }

    /// Returns the layout of the file, as JSON.
    fn layout(&self, py: Python<'_>) -> PyResult<String> {
        serde_json::to_string(self.reader.layout()).map_err(|problem| raise(py, Error::bug(problem.to_string())))
    }

    #[getter]
    fn version(&self) -> Option<String> {
        self.reader.version().map(str::to_owned)
    }

    /// Reads `count` bytes from `start`, or fewer if the file ends earlier.
    fn read_bytes<'py>(&self, py: Python<'py>, start: u64, count: u64) -> PyResult<Bound<'py, PyBytes>> {
        let (reader, deadline) = (self.reader.clone(), Deadline::within(self.deadline));
        let found = enter_async(py, async move { reader.bytes(start, count, deadline).await })?;
        Ok(PyBytes::new(py, &found))
    }

    /// Reads the headers of `traces` (u64) and the samples `first..end` of these traces into the buffers. Returns the
    /// serialized IBM words that float32 cannot represent.
    #[pyo3(signature = (traces, *, headers=None, samples=None, first=0, end=0, threads=1))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn read<'py>(
        &self,
        py: Python<'py>,
        traces: &Bound<'py, PyAny>,
        headers: Option<&Bound<'py, PyAny>>,
        samples: Option<&Bound<'py, PyAny>>,
        first: u64,
        end: u64,
        threads: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let traces = PyBuffer::<u64>::get(traces)?.to_vec(py)?;
        let mut headers = headers.map(|value| Memory::of(value, true)).transpose()?;
        let mut samples = samples.map(|value| Memory::of(value, true)).transpose()?;
        let out = enter(py, || {
            let out =
                TraceBuffers { headers: headers.as_mut().map(Memory::out), samples: samples.as_mut().map(Memory::out) };
            let deadline = Deadline::within(self.deadline);
            let exceptions = self.reader.read_traces(&runtime(), &traces, first..end, out, threads, deadline)?;
            Ok(packed(&exceptions))
        });
        Ok(PyBytes::new(py, &out?))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats_of(py, &self.reader.stats)
    }
}

/// A chunked array that is open for reading.
#[pyclass(name = "ChunkedArray", module = "penstock._native", frozen)]
pub struct PyChunkedArray {
    array: ChunkedArray,
    deadline: Duration,
}

#[pymethods]
impl PyChunkedArray {
    /// Opens the Zarr array in the folder `url`, with the given metadata.
    #[staticmethod]
    #[pyo3(signature = (url, metadata, env, *, timeout_s=600.0))]
    fn zarr(
        py: Python<'_>,
        url: &str,
        metadata: Vec<u8>,
        env: HashMap<String, String>,
        timeout_s: f64,
    ) -> PyResult<Self> {
        let (opened, policy, deadline) = enter(py, || {
            let (opened, policy) = opened(url, &env)?;
            Ok((opened, policy, duration("timeout_s", timeout_s)?))
        })?;
        let array = enter_async(py, async move {
            ChunkedArray::open_zarr(opened, &metadata, policy, Deadline::within(deadline)).await
        })?;
        Ok(Self { array, deadline })
    }

    /// Opens a dataset of the HDF5 file `name` in `folder`. `described` is the JSON that `penstock.feed.hdf5_chunks`
    /// produced.
    #[staticmethod]
    #[pyo3(signature = (folder, name, size, version, dataset, env, *, timeout_s=600.0))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn hdf5(
        py: Python<'_>,
        folder: &str,
        name: &[u8],
        size: u64,
        version: Option<String>,
        dataset: &str,
        env: HashMap<String, String>,
        timeout_s: f64,
    ) -> PyResult<Self> {
        enter(py, || {
            let (opened, policy) = opened(folder, &env)?;
            let object = ObjectRef { key: opened.prefix.join(name), version: version.map(Version) };
            let array = ChunkedArray::open_hdf5(opened, object, size, dataset, policy)?;
            Ok(Self { array, deadline: duration("timeout_s", timeout_s)? })
        })
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.array.dtype().name()
    }

    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.array.shape().to_vec()
    }

    #[getter]
    fn chunk_shape(&self) -> Vec<usize> {
        self.array.chunk_shape().to_vec()
    }

    /// Reads boxes into `out`, one box after another. Each box is a list of (start, end) pairs, one pair per axis.
    #[pyo3(signature = (boxes, out, *, threads=1))]
    fn read_many(
        &self,
        py: Python<'_>,
        boxes: Vec<Vec<(usize, usize)>>,
        out: &Bound<'_, PyAny>,
        threads: usize,
    ) -> PyResult<()> {
        let boxes: Vec<Region> =
            boxes.into_iter().map(|sides| Region(sides.into_iter().map(|(start, end)| start..end).collect())).collect();
        let mut out = Memory::of(out, true)?;
        enter(py, || self.array.read_many(&runtime(), &boxes, out.out(), threads, Deadline::within(self.deadline)))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        stats_of(py, &self.array.stats)
    }
}

/// Writes the objects (chunks or shards) of one Zarr array.
#[pyclass(name = "ZarrWriter", module = "penstock._native", frozen)]
pub struct PyZarrWriter {
    writer: ZarrWriter,
    deadline: Duration,
}

#[pymethods]
impl PyZarrWriter {
    #[new]
    #[pyo3(signature = (url, metadata, env, *, timeout_s=600.0))]
    fn new(py: Python<'_>, url: &str, metadata: &str, env: HashMap<String, String>, timeout_s: f64) -> PyResult<Self> {
        enter(py, || {
            let (opened, _) = opened(url, &env)?;
            Ok(Self { writer: ZarrWriter::new(opened, metadata)?, deadline: duration("timeout_s", timeout_s)? })
        })
    }

    /// Returns the key of an object, relative to the array.
    fn key(&self, cell: Vec<u64>) -> String {
        self.writer.key(&cell)
    }

    /// Encodes a chunk or shard and writes it as an object. At the array's edge, `data` may be only the part within the
    /// array. The last axis of `data` must be contiguous. Returns the object's size; 0 if all values are the fill
    /// value.
    #[pyo3(signature = (cell, data, *, threads=1))]
    fn write(&self, py: Python<'_>, cell: Vec<u64>, data: &Bound<'_, PyAny>, threads: usize) -> PyResult<u64> {
        let buffer = PyBuffer::<u8>::get(data)?;
        // SAFETY: the buffer outlives the box. The caller in Python does not write to the buffer during the call.
        let data = unsafe { StridedBytes::new(buffer.buf_ptr().cast(), buffer.shape(), buffer.strides()) };
        let data = data.map_err(|error| raise(py, error))?;
        enter(py, || {
            let Some(stored) = self.writer.encode(&cell, &data, threads)? else { return Ok(0) };
            runtime().block_on(self.writer.put(&cell, stored, Deadline::within(self.deadline)))
        })
    }
}

/// Writes one object, from its first byte to its last.
#[pyclass(name = "ObjectWriter", module = "penstock._native", frozen)]
pub struct PyObjectWriter(Mutex<Option<ObjectWriter>>);

#[pymethods]
impl PyObjectWriter {
    #[new]
    #[pyo3(signature = (folder, name, size, env, *, create_only=false, timeout_s=600.0))]
    fn new(
        py: Python<'_>,
        folder: &str,
        name: &[u8],
        size: u64,
        env: HashMap<String, String>,
        create_only: bool,
        timeout_s: f64,
    ) -> PyResult<Self> {
        enter(py, || {
            let (opened, _) = opened(folder, &env)?;
            let key: Key = opened.prefix.join(name);
            let precondition = if create_only { Precondition::Absent } else { Precondition::None };
            let options = PutOptions { precondition, ..PutOptions::default() };
            let deadline = Deadline::within(duration("timeout_s", timeout_s)?);
            Ok(Self(Mutex::new(Some(ObjectWriter::new(opened.store, key, size, options, deadline)))))
        })
    }

    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let memory = Memory::of(data, false)?;
        enter(py, || {
            let mut slot = lock(&self.0);
            let writer = slot.as_mut().ok_or_else(|| Error::bug("the writer is closed"))?;
            let _guard = runtime().enter();
            runtime().block_on(writer.write(memory.slice()))
        })
    }

    /// Completes the object.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let writer = lock(&self.0).take().ok_or_else(|| raise(py, Error::bug("the writer is closed")))?;
        enter_async(py, async move { writer.finish().await.map(|_| ()) })
    }

    /// Aborts the upload and discards the written bytes.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        match lock(&self.0).take() {
            Some(writer) => enter_async(py, async move {
                writer.abort().await;
                Ok(())
            }),
            None => Ok(()),
        }
    }
}

/// Combines `headers` (`header_bytes` per trace) and `samples` into traces of this format.
fn traces<'a>(
    code: u16,
    byte_order: &str,
    headers: &'a Memory,
    samples: &'a Memory,
    header_bytes: usize,
) -> Result<Traces<'a>> {
    let format = SampleFormat::of_code(code)
        .ok_or_else(|| Error::config("format", format!("sample format code {code} is unknown or not supported")))?;
    let byte_order = serde_json::from_value(serde_json::Value::from(byte_order))
        .map_err(|problem| Error::config("byte_order", problem.to_string()))?;
    let traces = Traces { format, byte_order, headers: headers.slice(), header_bytes, samples: samples.slice() };
    let count = traces.count();
    let element = format.dtype().size();
    if headers.len != count * header_bytes || !samples.len.is_multiple_of(count.max(1) * element) {
        let text = format!(
            "{} bytes of headers and {} bytes of samples do not match {count} traces",
            headers.len, samples.len
        );
        return Err(Error::bug(text));
    }
    Ok(traces)
}

/// Encodes traces for a SEG-Y file into `out`. Each trace is a header of `header_bytes`, then its samples in the
/// element type of the format.
#[pyfunction]
#[pyo3(signature = (code, byte_order, headers, samples, out, *, header_bytes=240))]
pub fn encode_traces(
    py: Python<'_>,
    code: u16,
    byte_order: &str,
    headers: &Bound<'_, PyAny>,
    samples: &Bound<'_, PyAny>,
    out: &Bound<'_, PyAny>,
    header_bytes: usize,
) -> PyResult<()> {
    let (headers, samples) = (Memory::of(headers, false)?, Memory::of(samples, false)?);
    let mut out = Memory::of(out, true)?;
    enter(py, || {
        let traces = traces(code, byte_order, &headers, &samples, header_bytes)?;
        let (count, size) = (traces.count(), traces.trace_bytes());
        if out.len != count * size {
            return Err(Error::bug(format!("the output has {} bytes for {count} traces of {size} bytes", out.len)));
        }
        let all = out.out();
        (0..count).try_for_each(|trace| {
            // SAFETY: one thread writes all parts of the buffer.
            traces.encode(trace, unsafe { all.part(trace * size, size)? })
        })
    })
}

/// Encodes traces and writes each at its offset in the open file `fd`. Trace `i` of the call is trace `numbers[i]` of
/// the file.
#[pyfunction]
#[pyo3(signature = (fd, place, code, byte_order, headers, samples, numbers, *, first_trace, header_bytes=240))]
#[expect(clippy::too_many_arguments, reason = "a file, a layout and three arrays")]
pub fn write_traces(
    py: Python<'_>,
    fd: i32,
    place: &str,
    code: u16,
    byte_order: &str,
    headers: &Bound<'_, PyAny>,
    samples: &Bound<'_, PyAny>,
    numbers: &Bound<'_, PyAny>,
    first_trace: u64,
    header_bytes: usize,
) -> PyResult<()> {
    let (headers, samples) = (Memory::of(headers, false)?, Memory::of(samples, false)?);
    let numbers: Vec<i64> = PyBuffer::<i64>::get(numbers)?.to_vec(py)?;
    enter(py, || {
        let traces = traces(code, byte_order, &headers, &samples, header_bytes)?;
        // SAFETY: the caller keeps the descriptor open during the call.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let file = file.try_clone_to_owned().map_err(|error| Error::from_io(place, &error))?;
        traces.write_at(&File::from(file), place, first_trace, &numbers)
    })
}
