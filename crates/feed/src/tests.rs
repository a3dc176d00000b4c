// SPDX-License-Identifier: Apache-2.0
//! Tests of the feed over a memory store: delivered batches, reported errors and released memory.

use bytes::Bytes;
use penstock_codec::compress;
use penstock_record::tf_example::{FeatureValue, encode_example};
use penstock_record::tfrecord::write_frame;
use penstock_store::{Memory, MeteredStore, PutOptions, Store};
use penstock_types::{Deadline, Key, Metric, Metrics};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::*;
use penstock_dataset::manifest::{Manifest, index};
use penstock_dataset::order::{Counts, Order, Place, Shuffle};

const SIDE: usize = 6;

/// Writes the record of sample `id`. Every element of its features x and y is `id`.
fn record(id: u64, out: &mut Vec<u8>) {
    let x: Vec<u8> = std::iter::repeat_n((id as i16).to_le_bytes(), SIDE).flatten().collect();
    let payload = encode_example(&[("x", FeatureValue::Bytes(&x)), ("y", FeatureValue::Floats(&[id as f32]))]);
    write_frame(&payload, out);
}

struct World {
    runtime: Runtime,
    store: Arc<Memory>,
    prefix: &'static str,
}

impl World {
    fn new(name: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { runtime, store: Arc::new(Memory::named(name)), prefix: "d/" }
    }

    fn put(&self, name: &str, bytes: Vec<u8>) {
        let key = Key::from(self.prefix).join(name.as_bytes());
        let options = PutOptions::default();
        let put = self.store.put(&key, vec![Bytes::from(bytes)], &options, Deadline::NEVER);
        self.runtime.block_on(put).unwrap();
    }

    /// Writes objects with these record counts. Sample ids continue from one object to the next.
    fn fill(&self, counts: &[u64], gzip: bool) {
        let mut id = 0;
        for (object, &count) in counts.iter().enumerate() {
            let mut bytes = Vec::new();
            (0..count).for_each(|at| record(id + at, &mut bytes));
            id += count;
            let name = format!("o{object:03}.tfrecord{}", if gzip { ".gz" } else { "" });
            self.put(&name, if gzip { compress(Codec::Gzip, &bytes, 6).unwrap() } else { bytes });
        }
    }

    fn list(&self) -> Result<Manifest> {
        let url = self.store.root().with_key(Key::from(self.prefix));
        self.runtime.block_on(index(&*self.store, &url.key, &url, Deadline::NEVER))
    }

    fn source(&self, manifest: Manifest) -> Arc<Source> {
        let metrics = Arc::<Metrics>::default();
        Arc::new(Source::new(self.store.clone(), Key::from(self.prefix), manifest, metrics).unwrap())
    }

    fn count(&self, source: &Arc<Source>) -> Result<Counted> {
        match self.runtime.block_on(count(source, None, true, &mut ExistingIndexes::default(), Deadline::NEVER))? {
            Some(counted) => Ok(counted),
            None => self.runtime.block_on(scan(source, None, Deadline::NEVER)),
        }
    }
}

fn fields() -> Vec<Field> {
    vec![Field::tensor("x", DType::I16, &[SIDE]), Field::tensor("y", DType::F32, &[1])]
}

fn settings() -> FeedSettings {
    FeedSettings {
        memory_bytes: Some(64 << 20),
        max_in_flight: 4,
        read_ahead: None,
        threads: 2,
        object_timeout: Duration::from_secs(20),
        on_error: OnError::Raise,
        prefetch_next_epoch: true,
        source_numbers: None,
    }
}

fn steps(samples: u64, global_batch: u64, rank: u64, world: u64, tail: Tail) -> Steps {
    Steps { samples, cursor: 0, global_batch, rank, world, tail }
}

/// Creates a feed of one dataset.
fn feed(source: Arc<Source>, order: Order, fields: Vec<Field>, steps: Steps, set: &FeedSettings) -> Result<Arc<Feed>> {
    let leaf = DatasetView::from_order(order);
    let course = Sampler::leaf(&leaf);
    Feed::new(vec![source], vec![leaf], course, fields, steps, set)
}

fn values(column: &Column) -> Vec<f32> {
    let tensor = column.tensor().unwrap();
    let elements = tensor.shape.iter().product();
    // SAFETY: a delivered tensor has one owner, and the caller only passes columns of f32.
    unsafe { std::slice::from_raw_parts(tensor.start().as_ptr().cast::<f32>(), elements) }.to_vec()
}

fn next(run: &mut Run) -> Result<Option<Delivered>> {
    for _ in 0..200 {
        match run.next(Duration::from_millis(100))? {
            Next::Batch(batch) => return Ok(Some(batch)),
            Next::Done => return Ok(None),
            Next::Waiting => {}
        }
    }
    panic!("no batch in 20 s");
}

/// Returns the sample ids of each batch, after comparing both features of each record.
fn ids(run: &mut Run) -> Result<Vec<Vec<u64>>> {
    let mut batches = Vec::new();
    while let Some(batch) = next(run)? {
        assert_eq!(batch.columns[0].tensor().unwrap().shape, [batch.rows, SIDE]);
        let found = values(&batch.columns[1]);
        // SAFETY: a delivered tensor has one owner, and the elements of x are i16.
        let x = unsafe {
            std::slice::from_raw_parts(
                batch.columns[0].tensor().unwrap().start().as_ptr().cast::<i16>(),
                batch.rows * SIDE,
            )
        };
        assert!(x.chunks(SIDE).zip(&found).all(|(row, &id)| row.iter().all(|&value| f32::from(value) == id)));
        batches.push(found.into_iter().map(|id| id as u64).collect());
    }
    Ok(batches)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn prop_feed_gives_the_order_on_any_world(
        counts in prop::collection::vec(1u64..6, 1..12), gzip: bool, seed: u64, window in 1u64..5,
        batch in 1u64..9, world in 1u64..4,
    ) {
        let case = World::new(&format!("feed-order-{seed}-{window}-{batch}-{world}-{gzip}-{counts:?}"));
        case.fill(&counts, gzip);
        let source = case.source(case.list().unwrap());
        let counted = case.count(&source).unwrap();
        let order = Order::new(counted.counts, Some(Shuffle { seed, window }));
        let samples: u64 = counts.iter().sum();
        prop_assert_eq!(order.samples(), samples);
        let starts: Vec<u64> = counts.iter().scan(0, |sum, &count| { *sum += count; Some(*sum - count) }).collect();
        let epoch = order.epoch(1);
        let reference: Vec<u64> = (0..samples)
            .map(|position| { let place = epoch.locate(position); starts[place.object as usize] + place.record })
            .collect();
        let mut seen: Vec<Vec<u64>> = vec![Vec::new(); samples.div_ceil(batch) as usize];
        for rank in 0..world {
            let steps = steps(samples, batch, rank, world, Tail::Ragged);
            let feed = feed(source.clone(), order.clone(), fields(), steps, &settings()).unwrap();
            let mut run = feed.start(case.runtime.handle(), 1, steps).unwrap();
            let found = ids(&mut run).unwrap();
            prop_assert_eq!(found.len(), seen.len());
            seen.iter_mut().zip(found).for_each(|(all, mine)| all.extend(mine));
        }
        prop_assert_eq!(seen.concat(), reference);
    }
}

fn feed_of(case: &World, batch: u64, tail: Tail, settings: &FeedSettings) -> Result<(Arc<Feed>, Steps)> {
    let source = case.source(case.list()?);
    let counted = case.count(&source)?;
    let steps = steps(counted.counts.samples(), batch, 0, 1, tail);
    let order = Order::new(counted.counts, Some(Shuffle { seed: 1, window: 4 }));
    Ok((feed(source, order, fields(), steps, settings)?, steps))
}

#[test]
fn counts_come_from_sizes_where_objects_are_alike_and_from_a_scan_where_not() {
    let alike = World::new("feed-alike");
    alike.fill(&[3, 3, 3], true);
    let counted = alike.count(&alike.source(alike.list().unwrap())).unwrap();
    assert_eq!((counted.rung, counted.counts.samples()), (CountSource::Sizes, 9));
    let plain = World::new("feed-alike-plain");
    plain.fill(&[3, 3, 3], false);
    assert_eq!(plain.count(&plain.source(plain.list().unwrap())).unwrap().fingerprint, counted.fingerprint);
    let mixed = World::new("feed-mixed");
    mixed.fill(&[3, 1, 3], true);
    let counted = mixed.count(&mixed.source(mixed.list().unwrap())).unwrap();
    assert_eq!((counted.rung, counted.counts.samples()), (CountSource::Scan, 7));
}

#[test]
fn a_count_that_is_not_true_is_found_out() {
    let case = World::new("feed-lie");
    case.fill(&[2, 2], true);
    let source = case.source(case.list().unwrap());
    let counted = case
        .runtime
        .block_on(count(&source, Some(1), true, &mut ExistingIndexes::default(), Deadline::NEVER))
        .unwrap()
        .unwrap();
    let steps = steps(2, 1, 0, 1, Tail::Ragged);
    let feed = feed(source, Order::new(counted.counts, None), fields(), steps, &settings()).unwrap();
    let error = next(&mut feed.start(case.runtime.handle(), 0, steps).unwrap()).unwrap_err();
    assert!(error.to_string().contains("o000.tfrecord.gz contains 2 records, but 1 were expected"), "{error}");
}

#[test]
fn padding_repeats_the_start_with_no_weight() {
    let case = World::new("feed-pad");
    case.fill(&[1; 7], true);
    let (feed, steps) = feed_of(&case, 5, Tail::Pad, &settings()).unwrap();
    let mut run = feed.start(case.runtime.handle(), 0, steps).unwrap();
    let first = next(&mut run).unwrap().unwrap();
    let last = next(&mut run).unwrap().unwrap();
    assert_eq!(values(&first.columns[2]), [1.0; 5]);
    assert_eq!(values(&last.columns[2]), [1.0, 1.0, 0.0, 0.0, 0.0]);
    assert_eq!(values(&last.columns[1])[2..], values(&first.columns[1])[..3]);
    assert_eq!((last.cursor, next(&mut run).unwrap().is_none()), (7, true));
}

#[test]
fn kept_batches_stay_what_they_were() {
    let case = World::new("feed-kept");
    case.fill(&[1; 64], true);
    let (feed, steps) = feed_of(&case, 4, Tail::Ragged, &settings()).unwrap();
    let mut kept = Vec::new();
    for epoch in 0..3 {
        let mut run = feed.start(case.runtime.handle(), epoch, steps).unwrap();
        while let Some(batch) = next(&mut run).unwrap() {
            let was = values(&batch.columns[1]);
            kept.push((batch, was));
        }
    }
    assert_eq!(kept.len(), 48);
    assert!(kept.iter().all(|(batch, was)| values(&batch.columns[1]) == *was));
}

#[test]
fn a_bad_object_errs_at_its_batch_and_ends_the_pass() {
    type Damage = fn(&mut Vec<u8>);
    let cases: [(&str, Damage, &str); 4] = [
        ("cut", |bytes| bytes.truncate(bytes.len() / 2), "ends"),
        (
            "flip",
            |bytes| {
                let at = bytes.len() - 8;
                bytes[at] ^= 1
            },
            "damaged record 0",
        ),
        ("long", |bytes| bytes[0] ^= 1, "record 0"),
        ("text", |bytes| bytes.fill(b'#'), "is not a TFRecord"),
    ];
    for (name, damage, words) in cases {
        let case = World::new(&format!("feed-bad-{name}"));
        case.fill(&[1; 8], false);
        let mut bytes = Vec::new();
        record(5, &mut bytes);
        damage(&mut bytes);
        case.put("o005.tfrecord", bytes);
        let source = case.source(case.list().unwrap());
        let counted = case
            .runtime
            .block_on(count(&source, Some(1), true, &mut ExistingIndexes::default(), Deadline::NEVER))
            .unwrap()
            .unwrap();
        let steps = steps(8, 2, 0, 1, Tail::Ragged);
        let feed = feed(source, Order::new(counted.counts, None), fields(), steps, &settings()).unwrap();
        let mut run = feed.start(case.runtime.handle(), 0, steps).unwrap();
        assert!(next(&mut run).unwrap().is_some());
        assert!(next(&mut run).unwrap().is_some());
        let error = next(&mut run).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/d/o005.tfrecord") && text.contains(words), "{name}: {text}");
        assert_eq!(error.code(), "corrupt");
        assert!(next(&mut run).unwrap().is_none(), "closed after an error");
    }
}

#[test]
fn an_object_replaced_or_gone_since_the_listing_is_told_apart() {
    let case = World::new("feed-changed");
    case.fill(&[1; 3], true);
    let source = case.source(case.list().unwrap());
    let counted = case.count(&source).unwrap();
    case.fill(&[1; 1], true);
    case.runtime.block_on(case.store.delete(&[Key::from("d/o002.tfrecord.gz")], Deadline::NEVER)).unwrap();
    let steps = steps(3, 1, 0, 1, Tail::Ragged);
    let feed = feed(source, Order::new(counted.counts, None), fields(), steps, &settings()).unwrap();
    let start = |cursor| feed.start(case.runtime.handle(), 0, Steps { cursor, ..steps }).unwrap();
    assert_eq!(next(&mut start(0)).unwrap_err().code(), "changed");
    assert_eq!(next(&mut start(1)).unwrap().unwrap().cursor, 2);
    assert_eq!(next(&mut start(2)).unwrap_err().code(), "not-found");
}

#[test]
fn a_budget_too_small_is_refused_with_its_numbers() {
    let case = World::new("feed-budget");
    case.fill(&[1; 8], true);
    let small = FeedSettings { memory_bytes: Some(12_000), ..settings() };
    let error = feed_of(&case, 8, Tail::Ragged, &small).unwrap_err();
    assert!(matches!(error, Error::BudgetExceeded { budget: 12_000, .. }), "{error}");
}

#[test]
fn the_smallest_budget_that_is_taken_never_locks_up() {
    let case = World::new("feed-tight");
    case.fill(&[4; 24], true);
    // Try increasing budgets: the smallest one that is accepted must be enough for a whole epoch.
    let (feed, steps) = (1..200u64)
        .find_map(|pages| {
            let tight = FeedSettings { memory_bytes: Some(pages * 2048), max_in_flight: 64, ..settings() };
            feed_of(&case, 3, Tail::Ragged, &tight).ok()
        })
        .unwrap();
    let mut run = feed.start(case.runtime.handle(), 0, steps).unwrap();
    let mut all: Vec<u64> = ids(&mut run).unwrap().concat();
    all.sort_unstable();
    assert_eq!(all, (0..96).collect::<Vec<_>>());
}

#[test]
fn dropping_a_pass_gives_everything_back() {
    let case = World::new("feed-drop");
    case.fill(&[1; 64], true);
    let (feed, steps) = feed_of(&case, 4, Tail::Ragged, &settings()).unwrap();
    let whole = feed.budget.free();
    let mut run = feed.start(case.runtime.handle(), 0, steps).unwrap();
    let kept = next(&mut run).unwrap().unwrap();
    drop(run);
    // Wait, because the runtime drops an aborted task only when it next polls the task.
    for _ in 0..200 {
        if feed.budget.free() == whole {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((feed.budget.free(), values(&kept.columns[1]).len()), (whole, 4));
}

#[test]
fn objects_without_records_count_zero_and_a_dataset_of_them_errs() {
    let case = World::new("feed-empty");
    case.put("o000.tfrecord", Vec::new());
    let error = case.count(&case.source(case.list().unwrap())).unwrap_err();
    assert_eq!(error.code(), "config");
    assert!(error.to_string().contains("o000.tfrecord contains no record (0 bytes)"), "{error}");
    case.fill(&[1; 2], false);
    case.put("o000.tfrecord", Vec::new());
    let counted = case.count(&case.source(case.list().unwrap())).unwrap();
    assert_eq!(counted.counts, Counts::of(&[0, 1]));
}

#[test]
fn missing_features_are_named() {
    let other = World::new("feed-feature");
    let mut bytes = Vec::new();
    write_frame(&encode_example(&[("z", FeatureValue::Floats(&[1.0]))]), &mut bytes);
    other.put("o000.tfrecord", bytes);
    let (feed, steps) = feed_of(&other, 1, Tail::Ragged, &settings()).unwrap();
    let error = next(&mut feed.start(other.runtime.handle(), 0, steps).unwrap()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("o000.tfrecord record 0") && text.contains('x'), "{text}");
}

#[test]
fn a_budget_not_given_holds_what_must_be_held() {
    let case = World::new("feed-default-budget");
    case.fill(&[1; 8], true);
    let source = case.source(case.list().unwrap());
    let counted = case.count(&source).unwrap();
    let steps = steps(8, 4, 0, 1, Tail::Ragged);
    let none = FeedSettings { memory_bytes: None, ..settings() };
    let budget = |side: usize| {
        let field = vec![Field::tensor("x", DType::U8, &[side])];
        let order = Order::new(counted.counts.clone(), Some(Shuffle { seed: 1, window: 4 }));
        feed(source.clone(), order, field, steps, &none).unwrap().memory_bytes()
    };
    assert_eq!(budget(6), 1 << 30);
    assert!(budget(1 << 30) >= 2 * 2 * 4 * (1 << 30), "two batches of four may be open, twice over");
}

#[test]
fn an_object_beside_its_inflated_copy_is_refused_with_both_names() {
    let world = World::new("feed-twice");
    world.fill(&[1, 1], true);
    world.fill(&[1, 1], false);
    let manifest = world.list().unwrap();
    let error = Source::new(world.store.clone(), world.prefix.into(), manifest, Arc::default()).unwrap_err();
    let text = error.to_string();
    assert!(error.code() == "config" && text.contains("`o000.tfrecord` and as `o000.tfrecord.gz`"), "{text}");
}

/// Waits until another thread makes the condition `is_so` true.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..2000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{what}: not in 10 s");
}

/// Creates a feed of 64 objects, with metrics that count its reads.
fn counted_world(name: &str, settings: &FeedSettings) -> (World, Arc<Feed>, Steps, Arc<Metrics>) {
    let case = World::new(name);
    case.fill(&[1; 64], false);
    let metrics = Arc::<Metrics>::default();
    let store = Arc::new(MeteredStore::new(case.store.clone(), metrics.clone()));
    let source = Source::new(store, Key::from(case.prefix), case.list().unwrap(), metrics.clone()).unwrap();
    let order = Order::new(Counts::of(&[1; 64]), Some(Shuffle { seed: 1, window: 4 }));
    let steps = steps(64, 4, 0, 1, Tail::Ragged);
    let feed = feed(Arc::new(source), order, fields(), steps, settings).unwrap();
    (case, feed, steps, metrics)
}

/// Returns all batches of an epoch. Before taking the last one, waits until the next epoch's first objects are
/// requested.
fn epoch_and_ahead(feed: &Arc<Feed>, run: &mut Run, batches: usize) -> Vec<Vec<u64>> {
    let mut all: Vec<Vec<u64>> = Vec::new();
    for _ in 0..batches - 1 {
        all.push(values(&next(run).unwrap().unwrap().columns[1]).into_iter().map(|id| id as u64).collect());
    }
    wait_for("the next epoch's objects", || feed.ahead.lock().unwrap().is_some());
    all.extend(ids(run).unwrap());
    all
}

#[test]
fn the_next_epochs_first_objects_are_fetched_while_this_one_ends() {
    let (case, feed, steps, metrics) = counted_world("feed-ahead", &settings());
    let mut run = feed.start(case.runtime.handle(), 0, steps).unwrap();
    let first = epoch_and_ahead(&feed, &mut run, 16);
    wait_for("64 and a 16th of them", || metrics.get(Metric::Gets) >= 64 + 4);
    assert_eq!(metrics.get(Metric::Gets), 64 + 4);
    let mut run = feed.start(case.runtime.handle(), 1, steps).unwrap();
    let second = epoch_and_ahead(&feed, &mut run, 16);
    wait_for("as many again", || metrics.get(Metric::Gets) >= 128 + 4);
    assert_eq!(metrics.get(Metric::Gets), 128 + 4, "nothing is read twice");
    // A feed without prefetch delivers the same batches.
    let (case, plain, steps, metrics) =
        counted_world("feed-not-ahead", &FeedSettings { prefetch_next_epoch: false, ..settings() });
    for (epoch, want) in [first, second].into_iter().enumerate() {
        assert_eq!(ids(&mut plain.start(case.runtime.handle(), epoch as u64, steps).unwrap()).unwrap(), want);
    }
    assert_eq!(metrics.get(Metric::Gets), 128);
}

#[test]
fn another_pass_than_the_next_epoch_drops_what_was_fetched_for_it() {
    let (case, feed, steps, metrics) = counted_world("feed-ahead-dropped", &settings());
    let whole = feed.budget.free();
    for (epoch, cursor) in [(0, 0), (0, 0), (1, 8), (5, 0)] {
        let mut run = feed.start(case.runtime.handle(), epoch, Steps { cursor, ..steps }).unwrap();
        let batches = epoch_and_ahead(&feed, &mut run, (64 - cursor as usize) / 4);
        let order = feed.leaves[0].epoch(epoch).order;
        let want: Vec<u64> = (cursor..64).map(|position| order.locate(position).object).collect();
        assert_eq!(batches.concat(), want);
    }
    drop(feed.take_prefetched(0, steps));
    wait_for("all given back", || feed.budget.free() == whole);
    assert!(metrics.get(Metric::Gets) <= 4 * 68);
}

#[test]
fn a_fetch_for_the_next_epoch_that_fails_is_made_again() {
    let (case, feed, steps, metrics) = counted_world("feed-ahead-fails", &settings());
    let (this, next_one) = (feed.leaves[0].epoch(0).order, feed.leaves[0].epoch(1).order);
    // Choose an object that is prefetched for the next epoch and that this epoch reads in its first half.
    let is_early = |object: &u64| this.position(Place { object: *object, record: 0 }) < 32;
    let number = (0..4).map(|position| next_one.locate(position).object).find(is_early).unwrap();
    let name = format!("o{number:03}.tfrecord");
    let mut run = feed.start(case.runtime.handle(), 0, steps).unwrap();
    for _ in 0..8 {
        next(&mut run).unwrap().unwrap();
    }
    case.runtime.block_on(case.store.delete(&[Key::from(format!("d/{name}").as_str())], Deadline::NEVER)).unwrap();
    epoch_and_ahead(&feed, &mut run, 8);
    wait_for("64 and a 16th of them", || metrics.get(Metric::Gets) >= 64 + 4);
    let mut bytes = Vec::new();
    record(number, &mut bytes);
    case.put(&name, bytes);
    let error = next(&mut feed.start(case.runtime.handle(), 1, steps).unwrap()).unwrap_err();
    // The prefetch failed because the object was missing. The second fetch found another version of it.
    assert_eq!(error.code(), "changed");
}
