// SPDX-License-Identifier: Apache-2.0
//! The feed, as Python sees it: a listed dataset, its counts, a feed, a pass over an epoch, and tensors.
//!
//! What owns threads, locks or sockets is tied to its process: a forked child leaks what it inherits and builds anew.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use penstock_flow::feed::{
    Beside, Counted, Feed, FeedSettings, Field, FormatSpec, Known, Next, RecordIndex, Rung, Source, Steps, Wanted,
    count, glob_matches, indexes_in, requests_of, scan, schema, split_glob, without_indexes,
};
use penstock_flow::order::{Counts, ORDER_VERSION, default_window};
use penstock_flow::{Manifest, index};
use penstock_store::{Govern, Governor, ObjectRef, Rates, StoreSettings, open, read_whole};
use penstock_types::{Deadline, Error, Metric, Metrics, Result, Scheme, Unit, Url};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::course::PyCourse;
use crate::enter::{SIGNAL_POLL, enter, enter_async, runtime};
use crate::raise::raise;
use crate::tensor::{PyRagged, PyTensor, set_column};
use crate::unindexed::{Pass, PyUnindexed};

/// By when a listing, or the counting of records, must have ended.
const LISTING: Duration = Duration::from_secs(3600);

/// An index that a dataset carries is read whole; 10^6 shards of MDS take half of this.
const MOST_TOLD: u64 = 1 << 30;

/// What `__reduce__` gives: a function and its arguments.
type Pickled<'py, T> = (Bound<'py, PyAny>, T);

/// A listing, how many of its objects were left aside, its format, and other programs' indexes.
type PickledSource<'py> = (Bound<'py, PyBytes>, usize, String, Option<Bound<'py, PyBytes>>);

/// Runs of equal counts (records, times), the rung, the fingerprint, and where the index lies.
type PickledCounts = (Vec<(u64, usize)>, String, String, Option<String>);

/// A value that only the process that made it may use or drop.
pub(crate) struct Own<T> {
    pid: u32,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    pub fn new(value: T) -> Self {
        Self { pid: std::process::id(), value: ManuallyDrop::new(value) }
    }

    pub fn get(&self, what: &str) -> Result<&T> {
        if self.pid == std::process::id() {
            Ok(&self.value)
        } else {
            Err(Error::config(what, format!("it belongs to process {}; make a new one in this process", self.pid)))
        }
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// The store of a listing, and the listing in its format: the one that is said, or the one that its names say. Of a store
/// behind a network at most `in_flight` requests are asked at a time, as many as it bears.
pub(crate) fn opened(
    manifest: &Manifest,
    format: Option<&FormatSpec>,
    env: &HashMap<String, String>,
    in_flight: usize,
) -> Result<(Source, Arc<Metrics>)> {
    let metrics = Arc::<Metrics>::default();
    let url: Url = manifest.url.parse()?;
    let opened = open(&url, &StoreSettings::from_env(env)?, metrics.clone())?;
    let (mut store, prefix, manifest) = (opened.store, opened.prefix, manifest.clone());
    if !matches!(url.scheme, Scheme::File | Scheme::Memory) {
        let rates = Rates { in_flight, ..Rates::default() };
        store = Arc::new(Govern::new(store, Governor::new(rates, metrics.clone())));
    }
    let source = match format {
        Some(format) => Source::of_format(store, prefix, manifest, metrics.clone(), format.clone())?,
        None => Source::new(store, prefix, manifest, metrics.clone())?,
    };
    Ok((source, metrics))
}

/// One listing of what `url` names.
fn listed_at(py: Python<'_>, url: Url, env: &HashMap<String, String>) -> PyResult<Manifest> {
    let opened = enter(py, || open(&url, &StoreSettings::from_env(env)?, Arc::<Metrics>::default()))?;
    enter_async(py, async move { index(&*opened.store, &opened.prefix, &url, Deadline::within(LISTING)).await })
}

/// The format of a listing, with what an object of the dataset must tell of it.
fn told(
    py: Python<'_>,
    manifest: &Manifest,
    format: Option<FormatSpec>,
    env: &HashMap<String, String>,
) -> PyResult<FormatSpec> {
    let format = enter(py, || format.map_or_else(|| FormatSpec::of_names(manifest), Ok))?;
    let Some(key) = format.asks_for() else { return Ok(format) };
    let url = enter(py, || manifest.url.parse::<Url>())?;
    let settings = enter(py, || StoreSettings::from_env(env))?;
    let found = enter(py, || open(&url, &settings, Arc::<Metrics>::default()))?;
    let place = format!("{}{key}", manifest.url);
    let content = enter_async(py, async move {
        let object = ObjectRef::current(found.prefix.join(key.as_bytes()));
        let size = found.store.head(&object.key, Deadline::within(LISTING)).await?.size;
        if size > MOST_TOLD {
            let problem = format!("has {size} bytes, more than any index of a dataset");
            return Err(Error::corrupt(found.prefix.to_string(), problem));
        }
        Ok(read_whole(&*found.store, &object, None, Deadline::within(LISTING)).await?.1)
    })?;
    enter(py, || format.told(&content, &place))
}

/// A listed dataset: names, sizes, versions, format. Holds no connection.
#[pyclass(name = "Source", module = "penstock._native", frozen)]
pub struct PySource {
    pub(crate) manifest: Manifest,
    /// What the order calls objects, where those are not the listing's own: the blocks of arrays.
    blocks: Option<Manifest>,
    /// Other programs' indexes of its objects.
    indexes: Option<Manifest>,
    ignored: usize,
    pub(crate) format: FormatSpec,
}

impl PySource {
    fn of(source: &Source, indexes: Option<Manifest>) -> Self {
        let (listing, format) = (source.listing().clone(), source.format().clone());
        let blocks = (!std::ptr::eq(source.listing(), source.manifest())).then(|| source.manifest().clone());
        Self { manifest: listing, blocks, indexes, ignored: source.ignored(), format }
    }

    fn ordered(&self) -> &Manifest {
        self.blocks.as_ref().unwrap_or(&self.manifest)
    }
}

#[pymethods]
impl PySource {
    /// Lists `url` (a folder, a pattern or one object), or takes the listing from a manifest's JSON. Other programs'
    /// indexes are looked for beside the objects, or at `indexes`.
    #[staticmethod]
    #[pyo3(signature = (url, manifest, env, format=None, indexes=None))]
    fn open(
        py: Python<'_>,
        url: &str,
        manifest: Option<Vec<u8>>,
        env: HashMap<String, String>,
        format: Option<&str>,
        indexes: Option<&str>,
    ) -> PyResult<Self> {
        let format = enter(py, || format.map(FormatSpec::from_json).transpose())?;
        let url: Url = enter(py, || url.parse())?;
        // `exp[1]` may be a folder's name: what is there under the very name is meant.
        let pattern = split_glob(&url).filter(|_| !url.to_path().is_some_and(|path| path.exists()));
        let folder = pattern.as_ref().map_or(&url, |(folder, _)| folder).clone();
        let mut listed = match manifest {
            Some(json) => enter(py, || {
                let listed = Manifest::from_json(&json, "the manifest")?;
                let of = listed.url.parse::<Url>()?;
                if of.as_folder() != folder.as_folder() && !url.to_string().starts_with(&listed.url) {
                    return Err(Error::config("manifest", format!("it lists {}, not {url}", listed.url)));
                }
                Ok(listed)
            })?,
            None => listed_at(py, folder, &env)?,
        };
        let beside = indexes_in(&listed);
        if let Some(beside) = &beside {
            without_indexes(&mut listed, beside);
        }
        let indexes = match indexes {
            Some(url) => Some(listed_at(py, enter(py, || url.parse())?, &env)?),
            None => beside,
        };
        if let Some((_, pattern)) = &pattern {
            listed.objects.retain(|entry| glob_matches(pattern, entry.key.as_bytes()));
            if listed.objects.is_empty() {
                return Err(raise(py, Error::NotFound { place: format!("any object that fits {url}") }));
            }
        }
        let format = told(py, &listed, format, &env)?;
        let in_flight = Rates::default().in_flight;
        let source = Arc::new(enter(py, || opened(&listed, Some(&format), &env, in_flight))?.0);
        let asked = source.clone();
        match enter_async(py, async move { asked.told(Deadline::within(LISTING)).await })? {
            Some(format) => Ok(Self::of(&enter(py, || opened(&listed, Some(&format), &env, in_flight))?.0, indexes)),
            None => Ok(Self::of(&source, indexes)),
        }
    }

    /// Rebuilds a source that was pickled.
    #[staticmethod]
    #[pyo3(signature = (manifest, ignored, format, indexes=None))]
    fn restore(
        py: Python<'_>,
        manifest: Vec<u8>,
        ignored: usize,
        format: &str,
        indexes: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        enter(py, || {
            let manifest = Manifest::from_json(&manifest, "a pickled dataset")?;
            let indexes = indexes.map(|json| Manifest::from_json(&json, "a pickled dataset")).transpose()?;
            let format = FormatSpec::from_json(format)?;
            Ok(Self { blocks: format.ordered(&manifest)?, manifest, indexes, ignored, format })
        })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Pickled<'py, PickledSource<'py>>> {
        let indexes = enter(py, || self.indexes.as_ref().map(Manifest::to_json).transpose())?;
        let indexes = indexes.map(|json| PyBytes::new(py, &json));
        Ok((py.get_type::<Self>().getattr("restore")?, (self.manifest(py)?, self.ignored, self.format(py)?, indexes)))
    }

    /// The format as JSON.
    #[getter]
    fn format(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || self.format.to_json())
    }

    /// The first record's parts: fields as JSON, and for each what the record holds.
    fn schema(&self, py: Python<'_>, env: HashMap<String, String>) -> PyResult<(String, Vec<String>)> {
        let (source, _) = enter(py, || opened(&self.manifest, Some(&self.format), &env, Rates::default().in_flight))?;
        let seen = enter_async(py, async move { schema(&Arc::new(source), Deadline::within(LISTING)).await })?;
        let (fields, holds): (Vec<Field>, Vec<String>) = seen.into_iter().map(|seen| (seen.field, seen.holds)).unzip();
        Ok((enter(py, || Field::to_json(&fields))?, holds))
    }

    /// The listing as JSON.
    fn manifest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let json = enter(py, || self.manifest.to_json())?;
        Ok(PyBytes::new(py, &json))
    }

    #[getter]
    fn url(&self) -> &str {
        &self.manifest.url
    }

    #[getter]
    fn objects(&self) -> usize {
        self.ordered().objects.len()
    }

    /// The key of an object below `url`, by its number among the dataset's names.
    fn key(&self, number: usize) -> PyResult<String> {
        let entry = self.ordered().objects.get(number);
        let entry = entry.ok_or_else(|| PyIndexError::new_err(format!("{number} of {} objects", self.objects())))?;
        Ok(entry.key.to_string())
    }

    /// Its name without the suffix of its codec: the same in a staged or inflated copy.
    fn logical_name(&self, number: usize) -> PyResult<String> {
        let entry = self.ordered().objects.get(number);
        let entry = entry.ok_or_else(|| PyIndexError::new_err(format!("{number} of {} objects", self.objects())))?;
        Ok(String::from_utf8_lossy(entry.logical_name()).into_owned())
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.manifest.bytes()
    }

    /// Requests that reading everything once takes.
    #[getter]
    fn requests(&self) -> u64 {
        self.manifest.objects.iter().map(|entry| requests_of(entry.size)).sum()
    }

    #[getter]
    fn ignored(&self) -> usize {
        self.ignored
    }

    /// Of the names alone, whatever the objects hold.
    #[getter]
    fn fingerprint(&self) -> String {
        format!("{:032x}", self.manifest.fingerprint(&[]))
    }

    /// The record counts: by the cheap rungs, or (`scans`) by reading everything. None when only a scan can tell. With
    /// them, what is wrong with indexes that were set aside.
    #[pyo3(signature = (declared, *, scans, env, cache=None))]
    fn count(
        &self,
        py: Python<'_>,
        declared: Option<u64>,
        scans: bool,
        env: HashMap<String, String>,
        cache: Option<PathBuf>,
    ) -> PyResult<(Option<PyCounted>, Vec<String>)> {
        let (source, _) = enter(py, || opened(&self.manifest, Some(&self.format), &env, Rates::default().in_flight))?;
        let beside = match &self.indexes {
            Some(listed) => Some(enter(py, || {
                let opened = open(&listed.url.parse()?, &StoreSettings::from_env(&env)?, Arc::<Metrics>::default())?;
                Ok(Beside::new(opened.store, opened.prefix, listed.clone()))
            })?),
            None => None,
        };
        let source = Arc::new(source);
        let (counted, notes) = enter_async(py, async move {
            let deadline = Deadline::within(LISTING);
            let mut known = Known { cache: cache.as_deref(), beside: beside.as_ref(), ..Known::default() };
            let counted = if scans {
                Some(scan(&source, known.cache, deadline).await?)
            } else {
                count(&source, declared, &mut known, deadline).await?
            };
            Ok((counted, known.notes))
        })?;
        Ok((counted.map(PyCounted::new), notes))
    }
}

/// How many records each object holds, how that was found, and the dataset's fingerprint.
#[pyclass(name = "Counted", module = "penstock._native", frozen)]
pub struct PyCounted {
    counted: Counted,
    /// Where the index lies, for a process that has not opened it yet.
    index: Option<PathBuf>,
}

/// An index of records: open, or where it lies.
#[derive(Clone)]
pub(crate) struct Indexed {
    open: Option<Arc<RecordIndex>>,
    path: PathBuf,
}

impl Indexed {
    /// The index; one that is on another machine is as if there were none.
    fn open(&self, manifest: &Manifest) -> Option<Arc<RecordIndex>> {
        self.open.clone().or_else(|| RecordIndex::open(&self.path, &manifest.objects).map(Arc::new))
    }
}

impl PyCounted {
    fn new(counted: Counted) -> Self {
        let index = counted.index.as_ref().map(|index| index.path().to_owned());
        Self { counted, index }
    }

    pub(crate) fn index(&self) -> Option<Indexed> {
        Some(Indexed { open: self.counted.index.clone(), path: self.index.clone()? })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counted.counts
    }
}

#[pymethods]
impl PyCounted {
    /// Rebuilds counts that were pickled: (records, times) runs.
    #[staticmethod]
    #[pyo3(signature = (runs, rung, fingerprint, index=None))]
    fn restore(
        py: Python<'_>,
        runs: Vec<(u64, usize)>,
        rung: &str,
        fingerprint: &str,
        index: Option<PathBuf>,
    ) -> PyResult<Self> {
        enter(py, || {
            let bad = || Error::bug("pickled counts do not read");
            let rung = Rung::ALL.into_iter().find(|known| known.name() == rung).ok_or_else(bad)?;
            let records: Vec<u64> =
                runs.iter().flat_map(|&(records, times)| std::iter::repeat_n(records, times)).collect();
            let fingerprint = u128::from_str_radix(fingerprint, 16).map_err(|_| bad())?;
            let counted = Counted { counts: Counts::of(&records), rung, fingerprint, index: None };
            Ok(Self { counted, index })
        })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Pickled<'py, PickledCounts>> {
        let runs = match &self.counted.counts {
            Counts::Equal { objects, each } => vec![(*each, *objects as usize)],
            Counts::Each(counts) => counts.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect(),
        };
        let index = self.index.as_ref().map(|path| path.display().to_string());
        Ok((py.get_type::<Self>().getattr("restore")?, (runs, self.rung().to_owned(), self.fingerprint(), index)))
    }

    #[getter]
    fn samples(&self) -> u64 {
        self.counted.counts.samples()
    }

    #[getter]
    fn rung(&self) -> &'static str {
        self.counted.rung.name()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        format!("{:032x}", self.counted.fingerprint)
    }

    /// True when single records can be read where objects are stored as they are.
    #[getter]
    fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// The shuffle window when none is given.
    #[getter]
    fn window(&self) -> u64 {
        default_window(&self.counted.counts)
    }
}

/// A feed for one rank's batches. Threads and requests exist only while one of its runs does.
#[pyclass(name = "Feed", module = "penstock._native", frozen)]
pub struct PyFeed {
    feed: Own<Arc<Feed>>,
    metrics: Vec<Arc<Metrics>>,
    steps: Steps,
    #[pyo3(get)]
    threads: usize,
    #[pyo3(get)]
    memory_bytes: u64,
}

#[pymethods]
impl PyFeed {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "named in Python; one caller")]
    #[pyo3(signature = (
        course, fields, *, global_batch, rank, world, tail, memory_bytes, max_in_flight, read_ahead, threads,
        deadline_s, env, on_error="raise", caches=None, node=None
    ))]
    fn new(
        py: Python<'_>,
        course: &PyCourse,
        fields: &str,
        global_batch: u64,
        rank: u64,
        world: u64,
        tail: &str,
        memory_bytes: Option<u64>,
        max_in_flight: usize,
        read_ahead: Option<u64>,
        threads: Option<usize>,
        deadline_s: f64,
        env: HashMap<String, String>,
        on_error: &str,
        caches: Option<Vec<Option<(PathBuf, u64)>>>,
        node: Option<(u64, u64)>,
    ) -> PyResult<Self> {
        enter(py, || {
            let fields = Field::from_json(fields)?;
            let samples = course.course.samples();
            let steps = Steps { samples, cursor: 0, global_batch, rank, world, tail: tail.parse()? };
            let caches = caches.unwrap_or_else(|| vec![None; course.sources.len()]);
            if caches.len() != course.sources.len() {
                return Err(Error::bug(format!("{} datasets have {} caches", course.sources.len(), caches.len())));
            }
            let node =
                node.map_or(0..world, |(first, end)| first.min(world - 1)..end.clamp(first + 1, world.max(first + 1)));
            let known = course.course.is_plain().then_some(steps);
            let open = |(at, (source, index)): (usize, (&Py<PySource>, &Option<Indexed>))| {
                let source = source.get();
                let index = index.as_ref().and_then(|index| index.open(&source.manifest));
                let (mut opened, metrics) = opened(&source.manifest, Some(&source.format), &env, max_in_flight)?;
                if let Some((folder, limit)) = &caches[at] {
                    opened = opened.cached(folder, *limit, &course.leaves[at], known, node.clone())?;
                }
                Ok((Arc::new(opened.with_index(index)), metrics))
            };
            let opened: Result<Vec<_>> = course.sources.iter().zip(&course.indexes).enumerate().map(open).collect();
            let (sources, metrics) = opened?.into_iter().unzip();
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let deadline = Duration::try_from_secs_f64(deadline_s)
                .map_err(|_| Error::config("deadline_s", format!("{deadline_s} is no time in seconds")))?;
            let threads = threads.unwrap_or(cores);
            let on_error = on_error.parse()?;
            let settings = FeedSettings { memory_bytes, max_in_flight, read_ahead, threads, deadline, on_error };
            let feed = Feed::new(sources, course.leaves.clone(), course.course.clone(), fields, steps, &settings)?;
            Ok(Self {
                threads: feed.threads(),
                memory_bytes: feed.memory_bytes(),
                feed: Own::new(feed),
                metrics,
                steps,
            })
        })
    }

    /// Begins a pass over an epoch from a cursor on.
    fn start(&self, py: Python<'_>, epoch: u64, cursor: u64) -> PyResult<PyRun> {
        let handle = runtime();
        enter(py, || {
            let feed = self.feed.get("loader")?;
            let run = feed.start(&handle, epoch, Steps { cursor, ..self.steps })?;
            let names = feed.fields().iter().map(|field| field.name.clone()).collect();
            Ok(PyRun::new(Pass::Counted(run), names))
        })
    }

    /// The fields of these records (dataset, object, record), a row each.
    fn gather<'py>(&self, py: Python<'py>, wanted: Vec<Wanted>) -> PyResult<Bound<'py, PyDict>> {
        let feed = enter(py, || self.feed.get("dataset").cloned())?;
        let tensors = enter_async(py, feed.clone().gather(wanted))?;
        let dict = PyDict::new(py);
        for (field, column) in feed.fields().iter().zip(tensors) {
            set_column(&dict, &field.name, column)?;
        }
        Ok(dict)
    }

    /// The counters of this feed's requests; times in seconds.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        metrics_of(py, &self.metrics)
    }
}

/// The counters of several sources, added; times in seconds.
pub(crate) fn metrics_of<'py>(py: Python<'py>, counted: &[Arc<Metrics>]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for &metric in Metric::ALL {
        let value = counted.iter().map(|metrics| metrics.get(metric)).sum();
        match metric.unit() {
            Unit::Nanoseconds => dict.set_item(metric.name(), Duration::from_nanos(value).as_secs_f64())?,
            Unit::Count | Unit::Bytes => dict.set_item(metric.name(), value)?,
        }
    }
    Ok(dict)
}

/// One pass over an epoch.
#[pyclass(name = "Run", module = "penstock._native", frozen)]
pub struct PyRun {
    run: Mutex<Pass>,
    names: Vec<String>,
    pid: u32,
}

impl PyRun {
    pub(crate) fn new(pass: Pass, names: Vec<String>) -> Self {
        Self { run: Mutex::new(pass), names, pid: std::process::id() }
    }

    /// The pass; refused while another thread waits in it (waiting for it would need the GIL that the other one wants).
    fn run<T>(&self, work: impl FnOnce(&mut Pass) -> Result<T>) -> Result<T> {
        let mut run = match self.run.try_lock() {
            Ok(run) => run,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                return Err(Error::config(
                    "iterator",
                    "another thread is waiting in it; one iterator serves one thread",
                ));
            }
        };
        work(&mut run)
    }
}

#[pymethods]
impl PyRun {
    /// The next batch as (fields, rows, cursor), or None after the last. Waits without the GIL and yields to Ctrl-C.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyDict>, usize, u64)>> {
        loop {
            match enter(py, || self.run(|run| run.next(SIGNAL_POLL)))? {
                Next::Done => return Ok(None),
                Next::Waiting => py.check_signals()?,
                Next::Batch(batch) => {
                    let dict = PyDict::new(py);
                    for (name, column) in self.names.iter().zip(batch.columns) {
                        set_column(&dict, name, column)?;
                    }
                    return Ok(Some((dict, batch.rows, batch.cursor)));
                }
            }
        }
    }

    /// True when `next` would answer at once.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        enter(py, || self.run(Pass::is_ready))
    }

    /// Seconds waited, by what for (`wait_*`), and seconds that threads were busy (`busy_*`).
    fn timing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (waits, busy) = enter(py, || self.run(Pass::timing))?;
        let dict = PyDict::new(py);
        for (name, time) in [
            ("wait_first_byte_s", waits.first_byte),
            ("wait_transfer_s", waits.transfer),
            ("wait_queue_s", waits.queue),
            ("wait_inflate_s", waits.inflate),
            ("wait_decode_s", waits.decode),
            ("wait_other_s", waits.other),
            ("wait_s", waits.total),
            ("busy_inflate_s", busy.inflate()),
            ("busy_decode_s", busy.decode()),
        ] {
            dict.set_item(name, time.as_secs_f64())?;
        }
        dict.set_item("objects", busy.objects())?;
        Ok(dict)
    }

    /// Samples left out, samples that others took the place of, and the first few errors.
    fn mended(&self, py: Python<'_>) -> PyResult<(u64, u64, Vec<String>)> {
        let mended = enter(py, || self.run(Pass::mended))?;
        Ok((mended.skipped, mended.substituted, mended.errors))
    }

    /// Ends its threads and requests.
    fn close(&self, py: Python<'_>) {
        // In a forked child the lock may be held for ever, and there is nothing to end.
        if self.pid == std::process::id() {
            py.detach(|| self.run.lock().unwrap_or_else(PoisonError::into_inner).close());
        }
    }
}

/// Adds the feed to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ORDER_VERSION", ORDER_VERSION)?;
    module.add_class::<PyTensor>()?;
    module.add_class::<PyRagged>()?;
    module.add_class::<PySource>()?;
    module.add_class::<PyCounted>()?;
    module.add_class::<PyCourse>()?;
    module.add_class::<PyFeed>()?;
    module.add_class::<PyUnindexed>()?;
    module.add_class::<PyRun>()?;
    Ok(())
}
