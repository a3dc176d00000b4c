// SPDX-License-Identifier: Apache-2.0
//! Object metadata that a file cannot hold: ETag, checksums, headers. The metadata are stored in an append-only log of
//! JSON lines and kept in memory. An entry is valid only while the file's stamp (inode, mtime, size) is unchanged.
//!
//! If several endpoints serve one folder at the same time, each endpoint reads the lines of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use md5::{Digest as _, Md5};
use penstock_types::{lock, unix_now};
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use crate::key_path::hex;

/// Stamp: identity and state of a file when its metadata were recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub inode: u64,
    pub modified_ns: i64,
    pub size: u64,
}

impl Stamp {
    /// Returns a stamp with the current time, for an item without a file.
    pub(crate) fn now() -> Self {
        Self { modified_ns: unix_now().as_nanos() as i64, ..Self::default() }
    }

    /// Returns the stamp of a file.
    pub(crate) fn of(stat: &Stat) -> Self {
        let modified_ns = stat.st_mtime.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as i64);
        Self { inode: stat.st_ino, modified_ns, size: stat.st_size as u64 }
    }

    /// Returns the ETag of a file that another program put in the folder: a hash of the file's stamp, so that LIST need
    /// not read the file. As on S3, the suffix `-1` shows that the ETag is not the MD5 of the bytes. GET and HEAD
    /// return the same ETag.
    pub(crate) fn etag(self) -> String {
        let text = format!("{} {} {}", self.inode, self.modified_ns, self.size);
        format!("{}-1", hex(&Md5::digest(text.as_bytes())))
    }
}

/// A checksum, with name and value as in S3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checksum {
    /// `CRC32C`, `CRC32`, `CRC64NVME`, `SHA1` or `SHA256`.
    pub algorithm: String,
    /// Value in base64. The value of a composite checksum ends in `-N`.
    pub value: String,
    /// True if the checksum is computed from the parts' checksums instead of the bytes.
    pub composite: bool,
}

/// Metadata of one object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fact {
    pub stamp: Stamp,
    /// ETag of the object. `None` for a file that another program put in the folder; see [`Stamp::etag`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Checksum>,
    /// Size of each part of a multipart upload. Empty for an object that was uploaded in one request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<u64>,
    /// Base64 checksum of each part, with the object's algorithm. Empty unless every part has a checksum.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub part_checksums: Vec<String>,
    /// Headers as the client sent them, such as `content-type` and `content-encoding`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// User metadata: `x-amz-meta-*` headers, without that prefix.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Object tags by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// True if the object is in the side store.
    #[serde(default)]
    pub side: bool,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    /// `None` if the object was deleted.
    fact: Option<Fact>,
}

#[derive(Default)]
struct LogState {
    facts: BTreeMap<String, Arc<Fact>>,
    side: BTreeSet<String>,
    /// Number of bytes of the log that have already been read.
    read: u64,
}

impl LogState {
    fn apply(&mut self, key: String, fact: Option<Fact>) {
        match fact {
            Some(fact) => {
                if fact.side {
                    self.side.insert(key.clone());
                } else {
                    self.side.remove(&key);
                }
                self.facts.insert(key, Arc::new(fact));
            }
            None => {
                self.side.remove(&key);
                self.facts.remove(&key);
            }
        }
    }
}

/// Metadata of all objects in a folder: the log, and its entries in memory.
pub(crate) struct Facts {
    log: PathBuf,
    known: Mutex<LogState>,
}

impl Facts {
    pub(crate) fn new(state: &Path) -> Self {
        Self { log: state.join("objects.jsonl"), known: Mutex::default() }
    }

    pub(crate) fn get(&self, key: &str) -> io::Result<Option<Arc<Fact>>> {
        Ok(self.current()?.facts.get(key).cloned())
    }

    /// Returns up to `most` keys of the side store that are not less than `from`, with their metadata.
    pub(crate) fn side_keys(&self, from: &str, most: usize) -> io::Result<Vec<(String, Arc<Fact>)>> {
        let known = self.current()?;
        let range = known.side.range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        Ok(range.filter_map(|key| Some((key.clone(), known.facts.get(key)?.clone()))).take(most).collect())
    }

    /// Calls `look` with all metadata. A listing looks up a thousand keys in one call, under a single lock.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&BTreeMap<String, Arc<Fact>>) -> T) -> io::Result<T> {
        Ok(look(&self.current()?.facts))
    }

    /// Records metadata in memory, or removes them. Also writes a log line if the log exists or `keep` is true.
    pub(crate) fn put(&self, key: &str, fact: Option<Fact>, keep: bool) -> io::Result<()> {
        let mut known = self.current()?;
        if keep || self.log.exists() {
            let mut line = serde_json::to_vec(&Line { key: key.to_owned(), fact: fact.clone() })?;
            line.push(b'\n');
            let mut log = OpenOptions::new().create(true).append(true).open(&self.log)?;
            log.write_all(&line)?;
        }
        // Apply the change immediately. The next read of the log applies the line again, which does no harm.
        known.apply(key.to_owned(), fact);
        Ok(())
    }

    /// Reads the log lines that were added since the last call, and returns the metadata.
    fn current(&self) -> io::Result<MutexGuard<'_, LogState>> {
        let mut known = lock(&self.known);
        let size = match std::fs::metadata(&self.log) {
            Ok(meta) => meta.len(),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => 0,
            Err(error) => return Err(error),
        };
        if size < known.read {
            // The log was removed or replaced, so all earlier lines are invalid.
            *known = LogState::default();
        }
        if size > known.read {
            let mut file = File::open(&self.log)?;
            file.seek(SeekFrom::Start(known.read))?;
            let mut tail = Vec::new();
            file.take(size - known.read).read_to_end(&mut tail)?;
            // Another process may still be writing the last line, so leave that line for the next call.
            let whole = tail.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            for line in tail[..whole].split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                // Skip a line that was truncated by a crash. Its object then counts as a file that another program put
                // in the folder.
                if let Ok(Line { key, fact }) = serde_json::from_slice(line) {
                    known.apply(key, fact);
                }
            }
            known.read += whole as u64;
        }
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(size: u64, side: bool) -> Fact {
        let stamp = Stamp { inode: 1, modified_ns: 2, size };
        Fact { stamp, etag: Some("e".into()), side, ..Fact::default() }
    }

    #[test]
    fn facts_written_by_one_are_seen_by_another_and_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (Facts::new(dir.path()), Facts::new(dir.path()));
        assert_eq!(two.get("k").unwrap(), None);
        one.put("k", Some(fact(1, false)), true).unwrap();
        assert_eq!(two.get("k").unwrap().unwrap().stamp.size, 1);
        two.put("k", None, true).unwrap();
        assert_eq!(one.get("k").unwrap(), None);
        one.put("s/", Some(fact(2, true)), true).unwrap();
        assert_eq!(Facts::new(dir.path()).side_keys("", 9).unwrap().len(), 1);
    }

    #[test]
    fn facts_of_a_folder_without_state_stay_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let facts = Facts::new(&dir.path().join("none"));
        facts.put("k", Some(fact(1, false)), false).unwrap();
        assert!(facts.get("k").unwrap().is_some() && std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }

    #[test]
    fn facts_torn_line_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("objects.jsonl"), b"{\"key\": \"a\n\xff\xfe\n").unwrap();
        let facts = Facts::new(dir.path());
        facts.put("b", Some(fact(1, false)), true).unwrap();
        assert!(Facts::new(dir.path()).get("b").unwrap().is_some());
    }
}
