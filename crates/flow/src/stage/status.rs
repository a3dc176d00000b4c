// SPDX-License-Identifier: Apache-2.0
//! What the rank that stages tells the node's other ranks, and how they wait for it.
//!
//! A record beside the journal says running, done or failed, for which request and which launch; a lock beside it is held
//! while the leader lives. Yesterday's record does not count: `done` only for the same request (and launch, where the
//! launcher names one), `running` only once it is seen to beat or to hold its lock.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use penstock_types::{Error, Result, Stopwatch, unix_now};
use serde::{Deserialize, Serialize};

use super::jail::{Jail, is_locked, open_own, try_lock};
use super::request::Summary;

/// How often the leader says that it lives.
const BEAT: Duration = Duration::from_secs(5);
/// How often a waiting rank looks.
const LOOK: Duration = Duration::from_millis(200);
/// A leader that was seen alive and whose lock is free for this long is dead.
const DEAD_AFTER: Duration = Duration::from_secs(2);
/// A record beyond this is none of ours.
const MAX_RECORD: u64 = 1 << 30;
/// Where the records lie, below the destination.
pub(crate) const FOLDER: &str = ".penstock/stage";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Running,
    Done,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    penstock_status: u32,
    state: State,
    identity: Identity,
    beat: u64,
    /// When it was written, seconds since the Unix epoch.
    at_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Told>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summary: Option<Summary>,
}

/// The leader's error, for ranks that shall raise the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// [`Error::code`].
    pub code: String,
    /// What happened.
    pub message: String,
    /// [`Error::hint`].
    pub hint: Option<String>,
}

impl Told {
    fn of(error: &Error) -> Self {
        Self { code: error.code().to_owned(), message: error.to_string(), hint: error.hint() }
    }
}

/// What makes two ranks mean the same stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Source and options.
    pub request: String,
    /// The launch, where the launcher names it.
    pub launch: Option<String>,
    pub node: u32,
    pub nodes: u32,
}

impl Identity {
    fn status_name(&self) -> String {
        format!("status-{}-of-{}.json", self.node, self.nodes)
    }

    fn lock_name(&self) -> String {
        format!("lock-{}", self.node)
    }

    /// The record speaks of this stage. A launch that one side cannot name says nothing.
    fn is_of(&self, other: &Identity) -> bool {
        let same_launch = self.launch.is_none() || other.launch.is_none() || self.launch == other.launch;
        self.request == other.request && self.node == other.node && self.nodes == other.nodes && same_launch
    }
}

/// The stage's own folder below a destination, locked by this process for this node, with a heart that beats.
#[derive(Debug)]
pub(crate) struct Leader {
    folder: Arc<OwnedFd>,
    identity: Identity,
    heart: tokio::task::JoinHandle<()>,
    _lock: std::fs::File,
}

impl Leader {
    /// Takes the node's lock and says that the stage runs. `Precondition` where another process holds it.
    pub fn begin(jail: &Jail, identity: Identity) -> Result<Self> {
        let folder = Arc::new(jail.make_folder(FOLDER.as_bytes())?);
        let io = |error: std::io::Error| jail.io_error(FOLDER.as_bytes(), &error, 4096);
        let lock = open_own(&folder, &identity.lock_name()).map_err(io)?;
        if !try_lock(&lock).map_err(io)? {
            return Err(Error::Precondition {
                place: jail.path().display().to_string(),
                reason: format!("another penstock stage of node {} is writing there now", identity.node),
            });
        }
        write_record(&folder, &identity, State::Running, 0, Ok(None)).map_err(io)?;
        let (beating, of) = (folder.clone(), identity.clone());
        let heart = tokio::spawn(async move {
            for beat in 1u64.. {
                tokio::time::sleep(BEAT).await;
                let (folder, identity) = (beating.clone(), of.clone());
                // A beat that cannot be written is one that is missed.
                let _ = tokio::task::spawn_blocking(move || {
                    write_record(&folder, &identity, State::Running, beat, Ok(None))
                })
                .await;
            }
        });
        Ok(Self { folder, identity, heart, _lock: lock })
    }

    /// The stage's own folder.
    pub fn folder(&self) -> &Arc<OwnedFd> {
        &self.folder
    }

    /// Says how it ended, then lets the lock go.
    pub async fn end(self, result: &Result<Summary>) {
        self.heart.abort();
        let Self { folder, identity, heart, _lock } = self;
        let _ = heart.await;
        let _ = match result {
            Ok(summary) => write_record(&folder, &identity, State::Done, u64::MAX, Ok(Some(summary.clone()))),
            Err(error) => write_record(&folder, &identity, State::Failed, u64::MAX, Err(error)),
        };
    }
}

fn write_record(
    folder: &OwnedFd,
    identity: &Identity,
    state: State,
    beat: u64,
    ended: std::result::Result<Option<Summary>, &Error>,
) -> std::io::Result<()> {
    let at_s = unix_now().as_secs_f64();
    let (failure, error) =
        (ended.as_ref().err().map(|error| Told::of(error)), ended.as_ref().err().map(ToString::to_string));
    let summary = ended.ok().flatten();
    let record = Record { penstock_status: 1, state, identity: identity.clone(), beat, at_s, error, failure, summary };
    replace_own(folder, &identity.status_name(), &serde_json::to_vec(&record)?)
}

/// Writes a whole small file of ours in an open folder: readers see the old one or the new one.
pub(crate) fn replace_own(folder: &OwnedFd, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = format!("{name}.tmp");
    let mut file = open_own(folder, &temporary)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    file.sync_data()?;
    rustix::fs::renameat(folder, &temporary, folder, name)?;
    Ok(())
}

/// The same for a file that `fill` writes; errors of the disk are told by `io`.
pub(crate) fn replace_own_with(
    folder: &OwnedFd,
    name: &str,
    io: impl Fn(&std::io::Error) -> Error,
    fill: impl FnOnce(&mut File) -> Result<()>,
) -> Result<()> {
    let temporary = format!("{name}.tmp");
    let mut file = open_own(folder, &temporary).and_then(|file| file.set_len(0).map(|()| file)).map_err(|e| io(&e))?;
    fill(&mut file)?;
    file.sync_data().map_err(|error| io(&error))?;
    rustix::fs::renameat(folder, &temporary, folder, name).map_err(|errno| io(&errno.into()))
}

/// How long a rank waits for its leader.
#[derive(Debug, Clone, Copy)]
pub struct WaitLimits {
    /// For the first sign of life.
    pub start: Duration,
    /// Between two signs of life.
    pub silence: Duration,
}

impl Default for WaitLimits {
    fn default() -> Self {
        Self { start: Duration::from_secs(600), silence: Duration::from_secs(120) }
    }
}

/// Waits until the node's leader has staged, and returns its summary. The destination need not exist yet.
///
/// `RankFailed` when the leader says that it failed, dies, or gives no sign of life within the limits.
pub async fn wait_for_leader(request: &super::StageRequest, limits: WaitLimits) -> Result<Summary> {
    let failed = |told: Told| Error::RankFailed { rank: request.leader_rank, reason: told.message };
    leader_ends(request, limits).await?.map_err(failed)
}

/// [`wait_for_leader`], with the error that the leader told as it told it.
pub async fn leader_ends(
    request: &super::StageRequest,
    limits: WaitLimits,
) -> Result<std::result::Result<Summary, Told>> {
    let identity = request.identity();
    let folder = request.destination.join(FOLDER);
    let status: PathBuf = folder.join(identity.status_name());
    let lock = folder.join(identity.lock_name());
    let failed = |reason: String| Error::RankFailed { rank: request.leader_rank, reason };
    let began_s = unix_now().as_secs_f64();
    let (mut since_sign, mut seen_alive, mut last) = (Stopwatch::start(), false, None::<(u64, f64)>);
    let mut unlocked_since: Option<Stopwatch> = None;
    loop {
        let record = read_record(&status).filter(|record| identity.is_of(&record.identity));
        if let Some(record) = record {
            let launch_known = identity.launch.is_some() && identity.launch == record.identity.launch;
            match record.state {
                State::Done => {
                    return record.summary.map(Ok).ok_or_else(|| failed("its record has no summary".to_owned()));
                }
                State::Failed if launch_known || seen_alive || record.at_s >= began_s - 5.0 => {
                    let silent = || failed(record.error.unwrap_or_else(|| "it did not say why".to_owned()));
                    return record.failure.map(Err).ok_or_else(silent);
                }
                State::Failed => {}
                State::Running => {
                    let sign = (record.beat, record.at_s);
                    let locked = std::fs::File::open(&lock).and_then(|file| is_locked(&file)).unwrap_or(false);
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
                            return Err(failed("it ended without saying how; its lock is free".to_owned()));
                        }
                    }
                }
            }
        }
        let limit = if seen_alive { limits.silence } else { limits.start };
        if since_sign.elapsed() > limit {
            let what = if seen_alive { "no further sign" } else { "no sign" };
            return Err(failed(format!("{what} of it in {} for {:.0} s", folder.display(), limit.as_secs_f64())));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn read_record(path: &Path) -> Option<Record> {
    let file = std::fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_RECORD).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok().filter(|record: &Record| record.penstock_status == 1)
}
