// SPDX-License-Identifier: Apache-2.0
//! Timer with a resolution of 0.1 ms, for code that measures or simulates a latency. The timers of async runtimes round
//! up to whole milliseconds, and 1 ms is at least 5 % of a typical store's latency. This timer works with any runtime,
//! because it wakes the task that polls it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::{Error, Result, lock, now};

/// Timer thread that wakes each future at its time. Clones share the thread; it ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Timer(Arc<Owner>);

/// Stops the timer thread when dropped. The thread does not own this value, only the shared state.
#[derive(Debug)]
struct Owner(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Wakers of the waiting futures, ordered by time and then by number. Two futures may have the same time.
    wakers: BTreeMap<(Instant, u64), Waker>,
    numbers: u64,
    has_ended: bool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn run(&self) {
        let mut queue = self.queue();
        while !queue.has_ended {
            let Some(first) = queue.wakers.first_entry() else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = first.key().0.saturating_duration_since(now());
            if left.is_zero() {
                let waker = first.remove();
                // Release the lock first, because a waker may run code that calls this timer again.
                drop(queue);
                waker.wake();
                queue = self.queue();
            } else {
                queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

impl Timer {
    /// Starts the timer thread.
    pub fn start() -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let its = shared.clone();
        std::thread::Builder::new()
            .name("penstock-timer".to_owned())
            .spawn(move || its.run())
            .map_err(|error| Error::from_io("a thread", &error))?;
        Ok(Self(Arc::new(Owner(shared))))
    }

    /// Returns a future that completes at `at`.
    pub fn until(&self, at: Instant) -> Sleep {
        Sleep { timer: self.clone(), at, number: None }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.queue().has_ended = true;
        self.0.changed.notify_one();
    }
}

/// Future that [`Timer::until`] returns.
#[derive(Debug)]
#[must_use = "a future that is not polled does not wait"]
pub struct Sleep {
    timer: Timer,
    at: Instant,
    number: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if now() >= self.at {
            return Poll::Ready(());
        }
        let shared = self.timer.0.0.clone();
        let mut queue = shared.queue();
        let number = *self.number.get_or_insert_with(|| {
            queue.numbers += 1;
            queue.numbers
        });
        queue.wakers.insert((self.at, number), context.waker().clone());
        let is_first = queue.wakers.first_key_value().is_some_and(|(key, _)| *key == (self.at, number));
        drop(queue);
        if is_first {
            shared.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.timer.0.0.queue().wakers.remove(&(self.at, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::task::Wake;
    use std::time::Duration;

    use super::*;

    struct TestWaker(Mutex<Sender<u64>>, u64);

    impl Wake for TestWaker {
        fn wake(self: Arc<Self>) {
            let _ = self.0.lock().unwrap().send(self.1);
        }
    }

    #[test]
    fn test_timer_wakes_in_the_order_of_moments_and_not_before_them() {
        let timer = Timer::start().unwrap();
        let (send, woken) = channel();
        let start = now();
        let mut waits: Vec<_> = [30, 10, 20, 10]
            .map(|ms| timer.until(start + Duration::from_millis(ms)))
            .into_iter()
            .enumerate()
            .map(|(number, until)| (Waker::from(Arc::new(TestWaker(Mutex::new(send.clone()), number as u64))), until))
            .collect();
        for (waker, until) in &mut waits {
            assert!(Pin::new(until).poll(&mut Context::from_waker(waker)).is_pending());
        }
        // A dropped future wakes no task.
        let (_, given_up) = waits.remove(2);
        drop(given_up);
        let order: Vec<u64> = (0..3).map(|_| woken.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert_eq!(order, [1, 3, 0]);
        assert!(now() >= start + Duration::from_millis(30));
        for (waker, until) in &mut waits {
            assert!(Pin::new(until).poll(&mut Context::from_waker(waker)).is_ready());
        }
        assert!(timer.0.0.queue().wakers.is_empty());
    }

    #[test]
    fn test_timer_a_moment_that_is_past_is_ready_at_once() {
        let timer = Timer::start().unwrap();
        assert!(Pin::new(&mut timer.until(now())).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[test]
    fn test_timer_thread_ends_with_its_last_owner() {
        let timer = Timer::start().unwrap();
        let shared = Arc::downgrade(&timer.0.0);
        drop(timer);
        let late = now() + Duration::from_secs(60);
        while shared.upgrade().is_some() {
            assert!(now() < late, "the thread holds what it shares until it ends");
            std::thread::yield_now();
        }
    }
}
