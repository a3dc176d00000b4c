// SPDX-License-Identifier: Apache-2.0
//! DLPack export: the C structures of its header (v1.1), in the unversioned and the versioned form, and capsules that
//! own a tensor.

use std::ffi::{CStr, c_void};

use penstock_feed::Tensor;
use penstock_types::DType;
use pyo3::ffi;
use pyo3::prelude::*;

/// Device type `kDLCPU`. Pinned memory is also exported as CPU memory, because JAX rejects `kDLCUDAHost` (jax#22346).
pub const CPU: i32 = 1;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// Allocation behind a capsule: the C structure, the shape and strides that it points to, and a reference to the
/// tensor.
struct Owner<M> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _tensor: Tensor,
}

fn described(tensor: &Tensor, shape: &mut [i64], strides: &mut [i64]) -> DlTensor {
    let code = match tensor.dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::Bool => 6,
    };
    DlTensor {
        data: tensor.start().as_ptr().cast(),
        device: Device { kind: CPU, id: 0 },
        ndim: shape.len() as i32,
        dtype: DataType { code, bits: 8 * tensor.dtype.size() as u8, lanes: 1 },
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

/// Shape and strides (in elements) of a tensor in C order.
pub fn sides(tensor: &Tensor) -> (Vec<i64>, Vec<i64>) {
    let shape: Vec<i64> = tensor.shape.iter().map(|&side| side as i64).collect();
    let mut strides = vec![1i64; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at].max(1);
    }
    (shape, strides)
}

macro_rules! capsule {
    ($function:ident, $kind:ident, $name:expr, $build:expr) => {
        fn $function(py: Python<'_>, tensor: &Tensor) -> PyResult<Py<PyAny>> {
            unsafe extern "C" fn delete(managed: *mut $kind) {
                // SAFETY: `context` is the box that was leaked below. The consumer of the capsule calls the deleter
                // only once.
                drop(unsafe { Box::from_raw((*managed).context.cast::<Owner<$kind>>()) });
            }
            unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
                // SAFETY: Python passes the capsule that is being destroyed. A consumer that takes the tensor renames
                // the capsule and frees the tensor; the capsule is then not valid under this name.
                unsafe {
                    if ffi::PyCapsule_IsValid(capsule, $name.as_ptr()) == 1 {
                        let managed = ffi::PyCapsule_GetPointer(capsule, $name.as_ptr()).cast::<$kind>();
                        delete(managed);
                    }
                }
            }
            let (mut shape, mut strides) = sides(tensor);
            let described = described(tensor, &mut shape, &mut strides);
            // Moving `shape` and `strides` into the box does not move their elements, so the pointers in `described`
            // stay valid.
            let build: fn(DlTensor, unsafe extern "C" fn(*mut $kind)) -> $kind = $build;
            let owner = Box::new(Owner { managed: build(described, delete), shape, strides, _tensor: tensor.clone() });
            debug_assert_eq!(owner.shape.len(), owner.strides.len());
            let owner = Box::into_raw(owner);
            // SAFETY: `owner` was just leaked, and nothing else has its pointer yet.
            let managed = unsafe {
                (*owner).managed.context = owner.cast();
                &raw mut (*owner).managed
            };
            // SAFETY: the name is static, and the destructor matches the pointer's type.
            let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), $name.as_ptr(), Some(destroy)) };
            if capsule.is_null() {
                // SAFETY: no capsule was created, so this is the only pointer to the structure.
                unsafe { delete(managed) };
                return Err(PyErr::fetch(py));
            }
            // SAFETY: `capsule` is a new reference and not null.
            Ok(unsafe { Bound::from_owned_ptr(py, capsule) }.unbind())
        }
    };
}

capsule!(plain, Managed, PLAIN, |tensor, delete| Managed {
    tensor,
    context: std::ptr::null_mut(),
    deleter: Some(delete)
});
capsule!(versioned, ManagedVersioned, VERSIONED, |tensor, delete| ManagedVersioned {
    major: 1,
    minor: 1,
    context: std::ptr::null_mut(),
    deleter: Some(delete),
    flags: 0,
    tensor,
});

/// Exports a capsule that shares the tensor's memory. It is versioned if the consumer supports that.
pub fn export(py: Python<'_>, tensor: &Tensor, max_version: Option<(u32, u32)>) -> PyResult<Py<PyAny>> {
    match max_version {
        Some((major, _)) if major >= 1 => versioned(py, tensor),
        _ => plain(py, tensor),
    }
}
