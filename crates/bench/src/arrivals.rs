// SPDX-License-Identifier: Apache-2.0
//! Intended start times of requests. In a closed loop, the next request starts when the previous one ends, so a stall
//! delays later requests without adding to their latencies. In an open loop, each request has an intended start time,
//! and its latency is measured from that time.

use std::time::{Duration, Instant};

use penstock_types::{Error, Result, now};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Schedule of request start times: a closed loop, or an open loop with constant or Poisson intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// Closed loop: each request starts when the previous one ends.
    #[default]
    Closed,
    /// Open loop with equal intervals.
    Constant,
    /// Open loop with exponentially distributed intervals.
    Poisson,
}

/// Intended start times of the requests of one worker.
#[derive(Debug)]
pub struct Arrivals {
    mean_s: f64,
    random: Option<SmallRng>,
    next_s: f64,
}

impl Arrivals {
    /// Creates the arrivals of worker number `worker`. All `workers` workers together send `rate` requests per second.
    /// Returns `None` for a closed loop.
    pub fn new(schedule: Schedule, rate: Option<f64>, worker: u32, workers: u32, seed: u64) -> Result<Option<Self>> {
        let rate = match (schedule, rate) {
            (Schedule::Closed, None) => return Ok(None),
            (Schedule::Closed, Some(_)) => {
                return Err(Error::config(
                    "--rate",
                    "cannot be used with a closed loop; use --arrivals constant or poisson",
                ));
            }
            (_, None) => return Err(Error::config("--arrivals", "constant and poisson require --rate")),
            (_, Some(rate)) if !(rate.is_finite() && rate > 0.0) => {
                return Err(Error::config("--rate", format!("must be positive (got {rate})")));
            }
            (_, Some(rate)) => rate / f64::from(workers),
        };
        let mean_s = 1.0 / rate;
        let random =
            (schedule == Schedule::Poisson).then(|| SmallRng::seed_from_u64(seed ^ (u64::from(worker) << 32) ^ 0x6172));
        // With equal intervals, each worker starts at a different offset within the interval.
        let next_s = mean_s * f64::from(worker) / f64::from(workers);
        let mut made = Self { mean_s, random, next_s };
        if made.random.is_some() {
            made.next_s = made.step();
        }
        Ok(Some(made))
    }

    fn step(&mut self) -> f64 {
        match &mut self.random {
            None => self.mean_s,
            // `1 - u` is in (0, 1], so its logarithm is finite.
            Some(random) => -(1.0 - random.random::<f64>()).ln() * self.mean_s,
        }
    }

    /// Returns the time of the next request, counted from the start of the phase. Does not advance.
    pub fn peek(&self) -> Duration {
        Duration::try_from_secs_f64(self.next_s).unwrap_or(Duration::MAX)
    }

    /// Returns the time of the next request, and advances to the one after it.
    pub fn take(&mut self) -> Duration {
        let at = self.peek();
        self.next_s += self.step();
        at
    }
}

/// Typical lateness of a kernel timer.
const SLACK: Duration = Duration::from_micros(80);

/// Waits until `at`. Sleeps until shortly before `at`, then spins, so that it returns within about a microsecond. Calls
/// `stop` repeatedly, and returns false if `stop` returns true before `at`.
pub fn wait_until(at: Instant, stop: &dyn Fn() -> bool) -> bool {
    loop {
        let left = at.saturating_duration_since(now());
        if left.is_zero() {
            return true;
        }
        if stop() {
            return false;
        }
        match left.checked_sub(SLACK) {
            Some(far) if !far.is_zero() => std::thread::sleep(far.min(Duration::from_millis(50))),
            _ => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(schedule: Schedule, rate: f64, count: usize) -> Vec<f64> {
        let mut arrivals = Arrivals::new(schedule, Some(rate), 0, 1, 5).unwrap().unwrap();
        (0..count).map(|_| arrivals.take().as_secs_f64()).collect()
    }

    #[test]
    fn test_arrivals_constant_are_equidistant() {
        let times = times(Schedule::Constant, 1000.0, 2000);
        assert!(times.windows(2).all(|pair| (pair[1] - pair[0] - 0.001).abs() < 1e-6));
    }

    #[test]
    fn test_arrivals_poisson_have_the_mean_and_the_spread_of_an_exponential() {
        let times = times(Schedule::Poisson, 1000.0, 100_000);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean - 1e-3).abs() < 2e-5, "{mean}");
        assert!((deviation / mean - 1.0).abs() < 0.03, "{deviation} {mean}");
    }

    #[test]
    fn test_arrivals_rate_and_schedule_go_together() {
        assert!(Arrivals::new(Schedule::Closed, None, 0, 1, 0).unwrap().is_none());
        for (schedule, rate) in [
            (Schedule::Closed, Some(1.0)),
            (Schedule::Constant, None),
            (Schedule::Poisson, Some(0.0)),
            (Schedule::Constant, Some(f64::NAN)),
        ] {
            assert_eq!(Arrivals::new(schedule, rate, 0, 1, 0).unwrap_err().code(), "config");
        }
    }
}
