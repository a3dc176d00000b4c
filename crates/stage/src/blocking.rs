// SPDX-License-Identifier: Apache-2.0
//! Runs work on blocking threads.

use penstock_types::{Error, Result};

/// Runs `work` on a blocking thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(join) if join.is_cancelled() => Err(Error::Interrupted),
        Err(join) => Err(Error::bug(format!("a stage thread ended: {join}"))),
    }
}
