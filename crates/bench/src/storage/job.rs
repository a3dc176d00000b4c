// SPDX-License-Identifier: Apache-2.0
//! Runs one storage phase: starts its threads, samples their counters, and builds the report. All threads of a host
//! start at the same time. All hosts start at the agreed time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_types::{Error, Result, lock, now, unix_now};

use super::meter::{Meter, Shared, Tally};
use super::report::{Ends, PhaseReport, Sample, Total};
use super::spec::{Phase, StorageSpec};
use super::target;
use super::worker::Worker;
use crate::Histogram;
use crate::content::Content;
use crate::cpu_usage::{CpuTicks, CpuTime, usable_cores};

/// Initial sampling interval. Whenever there are more than `MAX_SAMPLES` samples, it doubles.
const SAMPLE: Duration = Duration::from_millis(100);
const MAX_SAMPLES: usize = 600;

/// A running phase. Dropping it stops the phase and waits for its threads.
#[derive(Debug)]
pub struct PhaseJob {
    shared: Arc<Shared>,
    is_cancelled: Arc<AtomicBool>,
    done: Mutex<Receiver<Result<PhaseReport>>>,
    thread: Option<JoinHandle<()>>,
}

impl PhaseJob {
    /// Checks the settings and the target, then starts the phase. All errors are returned before any thread starts.
    pub fn start(spec: StorageSpec, phase: Phase) -> Result<Self> {
        spec.check()?;
        let target = target::find(&spec, phase)?;
        let content = Content::new(spec.verify.unwrap_or(spec.seed), spec.compressible);
        let tallies = (0..spec.threads).map(|_| Tally::default()).collect();
        let shared = Arc::new(Shared {
            spec,
            phase,
            target,
            content,
            tallies,
            stop: AtomicBool::new(false),
            first: OnceLock::new(),
        });
        let is_cancelled = Arc::<AtomicBool>::default();
        let (send, done) = channel();
        let (its, cancelled) = (shared.clone(), is_cancelled.clone());
        let thread = std::thread::Builder::new()
            .name("penstock-bench".to_owned())
            .spawn(move || {
                // Sending fails only if the job, and with it the receiver, was dropped.
                let _ = send.send(run(&its, &cancelled));
            })
            .map_err(|error| Error::from_io("a thread", &error))?;
        Ok(Self { shared, is_cancelled, done: Mutex::new(done), thread: Some(thread) })
    }

    /// Returns the totals so far.
    pub fn progress(&self) -> Total {
        self.shared.total()
    }

    /// Asks the phase to stop. [`Self::wait`] then returns `Interrupted`.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits at most `limit` for the report; returns `None` after that. Returns the report only once.
    pub fn wait(&self, limit: Duration) -> Option<Result<PhaseReport>> {
        let done = lock(&self.done);
        match done.recv_timeout(limit) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(Error::bug("the phase ended without a report"))),
        }
    }
}

impl Drop for PhaseJob {
    fn drop(&mut self) {
        self.cancel();
        if let Some(thread) = self.thread.take() {
            // The thread has already sent its result. If the thread panicked, `wait` reports a bug.
            let _ = thread.join();
        }
    }
}

/// Barrier that releases all threads with a common start time. A start time of `None` cancels the start.
#[derive(Default)]
struct Gate {
    start: Mutex<Option<Option<Instant>>>,
    opened: Condvar,
}

impl Gate {
    fn open(&self, start: Option<Instant>) {
        *lock(&self.start) = Some(start);
        self.opened.notify_all();
    }

    fn pass(&self) -> Option<Instant> {
        let mut start = lock(&self.start);
        loop {
            match *start {
                Some(start) => return start,
                None => start = self.opened.wait(start).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

fn run(shared: &Shared, is_cancelled: &AtomicBool) -> Result<PhaseReport> {
    let gate = Gate::default();
    std::thread::scope(|scope| {
        let (send, events) = channel();
        let threads = shared.spec.threads;
        let mut handles = Vec::with_capacity(threads as usize);
        let mut ready = Ok(());
        for number in 0..threads {
            let (send, gate) = (send.clone(), &gate);
            let spawned = std::thread::Builder::new()
                .name(format!("penstock-bench-{number}"))
                .spawn_scoped(scope, move || work(shared, number, gate, &send));
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    ready = Err(Error::from_io(format!("thread {number} of {threads}"), &error));
                    break;
                }
            }
        }
        drop(send);
        for _ in 0..handles.len() {
            if let Ok(Event::Ready(Err(error))) = events.recv() {
                ready = ready.and(Err(error));
            }
        }
        let begins = match ready.and_then(|()| agreed(&shared.spec, is_cancelled)) {
            Ok(begins) => begins,
            Err(error) => {
                gate.open(None);
                return Err(error);
            }
        };
        let (cpu, machine) = (CpuTime::now(), CpuTicks::now());
        let (at, started_s) = (now(), unix_now().as_secs_f64());
        gate.open(Some(at));
        let (series, ended_by_time) = watch(shared, at, handles.len(), &events);
        let mut ends = Vec::with_capacity(handles.len());
        let mut fault = None;
        for handle in handles {
            match handle.join() {
                Ok(Some(Ok(end))) => ends.push(end),
                Ok(Some(Err(error))) => {
                    fault.get_or_insert(error);
                }
                Ok(None) => {}
                Err(_) => {
                    fault.get_or_insert(Error::bug("a worker of the phase panicked"));
                }
            }
        }
        if is_cancelled.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        if let Some(error) = fault {
            return Err(error);
        }
        let (cpu, after) = (CpuTime::now().since(cpu), CpuTicks::now());
        let last_at = ends.iter().map(|end| end.at).max().unwrap_or(at);
        let mut merged = (Histogram::default(), Histogram::default(), Histogram::default());
        for end in &ends {
            merged.0.merge(&end.entry);
            merged.1.merge(&end.io);
            end.service.iter().for_each(|service| merged.2.merge(service));
        }
        let since = |moment: Instant| moment.saturating_duration_since(at).as_secs_f64();
        let total = shared.total();
        let last = Ends { seconds: since(last_at), total, cpu_percent: after.percent_since(machine) };
        let first = shared.first.get().map_or(last, |first| Ends {
            seconds: since(first.at),
            total: first.total,
            cpu_percent: first.machine.percent_since(machine),
        });
        let hit_ios = ends.iter().any(|end| end.reached_io_limit);
        Ok(PhaseReport {
            phase: shared.phase.name(),
            started_s,
            start_late_s: begins.map(|agreed| started_s - agreed),
            first,
            last,
            tail_s: last.seconds - first.seconds,
            entry_latency: merged.0.latency(),
            io_latency: merged.1.latency(),
            service_latency: shared.spec.rate.map(|_| merged.2.latency()),
            offered_per_s: shared.spec.rate,
            cpu,
            cores: usable_cores(),
            series,
            verified_bytes: ends.iter().map(|end| end.verified_bytes).sum(),
            ended_by: if ended_by_time { Some("time") } else { hit_ios.then_some("ios") },
        })
    })
}

enum Event {
    Ready(Result<()>),
    Ended,
}

/// Final statistics of one worker.
struct End {
    at: Instant,
    io: Histogram,
    entry: Histogram,
    service: Option<Histogram>,
    verified_bytes: u64,
    reached_io_limit: bool,
}

fn work(shared: &Shared, number: u32, gate: &Gate, send: &Sender<Event>) -> Option<Result<End>> {
    let worker = Meter::new(shared, number).and_then(|meter| Worker::new(meter, number));
    let _ = send.send(Event::Ready(worker.as_ref().map(|_| ()).map_err(Clone::clone)));
    let (Some(start), Ok(worker)) = (gate.pass(), worker) else { return None };
    let ended = worker.run(start);
    let at = shared.ended();
    if ended.is_err() {
        // An error in one thread stops all threads.
        shared.stop.store(true, Ordering::Relaxed);
    }
    let _ = send.send(Event::Ended);
    Some(ended.map(|meter| End {
        at,
        verified_bytes: meter.verified_bytes,
        reached_io_limit: meter.reached_io_limit(),
        io: meter.io,
        entry: meter.entry,
        service: meter.service,
    }))
}

/// Waits for the start time that the hosts agreed on. Returns an error if that time has passed or is over 1 h away.
fn agreed(spec: &StorageSpec, is_cancelled: &AtomicBool) -> Result<Option<f64>> {
    let Some(agreed) = spec.start_at_s else { return Ok(None) };
    let left = agreed - unix_now().as_secs_f64();
    if !(0.0..=3600.0).contains(&left) {
        let problem = format!("must be 0 to 3,600 s after the current time of this host (got {left:.3} s)");
        return Err(Error::config("--start-at", problem));
    }
    crate::arrivals::wait_until(now() + Duration::from_secs_f64(left), &|| is_cancelled.load(Ordering::Relaxed));
    Ok(Some(agreed))
}

/// Samples the counters until all threads have ended. The flag in the result is true if the time limit ended the phase.
fn watch(shared: &Shared, start: Instant, threads: usize, events: &Receiver<Event>) -> (Vec<Sample>, bool) {
    let limit = shared.spec.time_limit_s.map(|limit| start + Duration::from_secs_f64(limit));
    let mut series = Vec::with_capacity(MAX_SAMPLES + 1);
    let (mut every, mut next) = (SAMPLE, start + SAMPLE);
    let (mut left, mut ended_by_time) = (threads, false);
    while left > 0 {
        let at = now();
        let wake = limit.filter(|_| !ended_by_time).map_or(next, |limit| limit.min(next));
        match events.recv_timeout(wake.saturating_duration_since(at)) {
            Ok(_) => left -= 1,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let at = now();
                if limit.is_some_and(|limit| at >= limit) && !ended_by_time {
                    ended_by_time = true;
                    shared.stop.store(true, Ordering::Relaxed);
                }
                if at >= next {
                    series.push(Sample { t_s: (at - start).as_secs_f64(), total: shared.total() });
                    if series.len() > MAX_SAMPLES {
                        // The counts in the samples are cumulative, so dropping every second sample loses no counts.
                        let mut keep = false;
                        series.retain(|_| {
                            keep = !keep;
                            !keep
                        });
                        every *= 2;
                    }
                    next = at + every;
                }
            }
        }
    }
    (series, ended_by_time)
}
