// SPDX-License-Identifier: Apache-2.0
//! Stage: a dataset's objects, or this node's share of them, as whole and verified files in a local folder.
//!
//! Owns what is asked (`request`) and its run (`run`); the plan and its key safety (`plan`, `remote` for stores); the folder
//! that no key leaves (`jail`) and what stands there from before (`resume`, `standing`); the journal (`journal`, `sent`); the
//! reads (`inlet`); the journey of one object to a folder (`folder`, `crew`, `object`, `parts`, `apart`, `stream`, `sink`) or
//! to a store (`deliver`, `send`, `flow`, `vessel`); the last step of all of them (`commit`); and what a node's other ranks
//! read (`status`). Pace is the store's (`Govern`). What a destination records (`recorded`, `remote_recorded`) is held
//! against it by `verify` and fetched again by `repair`. Refuses to write anything under a final name that is not whole,
//! checked and on disk.

mod abreast;
mod apart;
mod commit;
mod crew;
mod deliver;
mod errand;
mod flow;
mod folder;
mod inlet;
mod jail;
mod job;
mod journal;
mod launch;
mod memory;
mod object;
mod ofd_lock;
mod parts;
mod pieces;
mod plan;
mod progress;
mod recorded;
mod remote;
mod remote_recorded;
mod repair;
mod request;
mod resume;
mod run;
mod seal;
mod send;
mod sent;
mod sink;
mod squeeze;
mod standing;
mod status;
mod stream;
mod verify;
mod verify_remote;
mod vessel;

pub use job::Job;
pub use plan::{Item, PART_BYTES, StageOptions, StagePlan};
pub use progress::{Failure, Progress, Snapshot};
pub use recorded::{Unfinished, recorded_manifest};
pub use request::{StageRequest, Summary};
pub use run::StageJob;
pub use squeeze::Deflate;
pub use status::{Told, WaitLimits, leader_ends, wait_for_leader};
pub use verify::{Verified, VerifyJob, VerifyRequest, Wrong};
pub use verify_remote::recorded_remotely;
