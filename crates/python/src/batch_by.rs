// SPDX-License-Identifier: Apache-2.0
//! Bindings for the rule by which samples form batches of similar length.

use std::sync::Arc;

use penstock_feed::{BatchBy, BatchRule};
use penstock_types::Result;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::runtime::enter;
use crate::sampler::PySampler;

/// Batching rule of a sampler, with the lengths of the sampler's samples.
#[pyclass(name = "BatchBy", module = "penstock._native", frozen)]
pub struct PyBatchBy(pub(crate) Arc<BatchBy>);

#[pymethods]
impl PyBatchBy {
    /// `rule` is JSON. `lengths` has one uint32 array per dataset of the sampler: the lengths of its samples in stored
    /// order.
    #[new]
    #[pyo3(signature = (course, rule, lengths, *, window=None))]
    fn new(
        py: Python<'_>,
        course: &PySampler,
        rule: &str,
        lengths: Vec<PyBuffer<u32>>,
        window: Option<u64>,
    ) -> PyResult<Self> {
        let lengths = lengths.iter().map(|array| array.to_vec(py)).collect::<PyResult<Vec<_>>>()?;
        let found = enter(py, || {
            let by = BatchBy::new(BatchRule::from_json(rule)?, course.course.clone(), &course.leaves, lengths, window)?;
            let found = by.first_too_long(0)?;
            Ok((Arc::new(by), found))
        })?;
        let (by, found) = found;
        if let Some((found, length)) = found {
            let source = course.sources[found.leaf].get();
            let key = source.key(found.place.object as usize).unwrap_or_default();
            let sample = format!("{}{key} record {}", source.manifest.url, found.place.record);
            return enter(py, || Err(by.too_long(&sample, length)));
        }
        Ok(Self(by))
    }

    /// Size of a planning window: the number of samples that are planned together.
    #[getter]
    fn window(&self) -> u64 {
        self.0.window()
    }

    /// Average number of samples in a full batch over all ranks.
    #[getter]
    fn mean_rows(&self) -> u64 {
        self.0.mean_rows()
    }

    /// Number of batches of an epoch.
    fn count(&self, py: Python<'_>, epoch: u64, tail: &str) -> PyResult<u64> {
        enter(py, || -> Result<u64> { self.0.count(epoch, tail.parse()?) })
    }
}
