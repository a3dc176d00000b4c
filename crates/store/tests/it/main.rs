// SPDX-License-Identifier: Apache-2.0
//! Integration tests of the crate, linked into one binary to save link time.

mod azure;
mod gcs;
mod hdfs;
mod local;
mod mirrors;
mod peer;
mod s3;
mod site;
mod suite;
mod tls;
mod transport;
mod web;
