// SPDX-License-Identifier: Apache-2.0
//! Runs one phase of object requests: starts its workers, samples their counters, and builds the report.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::TryStreamExt;
use penstock_store::{Opened, RetryPolicy, StoreSettings, open};
use penstock_types::{Deadline, Error, Key, Result, Url, lock, now, unix_now};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::report::{ObjectReport, ObjectSample, OperationReport};
use super::shared::{Brought, Shared};
use super::spec::{ObjectSpec, Operation};
use super::stats::Stats;
use super::worker::work;
use crate::cpu_usage::{CpuTicks, CpuTime, usable_cores};

/// The rate cannot count as steady before there are more samples than this.
const SAMPLES: usize = 25;
const STEADY_SAMPLES: usize = 7;
/// The rate is steady if the rates of the last [`STEADY_SAMPLES`] intervals differ by at most this fraction.
const STEADY: f64 = 0.075;

/// Opens a store whose retry wrapper does not retry, so that each attempt returns its own error.
fn opened(url: &str, mut settings: StoreSettings, attempt_limit: Duration) -> Result<Opened> {
    let url: Url = url.parse()?;
    settings.retry = RetryPolicy {
        give_up_after: Duration::ZERO,
        unreachable_after: Duration::ZERO,
        never_reached_after: Duration::ZERO,
        stall_after: attempt_limit,
        ..RetryPolicy::default()
    };
    open(&url, &settings, Arc::default())
}

/// A running phase of requests. Dropping it cancels the phase.
pub struct ObjectJob {
    shared: Arc<Shared>,
    is_cancelled: Arc<AtomicBool>,
    wake: Arc<Notify>,
    done: Mutex<Receiver<Result<ObjectReport>>>,
    thread: Option<JoinHandle<()>>,
}

impl ObjectJob {
    /// Starts the phase. Returns an error for invalid settings before it sends any request.
    pub fn start(spec: ObjectSpec, settings: StoreSettings) -> Result<Self> {
        spec.check()?;
        let opened = opened(&spec.url, settings, Duration::from_secs_f64(spec.attempt_limit_s))?;
        Self::over(spec, opened)
    }

    /// Starts the phase on a store that does not retry, so that each attempt returns its own error.
    pub(super) fn over(spec: ObjectSpec, opened: Opened) -> Result<Self> {
        let can = opened.store.capabilities();
        for share in spec.mix.iter().filter(|share| share.weight > 0.0) {
            let (is_able, what) = match share.operation {
                Operation::Put | Operation::Delete => (can.put, "writing objects"),
                Operation::List => (can.list, "listing keys"),
                Operation::Range => (can.ranges, "ranged reads"),
                Operation::Get | Operation::Head => (true, ""),
            };
            if !is_able {
                let by = opened.store.root().to_string();
                return Err(Error::Unsupported { what: what.to_owned(), by });
            }
        }
        let shared = Arc::new(Shared::new(spec, opened)?);
        let (is_cancelled, wake) = (Arc::<AtomicBool>::default(), Arc::<Notify>::default());
        let (send, done) = channel();
        let (its, cancelled, woken) = (shared.clone(), is_cancelled.clone(), wake.clone());
        let thread = std::thread::Builder::new()
            .name("penstock-bench".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(std::thread::available_parallelism().map_or(2, usize::from))
                    .thread_name("penstock-bench-io")
                    .enable_all()
                    .build();
                let report = match runtime {
                    Ok(runtime) => runtime.block_on(run(its, &cancelled, &woken)),
                    Err(error) => Err(Error::from_io("a thread", &error)),
                };
                // Sending fails only if the job, and with it the receiver, was dropped.
                let _ = send.send(report);
            })
            .map_err(|error| Error::from_io("a thread", &error))?;
        Ok(Self { shared, is_cancelled, wake, done: Mutex::new(done), thread: Some(thread) })
    }

    /// Returns the numbers of completed requests, transferred bytes and throttled attempts so far.
    pub fn progress(&self) -> (u64, u64, u64) {
        let sample = self.shared.sample(now());
        (sample.requests, sample.bytes, sample.throttles)
    }

    /// Cancels the job immediately: [`Self::wait`] then returns `Interrupted`.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.wake.notify_one();
    }

    /// Waits at most `limit` for the report; returns `None` after that. Returns the report only once.
    pub fn wait(&self, limit: Duration) -> Option<Result<ObjectReport>> {
        let done = lock(&self.done);
        match done.recv_timeout(limit) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Error::bug("the requests ended without a report"))),
        }
    }
}

impl Drop for ObjectJob {
    fn drop(&mut self) {
        self.cancel();
        if let Some(thread) = self.thread.take() {
            // The thread has already sent its errors through the channel.
            let _ = thread.join();
        }
    }
}

async fn run(shared: Arc<Shared>, is_cancelled: &AtomicBool, wake: &Notify) -> Result<ObjectReport> {
    let (cpu, machine, started_s, start) = (CpuTime::now(), CpuTicks::now(), unix_now().as_secs_f64(), now());
    let concurrency = shared.spec.concurrency;
    let mut workers = JoinSet::new();
    for number in 0..concurrency {
        let shared = shared.clone();
        let delay = shared.spec.ramp_s * f64::from(number) / f64::from(concurrency);
        workers.spawn(async move {
            if delay > 0.0 {
                tokio::time::sleep_until((start + Duration::from_secs_f64(delay)).into()).await;
            }
            shared.workers.fetch_add(1, Ordering::Relaxed);
            let ended = work(&shared, number, start).await;
            shared.first.get_or_init(|| shared.ends(start, machine));
            ended
        });
    }
    let every = Duration::from_secs_f64(shared.spec.sample_s);
    let mut ticks = tokio::time::interval_at((start + every).into(), every);
    let limit = shared.spec.time_limit_s.map(|limit| start + Duration::from_secs_f64(limit));
    let until = async {
        match limit {
            Some(limit) => tokio::time::sleep_until(limit.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(until);
    let (mut series, mut ramp, mut fault) = (Vec::new(), None, None);
    let ended_by = loop {
        tokio::select! {
            ended = workers.join_next() => match ended {
                None => break None,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => {
                    fault = Some(error);
                    break None;
                }
                Some(Err(join)) => {
                    fault = Some(Error::bug(join.to_string()));
                    break None;
                }
            },
            () = &mut until => break Some("time"),
            () = wake.notified() => break None,
            _ = ticks.tick() => {
                series.push(shared.sample(start));
                if ramp.is_none() && shared.spec.ramp_s > 0.0 && shared.workers.load(Ordering::Relaxed) == u64::from(concurrency) {
                    ramp = Some(shared.ends(start, machine));
                }
                if shared.spec.until_stable && is_steady(&series) {
                    break Some("stable");
                }
            }
        }
    };
    // Requests in flight are dropped. The bytes that they have received are counted, but the requests are not.
    let last = shared.ends(start, machine);
    workers.shutdown().await;
    if is_cancelled.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    if let Some(error) = fault {
        return Err(error);
    }
    let ended_by = match ended_by {
        None if shared.spec.request_limit.is_some_and(|limit| shared.sent.load(Ordering::Relaxed) >= limit) => {
            Some("requests")
        }
        other => other,
    };
    let mut sums = Brought::default();
    for place in &shared.stats {
        let place = lock(place);
        sums.iter_mut().zip(place.iter()).for_each(|(sum, stats)| sum.merge(stats));
    }
    let operations = Operation::ALL.into_iter().zip(&sums);
    let was_sent = |stats: &Stats| stats.whole.count() > 0 || stats.retries > 0;
    Ok(ObjectReport {
        started_s,
        operations: operations.filter(|(_, s)| was_sent(s)).map(|(o, s)| OperationReport::of(o, s)).collect(),
        first: shared.first.get().copied().filter(|first| first.seconds <= last.seconds).unwrap_or(last),
        last,
        ramp,
        series: thinned(series),
        cpu: CpuTime::now().since(cpu),
        cores: usable_cores(),
        offered_per_s: shared.spec.rate,
        ended_by,
    })
}

/// Returns true if the rate over the last samples is steady.
fn is_steady(series: &[ObjectSample]) -> bool {
    if series.len() <= SAMPLES {
        return false;
    }
    let last = &series[series.len() - STEADY_SAMPLES - 1..];
    let moves_bytes = last[last.len() - 1].bytes > last[0].bytes;
    let rates: Vec<f64> = last
        .windows(2)
        .map(|pair| {
            let done = match moves_bytes {
                // The byte count may decrease, because the bytes of failed attempts are subtracted.
                true => pair[1].bytes.saturating_sub(pair[0].bytes),
                false => pair[1].requests - pair[0].requests,
            };
            done as f64 / (pair[1].t_s - pair[0].t_s)
        })
        .collect();
    let (least, most) = rates.iter().fold((f64::MAX, 0.0f64), |(l, m), &rate| (l.min(rate), m.max(rate)));
    least > 0.0 && most / least - 1.0 <= STEADY
}

const MAX_SAMPLES: usize = 600;

/// Reduces the number of samples. The counts in the samples are cumulative, so omitting samples loses no counts.
fn thinned(series: Vec<ObjectSample>) -> Vec<ObjectSample> {
    let step = series.len().div_ceil(MAX_SAMPLES).max(1);
    series.into_iter().skip(step - 1).step_by(step).collect()
}

/// Lists at most `most` keys below a URL, relative to the URL. If the store cannot list, returns one empty key, which
/// is the object at the URL itself.
pub async fn keys_of(url: &str, settings: &StoreSettings, most: usize) -> Result<Vec<String>> {
    let url: Url = url.parse()?;
    let Opened { store, prefix } = open(&url, settings, Arc::default())?;
    if !store.capabilities().list {
        return Ok(vec![String::new()]);
    }
    let mut found = Vec::new();
    let mut keys = store.list(&prefix, None, Deadline::NEVER);
    while found.len() < most
        && let Some(meta) = keys.try_next().await?
    {
        // Skip keys that are not UTF-8, because an [`ObjectSpec`] cannot contain them.
        found.extend(meta.key.strip_prefix(&prefix).and_then(|tail| tail.as_str().map(str::to_owned)));
    }
    if found.is_empty() {
        return Err(Error::NotFound { place: url.to_string() });
    }
    Ok(found)
}

/// Deletes all objects below a folder that the benchmark created. Returns their number. Retries as set in `settings`.
pub async fn clear(url: &str, settings: &StoreSettings) -> Result<u64> {
    let url: Url = url.parse()?;
    let Opened { store, prefix } = open(&url, settings, Arc::default())?;
    if !prefix.as_bytes().ends_with(b"/") && store.root().to_path().is_none() {
        return Err(Error::bug(format!("{url} is not a folder of the benchmark")));
    }
    let found: Vec<Key> = store.list(&prefix, None, Deadline::NEVER).map_ok(|meta| meta.key).try_collect().await?;
    for keys in found.chunks(1000) {
        store.delete(keys, Deadline::NEVER).await?;
    }
    Ok(found.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_steady_needs_samples_that_agree() {
        let at = |n: usize, bytes: u64| ObjectSample { t_s: n as f64, requests: 0, bytes, throttles: 0, workers: 1 };
        let even: Vec<_> = (1..=30).map(|n| at(n, 100 * n as u64)).collect();
        assert!(is_steady(&even) && !is_steady(&even[..20]));
        let growing: Vec<_> = (1..=30).map(|n| at(n, 10 * (n * n) as u64)).collect();
        assert!(!is_steady(&growing));
        let stalled: Vec<_> = (1..=30).map(|n| at(n, 100)).collect();
        assert!(!is_steady(&stalled));
    }
}
