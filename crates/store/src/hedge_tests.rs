// SPDX-License-Identifier: Apache-2.0
//! Tests hedging with a store whose faults depend only on object and attempt number. A slow machine hedges more
//! requests, but this does not change which requests are late or fail.

use std::collections::HashMap;

use bytes::Bytes;
use penstock_types::Key;

use super::*;
use crate::{Memory, PutOptions, read_whole};

const BODY: &[u8] = b"the same bytes whoever answers";

/// Returns the fault of a GET, given the object's number and the attempt number.
type Fate = fn(usize, usize) -> Option<Odds>;

enum Odds {
    /// The response arrives after this delay.
    Late(Duration),
    /// The request fails after this delay with this error.
    Ends(Duration, Error),
}

/// Store in which every key is the same object, and some GETs are late or fail.
#[derive(Debug)]
struct Odd {
    inner: Memory,
    attempts: Mutex<HashMap<Key, usize>>,
    fate: Fate,
}

#[async_trait]
impl Store for Odd {
    crate::delegate_store!(|this| this.inner; root, capabilities, list, head, put, uploads, delete);

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let attempt = {
            let mut attempts = self.attempts.lock().unwrap();
            let attempt = attempts.entry(object.key.clone()).or_default();
            *attempt += 1;
            *attempt
        };
        let number = std::str::from_utf8(object.key.as_bytes()).unwrap().parse().unwrap();
        match (self.fate)(number, attempt) {
            None => {}
            Some(Odds::Late(wait)) => tokio::time::sleep(wait).await,
            Some(Odds::Ends(wait, error)) => {
                tokio::time::sleep(wait).await;
                return Err(error);
            }
        }
        self.inner.get_ranges(&ObjectRef::current(Key::from("a")), ranges, deadline).await
    }
}

struct Rig {
    odd: Arc<Odd>,
    hedge: Hedge,
    metrics: Arc<Metrics>,
}

async fn rig(name: &str, fate: Fate) -> Rig {
    let inner = Memory::named(&format!("hedge-{name}"));
    let body = vec![Bytes::from_static(BODY)];
    inner.put(&Key::from("a"), body, &PutOptions::default(), Deadline::NEVER).await.unwrap();
    let odd = Arc::new(Odd { inner, attempts: Mutex::default(), fate });
    let metrics = Arc::new(Metrics::default());
    Rig { hedge: Hedge::new(odd.clone(), metrics.clone()), odd, metrics }
}

impl Rig {
    async fn get(&self, number: usize) -> Result<Bytes> {
        let object = ObjectRef::current(Key::from(number.to_string().as_str()));
        Ok(read_whole(&self.hedge, &object, None, Deadline::NEVER).await?.1)
    }

    fn gets(&self) -> usize {
        self.odd.attempts.lock().unwrap().values().sum()
    }

    fn hedges(&self) -> (usize, usize) {
        (self.metrics.get(Metric::Hedges) as usize, self.metrics.get(Metric::HedgesWon) as usize)
    }
}

fn broken() -> Error {
    Error::Unreachable { place: "memory://hedge/".to_owned(), reason: "connection reset (injected)".to_owned() }
}

fn refused() -> Error {
    let (place, window) = ("memory://hedge/a".to_owned(), Duration::ZERO);
    Error::Throttled { place, status: 503, refused: 1, sent: 1, window, retry_after: None }
}

const LONG: Duration = Duration::from_secs(3);

#[tokio::test]
async fn hedge_asks_again_for_what_is_late_and_takes_the_first_answer() {
    let rig = rig("tail", |number, attempt| (number % 40 == 39 && attempt == 1).then_some(Odds::Late(LONG))).await;
    for number in 0..400 {
        assert_eq!(rig.get(number).await.unwrap(), BODY);
    }
    let (hedges, won) = rig.hedges();
    assert!((1..=20).contains(&hedges) && (1..=hedges).contains(&won), "{won} of {hedges}");
    assert_eq!(rig.gets(), 400 + hedges);
}

#[tokio::test]
async fn hedge_keeps_its_share_where_everything_is_late() {
    let rig = rig("share", |_, _| None).await;
    rig.hedge.state().late = Some(FLOOR);
    let hedged = (0..1000).filter(|_| rig.hedge.asked().is_some() && rig.hedge.may_hedge()).count();
    assert!((49..=50).contains(&hedged), "{hedged} of 1000");
    (0..1000).for_each(|_| _ = rig.hedge.asked());
    let saved = (0..1000).filter(|_| rig.hedge.may_hedge()).count();
    assert_eq!(saved, SAVED as usize);
}

#[tokio::test]
async fn hedge_learns_what_is_late_from_enough_peers() {
    let mut state = State::default();
    for _ in 1..MIN_PEERS {
        state.answered(Duration::from_millis(100));
    }
    assert_eq!(state.hedge_after(), None);
    state.answered(Duration::from_millis(100));
    assert_eq!(state.hedge_after(), Some(Duration::from_millis(200)), "twice the median");
    for at in 0..PEERS {
        state.answered(Duration::from_millis(if at % 10 == 0 { 900 } else { 100 }));
    }
    assert_eq!(state.hedge_after(), Some(Duration::from_millis(900)), "the 95th percentile");
    (0..2 * PEERS).for_each(|_| state.answered(Duration::from_micros(10)));
    assert_eq!(state.hedge_after(), Some(FLOOR));
}

#[tokio::test]
async fn hedge_asks_a_store_that_throttles_nothing_twice() {
    let fate: Fate = |number, _| match number {
        60 => Some(Odds::Ends(Duration::ZERO, refused())),
        61.. => Some(Odds::Late(Duration::from_millis(50))),
        _ => None,
    };
    let rig = rig("throttle", fate).await;
    for number in 0..60 {
        rig.get(number).await.unwrap();
    }
    assert!(rig.get(60).await.is_err());
    let before = rig.hedges();
    for number in 61..90 {
        rig.get(number).await.unwrap();
    }
    assert_eq!(rig.hedges(), before);
}

#[tokio::test]
async fn hedge_that_breaks_leaves_the_answer_to_the_other() {
    let fate: Fate = |number, attempt| match (number, attempt) {
        (50, 1) => Some(Odds::Late(Duration::from_millis(500))),
        (50, _) => Some(Odds::Ends(Duration::ZERO, broken())),
        (70, 1) => Some(Odds::Ends(Duration::from_millis(500), broken())),
        (70, _) => Some(Odds::Late(Duration::from_secs(1))),
        (80, 1) => Some(Odds::Ends(Duration::from_millis(500), broken())),
        (80, _) => Some(Odds::Ends(Duration::from_secs(1), broken())),
        _ => None,
    };
    let rig = rig("breaks", fate).await;
    for number in 0..80 {
        assert_eq!(rig.get(number).await.unwrap(), BODY, "{number}");
    }
    assert_eq!(rig.get(80).await.unwrap_err().code(), broken().code());
}
