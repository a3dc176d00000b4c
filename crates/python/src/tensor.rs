// SPDX-License-Identifier: Apache-2.0
//! Columns of a batch for Python. A column shares its memory through the buffer protocol and DLPack.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use penstock_feed::{Column, CudaDevice, Tensor};
use penstock_types::{DType, Error};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::dlpack;
use crate::errors::raise;
use crate::runtime::enter;

/// One fixed-shape field of a batch, shared through the buffer protocol and DLPack.
#[pyclass(name = "Tensor", module = "penstock._native", frozen)]
pub struct PyTensor(Tensor);

/// Shape and strides that a `Py_buffer` points to.
struct View {
    shape: Vec<isize>,
    strides: Vec<isize>,
}

#[pymethods]
impl PyTensor {
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.0.dtype.name()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.0.size_bytes()
    }

    fn __len__(&self) -> usize {
        self.0.shape[0]
    }

    fn __repr__(&self) -> String {
        format!("Tensor({}, {:?})", self.0.dtype.name(), self.0.shape)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        stream: Option<Bound<'_, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("stream must be None for a CPU tensor"));
        }
        if dl_device.is_some_and(|device| device != (dlpack::CPU, 0)) || copy == Some(true) {
            return Err(PyBufferError::new_err("only an export of CPU memory without a copy is supported"));
        }
        dlpack::export(py, &self.0, max_version)
    }

    /// # Safety
    /// Python calls this method with a `view` to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("Python passed no view to fill"));
        }
        let tensor = &slf.get().0;
        let size = tensor.dtype.size() as isize;
        let (shape, strides) = dlpack::sides(tensor);
        let mut arrays = Box::new(View {
            shape: shape.iter().map(|&side| side as isize).collect(),
            strides: strides.iter().map(|&stride| stride as isize * size).collect(),
        });
        let format = match tensor.dtype {
            DType::Bool => c"?",
            DType::U8 => c"B",
            DType::I8 => c"b",
            DType::U16 => c"H",
            DType::I16 => c"h",
            DType::U32 => c"I",
            DType::I32 => c"i",
            DType::U64 => c"Q",
            DType::I64 => c"q",
            DType::F16 => c"e",
            DType::F32 => c"f",
            DType::F64 => c"d",
        };
        let asked = |flag: c_int| flags & flag == flag;
        // SAFETY: Python passed a view to fill. The pointers in the view refer to `arrays` (freed on release) or to the
        // tensor, which `obj` keeps alive.
        unsafe {
            (*view).buf = tensor.start().as_ptr().cast();
            (*view).len = tensor.size_bytes() as isize;
            (*view).readonly = 0;
            (*view).itemsize = size;
            (*view).format = if asked(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*view).ndim = if asked(ffi::PyBUF_ND) { arrays.shape.len() as c_int } else { 1 };
            (*view).shape = if asked(ffi::PyBUF_ND) { arrays.shape.as_mut_ptr() } else { std::ptr::null_mut() };
            (*view).strides =
                if asked(ffi::PyBUF_STRIDES) { arrays.strides.as_mut_ptr() } else { std::ptr::null_mut() };
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = Box::into_raw(arrays).cast::<c_void>();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    /// # Safety
    /// Python calls this method with a `view` that `__getbuffer__` filled.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `internal` is the box that `__getbuffer__` leaked into this view.
        drop(unsafe { Box::from_raw((*view).internal.cast::<View>()) });
    }
}

/// A field of variable length in a batch.
#[pyclass(name = "RaggedTensor", module = "penstock._native", frozen)]
pub struct PyRagged {
    values: Tensor,
    offsets: Vec<Tensor>,
    #[pyo3(get)]
    is_bytes: bool,
    #[pyo3(get)]
    is_text: bool,
}

#[pymethods]
impl PyRagged {
    #[getter]
    fn values(&self) -> PyTensor {
        PyTensor(self.values.clone())
    }

    #[getter]
    fn offsets(&self) -> Vec<PyTensor> {
        self.offsets.iter().cloned().map(PyTensor).collect()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.values.size_bytes() + self.offsets.iter().map(Tensor::size_bytes).sum::<usize>()
    }

    fn __len__(&self) -> usize {
        self.offsets.first().map_or(0, |offsets| offsets.shape[0] - 1)
    }

    /// The rows of a text field as `str`. For lists of texts, returns all texts of all lists, concatenated.
    fn texts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        // The GIL is held, so that no Python thread writes to the values meanwhile.
        let texts = self
            .strings()
            .ok_or_else(|| raise(py, Error::bug("a column is not text, or its memory was overwritten")))?;
        PyList::new(py, texts)
    }
}

impl PyRagged {
    /// The texts of a text field or of a field of text lists; `None` for other columns.
    fn strings(&self) -> Option<Vec<&str>> {
        fn bytes(tensor: &Tensor) -> &[u8] {
            // SAFETY: the memory belongs to the tensor and has this size, and the caller holds the GIL.
            unsafe { std::slice::from_raw_parts(tensor.start().as_ptr(), tensor.size_bytes()) }
        }
        let values = std::str::from_utf8(bytes(&self.values)).ok().filter(|_| self.is_text)?;
        let ends = bytes(self.offsets.last()?).as_chunks::<8>().0.iter().map(|end| i64::from_le_bytes(*end) as usize);
        let ends: Vec<usize> = ends.collect();
        ends.windows(2).map(|row| values.get(row[0]..row[1])).collect()
    }
}

/// A CUDA device. Batch memory is registered with it once, so that copies to the device are fast.
#[pyclass(name = "CudaDevice", module = "penstock._native", frozen)]
pub struct PyCudaDevice(Arc<CudaDevice>);

#[pymethods]
impl PyCudaDevice {
    #[new]
    fn new(py: Python<'_>, number: u32) -> PyResult<Self> {
        enter(py, || CudaDevice::open(number)).map(Self)
    }

    fn hold(&self, py: Python<'_>, tensor: &PyTensor) -> PyResult<bool> {
        enter(py, || self.0.hold(&tensor.0))
    }
}

/// Adds a column to `dict` under the name of its field. The mask of a padded field follows under its own name.
pub(crate) fn set_column(dict: &Bound<'_, PyDict>, name: &str, column: Column) -> PyResult<()> {
    match column {
        Column::Tensor(tensor) => dict.set_item(name, PyTensor(tensor)),
        Column::Ragged { values, offsets, is_bytes, is_text } => {
            dict.set_item(name, PyRagged { values, offsets, is_bytes, is_text })
        }
        Column::Padded { values, mask } => {
            dict.set_item(name, PyTensor(values))?;
            mask.map_or(Ok(()), |(name, mask)| dict.set_item(name, PyTensor(mask)))
        }
    }
}
