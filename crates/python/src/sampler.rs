// SPDX-License-Identifier: Apache-2.0
//! Bindings for the sampler. Python builds a sampler step by step from listed datasets, and then passes it to a feed or
//! queries it.

use std::sync::{Arc, Mutex};

use penstock_dataset::ObjectStarts;
use penstock_dataset::order::Shuffle;
use penstock_dataset::sampler::{DatasetView, Located, Sampler, SamplerCursor};
use penstock_dataset::weighted_draws::WeightedDraws;
use penstock_types::{Error, Result, lock, with_separators};
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raise;
use crate::runtime::enter;
use crate::source::{Indexed, PyCounted, PySource};

/// Order of the samples in an epoch, over one or several datasets. Immutable: each method that changes the order
/// returns a new sampler.
#[pyclass(name = "Sampler", module = "penstock._native", frozen)]
pub struct PySampler {
    pub(crate) course: Sampler,
    pub(crate) leaves: Vec<DatasetView>,
    pub(crate) sources: Vec<Py<PySource>>,
    /// Record index of each source.
    pub(crate) indexes: Vec<Option<Indexed>>,
    /// State after the last lookup. Consecutive lookups that reuse this state are cheap.
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

    fn of_view(
        py: Python<'_>,
        source: Py<PySource>,
        counted: &PyCounted,
        view: impl FnOnce() -> Result<DatasetView> + Send,
    ) -> PyResult<Self> {
        let leaf = enter(py, view)?;
        Ok(Self::new(Sampler::leaf(&leaf), vec![leaf], vec![source], vec![counted.index()]))
    }

    fn with(&self, py: Python<'_>, course: Sampler) -> Self {
        let sources = self.sources.iter().map(|source| source.clone_ref(py)).collect();
        Self::new(course, self.leaves.clone(), sources, self.indexes.clone())
    }
}

/// Copies a contiguous buffer of numbers.
fn copied<T: Element>(py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    PyBuffer::<T>::get(buffer)?.to_vec(py)
}

#[pymethods]
impl PySampler {
    /// Returns a sampler over one dataset. `select` (first, end) is a range of samples in stored order.
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
        Self::of_view(py, source, counted, || DatasetView::new(counted.counts().clone(), select, shuffle))
    }

    /// Returns a sampler over selected samples of one dataset. `bits` is a buffer of uint64: sample `i` in stored order
    /// is selected if bit `i % 64` of word `i / 64` is 1.
    #[staticmethod]
    #[pyo3(signature = (source, counted, bits, *, seed, window))]
    fn subset(
        py: Python<'_>,
        source: Py<PySource>,
        counted: &PyCounted,
        bits: &Bound<'_, PyAny>,
        seed: Option<u64>,
        window: u64,
    ) -> PyResult<Self> {
        let bits = copied::<u64>(py, bits)?;
        let shuffle = seed.map(|seed| Shuffle { seed, window });
        Self::of_view(py, source, counted, || DatasetView::subset(counted.counts().clone(), bits, shuffle))
    }

    /// Returns a sampler that draws `samples` samples per epoch from one dataset, in `passes` passes over its objects.
    /// `schedule` lists (first epoch, weights) pairs; the weights are a buffer with one uint32 per stored sample.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "named in Python; one caller")]
    #[pyo3(signature = (source, counted, schedule, *, samples, passes, seed, window))]
    fn weighted(
        py: Python<'_>,
        source: Py<PySource>,
        counted: &PyCounted,
        schedule: Vec<(u64, Bound<'_, PyAny>)>,
        samples: u64,
        passes: u64,
        seed: u64,
        window: u64,
    ) -> PyResult<Self> {
        let stages = schedule.iter().map(|(epoch, weights)| Ok((*epoch, copied::<u32>(py, weights)?)));
        let stages = stages.collect::<PyResult<Vec<_>>>()?;
        let pass = samples.div_ceil(passes.max(1));
        let made = Self::of_view(py, source, counted, || {
            let draws = WeightedDraws::new(counted.counts(), stages, pass, passes)?;
            DatasetView::weighted(counted.counts().clone(), draws, Shuffle { seed, window })
        })?;
        let course = enter(py, || Ok(made.course.clone().repeat(passes)?.range(0..samples)))?;
        Ok(made.with(py, course))
    }

    /// Returns a sampler of the given positions (buffer of uint64) of each epoch, in the given order.
    fn listed(&self, py: Python<'_>, positions: &Bound<'_, PyAny>) -> PyResult<Self> {
        let positions = copied::<u64>(py, positions)?;
        let course = enter(py, || self.course.clone().listed(positions.into()))?;
        Ok(self.with(py, course))
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

    /// Mixes samplers, with `samples` samples per epoch. `schedule` lists (first position, integer weights of the
    /// samplers) pairs.
    #[staticmethod]
    fn mix(
        py: Python<'_>,
        courses: Vec<Py<PySampler>>,
        schedule: Vec<(u64, Vec<u64>)>,
        samples: u64,
    ) -> PyResult<Self> {
        let steps = courses.iter().map(|course| course.get().course.clone()).collect();
        let mixed = enter(py, || Sampler::mix(steps, &schedule, samples))?;
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

    /// For each dataset, returns its number of samples per epoch, and the number of objects that an epoch reads. With
    /// weights, the number of objects is the expected value.
    #[getter]
    fn views(&self) -> Vec<(u64, f64)> {
        self.leaves.iter().map(|leaf| (leaf.samples(), leaf.objects())).collect()
    }

    /// Memory, in bytes, that the selection and order of samples take: subsets, weights and lists of positions.
    #[getter]
    fn memory_bytes(&self) -> u64 {
        self.course.memory_bytes() + self.leaves.iter().map(DatasetView::memory_bytes).sum::<u64>()
    }

    /// The sources. A dataset number is an index into this list.
    #[getter]
    fn sources(&self, py: Python<'_>) -> Vec<Py<PySource>> {
        self.sources.iter().map(|source| source.clone_ref(py)).collect()
    }

    /// Returns the value of the sample at each position of an epoch (uint32, little-endian bytes). `values` has one
    /// buffer of uint32 for each dataset, with one value per sample in stored order.
    fn values<'py>(
        &self,
        py: Python<'py>,
        epoch: u64,
        values: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let values = values.iter().map(|buffer| copied::<u32>(py, buffer)).collect::<PyResult<Vec<_>>>()?;
        let need = self.course.samples().saturating_mul(4);
        let too_much = || {
            let what = format!("values of {} positions", with_separators(self.course.samples()));
            raise(py, Error::BudgetExceeded { what, need, budget: 0 })
        };
        let len = isize::try_from(need).map_err(|_| too_much())? as usize;
        let fill = |found: &mut [u8]| {
            let sizes = self.leaves.iter().map(|leaf| leaf.counts().samples());
            if !sizes.eq(values.iter().map(|of| of.len() as u64)) {
                return Err(Error::config("values", "each dataset needs one value per sample"));
            }
            let starts: Vec<_> = self.leaves.iter().map(|leaf| ObjectStarts::of(leaf.counts())).collect();
            let mut walk = SamplerCursor::new(Arc::new(self.course.clone()), self.leaves.as_slice().into())?;
            for (position, to) in found.chunks_exact_mut(4).enumerate() {
                let Located { leaf, place, .. } = walk.at(epoch, position as u64);
                let at = starts[leaf].of_object(place.object) + place.record;
                to.copy_from_slice(&values[leaf][at as usize].to_le_bytes());
            }
            Ok(())
        };
        PyBytes::new_with(py, len, |found| enter(py, || fill(found)))
            .map_err(|error| if error.get_type(py).is(py.get_type::<PyMemoryError>()) { too_much() } else { error })
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
