// SPDX-License-Identifier: Apache-2.0
//! Object stores behind one trait: local folders, memory, S3, Azure, GCS, web servers, HDFS and the Hugging Face Hub.
//!
//! This crate implements requests, signing, retries, and wrappers that count requests, throttle them or inject faults.
//! It does not depend on codecs or record formats.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests write and remove files of their own"))]

mod available_memory;
mod azure;
mod buffer_pool;
mod checksum;
mod credentials;
mod delegate;
mod fault_injection;
mod gcs;
mod hdfs;
mod hedge;
mod http_date;
mod hub;
mod limit;
mod local;
mod memory;
mod metered;
mod mirrors;
mod multipart;
mod multipart_wrappers;
mod object_writer;
mod open;
pub mod owned;
mod page_tokens;
mod rate_backoff;
mod read_all;
mod resuming_stream;
mod retry;
mod retry_policy;
pub mod rooted;
mod s3;
mod scoped_settings;
mod settings;
mod simulated_throttle;
mod store;
mod store_types;
pub mod suite;
mod transport;
mod web;

pub use available_memory::memory_available;
pub use azure::{Azure, AzureSettings};
pub use buffer_pool::{Buffer, BufferPool, Mapping, advise_huge};
pub use checksum::{Digester, cheapest, combined};
pub use fault_injection::{Fault, Faults};
pub use gcs::{Gcs, GcsSettings};
pub use hdfs::{Hdfs, HdfsSettings};
pub use hedge::Hedge;
pub use hub::{Hub, HubSettings};
pub use limit::{AdaptiveLimit, LimitStore, Rates};
pub use local::{Local, LocalReads, WRITE_BYTES, plan};
pub use memory::Memory;
pub use metered::MeteredStore;
pub use mirrors::{MirrorReport, Mirrors};
pub use multipart::{MultipartLimits, MultipartStore, Part, PartSpec, UploadId};
pub use object_writer::ObjectWriter;
pub use open::{open, open_mirrored, pinned};
pub use read_all::read_whole;
pub use retry::Retry;
pub use retry_policy::RetryPolicy;
pub use s3::S3;
pub use settings::{S3Settings, StoreSettings};
pub use simulated_throttle::{ThrottleConfig, ThrottledStore};
pub use store::{ListStream, Opened, Store};
pub use store_types::{Capabilities, Chunk, GetResult, Meta, ObjectRef, Precondition, PutOptions, Version, place};
pub use web::Web;
