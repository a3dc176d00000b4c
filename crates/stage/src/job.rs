// SPDX-License-Identifier: Apache-2.0
//! A job on the runtime, controlled from another thread. The other thread can read the progress, cancel the job, and
//! wait for the job with a timeout.

use std::future::Future;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use penstock_types::{Error, Metrics, Result, lock};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::progress::{Progress, Snapshot};

type Ended<S> = Arc<(Mutex<Option<Result<S>>>, Condvar)>;

/// A running stage or verification, and its final summary.
#[derive(Debug)]
pub struct Job<S> {
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    cancel: watch::Sender<bool>,
    ended: Ended<S>,
}

impl<S: Clone + Send + 'static> Job<S> {
    pub(super) fn spawn<F>(
        runtime: &Handle,
        work: impl FnOnce(Arc<Progress>, Arc<Metrics>, watch::Receiver<bool>) -> F,
    ) -> Self
    where
        F: Future<Output = Result<S>> + Send + 'static,
    {
        let (progress, metrics) = (Arc::new(Progress::default()), Arc::new(Metrics::default()));
        let (cancel, cancelled) = watch::channel(false);
        let ended: Ended<S> = Arc::new((Mutex::new(None), Condvar::new()));
        let work = work(progress.clone(), metrics.clone(), cancelled);
        let signal = ended.clone();
        runtime.spawn(async move {
            let result = match tokio::spawn(work).await {
                Ok(result) => result,
                Err(join) => Err(Error::bug(format!("the stage ended: {join}"))),
            };
            *lock(&signal.0) = Some(result);
            signal.1.notify_all();
        });
        Self { progress, metrics, cancel, ended }
    }

    /// Progress so far.
    pub fn progress(&self) -> Snapshot {
        self.progress.snapshot()
    }

    /// Counters of requests, retries and throttled responses.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Requests a stop: the job drops transfers in flight, records finished objects, and ends with the error
    /// `Interrupted`.
    pub fn cancel(&self) {
        self.cancel.send_replace(true);
    }

    /// Blocks for at most `limit`; returns `None` if the job is still running.
    pub fn wait(&self, limit: Duration) -> Option<Result<S>> {
        let guard = lock(&self.ended.0);
        let (guard, _) = self
            .ended
            .1
            .wait_timeout_while(guard, limit, |result| result.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        guard.clone()
    }
}

impl<S> Drop for Job<S> {
    fn drop(&mut self) {
        self.cancel.send_replace(true);
    }
}
