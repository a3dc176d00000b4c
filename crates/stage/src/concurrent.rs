// SPDX-License-Identifier: Apache-2.0
//! Runs a bounded number of object transfers concurrently, each with a deadline. Ends when all transfers have finished,
//! when one transfer has failed fatally, or when the user cancels.

use std::future::Future;
use std::time::Duration;

use penstock_types::{Error, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::source_reader::SourceReader;
use penstock_dataset::manifest::Entry;

/// Limits for concurrent objects.
pub(crate) struct Concurrency {
    pub most: usize,
    /// Time limit of one object. At the limit, only this object fails. The received bytes of the object stay on disk,
    /// and the next run continues from there.
    pub limit: Option<Duration>,
    pub cancelled: watch::Receiver<bool>,
}

/// The objects to process, and the rule that determines which errors end the stage.
pub(crate) struct ObjectTasks<'a, E, A> {
    pub reader: &'a SourceReader,
    pub count: usize,
    /// Maps the index of an object to its manifest entry.
    pub entry: E,
    /// True for an error that would also affect every other object. Such an error ends the stage; other errors are
    /// counted as failed objects.
    pub is_of_all: A,
}

impl Concurrency {
    /// Runs `work` for the index of each object.
    pub async fn run<'a, F>(
        mut self,
        objects: ObjectTasks<'a, impl Fn(usize) -> &'a Entry, impl Fn(&Error) -> bool>,
        work: impl Fn(usize) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let ObjectTasks { reader, count, entry, is_of_all } = objects;
        let fail = |at: usize, error: Error| reader.progress.fail(&entry(at).key, error);
        let mut flying: JoinSet<(usize, Option<Result<()>>)> = JoinSet::new();
        let mut left = 0..count;
        let outcome = loop {
            while flying.len() < self.most {
                let Some(at) = left.next() else { break };
                let (work, limit) = (work(at), self.limit);
                flying.spawn(async move {
                    match limit {
                        None => (at, Some(work.await)),
                        Some(limit) => (at, tokio::time::timeout(limit, work).await.ok()),
                    }
                });
            }
            let ended = tokio::select! {
                ended = flying.join_next() => ended,
                _ = self.cancelled.wait_for(|stop| *stop) => break Err(Error::Interrupted),
            };
            match ended {
                None => break Ok(()),
                Some(Ok((_, Some(Ok(()))))) => {}
                Some(Ok((_, Some(Err(error))))) if is_of_all(&error) => break Err(error),
                Some(Ok((at, Some(Err(error))))) => fail(at, error),
                Some(Ok((at, None))) => {
                    let limit = self.limit.unwrap_or_default();
                    fail(at, Error::Deadline { what: reader.place(entry(at)), limit });
                }
                Some(Err(join)) => break Err(Error::bug(format!("an object's task ended: {join}"))),
            }
        };
        flying.shutdown().await;
        outcome
    }
}
