// SPDX-License-Identifier: Apache-2.0
//! Object stores behind one trait: local folders, memory, S3, Azure, GCS, web servers and HDFS.
//!
//! Owns requests, signing, retry and the wrappers that count, shape and break them. Knows no codec and no record.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod available;
mod azure;
mod buffers;
mod checksum;
mod count;
mod credentials;
mod dates;
mod fault;
mod forward;
mod gcs;
mod govern;
mod hdfs;
mod hedge;
mod local;
mod memory;
mod mirrors;
mod open;
pub mod owned;
mod pace;
mod page_tokens;
mod resume;
mod retry;
mod s3;
mod settings;
mod shape;
mod store;
pub mod suite;
mod tenants;
mod upload;
mod upload_again;
mod web;
mod whole;
mod wire;

pub use available::memory_available;
pub use azure::{Azure, AzureSettings};
pub use buffers::{Buffer, Buffers, Mapping, advise_huge};
pub use checksum::{Digester, cheapest, combined};
pub use count::Count;
pub use fault::{Fault, Faults};
pub use gcs::{Gcs, GcsSettings};
pub use govern::{Govern, Governor, Rates};
pub use hdfs::{Hdfs, HdfsSettings};
pub use hedge::Hedge;
pub use local::{Local, LocalReads, plan};
pub use memory::Memory;
pub use mirrors::{MirrorReport, Mirrors};
pub use open::{Opened, open, open_mirrored};
pub use retry::{Retry, RetryPolicy};
pub use s3::S3;
pub use settings::{S3Settings, StoreSettings};
pub use shape::{Limits, Shape};
pub use store::{
    Capabilities, Chunk, GetResult, ListStream, Meta, ObjectRef, Precondition, PutOptions, Store, Version, place,
};
pub use upload::{Part, PartAt, Terms, UploadId, Uploads};
pub use web::Web;
pub use whole::read_whole;
