// SPDX-License-Identifier: Apache-2.0
//! Bindings for a dataset: its listing, format and record counts. The samples are read in `run`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock_dataset::RecordIndex;
use penstock_dataset::glob::{glob_matches, split_glob};
use penstock_dataset::order::{Counts, default_window};
use penstock_dataset::{Manifest, index};
use penstock_feed::{
    ArrayBlocks, CountSource, Counted, ExistingIndexes, Field, FormatSpec, MAX_AT_ONCE, SidecarIndexes, Source, count,
    indexes_in, keep_likely, kept, requests_of, scan, schema, without_indexes,
};
use penstock_feed::{Placements, PoolStore};
use penstock_store::{
    AdaptiveLimit, LimitStore, LocalReads, ObjectRef, Opened, Rates, StoreSettings, open, read_whole,
};
use penstock_types::{Deadline, Error, Metrics, Result, Scheme, Url};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raise;
use crate::runtime::{enter, enter_async};

/// Time limit of a listing, or of counting records.
const LISTING: Duration = Duration::from_secs(3600);

/// Maximum size of a dataset's index file, which is read into memory. An MDS index of 10^6 shards has half this size.
const MAX_METADATA: u64 = 1 << 30;

/// Result of `__reduce__`: a function and its arguments.
type Pickled<'py, T> = (Bound<'py, PyAny>, T);

/// Pickled form of a source: the listing, the number of ignored objects, the format, index files of other programs, and
/// the routes.
type PickledSource<'py> = (Bound<'py, PyBytes>, usize, String, Option<Bound<'py, PyBytes>>, Option<String>);

/// Fields as JSON, a description of each field, and the values without a field (name, reason).
type PySchema = (String, Vec<String>, Vec<(String, String)>);

/// Pickled form of record counts: run-length encoded counts (records, times), their source, the dataset fingerprint,
/// and the path of the index.
type PickledCounts = (Vec<(u64, usize)>, String, String, Option<String>);

/// Opens the store of a listing. The format is `format`, or is detected from the object names. A remote store gets at
/// most `in_flight` requests at a time; the limit adapts. With `routes`, the store reads through a pool.
fn opened(
    manifest: &Manifest,
    format: Option<&FormatSpec>,
    env: &HashMap<String, String>,
    in_flight: usize,
    routes: Option<&Placements>,
) -> Result<(Source, Arc<Metrics>)> {
    let metrics = Arc::<Metrics>::default();
    let url: Url = manifest.url.parse()?;
    let mut settings = StoreSettings::from_env(env)?;
    // Hedge slow requests by default, because a batch waits for its slowest object.
    settings.hedges.get_or_insert(true);
    let reads = settings.local_reads.unwrap_or(LocalReads::Auto).of(manifest.bytes());
    settings.local_reads = Some(reads);
    // An object that is read in one request then arrives in one chunk, which saves a copy.
    settings.local_piece_bytes = Some(MAX_AT_ONCE);
    let governor = |url: &Url| {
        let rates = Rates { in_flight, ..Rates::default() };
        let is_far = !matches!(url.scheme, Scheme::File | Scheme::Memory);
        is_far.then(|| AdaptiveLimit::new(rates, metrics.clone()))
    };
    let governed = |url: &Url| {
        let mut opened = open(url, &settings, metrics.clone())?;
        if let Some(governor) = governor(url) {
            opened.store = Arc::new(LimitStore::new(opened.store, governor));
        }
        Ok::<_, Error>(opened)
    };
    let manifest = manifest.clone();
    let Opened { store, prefix } = match routes {
        None => governed(&url)?,
        Some(routes) => {
            let bucket = routes.bucket.as_ref().map(|url| {
                let url: Url = url.parse()?;
                let opened = governed(&url)?;
                Ok::<_, Error>((url, opened))
            });
            let (pool, bucket) = (open(&url, &settings, metrics.clone())?, bucket.transpose()?);
            let prefix = pool.prefix.clone();
            let routed = PoolStore::new(pool, governor(&url), &manifest, routes, bucket, reads, metrics.clone())?;
            Opened { store: Arc::new(routed), prefix }
        }
    };
    let source = match format {
        Some(format) => Source::of_format(store, prefix, manifest, metrics.clone(), format.clone())?,
        None => Source::new(store, prefix, manifest, metrics.clone())?,
    };
    let source = match routes {
        Some(routes) => source.routed(routes),
        None => source,
    };
    Ok((source, metrics))
}

/// Lists `url`.
fn listed_at(py: Python<'_>, url: Url, env: &HashMap<String, String>) -> PyResult<Manifest> {
    let opened = enter(py, || open(&url, &StoreSettings::from_env(env)?, Arc::<Metrics>::default()))?;
    enter_async(py, async move { index(&*opened.store, &opened.prefix, &url, Deadline::within(LISTING)).await })
}

/// Detects the format of a listing from the object names, or else from the content of one object. In the second case,
/// removes objects of other formats from the listing. Returns the format and the number of removed objects.
fn found(py: Python<'_>, manifest: &mut Manifest, env: &HashMap<String, String>) -> PyResult<(FormatSpec, usize)> {
    if let Some(format) = enter(py, || FormatSpec::of_names(manifest))? {
        return Ok((format, 0));
    }
    let (source, removed) = enter(py, || {
        let removed = keep_likely(manifest)?;
        let in_flight = Rates::default().in_flight;
        Ok((opened(manifest, Some(&FormatSpec::TFRECORD), env, in_flight, None)?.0, removed))
    })?;
    let format = enter_async(py, async move { source.sniff_format(Deadline::within(LISTING)).await })?;
    Ok((format, removed))
}

/// Completes the format with metadata from one of the dataset's objects, if the format requires that.
fn resolved(
    py: Python<'_>,
    manifest: &Manifest,
    format: FormatSpec,
    env: &HashMap<String, String>,
) -> PyResult<FormatSpec> {
    let Some(key) = format.metadata_object() else { return Ok(format) };
    let url = enter(py, || manifest.url.parse::<Url>())?;
    let settings = enter(py, || StoreSettings::from_env(env))?;
    let found = enter(py, || open(&url, &settings, Arc::<Metrics>::default()))?;
    let place = format!("{}{key}", manifest.url);
    let content = enter_async(py, async move {
        let object = ObjectRef::current(found.prefix.join(key.as_bytes()));
        let size = found.store.head(&object.key, Deadline::within(LISTING)).await?.size;
        if size > MAX_METADATA {
            let problem = format!("has {size} bytes, too many for the index of a dataset");
            return Err(Error::corrupt(found.prefix.to_string(), problem));
        }
        Ok(read_whole(&*found.store, &object, None, Deadline::within(LISTING)).await?.1)
    })?;
    enter(py, || format.resolved(&content, &place))
}

/// A listed dataset: names, sizes, versions and format. Has no open connection.
#[pyclass(name = "Source", module = "penstock._native", frozen)]
pub struct PySource {
    pub(crate) manifest: Manifest,
    /// Units that are shuffled, if these are not the listed objects: blocks of arrays.
    blocks: Option<ArrayBlocks>,
    /// Index files of other programs for these objects.
    indexes: Option<Manifest>,
    ignored: usize,
    format: FormatSpec,
    /// For a pool: the nodes that store each object.
    routes: Option<Arc<Placements>>,
}

impl PySource {
    fn of(source: &Source, indexes: Option<Manifest>) -> Self {
        let (listing, format) = (source.listing().clone(), source.format().clone());
        let blocks = source.array_blocks();
        Self { manifest: listing, blocks, indexes, ignored: source.ignored(), format, routes: None }
    }

    /// Opens the source's store with at most `in_flight` requests at a time. Also returns its request counters.
    pub(crate) fn opened(&self, env: &HashMap<String, String>, in_flight: usize) -> Result<(Source, Arc<Metrics>)> {
        opened(&self.manifest, Some(&self.format), env, in_flight, self.routes.as_deref())
    }

    fn ordered(&self) -> &Manifest {
        self.blocks.as_ref().map_or(&self.manifest, |blocks| &blocks.manifest)
    }
}

#[pymethods]
impl PySource {
    /// Lists `url` (a folder, a pattern or one object), or reads the listing from a JSON manifest. Index files of other
    /// programs are searched beside the objects, or at `indexes`.
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
        // A path that exists is not treated as a pattern: `exp[1]` may be the name of a folder.
        let pattern = split_glob(&url).filter(|_| !url.to_path().is_some_and(|path| path.exists()));
        let folder = pattern.as_ref().map_or(&url, |(folder, _)| folder).clone();
        let mut listed = match manifest {
            Some(json) => enter(py, || {
                let listed = Manifest::from_json(&json, "the manifest")?;
                let of = listed.url.parse::<Url>()?;
                if of.as_folder() != folder.as_folder() && !url.to_string().starts_with(&listed.url) {
                    return Err(Error::config("manifest", format!("lists {}, not {url}", listed.url)));
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
                return Err(raise(py, Error::NotFound { place: format!("any object that matches {url}") }));
            }
        }
        let (format, removed) = match format {
            Some(format) => (format, 0),
            None => found(py, &mut listed, &env)?,
        };
        let format = resolved(py, &listed, format, &env)?;
        // Check the listing only for a whole folder. A pattern, or the name of one shard, selects a part of it.
        if pattern.is_none() && url.as_folder().to_string() == listed.url {
            enter(py, || format.check_listing(&listed))?;
        }
        let in_flight = Rates::default().in_flight;
        let source = Arc::new(enter(py, || opened(&listed, Some(&format), &env, in_flight, None))?.0);
        let asked = source.clone();
        let source = match enter_async(py, async move { asked.resolved_format(Deadline::within(LISTING)).await })? {
            Some(format) => Arc::new(enter(py, || opened(&listed, Some(&format), &env, in_flight, None))?.0),
            None => source,
        };
        let made = Self::of(&source, indexes);
        Ok(Self { ignored: made.ignored + removed, ..made })
    }

    /// Rebuilds a pickled source.
    #[staticmethod]
    #[pyo3(signature = (manifest, ignored, format, indexes=None, routes=None))]
    fn restore(
        py: Python<'_>,
        manifest: Vec<u8>,
        ignored: usize,
        format: &str,
        indexes: Option<Vec<u8>>,
        routes: Option<&str>,
    ) -> PyResult<Self> {
        enter(py, || {
            let manifest = Manifest::from_json(&manifest, "a pickled dataset")?;
            let indexes = indexes.map(|json| Manifest::from_json(&json, "a pickled dataset")).transpose()?;
            let format = FormatSpec::from_json(format)?;
            let routes = routes.map(Placements::from_json).transpose()?.map(Arc::new);
            Ok(Self { blocks: format.ordered(&manifest)?, manifest, indexes, ignored, format, routes })
        })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Pickled<'py, PickledSource<'py>>> {
        let indexes = enter(py, || self.indexes.as_ref().map(Manifest::to_json).transpose())?;
        let indexes = indexes.map(|json| PyBytes::new(py, &json));
        let routes = self.routes(py)?;
        let state = (self.manifest(py)?, self.ignored, self.format(py)?, indexes, routes);
        Ok((py.get_type::<Self>().getattr("restore")?, state))
    }

    /// Returns the same dataset, read through a pool with these routes (JSON).
    fn routed(&self, py: Python<'_>, routes: &str) -> PyResult<Self> {
        enter(py, || {
            let routes = Some(Arc::new(Placements::from_json(routes)?));
            let (blocks, indexes) = (self.blocks.clone(), self.indexes.clone());
            let (manifest, format) = (self.manifest.clone(), self.format.clone());
            Ok(Self { manifest, blocks, indexes, ignored: self.ignored, format, routes })
        })
    }

    /// Routes of the pool, as JSON.
    #[getter]
    fn routes(&self, py: Python<'_>) -> PyResult<Option<String>> {
        enter(py, || self.routes.as_deref().map(Placements::to_json).transpose())
    }

    /// The format as JSON.
    #[getter]
    fn format(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || self.format.to_json())
    }

    /// Reads the schema of the first record. Returns the fields as JSON, a description of each field, and the values
    /// that no field reads (name, reason).
    fn schema(&self, py: Python<'_>, env: HashMap<String, String>) -> PyResult<PySchema> {
        let (source, _) = enter(py, || self.opened(&env, Rates::default().in_flight))?;
        let found = enter_async(py, async move { schema(&Arc::new(source), Deadline::within(LISTING)).await })?;
        let (fields, holds): (Vec<Field>, Vec<String>) =
            found.seen.into_iter().map(|one| (one.field, one.holds)).unzip();
        Ok((enter(py, || Field::to_json(&fields))?, holds, found.left_out))
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

    /// For patches: maximum number of blocks in a default shuffle window. None for other datasets.
    #[getter]
    fn max_window(&self) -> Option<u64> {
        self.blocks.as_ref()?.max_window
    }

    /// For patches: stored size in bytes of all chunks that they touch, each counted once. None for other datasets.
    #[getter]
    fn needed_bytes(&self) -> Option<u64> {
        self.blocks.as_ref()?.needed_bytes
    }

    /// Returns the key of an object, relative to `url`, by its index in the listing.
    fn key(&self, number: usize) -> PyResult<String> {
        let entry = self.ordered().objects.get(number);
        let entry = entry.ok_or_else(|| {
            PyIndexError::new_err(format!("object {number} is out of range ({} objects)", self.objects()))
        })?;
        Ok(entry.key.to_string())
    }

    /// Name of an object without the codec suffix, which is the same for a staged or decompressed copy.
    fn logical_name(&self, number: usize) -> PyResult<String> {
        let entry = self.ordered().objects.get(number);
        let entry = entry.ok_or_else(|| {
            PyIndexError::new_err(format!("object {number} is out of range ({} objects)", self.objects()))
        })?;
        Ok(String::from_utf8_lossy(entry.logical_name()).into_owned())
    }

    #[getter]
    fn size_bytes(&self) -> u64 {
        self.manifest.bytes()
    }

    /// Number of requests that reading the whole dataset once takes.
    #[getter]
    fn requests(&self) -> u64 {
        self.manifest.objects.iter().map(|entry| requests_of(entry.size)).sum()
    }

    #[getter]
    fn ignored(&self) -> usize {
        self.ignored
    }

    /// Fingerprint of the dataset, computed from the object names only, not from their content.
    #[getter]
    fn fingerprint(&self) -> String {
        format!("{:032x}", self.manifest.fingerprint(&[]))
    }

    /// File name of this dataset's record index in a cache.
    fn cache_name(&self, py: Python<'_>, env: HashMap<String, String>) -> PyResult<String> {
        enter(py, || self.opened(&env, Rates::default().in_flight)?.0.cache_name())
    }

    /// Record counts from the cached index. Returns None if the index lacks the current version of an object. Sends no
    /// request.
    #[pyo3(signature = (env, cache=None))]
    fn kept_count(
        &self,
        py: Python<'_>,
        env: HashMap<String, String>,
        cache: Option<PathBuf>,
    ) -> PyResult<Option<PyCounted>> {
        let counted = enter(py, || kept(&self.opened(&env, Rates::default().in_flight)?.0, cache.as_deref()))?;
        Ok(counted.map(PyCounted::new))
    }

    /// Counts the records from cheap sources, or by reading everything if `scans` is true. Returns None if only a scan
    /// can count them. Also returns the problems of ignored indexes.
    #[pyo3(signature = (declared, *, scans, env, cache=None))]
    fn count(
        &self,
        py: Python<'_>,
        declared: Option<u64>,
        scans: bool,
        env: HashMap<String, String>,
        cache: Option<PathBuf>,
    ) -> PyResult<(Option<PyCounted>, Vec<String>)> {
        let (source, _) = enter(py, || self.opened(&env, Rates::default().in_flight))?;
        let beside = match &self.indexes {
            Some(listed) => Some(enter(py, || {
                let opened = open(&listed.url.parse()?, &StoreSettings::from_env(&env)?, Arc::<Metrics>::default())?;
                Ok(SidecarIndexes::new(opened.store, opened.prefix, listed.clone()))
            })?),
            None => None,
        };
        let source = Arc::new(source);
        let (counted, notes) = enter_async(py, async move {
            let deadline = Deadline::within(LISTING);
            let mut known =
                ExistingIndexes { cache: cache.as_deref(), beside: beside.as_ref(), ..ExistingIndexes::default() };
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

/// Record counts of all objects, the source of these counts, and the dataset fingerprint.
#[pyclass(name = "Counted", module = "penstock._native", frozen)]
pub struct PyCounted {
    counted: Counted,
    /// Path of the record index, for a process that has not opened the index yet.
    index: Option<PathBuf>,
}

/// A record index, either open or only its path.
#[derive(Clone)]
pub(crate) struct Indexed {
    open: Option<Arc<RecordIndex>>,
    path: PathBuf,
}

impl Indexed {
    /// Opens the index. Returns `None` if this machine does not have the file.
    pub(crate) fn open(&self, manifest: &Manifest) -> Option<Arc<RecordIndex>> {
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
    /// Rebuilds pickled counts from run-length encoded (records, times) pairs.
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
            let bad = || Error::bug("pickled counts cannot be read");
            let rung = CountSource::ALL.into_iter().find(|known| known.name() == rung).ok_or_else(bad)?;
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

    /// Number of objects without records, and the index of the first of them.
    #[getter]
    fn empty_objects(&self) -> (u64, u64) {
        match &self.counted.counts {
            Counts::Equal { .. } => (0, 0),
            Counts::Each(counts) => {
                let first = counts.iter().position(|&count| count == 0).unwrap_or(0);
                (counts.iter().filter(|&&count| count == 0).count() as u64, first as u64)
            }
        }
    }

    /// True if single records of uncompressed objects can be read.
    #[getter]
    fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// Default shuffle window for these counts.
    #[getter]
    fn window(&self) -> u64 {
        default_window(&self.counted.counts)
    }
}
