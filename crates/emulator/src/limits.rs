// SPDX-License-Identifier: Apache-2.0
//! Enforces a tier. Requests above their burst are refused at once. Bytes above their rate queue up to a bound, then
//! the next request is refused. Latency is drawn from the tier's distribution and never scaled.
//!
//! Every method takes the time as an argument, so that tests can use a simulated clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_types::{Error, Result, lock};
use tokio::time::Instant;

use crate::tier::{Kind, Latency, Scope, Tier, What};

/// A sender that is at most this late may catch up: timers fire a little late, and a rate must hold over time.
const SLACK: Duration = Duration::from_millis(20);
/// Maximum time that one reservation may take. It sets the size of a body's slices, so that streams share a rate
/// evenly.
const SLICE: Duration = Duration::from_millis(5);
const MIN_SLICE: u64 = 16 << 10;
const MAX_SLICE: u64 = 512 << 10;
/// Maximum number of prefixes with stored rates; above it, all rates are reset.
const MAX_PREFIXES: usize = 10_000;
/// z of the 99th percentile of a normal distribution.
const Z99: f64 = 2.326_347_874_040_841;

/// A byte rate with a queue of reservations.
#[derive(Debug)]
struct Pipe {
    rate: f64,
    free_at: Mutex<Option<Instant>>,
}

impl Pipe {
    fn new(rate: f64) -> Arc<Self> {
        Arc::new(Self { rate, free_at: Mutex::new(None) })
    }

    /// Reserves `bytes`; returns the time at which the last byte has passed.
    fn reserve(&self, now: Instant, bytes: u64) -> Instant {
        let mut free_at = lock(&self.free_at);
        // No credit before the first byte; afterwards at most the slack.
        let begin = free_at.map_or(now, |at| at.max(now.checked_sub(SLACK).unwrap_or(now)));
        let end = begin + Duration::from_secs_f64(bytes as f64 / self.rate);
        *free_at = Some(end);
        end
    }

    /// Time that a byte arriving now would wait.
    fn backlog(&self, now: Instant) -> Duration {
        let free_at = *lock(&self.free_at);
        free_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }
}

/// A request rate: a token bucket.
#[derive(Debug, Clone)]
struct Tokens {
    rate: f64,
    most: f64,
    held: f64,
    at: Option<Instant>,
}

impl Tokens {
    fn new(rate: f64, burst_s: f64) -> Self {
        let most = (rate * burst_s).max(1.0);
        Self { rate, most, held: most, at: None }
    }

    fn refill(&mut self, now: Instant) {
        if let Some(at) = self.at {
            self.held = (self.held + now.saturating_duration_since(at).as_secs_f64() * self.rate).min(self.most);
        }
        self.at = Some(now);
    }
}

/// Token buckets of one limit: a single one, or one per prefix.
#[derive(Debug)]
struct Gate {
    what: What,
    per_prefix: bool,
    fresh: Tokens,
    buckets: HashMap<String, Tokens>,
}

/// Properties of a request that the limits need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Read or write.
    pub kind: Kind,
    /// Its key (or the prefix it lists) up to the last `/`.
    pub prefix: &'a str,
}

/// Reason for a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too many requests.
    Requests,
    /// Too many bytes are queued.
    Bytes,
}

/// Enforces the limits of a tier.
#[derive(Debug)]
pub struct Limits {
    tier: Tier,
    scale: f64,
    queue: Duration,
    gates: Mutex<Vec<Gate>>,
    /// Pipes of the account and the bucket, by direction.
    shared: Vec<(Kind, Arc<Pipe>)>,
    /// Pipes of each prefix, created at its first request.
    prefixes: Mutex<HashMap<(usize, String), Arc<Pipe>>>,
}

/// The pipes that one body passes through.
#[derive(Debug, Clone, Default)]
pub struct Route {
    pipes: Vec<Arc<Pipe>>,
}

/// Pipes of one connection.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    pipes: Vec<(Kind, Arc<Pipe>)>,
}

fn bytes_kind(what: What) -> Option<Kind> {
    match what {
        What::ReadBytes => Some(Kind::Read),
        What::WriteBytes => Some(Kind::Write),
        What::ReadRequests | What::WriteRequests | What::Requests => None,
    }
}

impl Limits {
    /// Creates the limits of a tier, with its rates multiplied by `scale`.
    pub fn new(tier: Tier, scale: f64) -> Result<Self> {
        if !(scale.is_finite() && scale > 0.0) {
            return Err(Error::config("scale", format!("{scale} is not a positive number")));
        }
        let burst_s = tier.burst.as_ref().map_or(1.0, |burst| burst.value);
        let gates = tier
            .limits
            .iter()
            .filter(|limit| bytes_kind(limit.what).is_none() && limit.scope != Scope::Connection)
            .map(|limit| Gate {
                what: limit.what,
                per_prefix: limit.scope == Scope::Prefix,
                fresh: Tokens::new(limit.value * scale, burst_s),
                buckets: HashMap::new(),
            })
            .collect();
        let shared = tier
            .limits
            .iter()
            .filter(|limit| matches!(limit.scope, Scope::Account | Scope::Bucket))
            .filter_map(|limit| Some((bytes_kind(limit.what)?, Pipe::new(limit.value * scale))))
            .collect();
        let queue = Duration::from_secs_f64(tier.queue.as_ref().map_or(f64::INFINITY, |queue| queue.value).min(1e6));
        Ok(Self { tier, scale, queue, gates: Mutex::new(gates), shared, prefixes: Mutex::default() })
    }

    /// The tier.
    pub fn tier(&self) -> &Tier {
        &self.tier
    }

    /// The factor F that multiplies rates.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Limits of a new connection.
    pub fn connection(&self) -> Connection {
        let own = self.tier.limits.iter().filter(|limit| limit.scope == Scope::Connection);
        Connection {
            pipes: own
                .filter_map(|limit| Some((bytes_kind(limit.what)?, Pipe::new(limit.value * self.scale))))
                .collect(),
        }
    }

    /// Admits or refuses a request. A refused request takes no token.
    pub fn admit(&self, request: Request<'_>, now: Instant) -> std::result::Result<(), Refusal> {
        let mut gates = lock(&self.gates);
        let concerns = |gate: &Gate| match gate.what {
            What::Requests => true,
            What::ReadRequests => request.kind == Kind::Read,
            What::WriteRequests => request.kind == Kind::Write,
            What::ReadBytes | What::WriteBytes => false,
        };
        for gate in gates.iter_mut().filter(|gate| concerns(gate)) {
            if gate.buckets.len() > MAX_PREFIXES {
                gate.buckets.clear();
            }
            let name = if gate.per_prefix { request.prefix } else { "" };
            let tokens = match gate.buckets.get_mut(name) {
                Some(tokens) => tokens,
                None => gate.buckets.entry(name.to_owned()).or_insert_with(|| gate.fresh.clone()),
            };
            tokens.refill(now);
            if tokens.held < 1.0 {
                return Err(Refusal::Requests);
            }
        }
        if self.route(request, &Connection::default()).pipes.iter().any(|pipe| pipe.backlog(now) > self.queue) {
            return Err(Refusal::Bytes);
        }
        for gate in gates.iter_mut().filter(|gate| concerns(gate)) {
            let name = if gate.per_prefix { request.prefix } else { "" };
            if let Some(tokens) = gate.buckets.get_mut(name) {
                tokens.held -= 1.0;
            }
        }
        Ok(())
    }

    /// The pipes that a request's body passes through.
    pub fn route(&self, request: Request<'_>, connection: &Connection) -> Route {
        let both = self.shared.iter().chain(&connection.pipes);
        let mut pipes: Vec<_> = both.filter(|(kind, _)| *kind == request.kind).map(|(_, pipe)| pipe.clone()).collect();
        for (place, limit) in self.tier.limits.iter().enumerate() {
            if limit.scope == Scope::Prefix && bytes_kind(limit.what) == Some(request.kind) {
                let mut prefixes = lock(&self.prefixes);
                if prefixes.len() > MAX_PREFIXES {
                    prefixes.clear();
                }
                let pipe = prefixes.entry((place, request.prefix.to_owned()));
                pipes.push(pipe.or_insert_with(|| Pipe::new(limit.value * self.scale)).clone());
            }
        }
        Route { pipes }
    }

    /// Draws a time to first byte; zero if the tier has no latency for this kind.
    pub fn latency(&self, kind: Kind) -> Duration {
        let Some(latency) = self.tier.latency.iter().find(|latency| latency.what == kind) else {
            return Duration::ZERO;
        };
        if rand::random::<f64>() < latency.tail_share {
            return Duration::from_secs_f64(latency.tail_ms / 1000.0);
        }
        // Box-Muller; 1 - u keeps the logarithm finite.
        let (u, v): (f64, f64) = (1.0 - rand::random::<f64>(), rand::random());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        latency_at(latency, normal)
    }
}

/// Latency for a standard normal deviate.
fn latency_at(latency: &Latency, normal: f64) -> Duration {
    let sigma = (latency.p99_ms / latency.p50_ms).ln() / Z99;
    Duration::from_secs_f64(latency.p50_ms / 1000.0 * (sigma * normal).exp())
}

impl Route {
    /// True if no pipe limits the body.
    pub fn is_open(&self) -> bool {
        self.pipes.is_empty()
    }

    /// Bytes of one reservation.
    pub fn slice(&self) -> u64 {
        let slowest = self.pipes.iter().map(|pipe| pipe.rate).fold(f64::INFINITY, f64::min);
        ((slowest * SLICE.as_secs_f64()).min(MAX_SLICE as f64) as u64).max(MIN_SLICE)
    }

    /// Reserves `bytes` in every pipe; returns the time at which they may pass.
    pub fn reserve(&self, now: Instant, bytes: u64) -> Instant {
        self.pipes.iter().map(|pipe| pipe.reserve(now, bytes)).max().unwrap_or(now)
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
