// SPDX-License-Identifier: Apache-2.0
//! Read scheduling: splits the tasks of an epoch into reads, orders the reads by the first batch that needs them, and
//! sets the number of concurrent reads.
//!
//! Records in stored order are read in small parts. Only the bytes needed next are then in memory, and several threads
//! decode them. A task of shuffled records is split only if the memory budget requires it, because the records of each
//! part are in random places of the object.

use std::collections::{BTreeMap, VecDeque};

use super::Feed;
use super::batch_plan::{RowRequest, Task, Tasks};
use super::object_content::Reads;
use super::read_sizes::PART;
use super::source::Source;
use penstock_dataset::sampler::DatasetView;

/// Part size for a local file, in bytes. When a part of this size is decoded, it is still in the last-level CPU cache.
const LOCAL_PORTION: u64 = 4 << 20;

/// Maximum number of bytes that are requested from a local folder at a time. More bytes would not help the page cache
/// or the disk, and new memory costs a page fault per 4 KiB.
const LOCAL_IN_FLIGHT: u64 = 32 << 20;

/// Part size for reads in stored order, in bytes.
fn portion(source: &Source) -> u64 {
    if source.is_local() { LOCAL_PORTION } else { PART }
}

/// Request pattern of a dataset. The number of concurrent requests is computed from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct AccessPattern {
    /// True if single records of every object can be read.
    pub is_partial: bool,
    /// Part size for reads in stored order, in bytes.
    portion: u64,
    /// Average number of bytes per request.
    request_bytes: u64,
    /// Average number of samples per request.
    request_samples: u64,
    is_local: bool,
}

impl AccessPattern {
    pub fn of(source: &Source, leaf: &DatasetView) -> Self {
        let (counts, bytes, objects) = (leaf.counts(), source.manifest().bytes(), source.manifest().objects.len());
        let (samples, objects) = (counts.samples().max(1), objects.max(1) as u64);
        let (locator, portion) = (source.locator(), portion(source));
        let is_partial = locator.reads_ranges_of_all();
        let requests = match (is_partial || locator.may_read_ranges_of_all(), leaf.is_shuffled()) {
            (false, _) => objects,
            (true, false) => bytes.div_ceil(portion).clamp(objects.min(samples), samples),
            (true, true) => samples,
        };
        let (request_bytes, request_samples) = ((bytes / requests).max(1), (samples / requests).max(1));
        Self { is_partial, portion, request_bytes, request_samples, is_local: source.is_local() }
    }
}

/// Returns the number of concurrent requests (at most `most`). Also returns the number of batches, after the next one,
/// that must be in progress to keep these requests busy.
pub(super) fn read_ahead_for(
    patterns: &[AccessPattern],
    most: usize,
    threads: usize,
    rows: u64,
    batch_bytes: u64,
    room: u64,
) -> (usize, u64) {
    let mut requests = most;
    if patterns.iter().all(|grain| grain.is_local) {
        let bytes = patterns.iter().map(|grain| grain.request_bytes).max().unwrap_or(1);
        requests = usize::try_from(LOCAL_IN_FLIGHT / bytes).unwrap_or(most).max(2 * threads).min(most);
    }
    let batches = |samples: u64| samples.div_ceil(rows.max(1)) + 1;
    // Read ahead at least one sample per request. If the memory is sufficient, read ahead all samples that the requests
    // deliver.
    let samples = patterns.iter().map(|grain| grain.request_samples).min().unwrap_or(1);
    let wanted = batches(samples.saturating_mul(requests as u64));
    (requests, wanted.min(room / batch_bytes.max(1)).max(batches(requests as u64)))
}

/// Iterator over the tasks of an epoch and their reads, in the order in which they are needed.
#[derive(Debug)]
pub(super) struct ReadScheduler<'f> {
    feed: &'f Feed,
    tasks: std::iter::Peekable<Tasks>,
    /// Parts of split tasks, by the first batch and row that need the part. The parts are sorted, because the second
    /// part of one object may be needed before the first part of another object.
    left: BTreeMap<(u64, u32), VecDeque<Task>>,
}

impl<'f> ReadScheduler<'f> {
    pub fn new(feed: &'f Feed, tasks: Tasks) -> Self {
        Self { feed, tasks: tasks.peekable(), left: BTreeMap::new() }
    }

    /// Returns the next task, and true if it is a part of a split task.
    fn task(&mut self) -> Option<(Task, bool)> {
        let next = self.tasks.peek().map(need);
        match self.left.first_entry() {
            Some(mut entry) if next.is_none_or(|next| *entry.key() <= next) => {
                let task = entry.get_mut().pop_front();
                if entry.get().is_empty() {
                    entry.remove();
                }
                task.map(|task| (task, true))
            }
            _ => self.tasks.next().map(|task| (task, false)),
        }
    }

    /// Number of parts in which a task is read. A task that is already a part (`is_cut`) consists of whole records, so
    /// it may exceed the part size by some bytes. Such a task is split again only if it exceeds the memory limit.
    fn number(&self, task: &Task, bytes: u64, is_cut: bool) -> u64 {
        let grain = &self.feed.patterns[task.leaf];
        if task.wants.len() < 2 || !self.feed.sources[task.leaf].locator().reads_ranges(task.object) {
            return 1;
        }
        let number = match is_in_order(&task.wants) {
            true if is_cut => bytes.div_ceil(self.feed.part.max(1)),
            true => bytes.div_ceil(grain.portion.min(self.feed.part).max(1)),
            false => 1 + u64::from(grain.is_partial && bytes > self.feed.part),
        };
        number.clamp(1, task.wants.len() as u64)
    }
}

/// First batch and row that need the task.
fn need(task: &Task) -> (u64, u32) {
    (task.wants[0].batch, task.wants[0].row)
}

fn is_in_order(wants: &[RowRequest]) -> bool {
    wants.is_sorted_by_key(|want| want.record)
}

impl Iterator for ReadScheduler<'_> {
    type Item = (Task, Reads);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (task, is_cut) = self.task()?;
            let reads = Reads::of(&self.feed.sources[task.leaf], task.object, &task.wants);
            let number = self.number(&task, reads.bytes, is_cut);
            if number == 1 {
                return Some((task, reads));
            }
            let Task { leaf, object, wants } = task;
            let each = wants.len().div_ceil(number as usize);
            for wants in wants.chunks(each) {
                let task = Task { leaf, object, wants: wants.to_vec() };
                self.left.entry(need(&task)).or_default().push_back(task);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use penstock_store::{Memory, PutOptions, Store};
    use penstock_types::{DType, Deadline, Key, Metrics};

    use super::super::{FeedSettings, Field, FixedColumn, FormatSpec, Next, OnError, Steps, Tail};
    use super::*;
    use crate::pool_read::{Placement, Placements};
    use penstock_dataset::manifest::{Entry, Manifest, index};
    use penstock_dataset::order::{Counts, Order, Shuffle};
    use penstock_dataset::sampler::Sampler;

    const RECORD: usize = 1 << 20;
    const EACH: u64 = 20;

    fn settings(memory_bytes: u64) -> FeedSettings {
        FeedSettings {
            memory_bytes: Some(memory_bytes),
            max_in_flight: 8,
            read_ahead: None,
            threads: 3,
            object_timeout: Duration::from_secs(20),
            on_error: OnError::Raise,
            prefetch_next_epoch: false,
            source_numbers: None,
        }
    }

    /// Creates a feed of two objects with 20 records of 1 MiB. Each byte of a record is the record's number.
    fn feed(
        name: &str,
        runtime: &tokio::runtime::Runtime,
        shuffle: Option<Shuffle>,
        memory_bytes: u64,
    ) -> (Arc<Feed>, Steps) {
        let store = Arc::new(Memory::named(name));
        let manifest = runtime.block_on(async {
            for object in 0..2 {
                let records: Vec<Vec<u8>> = (0..EACH).map(|at| vec![(object * EACH + at) as u8; RECORD]).collect();
                let key = Key::from(format!("o{object}.bin").as_str());
                store
                    .put(&key, vec![Bytes::from(records.concat())], &PutOptions::default(), Deadline::NEVER)
                    .await
                    .unwrap();
            }
            index(&*store, &Key::default(), store.root(), Deadline::NEVER).await.unwrap()
        });
        let column = FixedColumn { name: "x".to_owned(), dtype: "uint8".to_owned(), shape: vec![RECORD] };
        let format = FormatSpec::Fixed { header_bytes: 0, columns: vec![column] };
        let source = Source::of_format(store, Key::default(), manifest, Arc::<Metrics>::default(), format).unwrap();
        let leaf = DatasetView::from_order(Order::new(Counts::Equal { objects: 2, each: EACH }, shuffle));
        let steps = Steps { samples: 2 * EACH, cursor: 0, global_batch: 3, rank: 0, world: 1, tail: Tail::Ragged };
        let settings = settings(memory_bytes);
        let course = Sampler::leaf(&leaf);
        let fields = vec![Field::tensor("x", DType::U8, &[RECORD])];
        (Feed::new(vec![Arc::new(source)], vec![leaf], course, fields, steps, &settings).unwrap(), steps)
    }

    fn delivered(feed: &Arc<Feed>, runtime: &tokio::runtime::Runtime, steps: Steps) -> Vec<u8> {
        let mut run = feed.start(runtime.handle(), 0, steps).unwrap();
        let mut ids = Vec::new();
        loop {
            match run.next(Duration::from_secs(20)).unwrap() {
                Next::Batch(batch) => {
                    let tensor = batch.columns[0].tensor().unwrap();
                    // SAFETY: a delivered tensor has one owner.
                    let bytes = unsafe { std::slice::from_raw_parts(tensor.start().as_ptr(), tensor.size_bytes()) };
                    for row in bytes.chunks(RECORD) {
                        assert!(*row == vec![row[0]; RECORD], "a record of another");
                        ids.push(row[0]);
                    }
                }
                Next::Done => return ids,
                Next::Waiting => panic!("no batch in 20 s"),
            }
        }
    }

    #[test]
    fn what_is_wanted_in_order_is_read_in_portions_and_comes_as_it_lies() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (feed, steps) = feed("portions-in-order", &runtime, None, 256 << 20);
        let tasks = || feed.tasks(0, feed.batches(0, steps).unwrap()).unwrap();
        let whole: Vec<RowRequest> = tasks().flat_map(|task| task.wants).collect();
        let portions: Vec<(Task, Reads)> = ReadScheduler::new(&feed, tasks()).collect();
        // 20 MiB are read in three parts of at most 8 MiB.
        assert_eq!(portions.iter().map(|(task, _)| task.wants.len()).collect::<Vec<_>>(), [7, 7, 6, 7, 7, 6]);
        assert!(portions.iter().all(|(task, reads)| reads.bytes == (task.wants.len() * RECORD) as u64));
        assert_eq!(portions.into_iter().flat_map(|(task, _)| task.wants).collect::<Vec<_>>(), whole);
        assert_eq!(delivered(&feed, &runtime, steps), (0..40).collect::<Vec<u8>>());
    }

    /// Returns the number of records in each part of one object of `number` records.
    fn cut(name: &str, record: u64, number: u64, routes: &Placements) -> Vec<usize> {
        let entry = Entry::new(Key::from("o.bin"), number * record);
        let manifest = Manifest::new(format!("memory://{name}/"), vec![entry]);
        let column = FixedColumn { name: "x".to_owned(), dtype: "uint8".to_owned(), shape: vec![record as usize] };
        let format = FormatSpec::Fixed { header_bytes: 0, columns: vec![column] };
        let store = Arc::new(Memory::named(name));
        let source = Source::of_format(store, Key::default(), manifest, Arc::<Metrics>::default(), format).unwrap();
        let leaf = DatasetView::from_order(Order::new(Counts::Equal { objects: 1, each: number }, None));
        let steps = Steps { samples: number, cursor: 0, global_batch: 3, rank: 0, world: 1, tail: Tail::Ragged };
        let fields = vec![Field::tensor("x", DType::U8, &[record as usize])];
        let (course, sources) = (Sampler::leaf(&leaf), vec![Arc::new(source.routed(routes))]);
        let feed = Feed::new(sources, vec![leaf], course, fields, steps, &settings(256 << 20)).unwrap();
        let tasks = feed.tasks(0, feed.batches(0, steps).unwrap()).unwrap();
        ReadScheduler::new(&feed, tasks).map(|(task, _)| task.wants.len()).collect()
    }

    #[test]
    fn portions_of_framed_records_are_cut_once() {
        // Each part has eight records and slightly more than 8 MiB, and is not split again.
        assert_eq!(cut("portions-framed", (1 << 20) + 16, 64, &Placements::default()), [8; 8]);
    }

    #[test]
    fn portions_of_a_pool_are_those_of_files_where_all_objects_are_the_nodes_own() {
        let mut routes = Placements::default();
        let known = |own| Placement { own, nodes: Some(vec![0]) };
        assert_eq!(cut("portions-unknown", 1 << 20, 16, &routes), [8; 2]);
        routes.objects.insert("o.bin".to_owned(), known(None));
        assert_eq!(cut("portions-others", 1 << 20, 16, &routes), [8; 2]);
        routes.objects.insert("o.bin".to_owned(), known(Some("/blocks/7".into())));
        assert_eq!(cut("portions-own", 1 << 20, 16, &routes), [4; 4]);
    }

    #[test]
    fn what_is_shuffled_is_read_once() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (feed, steps) = feed("portions-shuffled", &runtime, Some(Shuffle { seed: 3, window: 2 }), 256 << 20);
        let tasks = feed.tasks(0, feed.batches(0, steps).unwrap()).unwrap();
        let sizes: Vec<u64> = ReadScheduler::new(&feed, tasks).map(|(_, reads)| reads.bytes).collect();
        // Each object of 20 MiB is one read, even if its parts are fetched concurrently.
        assert_eq!(sizes, [EACH * RECORD as u64; 2]);
        let mut ids = delivered(&feed, &runtime, steps);
        assert!(!ids.is_sorted());
        ids.sort_unstable();
        assert_eq!(ids, (0..40).collect::<Vec<u8>>());
    }

    #[test]
    fn portions_of_two_shuffled_objects_come_in_the_order_of_need() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        // An object exceeds a quarter of this budget, so it is read in parts. The records of each part are scattered
        // over the whole object.
        let (feed, steps) = feed("portions-of-need", &runtime, Some(Shuffle { seed: 3, window: 2 }), 72 << 20);
        let tasks = feed.tasks(0, feed.batches(0, steps).unwrap()).unwrap();
        let needs: Vec<(u64, u32)> = ReadScheduler::new(&feed, tasks).map(|(task, _)| need(&task)).collect();
        assert!(needs.len() > 3 && needs.is_sorted(), "{needs:?}");
        assert_eq!(delivered(&feed, &runtime, steps).len(), 40);
    }

    #[test]
    fn reach_follows_what_a_request_brings() {
        let grain = |request_bytes, request_samples, is_local| AccessPattern {
            is_partial: true,
            portion: PART,
            request_bytes,
            request_samples,
            is_local,
        };
        let room = 256 << 20;
        // One sample per request over a network: all allowed requests, and enough batches for them.
        assert_eq!(read_ahead_for(&[grain(7 << 20, 1, false)], 64, 2, 4, 64 << 20, room), (64, 17));
        // Local files: few requests for large files and many for small ones, but at least two per thread.
        assert_eq!(read_ahead_for(&[grain(7 << 20, 1, true)], 64, 2, 4, 64 << 20, room), (4, 2));
        assert_eq!(read_ahead_for(&[grain(100 << 10, 1, true)], 64, 2, 32, 3 << 20, room), (64, 3));
        assert_eq!(read_ahead_for(&[grain(16 << 20, 1, true)], 64, 16, 4, 64 << 20, room), (32, 9));
        // Requests with many samples each need many batches ahead, if memory allows.
        assert_eq!(read_ahead_for(&[grain(8 << 20, 80, false)], 64, 2, 32, 1 << 20, room), (64, 161));
        assert_eq!(read_ahead_for(&[grain(8 << 20, 80, false)], 64, 2, 32, 8 << 20, room), (64, 32));
    }
}
