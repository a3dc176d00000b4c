// SPDX-License-Identifier: Apache-2.0
//! `penstock stage` for Python: a request, and the job that it becomes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use penstock_dataset::{Division, KeyFilter, ShareBy, Weights};
use penstock_stage::{
    Compression, Job, Snapshot, StageJob, StageOptions, StageRequest, VerifyJob, VerifyRequest, WaitLimits,
    leader_ends, wait_for_leader,
};
use penstock_store::{Rates, StoreSettings};
use penstock_types::{Error, Metric, Metrics, Result};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;

use crate::errors::raise;
use crate::runtime::{enter, enter_async, runtime};

/// A time in seconds from Python.
pub fn duration(what: &str, seconds: Option<f64>) -> Result<Option<Duration>> {
    seconds
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| Error::config(what, format!("{seconds} is not a duration in seconds")))
        })
        .transpose()
}

/// Settings with another wall-clock budget for throttling.
pub fn with_budget(mut settings: StoreSettings, give_up_after_s: Option<f64>) -> Result<StoreSettings> {
    if let Some(budget) = duration("--retry-timeout", give_up_after_s)? {
        settings.retry.give_up_after = budget;
        settings.retry.unreachable_after = settings.retry.unreachable_after.min(budget);
        settings.retry.never_reached_after = settings.retry.never_reached_after.min(budget);
    }
    Ok(settings)
}

/// Settings of a copy that vouches for every byte: where a store gives no CRC, its MD5 is worth its price, and where it has
/// one of the parts only, so is a question for their size, unless the user says otherwise.
fn vouching(env: &HashMap<String, String>, give_up_after_s: Option<f64>) -> Result<StoreSettings> {
    let mut settings = with_budget(StoreSettings::from_env(env)?, give_up_after_s)?;
    settings.s3.verifies_md5 |= !env.contains_key("PENSTOCK_S3_MD5");
    settings.s3.verifies_parts |= !env.contains_key("PENSTOCK_S3_PARTS");
    Ok(settings)
}

fn json<S: Serialize>(summary: &S) -> Result<String> {
    serde_json::to_string(summary).map_err(|error| Error::bug(error.to_string()))
}

#[pyclass(name = "StageRequest", module = "penstock._native", frozen)]
pub struct PyStageRequest(StageRequest);

#[pymethods]
impl PyStageRequest {
    #[new]
    #[pyo3(signature = (
        source, destination, env, *, decompress=false, node=0, nodes=1, concurrency=64, memory_bytes=1073741824,
        max_inflated_bytes=None, allow_case_collisions=false, overwrite=false, manifest=None, dry_run=false, deadline_s=None,
        give_up_after_s=None, launch_id=None, is_awaited=false, leader_rank=0, cores=1, select=Vec::new(), exclude=Vec::new(),
        share_by=None, weights=None, max_requests_per_s=None, max_bytes_per_s=None, object_deadline_s=None, stall_after_s=None,
        mirrors=Vec::new(), remote=None, compress=None, level=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        source: &str,
        destination: PathBuf,
        env: HashMap<String, String>,
        decompress: bool,
        node: u32,
        nodes: u32,
        concurrency: usize,
        memory_bytes: u64,
        max_inflated_bytes: Option<u64>,
        allow_case_collisions: bool,
        overwrite: bool,
        manifest: Option<PathBuf>,
        dry_run: bool,
        deadline_s: Option<f64>,
        give_up_after_s: Option<f64>,
        launch_id: Option<String>,
        is_awaited: bool,
        leader_rank: u32,
        cores: usize,
        select: Vec<String>,
        exclude: Vec<String>,
        share_by: Option<String>,
        weights: Option<String>,
        max_requests_per_s: Option<f64>,
        max_bytes_per_s: Option<f64>,
        object_deadline_s: Option<f64>,
        stall_after_s: Option<f64>,
        mirrors: Vec<(String, HashMap<String, String>)>,
        remote: Option<String>,
        compress: Option<String>,
        level: Option<i32>,
    ) -> PyResult<Self> {
        let request = || {
            let rates =
                Rates { requests_per_s: max_requests_per_s, bytes_per_s: max_bytes_per_s, in_flight: concurrency };
            rates.check()?;
            let mut settings = vouching(&env, give_up_after_s)?;
            if let Some(stall_after) = duration("--idle-timeout", stall_after_s)? {
                settings.retry.stall_after = stall_after;
            }
            Ok(StageRequest {
                source: source.parse()?,
                settings,
                rates,
                mirrors: mirrors
                    .iter()
                    .map(|(url, env)| Ok((url.parse()?, vouching(env, give_up_after_s)?)))
                    .collect::<Result<_>>()?,
                destination,
                remote: remote.as_deref().map(str::parse).transpose()?,
                manifest,
                select: KeyFilter::new(&select, &exclude)?,
                options: StageOptions {
                    decompress,
                    node,
                    nodes,
                    division: Division {
                        by: share_by.as_deref().map_or(Ok(ShareBy::default()), str::parse)?,
                        weights: weights.as_deref().map_or(Ok(Weights::default()), str::parse)?,
                        decompress,
                    },
                    concurrency,
                    memory: memory_bytes,
                    object_deadline: duration("--object-timeout", object_deadline_s)?,
                    max_inflated: max_inflated_bytes,
                    allow_case_collisions,
                    overwrite,
                    compression: compress
                        .as_deref()
                        .map(|codec| Compression::new(codec.parse()?, level))
                        .transpose()?,
                },
                dry_run,
                deadline: duration("--timeout", deadline_s)?,
                launch: launch_id,
                is_awaited,
                leader_rank,
                cores,
            })
        };
        request().map(Self).map_err(|error| raise(py, error))
    }

    fn start(&self) -> PyStageJob {
        PyStageJob(Box::new(StageJob::start(self.0.clone(), &runtime())))
    }

    #[pyo3(signature = (*, start_s=600.0, silence_s=120.0))]
    fn wait_for_leader(&self, py: Python<'_>, start_s: f64, silence_s: f64) -> PyResult<String> {
        let request = self.0.clone();
        enter_async(py, async move {
            let limit = |seconds| duration("--wait-timeout", Some(seconds)).map(Option::unwrap_or_default);
            let limits = WaitLimits { start: limit(start_s)?, silence: limit(silence_s)? };
            json(&wait_for_leader(&request, limits).await?)
        })
    }

    /// Like `wait_for_leader`, but returns the leader's error as `{"failed": {code, message, hint}}`.
    #[pyo3(signature = (*, start_s=600.0, silence_s=120.0))]
    fn leader_ends(&self, py: Python<'_>, start_s: f64, silence_s: f64) -> PyResult<String> {
        let request = self.0.clone();
        enter_async(py, async move {
            let limit = |seconds| duration("--wait-timeout", Some(seconds)).map(Option::unwrap_or_default);
            let limits = WaitLimits { start: limit(start_s)?, silence: limit(silence_s)? };
            match leader_ends(&request, limits).await? {
                Ok(summary) => json(&serde_json::json!({ "summary": summary })),
                Err(error) => json(&serde_json::json!({ "failed": error })),
            }
        })
    }
}

/// Reads a staged folder again; returns the job at once.
#[pyfunction]
#[pyo3(signature = (
    destination, env, *, repair=false, concurrency=64, memory_bytes=1073741824, deadline_s=None, give_up_after_s=None, cores=1, remote=None, quick=false,
    select=Vec::new(), exclude=Vec::new()
))]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
pub fn verify(
    py: Python<'_>,
    destination: PathBuf,
    env: HashMap<String, String>,
    repair: bool,
    concurrency: usize,
    memory_bytes: u64,
    deadline_s: Option<f64>,
    give_up_after_s: Option<f64>,
    cores: usize,
    remote: Option<String>,
    quick: bool,
    select: Vec<String>,
    exclude: Vec<String>,
) -> PyResult<PyStageJob> {
    let request = || {
        Ok(VerifyRequest {
            destination,
            remote: remote.as_deref().map(str::parse).transpose()?,
            quick,
            select: KeyFilter::new(&select, &exclude)?,
            repair,
            settings: vouching(&env, give_up_after_s)?,
            deadline: duration("--timeout", deadline_s)?,
            cores,
            concurrency,
            memory: memory_bytes,
        })
    };
    let request = request().map_err(|error| raise(py, error))?;
    Ok(PyStageJob(Box::new(VerifyJob::start(request, &runtime()))))
}

/// Methods of any job in Python, whatever its result type.
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

    /// Waits at most `timeout_s`; the summary as JSON, or `None` while the stage runs.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<String>> {
        let limit = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::ZERO);
        enter(py, || self.0.ended(limit).transpose())
    }

    fn cancel(&self) {
        self.0.stop();
    }
}
