// SPDX-License-Identifier: Apache-2.0
//! The checksums that stores speak, over bytes as they pass.

/// CRC-32C of `bytes`.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}
