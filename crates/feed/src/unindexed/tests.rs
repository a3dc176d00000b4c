// SPDX-License-Identifier: Apache-2.0
//! Tests of unindexed epochs over a memory store: the ranks together read every record once, a saved state continues
//! exactly, and errors are reported at their batch.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use penstock_codec::{Codec, compress};
use penstock_record::tf_example::{FeatureValue, encode_example};
use penstock_record::tfrecord::write_frame;
use penstock_store::{Memory, PutOptions, Store};
use penstock_types::{DType, Deadline, Key, Metrics};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::super::batch_rows::Rows;
use super::super::decode_memory::Values;
use super::super::epoch_iter::EpochSource;
use super::super::{Next, OnError};
use super::shared_state::{Open, Shared};
use super::*;
use penstock_dataset::manifest::index;

struct Case {
    runtime: Runtime,
    source: Arc<Source>,
}

fn record(id: u64, padding: usize) -> Vec<u8> {
    let (id, padding) = ((id as i64).to_le_bytes(), vec![7; padding]);
    let mut out = Vec::new();
    write_frame(&encode_example(&[("x", FeatureValue::Bytes(&id)), ("p", FeatureValue::Bytes(&padding))]), &mut out);
    out
}

impl Case {
    fn new(objects: &[Vec<u8>], codec: Codec) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        // A memory store is shared by name within the process, so each case uses a new name.
        static CASES: AtomicU64 = AtomicU64::new(0);
        let store = Arc::new(Memory::named(&format!("unindexed-{}", CASES.fetch_add(1, Ordering::Relaxed))));
        for (number, content) in objects.iter().enumerate() {
            let (bytes, suffix) = match codec {
                Codec::Gzip => (compress(Codec::Gzip, content, 1).unwrap(), ".gz"),
                _ => (content.clone(), ""),
            };
            let key = Key::from(&*format!("d/{number:03}.tfrecord{suffix}"));
            let options = PutOptions::default();
            let put = store.put(&key, vec![Bytes::from(bytes)], &options, Deadline::NEVER);
            runtime.block_on(put).unwrap();
        }
        let url = store.root().with_key(Key::from("d/"));
        let manifest = runtime.block_on(index(&*store, &url.key, &url, Deadline::NEVER)).unwrap();
        let source = Source::new(store, Key::from("d/"), manifest, Arc::<Metrics>::default()).unwrap();
        Self { runtime, source: Arc::new(source) }
    }

    fn feed(&self, seed: Option<u64>, turns: Turns, on_error: OnError) -> Result<Arc<Unindexed>> {
        let settings = FeedSettings {
            memory_bytes: None,
            max_in_flight: 8,
            read_ahead: None,
            threads: 3,
            object_timeout: Duration::from_secs(20),
            on_error,
            prefetch_next_epoch: true,
            source_numbers: None,
        };
        let fields = vec![Field::tensor("x", DType::I64, &[1])];
        Unindexed::new(self.source.clone(), seed, fields, turns, settings)
    }

    /// Returns the batches of an epoch with the position after each, until the end or an error.
    fn pass(&self, feed: &Arc<Unindexed>, from: Position) -> (Vec<(Vec<i64>, Position)>, Option<Error>) {
        let mut run = feed.start(self.runtime.handle(), 5, from).unwrap();
        let mut batches = Vec::new();
        loop {
            match run.next(Duration::from_secs(20)) {
                Ok(Next::Batch(batch)) => {
                    let tensor = batch.columns[0].tensor().unwrap();
                    // SAFETY: the batch is delivered, and its memory lives as long as `batch`.
                    let bytes = unsafe { std::slice::from_raw_parts(tensor.start().as_ptr(), tensor.size_bytes()) };
                    let ids: Vec<i64> = bytes.as_chunks::<8>().0.iter().map(|id| i64::from_le_bytes(*id)).collect();
                    assert_eq!(ids.len(), batch.rows);
                    batches.push((ids, Position::unpacked(batch.cursor)));
                }
                Ok(Next::Done) => return (batches, None),
                Ok(Next::Waiting) => panic!("a pass makes no progress"),
                Err(error) => return (batches, Some(error)),
            }
        }
    }
}

fn turns(batch: u64, rank: u64, world: u64) -> Turns {
    Turns { batch, rank, world, drops_tail: false }
}

fn flat(batches: &[(Vec<i64>, Position)]) -> Vec<i64> {
    batches.iter().flat_map(|(ids, _)| ids.clone()).collect()
}

/// Returns objects with these record counts and consecutive ids. Record lengths differ, and some exceed a window.
fn objects(counts: &[u64]) -> Vec<Vec<u8>> {
    let mut id = 0;
    let mut content = |&count: &u64| {
        (0..count)
            .flat_map(|_| {
                id += 1;
                record(id - 1, [10, 90, 400, 3000][(id * 7 % 13 % 4) as usize])
            })
            .collect()
    };
    counts.iter().map(&mut content).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn prop_ranks_of_a_world_give_every_record_once_and_any_state_goes_on(
        counts in prop::collection::vec(1u64..30, 1..6), seed in prop::option::of(any::<u64>()),
        (world, batch) in (1u64..4, 1u64..9), gzip: bool, stop: prop::sample::Index,
    ) {
        let case = Case::new(&objects(&counts), if gzip { Codec::Gzip } else { Codec::None });
        let mut all = Vec::new();
        for rank in 0..world {
            let feed = case.feed(seed, turns(batch, rank, world), OnError::Raise).unwrap();
            let (batches, error) = case.pass(&feed, Position::default());
            prop_assert!(error.is_none(), "{:?}", error);
            let full = batches.len().saturating_sub(1);
            prop_assert!(batches[..full].iter().all(|(ids, _)| ids.len() as u64 == batch));
            all.extend(flat(&batches));
            if !batches.is_empty() {
                let at = stop.index(batches.len());
                let (rest, error) = case.pass(&feed, batches[at].1);
                prop_assert!(error.is_none());
                prop_assert_eq!(flat(&rest), flat(&batches[at + 1..]));
            }
        }
        if seed.is_none() && world == 1 {
            prop_assert!(all.is_sorted());
        }
        all.sort_unstable();
        prop_assert_eq!(all, (0..counts.iter().sum::<u64>() as i64).collect::<Vec<_>>());
    }
}

#[test]
fn records_of_an_object_are_mixed_and_epochs_differ() {
    let case = Case::new(&objects(&[60]), Codec::None);
    let feed = case.feed(Some(3), turns(60, 0, 1), OnError::Raise).unwrap();
    let (batches, _) = case.pass(&feed, Position::default());
    assert!(!flat(&batches).is_sorted());
    assert_ne!(feed.records(5, 0, 0, 20).at(0), feed.records(6, 0, 0, 20).at(0));
}

#[test]
fn a_tail_that_is_dropped_ends_the_epoch_all_the_same() {
    let case = Case::new(&objects(&[5, 5]), Codec::Gzip);
    let feed = case.feed(None, Turns { drops_tail: true, ..turns(4, 0, 1) }, OnError::Raise).unwrap();
    let (batches, error) = case.pass(&feed, Position::default());
    assert!(error.is_none());
    assert_eq!(flat(&batches), (0..8).collect::<Vec<_>>());
}

#[test]
fn damage_comes_at_its_batch_and_can_be_left_out() {
    let mut objects = objects(&[6, 6, 6]);
    let second = record(6, 10).len();
    let at = objects[1].len() - 3;
    objects[1][at] ^= 1; // damages the last record's payload or checksum
    assert!(second < at);
    let case = Case::new(&objects, Codec::None);
    let feed = case.feed(None, turns(4, 0, 1), OnError::Raise).unwrap();
    let (batches, error) = case.pass(&feed, Position::default());
    assert_eq!(flat(&batches), (0..8).collect::<Vec<_>>());
    let text = error.unwrap().to_string();
    assert!(text.contains("001.tfrecord has a damaged record 5"), "{text}");
    let feed = case.feed(None, turns(4, 0, 1), OnError::Skip).unwrap();
    let (batches, error) = case.pass(&feed, Position::default());
    assert!(error.is_none());
    assert_eq!(flat(&batches), (0..18).filter(|id| *id != 11).collect::<Vec<_>>());
    assert_eq!(batches.iter().map(|(ids, _)| ids.len()).collect::<Vec<_>>(), [4, 4, 3, 4, 2]);
}

#[test]
fn an_object_cut_short_gives_what_is_whole_and_then_its_error() {
    let mut objects = objects(&[4, 9, 3]);
    let cut = objects[1].len() - 5;
    objects[1].truncate(cut);
    let case = Case::new(&objects, Codec::None);
    let feed = case.feed(None, turns(4, 0, 1), OnError::Raise).unwrap();
    let (batches, error) = case.pass(&feed, Position::default());
    assert_eq!(flat(&batches), (0..12).collect::<Vec<_>>());
    assert!(error.unwrap().to_string().contains("001.tfrecord ends inside record"));
    let feed = case.feed(None, turns(4, 0, 1), OnError::Skip).unwrap();
    let (batches, error) = case.pass(&feed, Position::default());
    assert!(error.is_none());
    assert_eq!(flat(&batches), (0..16).filter(|id| *id != 12).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_is_refused() {
    let case = Case::new(&objects(&[2]), Codec::None);
    let refused = |turns, on_error| case.feed(None, turns, on_error).unwrap_err().to_string();
    assert!(refused(turns(1, 2, 2), OnError::Raise).contains("must be less than the number of ranks (2 ranks, got 2)"));
    assert!(refused(turns(0, 0, 1), OnError::Raise).contains("0 is not a valid batch size"));
    assert!(refused(turns(1, 0, 1), OnError::Substitute).contains("use skip or raise"));
    let feed = case.feed(None, turns(1, 0, 1), OnError::Raise).unwrap();
    let beyond = feed.start(case.runtime.handle(), 0, Position { object: 2, record: 0 }).unwrap_err();
    assert!(beyond.to_string().contains("object 2 is beyond the end of this rank's share (1 objects)"));
}

#[test]
fn error_is_ready_when_the_batches_before_it_are_out() {
    let case = Case::new(&objects(&[3]), Codec::None);
    let feed = case.feed(None, turns(2, 0, 1), OnError::Raise).unwrap();
    let shared = Shared::new(feed.clone(), 0);
    let rows = Arc::new(Rows::new(feed.pool.take(&feed.layout).unwrap(), &feed.fields, 2, Values::limited(1 << 20)));
    let end = Position::default();
    let open = Open { rows, left: 1, count: 2, dead: Vec::new(), error: None, last: None, end };
    shared.locked().open.insert(0, open);
    shared.locked().failed = Some(Error::corrupt("d/000", "ends early"));
    assert!(!shared.is_ready(0) && shared.is_ready(1));
    assert!(matches!(shared.take(0, Duration::ZERO), Ok((Next::Waiting, None))));
    assert!(shared.take(1, Duration::ZERO).is_err());
}
