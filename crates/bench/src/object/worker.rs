// SPDX-License-Identifier: Apache-2.0
//! One benchmark worker. It sends requests one after another, retries failed attempts, and records every attempt.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_store::{ObjectRef, PutOptions};
use penstock_types::{ByteRange, Deadline, Error, Result, now};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::keys::Chosen;
use super::shared::Shared;
use super::spec::Operation;
use super::stats::Failure;
use crate::Arrivals;

/// Upper limit of the first back-off. It doubles with each attempt. With jitter, the mean back-off is half the limit.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Result of a successful attempt.
struct Answer {
    first_byte: Option<Instant>,
    bytes: u64,
    verified: u64,
}

/// Sends requests until no object is left, the request limit is reached, or the phase is stopped.
pub(super) async fn work(shared: &Shared, number: u32, start: Instant) -> Result<()> {
    let spec = &shared.spec;
    let mut random = SmallRng::seed_from_u64(spec.seed ^ (u64::from(number) << 32) ^ 0x6f62);
    let mut arrivals = Arrivals::new(spec.arrivals, spec.rate, number, spec.concurrency, spec.seed)?;
    loop {
        // Yield to the runtime. Otherwise, with a store that never waits (such as memory), timers would not run.
        tokio::task::consume_budget().await;
        let Some((operation, chosen)) = choose(shared, &mut random) else { return Ok(()) };
        let began = match &mut arrivals {
            None => now(),
            Some(arrivals) => {
                let intended = start + arrivals.take();
                shared.timer.until(intended).await;
                intended
            }
        };
        if !shared.may_send() {
            return Ok(());
        }
        request(shared, operation, &chosen, began, &mut random).await?;
    }
}

/// Chooses the next operation and its object; `None` ends the worker.
fn choose(shared: &Shared, random: &mut SmallRng) -> Option<(Operation, Chosen)> {
    let mix = &shared.spec.mix;
    let mut at = random.random::<f64>() * mix.iter().map(|share| share.weight).sum::<f64>();
    let operation = mix
        .iter()
        .find(|share| {
            at -= share.weight;
            at < 0.0
        })
        .or_else(|| mix.iter().rfind(|share| share.weight > 0.0))?
        .operation;
    let chosen = match operation {
        Operation::Put => shared.keys.fresh(),
        Operation::Delete => match shared.keys.spare() {
            // No object can be deleted yet, so write an object first.
            None if !shared.spec.once => return Some((Operation::Put, shared.keys.fresh()?)),
            spare => spare,
        },
        Operation::List => Some(Chosen { number: 0, key: shared.keys.folder() }),
        Operation::Get | Operation::Range | Operation::Head => shared.keys.standing(),
    };
    Some((operation, chosen?))
}

async fn request(
    shared: &Shared,
    operation: Operation,
    chosen: &Chosen,
    began: Instant,
    random: &mut SmallRng,
) -> Result<()> {
    let live = &shared.live[operation as usize];
    let mut own = Attempts::new(shared, operation, chosen.number);
    let offset = range_offset(shared, operation, random);
    let body = if operation == Operation::Put { shared.body(chosen.number) } else { Vec::new() };
    let answer = loop {
        let sent = now();
        let mut received = 0;
        let limit = Duration::from_secs_f64(shared.spec.attempt_limit_s);
        match attempt(shared, operation, chosen, offset, body.clone(), &mut received).await {
            Ok(answer) => break (answer, sent),
            Err(error) => {
                let Some(failure) = silence(&error, limit).or_else(|| Failure::of(&error)) else { return Err(error) };
                own.failed.push(failure);
                own.refetched += received;
                // Subtract the bytes of this failed attempt, which were added as they arrived.
                live.bytes.fetch_sub(received, Ordering::Relaxed);
                if failure.is_throttle() {
                    shared.throttles.fetch_add(1, Ordering::Relaxed);
                }
                let waits_from = now();
                if waits_from.saturating_duration_since(began).as_secs_f64() > shared.spec.give_up_after_s {
                    return Err(error);
                }
                own.throttled_since = failure.is_throttle().then_some(sent);
                tokio::time::sleep(back_off(&error, own.failed.len(), random)).await;
                own.waited();
            }
        }
    };
    let ((answer, sent), at) = (answer, now());
    live.requests.fetch_add(1, Ordering::Relaxed);
    if operation == Operation::Put {
        live.bytes.fetch_add(answer.bytes, Ordering::Relaxed);
        shared.keys.made(chosen.number);
    }
    let mut stats = shared.stats(chosen.number, operation);
    stats.whole.record(at.saturating_duration_since(began));
    stats.attempt.record(at.saturating_duration_since(sent));
    if let Some(first) = answer.first_byte {
        stats.first_byte.record(first.saturating_duration_since(sent));
    }
    stats.bytes += answer.bytes;
    stats.verified_bytes += answer.verified;
    // Release the lock, because dropping `own` takes it again to count the failures.
    drop(stats);
    Ok(())
}

/// Failed attempts of one request. They are counted when the value is dropped, because a time limit cancels requests in
/// flight. During heavy throttling, most failed attempts belong to such requests.
struct Attempts<'a> {
    shared: &'a Shared,
    operation: Operation,
    number: u64,
    failed: Vec<Failure>,
    throttled: Duration,
    /// Time at which the throttled attempt before the current back-off was sent.
    throttled_since: Option<Instant>,
    refetched: u64,
}

impl<'a> Attempts<'a> {
    fn new(shared: &'a Shared, operation: Operation, number: u64) -> Self {
        let (failed, throttled) = (Vec::new(), Duration::ZERO);
        Self { shared, operation, number, failed, throttled, throttled_since: None, refetched: 0 }
    }

    fn waited(&mut self) {
        if let Some(since) = self.throttled_since.take() {
            self.throttled += now().saturating_duration_since(since);
        }
    }
}

impl Drop for Attempts<'_> {
    fn drop(&mut self) {
        if self.failed.is_empty() {
            return;
        }
        self.waited();
        let mut stats = self.shared.stats(self.number, self.operation);
        self.failed.iter().for_each(|failure| stats.failures.count(*failure));
        stats.retries += self.failed.len() as u64;
        stats.throttled += self.throttled;
        stats.bytes_refetched += self.refetched;
    }
}

/// Returns `Timeout` for an attempt that received no byte within `limit`. The store's retry wrapper reports it as
/// `Unreachable`.
fn silence(error: &Error, limit: Duration) -> Option<Failure> {
    match error {
        Error::Unreachable { reason, .. }
            if reason.starts_with(&format!("no data received for {:.1} s", limit.as_secs_f64())) =>
        {
            Some(Failure::Timeout)
        }
        _ => None,
    }
}

/// Returns a back-off with full jitter. If the store sent Retry-After, the back-off is at least that long.
fn back_off(error: &Error, tries: usize, random: &mut SmallRng) -> Duration {
    let ceiling = FIRST_WAIT.saturating_mul(1 << (tries - 1).min(16)).min(MAX_WAIT);
    let jitter = ceiling.mul_f64(random.random::<f64>());
    match error {
        Error::Throttled { retry_after: Some(asked), .. } => asked.saturating_add(jitter.min(*asked / 10)),
        _ => jitter,
    }
}

fn range_offset(shared: &Shared, operation: Operation, random: &mut SmallRng) -> u64 {
    let spec = &shared.spec;
    // The sizes of existing objects are unknown, so read the range at the start of the object.
    if operation != Operation::Range || !spec.existing.is_empty() {
        return 0;
    }
    let slots = (spec.object_size / spec.range_size).max(1);
    (random.random::<f64>() * slots as f64) as u64 * spec.range_size
}

async fn attempt(
    shared: &Shared,
    operation: Operation,
    chosen: &Chosen,
    offset: u64,
    body: Vec<Bytes>,
    received: &mut u64,
) -> Result<Answer> {
    let (store, deadline) = (&shared.store, Deadline::NEVER);
    let done = |bytes| Answer { first_byte: None, bytes, verified: 0 };
    match operation {
        Operation::Put => {
            let bytes = body.iter().map(|part| part.len() as u64).sum();
            store.put(&chosen.key, body, &PutOptions::default(), deadline).await?;
            Ok(done(bytes))
        }
        Operation::Head => store.head(&chosen.key, deadline).await.map(|_| done(0)),
        Operation::Delete => store.delete(std::slice::from_ref(&chosen.key), deadline).await.map(|()| done(0)),
        Operation::List => {
            let mut keys = store.list(&chosen.key, None, deadline);
            let mut seen = 0;
            let mut first_byte = None;
            while seen < shared.spec.list_keys && keys.try_next().await?.is_some() {
                first_byte.get_or_insert_with(now);
                seen += 1;
            }
            Ok(Answer { first_byte, bytes: 0, verified: 0 })
        }
        Operation::Get | Operation::Range => {
            let range = match operation {
                Operation::Range => ByteRange::new(offset, shared.spec.range_size),
                _ => ByteRange::WHOLE,
            };
            let got = store.get_ranges(&ObjectRef::current(chosen.key.clone()), &[range], deadline).await?;
            let (mut chunks, mut first_byte, mut verified) = (got.chunks, None, 0);
            let live = &shared.live[operation as usize].bytes;
            while let Some(chunk) = chunks.try_next().await? {
                first_byte.get_or_insert_with(now);
                let len = chunk.bytes.len() as u64;
                *received += len;
                live.fetch_add(len, Ordering::Relaxed);
                if shared.spec.verify.is_some() {
                    if let Some(at) = shared.content.differs(&chunk.bytes, chosen.number, chunk.offset) {
                        let place = penstock_store::place(store.root(), &chosen.key);
                        return Err(Error::corrupt(
                            place,
                            format!("differs from the written content, starting at byte {at}"),
                        ));
                    }
                    verified += len;
                }
            }
            Ok(Answer { first_byte, bytes: *received, verified })
        }
    }
}
