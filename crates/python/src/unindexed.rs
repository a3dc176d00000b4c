// SPDX-License-Identifier: Apache-2.0
//! Bindings for datasets without record counts: a feed and its epochs.

use std::collections::HashMap;
use std::sync::Arc;

use penstock_feed::{FeedSettings, Field, Position, Turns, Unindexed};
use penstock_types::Metrics;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::process_local::Own;
use crate::run::{Pass, PyRun, metrics_of};
use crate::runtime::{enter, runtime};
use crate::source::PySource;

/// Feed of one rank's batches, for a dataset without record counts. A cursor is an (object, record) pair, packed into
/// one number.
#[pyclass(name = "UnindexedFeed", module = "penstock._native", frozen)]
pub struct PyUnindexed {
    feed: Own<Arc<Unindexed>>,
    metrics: Arc<Metrics>,
    #[pyo3(get)]
    threads: usize,
    #[pyo3(get)]
    memory_bytes: u64,
    /// Number of objects that this rank reads.
    #[pyo3(get)]
    objects: u64,
}

#[pymethods]
impl PyUnindexed {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "named in Python; one caller")]
    #[pyo3(signature = (source, fields, settings, env, *, seed, batch, rank, world, drops_tail))]
    fn new(
        py: Python<'_>,
        source: &PySource,
        fields: &str,
        settings: &str,
        env: HashMap<String, String>,
        seed: Option<u64>,
        batch: u64,
        rank: u64,
        world: u64,
        drops_tail: bool,
    ) -> PyResult<Self> {
        enter(py, || {
            let fields = Field::from_json(fields)?;
            let settings = FeedSettings { prefetch_next_epoch: false, ..FeedSettings::from_json(settings)? };
            let (source, metrics) = source.opened(&env, settings.max_in_flight)?;
            let turns = Turns { batch, rank, world, drops_tail };
            let feed = Unindexed::new(Arc::new(source), seed, fields, turns, settings)?;
            Ok(Self {
                threads: feed.threads(),
                memory_bytes: feed.memory_bytes(),
                objects: feed.objects(),
                feed: Own::new(feed),
                metrics,
            })
        })
    }

    /// Starts an epoch at a cursor (see [`PyUnindexed`]).
    fn start(&self, py: Python<'_>, epoch: u64, cursor: u64) -> PyResult<PyRun> {
        let handle = runtime();
        enter(py, || {
            let feed = self.feed.get("loader")?;
            let run = feed.start(&handle, epoch, Position::unpacked(cursor))?;
            let names = feed.fields().iter().map(|field| field.name.clone()).collect();
            Ok(PyRun::new(Pass::Unindexed(run), names))
        })
    }

    /// Returns the counters of this feed's requests. Times are in seconds.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metrics_of(py, std::slice::from_ref(&self.metrics))
    }
}
