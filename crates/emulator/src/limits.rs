// SPDX-License-Identifier: Apache-2.0
//! Limits of a tier: admits, rejects and delays requests. Requests above the burst are rejected immediately. Bytes
//! above the rate wait in a queue. While the queue is longer than its limit, new requests are rejected. Latencies are
//! drawn from the tier's distribution; `scale` does not change them.
//!
//! Methods take the current time as an argument, so that tests can use a simulated clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_types::{Error, Result, lock};
use tokio::time::Instant;

use crate::tier::{Kind, Latency, Scope, Tier, What};

/// Maximum lateness for which a limiter compensates a sender. Timers fire slightly late, so without compensation the
/// long-term rate would be too low.
const SLACK: Duration = Duration::from_millis(20);
/// Target duration of one reservation. Short reservations let several streams share a rate evenly. A reservation covers
/// at least `MIN_SLICE` and at most `MAX_SLICE` bytes.
const SLICE: Duration = Duration::from_millis(5);
const MIN_SLICE: u64 = 16 << 10;
const MAX_SLICE: u64 = 512 << 10;
/// Maximum number of prefixes with their own limiters. If it is exceeded, the limiters of all prefixes are reset.
const MAX_PREFIXES: usize = 10_000;
/// z-score of the 99th percentile of the normal distribution.
const Z99: f64 = 2.326_347_874_040_841;

/// Byte rate limiter. Reservations pass one after another.
#[derive(Debug)]
struct Pipe {
    rate: f64,
    free_at: Mutex<Option<Instant>>,
}

impl Pipe {
    fn new(rate: f64) -> Arc<Self> {
        Arc::new(Self { rate, free_at: Mutex::new(None) })
    }

    /// Reserves capacity for `bytes`. Returns the time at which the last of these bytes has passed.
    fn reserve(&self, now: Instant, bytes: u64) -> Instant {
        let mut free_at = lock(&self.free_at);
        // The first reservation gets no credit for idle time. Later reservations get credit for at most `SLACK`.
        let begin = free_at.map_or(now, |at| at.max(now.checked_sub(SLACK).unwrap_or(now)));
        let end = begin + Duration::from_secs_f64(bytes as f64 / self.rate);
        *free_at = Some(end);
        end
    }

    /// Returns the time that a byte would wait if it arrived now.
    fn backlog(&self, now: Instant) -> Duration {
        let free_at = *lock(&self.free_at);
        free_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }
}

/// Request rate limiter: a token bucket.
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

/// Token buckets of one limit: one bucket for all requests, or one bucket per prefix.
#[derive(Debug)]
struct Gate {
    what: What,
    per_prefix: bool,
    fresh: Tokens,
    buckets: HashMap<String, Tokens>,
}

/// The properties of a request that determine which limits apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// Whether the request is a read or a write.
    pub kind: Kind,
    /// Key of the request, up to its last `/`. For LIST, the requested prefix, up to its last `/`.
    pub prefix: &'a str,
}

/// Reason why a request was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Too many requests.
    Requests,
    /// Too many bytes in the queue.
    Bytes,
}

/// Limits of a tier, with their current state.
#[derive(Debug)]
pub struct Limits {
    tier: Tier,
    scale: f64,
    queue: Duration,
    gates: Mutex<Vec<Gate>>,
    /// Byte rate limiters of the account and of the bucket, with the kind of request that each one limits.
    shared: Vec<(Kind, Arc<Pipe>)>,
    /// Byte rate limiters of each prefix. The first request with a prefix creates them.
    prefixes: Mutex<HashMap<(usize, String), Arc<Pipe>>>,
}

/// The byte rate limiters that one body passes through.
#[derive(Debug, Clone, Default)]
pub struct Route {
    pipes: Vec<Arc<Pipe>>,
}

/// Byte rate limiters of one connection.
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
    /// Creates the limits of a tier, with all rates multiplied by `scale`.
    pub fn new(tier: Tier, scale: f64) -> Result<Self> {
        if !(scale.is_finite() && scale > 0.0) {
            return Err(Error::config("scale", format!("must be positive (got {scale})")));
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

    /// The factor by which the tier's rates are multiplied.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Creates the limiters for a new connection.
    pub fn connection(&self) -> Connection {
        let own = self.tier.limits.iter().filter(|limit| limit.scope == Scope::Connection);
        Connection {
            pipes: own
                .filter_map(|limit| Some((bytes_kind(limit.what)?, Pipe::new(limit.value * self.scale))))
                .collect(),
        }
    }

    /// Admits or rejects a request. A rejected request consumes no token.
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

    /// Returns the limiters through which the body of a request passes.
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

    /// Draws a random time to first byte. Returns zero if the tier has no latency for this kind of request.
    pub fn latency(&self, kind: Kind) -> Duration {
        let Some(latency) = self.tier.latency.iter().find(|latency| latency.what == kind) else {
            return Duration::ZERO;
        };
        if rand::random::<f64>() < latency.tail_share {
            return Duration::from_secs_f64(latency.tail_ms / 1000.0);
        }
        // Box-Muller transform. With `1 - u`, the logarithm of zero cannot occur.
        let (u, v): (f64, f64) = (1.0 - rand::random::<f64>(), rand::random());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        latency_at(latency, normal)
    }
}

/// Converts a standard normal deviate to a latency.
fn latency_at(latency: &Latency, normal: f64) -> Duration {
    let sigma = (latency.p99_ms / latency.p50_ms).ln() / Z99;
    Duration::from_secs_f64(latency.p50_ms / 1000.0 * (sigma * normal).exp())
}

impl Route {
    /// Returns true if no limiter applies to the body.
    pub fn is_open(&self) -> bool {
        self.pipes.is_empty()
    }

    /// Returns the number of bytes that one reservation covers.
    pub fn slice(&self) -> u64 {
        let slowest = self.pipes.iter().map(|pipe| pipe.rate).fold(f64::INFINITY, f64::min);
        ((slowest * SLICE.as_secs_f64()).min(MAX_SLICE as f64) as u64).max(MIN_SLICE)
    }

    /// Reserves `bytes` in every limiter. Returns the time at which the bytes may pass.
    pub fn reserve(&self, now: Instant, bytes: u64) -> Instant {
        self.pipes.iter().map(|pipe| pipe.reserve(now, bytes)).max().unwrap_or(now)
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
