// SPDX-License-Identifier: Apache-2.0
//! Stages to a store: finds the objects that are missing, uploads them and writes the new manifest.
//!
//! `upload_object` uploads one object; `upload_journal` is the journal of one multipart upload. The journal of the
//! stage is a local file. The store holds only objects and, at the end, their manifest.

pub(crate) mod existing;
pub(crate) mod manifests;
pub(crate) mod multipart;
pub(crate) mod resumable_upload;
pub(crate) mod target;
pub(crate) mod upload_journal;
pub(crate) mod upload_object;
pub(crate) mod upload_types;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use penstock_store::owned::OwnedFile;
use penstock_types::{Deadline, Error, Result, lock};
use tokio::sync::{Semaphore, watch};

use crate::blocking::blocking;
use crate::commit::is_fatal;
use crate::concurrent::{Concurrency, ObjectTasks};
use crate::context::{StageContext, StateDir};
use crate::dest_dir::DestDir;
use crate::dest_lock::LaunchLock;
use crate::journal::{Journal, Line};
use crate::opened_source::Source;
use crate::plan::StageOptions;
use crate::progress::{Failure, Progress};
use crate::source_reader::SourceReader;
use crate::status_record::FOLDER;
use crate::to_folder::manifests::share_of;
use crate::to_store::existing::{WorkList, existing};
use crate::to_store::manifests::{documents, manifest_names, staged_manifest, write_manifest};
use crate::to_store::target::Target;
use crate::to_store::upload_types::{UploadContext, UploadItem};
use penstock_dataset::manifest::Manifest;

/// Maximum number of objects in progress, in addition to the objects with requests in flight.
const BEHIND: usize = 16;
/// Maximum number of objects whose journal lines are written with one sync.
const BATCH: usize = 256;
/// Time limit for aborting open uploads after the user interrupts the stage.
const TAKE_BACK: Duration = Duration::from_secs(5);

/// Copies the objects to the store; returns the URL of the manifest.
pub(crate) async fn transfer(to: Target, context: StageContext<'_>) -> Result<String> {
    let StageContext { request, from, manifest, plan, site, progress, deadline, cancelled } = context;
    let options = &request.options;
    let node = format!("{}-of-{}", options.node, options.nodes);
    let existing = existing(&to, &plan.items, deadline).await?;
    let recorded = documents(&to, existing.own, deadline).await?;
    let (journal, parts) = {
        let (StateDir { dest_dir, folder }, name, source) =
            (site.clone(), format!("journal-{node}.jsonl"), from.url.clone());
        blocking(move || {
            let journal = Journal::open(&folder, &name, &source, &dest_dir.place(FOLDER.as_bytes()))?;
            Ok((journal, Arc::new(dest_dir.make_folder(format!("{FOLDER}/parts").as_bytes())?)))
        })
        .await?
    };
    let manifest = Arc::new(manifest);
    let mut todo = WorkList { journal, missing: Vec::new(), done: Vec::new() };
    todo.sort(plan.items, &manifest, existing.objects, &recorded, &from.url, options, progress)?;
    todo.refuse_foreign(&manifest, &to, &from.url, options)?;
    let WorkList { journal, missing, done } = todo;

    let (dest_dir, parts_of, options_of) = (site.dest_dir.clone(), parts, options.clone());
    let context =
        UploadContext::new(from, to.clone(), dest_dir, parts_of, options_of, request.cores, progress.clone(), deadline);
    let context = Arc::new(context);
    let source_url = context.reader.source.url.clone();
    let (journal, outcome) = work(&context, journal, &manifest, &missing, cancelled).await?;
    if matches!(outcome, Err(Error::Interrupted)) {
        context.take_back(TAKE_BACK).await;
    }
    outcome?;
    let failures: Vec<Failure> = progress.failures().into_iter().map(|(failure, _)| failure).collect();
    let failed = failures.len() as u64;
    let (share, url) = ((options.node, options.nodes), source_url.clone());
    blocking(move || site.write_residue(share, &url, &failures)).await?;
    let items = missing.iter().map(|upload| &upload.item).chain(&done);
    let mut staged = staged_manifest(&to.url, &journal, &manifest, items);
    staged.source = Some(source_url);
    staged.failed = failed;
    write_manifest(&to, staged, &node, deadline).await
}

/// Sends the objects concurrently, within the limits on requests, memory and cores. Even if the stage failed, returns
/// the journal with all finished objects.
async fn work(
    context: &Arc<UploadContext>,
    journal: Journal,
    manifest: &Arc<Manifest>,
    uploads: &[UploadItem],
    cancelled: watch::Receiver<bool>,
) -> Result<(Journal, Result<()>)> {
    let most = context.options.concurrency.max(1) + BEHIND;
    let concurrency = Concurrency { most, limit: context.options.object_deadline, cancelled };
    let (finished, inbox) = mpsc::channel();
    let progress = context.reader.progress.clone();
    let scribe = tokio::task::spawn_blocking(move || journal_writer(journal, &inbox, &progress));
    let send = |at: usize| {
        let (context, finished, manifest, upload) =
            (context.clone(), finished.clone(), manifest.clone(), uploads[at].clone());
        async move {
            let sent = context.send(&upload, &manifest.objects[upload.item.object]).await;
            // If the channel is closed, the journal writer has failed. The journal writer's own error is returned
            // below.
            sent.and_then(|sent| finished.send(sent).map_err(|_| Error::Interrupted))
        }
    };
    let objects = ObjectTasks {
        reader: &context.reader,
        count: uploads.len(),
        entry: |at: usize| &manifest.objects[uploads[at].item.object],
        // A missing bucket, or one that denies access, would also fail for the next object.
        is_of_all: |error: &Error| is_fatal(error) || context.is_of_all(error),
    };
    let outcome = concurrency.run(objects, send).await;
    drop(finished);
    let journal = scribe.await.map_err(|join| Error::bug(format!("the journal's thread ended: {join}")))?;
    match (journal, outcome) {
        // The journal's error takes precedence, because this error is the reason why the channel was closed.
        (Err(error), _) => Err(error),
        (Ok(journal), outcome) => Ok((journal, outcome)),
    }
}

/// Request to send objects again in the same way as an earlier stage sent them.
pub(crate) struct ResendRequest {
    pub from: Source,
    pub to: Target,
    /// Local folder for the state of the stage.
    pub state: PathBuf,
    pub options: StageOptions,
    pub cores: usize,
    pub progress: Arc<Progress>,
    pub deadline: Deadline,
    /// Node part of the manifest's name, such as `0-of-4`. This manifest lists the objects.
    pub node: String,
}

/// Sends objects again and replaces the existing objects. Records the new versions in the manifest.
pub(crate) async fn again(
    work_of: ResendRequest,
    manifest: Manifest,
    uploads: Vec<UploadItem>,
    cancelled: watch::Receiver<bool>,
) -> Result<()> {
    let ResendRequest { from, to, state, options, cores, progress, deadline, node } = work_of;
    let source = from.url.clone();
    let (dest_dir, folder) = blocking(move || {
        let dest_dir = Arc::new(DestDir::open(&state)?);
        let folder = Arc::new(dest_dir.make_folder(FOLDER.as_bytes())?);
        Ok((dest_dir, folder))
    })
    .await?;
    let _launch = LaunchLock::repair(&dest_dir, &folder).await?;
    let (dest_dir, folder, journal) = blocking(move || {
        let journal = Journal::open(&folder, "journal-repair.jsonl", &source, &dest_dir.place(FOLDER.as_bytes()))?;
        let parts = dest_dir.make_folder(format!("{FOLDER}/parts").as_bytes())?;
        Ok((dest_dir, Arc::new(parts), journal))
    })
    .await?;
    let context = Arc::new(UploadContext::new(from, to.clone(), dest_dir, folder, options, cores, progress, deadline));
    let manifest = Arc::new(manifest);
    let (journal, outcome) = work(&context, journal, &manifest, &uploads, cancelled).await?;
    outcome?;
    let names = manifest_names(&to, deadline).await?;
    let recorded = documents(&to, names, deadline).await?;
    let Some(document) = recorded.into_iter().find(|document| document.node == node) else { return Ok(()) };
    let mut amended = document.manifest;
    for entry in &mut amended.objects {
        let sent = uploads.iter().any(|upload| upload.item.target == entry.key);
        if let Some(line) = journal.line(&entry.key).filter(|line| sent && line.size == entry.size) {
            entry.version = line.version.clone();
            entry.modified_s = Some(line.mtime_ns as f64 / 1e9);
        }
    }
    write_manifest(&to, amended, share_of(&node), deadline).await.map(drop)
}

/// A sent object, and its upload journal. The upload journal is removed once the object is in the journal of the stage.
pub(crate) struct SentObject {
    pub line: Line,
    pub leftover: Option<Arc<OwnedFile>>,
}

fn journal_writer(mut journal: Journal, inbox: &mpsc::Receiver<SentObject>, progress: &Progress) -> Result<Journal> {
    while let Ok(first) = inbox.recv() {
        let mut batch = vec![first];
        batch.extend(inbox.try_iter().take(BATCH - 1));
        let lines: Vec<Line> = batch.iter().map(|sent| sent.line.clone()).collect();
        for (line, place) in lines.iter().zip(journal.append(&lines)?) {
            journal.remember(&line.target, place);
        }
        for SentObject { line, leftover } in batch {
            if let Some(leftover) = leftover {
                leftover.remove();
            }
            progress.finish(&line);
        }
    }
    Ok(journal)
}

impl UploadContext {
    #[expect(clippy::too_many_arguments, reason = "two callers; a struct would only rename the list")]
    fn new(
        from: Source,
        to: Target,
        dest_dir: Arc<DestDir>,
        state: Arc<OwnedFd>,
        options: StageOptions,
        cores: usize,
        progress: Arc<Progress>,
        deadline: Deadline,
    ) -> Self {
        let cores = cores.max(1);
        Self {
            reader: SourceReader::new(from, options.memory, progress, deadline),
            to,
            state,
            dest_dir,
            cores: Arc::new(Semaphore::new(cores)),
            threads: cores,
            options,
            open: Mutex::default(),
        }
    }

    /// True for an error of the destination that would also affect every other object.
    fn is_of_all(&self, error: &Error) -> bool {
        match error {
            Error::NotFound { place } => *place == self.to.store.root().to_string(),
            Error::Denied { place, .. } => place.starts_with(&self.to.url),
            _ => false,
        }
    }

    /// Aborts the open uploads.
    pub(crate) async fn take_back(&self, limit: Duration) {
        let open = std::mem::take(&mut *lock(&self.open));
        let Some(multipart) = self.to.store.multipart() else { return };
        let deadline = Deadline::within(limit);
        let aborts = open.iter().map(|(name, (key, id))| async move {
            if multipart.abort(key, id, deadline).await.is_ok()
                && let Ok(sent) = OwnedFile::lock_existing(&self.state, name)
            {
                sent.remove();
            }
        });
        futures::future::join_all(aborts).await;
    }
}
