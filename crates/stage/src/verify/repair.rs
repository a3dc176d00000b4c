// SPDX-License-Identifier: Apache-2.0
//! Repairs a staged folder: fetches wrong files again, from the source and in the version from which they were staged.
//!
//! The new bytes must equal the recorded bytes. If the source object is missing or has changed, the file is not touched
//! and an error is reported.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_store::{AdaptiveLimit, Rates};
use penstock_types::{Deadline, Error, Key, Metrics, Result};
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::dest_dir::DestDir;
use crate::dest_lock::LaunchLock;
use crate::journal::Journal;
use crate::opened_source::Source;
use crate::plan::{Item, StageOptions};
use crate::progress::Progress;
use crate::status_record::FOLDER;
use crate::to_folder::concurrent_downloads::Workers;
use crate::to_folder::manifests::{Record, amend};
use crate::verify::VerifyRequest;
use penstock_dataset::manifest::{Entry, Manifest};

/// Reason why an object is not fetched, although its record names a source.
pub(crate) const NOT_RECOGNISABLE: &str =
    "its record lacks the CRC-32C of the stored bytes, so the source cannot be verified";

/// Repairs as many files as possible. If a file cannot be repaired, returns the reason, by the file's index in
/// `records`. Returns an error if no repair is possible: another stage writes to the folder, or the user interrupted
/// the repair.
#[expect(clippy::too_many_arguments, reason = "one caller; a struct would only rename the list")]
pub(crate) async fn repair(
    request: &VerifyRequest,
    dest_dir: &Arc<DestDir>,
    records: &Arc<Vec<Record>>,
    bad: &[usize],
    deadline: Deadline,
    progress: &Arc<Progress>,
    metrics: &Arc<Metrics>,
    cancelled: &watch::Receiver<bool>,
) -> Result<HashMap<usize, String>> {
    let mut why: HashMap<usize, String> = HashMap::new();
    let mut groups: BTreeMap<(&str, &str, bool, Option<&str>), Vec<usize>> = BTreeMap::new();
    for &at in bad {
        match &records[at] {
            Record { origin: Some(origin), .. } if !origin.is_recognisable() => {
                why.insert(at, NOT_RECOGNISABLE.to_owned());
            }
            Record { source: Some(source), origin: Some(origin), journal, decompress, .. } => {
                groups.entry((source, journal, *decompress, origin.transform.as_deref())).or_default().push(at);
            }
            _ => {
                why.insert(at, "its source is not recorded".to_owned());
            }
        }
    }
    let folder = {
        let dest_dir = dest_dir.clone();
        Arc::new(blocking(move || dest_dir.make_folder(FOLDER.as_bytes())).await?)
    };
    let _launch = LaunchLock::repair(dest_dir, &folder).await?;
    for ((source, journal, decompress, transform), group) in groups {
        let own = Arc::new(Progress::default());
        let mut options = StageOptions {
            decompress,
            overwrite: true, // the user requested the repair of wrong files
            concurrency: request.concurrency,
            memory: request.memory,
            ..StageOptions::default()
        };
        if let Err(error) = options.apply_transform(transform) {
            why.extend(group.iter().map(|&at| (at, error.to_string())));
            continue;
        }
        let (cores, settings) = (request.cores, &request.settings);
        let outcome = match Source::again(source, settings, metrics.clone()) {
            Err(error) => Err(error),
            Ok(source) => {
                let fetch = Fetch { source, folder: &folder, journal, options, cores, deadline };
                fetch.work(dest_dir, records, &group, own.clone(), metrics.clone(), cancelled).await
            }
        };
        Progress::add(&progress.bytes_in, own.snapshot().bytes_in);
        let failed: HashMap<String, String> =
            own.failures().into_iter().map(|(failure, _)| (failure.key, failure.error)).collect();
        for &at in &group {
            let Some(origin) = &records[at].origin else { continue };
            let reason = failed.get(&origin.key.to_string()).cloned();
            let reason = reason.or_else(|| outcome.as_ref().err().map(ToString::to_string));
            why.extend(reason.map(|reason| (at, reason)));
        }
        match outcome {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            Err(_) => {} // affects only this source: continue with the other sources
            Ok(journal) => {
                let (dest_dir, records) = (dest_dir.clone(), records.clone());
                let fetched: HashSet<Key> = group.iter().map(|&at| records[at].target.clone()).collect();
                blocking(move || {
                    amend(&dest_dir, |entry| match journal.line(&entry.key).filter(|_| fetched.contains(&entry.key)) {
                        Some(line) if line.digests == entry.digests => {
                            entry.modified_s = Some(line.mtime_ns as f64 / 1e9);
                            true
                        }
                        _ => false,
                    })
                })
                .await?;
            }
        }
    }
    Ok(why)
}

/// Files to fetch that share one source and one journal.
struct Fetch<'a> {
    source: Source,
    folder: &'a Arc<OwnedFd>,
    journal: &'a str,
    options: StageOptions,
    cores: usize,
    deadline: Deadline,
}

impl Fetch<'_> {
    async fn work(
        self,
        dest_dir: &Arc<DestDir>,
        records: &[Record],
        group: &[usize],
        progress: Arc<Progress>,
        metrics: Arc<Metrics>,
        cancelled: &watch::Receiver<bool>,
    ) -> Result<Journal> {
        let Self { source, folder, journal, options, cores, deadline } = self;
        let (mut objects, mut items) = (Vec::new(), Vec::new());
        for record in group.iter().map(|&at| &records[at]) {
            let Some(origin) = &record.origin else { continue };
            let (decode, codec_source) = (origin.decoded, origin.codec_source);
            items.push(Item { object: objects.len(), target: record.target.clone(), decode, codec_source });
            objects.push(Entry {
                version: origin.version.clone(),
                modified_s: record.modified_s,
                // The new bytes must match the digests that the stage recorded.
                digests: origin.digests.clone(),
                encoding: origin.encoding.clone(),
                ..Entry::new(origin.key.clone(), origin.size)
            });
        }
        // `Manifest::new` would sort the objects, but the items refer to them by index.
        let manifest = Manifest { objects, ..Manifest::new(source.url.clone(), Vec::new()) };
        let need = group.iter().map(|&at| records[at].size).sum();
        let (parts, journal) = {
            let (dest_dir, folder, name, url) =
                (dest_dir.clone(), folder.clone(), journal.to_owned(), source.url.clone());
            blocking(move || {
                let free = dest_dir.free_bytes()?;
                if need > free {
                    return Err(Error::NoSpace { place: dest_dir.path().display().to_string(), need, free });
                }
                let journal = Journal::open(&folder, &name, &url, &dest_dir.place(FOLDER.as_bytes()))?;
                Ok((Arc::new(dest_dir.make_folder(format!("{FOLDER}/parts").as_bytes())?), journal))
            })
            .await?
        };
        let dest_dir = dest_dir.clone();
        let rates = Rates { in_flight: options.concurrency, ..Rates::default() };
        let source = source.governed(&AdaptiveLimit::new(rates, metrics));
        let workers = Workers { source, dest_dir, parts, journal, options, cores, progress, deadline };
        workers.work(&Arc::new(manifest), &items, cancelled.clone()).await
    }
}
