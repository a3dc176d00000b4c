// SPDX-License-Identifier: Apache-2.0
//! Tests of the crate from outside, in one program: it links once.

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
