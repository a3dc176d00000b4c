// SPDX-License-Identifier: Apache-2.0
//! Staging: copies a dataset, or this node's share of it, to a local folder or to a store, as complete and verified
//! objects.
//!
//! [`StageRequest`] is the input; `run` executes it; `plan` computes the targets and rejects unsafe keys. `to_folder`
//! downloads into `dest_dir`, which no key can leave; `to_store` uploads. `verify` compares a copy with its records and
//! fetches damaged files again. `journal` makes a stage resumable. `dest_lock` prevents two launches from writing to
//! one destination. `leader_heartbeat` reports progress to the other ranks of a node. `LimitStore` limits the request
//! rate. A file gets its final name only when it is complete, verified and on disk.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod atomic_replace;
mod blocking;
mod commit;
mod compress;
mod concurrent;
mod context;
mod dest_dir;
mod dest_lock;
mod digests;
mod failed_objects;
mod job;
mod journal;
mod leader_heartbeat;
mod ofd_lock;
mod opened_source;
mod page_cache_fit;
mod parallel_decode;
mod plan;
mod progress;
mod request;
mod run;
mod settings;
mod source_reader;
mod status_record;
mod summary;
mod to_folder;
mod to_store;
mod verify;

pub use compress::Compression;
pub use job::Job;
pub use leader_heartbeat::{WaitLimits, leader_ends, wait_for_leader};
pub use plan::{Item, PART_BYTES, StageOptions, StagePlan};
pub use progress::{Failure, Progress, Snapshot};
pub use request::StageRequest;
pub use run::StageJob;
pub use settings::{StageSettings, VerifySettings};
pub use status_record::WireError;
pub use summary::Summary;
pub use to_folder::manifests::{Unfinished, recorded_manifest};
pub use verify::store::recorded_remotely;
pub use verify::{FailedFile, Verified, VerifyJob, VerifyRequest};
