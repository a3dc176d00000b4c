// SPDX-License-Identifier: Apache-2.0
//! Verifies a staged folder: reads its files from disk, bypassing the page cache, and compares them with the records of
//! the stage.
//!
//! Reports every wrong file. Also lists files that no stage wrote, but does not count them as errors. Only `repair`
//! writes files.

pub(crate) mod repair;
pub(crate) mod store;

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_store::StoreSettings;
use penstock_types::{Deadline, Error, Key, Metric, Metrics, Result, Stopwatch, Url, lock};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::blocking::blocking;
use crate::dest_dir::{DestDir, state_of_file};
use crate::digests::ContentDigest;
use crate::job::Job;
use crate::progress::Progress;
use crate::status_record::FOLDER;
use crate::to_folder::manifests::{Inventory, Record, Unfinished, read};
use penstock_dataset::key_filter::KeyFilter;
use penstock_dataset::manifest::is_own;

/// Size of one read in bytes. A worker thread holds one buffer of this size.
const IO_BUFFER_BYTES: usize = 1 << 20;
/// Maximum number of unexpected files that are listed. The count includes all unexpected files.
const MAX_UNEXPECTED_LISTED: usize = 1_000;

/// Input of a verification, validated once.
#[derive(Debug, Clone)]
pub struct VerifyRequest {
    /// The staged folder. If `remote` is set, the local folder for a repair's journal.
    pub destination: PathBuf,
    /// Store that holds the staged copy. The store replaces the folder.
    pub remote: Option<Url>,
    /// Compare only the metadata that the store reports, without reading the objects.
    pub quick: bool,
    /// Filter that selects the files to verify, by their paths relative to the folder.
    pub select: KeyFilter,
    /// Fetch wrong files again.
    pub repair: bool,
    /// Settings for access to the source.
    pub settings: StoreSettings,
    /// Wall-clock limit of the whole verification.
    pub deadline: Option<Duration>,
    /// Number of threads that read.
    pub cores: usize,
    /// Maximum requests in flight during a repair.
    pub concurrency: usize,
    /// Maximum bytes in flight during a repair.
    pub memory: u64,
}

/// A file that differs from the record that a stage made of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailedFile {
    /// Path of the file, relative to the folder, with control characters escaped.
    pub file: String,
    /// `missing`, `size`, `digest`, `not-a-file` or `unreadable`.
    pub problem: String,
    /// The difference, in one sentence.
    pub detail: String,
    /// Why the file could not be repaired, if a repair was attempted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair_error: Option<String>,
}

/// Result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// Version of this JSON document.
    pub schema_version: u32,
    /// The folder or store that was verified.
    pub destination: String,
    /// Files that must exist.
    pub objects: u64,
    /// Total size of the files that must exist, in bytes.
    pub bytes: u64,
    /// Files that match their record.
    pub ok: u64,
    /// Files that do not match their record.
    pub failed: Vec<FailedFile>,
    /// Files that were wrong, that were fetched again, and that are now correct.
    pub repaired: Vec<String>,
    /// Files that no stage recorded; at most the first 1,000.
    pub unexpected: Vec<String>,
    /// Number of files that no stage recorded.
    pub unexpected_total: u64,
    /// Shares that the last stage into the folder did not complete. The existing files may be correct, but some objects
    /// are missing.
    #[serde(default)]
    pub unfinished: Vec<Unfinished>,
    /// Bytes received for repairs.
    pub bytes_in: u64,
    /// Requests sent for repairs.
    pub requests: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// A running verification.
pub type VerifyJob = Job<Verified>;

impl VerifyJob {
    /// Starts the verification on the runtime and returns immediately.
    pub fn start(request: VerifyRequest, runtime: &Handle) -> Self {
        Self::spawn(runtime, |progress, metrics, cancelled| run(request, progress, metrics, cancelled))
    }
}

async fn run(
    request: VerifyRequest,
    progress: Arc<Progress>,
    metrics: Arc<Metrics>,
    cancelled: watch::Receiver<bool>,
) -> Result<Verified> {
    if let Some(url) = request.remote.clone() {
        return crate::verify::store::run(&request, &url, &progress, &metrics, cancelled).await;
    }
    let clock = Stopwatch::start();
    let deadline = request.deadline.map_or(Deadline::NEVER, Deadline::within);
    let (path, select) = (request.destination.clone(), request.select.clone());
    let (dest_dir, records, unfinished) = blocking(move || {
        let dest_dir = DestDir::open_existing(&path)?;
        match read(&dest_dir)? {
            Some(Inventory { records, unfinished }) => {
                let place = path.display().to_string();
                Ok((Arc::new(dest_dir), only(&select, records, &place, |record| &record.target)?, unfinished))
            }
            // The folder exists, but contains no records of a stage.
            None => Err(Error::NotFound { place: dest_dir.place(FOLDER.as_bytes()) }),
        }
    })
    .await?;
    let records = Arc::new(records);
    let bytes = records.iter().map(|record| record.size).sum();
    Progress::add(&progress.objects, records.len() as u64);
    Progress::add(&progress.bytes, bytes);

    let everything: Vec<usize> = (0..records.len()).collect();
    let mut wrong =
        check_all(&dest_dir, &records, everything, request.cores, deadline, &progress, cancelled.clone()).await?;
    let (unexpected, unexpected_total) = {
        let (dest_dir, records, select) = (dest_dir.clone(), records.clone(), request.select.clone());
        blocking(move || unexpected(&dest_dir, &records, &select)).await?
    };
    let mut repaired = Vec::new();
    if request.repair && !wrong.is_empty() {
        let bad: Vec<usize> = wrong.iter().map(|(at, _)| *at).collect();
        let why = crate::verify::repair::repair(
            &request, &dest_dir, &records, &bad, deadline, &progress, &metrics, &cancelled,
        )
        .await?;
        // Only another read shows whether the files are correct after the repair.
        let again = Arc::new(Progress::default());
        wrong = check_all(&dest_dir, &records, bad.clone(), request.cores, deadline, &again, cancelled).await?;
        let still: HashSet<usize> = wrong.iter().map(|(at, _)| *at).collect();
        for (at, wrong) in &mut wrong {
            wrong.repair_error = why.get(at).cloned();
        }
        repaired = bad.iter().filter(|at| !still.contains(at)).map(|&at| records[at].target.to_string()).collect();
    }
    Ok(Verified {
        schema_version: 2,
        destination: request.destination.display().to_string(),
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

/// Checks the files of the records, with one thread per core. Returns the wrong files in the order of the records.
async fn check_all(
    dest_dir: &Arc<DestDir>,
    records: &Arc<Vec<Record>>,
    which: Vec<usize>,
    cores: usize,
    deadline: Deadline,
    progress: &Arc<Progress>,
    mut cancelled: watch::Receiver<bool>,
) -> Result<Vec<(usize, FailedFile)>> {
    let (which, next) = (Arc::new(which), Arc::new(AtomicUsize::new(0)));
    let (stop, found) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let workers: Vec<_> = (0..cores.max(1))
        .map(|_| {
            let (dest_dir, records, which, next) = (dest_dir.clone(), records.clone(), which.clone(), next.clone());
            let (stop, found, progress) = (stop.clone(), found.clone(), progress.clone());
            blocking(move || {
                let mut buffer = vec![0; IO_BUFFER_BYTES];
                while let Some(&at) = which.get(next.fetch_add(1, Ordering::Relaxed)) {
                    deadline.check("penstock verify")?;
                    let record = &records[at];
                    if let Some((problem, says)) = check(&dest_dir, record, &mut buffer, &stop, &progress)? {
                        let wrong = FailedFile {
                            file: record.target.to_string(),
                            problem: problem.to_owned(),
                            detail: says,
                            repair_error: None,
                        };
                        Progress::add(&progress.wrong, 1);
                        lock(&found).push((at, wrong));
                    }
                    Progress::add(&progress.done, 1);
                }
                Ok(())
            })
        })
        .collect();
    let all = futures::future::try_join_all(workers);
    tokio::select! {
        ended = all => ended.map(|_| ())?,
        _ = cancelled.wait_for(|stop| *stop) => {
            stop.store(true, Ordering::Relaxed);
            return Err(Error::Interrupted);
        }
    }
    let mut found = std::mem::take(&mut *lock(&found));
    found.sort_by_key(|(at, _)| *at);
    Ok(found)
}

/// Checks one file. Returns `None` if the file is correct, otherwise the kind of damage and a description. An error
/// ends the verification.
fn check(
    dest_dir: &DestDir,
    record: &Record,
    buffer: &mut [u8],
    stop: &AtomicBool,
    progress: &Progress,
) -> Result<Option<(&'static str, String)>> {
    let target = record.target.as_bytes();
    let file = match dest_dir.open_file(target) {
        Ok(file) => file,
        Err(Error::NotFound { .. }) => return Ok(Some(("missing", "the file does not exist".to_owned()))),
        Err(Error::KeyRefused { reason, .. }) => return Ok(Some(("not-a-file", reason))),
        Err(error) => return Ok(Some(("unreadable", error.to_string()))),
    };
    let size = match state_of_file(&file) {
        Ok(state) => state.size,
        Err(error) => return Ok(Some(("unreadable", error.to_string()))),
    };
    if size != record.size {
        return Ok(Some(("size", format!("the file has {size} bytes, but had {} when it was staged", record.size))));
    }
    let seal = match seal_of(&file, buffer, stop, progress)? {
        Ok(seal) => seal,
        Err(error) => return Ok(Some(("unreadable", error.to_string()))),
    };
    if seal.bytes != record.size {
        return Ok(Some(("size", format!("the file ends after {} of {} bytes", seal.bytes, record.size))));
    }
    let have = seal.digests();
    for want in &record.digests {
        if let Some(have) = have.iter().find(|have| have.algorithm == want.algorithm && *have != want) {
            return Ok(Some(("digest", format!("the digest is {have}, but was {want} when the file was staged"))));
        }
    }
    Ok(None)
}

/// Evicts the file's pages from the page cache, then computes the digests of the bytes on disk.
fn seal_of(
    file: &File,
    buffer: &mut [u8],
    stop: &AtomicBool,
    progress: &Progress,
) -> Result<std::io::Result<ContentDigest>> {
    // Dirty pages stay in memory, because they are not yet on disk. On a file system that ignores this advice, the
    // bytes may be read from memory.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential);
    let (mut seal, mut file) = (ContentDigest::default(), file);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        match file.read(buffer) {
            Ok(0) => return Ok(Ok(seal)),
            Ok(read) => {
                seal.update(&buffer[..read]);
                Progress::add(&progress.done_bytes, read as u64);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// Returns the selected records. Returns an error if records exist, but none of them is selected.
pub(crate) fn only<R>(select: &KeyFilter, mut records: Vec<R>, place: &str, target: fn(&R) -> &Key) -> Result<Vec<R>> {
    let is_empty = records.is_empty();
    records.retain(|record| select.takes(target(record)));
    match records.is_empty() && !is_empty {
        true => Err(select.none_of(format_args!("any file of {place}"))),
        false => Ok(records),
    }
}

/// Returns the selected files in the folder that have no record: the names of at most [`MAX_UNEXPECTED_LISTED`] files,
/// and the number of all such files. Does not follow links; treats an unreadable folder as empty.
fn unexpected(dest_dir: &DestDir, records: &[Record], select: &KeyFilter) -> Result<(Vec<String>, u64)> {
    let root = dest_dir.path();
    let (mut named, mut count, mut folders) = (Vec::new(), 0, vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(std::result::Result::ok) {
            let path = entry.path();
            let Ok(relative) = path.strip_prefix(root) else { continue };
            let key = Key::new(relative.as_os_str().as_bytes().to_vec());
            if is_own(&key) {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if select.takes(&key) && records.binary_search_by(|record| record.target.cmp(&key)).is_err() {
                count += 1;
                if named.len() < MAX_UNEXPECTED_LISTED {
                    named.push(key.to_string());
                }
            }
        }
    }
    named.sort();
    Ok((named, count))
}
