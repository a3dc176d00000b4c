// SPDX-License-Identifier: Apache-2.0
//! Download workers: turn the objects of one source into files concurrently, within the limits on rate, memory and
//! cores.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use penstock_types::{Deadline, Error, Result};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::commit::{Committer, MAX_WAITING, is_fatal};
use crate::concurrent::{Concurrency, ObjectTasks};
use crate::dest_dir::DestDir;
use crate::journal::Journal;
use crate::opened_source::Source;
use crate::page_cache_fit::fits_page_cache;
use crate::plan::{BUSY, Item, PART_BYTES, StageOptions};
use crate::progress::Progress;
use crate::source_reader::SourceReader;
use crate::to_folder::context::DownloadContext;
use crate::to_folder::multipart_download;
use penstock_dataset::manifest::Manifest;

/// Maximum number of objects that are being decompressed, written or synced, in addition to the objects with requests
/// in flight.
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
    /// Copies the items. Counts failed objects; a fatal error ends the stage. Returns the journal with all finished
    /// objects.
    pub async fn work(
        self,
        manifest: &Arc<Manifest>,
        items: &[Item],
        cancelled: watch::Receiver<bool>,
    ) -> Result<Journal> {
        let Self { source, dest_dir, parts, journal, options, cores, progress, deadline } = self;
        let (cores, overwrites) = (cores.max(1), options.overwrite);
        let bytes = items.iter().map(|item| manifest.objects[item.object].size).sum();
        let max_whole = DownloadContext::max_whole(options.memory, cores);
        let concurrency =
            Concurrency { most: options.concurrency.max(1) + BEHIND, limit: options.object_deadline, cancelled };
        let context = Arc::new(DownloadContext {
            reader: SourceReader::new(source, options.memory, progress.clone(), deadline),
            dest_dir: dest_dir.clone(),
            parts,
            cores: Arc::new(Semaphore::new(cores)),
            threads: cores,
            max_whole,
            buffers: Mutex::default(),
            is_busy: items.len() >= BUSY,
            is_direct: !fits_page_cache(bytes),
            options,
        });
        let (finished, inbox) = mpsc::channel(MAX_WAITING);
        let committer = Committer { dest_dir, journal, overwrites, progress };
        let committed = tokio::task::spawn_blocking(move || committer.run(inbox));

        let objects = ObjectTasks {
            reader: &context.reader,
            count: items.len(),
            entry: |at: usize| &manifest.objects[items[at].object],
            is_of_all: is_fatal,
        };
        let make = |at: usize| {
            let (context, finished, manifest, item) =
                (context.clone(), finished.clone(), manifest.clone(), items[at].clone());
            async move {
                let entry = &manifest.objects[item.object];
                let made = match entry.size > PART_BYTES {
                    true => multipart_download::make(&context, &item, entry).await?,
                    false => context.make(&item, entry).await?,
                };
                // If the channel is closed, the committer has failed. The committer's own error is returned below.
                finished.send(made).await.map_err(|_| Error::Interrupted)
            }
        };
        let outcome = concurrency.run(objects, make).await;
        drop(finished);
        let journal = committed.await.map_err(|join| Error::bug(format!("the committer ended: {join}")))?;
        // The committer's error takes precedence, because this error is the reason why the channel was closed.
        match (journal, outcome) {
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok(journal), Ok(())) => Ok(journal),
        }
    }
}
