// SPDX-License-Identifier: Apache-2.0
//! Error policy for samples that cannot be read: end the epoch, skip the sample, or replace it with a substitute.
//!
//! The substitute depends only on the data. It is the same for every rank, for any number of ranks, and for every path.
//! Skipping a sample makes the batch of its rank smaller, but never changes the number of batches.

use std::sync::{Mutex, MutexGuard};

use penstock_record::image;
use penstock_types::{Error, lock};
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::batch_plan::RowRequest;
use penstock_dataset::order::Place;
use penstock_dataset::sampler::DatasetView;

/// Policy for a sample that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// End the epoch with the error at the batch that contains the sample.
    #[default]
    Raise,
    /// Leave the sample's row out of the batch. With a padded tail, keep the row, filled with zeros and weight 0.
    Skip,
    /// Fill the row with another sample: the next record of the same object. If the whole object cannot be read, use a
    /// record of the next object.
    Substitute,
}

/// True for errors in the bytes of a sample, for example a damaged record or an unsupported kind of image. All other
/// errors, for example a failing store or a changed object, always end the epoch.
pub(crate) fn is_about_data(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } | Error::Mismatch { .. } => true,
        Error::Unsupported { by, .. } => by.starts_with(image::DECODING),
        _ => false,
    }
}

/// Maximum number of substitutes that are tried for a sample before the error is returned. If this many consecutive
/// samples are bad, the fields or the dataset are wrong.
pub(crate) const MAX_TRIES: u32 = 16;

/// Number of the `MAX_TRIES` substitutes that are taken from the object of the bad sample.
const TRIES_INSIDE: u32 = 8;

/// Returns the substitute for a record that cannot be read, as its object and request. The substitute is one of the
/// samples that `leaf` selects. `tries` is the number of substitutes that were tried before.
pub(crate) fn substitute(
    object: u64,
    want: &RowRequest,
    leaf: &DatasetView,
    whole: bool,
    tries: u32,
) -> (u64, RowRequest) {
    let place = Place { object, record: want.record };
    let next = leaf.neighbour(place, !whole && tries < TRIES_INSIDE);
    (next.object, RowRequest { record: next.record, ..*want })
}

/// Fetches of substitutes. No caller waits for them. Each fetch keeps the queue of the decoding threads open. The
/// fetches are cancelled at the end of the epoch, because a store may hang until the deadline of a fetch.
#[derive(Debug)]
pub(crate) struct Retries(Mutex<Option<JoinSet<()>>>);

impl Default for Retries {
    fn default() -> Self {
        Self(Mutex::new(Some(JoinSet::new())))
    }
}

impl Retries {
    fn tasks(&self) -> MutexGuard<'_, Option<JoinSet<()>>> {
        lock(&self.0)
    }

    /// Starts a fetch, unless the epoch has ended.
    pub fn spawn(&self, runtime: &Handle, fetch: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = self.tasks().as_mut() {
            while tasks.try_join_next().is_some() {}
            tasks.spawn_on(fetch, runtime);
        }
    }

    /// Cancels the fetches in progress, and prevents new ones.
    pub fn end(&self) {
        drop(self.tasks().take());
    }
}

/// Maximum number of error messages that are stored for the report.
const KEPT: usize = 8;

/// Number of unreadable samples in an epoch, and the first errors.
#[derive(Debug, Clone, Default)]
pub struct ErrorCounts {
    /// Number of rows that were left out of batches.
    pub skipped: u64,
    /// Number of rows that were filled with a substitute.
    pub substituted: u64,
    /// Messages of the first few errors.
    pub errors: Vec<String>,
}

/// [`ErrorCounts`] that several threads can update.
#[derive(Debug, Default)]
pub struct ErrorLog(Mutex<ErrorCounts>);

impl ErrorLog {
    pub fn skipped(&self, error: &Error) {
        self.note(error, |error_counts| error_counts.skipped += 1);
    }

    pub fn substituted(&self, error: &Error) {
        self.note(error, |error_counts| error_counts.substituted += 1);
    }

    fn note(&self, error: &Error, count: impl FnOnce(&mut ErrorCounts)) {
        let mut error_counts = lock(&self.0);
        count(&mut error_counts);
        if error_counts.errors.len() < KEPT {
            error_counts.errors.push(error.to_string());
        }
    }

    pub fn snapshot(&self) -> ErrorCounts {
        lock(&self.0).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
    use std::time::Duration;

    use super::*;
    use penstock_dataset::order::Counts;

    #[test]
    fn substitutes_are_the_next_records_then_the_next_objects() {
        let view = |counts: &[u64]| DatasetView::new(Counts::of(counts), None, None).unwrap();
        let leaf = view(&[3, 0, 2]);
        let want = RowRequest { record: 2, batch: 5, row: 1 };
        assert_eq!(substitute(0, &want, &leaf, false, 0), (0, RowRequest { record: 0, ..want }));
        assert_eq!(substitute(0, &want, &leaf, true, 0), (2, RowRequest { record: 0, ..want }));
        assert_eq!(substitute(2, &want, &leaf, false, TRIES_INSIDE), (0, want));
        let single = view(&[1, 1]);
        assert_eq!(substitute(1, &RowRequest { record: 0, ..want }, &single, false, 0).0, 0);
    }

    #[test]
    fn fetch_that_hangs_lets_go_of_the_queue_when_its_pass_ends() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (tries, (queue, jobs)) = (Retries::default(), channel::<()>());
        let hangs = |queue: Sender<()>| async move {
            std::future::pending::<()>().await;
            let _ = queue.send(());
        };
        tries.spawn(runtime.handle(), hangs(queue.clone()));
        tries.end();
        tries.spawn(runtime.handle(), hangs(queue));
        assert_eq!(jobs.recv_timeout(Duration::from_secs(20)), Err(RecvTimeoutError::Disconnected));
    }
}
