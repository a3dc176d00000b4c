// SPDX-License-Identifier: Apache-2.0
//! Bindings for a dataset: its listing, format and record counts. The module `run` reads the samples.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use penstock_dataset::RecordIndex;
use penstock_dataset::glob::{Glob, NamedKeys, split_glob};
use penstock_dataset::order::{Counts, Order, Shuffle, default_window};
use penstock_dataset::sampler::DatasetView;
use penstock_dataset::{Manifest, index_written, written_fields};
use penstock_feed::{
    ArrayBlocks, CountSource, Counted, ExistingIndexes, Field, FormatSpec, MAX_AT_ONCE, PartialCounts, SidecarIndexes,
    Source, count, indexes_in, keep_likely, kept, requests_of, scan, schema, unknown_columns, without_indexes,
};
use penstock_feed::{Placements, PoolStore};
use penstock_store::{
    AdaptiveLimit, LimitStore, LocalReads, ObjectRef, Opened, Rates, StoreSettings, open, read_whole,
};
use penstock_types::{Deadline, Error, Key, Metrics, Result, Scheme, Url};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::raise;
use crate::runtime::{enter, enter_async};

/// Time limit for listing a dataset or counting its records.
const LISTING: Duration = Duration::from_secs(3600);

/// Maximum size of a dataset's index file, which is read into memory. The MDS index of 10^6 shards has half this size.
const MAX_METADATA: u64 = 1 << 30;

/// Result of `__reduce__`: a function and its arguments.
type Pickled<'py, T> = (Bound<'py, PyAny>, T);

/// Pickled form of a source: the listing, the number of ignored objects, the format, the listing of other programs'
/// index files, the routes of a pool, and the default fields that a writer stored.
type PickledSource<'py> =
    (Bound<'py, PyBytes>, usize, String, Option<Bound<'py, PyBytes>>, Option<String>, Option<String>);

/// The fields as JSON, a description of each field, and the values that no field reads, as (name, reason).
type PySchema = (String, Vec<String>, Vec<(String, String)>);

/// Pickled form of record counts: run-length encoded counts (records, times), the source of the counts, the dataset
/// fingerprint, and the path of the record index.
type PickledCounts = (Vec<(u64, usize)>, String, String, Option<String>);

/// Opens the store of a listing. If `format` is `None`, the format is detected from the object names. The number of
/// concurrent requests to a remote store is limited adaptively, to at most `in_flight`. With `routes`, reads go through
/// a pool.
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
    // With this piece size, an object that is read in one request arrives as one buffer, which saves a copy.
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

/// Lists `url`. Also returns the default fields that a writer stored with the dataset. If `selects` accepts all keys of
/// a dataset, the dataset must be complete.
fn listed_at(
    py: Python<'_>,
    url: Url,
    env: &HashMap<String, String>,
    selects: impl Fn(&Key) -> bool + Send + Sync + 'static,
) -> PyResult<(Manifest, Option<String>)> {
    let opened = enter(py, || open(&url, &StoreSettings::from_env(env)?, Arc::<Metrics>::default()))?;
    enter_async(py, async move {
        index_written(&*opened.store, &opened.prefix, &url, selects, Deadline::within(LISTING)).await
    })
}

/// Detects the format of a listing from the object names. If the names do not show a format, detects it from the
/// content of one object, and removes objects of other formats from the listing. Returns the format and the number of
/// removed objects.
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

/// If the format requires metadata from one of the dataset's objects, reads that object and completes the format.
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
            let problem = format!("has {size} bytes, which is too large for the index of a dataset");
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
    /// For arrays: the blocks, which the sample order shuffles instead of the listed objects.
    blocks: Option<ArrayBlocks>,
    /// Listing of the index files that other programs wrote for these objects.
    indexes: Option<Manifest>,
    ignored: usize,
    format: FormatSpec,
    /// For a pool: the nodes that store each object.
    routes: Option<Arc<Placements>>,
    /// Default fields as JSON, if the writer of the dataset stored them.
    fields: Option<String>,
}

impl PySource {
    fn of(source: &Source, indexes: Option<Manifest>) -> Self {
        let (listing, format) = (source.listing().clone(), source.format().clone());
        let blocks = source.array_blocks();
        Self { manifest: listing, blocks, indexes, ignored: source.ignored(), format, routes: None, fields: None }
    }

    /// Opens the source's store with at most `in_flight` concurrent requests. Also returns the request counters of the
    /// store.
    pub(crate) fn opened(&self, env: &HashMap<String, String>, in_flight: usize) -> Result<(Source, Arc<Metrics>)> {
        opened(&self.manifest, Some(&self.format), env, in_flight, self.routes.as_deref())
    }

    fn ordered(&self) -> &Manifest {
        self.blocks.as_ref().map_or(&self.manifest, |blocks| &blocks.manifest)
    }
}

#[pymethods]
impl PySource {
    /// Lists `url` (a folder, a pattern or one object), or reads the listing from a JSON manifest. Searches for other
    /// programs' index files beside the objects, or at `indexes`. If the URL selects a whole dataset, its writer must
    /// have completed it, and all objects of the writer's manifest must exist. `accepts_incomplete` skips this check.
    #[staticmethod]
    #[pyo3(signature = (url, manifest, env, format=None, indexes=None, *, accepts_incomplete=false))]
    fn open(
        py: Python<'_>,
        url: &str,
        manifest: Option<Vec<u8>>,
        env: HashMap<String, String>,
        format: Option<&str>,
        indexes: Option<&str>,
        accepts_incomplete: bool,
    ) -> PyResult<Self> {
        let format = enter(py, || format.map(FormatSpec::from_json).transpose())?;
        let url: Url = enter(py, || url.parse())?;
        // A path that exists is not treated as a pattern: `exp[1]` may be the name of a folder.
        let pattern = split_glob(&url).filter(|_| !url.to_path().is_some_and(|path| path.exists()));
        let folder = pattern.as_ref().map_or(&url, |(folder, _)| folder).clone();
        let glob = pattern.as_ref().map(|(_, pattern)| Arc::new(Glob::new(pattern)));
        let (mut listed, fields) = match manifest {
            Some(json) => enter(py, || {
                let listed = Manifest::from_json(&json, "the manifest")?;
                let of = listed.url.parse::<Url>()?;
                // A manifest of a Hub dataset is pinned to a commit.
                let (of, asked) = (of.without_revision(), url.without_revision().to_string());
                let is_within = asked.starts_with(&of.as_folder().to_string());
                if of.as_folder() != folder.without_revision().as_folder() && !is_within {
                    return Err(Error::config(
                        "manifest",
                        format!("it is the manifest of {}, not of {url}", listed.url),
                    ));
                }
                Ok((listed.narrowed(&folder)?, written_fields(&json)))
            })?,
            None => {
                let glob = glob.clone();
                let selects = move |key: &Key| glob.as_ref().is_none_or(|glob| glob.matches(key.as_bytes()));
                listed_at(py, folder, &env, move |key| !accepts_incomplete && selects(key))?
            }
        };
        if let Some((folder, pattern)) = &pattern {
            let mut named = NamedKeys::new(pattern);
            listed.objects.iter().for_each(|entry| named.found(entry.key.as_bytes()));
            enter(py, || named.check(folder))?;
        }
        let beside = indexes_in(&listed);
        if let Some(beside) = &beside {
            without_indexes(&mut listed, beside);
        }
        let indexes = match indexes {
            Some(url) => Some(listed_at(py, enter(py, || url.parse())?, &env, |_| false)?.0),
            None => beside,
        };
        if let Some(glob) = &glob {
            listed.objects.retain(|entry| glob.matches(entry.key.as_bytes()));
            if listed.objects.is_empty() {
                return Err(raise(py, Error::NotFound { place: format!("any object that matches {url}") }));
            }
        }
        let (format, removed) = match format {
            Some(format) => (format, 0),
            None => found(py, &mut listed, &env)?,
        };
        let format = resolved(py, &listed, format, &env)?;
        // Check completeness only for a whole folder. A pattern, or the name of one shard, selects only a part of the
        // dataset.
        let is_folder = |listed: Url| listed.without_revision() == url.as_folder().without_revision();
        if pattern.is_none() && listed.url.parse().is_ok_and(is_folder) {
            enter(py, || format.check_listing(&listed))?;
        }
        let in_flight = Rates::default().in_flight;
        let source = Arc::new(enter(py, || opened(&listed, Some(&format), &env, in_flight, None))?.0);
        let asked = source.clone();
        let source = match enter_async(py, async move { asked.resolved_format(Deadline::within(LISTING)).await })? {
            Some(format) => Arc::new(enter(py, || opened(&listed, Some(&format), &env, in_flight, None))?.0),
            None => source,
        };
        let (asked, known) = (source.clone(), indexes.clone());
        let megatron = enter_async(py, async move { asked.megatron(known, Deadline::within(LISTING)).await })?;
        let (source, indexes) = match megatron {
            Some((format, indexes)) => {
                let listing = source.listing().clone();
                let ignored = source.ignored();
                // Rows of a fixed length need no index.
                let indexes = matches!(format, FormatSpec::Megatron { .. }).then_some(indexes);
                let made = Self::of(&enter(py, || opened(&listing, Some(&format), &env, in_flight, None))?.0, indexes);
                return Ok(Self { ignored: ignored + removed, ..made });
            }
            None => (source, indexes),
        };
        let made = Self::of(&source, indexes);
        Ok(Self { ignored: made.ignored + removed, fields, ..made })
    }

    /// Rebuilds a pickled source.
    #[staticmethod]
    #[pyo3(signature = (manifest, ignored, format, indexes=None, routes=None, fields=None))]
    fn restore(
        py: Python<'_>,
        manifest: Vec<u8>,
        ignored: usize,
        format: &str,
        indexes: Option<Vec<u8>>,
        routes: Option<&str>,
        fields: Option<String>,
    ) -> PyResult<Self> {
        enter(py, || {
            let manifest = Manifest::from_json(&manifest, "a pickled dataset")?;
            let indexes = indexes.map(|json| Manifest::from_json(&json, "a pickled dataset")).transpose()?;
            let format = FormatSpec::from_json(format)?;
            let routes = routes.map(Placements::from_json).transpose()?.map(Arc::new);
            Ok(Self { blocks: format.ordered(&manifest)?, manifest, indexes, ignored, format, routes, fields })
        })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Pickled<'py, PickledSource<'py>>> {
        let indexes = enter(py, || self.indexes.as_ref().map(Manifest::to_json).transpose())?;
        let indexes = indexes.map(|json| PyBytes::new(py, &json));
        let routes = self.routes(py)?;
        let state = (self.manifest(py)?, self.ignored, self.format(py)?, indexes, routes, self.fields.clone());
        Ok((py.get_type::<Self>().getattr("restore")?, state))
    }

    /// Returns the same dataset with its reads routed through a pool. `routes` is JSON.
    fn routed(&self, py: Python<'_>, routes: &str) -> PyResult<Self> {
        enter(py, || {
            let routes = Some(Arc::new(Placements::from_json(routes)?));
            let (blocks, indexes) = (self.blocks.clone(), self.indexes.clone());
            let (manifest, format) = (self.manifest.clone(), self.format.clone());
            let fields = self.fields.clone();
            Ok(Self { manifest, blocks, indexes, ignored: self.ignored, format, routes, fields })
        })
    }

    /// Routes of the pool, as JSON.
    #[getter]
    fn routes(&self, py: Python<'_>) -> PyResult<Option<String>> {
        enter(py, || self.routes.as_deref().map(Placements::to_json).transpose())
    }

    /// Default fields as JSON, if the writer of the dataset stored them.
    #[getter]
    fn fields(&self) -> Option<&str> {
        self.fields.as_deref()
    }

    /// The format as JSON.
    #[getter]
    fn format(&self, py: Python<'_>) -> PyResult<String> {
        enter(py, || self.format.to_json())
    }

    /// Reads the schema from the first records. Returns the fields as JSON, a description of each field, and the values
    /// that no field reads, as (name, reason).
    fn schema(&self, py: Python<'_>, env: HashMap<String, String>) -> PyResult<PySchema> {
        let (source, _) = enter(py, || self.opened(&env, Rates::default().in_flight))?;
        let found = enter_async(py, async move { schema(&Arc::new(source), Deadline::within(LISTING)).await })?;
        let (fields, holds): (Vec<Field>, Vec<String>) =
            found.seen.into_iter().map(|one| (one.field, one.holds)).unzip();
        Ok((enter(py, || Field::to_json(&fields))?, holds, found.left_out))
    }

    /// Each entry of `wanted` lists alternative names of one value. Returns the indices of the entries whose names do
    /// not exist in any object.
    fn unknown_columns(
        &self,
        py: Python<'_>,
        wanted: Vec<Vec<String>>,
        env: HashMap<String, String>,
    ) -> PyResult<Vec<usize>> {
        let (source, _) = enter(py, || self.opened(&env, Rates::default().in_flight))?;
        enter_async(py, async move { unknown_columns(&Arc::new(source), &wanted, Deadline::within(LISTING)).await })
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

    /// For patches: stored size, in bytes, of all chunks that contain a part of a patch. Each chunk is counted once.
    /// None for other datasets.
    #[getter]
    fn needed_bytes(&self) -> Option<u64> {
        self.blocks.as_ref()?.needed_bytes
    }

    /// Returns the key of an object, relative to `url`, by its index in the listing.
    pub(crate) fn key(&self, number: usize) -> PyResult<String> {
        let entry = self.ordered().objects.get(number);
        let entry = entry.ok_or_else(|| {
            PyIndexError::new_err(format!("object {number} is out of range ({} objects)", self.objects()))
        })?;
        Ok(entry.key.to_string())
    }

    /// Name of an object without its codec suffix. Staged and decompressed copies of the object have the same logical
    /// name.
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

    /// Number of requests that are needed to read the whole dataset once.
    #[getter]
    fn requests(&self) -> u64 {
        self.manifest.objects.iter().map(|entry| requests_of(entry.size)).sum()
    }

    #[getter]
    fn ignored(&self) -> usize {
        self.ignored
    }

    /// Indices of the objects in the order in which an epoch reads them. Without a seed, this is the stored order.
    #[pyo3(signature = (seed, epoch=0))]
    fn object_order(&self, seed: Option<u64>, epoch: u64) -> Vec<u64> {
        let objects = self.ordered().objects.len() as u64;
        let order = Order::new(Counts::Equal { objects, each: 1 }, seed.map(|seed| Shuffle { seed, window: 1 }));
        let order = order.epoch(epoch);
        (0..objects).map(|block| order.place(block).object).collect()
    }

    /// Returns a dataset of only these objects, given by their indices in the listing.
    fn subset(&self, py: Python<'_>, objects: Vec<usize>) -> PyResult<Self> {
        enter(py, || {
            let listed = &self.manifest.objects;
            let chosen = objects.iter().filter_map(|&number| listed.get(number).cloned()).collect();
            let manifest = Manifest { objects: chosen, ..self.manifest.clone() };
            let (indexes, routes) = (self.indexes.clone(), self.routes.clone());
            let (format, fields) = (self.format.clone(), self.fields.clone());
            let blocks = format.ordered(&manifest)?;
            Ok(Self { blocks, manifest, indexes, ignored: self.ignored, format, routes, fields })
        })
    }

    /// Wraps known record counts, one per object. `rung` is the name of the counts' source.
    fn counted(&self, py: Python<'_>, records: Vec<u64>, rung: &str) -> PyResult<PyCounted> {
        enter(py, || {
            let rung = CountSource::ALL.into_iter().find(|known| known.name() == rung);
            let rung = rung.ok_or_else(|| Error::bug("the source of the record counts is unknown"))?;
            let fingerprint = self.ordered().fingerprint(&records);
            Ok(PyCounted::new(Counted { counts: Counts::of(&records), rung, fingerprint, index: None }))
        })
    }

    /// Indices of the objects, sorted by modification time, oldest first. Objects without a time are last.
    fn oldest_first(&self) -> Vec<usize> {
        let objects = &self.ordered().objects;
        let mut order: Vec<usize> = (0..objects.len()).collect();
        let time = |at: usize| objects[at].modified_s.unwrap_or(f64::INFINITY);
        order.sort_by(|&a, &b| time(a).total_cmp(&time(b)));
        order
    }

    /// Size in bytes of an object, by its index in the listing.
    fn object_bytes(&self, number: usize) -> PyResult<u64> {
        let entry = self.ordered().objects.get(number);
        entry.map(|entry| entry.size).ok_or_else(|| PyIndexError::new_err(format!("object {number} is out of range")))
    }

    /// Fingerprint of the dataset, computed only from the object names, not from their content.
    #[getter]
    fn fingerprint(&self) -> String {
        format!("{:032x}", self.manifest.fingerprint(&[]))
    }

    /// File name of this dataset's record index in a cache.
    fn cache_name(&self, py: Python<'_>, env: HashMap<String, String>) -> PyResult<String> {
        enter(py, || self.opened(&env, Rates::default().in_flight)?.0.cache_name())
    }

    /// Returns the record counts from the cached index, or None if the index lacks the current version of an object.
    /// Sends no request.
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

    /// Counts the records from cheap sources or, if `scans` is true, by reading everything. Returns None if only a scan
    /// can count the records, or if an object must be read completely and `reads_objects` is false. Also returns the
    /// problems of the indexes that were ignored.
    #[pyo3(signature = (declared, *, scans, env, cache=None, reads_objects=true))]
    fn count(
        &self,
        py: Python<'_>,
        declared: Option<u64>,
        scans: bool,
        env: HashMap<String, String>,
        cache: Option<PathBuf>,
        reads_objects: bool,
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
                count(&source, declared, reads_objects, &mut known, deadline).await?
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
    /// Path of the record index. A process that has not opened the index yet opens it at this path.
    index: Option<PathBuf>,
}

/// Record counts that grow while objects are scanned. An object that is not counted yet counts as empty.
#[pyclass(name = "PartialCounts", module = "penstock._native", frozen)]
pub struct PyPartialCounts {
    source: Arc<Source>,
    counts: Arc<PartialCounts>,
}

#[pymethods]
impl PyPartialCounts {
    /// Prepares to scan a source. The positions of records are stored in the folder `cache`. With `node_cache` (folder,
    /// limit in bytes, transcode), the scan fills the node cache.
    #[new]
    #[pyo3(signature = (source, env, cache=None, node_cache=None))]
    fn new(
        py: Python<'_>,
        source: &PySource,
        env: HashMap<String, String>,
        cache: Option<PathBuf>,
        node_cache: Option<(PathBuf, u64, String)>,
    ) -> PyResult<Self> {
        enter(py, || {
            let (mut opened, _) = source.opened(&env, Rates::default().in_flight)?;
            if let Some((folder, limit, transcode)) = node_cache {
                // The record counts are not known yet. The cache needs only the order of the objects, so one record per
                // object is enough.
                let objects = opened.manifest().objects.len() as u64;
                let leaf = DatasetView::new(Counts::Equal { objects, each: 1 }, None, None)?;
                opened = opened.cached(&folder, limit, &leaf, None, 0..1, transcode.parse()?)?;
            }
            let counts = Arc::new(PartialCounts::new(&opened, cache.as_deref()));
            Ok(Self { source: Arc::new(opened), counts })
        })
    }

    /// Counts the records of these objects. Each object is read once.
    fn scan(&self, py: Python<'_>, objects: Vec<u64>) -> PyResult<()> {
        let (source, counts) = (self.source.clone(), self.counts.clone());
        enter_async(py, async move { counts.scan(&source, objects, Deadline::within(LISTING)).await })
    }

    /// Ends a scan that another thread runs; the scan raises Interrupted. If no scan runs, the next scan ends
    /// immediately.
    fn stop(&self) {
        self.counts.stop();
    }

    /// Counts the first records of an object: at least `records` of them, if the object has that many. Returns the
    /// number counted.
    fn scan_start(&self, py: Python<'_>, number: u64, records: u64) -> PyResult<u64> {
        let (source, counts) = (self.source.clone(), self.counts.clone());
        enter_async(py, async move { counts.scan_start(&source, number, records, Deadline::within(LISTING)).await })
    }

    /// Adds the counts of objects that another process scanned, as (object, records) pairs.
    fn learn(&self, py: Python<'_>, counted: Vec<(u64, u64)>) -> PyResult<()> {
        enter(py, || {
            counted.into_iter().for_each(|(object, records)| self.counts.learn(object, records));
            Ok(())
        })
    }

    /// Complete count of an object. None if the complete count is not known yet.
    fn count(&self, number: u64) -> Option<u64> {
        self.counts.count(number)
    }

    /// True if single records can be read from all of these objects.
    fn reads_ranges(&self, objects: Vec<u64>) -> bool {
        self.counts.reads_ranges(&self.source, &objects)
    }

    /// Number of objects that are counted completely.
    #[getter]
    fn complete(&self) -> usize {
        self.counts.complete()
    }

    /// Returns the counts of `objects`; all other objects count as empty. From item `first_indexed` of `objects` on,
    /// also returns the positions of the records.
    #[pyo3(signature = (objects, first_indexed=0))]
    fn so_far(&self, py: Python<'_>, objects: Vec<u64>, first_indexed: usize) -> PyResult<PyCounted> {
        enter(py, || Ok(PyCounted::new(self.counts.so_far(&self.source, &objects, first_indexed)?)))
    }

    /// Returns the complete counts, and stores the record index.
    fn finish(&self, py: Python<'_>) -> PyResult<PyCounted> {
        enter(py, || Ok(PyCounted::new(self.counts.finish(&self.source)?)))
    }
}

/// A record index: an open one, or only its path.
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

    /// Number of objects without records, and the index of the first such object.
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

    /// Default shuffle window for these counts and this seed.
    fn window(&self, seed: u64) -> u64 {
        default_window(&self.counted.counts, seed)
    }

    /// Number of records in each object.
    fn records(&self) -> Vec<u64> {
        let counts = &self.counted.counts;
        (0..counts.objects()).map(|object| counts.records(object)).collect()
    }
}
