// SPDX-License-Identifier: Apache-2.0
//! Bindings for the load generator. Each object runs one phase; settings and reports are JSON.

use std::collections::HashMap;
use std::time::Duration;

use penstock_bench::object::{ObjectJob, ObjectSpec, clear, keys_of};
use penstock_bench::storage::{Phase, PhaseJob, StorageSpec};
use penstock_bench::{Histogram, Latency};
use penstock_store::StoreSettings;
use penstock_types::{Error, Result, parse_settings};
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::raise;
use crate::runtime::{enter, enter_async};

fn json<T: Serialize>(report: &T) -> Result<String> {
    serde_json::to_string(report).map_err(|error| Error::bug(error.to_string()))
}

fn limit(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
}

#[pyclass(name = "StoragePhase", module = "penstock._native", frozen)]
pub struct PyStoragePhase(PhaseJob);

#[pymethods]
impl PyStoragePhase {
    #[new]
    fn new(py: Python<'_>, spec: &str, phase: &str) -> PyResult<Self> {
        enter(py, || {
            let spec: StorageSpec = parse_settings("the phase's settings", spec)?;
            let phase: Phase = parse_settings("the phase", &json(&phase)?)?;
            PhaseJob::start(spec, phase)
        })
        .map(Self)
    }

    /// Returns the number of completed entries, the number of completed reads or writes, and the number of bytes.
    fn progress(&self) -> (u64, u64, u64) {
        let total = self.0.progress();
        (total.entries, total.ios, total.bytes)
    }

    /// Waits at most `timeout_s` for the phase. Returns the report as JSON, only once; `None` while the phase runs.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<String>> {
        enter(py, || self.0.wait(limit(timeout_s)).map(|report| json(&report?)).transpose())
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

#[pyclass(name = "ObjectPhase", module = "penstock._native", frozen)]
pub struct PyObjectPhase(ObjectJob);

#[pymethods]
impl PyObjectPhase {
    #[new]
    fn new(py: Python<'_>, spec: &str, env: HashMap<String, String>) -> PyResult<Self> {
        enter(py, || {
            let spec: ObjectSpec = parse_settings("the phase's settings", spec)?;
            ObjectJob::start(spec, StoreSettings::from_env(&env)?)
        })
        .map(Self)
    }

    /// Returns the number of completed requests, the number of bytes, and the number of throttled attempts.
    fn progress(&self) -> (u64, u64, u64) {
        self.0.progress()
    }

    /// Waits at most `timeout_s` for the phase. Returns the report as JSON, only once; `None` while the phase runs.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<String>> {
        enter(py, || self.0.wait(limit(timeout_s)).map(|report| json(&report?)).transpose())
    }

    fn cancel(&self) {
        self.0.cancel();
    }
}

/// Lists at most `most` keys below `url`, relative to `url`. If the store does not support listing, returns the one
/// object that `url` names.
#[pyfunction]
pub fn object_keys(py: Python<'_>, url: String, env: HashMap<String, String>, most: usize) -> PyResult<Vec<String>> {
    enter_async(py, async move { keys_of(&url, &StoreSettings::from_env(&env)?, most).await })
}

/// Deletes everything below `url`, a folder that a benchmark created. Returns the number of deleted objects.
#[pyfunction]
pub fn clear_objects(py: Python<'_>, url: String, env: HashMap<String, String>) -> PyResult<u64> {
    enter_async(py, async move { clear(&url, &StoreSettings::from_env(&env)?).await })
}

/// Merges several latency histograms, each as JSON: adds their buckets and recomputes the percentiles.
#[pyfunction]
pub fn merge_latencies(py: Python<'_>, latencies: Vec<String>) -> PyResult<String> {
    let merge = || {
        let mut merged = Histogram::default();
        for text in &latencies {
            merged.merge(&Histogram::of(&parse_settings::<Latency>("a latency", text)?)?);
        }
        json(&merged.latency())
    };
    merge().map_err(|error| raise(py, error))
}
