// SPDX-License-Identifier: Apache-2.0
//! Verifies a staged copy in a store: reads its objects and compares them with the manifest in the store. In quick
//! mode, compares only the metadata that the store reports.
//!
//! Reports every wrong object. Also lists objects that no stage wrote, but does not count them as errors. `repair`
//! uploads only the wrong objects again, from the source and in the version from which they were staged.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use penstock_codec::Codec;
use penstock_store::{AdaptiveLimit, Meta, ObjectRef, Rates};
use penstock_types::{Algorithm, ByteRange, Deadline, Digest, Error, Metric, Metrics, Result, Stopwatch, Url};
use tokio::sync::{Semaphore, watch};

use crate::blocking::blocking;
use crate::digests::ContentDigest;
use crate::opened_source::Source;
use crate::plan::{Item, StageOptions};
use crate::progress::Progress;
use crate::to_folder::manifests::Document;
use crate::to_store::manifests::{documents, manifest_names};
use crate::to_store::target::Target;
use crate::to_store::upload_types::UploadItem;
use crate::to_store::{ResendRequest, again};
use crate::verify::repair::NOT_RECOGNISABLE;
use crate::verify::{FailedFile, Verified, VerifyRequest, only};
use penstock_dataset::key_filter::KeyFilter;
use penstock_dataset::manifest::{Entry, Manifest, is_own};

/// Maximum number of unexpected objects that are listed. The count includes all unexpected objects.
const MAX_UNEXPECTED_LISTED: usize = 1_000;

/// Manifest of a staged copy in a store, with the shares of all nodes; `None` if the store contains no manifest.
pub async fn recorded_remotely(
    url: &Url,
    settings: &penstock_store::StoreSettings,
    metrics: Arc<Metrics>,
    deadline: Deadline,
) -> Result<Option<Manifest>> {
    let to = Target::to(url, settings, &metrics)?;
    if !to.store.capabilities().list {
        return Ok(None);
    }
    let names = manifest_names(&to, deadline).await?;
    Ok(joined(&to.url, documents(&to, names, deadline).await?))
}

/// Merges manifests, which must be sorted with the latest first. If two manifests list one object, the first entry
/// wins.
fn joined(url: &str, documents: Vec<Document>) -> Option<Manifest> {
    let source = documents.first()?.manifest.source.clone();
    let is_one = documents.iter().all(|document| document.manifest.source == source);
    let (mut seen, mut objects) = (HashSet::new(), Vec::new());
    for document in documents {
        objects.extend(document.manifest.objects.into_iter().filter(|entry| seen.insert(entry.key.clone())));
    }
    Some(Manifest { source: source.filter(|_| is_one), ..Manifest::new(url.to_owned(), objects) })
}

/// Manifest entry of an object to check, with its source and share.
struct Record {
    entry: Entry,
    source: Option<String>,
    node: String,
}

pub(crate) async fn run(
    request: &VerifyRequest,
    url: &Url,
    progress: &Arc<Progress>,
    metrics: &Arc<Metrics>,
    cancelled: watch::Receiver<bool>,
) -> Result<Verified> {
    let clock = Stopwatch::start();
    let deadline = request.deadline.map_or(Deadline::NEVER, Deadline::within);
    let mut stop = cancelled.clone();
    let work = verify(request, url, progress, metrics, cancelled, deadline, clock);
    tokio::select! {
        found = work => found,
        _ = stop.wait_for(|stop| *stop) => Err(Error::Interrupted),
    }
}

async fn verify(
    request: &VerifyRequest,
    url: &Url,
    progress: &Arc<Progress>,
    metrics: &Arc<Metrics>,
    cancelled: watch::Receiver<bool>,
    deadline: Deadline,
    clock: Stopwatch,
) -> Result<Verified> {
    let governor =
        AdaptiveLimit::new(Rates { in_flight: request.concurrency.max(1), ..Rates::default() }, metrics.clone());
    let to = Target::to(url, &request.settings, metrics)?.governed(&governor);
    let names = manifest_names(&to, deadline).await?;
    let found = documents(&to, names, deadline).await?;
    if found.is_empty() {
        return Err(Error::NotFound { place: format!("{}.penstock/manifest.json", to.url) });
    }
    let (mut seen, mut records) = (HashSet::new(), Vec::new());
    let unfinished = found.iter().filter_map(Document::unfinished).collect();
    for Document { manifest, node, .. } in found {
        for entry in manifest.objects {
            if seen.insert(entry.key.clone()) {
                records.push(Record { entry, source: manifest.source.clone(), node: node.clone() });
            }
        }
    }
    drop(seen);
    let mut records = only(&request.select, records, &to.url, |record| &record.entry.key)?;
    records.sort_by(|a, b| a.entry.key.cmp(&b.entry.key));
    let bytes = records.iter().map(|record| record.entry.size).sum();
    Progress::add(&progress.objects, records.len() as u64);
    Progress::add(&progress.bytes, bytes);
    let sight = Arc::new(Verifier {
        to: to.clone(),
        cores: Arc::new(Semaphore::new(request.cores.max(1))),
        progress: progress.clone(),
        quick: request.quick,
        deadline,
    });
    let all: Vec<usize> = (0..records.len()).collect();
    let mut wrong = sight.all(&records, &all, request.concurrency).await?;
    let (unexpected, unexpected_total) = unexpected(&to, &records, &request.select, deadline).await?;
    let mut repaired = Vec::new();
    if request.repair && !wrong.is_empty() {
        let bad: Vec<usize> = wrong.iter().map(|(at, _)| *at).collect();
        let why = repair(request, &to, &governor, &records, &bad, progress, metrics, &cancelled, deadline).await?;
        // Only another check shows whether the objects are correct after the repair.
        let fresh = Arc::new(Verifier { progress: Arc::default(), ..Arc::unwrap_or_clone(sight) });
        wrong = fresh.all(&records, &bad, request.concurrency).await?;
        let still: HashSet<usize> = wrong.iter().map(|(at, _)| *at).collect();
        for (at, wrong) in &mut wrong {
            wrong.repair_error = why.get(at).cloned();
        }
        repaired = bad.iter().filter(|at| !still.contains(at)).map(|&at| records[at].entry.key.to_string()).collect();
    }
    Ok(Verified {
        schema_version: 2,
        destination: to.url.clone(),
        objects: records.len() as u64,
        bytes,
        ok: (records.len() - wrong.len()) as u64,
        failed: wrong.into_iter().map(|(_, wrong)| wrong).collect(),
        repaired,
        unexpected,
        unexpected_total,
        unfinished,
        bytes_in: progress.snapshot().bytes_in,
        requests: metrics.get(Metric::Requests),
        seconds: clock.elapsed().as_secs_f64(),
    })
}

/// Settings and shared state for checks of objects.
#[derive(Clone)]
struct Verifier {
    to: Target,
    cores: Arc<Semaphore>,
    progress: Arc<Progress>,
    quick: bool,
    deadline: Deadline,
}

type Problem = Option<(&'static str, String)>;

impl Verifier {
    /// Checks the objects; returns the wrong objects in the order of the records.
    async fn all(
        self: &Arc<Self>,
        records: &[Record],
        which: &[usize],
        most: usize,
    ) -> Result<Vec<(usize, FailedFile)>> {
        let looks = stream::iter(which.to_vec()).map(|at| {
            let (sight, entry) = (self.clone(), records[at].entry.clone());
            async move {
                let found = sight.one(&entry).await?;
                Progress::add(&sight.progress.done, 1);
                Progress::add(&sight.progress.wrong, u64::from(found.is_some()));
                Ok::<_, Error>(found.map(|(problem, found)| {
                    let file = entry.key.to_string();
                    (at, FailedFile { file, problem: problem.to_owned(), detail: found, repair_error: None })
                }))
            }
        });
        let mut wrong: Vec<(usize, FailedFile)> =
            looks.buffer_unordered(most.max(1)).try_filter_map(|found| async { Ok(found) }).try_collect().await?;
        wrong.sort_by_key(|(at, _)| *at);
        Ok(wrong)
    }

    async fn one(&self, entry: &Entry) -> Result<Problem> {
        let looked = if self.quick { self.quick_check(entry).await } else { self.read(entry).await };
        match looked {
            Err(Error::NotFound { place }) if place == self.to.store.root().to_string() => {
                Err(Error::NotFound { place })
            }
            Err(Error::NotFound { .. }) => Ok(Some(("missing", "the object does not exist".to_owned()))),
            Err(error @ (Error::Corrupt { .. } | Error::Changed { .. } | Error::Server { .. })) => {
                Ok(Some(("unreadable", error.to_string())))
            }
            other => other,
        }
    }

    /// Compares the store's metadata with the record: the size, then a digest that both contain, then the version.
    async fn quick_check(&self, entry: &Entry) -> Result<Problem> {
        let meta = self.to.store.head(&self.to.key(&entry.key), self.deadline).await?;
        Progress::add(&self.progress.done_bytes, entry.size);
        Ok(problem_of(entry, &meta))
    }

    /// Reads the object from the store and compares its bytes with the record.
    async fn read(&self, entry: &Entry) -> Result<Problem> {
        let object = ObjectRef::current(self.to.key(&entry.key));
        let mut got = self.to.store.get_ranges(&object, &[ByteRange::WHOLE], self.deadline).await?;
        if got.meta.size != entry.size {
            return Ok(Some(size(entry, got.meta.size)));
        }
        let mut seal = ContentDigest::default();
        // Hash about 1 MiB at a time on a blocking thread, so that the threads that serve sockets stay responsive.
        let (mut batch, mut held) = (Vec::new(), 0);
        loop {
            let next = got.chunks.try_next().await?;
            let is_end = next.is_none();
            if let Some(chunk) = next {
                held += chunk.bytes.len();
                Progress::add(&self.progress.bytes_in, chunk.bytes.len() as u64);
                Progress::add(&self.progress.done_bytes, chunk.bytes.len() as u64);
                batch.push(chunk.bytes);
            }
            if held >= 1 << 20 || (is_end && held > 0) {
                let core = self.cores.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
                let (mut passing, bytes) = (std::mem::take(&mut seal), std::mem::take(&mut batch));
                seal = blocking(move || {
                    bytes.iter().for_each(|bytes| passing.update(bytes));
                    drop(core);
                    Ok(passing)
                })
                .await?;
                held = 0;
            }
            if is_end {
                break;
            }
        }
        if seal.bytes != entry.size {
            return Ok(Some(size(entry, seal.bytes)));
        }
        Ok(differs(entry, &seal.digests()))
    }
}

fn size(entry: &Entry, have: u64) -> (&'static str, String) {
    ("size", format!("the object has {have} bytes, but had {} when it was staged", entry.size))
}

fn differs(entry: &Entry, have: &[Digest]) -> Problem {
    entry.digests.iter().find_map(|want| {
        let have = have.iter().find(|have| have.algorithm == want.algorithm && *have != want)?;
        Some(("digest", format!("the digest is {have}, but was {want} when the object was staged")))
    })
}

/// Returns the difference between the store's metadata and the record.
fn problem_of(entry: &Entry, meta: &Meta) -> Problem {
    if meta.size != entry.size {
        return Some(size(entry, meta.size));
    }
    if let Some(problem) = differs(entry, &meta.digests) {
        return Some(problem);
    }
    let is_comparable = |want: &Digest| {
        want.algorithm != Algorithm::Xxh3 && meta.digests.iter().any(|have| have.algorithm == want.algorithm)
    };
    match (&entry.version, &meta.version) {
        // If a digest matches, a changed version only means that the same bytes were written another time.
        _ if entry.digests.iter().any(is_comparable) => None,
        (Some(want), Some(have)) if want != have => Some((
            "digest",
            format!("the version is {have}, but was {want} when the object was staged; verify it without --quick"),
        )),
        _ => None,
    }
}

/// Returns the selected objects in the destination that no manifest lists: the names of at most
/// [`MAX_UNEXPECTED_LISTED`] objects, and the number of all such objects.
async fn unexpected(
    to: &Target,
    records: &[Record],
    select: &KeyFilter,
    deadline: Deadline,
) -> Result<(Vec<String>, u64)> {
    let mut listing = to.store.list(&to.prefix, None, deadline);
    let (mut named, mut count) = (Vec::new(), 0);
    while let Some(meta) = listing.try_next().await? {
        let Some(key) = meta.key.strip_prefix(&to.prefix) else { continue };
        if !is_own(&key) && select.takes(&key) && records.binary_search_by(|record| record.entry.key.cmp(&key)).is_err()
        {
            count += 1;
            if named.len() < MAX_UNEXPECTED_LISTED {
                named.push(key.to_string());
            }
        }
    }
    Ok((named, count))
}

/// Uploads wrong objects again. If an object cannot be uploaded, returns the reason.
#[expect(clippy::too_many_arguments, reason = "one caller; a struct would only rename the list")]
async fn repair(
    request: &VerifyRequest,
    to: &Target,
    governor: &AdaptiveLimit,
    records: &[Record],
    bad: &[usize],
    progress: &Arc<Progress>,
    metrics: &Arc<Metrics>,
    cancelled: &watch::Receiver<bool>,
    deadline: Deadline,
) -> Result<HashMap<usize, String>> {
    let mut why: HashMap<usize, String> = HashMap::new();
    let mut groups: BTreeMap<(&str, &str, Option<&str>), Vec<usize>> = BTreeMap::new();
    for &at in bad {
        match (&records[at].source, &records[at].entry.origin) {
            (_, Some(origin)) if !origin.is_recognisable() => {
                why.insert(at, NOT_RECOGNISABLE.to_owned());
            }
            (Some(source), Some(origin)) => {
                groups.entry((source, &records[at].node, origin.transform.as_deref())).or_default().push(at);
            }
            _ => {
                why.insert(at, "its source is not recorded".to_owned());
            }
        }
    }
    for ((source, node, transform), group) in groups {
        let mut options = StageOptions {
            overwrite: true,
            concurrency: request.concurrency,
            memory: request.memory,
            ..StageOptions::default()
        };
        if let Err(error) = options.apply_transform(transform) {
            why.extend(group.iter().map(|&at| (at, error.to_string())));
            continue;
        }
        let (mut objects, mut uploads) = (Vec::new(), Vec::new());
        for &at in &group {
            let entry = &records[at].entry;
            let Some(origin) = &entry.origin else { continue };
            let codec_source = origin.codec_source;
            let decode = if codec_source == Some(penstock_dataset::manifest::CodecSource::Suffix) {
                origin.decoded
            } else {
                Codec::None
            };
            let item = Item { object: objects.len(), target: entry.key.clone(), decode, codec_source };
            uploads.push(UploadItem { item, existing: None, is_ours: true });
            objects.push(Entry {
                version: origin.version.clone(),
                modified_s: origin.modified_s,
                // The new bytes must match the digests that the stage recorded.
                digests: origin.digests.clone(),
                // Content-Encoding of the source object. If the stage compressed the object, the source has no
                // Content-Encoding.
                encoding: origin.encoding.clone(),
                ..Entry::new(origin.key.clone(), origin.size)
            });
        }
        let manifest = Manifest { objects, ..Manifest::new(source.to_owned(), Vec::new()) };
        let own = Arc::new(Progress::default());
        let from = Source::again(source, &request.settings, metrics.clone());
        let outcome = match from {
            Err(error) => Err(error),
            Ok(from) => {
                let work = ResendRequest {
                    from: from.governed(&governor.beside()),
                    to: to.clone(),
                    state: request.destination.clone(),
                    options,
                    cores: request.cores,
                    progress: own.clone(),
                    deadline,
                    node: node.to_owned(),
                };
                again(work, manifest, uploads, cancelled.clone()).await
            }
        };
        Progress::add(&progress.bytes_in, own.snapshot().bytes_in);
        let failed: HashMap<String, String> =
            own.failures().into_iter().map(|(failure, _)| (failure.key, failure.error)).collect();
        for &at in &group {
            let key = records[at].entry.origin.as_ref().map(|origin| origin.key.to_string()).unwrap_or_default();
            let reason = failed.get(&key).cloned();
            let reason = reason.or_else(|| outcome.as_ref().err().map(ToString::to_string));
            why.extend(reason.map(|reason| (at, reason)));
        }
        if let Err(Error::Interrupted) = outcome {
            return Err(Error::Interrupted);
        }
    }
    Ok(why)
}
