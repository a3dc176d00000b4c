// SPDX-License-Identifier: Apache-2.0
//! Integration tests of the crate, linked into one binary to save link time.

mod frames;
mod round_trip;
