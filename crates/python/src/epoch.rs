// SPDX-License-Identifier: Apache-2.0
//! Bindings of a feed, and of a pass over an epoch.
//!
//! What owns threads, locks or sockets is tied to its process: a forked child leaks what it inherits and builds anew.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_feed::{Feed, FeedSettings, Field, Next, RecordRef, Source, Steps};
use penstock_types::{Deadline, Error, Metric, Metrics, Result, Unit, lock};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::feed::{Indexed, PySource};
use crate::runtime::{SIGNAL_POLL, enter, enter_async, runtime};
use crate::sampler::PySampler;
use crate::tensor::set_column;
use crate::unindexed::Pass;

/// A value that only the process that made it may use or drop.
pub(crate) struct Own<T> {
    pid: u32,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    pub fn new(value: T) -> Self {
        Self { pid: std::process::id(), value: ManuallyDrop::new(value) }
    }

    pub fn get(&self, what: &str) -> Result<&T> {
        if self.pid == std::process::id() {
            Ok(&self.value)
        } else {
            Err(Error::config(what, format!("it belongs to process {}; make a new one in this process", self.pid)))
        }
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A feed for one rank's batches. Threads and requests exist only while one of its runs does.
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
    #[pyo3(signature = (course, fields, settings, env, *, global_batch, rank, world, tail, caches=None, node=None))]
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
    ) -> PyResult<Self> {
        let (sources, metrics, steps, settings) = enter(py, || {
            let (settings, samples) = (FeedSettings::from_json(settings)?, course.course.samples());
            let steps = Steps { samples, cursor: 0, global_batch, rank, world, tail: tail.parse()? };
            let caches = caches.unwrap_or_else(|| vec![None; course.sources.len()]);
            if caches.len() != course.sources.len() {
                return Err(Error::bug(format!("{} datasets have {} caches", course.sources.len(), caches.len())));
            }
            let node =
                node.map_or(0..world, |(first, end)| first.min(world - 1)..end.clamp(first + 1, world.max(first + 1)));
            let known = course.course.is_plain().then_some(steps);
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
            let feed = Feed::new(sources, course.leaves.clone(), course.course.clone(), fields, steps, &settings)?;
            Ok(Self {
                threads: feed.threads(),
                memory_bytes: feed.memory_bytes(),
                feed: Own::new(feed),
                metrics,
                steps,
            })
        })
    }

    /// Begins a pass over an epoch from a cursor on.
    fn start(&self, py: Python<'_>, epoch: u64, cursor: u64) -> PyResult<PyRun> {
        let handle = runtime();
        enter(py, || {
            let feed = self.feed.get("loader")?;
            let run = feed.start(&handle, epoch, Steps { cursor, ..self.steps })?;
            let names = feed.fields().iter().map(|field| field.name.clone()).collect();
            Ok(PyRun::new(Pass::Counted(run), names))
        })
    }

    /// The fields of these records (dataset, object, record), a row each; random crops are those of `positions` in `epoch`.
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

    /// What the node's cache of each dataset has decided of objects in planes, in a sentence; None where nothing was.
    fn transcoding(&self, py: Python<'_>) -> PyResult<Vec<Option<String>>> {
        enter(py, || Ok(self.feed.get("loader")?.transcoding()))
    }

    /// The counters of this feed's requests; times in seconds.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metrics_of(py, &self.metrics)
    }
}

/// The counters of several sources, added; times in seconds.
pub(crate) fn metrics_of<'py>(py: Python<'py>, counted: &[Arc<Metrics>]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for &metric in Metric::ALL {
        let value = counted.iter().map(|metrics| metrics.get(metric)).sum();
        match metric.unit() {
            Unit::Nanoseconds => dict.set_item(metric.name(), Duration::from_nanos(value).as_secs_f64())?,
            Unit::Count | Unit::Bytes => dict.set_item(metric.name(), value)?,
        }
    }
    Ok(dict)
}

/// One pass over an epoch.
#[pyclass(name = "Run", module = "penstock._native", frozen)]
pub struct PyRun {
    run: Mutex<Pass>,
    names: Vec<String>,
    pid: u32,
}

impl PyRun {
    pub(crate) fn new(pass: Pass, names: Vec<String>) -> Self {
        Self { run: Mutex::new(pass), names, pid: std::process::id() }
    }

    /// The pass; refused while another thread waits in it (waiting for it would need the GIL that the other one wants).
    fn run<T>(&self, work: impl FnOnce(&mut Pass) -> Result<T>) -> Result<T> {
        let mut run = match self.run.try_lock() {
            Ok(run) => run,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return Err(Error::config(
                    "iterator",
                    "another thread is waiting in it; one iterator serves one thread",
                ));
            }
        };
        work(&mut run)
    }
}

#[pymethods]
impl PyRun {
    /// The next batch as (fields, rows, cursor), or None after the last. Waits without the GIL and yields to Ctrl-C.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyDict>, usize, u64)>> {
        loop {
            match enter(py, || self.run(|run| run.next(SIGNAL_POLL)))? {
                Next::Done => return Ok(None),
                Next::Waiting => py.check_signals()?,
                Next::Batch(batch) => {
                    let dict = PyDict::new(py);
                    for (name, column) in self.names.iter().zip(batch.columns) {
                        set_column(&dict, name, column)?;
                    }
                    return Ok(Some((dict, batch.rows, batch.cursor)));
                }
            }
        }
    }

    /// True when `next` would answer at once.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        enter(py, || self.run(Pass::is_ready))
    }

    /// Seconds waited, by what for (`wait_*`), and seconds that threads were busy (`busy_*`).
    fn timing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (waits, busy) = enter(py, || self.run(Pass::timing))?;
        let dict = PyDict::new(py);
        for (name, time) in [
            ("wait_first_byte_s", waits.first_byte),
            ("wait_transfer_s", waits.transfer),
            ("wait_queue_s", waits.queue),
            ("wait_inflate_s", waits.inflate),
            ("wait_decode_s", waits.decode),
            ("wait_other_s", waits.other),
            ("wait_s", waits.total),
            ("busy_inflate_s", busy.inflate()),
            ("busy_decode_s", busy.decode()),
        ] {
            dict.set_item(name, time.as_secs_f64())?;
        }
        Ok(dict)
    }

    /// Samples left out, samples that others took the place of, and the first few errors.
    fn mended(&self, py: Python<'_>) -> PyResult<(u64, u64, Vec<String>)> {
        let mended = enter(py, || self.run(Pass::mended))?;
        Ok((mended.skipped, mended.substituted, mended.errors))
    }

    /// Ends its threads and requests.
    fn close(&self, py: Python<'_>) {
        // In a forked child the lock may be held for ever, and there is nothing to end.
        if self.pid == std::process::id() {
            py.detach(|| lock(&self.run).close());
        }
    }
}
