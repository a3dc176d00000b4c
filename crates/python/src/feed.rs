// SPDX-License-Identifier: Apache-2.0
//! Bindings for a feed and its epochs.
//!
//! Values that own threads, locks or sockets belong to one process. A forked child leaks the inherited values and
//! creates its own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use penstock_feed::{Feed, FeedSettings, Field, RecordRef, Source, Steps};
use penstock_types::{Deadline, Error, Metrics, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::batch_by::PyBatchBy;
use crate::process_local::Own;
use crate::run::{Pass, PyRun, metrics_of};
use crate::runtime::{enter, enter_async, runtime};
use crate::sampler::PySampler;
use crate::source::{Indexed, PySource};
use crate::tensor::set_column;

/// Feed of one rank's batches. A feed has threads and requests only while an epoch runs.
#[pyclass(name = "Feed", module = "penstock._native", frozen)]
pub struct PyFeed {
    feed: Own<Arc<Feed>>,
    metrics: Vec<Arc<Metrics>>,
    steps: Steps,
    #[pyo3(get)]
    threads: usize,
    #[pyo3(get)]
    memory_bytes: u64,
}

#[pymethods]
impl PyFeed {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "named in Python; one caller")]
    #[pyo3(signature = (course, fields, settings, env, *, global_batch, rank, world, tail, caches=None, node=None, batch_by=None))]
    fn new(
        py: Python<'_>,
        course: &PySampler,
        fields: &str,
        settings: &str,
        env: HashMap<String, String>,
        global_batch: u64,
        rank: u64,
        world: u64,
        tail: &str,
        caches: Option<Vec<Option<(PathBuf, u64, String)>>>,
        node: Option<(u64, u64)>,
        batch_by: Option<Py<PyBatchBy>>,
    ) -> PyResult<Self> {
        let by = batch_by.map(|by| by.get().0.clone());
        let (sources, metrics, steps, settings) = enter(py, || {
            let (settings, samples) = (FeedSettings::from_json(settings)?, course.course.samples());
            let steps = Steps { samples, cursor: 0, global_batch, rank, world, tail: tail.parse()? };
            let caches = caches.unwrap_or_else(|| vec![None; course.sources.len()]);
            if caches.len() != course.sources.len() {
                return Err(Error::bug(format!(
                    "{} caches were given for {} datasets",
                    caches.len(),
                    course.sources.len()
                )));
            }
            let node =
                node.map_or(0..world, |(first, end)| first.min(world - 1)..end.clamp(first + 1, world.max(first + 1)));
            let known = (course.course.is_plain() && by.is_none()).then_some(steps);
            let open = |(at, (source, index)): (usize, (&Py<PySource>, &Option<Indexed>))| {
                let source = source.get();
                let index = index.as_ref().and_then(|index| index.open(&source.manifest));
                let (mut opened, metrics) = source.opened(&env, settings.max_in_flight)?;
                if let Some((folder, limit, transcode)) = &caches[at] {
                    let leaf = &course.leaves[at];
                    opened = opened.cached(folder, *limit, leaf, known, node.clone(), transcode.parse()?)?;
                }
                Ok((Arc::new(opened.with_index(index)), metrics))
            };
            let opened: Result<Vec<_>> = course.sources.iter().zip(&course.indexes).enumerate().map(open).collect();
            let (sources, metrics): (Vec<Arc<Source>>, Vec<_>) = opened?.into_iter().unzip();
            Ok((sources, metrics, steps, settings))
        })?;
        for (source, leaf) in sources.iter().zip(&course.leaves) {
            if source.has_long_columns(leaf.counts()) {
                let (source, deadline) = (source.clone(), Deadline::within(settings.object_timeout));
                enter_async(py, async move { source.learn_rows(deadline).await })?;
            }
        }
        enter(py, || {
            let fields = Field::from_json(fields)?;
            let (leaves, sampler) = (course.leaves.clone(), course.course.clone());
            let feed = Feed::with_batches(sources, leaves, sampler, fields, steps, &settings, by)?;
            Ok(Self {
                threads: feed.threads(),
                memory_bytes: feed.memory_bytes(),
                feed: Own::new(feed),
                metrics,
                steps,
            })
        })
    }

    /// Starts an epoch at a cursor (a position in the sample order).
    fn start(&self, py: Python<'_>, epoch: u64, cursor: u64) -> PyResult<PyRun> {
        let handle = runtime();
        enter(py, || {
            let feed = self.feed.get("loader")?;
            let run = feed.start(&handle, epoch, Steps { cursor, ..self.steps })?;
            let names = feed.fields().iter().map(|field| field.name.clone()).collect();
            Ok(PyRun::new(Pass::Counted(run), names))
        })
    }

    /// Reads the fields of the given (dataset, object, record) triples, one row per triple. Random crops are the ones
    /// that the samples at `positions` get in `epoch`.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        wanted: Vec<RecordRef>,
        epoch: u64,
        positions: Vec<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let feed = enter(py, || self.feed.get("dataset").cloned())?;
        let tensors = enter_async(py, feed.clone().gather(wanted, epoch, positions.into()))?;
        let dict = PyDict::new(py);
        for (field, column) in feed.fields().iter().zip(tensors) {
            set_column(&dict, &field.name, column)?;
        }
        Ok(dict)
    }

    /// Returns one sentence per dataset, which reports whether the node cache stores transposed copies. The sentence is
    /// None until the cache has decided.
    fn transcoding(&self, py: Python<'_>) -> PyResult<Vec<Option<String>>> {
        enter(py, || Ok(self.feed.get("loader")?.transcoding()))
    }

    /// Returns the counters of this feed's requests. Times are in seconds.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metrics_of(py, &self.metrics)
    }
}
