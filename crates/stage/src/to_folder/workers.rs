// SPDX-License-Identifier: Apache-2.0
//! The work itself: items of one source become files, as many at once as pace, memory and cores allow.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use penstock_types::{Deadline, Error, Result};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::commit::{Committer, MAX_WAITING, is_fatal};
use crate::concurrent::{Concurrency, ObjectTasks};
use crate::dest_dir::DestDir;
use crate::journal::Journal;
use crate::page_cache;
use crate::plan::{BUSY, Item, PART_BYTES, StageOptions};
use crate::progress::Progress;
use crate::source::Source;
use crate::source_reader::SourceReader;
use crate::to_folder::context::DownloadContext;
use crate::to_folder::resumable;
use penstock_dataset::manifest::Manifest;

/// Objects on their way beyond those whose requests are in flight: being inflated, written, synced.
const BEHIND: usize = 32;

/// Download workers of one source.
pub(crate) struct Workers {
    pub source: Source,
    pub dest_dir: Arc<DestDir>,
    pub parts: Arc<OwnedFd>,
    pub journal: Journal,
    pub options: StageOptions,
    pub cores: usize,
    pub progress: Arc<Progress>,
    pub deadline: Deadline,
}

impl Workers {
    /// Copies the items. A failed object is counted; an error ends the stage. Returns the journal with what
    /// was finished.
    pub async fn work(
        self,
        manifest: &Arc<Manifest>,
        items: &[Item],
        cancelled: watch::Receiver<bool>,
    ) -> Result<Journal> {
        let Self { source, dest_dir, parts, journal, options, cores, progress, deadline } = self;
        let (cores, overwrites) = (cores.max(1), options.overwrite);
        let bytes = items.iter().map(|item| manifest.objects[item.object].size).sum();
        let whole_most = DownloadContext::whole_most(options.memory, cores);
        let concurrency =
            Concurrency { most: options.concurrency.max(1) + BEHIND, limit: options.object_deadline, cancelled };
        let shop = Arc::new(DownloadContext {
            reader: SourceReader::new(source, options.memory, progress.clone(), deadline),
            dest_dir: dest_dir.clone(),
            parts,
            cores: Arc::new(Semaphore::new(cores)),
            threads: cores,
            whole_most,
            buffers: Mutex::default(),
            is_busy: items.len() >= BUSY,
            is_direct: !page_cache::keeps(bytes),
            options,
        });
        let (finished, inbox) = mpsc::channel(MAX_WAITING);
        let committer = Committer { dest_dir, journal, overwrites, progress };
        let committed = tokio::task::spawn_blocking(move || committer.run(inbox));

        let objects = ObjectTasks {
            reader: &shop.reader,
            count: items.len(),
            entry: |at: usize| &manifest.objects[items[at].object],
            is_of_all: is_fatal,
        };
        let make = |at: usize| {
            let (shop, finished, manifest, item) =
                (shop.clone(), finished.clone(), manifest.clone(), items[at].clone());
            async move {
                let entry = &manifest.objects[item.object];
                let made = match entry.size > PART_BYTES {
                    true => resumable::make(&shop, &item, entry).await?,
                    false => shop.make(&item, entry).await?,
                };
                // A committer that ended returns its own error.
                finished.send(made).await.map_err(|_| Error::Interrupted)
            }
        };
        let outcome = concurrency.run(objects, make).await;
        drop(finished);
        let journal = committed.await.map_err(|join| Error::bug(format!("the committer ended: {join}")))?;
        // The committer's error comes first: it is why the senders met a closed door.
        match (journal, outcome) {
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok(journal), Ok(())) => Ok(journal),
        }
    }
}
