// SPDX-License-Identifier: Apache-2.0
//! The only crate that knows Python: conversions, the `enter` door, `raise`. No logic lives here.
//!

#![allow(missing_docs, reason = "what Python sees is documented in _native.pyi")]

mod enter;
mod raise;

use pyo3::prelude::*;

/// `penstock._native`
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
