// SPDX-License-Identifier: Apache-2.0
//! Record counts that grow while objects are scanned. An epoch can start before all objects are counted.
//!
//! An object without a count is treated as empty. The sample order depends on the counts only through their running
//! sums in each epoch's object order. Up to the first shuffle window that contains an uncounted object, the order from
//! partial counts therefore equals the order from complete counts.
//!
//! Owns the counts and the positions of records. The positions are stored in an unnamed file until the index is
//! complete.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures::{StreamExt, stream};
use penstock_codec::Codec;
use penstock_record::tfrecord::frame_len;
use penstock_store::owned::{self, OwnedFile};
use penstock_types::{Deadline, Error, Result, lock};
use tokio::sync::Notify;

use super::format::Framing;
use super::read_sizes::PART;
use super::record_counts::{CountSource, Counted, SCANS_IN_FLIGHT, cached, index_path, kept};
use super::scan::scan_object;
use super::source::Source;
use penstock_dataset::order::Counts;
use penstock_dataset::record_index::{IndexWriter, RecordIndex, Span, stamp};

/// Size in bytes of one record's position in the file.
const ROW: usize = 24;

/// Maximum number of records whose positions are in memory for a part of an epoch. They take 64 MiB.
const MAX_RECORDS: u64 = 4 << 20;

/// Number of records of an object, and the location of their positions.
#[derive(Debug, Clone, Copy)]
struct Known {
    records: u64,
    /// Offset in the file of the records' positions. `None` if the positions are not stored.
    at: Option<u64>,
    /// False if only the object's first records are counted.
    complete: bool,
}

#[derive(Debug)]
struct State {
    known: Vec<Option<Known>>,
    /// Number of objects that are counted completely.
    complete: usize,
    file: Option<File>,
    end: u64,
    /// For objects that are not counted completely: positions of their first records.
    starts: BTreeMap<u64, Vec<Span>>,
}

/// Record counts of the objects of a dataset that were scanned so far.
#[derive(Debug)]
pub struct PartialCounts {
    cache: Option<PathBuf>,
    state: Mutex<State>,
    stopped: Notify,
}

impl PartialCounts {
    /// Creates the counts. If the folder `cache` contains an index, the counts start with those of the index. While
    /// objects are scanned, record positions are stored in an unnamed file in that folder; at the end, the complete
    /// index is stored there. Without a folder, no positions are stored.
    pub fn new(source: &Source, cache: Option<&Path>) -> Self {
        let open = |folder: &Path| -> Option<File> {
            std::fs::create_dir_all(folder).ok()?;
            let (folder, _) = owned::parent_of(&folder.join("x")).ok()?;
            let temporary = OwnedFile::create(&folder, ".spans-").ok()?;
            // From now on, the file has no name. It disappears when the process ends.
            temporary.remove();
            temporary.file().try_clone().ok()
        };
        let known = vec![None; source.manifest().objects.len()];
        let state = State { known, complete: 0, file: cache.and_then(open), end: 0, starts: BTreeMap::new() };
        let counts = Self { cache: cache.map(Path::to_owned), state: Mutex::new(state), stopped: Notify::new() };
        // An earlier scan may have counted some of the objects.
        if let Ok(Some(index)) = cached(source, cache) {
            for object in 0..source.manifest().objects.len() as u64 {
                if let Some(spans) = index.spans(object) {
                    counts.note(object, spans.len() as u64, Some(&spans), true);
                }
            }
        }
        counts
    }

    /// Number of objects that are counted completely.
    pub fn complete(&self) -> usize {
        lock(&self.state).complete
    }

    /// Complete count of an object. `None` if the complete count is not known.
    pub fn count(&self, object: u64) -> Option<u64> {
        let known = lock(&self.state).known.get(object as usize).copied().flatten();
        known.filter(|known| known.complete).map(|known| known.records)
    }

    /// True if single records of all these objects can be read: their positions are stored, and the objects are not
    /// compressed.
    pub fn reads_ranges(&self, source: &Source, objects: &[u64]) -> bool {
        let state = lock(&self.state);
        objects.iter().all(|&object| source.codec(object) == Codec::None && state.at(object as usize).is_some())
    }

    /// Adds the complete count of an object, which another process scanned.
    pub fn learn(&self, object: u64, records: u64) {
        self.note(object, records, None, true);
    }

    fn note(&self, object: u64, records: u64, spans: Option<&[Span]>, complete: bool) {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let before = state.known.get(object as usize).copied();
        // Ignore an object that is out of range, or that is already counted completely.
        if before.is_none_or(|before| before.is_some_and(|before| before.complete)) {
            return;
        }
        let mut at = None;
        if let (Some(spans), false) = (spans, complete) {
            state.starts.insert(object, spans.to_vec());
        } else if let (Some(spans), Some(file)) = (spans, &state.file) {
            let bytes: Vec<u8> = spans
                .iter()
                .flat_map(|span| [span.offset, span.len, u64::from(span.crc)])
                .flat_map(u64::to_le_bytes)
                .collect();
            // If the disk is full, only the counts are used.
            if file.write_all_at(&bytes, state.end).is_ok() {
                at = Some(state.end);
                state.end += bytes.len() as u64;
            }
        }
        if complete {
            state.complete += 1;
            state.starts.remove(&object);
        }
        state.known[object as usize] = Some(Known { records, at, complete });
    }

    /// Reads each of these objects once, and counts its records. Does not read objects that are already counted
    /// completely. If an object cannot be read, the other objects are still counted, and an index of all counted
    /// objects is stored. Returns `Interrupted` after [`PartialCounts::stop`].
    pub async fn scan(&self, source: &Arc<Source>, objects: Vec<u64>, deadline: Deadline) -> Result<()> {
        tokio::select! {
            biased;
            () = self.stopped.notified() => Err(Error::Interrupted),
            done = self.scan_each(source, objects, deadline) => done,
        }
    }

    /// Ends the current scan. If no scan is running, the next scan ends immediately.
    pub fn stop(&self) {
        self.stopped.notify_one();
    }

    async fn scan_each(&self, source: &Arc<Source>, objects: Vec<u64>, deadline: Deadline) -> Result<()> {
        let wanted = objects.into_iter().filter(|&object| self.count(object).is_none());
        let mut found = stream::iter(wanted)
            .map(|object| async move { Ok::<_, Error>((object, scan_object(source, object, deadline).await?)) })
            .buffer_unordered(SCANS_IN_FLIGHT);
        let mut failed = None;
        while let Some(found) = found.next().await {
            let (object, scanned) = match found {
                Ok(found) => found,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            let records = scanned.records;
            let spans: Vec<Span> = scanned.each(source.framing()).collect();
            self.note(object, records, Some(&spans), true);
        }
        match failed {
            None => Ok(()),
            Some(error) => {
                if let Ok(Some(path)) = index_path(source, self.cache.as_deref()) {
                    lock(&self.state).index(source, &path);
                }
                Err(error)
            }
        }
    }

    /// Reads the start of an object until it contains at least `records` whole records, and counts the whole records.
    /// Reads a compressed object completely. Returns the number of records.
    pub async fn scan_start(&self, source: &Arc<Source>, object: u64, records: u64, deadline: Deadline) -> Result<u64> {
        let size = source.entry(object).size;
        let mut bytes = FIRST;
        while source.codec(object) == Codec::None && bytes < size {
            let head = source.head(object, bytes, deadline).await?;
            let framed = source.clone();
            let spans = tokio::task::spawn_blocking(move || starts(framed.framing(), &head, &framed.place(object)));
            let spans = spans.await.map_err(|error| Error::bug(format!("counting records: {error}")))?;
            if spans.len() as u64 >= records {
                self.note(object, spans.len() as u64, Some(&spans), false);
                return Ok(spans.len() as u64);
            }
            bytes = bytes.saturating_mul(4).max(PART);
        }
        self.scan(source, vec![object], deadline).await?;
        Ok(self.count(object).unwrap_or(0))
    }

    /// Returns the counts of `objects`, and a count of 0 for every other object. The index contains the record
    /// positions of `objects[first_indexed..]`. If `objects` are the first objects of an epoch, the order from these
    /// counts is a prefix of the complete order.
    pub fn so_far(&self, source: &Source, objects: &[u64], first_indexed: usize) -> Result<Counted> {
        let state = lock(&self.state);
        let entries = &source.manifest().objects;
        let (mut records, mut wants) = (vec![0; entries.len()], vec![false; entries.len()]);
        let mut wanted = 0;
        for (at, &object) in objects.iter().enumerate().filter(|(_, object)| **object < entries.len() as u64) {
            let object = object as usize;
            records[object] = state.known[object].map_or(0, |known| known.records);
            wants[object] = at >= first_indexed;
            wanted += if wants[object] { records[object] } else { 0 };
        }
        let mut index = None;
        if wanted <= MAX_RECORDS && (state.file.is_some() || !state.starts.is_empty()) {
            let mut writer = IndexWriter::in_memory(entries.len())?;
            for (object, entry) in entries.iter().enumerate() {
                match wants[object].then(|| state.spans(object)).flatten() {
                    Some(spans) => writer.push(stamp(entry), spans)?,
                    None => writer.push_unknown(entry),
                }
            }
            index = Some(Arc::new(writer.finish(entries)?));
        }
        let fingerprint = source.manifest().fingerprint(&records);
        Ok(Counted { counts: Counts::of(&records), rung: CountSource::Scan, fingerprint, index })
    }

    /// Returns the complete counts, and stores the index in the cache. Returns a `Bug` error if an object is not
    /// counted completely.
    pub fn finish(&self, source: &Source) -> Result<Counted> {
        let state = lock(&self.state);
        let records = state.known.iter().map(|known| known.filter(|known| known.complete).map(|known| known.records));
        let records: Option<Vec<u64>> = records.collect();
        let records = records.ok_or_else(|| Error::bug("not all objects are counted"))?;
        let index = match index_path(source, self.cache.as_deref())? {
            Some(path) if (0..records.len()).all(|object| state.at(object).is_some()) => state.index(source, &path),
            // Another process scanned some of the objects. If that process uses the same folder, it stored the index
            // there.
            _ => kept(source, self.cache.as_deref())?.and_then(|counted| counted.index),
        };
        Counted::new(source, &records, CountSource::Scan, index)
    }
}

impl State {
    /// Offset in the file of the positions of an object that is counted completely.
    fn at(&self, object: usize) -> Option<u64> {
        self.known.get(object).copied().flatten().filter(|known| known.complete)?.at
    }

    fn spans(&self, object: usize) -> Option<Vec<Span>> {
        let known = self.known.get(object).copied().flatten()?;
        if !known.complete {
            return self.starts.get(&(object as u64)).cloned();
        }
        let mut bytes = vec![0; usize::try_from(known.records).ok()?.checked_mul(ROW)?];
        self.file.as_ref()?.read_exact_at(&mut bytes, known.at?).ok()?;
        let number = |bytes: &[u8], at: usize| {
            bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let span = |row: &[u8]| Span { offset: number(row, 0), len: number(row, 8), crc: number(row, 16) as u32 };
        Some(bytes.chunks_exact(ROW).map(span).collect())
    }

    /// Writes an index of the objects that are counted completely. Returns `None` if the index cannot be written.
    fn index(&self, source: &Source, path: &Path) -> Option<Arc<RecordIndex>> {
        let entries = &source.manifest().objects;
        let mut writer = IndexWriter::create(path, entries.len()).ok()?;
        for (object, entry) in entries.iter().enumerate() {
            match self.at(object) {
                Some(_) => writer.push(stamp(entry), self.spans(object)?).ok()?,
                None => writer.push_unknown(entry),
            }
        }
        writer.finish(entries).ok().map(Arc::new)
    }
}

/// Number of bytes of the first read from the start of an object. A few requests of this size take no longer than one
/// round trip.
const FIRST: u64 = if cfg!(test) { 1 << 10 } else { 1 << 20 };

/// Returns the positions of the whole records in an object's first bytes.
fn starts(framing: &dyn Framing, head: &[u8], place: &str) -> Vec<Span> {
    let mut spans = Vec::new();
    if let Some(frames) = framing.frames(head, place) {
        // An error is reported later, when the damaged record is read.
        if let Ok(mut frames) = frames {
            let _ = frames.push(head, &mut |span, crc| {
                spans.push(Span { offset: span.offset, len: frame_len(span.len), crc });
            });
        }
        return spans;
    }
    let _ = framing.spans(head, place, &mut spans);
    // The last record may be incomplete.
    spans.pop();
    spans
}

#[cfg(test)]
mod tests {
    use penstock_dataset::manifest::index;
    use penstock_dataset::order::{Order, Shuffle};
    use penstock_record::tfrecord::write_frame;
    use penstock_store::{Memory, PutOptions, Store};
    use penstock_types::{Key, Metrics};
    use proptest::prelude::*;

    use super::super::FormatSpec;
    use super::*;

    fn source(name: &str, counts: &[usize], runtime: &tokio::runtime::Runtime) -> Arc<Source> {
        let store = Arc::new(Memory::named(name));
        let listed = runtime.block_on(async {
            for (object, &count) in counts.iter().enumerate() {
                let mut bytes = Vec::new();
                (0..count).for_each(|record| write_frame(&vec![7; 100 + record], &mut bytes));
                let key = Key::from(format!("{object:03}.tfrecord").as_str());
                store.put(&key, vec![bytes.into()], &PutOptions::default(), Deadline::NEVER).await.unwrap();
            }
            index(&*store, &Key::default(), store.root(), Deadline::NEVER).await.unwrap()
        });
        let (metrics, format) = (Arc::<Metrics>::default(), FormatSpec::TFRECORD);
        Arc::new(Source::of_format(store, Key::default(), listed, metrics, format).unwrap())
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn prop_order_of_partial_counts_is_a_prefix(
            counts in prop::collection::vec(0usize..9, 2..12), seed: u64, window in 1u64..5, windows in 1u64..4,
        ) {
            prop_assume!(counts.iter().sum::<usize>() > 0);
            let runtime = runtime();
            let source = source(&format!("partial-prefix-{seed}-{window}-{windows}-{counts:?}"), &counts, &runtime);
            let shuffle = Some(Shuffle { seed, window });
            let objects = counts.len() as u64;
            let all: Vec<u64> = counts.iter().map(|&count| count as u64).collect();
            let (order, unit) = (Order::new(Counts::of(&all), shuffle), Order::new(Counts::Equal { objects, each: 1 }, shuffle));
            let blocks: Vec<u64> = (0..objects).map(|block| unit.epoch(1).place(block).object).collect();
            let known = blocks[..(window * windows).min(objects) as usize].to_vec();
            let dir = tempfile::tempdir().unwrap();
            let partial = PartialCounts::new(&source, Some(dir.path()));
            runtime.block_on(partial.scan(&source, known.clone(), Deadline::NEVER)).unwrap();
            let so_far = partial.so_far(&source, &known, 0).unwrap();
            let (short, whole) = (Order::new(so_far.counts.clone(), shuffle), order.epoch(1));
            let epoch = short.epoch(1);
            for position in 0..short.samples() {
                prop_assert_eq!(epoch.locate(position), whole.locate(position));
            }
            let spans = so_far.index.unwrap();
            prop_assert!(known.iter().all(|&object| spans.count(object) == Some(all[object as usize])));
            runtime.block_on(partial.scan(&source, (0..objects).collect(), Deadline::NEVER)).unwrap();
            let done = partial.finish(&source).unwrap();
            prop_assert_eq!(done.counts, Counts::of(&all));
            prop_assert_eq!(kept(&source, Some(dir.path())).unwrap().unwrap().counts, Counts::of(&all));
        }
    }

    #[test]
    fn stop_ends_one_scan() {
        let runtime = runtime();
        let source = source("partial-stop", &[3, 4], &runtime);
        let partial = PartialCounts::new(&source, None);
        partial.stop();
        let stopped = runtime.block_on(partial.scan(&source, vec![0, 1], Deadline::NEVER)).unwrap_err();
        assert_eq!((stopped.code(), partial.complete()), ("interrupted", 0));
        runtime.block_on(partial.scan(&source, vec![0, 1], Deadline::NEVER)).unwrap();
        assert_eq!(partial.complete(), 2);
    }

    #[test]
    fn start_of_an_object_has_the_records_that_are_wanted() {
        let runtime = runtime();
        let source = source("partial-start", &[30, 4], &runtime);
        let dir = tempfile::tempdir().unwrap();
        let partial = PartialCounts::new(&source, Some(dir.path()));
        let first = runtime.block_on(partial.scan_start(&source, 0, 5, Deadline::NEVER)).unwrap();
        assert!((5..30).contains(&first), "{first}");
        assert_eq!((partial.count(0), partial.complete()), (None, 0));
        let so_far = partial.so_far(&source, &[0], 0).unwrap();
        assert_eq!((so_far.counts.records(0), so_far.counts.records(1)), (first, 0));
        assert_eq!(so_far.index.unwrap().count(0), Some(first));
        let all = runtime.block_on(partial.scan_start(&source, 0, 1000, Deadline::NEVER)).unwrap();
        assert_eq!((all, partial.count(0), partial.complete()), (30, Some(30), 1));
        partial.learn(1, 4);
        assert_eq!(partial.finish(&source).unwrap().counts, Counts::of(&[30, 4]));
    }
}
