// SPDX-License-Identifier: Apache-2.0
//! Node status: a file in which the leader (the rank that stages) reports its state to the waiting ranks of its node.
//!
//! A record beside the journal holds the state (running, done or failed), the request and the launch id. The leader
//! also holds a lock on a file in the same folder as long as it lives. Waiting ranks ignore records of earlier runs:
//! `done` counts only for the same request and, if the launcher provides ids, for the same launch. `running` counts
//! only after the waiting rank has seen a heartbeat or the lock.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_types::{Error, Result, Stopwatch, unix_now};
use tokio::sync::oneshot;

use crate::atomic_replace::replace_own;
use crate::blocking::blocking;
use crate::dest_dir::{DestDir, open_own, open_to_read};
use crate::dest_lock::LaunchLock;
use crate::ofd_lock::{Mode, is_locked, try_lock};
use crate::status_record::{FOLDER, HEARTBEAT, Identity, LOOK, Process, Record, State, WireError, read_record};
use crate::summary::Summary;

/// If a waiting rank has seen the leader alive, and the leader's lock is then free for this long, the leader counts as
/// dead.
const DEAD_AFTER: Duration = Duration::from_secs(2);

/// Leader of a node: holds the stage's own folder in a destination, the node's lock, and the heartbeat task.
#[derive(Debug)]
pub(crate) struct Leader {
    folder: Arc<OwnedFd>,
    identity: Identity,
    process: Process,
    heartbeat: tokio::task::JoinHandle<()>,
    /// Dropping this sender ends the heartbeat task between two heartbeats.
    stop: oneshot::Sender<()>,
    _lock: File,
    _launch: LaunchLock,
}

impl Leader {
    /// Joins the launch, takes the node's lock and records that the stage runs. Returns `Busy` if another launch runs,
    /// or if another process holds the node's lock.
    pub async fn begin(dest_dir: &Arc<DestDir>, identity: Identity) -> Result<Self> {
        let folder = {
            let dest_dir = dest_dir.clone();
            Arc::new(blocking(move || dest_dir.make_folder(FOLDER.as_bytes())).await?)
        };
        let launch = LaunchLock::join(dest_dir, &folder, &identity).await?;
        let process = Process::current();
        let lock = {
            let (dest_dir, folder, identity, process) =
                (dest_dir.clone(), folder.clone(), identity.clone(), process.clone());
            blocking(move || {
                let io = |name: String| {
                    let dest_dir = &dest_dir;
                    move |error: std::io::Error| dest_dir.io_error(format!("{FOLDER}/{name}").as_bytes(), &error, 4096)
                };
                let lock = open_own(&folder, &identity.lock_name()).map_err(io(identity.lock_name()))?;
                if !try_lock(&lock, 0, Mode::Exclusive).map_err(io(identity.lock_name()))? {
                    let record = read_record(&folder, &identity.status_name());
                    let holder = record.map_or_else(|| identity.text(None), |record| record.text());
                    return Err(Error::Busy { place: dest_dir.path().display().to_string(), holder });
                }
                write_record(&folder, &identity, &process, State::Running, 0, Ok(None))
                    .map_err(io(identity.status_name()))?;
                Ok(lock)
            })
            .await?
        };
        let (stop, mut stopped) = oneshot::channel();
        let (beating, of, by) = (folder.clone(), identity.clone(), process.clone());
        let heartbeat = tokio::spawn(async move {
            for beat in 1u64.. {
                tokio::select! {
                    () = tokio::time::sleep(HEARTBEAT) => {}
                    _ = &mut stopped => return,
                }
                let (folder, identity, process) = (beating.clone(), of.clone(), by.clone());
                // If a heartbeat cannot be written, it counts as missed.
                let _ = tokio::task::spawn_blocking(move || {
                    write_record(&folder, &identity, &process, State::Running, beat, Ok(None))
                })
                .await;
            }
        });
        Ok(Self { folder, identity, process, heartbeat, stop, _lock: lock, _launch: launch })
    }

    /// The stage's own folder.
    pub fn folder(&self) -> &Arc<OwnedFd> {
        &self.folder
    }

    /// Records how the stage ended, then releases both locks.
    pub async fn end(self, result: &Result<Summary>) {
        let Self { folder, identity, process, heartbeat, stop, _lock, _launch } = self;
        drop(stop);
        // Wait for the heartbeat task instead of aborting it, because a write in progress would overwrite the final
        // record.
        let _ = heartbeat.await;
        let _ = match result {
            Ok(summary) => write_record(&folder, &identity, &process, State::Done, u64::MAX, Ok(Some(summary.clone()))),
            Err(error) => write_record(&folder, &identity, &process, State::Failed, u64::MAX, Err(error)),
        };
    }
}

fn write_record(
    folder: &Arc<OwnedFd>,
    identity: &Identity,
    process: &Process,
    state: State,
    beat: u64,
    ended: std::result::Result<Option<Summary>, &Error>,
) -> std::io::Result<()> {
    let at_s = unix_now().as_secs_f64();
    let (failure, error) =
        (ended.as_ref().err().map(|error| WireError::of(error)), ended.as_ref().err().map(ToString::to_string));
    let summary = ended.ok().flatten();
    let (identity, process) = (identity.clone(), Some(process.clone()));
    let record = Record { penstock_status: 1, state, identity, process, beat, at_s, error, failure, summary };
    replace_own(folder, &record.identity.status_name(), &serde_json::to_vec(&record)?)
}

/// Time limits of a rank that waits for its leader.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits {
    /// Maximum time until the leader's first sign of life.
    pub start: Duration,
    /// Maximum time between two signs of life of the leader.
    pub heartbeat: Duration,
}

impl Default for WaitLimits {
    fn default() -> Self {
        Self { start: Duration::from_secs(600), heartbeat: Duration::from_secs(120) }
    }
}

/// Waits until the node's leader has finished staging, and returns its summary. The destination may be missing at
/// first.
///
/// Returns `RankFailed` if the leader reports a failure, dies, or shows no sign of life within the limits.
pub async fn wait_for_leader(request: &super::StageRequest, limits: WaitLimits) -> Result<Summary> {
    let failed = |error: WireError| Error::RankFailed { rank: request.leader_rank, reason: error.message };
    leader_ends(request, limits).await?.map_err(failed)
}

/// Like [`wait_for_leader`], but returns the error of the leader unchanged.
pub async fn leader_ends(
    request: &super::StageRequest,
    limits: WaitLimits,
) -> Result<std::result::Result<Summary, WireError>> {
    let identity = request.identity();
    let folder = request.destination.join(FOLDER);
    let failed = |reason: String| Error::RankFailed { rank: request.leader_rank, reason };
    let began_s = unix_now().as_secs_f64();
    let (mut since_sign, mut seen_alive, mut last) = (Stopwatch::start(), false, None::<(u64, f64)>);
    let mut unlocked_since: Option<Stopwatch> = None;
    loop {
        // Open the folder again in each round, because the destination may not exist yet.
        let opened = File::open(&folder).ok().map(OwnedFd::from);
        let record = opened.as_ref().and_then(|folder| read_record(folder, &identity.status_name()));
        let record = record.filter(|record| identity.is_of(&record.identity));
        if let Some(record) = record {
            let launch_known = identity.launch.is_some() && identity.launch == record.identity.launch;
            match record.state {
                State::Done => {
                    return record.summary.map(Ok).ok_or_else(|| failed("the status record has no summary".to_owned()));
                }
                State::Failed if launch_known || seen_alive || record.at_s >= began_s - 5.0 => {
                    let silent = || failed(record.error.unwrap_or_else(|| "no reason was reported".to_owned()));
                    return record.failure.map(Err).ok_or_else(silent);
                }
                State::Failed => {}
                State::Running => {
                    let sign = record.sign();
                    let lock = opened.as_ref().and_then(|folder| open_to_read(folder, &identity.lock_name()).ok());
                    let locked = lock.is_some_and(|file| is_locked(&file, 0).unwrap_or(false));
                    if locked || last.is_some_and(|last| last != sign) {
                        seen_alive = true;
                    }
                    if last != Some(sign) {
                        last = Some(sign);
                        if seen_alive {
                            since_sign = Stopwatch::start();
                        }
                    }
                    if locked {
                        unlocked_since = None;
                    } else if seen_alive {
                        let since = *unlocked_since.get_or_insert_with(Stopwatch::start);
                        if since.elapsed() > DEAD_AFTER {
                            return Err(failed(
                                "the leader process ended without a result (its lock is free)".to_owned(),
                            ));
                        }
                    }
                }
            }
        }
        let limit = if seen_alive { limits.heartbeat } else { limits.start };
        if since_sign.elapsed() > limit {
            let what = if seen_alive { "no further heartbeat" } else { "no heartbeat" };
            return Err(failed(format!("{what} in {} for {:.0} s", folder.display(), limit.as_secs_f64())));
        }
        tokio::time::sleep(LOOK).await;
    }
}
