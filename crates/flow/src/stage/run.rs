// SPDX-License-Identifier: Apache-2.0
//! One stage from request to summary: list, plan, lock, resume, move, record.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_codec::{Codec, gzip_size_hint, strip_suffix};
use penstock_store::{Govern, Governor, MirrorReport, Mirrors, Opened, Rates, StoreSettings};
use penstock_types::{Deadline, Error, Metric, Metrics, Result, Scheme, Stopwatch, Url, unix_now};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::commit::{adopt_left_behind, temporary_name};
use super::crew::{Crew, Source};
use super::jail::{Jail, allocated_at, open_alone, remove_own};
use super::job::Job;
use super::journal::{Journal, Line};
use super::object::blocking;
use super::plan::{Item, PART_BYTES, StageOptions, StagePlan};
use super::progress::{Failure, Progress};
use super::status::{FOLDER, Identity, Leader, replace_own, replace_own_with};
use super::undo::{HEAD, unsaid};
use crate::manifest::{Entry, Head, Manifest, ManifestFormat, SaidBy, index_selected, without_pattern, write};
use crate::select::Select;
use crate::urls::UrlList;

/// A trailer that claims more than this times the stored bytes is not believed when room is counted.
const HONEST_RATIO: u64 = 32;

/// What to stage, parsed once at the edge.
#[derive(Debug, Clone)]
pub struct StageRequest {
    /// A folder of objects, one object, or a local list of URLs.
    pub source: Url,
    /// How to reach it.
    pub settings: StoreSettings,
    /// Other stores that hold the same objects, and how to reach each; reads are spread over them.
    pub mirrors: Vec<(Url, StoreSettings)>,
    /// The local folder. With `remote`: where this stage keeps its journal.
    pub destination: PathBuf,
    /// The store that objects go to, in place of the folder.
    pub remote: Option<Url>,
    /// A manifest of the source, in place of a listing.
    pub manifest: Option<PathBuf>,
    /// Which of the objects are meant.
    pub select: Select,
    /// What to do.
    pub options: StageOptions,
    /// What the whole job may ask of the store; each node takes its part. Requests in flight are of `options`.
    pub rates: Rates,
    /// Plan only; the destination is not touched.
    pub dry_run: bool,
    /// Wall-clock limit of the whole stage.
    pub deadline: Option<Duration>,
    /// The launch, where the launcher names it.
    pub launch: Option<String>,
    /// Other ranks of this node wait for a record of how it went, even of an early failure.
    pub is_awaited: bool,
    /// The rank that stages for this node.
    pub leader_rank: u32,
    /// Threads that inflate.
    pub cores: usize,
}

impl StageRequest {
    pub(crate) fn identity(&self) -> Identity {
        let StageOptions { inflate, node, nodes, division, allow_case_collisions, max_inflated, .. } = &self.options;
        let to = self.remote.as_ref().map(|url| format!(" to={url}")).unwrap_or_default();
        let wish = super::remote::wish(&self.options).unwrap_or_default();
        Identity {
            request: format!(
                "{}{to} wish={wish} inflate={inflate} case={allow_case_collisions} max_inflated={max_inflated:?} manifest={:?} {} {:?}",
                self.source,
                self.manifest,
                self.select.text(),
                division
            ),
            launch: self.launch.clone(),
            node: *node,
            nodes: *nodes,
        }
    }
}

/// How a stage went.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this document.
    pub schema_version: u32,
    /// Where from.
    pub source: String,
    /// Where to.
    pub destination: String,
    /// Nothing was moved, only planned.
    pub dry_run: bool,
    /// Compressed objects were inflated.
    pub inflate: bool,
    /// This node.
    pub node: u32,
    /// All nodes.
    pub nodes: u32,
    /// Objects of this node's share.
    pub objects: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Objects of all nodes.
    pub objects_in_all: u64,
    /// Objects that stood there already.
    pub skipped: u64,
    /// Objects moved by this run.
    pub moved: u64,
    /// Bytes of objects received.
    pub bytes_in: u64,
    /// Bytes of files that this run finished.
    pub bytes_out: u64,
    /// Bytes that an interrupted run had received and that were not asked for again.
    pub resumed_bytes: u64,
    /// Objects asked for again because their bytes arrived damaged.
    pub refetched: u64,
    /// Objects moved for which nobody promised a digest: the manifest holds ours, of the bytes as they arrived.
    #[serde(default)]
    pub unchecked: u64,
    /// Requests sent; planned ones in a dry run.
    pub requests: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Answers 429 and 503.
    pub throttles: u64,
    /// Seconds spent waiting because the store asked for it, summed over requests.
    pub throttle_wait_s: f64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Stored bytes of every node's share.
    pub shares: Vec<u64>,
    /// Objects of every node's share.
    #[serde(default)]
    pub share_objects: Vec<u64>,
    /// Requests that reading every node's share takes.
    #[serde(default)]
    pub share_requests: Vec<u64>,
    /// Bytes in and out of every node's share, estimated where what an object inflates to is not known.
    #[serde(default)]
    pub share_costs: Vec<u64>,
    /// How the reads were spread, where there are mirrors; the source comes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<MirrorReport>,
    /// What could not be staged.
    pub failed: Vec<Failure>,
}

/// A stage that runs.
pub type StageJob = Job<Summary>;

impl StageJob {
    /// Starts it on the runtime and returns at once.
    pub fn start(request: StageRequest, runtime: &Handle) -> Self {
        Self::spawn(runtime, |progress, metrics, cancelled| run(request, progress, metrics, cancelled))
    }
}

async fn run(
    request: StageRequest,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    cancelled: watch::Receiver<bool>,
) -> Result<Summary> {
    let clock = Stopwatch::start();
    check_apart(&request)?;
    if let Some(url) = &request.remote {
        super::remote::check_apart(&request.source, url)?;
    }
    let open_leader = |request: &StageRequest| {
        let (path, identity) = (request.destination.clone(), request.identity());
        let handle = Handle::current();
        blocking(move || {
            let _entered = handle.enter(); // the heart is spawned from here
            let jail = Arc::new(Jail::open(&path)?);
            let leader = Leader::begin(&jail, identity)?;
            Ok((jail, leader))
        })
    };
    let mut leader = None;
    if request.is_awaited && !request.dry_run {
        leader = Some(open_leader(&request).await?);
    }
    let deadline = request.deadline.map_or(Deadline::NEVER, Deadline::within);
    let StageOptions { node, nodes, division, concurrency, .. } = &request.options;
    let governor = Governor::new(Rates { in_flight: *concurrency, ..request.rates }, metrics.clone());
    governor.take_part(division.weights.part(*node, *nodes));
    let mut stop = cancelled.clone();
    let listed = tokio::select! {
        listed = list(&request, &governor, &metrics, deadline) => listed,
        _ = stop.wait_for(|stop| *stop) => Err(Error::Interrupted),
    };
    let place = match &request.remote {
        Some(url) => url.as_folder().to_string(),
        None => request.destination.display().to_string(),
    };
    let planned = listed.and_then(|(source, manifest)| {
        let plan = match &request.remote {
            Some(url) => super::remote::plan(&manifest, &request.options, url)?,
            None => StagePlan::new(&manifest, &request.options, &place)?,
        };
        Progress::add(&progress.objects, plan.items.len() as u64);
        Progress::add(&progress.bytes, plan.bytes);
        let all: u64 = plan.loads.iter().sum();
        if all > 0 {
            governor.take_part(plan.bytes as f64 / all as f64);
        }
        Ok((source, manifest, plan))
    });
    let mut summary = Summary {
        schema_version: 1,
        source: request.source.to_string(),
        destination: place,
        dry_run: request.dry_run,
        inflate: request.options.inflate,
        node: request.options.node,
        nodes: request.options.nodes,
        ..Summary::default()
    };
    let mut mirrors = None;
    let result = match planned {
        Ok((source, manifest, plan)) => {
            // A list of URLs is where their server is told, and not where objects are.
            if request.source.scheme == Scheme::File && !source.url.starts_with("file:") {
                summary.source = source.url.clone();
            }
            summary.objects = plan.items.len() as u64;
            summary.bytes = plan.bytes;
            summary.objects_in_all = manifest.objects.len() as u64;
            summary.shares = plan.loads.clone();
            summary.share_objects = plan.counts.clone();
            summary.share_requests = plan.all_requests.clone();
            summary.share_costs = plan.costs.clone();
            if request.dry_run {
                summary.requests = plan.requests;
                summary.seconds = clock.elapsed().as_secs_f64();
                return Ok(summary);
            }
            if leader.is_none() {
                leader = Some(open_leader(&request).await?);
            }
            mirrors = source.mirrors.clone();
            match (&leader, &request.remote) {
                (Some((jail, leader)), Some(url)) => {
                    let site = Site { jail: jail.clone(), folder: leader.folder().clone() };
                    // What is read waits for what is written, never the other way: each has its own requests in flight.
                    let to = super::remote::Target::open(url, &request.settings, &metrics, &governor.beside())?;
                    super::remote::transfer(&request, to, source, manifest, plan, site, &progress, deadline, cancelled)
                        .await
                }
                (Some((jail, leader)), None) => {
                    let site = Site { jail: jail.clone(), folder: leader.folder().clone() };
                    transfer(&request, source, manifest, plan, site, &progress, deadline, cancelled).await
                }
                (None, _) => Err(Error::bug("a stage without its lock")),
            }
        }
        Err(error) => Err(error),
    };
    let result = result.and_then(|()| {
        let snapshot = progress.snapshot();
        let failures = progress.failures();
        // Where the store refused everything, the refusal is the answer.
        if snapshot.done == 0
            && let Some((_, first)) = failures.first()
            && matches!(first, Error::Denied { .. } | Error::Server { .. })
            && failures.iter().all(|(failure, _)| failure.code == first.code())
        {
            return Err(first.clone());
        }
        summary.skipped = snapshot.skipped;
        summary.moved = snapshot.done - snapshot.skipped;
        summary.bytes_in = snapshot.bytes_in;
        summary.bytes_out = snapshot.bytes_out;
        summary.resumed_bytes = snapshot.resumed_bytes;
        summary.refetched = snapshot.refetched;
        summary.unchecked = snapshot.unchecked;
        summary.mirrors = mirrors.map(|mirrors: Mirrors| mirrors.report()).unwrap_or_default();
        summary.requests = metrics.get(Metric::Requests);
        summary.retries = metrics.get(Metric::Retries);
        summary.throttles = metrics.get(Metric::Throttles);
        summary.throttle_wait_s = metrics.get(Metric::ThrottleWait) as f64 / 1e9;
        summary.seconds = clock.elapsed().as_secs_f64();
        summary.failed = failures.into_iter().map(|(failure, _)| failure).collect();
        Ok(summary)
    });
    if let Some((_, leader)) = leader {
        leader.end(&result).await;
    }
    result
}

async fn list(
    request: &StageRequest,
    governor: &Arc<Governor>,
    metrics: &Arc<Metrics>,
    deadline: Deadline,
) -> Result<(Source, Manifest)> {
    let named = {
        let source = request.source.clone();
        blocking(move || UrlList::load(&source)).await?
    };
    let (url, select) = match &named {
        Some(list) => (list.folder.clone(), request.select.clone()),
        None => without_pattern(&request.source, request.select.clone()),
    };
    let (opened, mirrors) = match &request.mirrors[..] {
        [] => (penstock_store::open(&url, &request.settings, metrics.clone())?, None),
        mirrors => {
            let first = (&url, &request.settings);
            let (opened, mirrors) = penstock_store::open_mirrored(first, mirrors, metrics.clone())?;
            (opened, Some(mirrors))
        }
    };
    let opened = Opened { store: Arc::new(Govern::new(opened.store, governor.clone())), ..opened };
    let folder_url = url.as_folder().to_string();
    let manifest = match (&request.manifest, named) {
        (Some(path), _) => {
            let path = path.clone();
            let (place, manifest) = (path.display().to_string(), blocking(move || Manifest::load(&path)).await?);
            let manifest = match manifest.source.as_deref() == Some(&folder_url) && manifest.url != folder_url {
                // The record of an earlier stage of the same source.
                true => manifest.of_source().ok_or_else(|| {
                    Error::corrupt(&place, "is of a staged copy, and does not say what each file was made from")
                })?,
                false => manifest,
            };
            if manifest.url != folder_url {
                return Err(Error::config("--manifest", format!("{place} lists {}, not {folder_url}", manifest.url)));
            }
            manifest.only(&select)?
        }
        (None, Some(list)) => list.manifest(&*opened.store, &opened.prefix, &select, deadline).await?,
        (None, None) => index_selected(&*opened.store, &opened.prefix, &url, &select, deadline).await?,
    };
    let mut source = Source::of(opened, &folder_url, manifest.url.clone());
    if let Some(mirrors) = mirrors {
        for entry in &manifest.objects {
            let key = source.prefix.join(entry.key.as_bytes());
            mirrors.know(&key, entry.version.as_ref(), entry.size);
        }
        source.mirrors = Some(mirrors);
    }
    Ok((source, manifest))
}

/// The destination and the stage's own folder in it.
pub(crate) struct Site {
    pub jail: Arc<Jail>,
    pub folder: Arc<OwnedFd>,
}

#[expect(clippy::too_many_arguments, reason = "one caller; a struct would only rename the list")]
async fn transfer(
    request: &StageRequest,
    source: Source,
    manifest: Manifest,
    plan: StagePlan,
    site: Site,
    progress: &Arc<Progress>,
    deadline: Deadline,
    cancelled: watch::Receiver<bool>,
) -> Result<()> {
    let options = &request.options;
    let node = format!("{}-of-{}", options.node, options.nodes);
    let Site { jail, folder } = site;
    let resumed = {
        let (jail, folder, node, url) = (jail.clone(), folder.clone(), node.clone(), source.url.clone());
        let (progress, manifest) = (progress.clone(), Arc::new(manifest));
        let options = options.clone();
        blocking(move || resume(&jail, &folder, &node, &url, &progress, manifest, plan, &options)).await?
    };
    let Resumed { journal, parts, missing, done, manifest } = resumed;
    let crew = Crew {
        source,
        jail: jail.clone(),
        parts: parts.clone(),
        journal,
        options: options.clone(),
        cores: request.cores,
        progress: progress.clone(),
        deadline,
    };
    let source_url = crew.source.url.clone();
    let journal = crew.work(&manifest, &missing, cancelled).await?;
    let stem = if options.nodes == 1 { "manifest".to_owned() } else { format!("manifest-{node}") };
    let failures: Vec<Failure> = progress.failures().into_iter().map(|(failure, _)| failure).collect();
    let is_clean = failures.is_empty();
    let is_alone = options.nodes == 1;
    blocking(move || {
        if is_clean {
            sweep(&parts, is_alone, missing.iter().chain(&done));
        }
        let residue = format!("{}.json", stem.replacen("manifest", "residue", 1));
        if is_clean {
            remove_own(&folder, &residue);
        } else {
            let json = residue_json(&source_url, &failures)?;
            replace_own(&folder, &residue, &json)
                .map_err(|error| jail.io_error(FOLDER.as_bytes(), &error, json.len() as u64))?;
        }
        let items: Vec<&Item> = missing.iter().chain(&done).collect();
        record_staged(&jail, &journal, &manifest, items, &source_url, &stem)
    })
    .await
}

/// What could not be staged and why, for whoever has to mend it at the source: one object a line.
pub(crate) fn residue_json(source: &str, failures: &[Failure]) -> Result<Vec<u8>> {
    let bug = |error: serde_json::Error| Error::bug(error.to_string());
    let mut out =
        format!("{{\"penstock_residue\":1,\"source\":{},\"failed\":[", serde_json::json!(source)).into_bytes();
    for (at, failure) in failures.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
        serde_json::to_writer(&mut out, failure).map_err(bug)?;
    }
    out.extend_from_slice(b"\n]}\n");
    Ok(out)
}

/// Writes the manifest of what now stands in the destination: digests of both sides of each file. Lines come from the
/// journal one by one: at no time are all of them in memory.
fn record_staged(
    jail: &Jail,
    journal: &Journal,
    source: &Manifest,
    mut items: Vec<&Item>,
    source_url: &str,
    stem: &str,
) -> Result<()> {
    items.sort_unstable_by(|a, b| {
        (strip_suffix(a.target.as_bytes()), &a.target).cmp(&(strip_suffix(b.target.as_bytes()), &b.target))
    });
    let url = Url::from_path(jail.path())
        .map_or_else(|_| jail.path().display().to_string(), |url| url.as_folder().to_string());
    let format = ManifestFormat::for_objects(items.len());
    let head = Head { url: &url, source: Some(source_url), created_s: unix_now().as_secs_f64() };
    let entries = items.iter().filter_map(|item| {
        let line = journal.line(&item.target)?;
        let from = &source.objects[item.object];
        line.is_of(from).then(|| {
            Ok(Entry {
                modified_s: Some(line.mtime_ns as f64 / 1e9),
                records: from.records,
                // An object that was moved as stored is still encoded.
                encoding: line.origin.encoding.clone().filter(|_| line.origin.undone == Codec::None),
                digests: line.digests,
                origin: Some(Box::new(line.origin)),
                ..Entry::new(item.target.clone(), line.size)
            })
        })
    });
    let own = jail.make_folder(b".penstock")?;
    let name = format!("{stem}.{}", format.name());
    let io = |error: &std::io::Error| jail.io_error(name.as_bytes(), error, 0);
    replace_own_with(&own, &name, io, |file| write(file, format, &head, entries, &jail.place(name.as_bytes())))?;
    // An earlier stage of more or fewer objects left one of the other format.
    for other in [ManifestFormat::Json, ManifestFormat::Parquet].into_iter().filter(|other| *other != format) {
        remove_own(&own, &format!("{stem}.{}", other.name()));
    }
    Ok(())
}

/// Removes what killed runs left of objects that now stand; where no other node shares the folder, of any object.
fn sweep<'a>(parts: &OwnedFd, is_alone: bool, items: impl Iterator<Item = &'a Item>) {
    let Ok(folder) = rustix::fs::Dir::read_from(parts) else { return };
    let mut left: Vec<String> = folder
        .filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned))
        .filter(|name| !name.starts_with('.'))
        .collect();
    if !is_alone && !left.is_empty() {
        let ours: HashSet<String> = items.map(|item| temporary_name(&item.target, "")).collect();
        left.retain(|name| name.rfind('.').is_some_and(|dot| ours.contains(&name[..=dot])));
    }
    // A file that another stage holds is in use.
    left.iter().filter(|name| open_alone(parts, name).is_ok()).for_each(|name| remove_own(parts, name));
}

/// Errs where a local destination lies inside its own source: each run would list what the last one wrote.
fn check_apart(request: &StageRequest) -> Result<()> {
    let Some(source) = request.source.to_path().and_then(|path| path.canonicalize().ok()) else { return Ok(()) };
    let mut standing = request.destination.as_path();
    let destination = loop {
        match (standing.canonicalize(), standing.parent()) {
            (Ok(path), _) => break path,
            (Err(_), Some(parent)) => standing = parent,
            (Err(_), None) => return Ok(()),
        }
    };
    if source.is_dir() && destination.starts_with(&source) {
        return Err(Error::config(
            "destination",
            format!("{} lies inside its source, {}", request.destination.display(), source.display()),
        ));
    }
    Ok(())
}

/// What earlier runs left to do.
struct Resumed {
    journal: Journal,
    parts: Arc<OwnedFd>,
    missing: Vec<Item>,
    done: Vec<Item>,
    manifest: Arc<Manifest>,
}

/// True for a file that a stage with or without `--inflate` would leave as it is. Names tell of most; an object whose
/// name says no codec may have been kept compressed, or inflated, under the same name.
fn is_as_asked(jail: &Jail, line: &Line, inflate: bool) -> bool {
    if line.inflate == inflate || line.origin.undone_by == Some(SaidBy::Suffix) {
        return true;
    }
    if !inflate {
        return line.origin.undone == Codec::None;
    }
    let mut head = [0; HEAD];
    let read = jail.open_file(line.target.as_bytes()).map(|file| file.read_at(&mut head, 0));
    match read {
        Ok(Ok(read)) => unsaid(line.target.as_bytes(), line.origin.encoding.as_deref(), &head[..read]).is_none(),
        _ => true, // it is not there, or not whole: what follows will see
    }
}

/// What a gzip'd file of a local source says that it inflates to. A remote store would want a request for each object:
/// there, what the stored bytes come to is met as it is written. A damaged file may say anything, and is held to a ratio
/// that data do reach.
fn trailer_of(folder: Option<&Path>, item: &Item, entry: &Entry) -> Option<u64> {
    if item.undo != Codec::Gzip {
        return None;
    }
    let file = std::fs::File::open(folder?.join(OsStr::from_bytes(entry.key.as_bytes()))).ok()?;
    let mut last = [0; 4];
    file.read_exact_at(&mut last, entry.size.checked_sub(4)?).ok()?;
    Some(gzip_size_hint(last).min(entry.size.saturating_mul(HONEST_RATIO)))
}

#[expect(clippy::too_many_arguments, reason = "one caller; a struct would only rename the list")]
fn resume(
    jail: &Jail,
    folder: &OwnedFd,
    node: &str,
    source: &str,
    progress: &Progress,
    manifest: Arc<Manifest>,
    plan: StagePlan,
    options: &StageOptions,
) -> Result<Resumed> {
    let place = jail.place(FOLDER.as_bytes());
    let journal = Journal::open(folder, &format!("journal-{node}.jsonl"), source, &place)?;
    let parts = Arc::new(jail.make_folder(format!("{FOLDER}/parts").as_bytes())?);
    let folder_of_source = source.parse::<Url>().ok().and_then(|url| url.to_path());
    let (mut missing, mut done, mut need) = (Vec::new(), Vec::new(), 0u64);
    let mut strangers = Vec::new();
    for item in plan.items {
        let entry = &manifest.objects[item.object];
        let known = journal.line(&item.target).filter(|line| line.is_of(entry));
        let wish = options.deflate.and_then(|_| super::remote::wish(options));
        let is_asked = |line: &&Line| line.origin.asked == wish && is_as_asked(jail, line, options.inflate);
        let stands = match known.as_ref().filter(is_asked) {
            None => false,
            Some(line) if jail.state(item.target.as_bytes())? == Some(line.state()) => true,
            Some(line) => match ["tmp", "part"].map(|kind| temporary_name(&item.target, kind)) {
                [small, large] => {
                    adopt_left_behind(jail, &parts, &small, line).unwrap_or(false)
                        || adopt_left_behind(jail, &parts, &large, line).unwrap_or(false)
                }
            },
        };
        if stands {
            Progress::add(&progress.skipped, 1);
            Progress::add(&progress.done, 1);
            Progress::add(&progress.done_bytes, entry.size);
            done.push(item);
        } else {
            // Parts of a large object that are there already take no further room.
            let there = match entry.size > PART_BYTES {
                true => allocated_at(&parts, &temporary_name(&item.target, "part")),
                false => 0,
            };
            // A file that was whole before says what it will come to; else the stored bytes say what it takes at least.
            let size = match &known {
                Some(line) => line.size,
                None => trailer_of(folder_of_source.as_deref(), &item, entry).unwrap_or(0),
            };
            let size = size.max(entry.size);
            need = need.saturating_add(size.saturating_sub(there));
            if !options.overwrite && !journal.knows(&item.target) && jail.state(item.target.as_bytes())?.is_some() {
                strangers.push(item.target.clone());
            }
            missing.push(item);
        }
    }
    if let Some(first) = strangers.first() {
        let others = match strangers.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more like it"),
        };
        return Err(Error::Precondition {
            place: jail.place(first.as_bytes()),
            reason: format!("a file stands there that no stage of {source} has put there{others}"),
        });
    }
    let free = jail.free_bytes()?;
    if need > free {
        return Err(Error::NoSpace { place: jail.path().display().to_string(), need, free });
    }
    Ok(Resumed { journal, parts, missing, done, manifest })
}
