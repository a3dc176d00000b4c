// SPDX-License-Identifier: Apache-2.0
//! Runs the core calls that may block: releases the GIL, and checks for Ctrl-C.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use penstock_types::{Error, Result, lock};
use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};

use crate::errors::raise;

/// Interval at which a wait checks for Ctrl-C. 50 ms feels instant and has no measurable cost.
pub const SIGNAL_POLL: Duration = Duration::from_millis(50);

/// Tokio runtime and the process that built it. The threads of the runtime do not exist in a forked child, so the child
/// leaks the inherited runtime and builds a new one.
static RUNTIME: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);

/// The process-wide runtime for sockets and timers, built at first use.
pub fn runtime() -> Handle {
    let mut slot = lock(&RUNTIME);
    let pid = std::process::id();
    if let Some((owner, runtime)) = slot.as_ref()
        && *owner == pid
    {
        return runtime.handle().clone();
    }
    if let Some((_, foreign)) = slot.take() {
        std::mem::forget(foreign);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("penstock-io")
        .enable_all()
        .build()
        .expect("a runtime needs a few threads and descriptors; without them nothing here can run");
    let handle = runtime.handle().clone();
    *slot = Some((pid, runtime));
    handle
}

/// Runs `work` without the GIL and converts its error. Does not check for Ctrl-C, so `work` must not wait long.
pub fn enter<T, F>(py: Python<'_>, work: F) -> PyResult<T>
where
    F: FnOnce() -> Result<T> + Send,
    T: Send,
{
    py.detach(work).map_err(|error| raise(py, error))
}

/// Runs a future to completion without the GIL, and checks for Ctrl-C. Ctrl-C drops the future, which also ends the
/// future's requests.
pub fn enter_async<T, F>(py: Python<'_>, work: F) -> PyResult<T>
where
    F: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let mut task = runtime().spawn(work);
    loop {
        let finished = py.detach(|| runtime().block_on(async { tokio::time::timeout(SIGNAL_POLL, &mut task).await }));
        match finished {
            Ok(Ok(result)) => return result.map_err(|error| raise(py, error)),
            Ok(Err(join)) => return Err(raise(py, Error::bug(join.to_string()))),
            Err(_still_waiting) => {
                if let Err(signal) = py.check_signals() {
                    task.abort();
                    return Err(signal);
                }
            }
        }
    }
}
