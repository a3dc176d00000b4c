// SPDX-License-Identifier: Apache-2.0
//! Stream of a read. After an interruption, it reconnects and resumes after the last byte, at the same version.

use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use penstock_types::{ByteRange, Error, Key, Result};

use crate::retry_policy::Attempts;
use crate::{Chunk, Meta, ObjectRef, Version};

/// A read in progress and its position.
pub(crate) struct Source {
    key: Key,
    size: u64,
    version: Option<Version>,
    ranges: Vec<Progress>,
    /// Indices of the ranges in `ranges` that the current request reads.
    running: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Progress {
    at: u64,
    end: u64,
}

impl Source {
    /// Creates a source whose first request reads all of `ranges`.
    pub(crate) fn new(key: Key, meta: &Meta, ranges: &[ByteRange]) -> Self {
        let size = meta.size;
        Self {
            key,
            size,
            version: meta.version.clone(),
            ranges: ranges.iter().map(|range| Progress { at: range.start, end: range.end(size) }).collect(),
            running: (0..ranges.len()).collect(),
        }
    }

    /// Accepts a chunk of the current request. Checks that it follows the previous chunk, and replaces its range index
    /// by the index in the caller's ranges.
    fn take(&mut self, mut chunk: Chunk) -> Result<Chunk> {
        let index = self
            .running
            .get(chunk.range)
            .copied()
            .ok_or_else(|| Error::bug("a chunk does not belong to any requested range"))?;
        let progress = &mut self.ranges[index];
        let end = chunk.offset.saturating_add(chunk.bytes.len() as u64);
        if chunk.offset != progress.at || end > progress.end {
            return Err(Error::bug(format!(
                "got bytes {}..{end} (expected {}..{})",
                chunk.offset, progress.at, progress.end
            )));
        }
        progress.at = end;
        chunk.range = index;
        Ok(chunk)
    }

    /// Returns the ranges that remain. The next request reads these.
    fn rest(&mut self) -> Vec<ByteRange> {
        self.running = (0..self.ranges.len()).filter(|&i| self.ranges[i].at < self.ranges[i].end).collect();
        self.running
            .iter()
            .map(|&i| ByteRange::new(self.ranges[i].at, self.ranges[i].end - self.ranges[i].at))
            .collect()
    }
}

struct State {
    attempts: Attempts,
    source: Source,
    chunks: BoxStream<'static, Result<Chunk>>,
}

/// Streams the chunks of `source`, and resumes after interruptions within the retry budget of `attempts`.
pub(crate) fn stream(
    attempts: Attempts,
    source: Source,
    chunks: BoxStream<'static, Result<Chunk>>,
) -> BoxStream<'static, Result<Chunk>> {
    stream::try_unfold(State { attempts, source, chunks }, next).boxed()
}

async fn next(mut state: State) -> Result<Option<(Chunk, State)>> {
    state.attempts.asked();
    loop {
        let limit = state.attempts.shared.policy.stall_after;
        let error = match state.attempts.silent_no_longer(limit, state.chunks.try_next()).await {
            Ok(Some(chunk)) => {
                state.attempts.progressed();
                let chunk = state.source.take(chunk)?;
                return Ok(Some((chunk, state)));
            }
            Ok(None) => {
                let rest: u64 = state.source.rest().iter().map(|range| range.len).sum();
                if rest == 0 {
                    return Ok(None);
                }
                let place = crate::place(state.attempts.shared.inner.root(), &state.source.key);
                Error::Server { place, status: 0, reason: format!("the response ended {rest} bytes early") }
            }
            Err(error) => error,
        };
        state.chunks = stream::empty().boxed();
        state.attempts.after(error).await?;
        let rest = state.source.rest();
        if rest.is_empty() {
            return Ok(None);
        }
        let object = ObjectRef { key: state.source.key.clone(), version: state.source.version.clone() };
        let (inner, deadline) = (state.attempts.shared.inner.clone(), state.attempts.deadline);
        match state.attempts.attempt(limit, inner.get_ranges(&object, &rest, deadline)).await {
            Ok(got) if got.meta.size == state.source.size => state.chunks = got.chunks,
            Ok(got) => {
                let place = crate::place(inner.root(), &state.source.key);
                return Err(Error::resized(place, state.source.size, got.meta.size));
            }
            Err(error) => state.chunks = stream::iter([Err(error)]).boxed(),
        }
    }
}
