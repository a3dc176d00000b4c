// SPDX-License-Identifier: Apache-2.0
//! Tests that the limits admit requests and bytes at the stated rates. The tests compute times instead of waiting.

use proptest::prelude::*;

use super::*;
use crate::tier::{Limit, Seconds};

fn tier(limits: &[(What, Scope, f64)], queue_s: Option<f64>, burst_s: Option<f64>) -> Tier {
    Tier {
        limits: limits.iter().map(|&(what, scope, value)| Limit { what, scope, value }).collect(),
        queue: queue_s.map(|value| Seconds { value }),
        burst: burst_s.map(|value| Seconds { value }),
        ..Tier::default()
    }
}

fn latency(p50_ms: f64, p99_ms: f64) -> Latency {
    Latency { what: Kind::Read, p50_ms, p99_ms, tail_share: 0.0, tail_ms: 0.0 }
}

const READ: Request<'_> = Request { kind: Kind::Read, prefix: "a/" };
const WRITE: Request<'_> = Request { kind: Kind::Write, prefix: "a/" };

proptest! {
    #[test]
    fn prop_requests_admitted_are_the_rate_and_the_burst(
        rate in 1.0_f64..300.0, burst_s in 0.1_f64..3.0, offered in 2_u32..10, scale in 0.01_f64..2.0,
    ) {
        let tier = tier(&[(What::ReadRequests, Scope::Account, rate)], None, Some(burst_s));
        let limits = Limits::new(tier, scale).unwrap();
        let (begin, seconds) = (Instant::now(), 4.0);
        // Requests arrive evenly for four seconds, at several times the rate. A bucket that holds one token gains
        // nothing from the moment it is full until the next request, so for small buckets a step is at most 1 % of the
        // time that a token takes.
        let least = if rate * scale * burst_s < 3.0 { 100.0 * rate * scale * seconds } else { 0.0 };
        let asked = (rate * scale * f64::from(offered) * seconds).ceil().max(least).max(400.0) as u32;
        let step = seconds / f64::from(asked);
        let admitted = (0..asked)
            .filter(|&i| limits.admit(READ, begin + Duration::from_secs_f64(f64::from(i) * step)).is_ok())
            .count() as f64;
        let want = rate * scale * seconds + (rate * scale * burst_s).max(1.0);
        prop_assert!((admitted - want).abs() <= 0.01 * want + 2.0, "{admitted} of {want}");
    }

    #[test]
    fn prop_bytes_pass_at_the_rate(rate in 1e4_f64..1e10, streams in 1_usize..9, scale in 0.001_f64..2.0) {
        let limits = Limits::new(tier(&[(What::ReadBytes, Scope::Account, rate)], None, None), scale).unwrap();
        let begin = Instant::now();
        let route = limits.route(READ, &Connection::default());
        let slice = route.slice();
        // Like a body, each stream reserves its next slice when its last one has passed.
        let mut next = vec![begin; streams];
        let (mut sent, mut end) = (0_u64, begin);
        for turn in 0..200 {
            let stream = turn % streams;
            let at = route.reserve(next[stream], slice);
            next[stream] = at;
            end = end.max(at);
            sent += slice;
        }
        let measured = sent as f64 / end.duration_since(begin).as_secs_f64();
        prop_assert!((measured / (rate * scale) - 1.0).abs() < 0.02, "{measured} of {}", rate * scale);
    }

    #[test]
    fn prop_latency_has_the_stated_quantiles(p50 in 0.5_f64..100.0, ratio in 1.0_f64..20.0) {
        let latency = latency(p50, p50 * ratio);
        let ms = |normal| latency_at(&latency, normal).as_secs_f64() * 1000.0;
        prop_assert!((ms(0.0) / p50 - 1.0).abs() < 1e-3 && (ms(Z99) / (p50 * ratio) - 1.0).abs() < 1e-3);
    }
}

#[test]
fn latency_drawn_is_centred_on_the_median() {
    let mut tier = tier(&[], None, None);
    tier.latency.push(latency(10.0, 100.0));
    let limits = Limits::new(tier, 0.001).unwrap();
    let below = (0..20_000).filter(|_| limits.latency(Kind::Read) < Duration::from_millis(10)).count();
    let above = (0..20_000).filter(|_| limits.latency(Kind::Read) > Duration::from_millis(100)).count();
    assert!((9_500..10_500).contains(&below), "{below} of 20000 below the median");
    assert!((120..300).contains(&above), "{above} of 20000 above the 99th percentile");
    assert_eq!(limits.latency(Kind::Write), Duration::ZERO);
}

#[test]
fn latency_tail_is_the_stated_share() {
    let mut tier = tier(&[], None, None);
    tier.latency.push(Latency { tail_share: 0.25, tail_ms: 700.0, ..latency(1.0, 1.0) });
    let limits = Limits::new(tier, 1.0).unwrap();
    let slow = (0..10_000).filter(|_| limits.latency(Kind::Read) == Duration::from_millis(700)).count();
    assert!((2_200..2_800).contains(&slow), "{slow} of 10000");
}

#[test]
fn admit_prefix_scope_counts_each_prefix_alone() {
    let limits = Limits::new(tier(&[(What::ReadRequests, Scope::Prefix, 10.0)], None, Some(1.0)), 1.0).unwrap();
    let now = Instant::now();
    let other = Request { kind: Kind::Read, prefix: "b/" };
    let admitted = |request| (0..50).filter(|_| limits.admit(request, now).is_ok()).count();
    assert_eq!((admitted(READ), admitted(other), admitted(WRITE)), (10, 10, 50));
    assert_eq!(limits.admit(READ, now + Duration::from_millis(99)), Err(Refusal::Requests));
    assert_eq!(limits.admit(READ, now + Duration::from_millis(101)), Ok(()));
}

#[test]
fn admit_queue_beyond_its_bound_refuses_until_it_drains() {
    let tier = tier(&[(What::ReadBytes, Scope::Account, 1000.0)], Some(2.0), None);
    let limits = Limits::new(tier, 1.0).unwrap();
    let begin = Instant::now();
    let route = limits.route(READ, &Connection::default());
    assert_eq!(limits.admit(READ, begin), Ok(()));
    route.reserve(begin, 3000);
    assert_eq!(limits.admit(READ, begin), Err(Refusal::Bytes));
    assert_eq!(limits.admit(WRITE, begin), Ok(()));
    assert_eq!(limits.admit(READ, begin + Duration::from_millis(1001)), Ok(()));
}

#[test]
fn route_connection_scope_limits_each_connection_alone() {
    let limits = Limits::new(tier(&[(What::ReadBytes, Scope::Connection, 1000.0)], None, None), 0.5).unwrap();
    let now = Instant::now();
    for _ in 0..3 {
        let route = limits.route(READ, &limits.connection());
        assert_eq!(route.reserve(now, 500) - now, Duration::from_secs(1));
    }
    assert!(limits.route(WRITE, &limits.connection()).is_open());
}

#[test]
fn reserve_after_a_pause_gives_no_credit_for_it() {
    let limits = Limits::new(tier(&[(What::ReadBytes, Scope::Account, 1000.0)], None, None), 1.0).unwrap();
    let route = limits.route(READ, &Connection::default());
    let begin = Instant::now();
    route.reserve(begin, 100);
    let later = begin + Duration::from_secs(60);
    assert!(route.reserve(later, 1000) >= later + Duration::from_secs(1) - SLACK);
}

#[test]
fn new_scale_that_is_no_rate_is_refused() {
    for scale in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert_eq!(Limits::new(tier(&[], None, None), scale).unwrap_err().code(), "config");
    }
}
