// SPDX-License-Identifier: Apache-2.0
//! Integration tests of the crate, in one binary so that they link only once.

mod endpoint;
