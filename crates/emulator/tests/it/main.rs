// SPDX-License-Identifier: Apache-2.0
//! Tests of the crate from outside, in one program: it links once.

mod endpoint;
