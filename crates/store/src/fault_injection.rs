// SPDX-License-Identifier: Apache-2.0
//! Store wrapper for tests. It injects faults according to a seeded schedule, so that a failure can be reproduced.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt, stream};
use penstock_types::{ByteRange, Deadline, Error, Key, Result, Url};

use crate::{Capabilities, Chunk, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store};

/// Kinds of faults and their frequency. Each frequency is a share of the calls, and their sum is at most one.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Seed of the schedule. With the same seed and the same order of calls, the same calls get a fault.
    pub seed: u64,
    /// Share of calls that fail with status 503 and `retry_after`.
    pub throttle: f64,
    /// The Retry-After value of a throttled call.
    pub retry_after: Option<Duration>,
    /// Share of calls whose connection is reset. The reset happens before the response, in a body or a listing, or
    /// after a write was completed.
    pub reset: f64,
    /// Share of calls whose body ends early without an error.
    pub truncate: f64,
    /// Share of calls in which one bit of a body is flipped.
    pub flip: f64,
    /// Share of reads at a pinned version that find another version, as if another writer had replaced the object.
    pub replace: f64,
    /// Share of calls that hang before the response or in a body.
    pub stall: f64,
    /// Maximum number of faults that are injected.
    pub most: u64,
}

/// Store wrapper that injects the faults of a schedule.
#[derive(Debug)]
pub struct Fault {
    inner: Arc<dyn Store>,
    faults: Faults,
    calls: AtomicU64,
    injected: AtomicU64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Throttle,
    Reset,
    Truncate,
    Flip,
    Replace,
    Stall,
}

/// SplitMix64 (Steele, Lea and Flood). The result depends only on the seed and the number of the call, not on the order
/// in which calls end.
fn draw(seed: u64, call: u64) -> u64 {
    let mut z = seed.wrapping_add((call + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Fault {
    /// Wraps `inner` and injects faults into calls to it.
    pub fn new(inner: Arc<dyn Store>, faults: Faults) -> Self {
        Self { inner, faults, calls: AtomicU64::new(0), injected: AtomicU64::new(0) }
    }

    /// Number of faults injected so far.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// Returns the fault of this call, and a random number that determines where the fault occurs. Returns `None` if
    /// the schedule has no fault for this call, or if the fault cannot occur in this kind of call.
    fn next(&self, applies: &[Kind]) -> Option<(Kind, u64)> {
        let drawn = draw(self.faults.seed, self.calls.fetch_add(1, Ordering::Relaxed));
        let faults = &self.faults;
        let mut share = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        let shares = [
            (Kind::Throttle, faults.throttle),
            (Kind::Reset, faults.reset),
            (Kind::Truncate, faults.truncate),
            (Kind::Flip, faults.flip),
            (Kind::Replace, faults.replace),
            (Kind::Stall, faults.stall),
        ];
        let kind = shares.into_iter().find_map(|(kind, of_all)| {
            share -= of_all;
            (share < 0.0).then_some(kind)
        })?;
        if !applies.contains(&kind) {
            return None;
        }
        let spent = |count| (count < self.faults.most).then_some(count + 1);
        self.injected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent).ok()?;
        Some((kind, draw(!self.faults.seed, drawn)))
    }

    pub(crate) fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    /// Injects a fault into a request of a multipart upload before the request is sent.
    pub(crate) async fn strike(&self, key: &Key) -> Result<()> {
        match self.next(&[Kind::Throttle, Kind::Reset, Kind::Stall]) {
            None => Ok(()),
            Some((Kind::Throttle, _)) => Err(self.throttled(key)),
            Some((Kind::Stall, _)) => std::future::pending().await,
            Some(_) => Err(self.reset()),
        }
    }

    fn throttled(&self, key: &Key) -> Error {
        let place = crate::place(self.inner.root(), key);
        let retry_after = self.faults.retry_after;
        Error::Throttled { place, refused: 1, sent: 1, window: Duration::ZERO, retry_after, status: 503 }
    }

    fn reset(&self) -> Error {
        Error::Unreachable { place: self.inner.root().to_string(), reason: "connection reset (injected)".to_owned() }
    }
}

#[async_trait]
impl Store for Fault {
    fn root(&self) -> &Url {
        self.inner.root()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        let listed = self.inner.list(prefix, after, deadline);
        match self.next(&[Kind::Throttle, Kind::Reset, Kind::Stall]) {
            None => listed,
            Some((Kind::Throttle, _)) => stream::iter([Err(self.throttled(prefix))]).boxed(),
            Some((Kind::Stall, at)) => listed.take((at % 5) as usize).chain(stream::pending()).boxed(),
            Some((_, at)) => listed.take((at % 5) as usize).chain(stream::iter([Err(self.reset())])).boxed(),
        }
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        match self.next(&[Kind::Throttle, Kind::Reset, Kind::Stall]) {
            None => self.inner.head(key, deadline).await,
            Some((Kind::Throttle, _)) => Err(self.throttled(key)),
            Some((Kind::Stall, _)) => std::future::pending().await,
            Some(_) => Err(self.reset()),
        }
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let all = [Kind::Throttle, Kind::Reset, Kind::Truncate, Kind::Flip, Kind::Replace, Kind::Stall];
        let fault = self.next(&all);
        match fault {
            Some((Kind::Throttle, _)) => return Err(self.throttled(&object.key)),
            Some((Kind::Reset, at)) if at % 2 == 0 => return Err(self.reset()),
            Some((Kind::Stall, at)) if at % 2 == 0 => return std::future::pending().await,
            Some((Kind::Replace, _)) => {
                if let Some(want) = &object.version {
                    return Err(Error::Changed {
                        place: crate::place(self.inner.root(), &object.key),
                        want: want.to_string(),
                        have: "another (injected)".to_owned(),
                    });
                }
            }
            _ => {}
        }
        let got = self.inner.get_ranges(object, ranges, deadline).await?;
        let Some((kind, at)) = fault.filter(|(kind, _)| *kind != Kind::Replace) else {
            return Ok(got);
        };
        let total: u64 = ranges.iter().map(|range| range.end(got.meta.size).saturating_sub(range.start)).sum();
        if total == 0 {
            return Ok(got);
        }
        // Position of the fault, counted in requested bytes.
        let strike = (at >> 1) % total;
        let mut passed = 0;
        let broken = got.chunks.map_ok(move |chunk| {
            let begin = passed;
            passed += chunk.bytes.len() as u64;
            (begin, chunk)
        });
        let chunks = match kind {
            Kind::Flip => broken.map_ok(move |(begin, chunk)| flipped(chunk, begin, strike, at)).boxed(),
            kind => {
                let cut = broken.try_take_while(move |(begin, _)| std::future::ready(Ok(*begin < strike))).map_ok(
                    move |(begin, mut chunk)| {
                        chunk.bytes.truncate((strike - begin).min(chunk.bytes.len() as u64) as usize);
                        chunk
                    },
                );
                match kind {
                    Kind::Reset => cut.chain(stream::iter([Err(self.reset())])).boxed(),
                    Kind::Stall => cut.chain(stream::pending()).boxed(),
                    _ => cut.boxed(),
                }
            }
        };
        Ok(GetResult { meta: got.meta, chunks })
    }

    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        match self.next(&[Kind::Throttle, Kind::Reset, Kind::Stall]) {
            None => self.inner.put(key, parts, options, deadline).await,
            Some((Kind::Throttle, _)) => Err(self.throttled(key)),
            Some((kind, at)) => {
                if at % 2 == 0 {
                    self.inner.put(key, parts, options, deadline).await?;
                }
                if kind == Kind::Stall { std::future::pending().await } else { Err(self.reset()) }
            }
        }
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        self.inner().multipart().map(|_| self as &dyn MultipartStore)
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        match self.next(&[Kind::Throttle, Kind::Reset, Kind::Stall]) {
            None => self.inner.delete(keys, deadline).await,
            Some((Kind::Throttle, _)) => Err(self.throttled(&Key::default())),
            Some((kind, at)) => {
                if at % 2 == 0 {
                    self.inner.delete(keys, deadline).await?;
                }
                if kind == Kind::Stall { std::future::pending().await } else { Err(self.reset()) }
            }
        }
    }
}

/// Returns the chunk. If the chunk contains the byte at `strike`, flips one bit of that byte.
fn flipped(mut chunk: Chunk, begin: u64, strike: u64, at: u64) -> Chunk {
    if let Some(index) = strike.checked_sub(begin).filter(|index| *index < chunk.bytes.len() as u64) {
        let mut bytes = BytesMut::from(&chunk.bytes[..]);
        bytes[index as usize] ^= 1 << (at % 8);
        chunk.bytes = bytes.freeze();
    }
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Retry, RetryPolicy};
    use proptest::prelude::*;

    fn quick() -> RetryPolicy {
        RetryPolicy {
            first_wait: Duration::from_micros(100),
            max_wait: Duration::from_millis(1),
            stall_after: Duration::from_millis(20),
            ..RetryPolicy::default()
        }
    }

    type Ranges = Vec<Vec<u8>>;

    /// Returns the expected bytes, the bytes read, and the number of faults injected meanwhile.
    fn read(faults: Faults, ranges: &[ByteRange]) -> (Ranges, Result<Ranges>, u64) {
        let bytes = crate::suite::pattern(20_000);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let memory = Arc::new(Memory::named(&format!("fault-{:x}", rand::random::<u64>())));
            let key = Key::from("a");
            memory.put(&key, vec![bytes.clone().into()], &PutOptions::default(), Deadline::NEVER).await.unwrap();
            let fault = Arc::new(Fault::new(memory, faults));
            let store = Retry::new(fault.clone(), quick());
            let got = async {
                let mut got = store.get_ranges(&ObjectRef::current(key), ranges, Deadline::NEVER).await?;
                let mut out = vec![Vec::new(); ranges.len()];
                while let Some(chunk) = got.chunks.try_next().await? {
                    out[chunk.range].extend_from_slice(&chunk.bytes);
                }
                Ok(out)
            };
            let got = got.await;
            let want = ranges.iter().map(|range| bytes[range.start as usize..range.end(20_000) as usize].to_vec());
            (want.collect(), got, fault.injected())
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn prop_read_through_faults_is_whole_and_right(seed in any::<u64>()) {
            let faults = Faults {
                seed, throttle: 0.2, reset: 0.3, truncate: 0.2, stall: 0.1, most: 6, ..Faults::default()
            };
            let ranges = [ByteRange::new(0, 7000), ByteRange::new(5, 0), ByteRange::new(6000, 9000), ByteRange::new(19_990, 50)];
            let (want, got, _) = read(faults, &ranges);
            prop_assert_eq!(got.unwrap(), want);
        }

        #[test]
        fn prop_flipped_bit_is_never_taken_for_the_object(seed in any::<u64>()) {
            let (want, got, injected) = read(Faults { seed, flip: 0.5, reset: 0.3, most: 3, ..Faults::default() }, &[ByteRange::WHOLE]);
            match got {
                Ok(got) => prop_assert_eq!(got, want),
                Err(error) => prop_assert!(error.code() == "corrupt" && injected > 0, "{}", error),
            }
        }
    }

    #[test]
    fn test_fault_schedule_is_the_seed_s() {
        let draws = |seed| (0..8).map(|call| draw(seed, call)).collect::<Vec<_>>();
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn test_fault_replaced_object_amid_a_read_is_changed() {
        // The first request is truncated, and the second one, which is pinned, finds another version.
        let found = (0..200).find_map(|seed| {
            let faults = Faults { seed, truncate: 0.4, replace: 0.5, most: 4, ..Faults::default() };
            read(faults, &[ByteRange::WHOLE]).1.err()
        });
        assert_eq!(found.map(|error| error.code()), Some("changed"));
    }
}
