// SPDX-License-Identifier: Apache-2.0
//! Content of one object on many cores: whole blocks (gzip members, zstd and LZ4 frames) inflate apart, and reach the
//! file in their order.
//!
//! Takes idle cores, for as long as one window of stored bytes lasts, and gives them back: where there are
//! more objects than cores it works alone. From the first stretch that is not what the cut promised the stream decoder
//! goes on, so a wrong guess or a damaged object ends as it would have ended without any of this, in the same words.

use std::sync::{Condvar, Mutex, PoisonError};

use penstock_codec::{Codec, FrameRun, FrameRunSize, Inflated, StreamDecoder, decompress_frames, split_frames};
use penstock_types::{Result, lock};
use tokio::sync::Semaphore;

/// Stored bytes that are looked at together, at first; a block that is longer doubles it.
const WINDOW: usize = 8 << 20;

/// Room and cores for one object.
pub(crate) struct CpuBudget<'a> {
    /// Cores beside the one that the caller holds.
    pub cores: &'a Semaphore,
    /// Most threads, the caller's own among them.
    pub threads: usize,
    /// Most bytes held.
    pub memory: u64,
}

/// Inflates one object as its stored bytes come.
pub(crate) struct ParallelDecoder<'a> {
    codec: Codec,
    limit: u64,
    place: &'a str,
    means: CpuBudget<'a>,
    passed: Inflated,
    blocks: u64,
    held: Vec<u8>,
    buffers: Mutex<Vec<Vec<u8>>>,
    window: usize,
    /// Offset from which frames cannot be separated.
    stream: Option<StreamDecoder>,
}

impl<'a> ParallelDecoder<'a> {
    pub fn new(codec: Codec, limit: u64, place: &'a str, means: CpuBudget<'a>) -> Self {
        let passed = Inflated { bytes_in: 0, bytes_out: 0 };
        let window = WINDOW.min(quarter(means.memory));
        Self {
            codec,
            limit,
            place,
            means,
            passed,
            blocks: 0,
            held: Vec::new(),
            buffers: Mutex::default(),
            window,
            stream: None,
        }
    }

    /// Takes the next stored bytes; `sink` gets content, in order.
    pub fn push(&mut self, piece: &[u8], sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if let Some(stream) = &mut self.stream {
            return stream.push(piece, sink);
        }
        self.held.extend_from_slice(piece);
        if self.held.len() < self.window { Ok(()) } else { self.round(false, sink) }
    }

    /// Ends the object.
    pub fn finish(mut self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        if self.stream.is_none() {
            self.round(true, sink)?;
        }
        match self.stream {
            Some(stream) => stream.finish().map(drop),
            None => Ok(()),
        }
    }

    /// The whole object at once, if its blocks can be separated and another core is free; else `None`, and nothing
    /// has been done.
    pub fn whole(
        codec: Codec,
        limit: u64,
        place: &str,
        means: CpuBudget<'_>,
        stored: &[u8],
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Option<Result<()>> {
        if means.threads < 2 || means.cores.available_permits() == 0 {
            return None;
        }
        let stretches = split_frames(codec, stored, true, FrameRunSize::default());
        if stretches.len() < 2 {
            return None;
        }
        let mut apart = ParallelDecoder::new(codec, limit, place, means);
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
        if stretches.is_empty() && !is_end && self.window < quarter(self.means.memory) {
            self.window = (self.window * 2).min(quarter(self.means.memory));
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

    /// The stream decoder, from where whole blocks end.
    fn go_on(&self) -> StreamDecoder {
        StreamDecoder::resume_at(self.codec, self.limit, self.place, self.passed, self.blocks)
    }

    /// Inflates `stretches`, which begin with `stored`, as far as they hold: the stored bytes they came to.
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
                if content > self.means.memory / 2 {
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

    /// One batch, all of which may be in memory at once: the stored bytes done, and whether that is all of it.
    fn batch(
        &mut self,
        stored: &[u8],
        stretches: &[FrameRun],
        sink: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<(usize, bool)> {
        let more =
            (stretches.len().min(self.means.threads)).saturating_sub(1).min(self.means.cores.available_permits());
        let permits = self.means.cores.try_acquire_many(more as u32).ok();
        let helpers = permits.as_ref().map_or(0, |_| more);
        let bench = WorkQueue::new(self.codec, stored, stretches, self.limit - self.passed.bytes_out);
        let (mut at, mut is_whole) = (0, true);
        let outcome = std::thread::scope(|scope| {
            for _ in 0..helpers {
                // Where the system gives no thread, those that there are do the work.
                let _ = std::thread::Builder::new()
                    .name("penstock-inflate".into())
                    .spawn_scoped(scope, || while bench.work_once(&self.buffers) {});
            }
            let result = (0..stretches.len()).try_for_each(|nth| {
                let Some((content, blocks)) = bench.await_result(nth, &self.buffers) else {
                    is_whole = false;
                    return Err(None);
                };
                let passed = self.passed.bytes_out + content.len() as u64;
                if passed > self.limit {
                    // The stream decoder says so, with the numbers.
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
            bench.close();
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

/// Where threads take stretches from, and lay down what they come to.
struct WorkQueue<'a> {
    codec: Codec,
    stored: &'a [u8],
    stretches: &'a [FrameRun],
    starts: Vec<usize>,
    limit: u64,
    state: Mutex<State>,
    laid: Condvar,
}

/// A stretch's content and blocks; `None` where it does not hold.
type Laid = Option<(Vec<u8>, u64)>;

struct State {
    next: usize,
    /// `None` until it is done.
    results: Vec<Option<Laid>>,
}

impl<'a> WorkQueue<'a> {
    fn new(codec: Codec, stored: &'a [u8], stretches: &'a [FrameRun], limit: u64) -> Self {
        let starts =
            stretches.iter().scan(0, |at, stretch| Some(std::mem::replace(at, *at + stretch.stored))).collect();
        let state = State { next: 0, results: stretches.iter().map(|_| None).collect() };
        Self { codec, stored, stretches, starts, limit, state: Mutex::new(state), laid: Condvar::new() }
    }

    /// Does the next stretch; false where none is left.
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
            state.next = self.stretches.len(); // what is behind it will not be asked for
        }
        state.results[nth] = Some(blocks.map(|blocks| (content, blocks)));
        drop(state);
        self.laid.notify_all();
        true
    }

    /// Waits for the result of a run of frames, and decodes other runs meanwhile.
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

    /// Lets the threads end.
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

    fn means(cores: &Semaphore, memory: u64) -> CpuBudget<'_> {
        CpuBudget { cores, threads: 4, memory }
    }

    fn inflated(codec: Codec, stored: &[u8], memory: u64, piece: usize, limit: u64) -> Result<Vec<u8>> {
        let (cores, mut out) = (Semaphore::new(3), Vec::new());
        let mut take = |content: &[u8]| {
            out.extend_from_slice(content);
            Ok(())
        };
        let mut apart = ParallelDecoder::new(codec, limit, "p", means(&cores, memory));
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
            // Hardly any memory, so the stream does it.
            assert!(inflated(codec, &stored, 1 << 20, 1 << 20, 1 << 30).unwrap() == plain);
            let (cores, mut out) = (Semaphore::new(3), Vec::new());
            let done = ParallelDecoder::whole(codec, 1 << 30, "p", means(&cores, 64 << 20), &stored, &mut |content| {
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
        let done = ParallelDecoder::whole(Codec::Gzip, 1 << 30, "p", means(&cores, 64 << 20), &stored, &mut |_| {
            Err(Error::Interrupted)
        });
        assert!(matches!(done, Some(Err(Error::Interrupted))));
        assert_eq!(cores.available_permits(), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Damage anywhere gives the stream decoder's own answer.
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
