// SPDX-License-Identifier: Apache-2.0
//! Memory budget: limits the bytes in flight. A task reserves bytes before it allocates them. Dropping the reservation
//! releases the bytes.

use std::sync::Arc;

use penstock_types::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Page size in bytes. Reservations are counted in pages, so the number of permits for a terabyte fits in 32 bits.
const PAGE: u64 = 4096;

/// A shared memory budget. Requests are served in order of arrival.
#[derive(Debug, Clone)]
pub struct MemoryBudget {
    bytes: u64,
    pages: Arc<Semaphore>,
}

/// Reserved bytes. Dropping this value releases the bytes.
#[derive(Debug, Default)]
pub struct Reservation(#[expect(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

impl MemoryBudget {
    /// Creates a budget of `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        let pages = usize::try_from(bytes / PAGE).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { bytes, pages: Arc::new(Semaphore::new(pages)) }
    }

    /// Total size of the budget in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of bytes that are not reserved.
    pub fn free(&self) -> u64 {
        self.pages.available_permits() as u64 * PAGE
    }

    /// Waits until `bytes` bytes are free, and reserves them. Returns an error immediately if the whole budget is
    /// smaller.
    pub async fn reserve(&self, what: &str, bytes: u64) -> Result<Reservation> {
        if bytes == 0 {
            return Ok(Reservation(None));
        }
        let too_much = || Error::BudgetExceeded { what: what.to_owned(), need: bytes, budget: self.bytes };
        let pages = u32::try_from(bytes.div_ceil(PAGE)).map_err(|_| too_much())?;
        if bytes > self.bytes / PAGE * PAGE {
            return Err(too_much());
        }
        let permit = self.pages.clone().acquire_many_owned(pages).await;
        Ok(Reservation(Some(permit.map_err(|_| Error::bug("the budget's semaphore is never closed"))?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn budget_waits_and_gives_back() {
        let budget = MemoryBudget::new(3 * PAGE);
        let first = budget.reserve("a", 2 * PAGE).await.unwrap();
        let later = tokio::spawn({
            let budget = budget.clone();
            async move { budget.reserve("b", PAGE + 1).await.map(|_held| ()) }
        });
        tokio::task::yield_now().await;
        assert!(!later.is_finished());
        drop(first);
        later.await.unwrap().unwrap();
        assert_eq!(budget.free(), 3 * PAGE);
    }

    #[tokio::test]
    async fn budget_refuses_what_never_fits() {
        let error = MemoryBudget::new(2 * PAGE).reserve("a batch", 2 * PAGE + 1).await.unwrap_err();
        assert!(matches!(error, Error::BudgetExceeded { need: 8193, budget: 8192, .. }), "{error}");
    }
}
