// SPDX-License-Identifier: Apache-2.0
//! Status record of a stage: its state (running, finished or failed), identity, process, heartbeat and result.

use crate::dest_dir::open_to_read;
use penstock_types::{Error, unix_now};
use serde::{Deserialize, Serialize};
use std::io::{BufReader, Read};
use std::os::fd::OwnedFd;
use std::time::Duration;

use crate::summary::Summary;

/// Interval of the leader's heartbeat.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);

/// Interval at which a waiting rank checks the record.
pub(super) const LOOK: Duration = Duration::from_millis(200);

/// Maximum size of a record in bytes. Penstock does not write a larger file.
const MAX_RECORD: u64 = 1 << 30;

/// Folder of the records, relative to the destination.
pub(crate) const FOLDER: &str = ".penstock/stage";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Running,
    Done,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub penstock_status: u32,
    pub state: State,
    pub identity: Identity,
    /// Process that wrote this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    pub beat: u64,
    /// Time at which the record was written, in seconds since the Unix epoch.
    pub at_s: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<WireError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Summary>,
}

impl Record {
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Heartbeat value; the process changes the value every [`HEARTBEAT`].
    pub fn sign(&self) -> (u64, f64) {
        (self.beat, self.at_s)
    }

    /// Describes the process that wrote the record, for an error.
    pub fn text(&self) -> String {
        self.identity.text(self.process.as_ref())
    }
}

/// The leader's error, so that other ranks can raise the same error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireError {
    /// [`Error::code`].
    pub code: String,
    /// Text of the error.
    pub message: String,
    /// [`Error::hint`].
    pub hint: Option<String>,
}

impl WireError {
    pub(super) fn of(error: &Error) -> Self {
        Self { code: error.code().to_owned(), message: error.to_string(), hint: error.hint() }
    }
}

/// Identity of a stage: processes with equal identities take part in the same stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Source and options.
    pub request: String,
    /// Launch id, if the launcher provides one.
    pub launch: Option<String>,
    pub node: u32,
    pub nodes: u32,
}

impl Identity {
    pub fn status_name(&self) -> String {
        format!("status-{}-of-{}.json", self.node, self.nodes)
    }

    pub fn lock_name(&self) -> String {
        format!("lock-{}", self.node)
    }

    /// True if both identities name the same stage on the same node.
    pub fn is_of(&self, other: &Identity) -> bool {
        self.node == other.node && self.is_launch_of(other)
    }

    /// True if both identities belong to one launch, so that their shares do not overlap. If one of them has no launch
    /// id, the ids are not compared.
    pub fn is_launch_of(&self, other: &Identity) -> bool {
        let same_id = self.launch.is_none() || other.launch.is_none() || self.launch == other.launch;
        self.request == other.request && self.nodes == other.nodes && same_id
    }

    /// Describes this stage and the `process` that runs it, for an error.
    pub fn text(&self, process: Option<&Process>) -> String {
        let Self { node, nodes, launch, .. } = self;
        let launch = launch.iter().map(|launch| format!("launch {launch}"));
        let known: Vec<String> = launch.chain(process.map(Process::text)).collect();
        let known = if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) };
        format!("another penstock stage of node {node} of {nodes} is writing to it{known}")
    }
}

/// A process that writes to a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub host: String,
    /// Boot id of the kernel; empty if the kernel has none.
    pub boot: String,
    pub pid: u32,
    /// Time at which the process began its stage or repair, in seconds since the Unix epoch.
    pub since_s: f64,
}

impl Process {
    pub fn current() -> Self {
        let read = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
            text.trim().to_owned()
        };
        let (host, boot) = (read("hostname"), read("random/boot_id"));
        Self { host, boot, pid: std::process::id(), since_s: unix_now().as_secs_f64() }
    }

    /// True if both processes run under the same kernel, so that each can see the other's locks.
    pub fn is_on_machine_of(&self, other: &Self) -> bool {
        !self.boot.is_empty() && self.boot == other.boot
    }

    /// Describes the process, for an error.
    pub fn text(&self) -> String {
        let age_s = (unix_now().as_secs_f64() - self.since_s).max(0.0);
        format!("process {} on {}, started {age_s:.0} s ago", self.pid, self.host)
    }
}

pub(super) fn read_record(folder: &OwnedFd, name: &str) -> Option<Record> {
    // Parse from a stream, so that a large file that is not a record takes no memory.
    let file = BufReader::new(open_to_read(folder, name).ok()?.take(MAX_RECORD));
    serde_json::from_reader(file).ok().filter(|record: &Record| record.penstock_status == 1)
}
