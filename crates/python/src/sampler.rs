// SPDX-License-Identifier: Apache-2.0
//! Bindings for the sampler. It is built step by step from listed datasets, and then passed to a feed or queried.

use std::sync::{Arc, Mutex};

use penstock_dataset::order::Shuffle;
use penstock_dataset::sampler::{DatasetView, Sampler, SamplerCursor};
use penstock_types::{Error, lock};
use pyo3::prelude::*;

use crate::runtime::enter;
use crate::source::{Indexed, PyCounted, PySource};

/// Order of the samples in an epoch, over one or several datasets. Immutable: each step returns a new sampler.
#[pyclass(name = "Sampler", module = "penstock._native", frozen)]
pub struct PySampler {
    pub(crate) course: Sampler,
    pub(crate) leaves: Vec<DatasetView>,
    pub(crate) sources: Vec<Py<PySource>>,
    /// Record index of each source.
    pub(crate) indexes: Vec<Option<Indexed>>,
    /// State of the last lookup, which makes consecutive lookups cheap.
    walk: Mutex<Option<SamplerCursor>>,
}

impl PySampler {
    fn new(
        course: Sampler,
        leaves: Vec<DatasetView>,
        sources: Vec<Py<PySource>>,
        indexes: Vec<Option<Indexed>>,
    ) -> Self {
        Self { course, leaves, sources, indexes, walk: Mutex::default() }
    }

    fn with(&self, py: Python<'_>, course: Sampler) -> Self {
        let sources = self.sources.iter().map(|source| source.clone_ref(py)).collect();
        Self::new(course, self.leaves.clone(), sources, self.indexes.clone())
    }
}

#[pymethods]
impl PySampler {
    /// Sampler over one dataset. `select` (first, end) is a range of samples in stored order.
    #[staticmethod]
    #[pyo3(signature = (source, counted, *, seed, window, select=None))]
    fn leaf(
        py: Python<'_>,
        source: Py<PySource>,
        counted: &PyCounted,
        seed: Option<u64>,
        window: u64,
        select: Option<(u64, u64)>,
    ) -> PyResult<Self> {
        let shuffle = seed.map(|seed| Shuffle { seed, window });
        let select = select.map(|(first, end)| first..end);
        let leaf = enter(py, || DatasetView::new(counted.counts().clone(), select, shuffle))?;
        Ok(Self::new(Sampler::leaf(&leaf), vec![leaf], vec![source], vec![counted.index()]))
    }

    /// Returns a sampler of the positions `start` to `stop` of each epoch.
    fn range(&self, py: Python<'_>, start: u64, stop: u64) -> Self {
        self.with(py, self.course.clone().range(start..stop))
    }

    /// Returns a sampler that joins `times` epochs into one.
    fn repeat(&self, py: Python<'_>, times: u64) -> PyResult<Self> {
        let course = enter(py, || self.course.clone().repeat(times))?;
        Ok(self.with(py, course))
    }

    /// Mixes samplers with integer weights, and with `samples` samples per epoch.
    #[staticmethod]
    fn mix(py: Python<'_>, courses: Vec<Py<PySampler>>, weights: Vec<u64>, samples: u64) -> PyResult<Self> {
        let steps = courses.iter().map(|course| course.get().course.clone()).collect();
        let mixed = enter(py, || Sampler::mix(steps, &weights, samples))?;
        let leaves = courses.iter().flat_map(|course| course.get().leaves.clone()).collect();
        let sources = courses.iter().flat_map(|course| course.get().sources.iter());
        let sources = sources.map(|source| source.clone_ref(py)).collect();
        let indexes = courses.iter().flat_map(|course| course.get().indexes.clone()).collect();
        Ok(Self::new(mixed, leaves, sources, indexes))
    }

    /// Number of samples in an epoch.
    #[getter]
    fn samples(&self) -> u64 {
        self.course.samples()
    }

    /// The sources, in the order of their dataset numbers.
    #[getter]
    fn sources(&self, py: Python<'_>) -> Vec<Py<PySource>> {
        self.sources.iter().map(|source| source.clone_ref(py)).collect()
    }

    /// Returns the (dataset, object, record) triple for each position in an epoch.
    fn places(&self, py: Python<'_>, epoch: u64, positions: Vec<u64>) -> PyResult<Vec<(usize, u64, u64)>> {
        enter(py, || {
            if let Some(position) = positions.iter().find(|&&position| position >= self.course.samples()) {
                let text =
                    format!("must be less than the number of samples, {} (got {position})", self.course.samples());
                return Err(Error::config("position", text));
            }
            let mut kept = lock(&self.walk);
            let mut walk = match kept.take() {
                Some(walk) => walk,
                None => SamplerCursor::new(Arc::new(self.course.clone()), self.leaves.as_slice().into())?,
            };
            let found = positions.iter().map(|&position| {
                let found = walk.at(epoch, position);
                (found.leaf, found.place.object, found.place.record)
            });
            let found = found.collect();
            *kept = Some(walk);
            Ok(found)
        })
    }
}
