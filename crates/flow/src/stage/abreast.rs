// SPDX-License-Identifier: Apache-2.0
//! Many objects underway at once: so many, each for so long, until all have ended, one ends the stage, or the user does.

use std::future::Future;
use std::time::Duration;

use penstock_types::{Error, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How many, and how long.
pub(crate) struct Abreast {
    pub most: usize,
    /// An object that is late fails alone; what has come of it stays, and the next run goes on from there.
    pub limit: Option<Duration>,
    pub cancelled: watch::Receiver<bool>,
}

/// What is done with an object that failed.
pub(crate) trait Failing {
    /// As messages name it.
    fn place(&self, at: usize) -> String;

    /// True for what no other object will be spared from: it ends the stage.
    fn is_of_all(&self, error: &Error) -> bool;

    /// It failed alone.
    fn fail(&self, at: usize, error: Error);
}

impl Abreast {
    /// Does `work` for `count` objects, by their number.
    pub async fn run<F>(mut self, count: usize, failing: &impl Failing, work: impl Fn(usize) -> F) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
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
                Some(Ok((_, Some(Err(error))))) if failing.is_of_all(&error) => break Err(error),
                Some(Ok((at, Some(Err(error))))) => failing.fail(at, error),
                Some(Ok((at, None))) => {
                    let limit = self.limit.unwrap_or_default();
                    failing.fail(at, Error::Deadline { what: failing.place(at), limit });
                }
                Some(Err(join)) => break Err(Error::bug(format!("an object's task ended: {join}"))),
            }
        };
        flying.shutdown().await;
        outcome
    }
}
