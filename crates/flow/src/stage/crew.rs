// SPDX-License-Identifier: Apache-2.0
//! The work itself: items of one source become files, as many at once as pace, memory and cores allow.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, mpsc};

use penstock_store::{Govern, Governor, Mirrors, Opened, Store, StoreSettings};
use penstock_types::{Deadline, Error, Key, Metrics, Result, Url};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::commit::{Committer, is_fatal};
use super::jail::Jail;
use super::journal::Journal;
use super::object::Workshop;
use super::plan::{Item, StageOptions};
use super::progress::Progress;
use crate::manifest::Manifest;

/// Objects on their way beyond those whose requests are in flight: being inflated, written, synced.
const BEHIND: usize = 32;

/// The opened source: the store, and what the manifest's keys are relative to.
pub(crate) struct Source {
    pub store: Arc<dyn Store>,
    pub prefix: Key,
    pub url: String,
    /// The store's other door, where it is several.
    pub mirrors: Option<Mirrors>,
}

impl Source {
    /// What was opened by `folder_url`, as a manifest of `url` (the same folder, or the folder of one object) names it.
    pub fn of(opened: Opened, folder_url: &str, url: String) -> Self {
        let prefix = opened.prefix.as_bytes();
        let prefix = if url == folder_url {
            match prefix {
                b"" => opened.prefix.clone(),
                bytes if bytes.ends_with(b"/") => opened.prefix.clone(),
                _ => opened.prefix.join(b"/"),
            }
        } else {
            // One object: keys are relative to its folder.
            Key::new(prefix[..prefix.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1)].to_vec())
        };
        Self { store: opened.store, prefix, url, mirrors: None }
    }

    /// The same, asked as much at a time as the governor lets.
    pub fn governed(self, governor: &Arc<Governor>) -> Self {
        Self { store: Arc::new(Govern::new(self.store, governor.clone())), ..self }
    }

    /// The folder that an earlier stage read from.
    pub fn again(url: &str, settings: &StoreSettings, metrics: Arc<Metrics>) -> Result<Self> {
        let parsed: Url = url.parse()?;
        let opened = penstock_store::open(&parsed, settings, metrics)?;
        Ok(Self::of(opened, url, url.to_owned()))
    }
}

/// What items of one source need to become files.
pub(crate) struct Crew {
    pub source: Source,
    pub jail: Arc<Jail>,
    pub parts: Arc<OwnedFd>,
    pub journal: Journal,
    pub options: StageOptions,
    pub cores: usize,
    pub progress: Arc<Progress>,
    pub deadline: Deadline,
}

impl Crew {
    /// Moves the items. What fails alone stands in the progress; an error ends all of it. Returns the journal with what
    /// was finished.
    pub async fn work(
        self,
        manifest: &Arc<Manifest>,
        items: &[Item],
        mut cancelled: watch::Receiver<bool>,
    ) -> Result<Journal> {
        let Self { source, jail, parts, journal, options, cores, progress, deadline } = self;
        let cores = cores.max(1);
        let (memory_units, whole_most) = Workshop::budgets(options.memory, cores);
        let most = options.concurrency.max(1) + BEHIND;
        let shop = Arc::new(Workshop {
            store: source.store,
            prefix: source.prefix,
            source: source.url,
            mirrors: source.mirrors,
            jail: jail.clone(),
            parts: parts.clone(),
            memory: Arc::new(Semaphore::new(memory_units as usize)),
            memory_units,
            cores: Arc::new(Semaphore::new(cores)),
            threads: cores,
            whole_most,
            buffers: Mutex::default(),
            progress: progress.clone(),
            options,
            deadline,
        });
        let (finished, inbox) = mpsc::channel();
        let committer = Committer { jail, parts, journal, progress: progress.clone() };
        let committed = tokio::task::spawn_blocking(move || committer.run(&inbox));

        let limit = shop.options.object_deadline;
        // An object that is late fails alone; what has come of it stays, and the next run goes on from there.
        let mut flying: JoinSet<(usize, bool, Result<()>)> = JoinSet::new();
        let mut left = items.iter().cloned().enumerate();
        let mut outcome = Ok(());
        loop {
            while flying.len() < most {
                let Some((at, item)) = left.next() else { break };
                let (shop, finished, manifest) = (shop.clone(), finished.clone(), manifest.clone());
                flying.spawn(async move {
                    let entry = &manifest.objects[item.object];
                    let made = match limit {
                        None => shop.make(&item, entry).await,
                        Some(limit) => match tokio::time::timeout(limit, shop.make(&item, entry)).await {
                            Ok(made) => made,
                            Err(_) => return (at, true, Err(Error::Deadline { what: shop.place(entry), limit })),
                        },
                    };
                    // A committer that is gone has an error of its own to tell.
                    (at, false, made.and_then(|made| finished.send(made).map_err(|_| Error::Interrupted)))
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
                Some(Ok((_, false, Err(error)))) if is_fatal(&error) => {
                    outcome = Err(error);
                    break;
                }
                Some(Ok((at, _, Err(error)))) => progress.fail(&manifest.objects[items[at].object].key, error),
                Some(Err(join)) => {
                    outcome = Err(Error::bug(format!("an object's task ended: {join}")));
                    break;
                }
            }
        }
        flying.shutdown().await;
        drop(finished);
        let journal = committed.await.map_err(|join| Error::bug(format!("the committer ended: {join}")))?;
        // The committer's error comes first: it is why the senders met a closed door.
        match (journal, outcome) {
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            (Ok(journal), Ok(())) => Ok(journal),
        }
    }
}
