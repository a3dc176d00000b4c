// SPDX-License-Identifier: Apache-2.0
//! Bindings for `penstock stage`: a stage request, and its running job.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use penstock_stage::{
    Job, Snapshot, StageJob, StageRequest, StageSettings, VerifyJob, VerifySettings, WaitLimits, leader_ends,
    wait_for_leader,
};
use penstock_types::{Error, Metric, Metrics, Result, duration};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;

use crate::runtime::{enter, enter_async, runtime};

fn json<S: Serialize>(summary: &S) -> Result<String> {
    serde_json::to_string(summary).map_err(|error| Error::bug(error.to_string()))
}

#[pyclass(name = "StageRequest", module = "penstock._native", frozen)]
pub struct PyStageRequest(StageRequest);

#[pymethods]
impl PyStageRequest {
    #[new]
    #[pyo3(signature = (settings, destination, env, *, manifest=None))]
    fn new(
        py: Python<'_>,
        settings: &str,
        destination: PathBuf,
        env: HashMap<String, String>,
        manifest: Option<PathBuf>,
    ) -> PyResult<Self> {
        enter(py, || StageSettings::from_json(settings)?.request(destination, manifest, &env)).map(Self)
    }

    fn start(&self) -> PyStageJob {
        PyStageJob(Box::new(StageJob::start(self.0.clone(), &runtime())))
    }

    #[pyo3(signature = (*, start_s=600.0, silence_s=120.0))]
    fn wait_for_leader(&self, py: Python<'_>, start_s: f64, silence_s: f64) -> PyResult<String> {
        let request = self.0.clone();
        enter_async(py, async move {
            let limit = |seconds| duration("--wait-timeout", seconds);
            let limits = WaitLimits { start: limit(start_s)?, heartbeat: limit(silence_s)? };
            json(&wait_for_leader(&request, limits).await?)
        })
    }

    /// Works like `wait_for_leader`, but returns an error of the leader as `{"failed": {code, message, hint}}`.
    #[pyo3(signature = (*, start_s=600.0, silence_s=120.0))]
    fn leader_ends(&self, py: Python<'_>, start_s: f64, silence_s: f64) -> PyResult<String> {
        let request = self.0.clone();
        enter_async(py, async move {
            let limit = |seconds| duration("--wait-timeout", seconds);
            let limits = WaitLimits { start: limit(start_s)?, heartbeat: limit(silence_s)? };
            match leader_ends(&request, limits).await? {
                Ok(summary) => json(&serde_json::json!({ "summary": summary })),
                Err(error) => json(&serde_json::json!({ "failed": error })),
            }
        })
    }
}

/// Starts verifying a staged copy. Returns the running job immediately.
#[pyfunction]
pub fn verify(
    py: Python<'_>,
    settings: &str,
    destination: PathBuf,
    env: HashMap<String, String>,
) -> PyResult<PyStageJob> {
    let request = enter(py, || VerifySettings::from_json(settings)?.request(destination, &env))?;
    Ok(PyStageJob(Box::new(VerifyJob::start(request, &runtime()))))
}

/// Methods of a job that Python calls. They do not depend on the type of the job's result.
trait Watched: Send + Sync {
    fn snapshot(&self) -> Snapshot;
    fn counters(&self) -> &Metrics;
    fn stop(&self);
    fn ended(&self, limit: Duration) -> Option<Result<String>>;
}

impl<S: Serialize + Clone + Send + 'static> Watched for Job<S> {
    fn snapshot(&self) -> Snapshot {
        self.progress()
    }

    fn counters(&self) -> &Metrics {
        self.metrics()
    }

    fn stop(&self) {
        self.cancel();
    }

    fn ended(&self, limit: Duration) -> Option<Result<String>> {
        self.wait(limit).map(|result| json(&result?))
    }
}

#[pyclass(name = "StageJob", module = "penstock._native", frozen)]
pub struct PyStageJob(Box<dyn Watched>);

#[pymethods]
impl PyStageJob {
    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (now, metrics) = (self.0.snapshot(), self.0.counters());
        let facts = PyDict::new(py);
        for (name, value) in [
            ("objects", now.objects),
            ("bytes", now.bytes),
            ("done", now.done),
            ("done_bytes", now.done_bytes),
            ("skipped", now.skipped),
            ("bytes_in", now.bytes_in),
            ("bytes_out", now.bytes_out),
            ("resumed_bytes", now.resumed_bytes),
            ("refetched", now.refetched),
            ("failed", now.failed),
            ("requests", metrics.get(Metric::Requests)),
            ("retries", metrics.get(Metric::Retries)),
            ("throttles", metrics.get(Metric::Throttles)),
        ] {
            facts.set_item(name, value)?;
        }
        Ok(facts)
    }

    /// Waits at most `timeout_s` for the job. Returns the summary as JSON; `None` while the job runs.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<String>> {
        let limit = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::ZERO);
        enter(py, || self.0.ended(limit).transpose())
    }

    fn cancel(&self) {
        self.0.stop();
    }
}
