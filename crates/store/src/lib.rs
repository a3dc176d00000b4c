// SPDX-License-Identifier: Apache-2.0
//! Object stores behind one trait: local folders, memory and S3 here; Azure, GCS, HTTP and HDFS take the same seats.
//!
//! Owns requests, signing, retry and the wrappers that count, shape and break them. Knows no codec and no record.

mod checksum;
mod memory;
mod store;

pub use memory::Memory;
pub use store::{
    Capabilities, Chunk, GetResult, ListStream, Meta, ObjectRef, Precondition, PutOptions, Store, Version,
};
