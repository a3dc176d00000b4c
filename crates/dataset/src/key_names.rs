// SPDX-License-Identifier: Apache-2.0
//! Names in keys: the last component, and the names of index files. Other programs write index files beside the objects
//! of a dataset. A dataset can be read without index files.

/// Returns the part of a key after its last `/`.
pub fn last_component(key: &[u8]) -> &[u8] {
    key.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// File suffix of DALI's indexes.
pub const INDEX_SUFFIX: &[u8] = b".idx";

/// File name of the shard list of wids.
pub const SHARD_LIST: &[u8] = b"index.json";

/// True for the name of an index file.
pub fn is_index_name(key: &[u8]) -> bool {
    key.ends_with(INDEX_SUFFIX) || last_component(key) == SHARD_LIST
}
