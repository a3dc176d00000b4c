// SPDX-License-Identifier: Apache-2.0
//! Bindings for a running epoch and its request counters.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_feed::{Busy, ErrorCounts, Next, Run, UnindexedRun, Waits};
use penstock_types::{Error, Metric, Metrics, Result, Unit, lock};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::runtime::{SIGNAL_POLL, enter};
use crate::tensor::set_column;

/// Sums the request counters of several sources. Times are in seconds.
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

/// A running epoch of either kind of feed.
pub(crate) enum Pass {
    /// Epoch of a dataset with record counts.
    Counted(Run),
    /// Epoch of a dataset without record counts.
    Unindexed(UnindexedRun),
}

impl Pass {
    pub fn next(&mut self, timeout: Duration) -> Result<Next> {
        match self {
            Self::Counted(run) => run.next(timeout),
            Self::Unindexed(run) => run.next(timeout),
        }
    }

    pub fn is_ready(&mut self) -> Result<bool> {
        match self {
            Self::Counted(run) => run.is_ready(),
            Self::Unindexed(run) => run.is_ready(),
        }
    }

    pub fn timing(&mut self) -> Result<(Waits, Busy)> {
        match self {
            Self::Counted(run) => run.timing(),
            Self::Unindexed(run) => run.timing(),
        }
    }

    pub fn error_counts(&mut self) -> Result<ErrorCounts> {
        match self {
            Self::Counted(run) => run.error_counts(),
            Self::Unindexed(run) => run.error_counts(),
        }
    }

    pub fn close(&mut self) {
        match self {
            Self::Counted(run) => run.close(),
            Self::Unindexed(run) => run.close(),
        }
    }
}

/// A running epoch, as a Python object.
#[pyclass(name = "Run", module = "penstock._native", frozen)]
pub struct PyRun {
    run: Mutex<Pass>,
    names: Vec<String>,
    /// Position of each row of the last batch, if `batch_by` plans the batches.
    positions: Mutex<Option<Vec<u64>>>,
    pid: u32,
}

impl PyRun {
    pub(crate) fn new(pass: Pass, names: Vec<String>) -> Self {
        Self { run: Mutex::new(pass), names, positions: Mutex::default(), pid: std::process::id() }
    }

    /// Calls `work` with the epoch. Returns an error if another thread uses the epoch. Waiting for that thread would
    /// deadlock: it needs the GIL, which this thread holds.
    fn run<T>(&self, work: impl FnOnce(&mut Pass) -> Result<T>) -> Result<T> {
        let mut run = match self.run.try_lock() {
            Ok(run) => run,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return Err(Error::config("iterator", "in use by another thread; use one iterator per thread"));
            }
        };
        work(&mut run)
    }
}

#[pymethods]
impl PyRun {
    /// The next batch as (fields, rows, cursor), or None after the epoch's last batch. Waits without the GIL and yields
    /// to Ctrl-C.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyDict>, usize, u64)>> {
        loop {
            match enter(py, || self.run(|run| run.next(SIGNAL_POLL)))? {
                Next::Done => return Ok(None),
                Next::Waiting => py.check_signals()?,
                Next::Batch(batch) => {
                    *lock(&self.positions) = batch.positions;
                    let dict = PyDict::new(py);
                    for (name, column) in self.names.iter().zip(batch.columns) {
                        set_column(&dict, name, column)?;
                    }
                    return Ok(Some((dict, batch.rows, batch.cursor)));
                }
            }
        }
    }

    /// For each row of the last batch, its position in the sample order. Returns `None` unless `batch_by` plans the
    /// batches. For a row that repeats a sample, the position is increased by the number of samples.
    fn positions(&self) -> Option<Vec<u64>> {
        lock(&self.positions).clone()
    }

    /// True if `next` would return without waiting.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        enter(py, || self.run(Pass::is_ready))
    }

    /// Returns the seconds spent waiting, by cause (`wait_*`), and the seconds for which the threads were busy
    /// (`busy_*`).
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

    /// Returns the number of skipped samples, the number of substituted samples, and the first few error messages.
    fn error_counts(&self, py: Python<'_>) -> PyResult<(u64, u64, Vec<String>)> {
        let error_counts = enter(py, || self.run(Pass::error_counts))?;
        Ok((error_counts.skipped, error_counts.substituted, error_counts.errors))
    }

    /// Ends the epoch's threads and requests.
    fn close(&self, py: Python<'_>) {
        // In a forked child, the threads do not exist, and the lock may never be released.
        if self.pid == std::process::id() {
            py.detach(|| lock(&self.run).close());
        }
    }
}
