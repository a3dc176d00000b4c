// SPDX-License-Identifier: Apache-2.0
//! Simulates a slow store that throttles. The store wrapper adds latency and limits bytes/s and requests/s. It is for
//! tests, and for stores that neither a slow block device nor the emulator can simulate. Bytes above the rate wait in a
//! queue of limited length. Requests that exceed the burst, or that arrive while the queue is full, fail with 503, as
//! in real stores.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use penstock_types::{ByteRange, Deadline, Error, Key, Result, Url, now};

use crate::{Capabilities, Chunk, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store};

/// Limits of a throttled store. The default sets no limits.
#[derive(Debug, Clone, Default)]
pub struct ThrottleConfig {
    /// Median time until a response begins.
    pub latency: Duration,
    /// 99th percentile of the time until a response begins. With the median, it defines a log-normal distribution. If
    /// it is zero, every response begins after the median time.
    pub latency_p99: Duration,
    /// Maximum number of body bytes per second, summed over reads and writes.
    pub bytes_per_s: Option<f64>,
    /// Maximum number of requests per second.
    pub requests_per_s: Option<f64>,
    /// Number of requests that may arrive together before the rate limit applies.
    pub burst: u32,
    /// Maximum time that bytes wait in the queue. A request that would wait longer is throttled.
    pub queue: Duration,
}

/// Store wrapper that applies the limits to the inner store.
#[derive(Debug)]
pub struct ThrottledStore {
    inner: Arc<dyn Store>,
    gate: Arc<Throttle>,
}

#[derive(Debug)]
struct Throttle {
    limits: ThrottleConfig,
    /// Time at which all admitted bytes will have passed at the limited rate.
    bytes_until: Mutex<Option<Instant>>,
    /// Time at which all admitted requests will have passed at the limited rate.
    requests_until: Mutex<Option<Instant>>,
}

fn lock(mutex: &Mutex<Option<Instant>>) -> std::sync::MutexGuard<'_, Option<Instant>> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Throttle {
    /// Admits a request after the simulated latency, or rejects it with a throttling error.
    async fn enter(&self, place: impl Fn() -> String) -> Result<()> {
        let throttled = |wait: Duration| Error::Throttled {
            place: place(),
            refused: 1,
            sent: 1,
            window: Duration::ZERO,
            retry_after: Some(wait),
            status: 503,
        };
        let at = now();
        let backlog = lock(&self.bytes_until).map_or(Duration::ZERO, |until| until.saturating_duration_since(at));
        if backlog > self.limits.queue {
            return Err(throttled(backlog - self.limits.queue));
        }
        if let Some(rate) = self.limits.requests_per_s.filter(|rate| *rate > 0.0) {
            let each = Duration::from_secs_f64(1.0 / rate);
            let slack = each * self.limits.burst.max(1);
            let mut until = lock(&self.requests_until);
            let next = until.map_or(at, |until| until.max(at)) + each;
            let ahead = next - at;
            if ahead > slack {
                return Err(throttled(ahead - slack));
            }
            *until = Some(next);
        }
        let latency = self.latency();
        if latency > Duration::ZERO {
            tokio::time::sleep(latency).await;
        }
        Ok(())
    }

    /// Draws a latency from the log-normal distribution defined by the median and the 99th percentile.
    fn latency(&self) -> Duration {
        let (median, p99) = (self.limits.latency.as_secs_f64(), self.limits.latency_p99.as_secs_f64());
        if p99 <= median || median == 0.0 {
            return self.limits.latency;
        }
        // Box-Muller transform. 2.326 is the 99th percentile of the standard normal distribution.
        let (u, v) = (1.0 - rand::random::<f64>(), rand::random::<f64>());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        Duration::from_secs_f64(median * ((p99 / median).ln() / 2.326 * normal).exp())
    }

    /// Waits until `bytes` more bytes have passed at the limited rate, but at most until the deadline.
    async fn pass(&self, bytes: u64, deadline: Deadline) -> Result<()> {
        let Some(rate) = self.limits.bytes_per_s.filter(|rate| *rate > 0.0) else { return Ok(()) };
        let until = {
            let mut until = lock(&self.bytes_until);
            let next = until.map_or_else(now, |until| until.max(now())) + Duration::from_secs_f64(bytes as f64 / rate);
            *until = Some(next);
            next
        };
        // All bytes count, even if the deadline comes first, because an aborted read has used the bandwidth too.
        tokio::time::sleep_until(deadline.instant().map_or(until, |at| at.min(until)).into()).await;
        deadline.check("a transfer from or to a throttled store")
    }
}

impl ThrottledStore {
    /// Wraps `inner` and applies `limits` to it.
    pub fn new(inner: Arc<dyn Store>, limits: ThrottleConfig) -> Self {
        let gate = Throttle { limits, bytes_until: Mutex::new(None), requests_until: Mutex::new(None) };
        Self { inner, gate: Arc::new(gate) }
    }

    pub(crate) fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    /// Admits one request, and waits until its body of `bytes` bytes has passed.
    pub(crate) async fn pass(&self, key: &Key, bytes: u64, deadline: Deadline) -> Result<()> {
        self.enter(key, deadline).await?;
        self.gate.pass(bytes, deadline).await
    }

    async fn enter(&self, key: &Key, deadline: Deadline) -> Result<()> {
        let work = self.gate.enter(|| crate::place(self.inner.root(), key));
        match deadline.instant() {
            Some(at) => {
                let what = "a request to a throttled store";
                tokio::time::timeout_at(at.into(), work).await.unwrap_or_else(|_| Err(deadline.error(what)))
            }
            None => work.await,
        }
    }
}

#[async_trait]
impl Store for ThrottledStore {
    fn root(&self) -> &Url {
        self.inner.root()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        let (prefix, after) = (prefix.clone(), after.cloned());
        stream::once(async move {
            self.enter(&prefix, deadline).await?;
            Ok(self.inner.list(&prefix, after.as_ref(), deadline))
        })
        .try_flatten()
        .boxed()
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        self.enter(key, deadline).await?;
        self.inner.head(key, deadline).await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        self.enter(&object.key, deadline).await?;
        let got = self.inner.get_ranges(object, ranges, deadline).await?;
        let gate = self.gate.clone();
        let chunks = got.chunks.and_then(move |chunk: Chunk| {
            let gate = gate.clone();
            async move { gate.pass(chunk.bytes.len() as u64, deadline).await.map(|()| chunk) }
        });
        Ok(GetResult { meta: got.meta, chunks: chunks.boxed() })
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        self.enter(key, deadline).await?;
        self.gate.pass(parts.iter().map(|part| part.len() as u64).sum(), deadline).await?;
        self.inner.put(key, parts, options, deadline).await
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        self.inner().multipart().map(|_| self as &dyn MultipartStore)
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        self.enter(&Key::default(), deadline).await?;
        self.inner.delete(keys, deadline).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    fn shaped(limits: ThrottleConfig) -> ThrottledStore {
        ThrottledStore::new(Arc::new(Memory::named("shape")), limits)
    }

    #[tokio::test]
    async fn test_shape_requests_above_the_burst_are_throttled_with_a_time_to_wait() {
        let store = shaped(ThrottleConfig { requests_per_s: Some(0.01), burst: 3, ..ThrottleConfig::default() });
        let mut codes = Vec::new();
        for _ in 0..5 {
            let error = store.head(&Key::from("none"), Deadline::NEVER).await.unwrap_err();
            if let Error::Throttled { retry_after, .. } = &error {
                assert!(
                    retry_after.is_some_and(|wait| wait > Duration::from_secs(90) && wait <= Duration::from_secs(100))
                );
            }
            codes.push(error.code());
        }
        assert_eq!(codes, ["not-found", "not-found", "not-found", "throttled", "throttled"]);
    }

    #[tokio::test]
    async fn test_shape_bytes_above_the_queue_are_throttled() {
        let store = shaped(ThrottleConfig {
            bytes_per_s: Some(1.0),
            queue: Duration::from_secs(10),
            ..ThrottleConfig::default()
        });
        let (key, parts) = (Key::from("a"), vec![Bytes::from_static(&[0; 100])]);
        let late = Deadline::within(Duration::from_millis(20));
        let error = store.put(&key, parts, &PutOptions::default(), late).await.unwrap_err();
        assert_eq!(error.code(), "deadline");
        let error = store.head(&key, Deadline::NEVER).await.unwrap_err();
        assert_eq!(error.code(), "throttled");
    }

    #[test]
    fn test_shape_latency_has_its_median_and_its_99th_percentile() {
        let (median, p99) = (Duration::from_millis(10), Duration::from_millis(100));
        let gate = shaped(ThrottleConfig { latency: median, latency_p99: p99, ..ThrottleConfig::default() }).gate;
        let draws: Vec<Duration> = (0..20_000).map(|_| gate.latency()).collect();
        let share = |limit| draws.iter().filter(|draw| **draw > limit).count() as f64 / draws.len() as f64;
        assert!((share(median) - 0.5).abs() < 0.03, "{}", share(median));
        assert!((share(p99) - 0.01).abs() < 0.005, "{}", share(p99));
    }
}
