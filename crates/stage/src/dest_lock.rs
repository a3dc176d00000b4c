// SPDX-License-Identifier: Apache-2.0
//! Launch lock of a whole destination. A launch is one stage on one or several nodes, which share the lock. While any
//! of these nodes runs, another launch or a repair is rejected.
//!
//! `.penstock/stage/launch` holds the current launch as JSON, and has two byte-range locks. A process locks byte 0
//! while it joins, and byte 1 while it runs (shared for a stage, exclusive for a repair). The first process of a launch
//! writes the JSON while it holds byte 1 exclusively. The JSON is therefore valid only while some process holds byte 1.
//! A launch with a different number of nodes is rejected, because two nodes would write the same files: the shares of
//! the two launches would overlap.
//!
//! The kernel releases both locks when a process dies. Some file systems do not share locks between machines (Lustre
//! mounted with `localflock`, NFS with `local_lock`). On these file systems, the status records replace the locks: each
//! node rewrites its record every five seconds, and `beating` checks whether the records change.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use penstock_store::owned::{self, Proof};
use penstock_types::{Error, Result, Stopwatch};
use serde::{Deserialize, Serialize};

use crate::blocking::blocking;
use crate::dest_dir::{DestDir, names_in, open_own, open_to_read};
use crate::ofd_lock::{Mode, is_locked, try_lock, unlock};
use crate::status_record::{FOLDER, HEARTBEAT, Identity, LOOK, Process, Record, read_record};

const NAME: &str = "launch";
const JOINING: u8 = 0;
const RUNNING: u8 = 1;
/// Maximum time to wait while other processes join. Joining takes milliseconds.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10);
/// If a record of another machine does not change for this long, the process that wrote it counts as dead.
const BEAT_TIMEOUT: Duration = Duration::from_secs(2 * HEARTBEAT.as_secs() + 2);
/// Maximum time for which a client of a network file system serves an outdated file. FUSE's default is 1 s.
const CACHE_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum size of the JSON in the launch file. Penstock does not write a larger file.
const MAX_CONTENT: usize = 1 << 20;

/// JSON in the launch file: identifies the process that locked byte 1 first.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    penstock_launch: u32,
    /// `None` if the process is a repair.
    identity: Option<Identity>,
    process: Process,
}

/// Lock that permits writes to a destination. Dropping the value releases the lock.
#[derive(Debug)]
pub(crate) struct LaunchLock {
    _file: File,
}

impl LaunchLock {
    /// Joins the launch of `identity`, or starts this launch. Returns `Busy` while another launch runs.
    pub async fn join(dest_dir: &Arc<DestDir>, folder: &Arc<OwnedFd>, identity: &Identity) -> Result<Self> {
        Self::take(dest_dir, folder, Some(identity.clone())).await
    }

    /// Locks the destination for a repair. Returns `Busy` while a launch or another repair runs.
    pub async fn repair(dest_dir: &Arc<DestDir>, folder: &Arc<OwnedFd>) -> Result<Self> {
        Self::take(dest_dir, folder, None).await
    }

    async fn take(dest_dir: &Arc<DestDir>, folder: &Arc<OwnedFd>, identity: Option<Identity>) -> Result<Self> {
        let process = Process::current();
        let launch = {
            let (dest_dir, folder, identity, process) =
                (dest_dir.clone(), folder.clone(), identity.clone(), process.clone());
            blocking(move || Self::lock(&dest_dir, &folder, identity.as_ref(), &process)).await?
        };
        beating(dest_dir, folder, identity.as_ref(), &process, BEAT_TIMEOUT).await?;
        Ok(launch)
    }

    fn lock(dest_dir: &DestDir, folder: &OwnedFd, identity: Option<&Identity>, process: &Process) -> Result<Self> {
        let io = |error: std::io::Error| dest_dir.io_error(format!("{FOLDER}/{NAME}").as_bytes(), &error, 4096);
        let busy = |holder: String| Error::Busy { place: dest_dir.path().display().to_string(), holder };
        let file = open_own(folder, NAME).map_err(io)?;
        let clock = Stopwatch::start();
        while !try_lock(&file, JOINING, Mode::Exclusive).map_err(io)? {
            if clock.elapsed() > JOIN_TIMEOUT {
                return Err(busy(format!(
                    "another penstock process has held the start lock for {} s",
                    JOIN_TIMEOUT.as_secs()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if try_lock(&file, RUNNING, Mode::Exclusive).map_err(io)? {
            let content = Content { penstock_launch: 1, identity: identity.cloned(), process: process.clone() };
            write(&file, &content).map_err(io)?;
            if identity.is_some() && !try_lock(&file, RUNNING, Mode::Shared).map_err(io)? {
                return Err(Error::bug("a lock was lost while it was converted"));
            }
        } else {
            let is_shared = identity.is_some() && try_lock(&file, RUNNING, Mode::Shared).map_err(io)?;
            let is_ours = |content: &Content| {
                is_shared
                    && content.identity.as_ref().zip(identity).is_some_and(|(theirs, ours)| theirs.is_launch_of(ours))
            };
            let content = read_settled(&file, process, is_ours);
            if !content.as_ref().is_some_and(is_ours) {
                return Err(busy(holder(folder, content)));
            }
        }
        unlock(&file, JOINING).map_err(io)?;
        Ok(Self { _file: file })
    }
}

fn write(file: &File, content: &Content) -> std::io::Result<()> {
    owned::set_len(file, 0, Proof::Covered)?;
    file.write_all_at(&serde_json::to_vec(content)?, 0)?;
    file.sync_data()
}

fn read(file: &File) -> Option<Content> {
    let mut bytes = vec![0; usize::try_from(file.metadata().ok()?.len()).ok()?.min(MAX_CONTENT)];
    file.read_exact_at(&mut bytes, 0).ok()?;
    serde_json::from_slice(&bytes).ok().filter(|content: &Content| content.penstock_launch == 1)
}

/// Reads the launch file until its content is not outdated. The other process wrote it before it released byte 0, but on
/// a network file system this machine may still serve the earlier file, which is empty or has the previous launch.
fn read_settled(file: &File, process: &Process, is_ours: impl Fn(&Content) -> bool) -> Option<Content> {
    let clock = Stopwatch::start();
    loop {
        let content = read(file);
        let is_settled =
            content.as_ref().is_some_and(|content| is_ours(content) || content.process.is_on_machine_of(process));
        if is_settled || clock.elapsed() > CACHE_TIMEOUT {
            return content;
        }
        std::thread::sleep(LOOK);
    }
}

/// Status records with the state `running`.
fn running(folder: &OwnedFd) -> Vec<Record> {
    let names = names_in(folder).unwrap_or_default();
    let names = names.iter().filter(|name| name.starts_with("status-") && name.ends_with(".json"));
    names.filter_map(|name| read_record(folder, name)).filter(Record::is_running).collect()
}

/// Describes the process that holds the lock, for an error. Other nodes may still run although the process that started
/// the launch has ended.
fn holder(folder: &OwnedFd, content: Option<Content>) -> String {
    let alive = running(folder).into_iter().find(|record| {
        open_to_read(folder, &record.identity.lock_name()).and_then(|file| is_locked(&file, 0)).unwrap_or(false)
    });
    match (alive, content) {
        (Some(record), _) => record.text(),
        (None, Some(Content { identity: None, process, .. })) => {
            format!("penstock verify --repair is writing to it ({})", process.text())
        }
        (None, Some(Content { identity: Some(identity), process, .. })) => identity.text(Some(&process)),
        (None, None) => "another penstock process is writing to it".to_owned(),
    }
}

/// Returns `Busy` if a conflicting process on another machine is alive although its lock is not visible here. Waits
/// only if a record still has the state `running`, because the process of this record may be alive or killed.
async fn beating(
    dest_dir: &Arc<DestDir>,
    folder: &Arc<OwnedFd>,
    identity: Option<&Identity>,
    process: &Process,
    timeout: Duration,
) -> Result<()> {
    let look = || {
        let folder = folder.clone();
        blocking(move || Ok(running(&folder)))
    };
    let excludes = |record: &Record| {
        let is_sharing =
            identity.is_some_and(|ours| ours.is_launch_of(&record.identity) && ours.node != record.identity.node);
        !is_sharing && !record.process.as_ref().is_some_and(|theirs| theirs.is_on_machine_of(process))
    };
    let mut doubtful = look().await?;
    doubtful.retain(excludes);
    let clock = Stopwatch::start();
    while !doubtful.is_empty() && clock.elapsed() < timeout {
        tokio::time::sleep(LOOK).await;
        let now = look().await?;
        for before in &doubtful {
            let same = |after: &&Record| after.identity.status_name() == before.identity.status_name();
            if let Some(after) = now.iter().find(same).filter(|after| after.sign() != before.sign()) {
                return Err(Error::Busy { place: dest_dir.path().display().to_string(), holder: after.text() });
            }
        }
        doubtful.retain(|before| now.iter().any(|after| after.identity.status_name() == before.identity.status_name()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic_replace::replace_own;

    fn identity(node: u32, nodes: u32, launch: Option<&str>) -> Identity {
        Identity { request: "s3://a/".to_owned(), launch: launch.map(str::to_owned), node, nodes }
    }

    fn place(inside: &tempfile::TempDir) -> (Arc<DestDir>, Arc<OwnedFd>) {
        let dest_dir = Arc::new(DestDir::open(inside.path()).unwrap());
        let folder = Arc::new(dest_dir.make_folder(FOLDER.as_bytes()).unwrap());
        (dest_dir, folder)
    }

    fn busy(result: Result<impl std::fmt::Debug>) -> String {
        match result.unwrap_err() {
            Error::Busy { holder, .. } => holder,
            other => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn launch_is_shared_by_its_nodes_and_refuses_all_others() {
        let inside = tempfile::tempdir().unwrap();
        let (dest_dir, folder) = place(&inside);
        let first = LaunchLock::join(&dest_dir, &folder, &identity(0, 2, Some("job-1"))).await.unwrap();
        // The second process is a restarted node. The third process is a node that was started by hand, so it has no
        // launch id.
        let second = LaunchLock::join(&dest_dir, &folder, &identity(1, 2, Some("job-1"))).await.unwrap();
        drop(first);
        let again = LaunchLock::join(&dest_dir, &folder, &identity(0, 2, None)).await.unwrap();
        for other in [
            identity(0, 1, Some("job-1")),
            identity(0, 2, Some("job-2")),
            Identity { request: "s3://b/".to_owned(), ..identity(0, 2, Some("job-1")) },
        ] {
            let holder = busy(LaunchLock::join(&dest_dir, &folder, &other).await);
            let pid = std::process::id();
            assert!(
                holder.contains("of 2 is writing to it (launch job-1, process ") && holder.contains(&pid.to_string()),
                "{holder}"
            );
        }
        assert!(busy(LaunchLock::repair(&dest_dir, &folder).await).contains("stage"));
        drop((second, again));
        let repair = LaunchLock::repair(&dest_dir, &folder).await.unwrap();
        assert!(busy(LaunchLock::join(&dest_dir, &folder, &identity(0, 1, None)).await).contains("verify --repair"));
        assert!(busy(LaunchLock::repair(&dest_dir, &folder).await).contains("verify --repair"));
        drop(repair);
        LaunchLock::join(&dest_dir, &folder, &identity(0, 1, None)).await.unwrap();
    }

    #[tokio::test]
    async fn launch_file_that_is_served_late_is_read_again() {
        let inside = tempfile::tempdir().unwrap();
        let (dest_dir, folder) = place(&inside);
        let [ours, theirs] = [0, 1].map(|node| identity(node, 2, Some("job-1")));
        let first = LaunchLock::join(&dest_dir, &folder, &theirs).await.unwrap();
        let content = std::fs::read(inside.path().join(FOLDER).join(NAME)).unwrap();
        owned::set_len(&first._file, 0, Proof::Made).unwrap();
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            first._file.write_all_at(&content, 0).unwrap();
            first
        });
        LaunchLock::join(&dest_dir, &folder, &ours).await.unwrap();
        drop(late.join().unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn launch_heeds_a_machine_whose_locks_are_not_seen_while_its_record_changes() {
        let inside = tempfile::tempdir().unwrap();
        let (dest_dir, folder) = place(&inside);
        let process = Process { host: "far".to_owned(), boot: "another".to_owned(), pid: 7, since_s: 0.0 };
        let beat = |beat: u64| {
            let record = serde_json::json!({
                "penstock_status": 1, "state": "running", "identity": identity(1, 2, None), "process": process,
                "beat": beat, "at_s": beat as f64,
            });
            replace_own(&folder, "status-1-of-2.json", record.to_string().as_bytes()).unwrap();
        };
        let (ours, limit) = (Process::current(), Duration::from_millis(600));
        let look = async |identity: Identity| beating(&dest_dir, &folder, Some(&identity), &ours, limit).await;
        beat(1);
        // The record does not change, so its process was killed.
        look(identity(0, 1, None)).await.unwrap();
        // The record belongs to the same launch.
        look(identity(0, 2, None)).await.unwrap();
        let (done, beats) = (std::sync::atomic::AtomicBool::new(false), &beat);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for at in 2.. {
                    beats(at);
                    std::thread::sleep(Duration::from_millis(20));
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let handle = tokio::runtime::Handle::current();
            let refused = |identity| tokio::task::block_in_place(|| handle.block_on(look(identity)));
            let holders = [identity(0, 1, None), identity(1, 2, None)].map(|identity| busy(refused(identity)));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(
                holders.iter().all(|holder| holder.contains("node 1 of 2 is writing to it (process 7 on far")),
                "{holders:?}"
            );
        });
    }
}
