// SPDX-License-Identifier: Apache-2.0
//! Parallel decompression of one object: decompresses the frames of the object (gzip members, zstd or LZ4 frames) on
//! several cores, and writes the content to the file in order.
//!
//! For each window of stored bytes, the decoder borrows idle cores and then returns them. If there are more objects
//! than cores, each decoder uses only its own core. The start of a gzip member is a guess. If a run of frames does not
//! end where it was expected to end, the stream decoder decodes the rest. Wrong guesses and damaged objects thus give
//! the same result and the same error as without parallelism.

use std::sync::{Condvar, Mutex, PoisonError};

use penstock_codec::{Codec, FrameRun, FrameRunSize, Inflated, StreamDecoder, decompress_frames, split_frames};
use penstock_types::{Result, lock};
use tokio::sync::Semaphore;

/// Initial number of stored bytes that are buffered and split into frame runs. Doubled if a frame is longer.
const WINDOW: usize = 8 << 20;

/// Memory and cores for one object.
pub(crate) struct CpuBudget<'a> {
    /// Cores in addition to the caller's.
    pub cores: &'a Semaphore,
    /// Maximum number of threads, including the caller's.
    pub threads: usize,
    /// Maximum bytes held in memory.
    pub memory: u64,
}

/// Decompresses one object while its stored bytes arrive.
pub(crate) struct ParallelDecoder<'a> {
    codec: Codec,
    limit: u64,
    place: &'a str,
    cpu_budget: CpuBudget<'a>,
    passed: Inflated,
    blocks: u64,
    held: Vec<u8>,
    buffers: Mutex<Vec<Vec<u8>>>,
    window: usize,
    /// Stream decoder for the rest of the object, once the frames of the object cannot be separated.
    stream: Option<StreamDecoder>,
}

impl<'a> ParallelDecoder<'a> {
    pub fn new(codec: Codec, limit: u64, place: &'a str, cpu_budget: CpuBudget<'a>) -> Self {
        let passed = Inflated { bytes_in: 0, bytes_out: 0 };
        let window = WINDOW.min(quarter(cpu_budget.memory));
        Self {
            codec,
            limit,
            place,
            cpu_budget,
            passed,
            blocks: 0,
            held: Vec::new(),
            buffers: Mutex::default(),
            window,
            stream: None,
        }
    }

    /// Adds the next stored bytes; passes content to `sink`, in order.
    pub fn push(&mut self, piece: &[u8], sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if let Some(stream) = &mut self.stream {
            return stream.push(piece, sink);
        }
        self.held.extend_from_slice(piece);
        if self.held.len() < self.window { Ok(()) } else { self.round(false, sink) }
    }

    /// Ends the object; passes the remaining content to `sink`, in order.
    pub fn finish(mut self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.stream.is_none() {
            self.round(true, sink)?;
        }
        match self.stream {
            Some(stream) => stream.finish().map(drop),
            None => Ok(()),
        }
    }

    /// Decodes the whole object in one step if its frames can be separated and another core is free. Otherwise returns
    /// `None` and has no effect.
    pub fn whole(
        codec: Codec,
        limit: u64,
        place: &str,
        cpu_budget: CpuBudget<'_>,
        stored: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        if cpu_budget.threads < 2 || cpu_budget.cores.available_permits() == 0 {
            return None;
        }
        let stretches = split_frames(codec, stored, true, FrameRunSize::default());
        if stretches.len() < 2 {
            return None;
        }
        let mut apart = ParallelDecoder::new(codec, limit, place, cpu_budget);
        let done = apart.decompress(stored, &stretches, sink).and_then(|at| match at == stored.len() {
            true => Ok(()),
            false => {
                let mut stream = apart.go_on();
                stored[at..].chunks(1 << 20).try_for_each(|piece| stream.push(piece, sink))?;
                stream.finish().map(drop)
            }
        });
        Some(done)
    }

    fn round(&mut self, is_end: bool, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        let stretches = split_frames(self.codec, &held, is_end, FrameRunSize::default());
        if stretches.is_empty() && !is_end && self.window < quarter(self.cpu_budget.memory) {
            self.window = (self.window * 2).min(quarter(self.cpu_budget.memory));
            self.held = held;
            return Ok(());
        }
        let framed: usize = stretches.iter().map(|stretch| stretch.stored).sum();
        let at = self.decompress(&held, &stretches, sink)?;
        if at < framed || stretches.is_empty() || (is_end && at < held.len()) {
            let mut stream = self.go_on();
            stream.push(&held[at..], sink)?;
            self.stream = Some(stream);
        } else {
            self.held = held;
            self.held.drain(..at);
        }
        Ok(())
    }

    /// Returns a stream decoder that continues after the frames decoded so far.
    fn go_on(&self) -> StreamDecoder {
        StreamDecoder::resume_at(self.codec, self.limit, self.place, self.passed, self.blocks)
    }

    /// Decompresses `stretches` (runs of frames from the start of `stored`) until the first invalid run. Returns the
    /// number of stored bytes consumed.
    fn decompress(
        &mut self,
        stored: &[u8],
        stretches: &[FrameRun],
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<usize> {
        let (mut at, mut rest) = (0, stretches);
        while !rest.is_empty() {
            let (mut taken, mut content) = (0, 0u64);
            while let Some(next) = rest.get(taken) {
                content = content.saturating_add(next.content);
                if content > self.cpu_budget.memory / 2 {
                    break;
                }
                taken += 1;
            }
            let (batch, later) = rest.split_at(taken);
            let (bytes, whole) = self.batch(&stored[at..], batch, sink)?;
            at += bytes;
            if !whole || taken == 0 {
                break;
            }
            rest = later;
        }
        Ok(at)
    }

    /// Decodes a batch of frame runs whose content fits into memory. Returns the number of stored bytes consumed, and
    /// true if the whole batch was decoded.
    fn batch(
        &mut self,
        stored: &[u8],
        stretches: &[FrameRun],
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<(usize, bool)> {
        let more = (stretches.len().min(self.cpu_budget.threads))
            .saturating_sub(1)
            .min(self.cpu_budget.cores.available_permits());
        let permits = self.cpu_budget.cores.try_acquire_many(more as u32).ok();
        let helpers = permits.as_ref().map_or(0, |_| more);
        let queue = WorkQueue::new(self.codec, stored, stretches, self.limit - self.passed.bytes_out);
        let (mut at, mut is_whole) = (0, true);
        let outcome = std::thread::scope(|scope| {
            for _ in 0..helpers {
                // If the system cannot start another thread, the existing threads do the work.
                let _ = std::thread::Builder::new()
                    .name("penstock-inflate".into())
                    .spawn_scoped(scope, || while queue.work_once(&self.buffers) {});
            }
            let result = (0..stretches.len()).try_for_each(|nth| {
                let Some((content, blocks)) = queue.await_result(nth, &self.buffers) else {
                    is_whole = false;
                    return Err(None);
                };
                let passed = self.passed.bytes_out + content.len() as u64;
                if passed > self.limit {
                    // The stream decoder decodes this run again and reports the error.
                    is_whole = false;
                    return Err(None);
                }
                sink(&content).map_err(Some)?;
                at += stretches[nth].stored;
                self.blocks += blocks;
                self.passed =
                    Inflated { bytes_in: self.passed.bytes_in + stretches[nth].stored as u64, bytes_out: passed };
                lock(&self.buffers).push(content);
                Ok(())
            });
            queue.close();
            result
        });
        drop(permits);
        match outcome {
            Ok(()) | Err(None) => Ok((at, is_whole)),
            Err(Some(error)) => Err(error),
        }
    }
}

fn quarter(memory: u64) -> usize {
    usize::try_from(memory / 4).unwrap_or(usize::MAX).max(1 << 10)
}

/// Queue of frame runs that threads take and decode, with their results.
struct WorkQueue<'a> {
    codec: Codec,
    stored: &'a [u8],
    stretches: &'a [FrameRun],
    starts: Vec<usize>,
    limit: u64,
    state: Mutex<State>,
    laid: Condvar,
}

/// Content and number of frames of a frame run; `None` if the run is invalid.
type Laid = Option<(Vec<u8>, u64)>;

struct State {
    next: usize,
    /// Result of each frame run; `None` until the run is decoded.
    results: Vec<Option<Laid>>,
}

impl<'a> WorkQueue<'a> {
    fn new(codec: Codec, stored: &'a [u8], stretches: &'a [FrameRun], limit: u64) -> Self {
        let starts =
            stretches.iter().scan(0, |at, stretch| Some(std::mem::replace(at, *at + stretch.stored))).collect();
        let state = State { next: 0, results: stretches.iter().map(|_| None).collect() };
        Self { codec, stored, stretches, starts, limit, state: Mutex::new(state), laid: Condvar::new() }
    }

    /// Decodes the next frame run; returns false if no frame run is left.
    fn work_once(&self, buffers: &Mutex<Vec<Vec<u8>>>) -> bool {
        let nth = {
            let mut state = lock(&self.state);
            let nth = state.next;
            if nth >= self.stretches.len() {
                return false;
            }
            state.next += 1;
            nth
        };
        let stretch = &self.stretches[nth];
        let stored = &self.stored[self.starts[nth]..][..stretch.stored];
        let mut content = lock(buffers).pop().unwrap_or_default();
        let blocks = decompress_frames(self.codec, stored, &mut content, stretch.content.min(self.limit));
        let mut state = lock(&self.state);
        if blocks.is_none() {
            state.next = self.stretches.len(); // later frame runs are not needed
        }
        state.results[nth] = Some(blocks.map(|blocks| (content, blocks)));
        drop(state);
        self.laid.notify_all();
        true
    }

    /// Waits for the result of one frame run. Decodes other frame runs meanwhile.
    fn await_result(&self, nth: usize, buffers: &Mutex<Vec<Vec<u8>>>) -> Laid {
        loop {
            if let Some(result) = lock(&self.state).results[nth].take() {
                return result;
            }
            if !self.work_once(buffers) {
                let mut state = lock(&self.state);
                while state.results[nth].is_none() {
                    state = self.laid.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Ends the queue, so that the threads exit.
    fn close(&self) {
        lock(&self.state).next = self.stretches.len();
    }
}

#[cfg(test)]
mod tests {
    use penstock_codec::compress;
    use penstock_types::Error;
    use proptest::prelude::*;

    use super::*;

    fn cpu_budget(cores: &Semaphore, memory: u64) -> CpuBudget<'_> {
        CpuBudget { cores, threads: 4, memory }
    }

    fn inflated(codec: Codec, stored: &[u8], memory: u64, piece: usize, limit: u64) -> Result<Vec<u8>> {
        let (cores, mut out) = (Semaphore::new(3), Vec::new());
        let mut take = |content: &[u8]| {
            out.extend_from_slice(content);
            Ok(())
        };
        let mut apart = ParallelDecoder::new(codec, limit, "p", cpu_budget(&cores, memory));
        stored.chunks(piece).try_for_each(|piece| apart.push(piece, &mut take))?;
        apart.finish(&mut take)?;
        assert_eq!(cores.available_permits(), 3);
        Ok(out)
    }

    fn noise(len: usize) -> Vec<u8> {
        (0..len as u64).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57) as u8).collect()
    }

    #[test]
    fn many_members_come_out_in_order_on_many_threads() {
        let plain = noise(24 << 20);
        for codec in [Codec::Gzip, Codec::Zstd, Codec::Lz4] {
            let level = if codec == Codec::Gzip { 1 } else { codec.default_level() };
            let stored: Vec<u8> =
                plain.chunks(1 << 20).flat_map(|piece| compress(codec, piece, level).unwrap()).collect();
            assert!(inflated(codec, &stored, 256 << 20, 1 << 20, 1 << 30).unwrap() == plain);
            // With almost no memory, the stream decoder does all the work.
            assert!(inflated(codec, &stored, 1 << 20, 1 << 20, 1 << 30).unwrap() == plain);
            let (cores, mut out) = (Semaphore::new(3), Vec::new());
            let done =
                ParallelDecoder::whole(codec, 1 << 30, "p", cpu_budget(&cores, 64 << 20), &stored, &mut |content| {
                    out.extend_from_slice(content);
                    Ok(())
                });
            assert!(matches!(done, Some(Ok(()))) && out == plain);
            assert!(inflated(codec, &stored, 256 << 20, 1 << 20, (24 << 20) - 1).is_err());
        }
    }

    #[test]
    fn sinks_error_ends_it_and_cores_come_back() {
        let stored: Vec<u8> = (0..20).flat_map(|_| compress(Codec::Gzip, &noise(3 << 20), 1).unwrap()).collect();
        let cores = Semaphore::new(3);
        let done =
            ParallelDecoder::whole(Codec::Gzip, 1 << 30, "p", cpu_budget(&cores, 64 << 20), &stored, &mut |_| {
                Err(Error::Interrupted)
            });
        assert!(matches!(done, Some(Err(Error::Interrupted))));
        assert_eq!(cores.available_permits(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Damage at any position gives the same error as the stream decoder alone.
        #[test]
        fn prop_damage_is_told_as_the_stream_tells_it(sizes in prop::collection::vec(1..600_000usize, 1..8), at: prop::sample::Index, flip: u8, piece in 10_000..900_000usize) {
            let mut stored: Vec<u8> = sizes.iter().flat_map(|size| compress(Codec::Gzip, &noise(*size), 1).unwrap()).collect();
            let at = at.index(stored.len());
            stored[at] ^= flip;
            let mut streamed = Vec::new();
            let mut inflater = StreamDecoder::new(Codec::Gzip, 1 << 30, "p");
            let want = inflater.push(&stored, &mut |content| { streamed.extend_from_slice(content); Ok(()) }).and_then(|()| inflater.finish().map(drop));
            match (want, inflated(Codec::Gzip, &stored, 8 << 20, piece, 1 << 30)) {
                (Ok(()), Ok(content)) => prop_assert!(content == streamed),
                (Err(want), Err(have)) => prop_assert_eq!(want.code(), have.code()),
                (want, have) => prop_assert!(false, "{:?} {:?}", want, have.map(|v| v.len())),
            }
        }
    }
}
