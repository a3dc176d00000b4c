// SPDX-License-Identifier: Apache-2.0
//! A destination that is a store: what is planned for it, what stands there already, and what is recorded in it.
//!
//! Owns names and strangers there; `send` owns the journey of one object, `sent` the journal of one in parts. The stage's
//! own journal stays on this machine: the store holds objects and, at the end, the manifest of them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use penstock_codec::{Codec, strip_suffix};
use penstock_store::{Govern, Governor, Meta, ObjectRef, PutOptions, Store, StoreSettings, read_whole};
use penstock_types::{Deadline, Error, Key, Metrics, Result, Scheme, Url, unix_now};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::commit::is_fatal;
use super::crew::Source;
use super::jail::Jail;
use super::journal::{Journal, Line};
use super::object::{Workshop, blocking};
use super::plan::{Item, PART_BYTES, StageOptions, StagePlan};
use super::progress::{Failure, Progress};
use super::recorded::{Document, is_manifest_name, latest};
use super::run::{Site, StageRequest, residue_json};
use super::send::{Load, Yard};
use super::status::{FOLDER, replace_own};
use crate::manifest::{Entry, Manifest, ManifestFormat, SaidBy, is_own};
use crate::share::{Division, SharePlan};

/// Objects on their way beyond those whose requests are in flight.
const BEHIND: usize = 16;
/// Objects that are journaled with one sync.
const BATCH: usize = 256;
/// How long what is in flight may take to be taken back when the user interrupts.
const TAKE_BACK: Duration = Duration::from_secs(5);
/// The longest key that any store holds.
const KEY_MOST: usize = 1024;

/// The opened destination.
#[derive(Clone)]
pub(crate) struct Target {
    pub store: Arc<dyn Store>,
    pub prefix: Key,
    pub url: String,
}

impl Target {
    /// A place to read from.
    pub fn to(url: &Url, settings: &StoreSettings, metrics: &Arc<Metrics>) -> Result<Self> {
        let folder = url.as_folder();
        let opened = penstock_store::open(&folder, settings, metrics.clone())?;
        Ok(Self { store: opened.store, prefix: opened.prefix, url: folder.to_string() })
    }

    /// The same, asked as much at a time as the governor lets.
    pub fn governed(self, governor: &Arc<Governor>) -> Self {
        Self { store: Arc::new(Govern::new(self.store, governor.clone())), ..self }
    }

    /// A place to write to.
    pub fn open(url: &Url, settings: &StoreSettings, metrics: &Arc<Metrics>, governor: &Arc<Governor>) -> Result<Self> {
        let opened = Self::to(url, settings, metrics)?.governed(governor);
        let folder = &opened.url;
        if !opened.store.capabilities().put {
            return Err(Error::Unsupported {
                what: format!("a stage to {folder}"),
                by: format!("{}://", url.scheme.name()),
            });
        }
        Ok(opened)
    }

    pub fn key(&self, target: &Key) -> Key {
        self.prefix.join(target.as_bytes())
    }
}

/// True where objects carry a Content-Encoding, so that a compressed one keeps its name.
pub(crate) fn keeps_names(scheme: Scheme) -> bool {
    match scheme {
        Scheme::S3 | Scheme::Azure | Scheme::Gcs | Scheme::Memory => true,
        Scheme::File | Scheme::Hdfs | Scheme::Http | Scheme::Https => false,
    }
}

/// The plan for a store: any key that it may hold, each once.
pub(crate) fn plan(manifest: &Manifest, options: &StageOptions, url: &Url) -> Result<StagePlan> {
    if options.node >= options.nodes {
        return Err(Error::config("--node", format!("{} is not below --nodes of {}", options.node, options.nodes)));
    }
    let place = url.as_folder().to_string();
    let refuse = |key: &Key, reason: String| Error::KeyRefused { key: key.to_string(), place: place.clone(), reason };
    let mut names: HashMap<Key, usize> = HashMap::with_capacity(manifest.objects.len());
    let mut items = Vec::with_capacity(manifest.objects.len());
    for (at, entry) in manifest.objects.iter().enumerate() {
        let undo = if options.inflate { entry.codec } else { Codec::None };
        let mut target = entry.key.clone();
        if undo != Codec::None && Codec::of_name(entry.key.as_bytes()) == undo {
            target = Key::new(strip_suffix(entry.key.as_bytes()).to_vec());
        }
        if let Some(deflate) = options.deflate_of(entry).filter(|_| !keeps_names(url.scheme)) {
            target = target.join(deflate.codec.suffix().as_bytes());
        }
        match target.as_bytes() {
            b"" => return Err(refuse(&entry.key, "it is empty".to_owned())),
            _ if is_own(&target) => {
                let reason = "names that begin with .penstock hold Penstock's own state";
                return Err(refuse(&entry.key, reason.to_owned()));
            }
            bytes if url.key.as_bytes().len() + bytes.len() > KEY_MOST => {
                return Err(refuse(&entry.key, format!("with its prefix it is longer than {KEY_MOST} bytes")));
            }
            _ => {}
        }
        if let Some(other) = names.insert(target.clone(), at) {
            let other = &manifest.objects[other].key;
            return Err(refuse(&entry.key, format!("`{other}` would become the same object, `{target}`")));
        }
        items.push(Item { object: at, target, undo, said_by: (undo != Codec::None).then_some(SaidBy::Suffix) });
    }
    drop(names);
    let division = Division { inflate: options.inflate, ..options.division.clone() };
    let shares = SharePlan::divide(manifest, options.nodes, &division)?;
    let items: Vec<Item> = shares.share(options.node).into_iter().map(|at| items[at].clone()).collect();
    let reads = |size: u64| if size <= PART_BYTES { 1 } else { size.div_ceil(PART_BYTES) + 1 };
    let writes = |size: u64| if size <= super::send::SMALL { 1 } else { size.div_ceil(super::send::PART) + 2 };
    let requests = |at: usize| reads(manifest.objects[at].size) + writes(manifest.objects[at].size);
    let all_requests = shares.sums(requests);
    let node = options.node as usize;
    Ok(StagePlan {
        items,
        bytes: shares.loads()[node],
        requests: all_requests[node],
        loads: shares.loads().to_vec(),
        costs: shares.costs().to_vec(),
        counts: shares.sums(|_| 1),
        all_requests,
    })
}

/// Errs where a destination lies inside its own source: each run would list what the last one wrote.
pub(crate) fn check_apart(source: &Url, url: &Url) -> Result<()> {
    let (inner, outer) = (url.as_folder(), source.as_folder());
    let same = source.scheme == url.scheme && source.authority == url.authority;
    match same && inner.key.strip_prefix(&outer.key).is_some() {
        true => Err(Error::config("destination", format!("{inner} lies inside its source, {outer}"))),
        false => Ok(()),
    }
}

impl StageOptions {
    /// Asks for what [`wish`] named.
    pub(crate) fn wish_again(&mut self, asked: Option<&str>) -> Result<()> {
        let odd = || {
            Error::config("manifest", format!("`{}` is nothing that a stage is asked for", asked.unwrap_or_default()))
        };
        for word in asked.into_iter().flat_map(|asked| asked.split(',')) {
            match word.split_once(':') {
                None if word == "inflate" => self.inflate = true,
                Some((codec, level)) => {
                    let level = level.parse().map_err(|_| odd())?;
                    self.deflate = Some(super::squeeze::Deflate::new(codec.parse()?, Some(level))?);
                }
                None => return Err(odd()),
            }
        }
        Ok(())
    }
}

/// What is done to content on the way, as journal and manifest name it: another wish makes other objects.
pub(crate) fn wish(options: &StageOptions) -> Option<String> {
    let deflate = options.deflate.map(|deflate| format!("{}:{}", deflate.codec, deflate.level));
    match (options.inflate, deflate) {
        (true, Some(deflate)) => Some(format!("inflate,{deflate}")),
        (true, None) => Some("inflate".to_owned()),
        (false, deflate) => deflate,
    }
}

#[expect(clippy::too_many_arguments, reason = "one caller; a struct would only rename the list")]
pub(crate) async fn transfer(
    request: &StageRequest,
    to: Target,
    from: Source,
    manifest: Manifest,
    plan: StagePlan,
    site: Site,
    progress: &Arc<Progress>,
    deadline: Deadline,
    cancelled: watch::Receiver<bool>,
) -> Result<()> {
    let options = &request.options;
    let Site { jail, folder } = site;
    let node = format!("{}-of-{}", options.node, options.nodes);
    let standing = standing(&to, &plan.items, deadline).await?;
    let recorded = documents(&to, standing.own, deadline).await?;
    let (journal, parts) = {
        let (jail, folder, name, source) =
            (jail.clone(), folder.clone(), format!("journal-{node}.jsonl"), from.url.clone());
        blocking(move || {
            let journal = Journal::open(&folder, &name, &source, &jail.place(FOLDER.as_bytes()))?;
            Ok((journal, Arc::new(jail.make_folder(format!("{FOLDER}/parts").as_bytes())?)))
        })
        .await?
    };
    let manifest = Arc::new(manifest);
    let mut todo = Todo { journal, missing: Vec::new(), done: Vec::new() };
    todo.sort(plan.items, &manifest, standing.objects, &recorded, &from.url, options, progress)?;
    todo.refuse_strangers(&manifest, &to, &from.url, options)?;
    let Todo { journal, missing, done } = todo;

    let (jail_of, parts_of, options_of) = (jail.clone(), parts, options.clone());
    let yard = Yard::new(from, to.clone(), jail_of, parts_of, options_of, request.cores, progress.clone(), deadline);
    let yard = Arc::new(yard);
    let source_url = yard.from.url.clone();
    let moved = work(&yard, journal, &manifest, &missing, cancelled).await;
    let (journal, outcome) = match moved {
        Ok(moved) => moved,
        Err(error) => return Err(error),
    };
    if matches!(outcome, Err(Error::Interrupted)) {
        yard.take_back(TAKE_BACK).await;
    }
    outcome?;
    let failures: Vec<Failure> = progress.failures().into_iter().map(|(failure, _)| failure).collect();
    {
        let (folder, jail, name) = (folder.clone(), jail.clone(), format!("residue-{node}.json"));
        let (source_url, failures) = (source_url.clone(), failures.clone());
        blocking(move || {
            if failures.is_empty() {
                super::jail::remove_own(&folder, &name);
                return Ok(());
            }
            let json = residue_json(&source_url, &failures)?;
            replace_own(&folder, &name, &json)
                .map_err(|error| jail.io_error(name.as_bytes(), &error, json.len() as u64))
        })
        .await?;
    }
    let items = missing.iter().map(|load| &load.item).chain(&done);
    let mut staged = staged_manifest(&to.url, &journal, &manifest, items);
    staged.source = Some(source_url);
    record(&to, staged, &node, options.nodes, &recorded, deadline).await
}

/// What stands in the destination under the names that will be written, and the names of manifests there.
struct Standing {
    objects: HashMap<Key, Meta>,
    own: Vec<Key>,
}

async fn standing(to: &Target, items: &[Item], deadline: Deadline) -> Result<Standing> {
    let wanted: std::collections::HashSet<&[u8]> = items.iter().map(|item| item.target.as_bytes()).collect();
    let mut found = Standing { objects: HashMap::new(), own: Vec::new() };
    if !to.store.capabilities().list {
        return Ok(found);
    }
    let mut listing = to.store.list(&to.prefix, None, deadline);
    loop {
        match listing.try_next().await {
            Ok(Some(meta)) => {
                let Some(key) = meta.key.strip_prefix(&to.prefix) else { continue };
                if is_manifest(&key) {
                    found.own.push(key);
                } else if wanted.contains(key.as_bytes()) {
                    found.objects.insert(key, meta);
                }
            }
            // A folder, or a store that makes its places as they are written, is empty before the first write. A
            // bucket that is not there refuses the first object.
            Err(Error::NotFound { .. }) if to.store.root().authority.is_empty() => break,
            Ok(None) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn is_manifest(key: &Key) -> bool {
    key.as_bytes().strip_prefix(b".penstock/").is_some_and(is_manifest_name)
}

/// The manifests that stages have left in a store; one that is none is none of ours.
pub(crate) async fn documents(to: &Target, names: Vec<Key>, deadline: Deadline) -> Result<Vec<Document>> {
    let mut found = Vec::new();
    for name in names {
        let object = ObjectRef::current(to.key(&name));
        let (_, bytes) = match read_whole(&*to.store, &object, None, deadline).await {
            Ok(read) => read,
            Err(Error::NotFound { .. }) => continue, // taken away since it was listed
            Err(error) => return Err(error),
        };
        let place = format!("{}{name}", to.url);
        let document = blocking(move || {
            let name = name.as_bytes().strip_prefix(b".penstock/").unwrap_or(name.as_bytes());
            Ok(Document::parse(name, &bytes, &place))
        });
        let document = document.await?;
        if let Some(document) = document {
            found.push(document?);
        }
    }
    Ok(latest(found))
}

/// The names of manifests in a destination.
pub(crate) async fn manifest_names(to: &Target, deadline: Deadline) -> Result<Vec<Key>> {
    let prefix = to.key(&Key::from(".penstock/manifest"));
    let listed: Result<Vec<Meta>> = to.store.list(&prefix, None, deadline).try_collect().await;
    let names = listed?.into_iter().filter_map(|meta| meta.key.strip_prefix(&to.prefix));
    Ok(names.filter(is_manifest).collect())
}

/// What earlier runs left to do.
struct Todo {
    journal: Journal,
    missing: Vec<Load>,
    done: Vec<Item>,
}

impl Todo {
    #[expect(clippy::too_many_arguments, reason = "one caller")]
    fn sort(
        &mut self,
        items: Vec<Item>,
        manifest: &Manifest,
        mut standing: HashMap<Key, Meta>,
        recorded: &[Document],
        source: &str,
        options: &StageOptions,
        progress: &Progress,
    ) -> Result<()> {
        // What the destination's own manifest says counts where this machine has no journal of it.
        let mut known: HashMap<&Key, &Entry> = HashMap::new();
        for document in recorded.iter().filter(|document| document.manifest.source.as_deref() == Some(source)) {
            for entry in &document.manifest.objects {
                known.entry(&entry.key).or_insert(entry);
            }
        }
        let mut adopted = Vec::new();
        for item in items {
            let entry = &manifest.objects[item.object];
            let there = standing.remove(&item.target);
            let is_ours = |line: &&Line| {
                there.as_ref().is_some_and(|there| {
                    there.size == line.size
                        && (line.version.is_none() || there.version.is_none() || there.version == line.version)
                })
            };
            // The manifest may know better than a journal: another machine may have mended what this one had sent.
            let journaled = self.journal.line(&item.target);
            let told = || known.get(&item.target).and_then(|entry| Line::of_recorded(entry));
            let journaled = journaled.filter(|line| is_ours(&line));
            let is_journaled = journaled.is_some();
            let line = journaled.or_else(told);
            let ours = line.as_ref().filter(is_ours);
            let is_done = ours.is_some_and(|line| line.is_of(entry) && line.origin.asked == wish(options));
            if is_done {
                Progress::add(&progress.skipped, 1);
                Progress::add(&progress.done, 1);
                Progress::add(&progress.done_bytes, entry.size);
                adopted.extend(line.filter(|_| !is_journaled));
                self.done.push(item);
            } else {
                let is_ours = ours.is_some();
                self.missing.push(Load { item, standing: there, is_ours });
            }
        }
        // Lines of another machine's become ours: the manifest at the end is made of the journal.
        if !adopted.is_empty() {
            for (line, place) in adopted.iter().zip(self.journal.append(&adopted)?) {
                self.journal.remember(&line.target, place);
            }
        }
        Ok(())
    }

    /// What stands there, is not ours and cannot be the same ends the stage before its first byte.
    fn refuse_strangers(&self, manifest: &Manifest, to: &Target, source: &str, options: &StageOptions) -> Result<()> {
        if options.overwrite {
            return Ok(());
        }
        let mut strangers = self.missing.iter().filter(|load| {
            let is_copy = load.item.undo == Codec::None && options.deflate.is_none() && !options.inflate;
            let size = manifest.objects[load.item.object].size;
            !load.is_ours && load.standing.as_ref().is_some_and(|there| is_copy && there.size != size)
        });
        let Some(first) = strangers.next() else { return Ok(()) };
        let others = match strangers.count() {
            0 => String::new(),
            more => format!(", and {more} more like it"),
        };
        Err(Error::Precondition {
            place: format!("{}{}", to.url, first.item.target),
            reason: format!("an object stands there that no stage of {source} has put there{others}"),
        })
    }
}

/// Sends the objects, as many at once as pace, memory and cores allow. The journal comes back with what was finished,
/// however it ended.
async fn work(
    yard: &Arc<Yard>,
    journal: Journal,
    manifest: &Arc<Manifest>,
    loads: &[Load],
    mut cancelled: watch::Receiver<bool>,
) -> Result<(Journal, Result<()>)> {
    let most = yard.options.concurrency.max(1) + BEHIND;
    let (finished, inbox) = mpsc::channel();
    let progress = yard.progress.clone();
    let scribe = tokio::task::spawn_blocking(move || write_down(journal, &inbox, &progress));
    let limit = yard.options.object_deadline;
    // An object that is late fails alone; its parts stay, and the next run goes on from there.
    let mut flying: JoinSet<(usize, bool, Result<()>)> = JoinSet::new();
    let mut left = loads.iter().cloned().enumerate();
    let mut outcome = Ok(());
    loop {
        while flying.len() < most {
            let Some((at, load)) = left.next() else { break };
            let (yard, finished, manifest) = (yard.clone(), finished.clone(), manifest.clone());
            flying.spawn(async move {
                let entry = &manifest.objects[load.item.object];
                let sent = match limit {
                    None => yard.send(&load, entry).await,
                    Some(limit) => match tokio::time::timeout(limit, yard.send(&load, entry)).await {
                        Ok(sent) => sent,
                        Err(_) => return (at, true, Err(Error::Deadline { what: yard.place(entry), limit })),
                    },
                };
                // A scribe that is gone has an error of its own to tell.
                (at, false, sent.and_then(|sent| finished.send(sent).map_err(|_| Error::Interrupted)))
            });
        }
        let ended = tokio::select! {
            ended = flying.join_next() => ended,
            _ = cancelled.wait_for(|stop| *stop) => {
                outcome = Err(Error::Interrupted);
                break;
            }
        };
        match ended {
            None => break,
            Some(Ok((_, _, Ok(())))) => {}
            // A bucket that is not there, or that refuses all, is not better for the next object.
            Some(Ok((_, false, Err(error)))) if is_fatal(&error) || yard.is_of_all(&error) => {
                outcome = Err(error);
                break;
            }
            Some(Ok((at, _, Err(error)))) => yard.progress.fail(&manifest.objects[loads[at].item.object].key, error),
            Some(Err(join)) => {
                outcome = Err(Error::bug(format!("an object's task ended: {join}")));
                break;
            }
        }
    }
    flying.shutdown().await;
    drop(finished);
    let journal = scribe.await.map_err(|join| Error::bug(format!("the journal's thread ended: {join}")))?;
    match (journal, outcome) {
        // The journal's error comes first: it is why the senders met a closed door.
        (Err(error), _) => Err(error),
        (Ok(journal), outcome) => Ok((journal, outcome)),
    }
}

/// Objects that are sent once more, as an earlier stage sent them.
pub(crate) struct Again {
    pub from: Source,
    pub to: Target,
    /// The folder on this machine.
    pub state: PathBuf,
    pub options: StageOptions,
    pub cores: usize,
    pub progress: Arc<Progress>,
    pub deadline: Deadline,
    /// Whose manifest names them.
    pub node: String,
}

/// Sends objects again over what stands there, and tells the manifest of their new versions.
pub(crate) async fn again(
    work_of: Again,
    manifest: Manifest,
    loads: Vec<Load>,
    cancelled: watch::Receiver<bool>,
) -> Result<()> {
    let Again { from, to, state, options, cores, progress, deadline, node } = work_of;
    let source = from.url.clone();
    let (jail, folder, journal) = blocking(move || {
        let jail = Arc::new(Jail::open(&state)?);
        let folder = jail.make_folder(FOLDER.as_bytes())?;
        let place = jail.place(FOLDER.as_bytes());
        let journal = Journal::open(&folder, "journal-repair.jsonl", &source, &place)?;
        Ok((jail.clone(), Arc::new(jail.make_folder(format!("{FOLDER}/parts").as_bytes())?), journal))
    })
    .await?;
    let yard = Arc::new(Yard::new(from, to.clone(), jail, folder, options, cores, progress, deadline));
    let manifest = Arc::new(manifest);
    let (journal, outcome) = work(&yard, journal, &manifest, &loads, cancelled).await?;
    outcome?;
    let names = manifest_names(&to, deadline).await?;
    let mut recorded = documents(&to, names, deadline).await?;
    let Some(at) = recorded.iter().position(|document| document.node == node) else { return Ok(()) };
    let mut amended = recorded[at].manifest.clone();
    for entry in &mut amended.objects {
        let sent = loads.iter().any(|load| load.item.target == entry.key);
        if let Some(line) = journal.line(&entry.key).filter(|line| sent && line.size == entry.size) {
            entry.version = line.version.clone();
            entry.modified_s = Some(line.mtime_ns as f64 / 1e9);
        }
    }
    let nodes = node.rsplit('-').next().and_then(|nodes| nodes.parse().ok()).unwrap_or(1);
    recorded.truncate(at + 1);
    record(&to, amended, &node, nodes, &recorded, deadline).await
}

/// A sent object, and the files of ours that are of no use once it is journaled.
pub(crate) struct Sent {
    pub line: Line,
    pub leftover: Option<(Arc<OwnedFd>, String)>,
}

fn write_down(mut journal: Journal, inbox: &mpsc::Receiver<Sent>, progress: &Progress) -> Result<Journal> {
    while let Ok(first) = inbox.recv() {
        let mut batch = vec![first];
        batch.extend(inbox.try_iter().take(BATCH - 1));
        let lines: Vec<Line> = batch.iter().map(|sent| sent.line.clone()).collect();
        for (line, place) in lines.iter().zip(journal.append(&lines)?) {
            journal.remember(&line.target, place);
        }
        for Sent { line, leftover } in batch {
            if let Some((folder, name)) = leftover {
                super::jail::remove_own(&folder, &name);
            }
            Progress::add(&progress.done, 1);
            Progress::add(&progress.done_bytes, line.origin.size);
            Progress::add(&progress.bytes_out, line.size);
            Progress::add(&progress.unchecked, u64::from(line.origin.checked.is_empty()));
        }
    }
    Ok(journal)
}

/// The manifest of what now stands in the destination.
fn staged_manifest<'a>(
    url: &str,
    journal: &Journal,
    source: &Manifest,
    items: impl Iterator<Item = &'a Item>,
) -> Manifest {
    let objects = items.filter_map(|item| {
        let line = journal.line(&item.target)?;
        let from = &source.objects[item.object];
        line.is_of(from).then(|| {
            let entry = Entry::new(item.target.clone(), line.size);
            let is_kept = line.origin.undone == Codec::None;
            Entry {
                version: line.version.clone(),
                modified_s: Some(line.mtime_ns as f64 / 1e9),
                digests: line.digests.clone(),
                records: from.records,
                encoding: match line.origin.packed {
                    Codec::None => line.origin.encoding.clone().filter(|_| is_kept),
                    codec => Some(codec.name().to_owned()),
                },
                codec: if line.origin.packed == Codec::None { entry.codec } else { line.origin.packed },
                format: from.format,
                origin: Some(Box::new(line.origin.clone())),
                ..entry
            }
        })
    });
    Manifest::new(url.to_owned(), objects.collect())
}

/// Writes this node's manifest into the destination, unless the same stands there.
async fn record(
    to: &Target,
    staged: Manifest,
    node: &str,
    nodes: u32,
    recorded: &[Document],
    deadline: Deadline,
) -> Result<()> {
    let same = |document: &&Document| document.node == node;
    let is_same = recorded.iter().find(same).is_some_and(|document| {
        document.manifest.objects == staged.objects && document.manifest.source == staged.source
    });
    if is_same {
        return Ok(());
    }
    let format = ManifestFormat::for_objects(staged.objects.len());
    let stem = if nodes == 1 { "manifest".to_owned() } else { format!("manifest-{node}") };
    let key = |format: ManifestFormat| to.key(&Key::from(format!(".penstock/{stem}.{}", format.name()).as_str()));
    let written = blocking(move || match format {
        ManifestFormat::Json => staged.to_json(),
        ManifestFormat::Parquet => staged.to_parquet(),
    });
    let bytes = vec![Bytes::from(written.await?)];
    to.store.put(&key(format), bytes, &PutOptions::default(), deadline).await?;
    // An earlier stage of more or fewer objects left one of the other format.
    let others = recorded.iter().filter(|document| same(document) && document.format != format);
    let others: Vec<Key> = others.map(|document| key(document.format)).collect();
    match others.is_empty() {
        true => Ok(()),
        false => to.store.delete(&others, deadline).await,
    }
}

impl Yard {
    #[expect(clippy::too_many_arguments, reason = "two callers; a struct would only rename the list")]
    fn new(
        from: Source,
        to: Target,
        jail: Arc<Jail>,
        state: Arc<OwnedFd>,
        options: StageOptions,
        cores: usize,
        progress: Arc<Progress>,
        deadline: Deadline,
    ) -> Self {
        let cores = cores.max(1);
        let (memory_units, _) = Workshop::budgets(options.memory, cores);
        Self {
            from,
            to,
            state,
            jail,
            memory: Arc::new(Semaphore::new(memory_units as usize)),
            memory_units,
            cores: Arc::new(Semaphore::new(cores)),
            threads: cores,
            progress,
            options,
            deadline,
            open: Mutex::default(),
        }
    }

    /// True for what no other object will be spared from.
    fn is_of_all(&self, error: &Error) -> bool {
        match error {
            Error::NotFound { place } => *place == self.to.store.root().to_string(),
            Error::Denied { place, .. } => place.starts_with(&self.to.url),
            _ => false,
        }
    }

    /// Takes back the parts of what was on its way.
    pub(crate) async fn take_back(&self, limit: Duration) {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(door) = self.to.store.uploads() else { return };
        let deadline = Deadline::within(limit);
        let aborts = open.iter().map(|(name, (key, id))| async move {
            if door.abort(key, id, deadline).await.is_ok() {
                super::jail::remove_own(&self.state, name);
            }
        });
        futures::future::join_all(aborts).await;
    }
}

impl Line {
    /// What a destination's manifest says of an object, as the journal of the stage that sent it would.
    pub(crate) fn of_recorded(entry: &Entry) -> Option<Self> {
        let origin = entry.origin.clone()?;
        Some(Self {
            target: entry.key.clone(),
            size: entry.size,
            mtime_ns: (entry.modified_s.unwrap_or_else(|| unix_now().as_secs_f64()) * 1e9) as i64,
            digests: entry.digests.clone(),
            inflate: origin.undone != Codec::None,
            modified_s: origin.modified_s,
            version: entry.version.clone(),
            origin: *origin,
        })
    }
}
