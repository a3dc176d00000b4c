// SPDX-License-Identifier: Apache-2.0
//! Lists objects in the byte order of keys, one folder at a time. The NameNode sorts names as signed bytes, so this
//! module reads each folder completely and sorts it. HDFS limits a folder to 1,048,576 entries.

use std::sync::Arc;

use futures::{Stream, TryStreamExt, stream};
use hdfs_native::client::FileStatus;
use penstock_types::{Deadline, Error, Key, Metric, Result};

use super::{ClientKind, Cluster, NAMENODE, TEMPORARY, meta, refusal};
use crate::Meta;

/// Timeout for listing one folder, as a multiple of `NAMENODE`. A folder is read in pages of 1,000 entries.
const PAGES: u32 = 16;

struct Walk {
    cluster: Arc<Cluster>,
    prefix: Key,
    after: Option<Key>,
    deadline: Deadline,
    /// Remaining entries of each open folder, in reverse order. The outermost folder is first, the current one last.
    folders: Vec<Vec<(Key, FileStatus)>>,
}

pub(super) fn stream(
    cluster: Arc<Cluster>,
    prefix: Key,
    after: Option<Key>,
    deadline: Deadline,
) -> impl Stream<Item = Result<Meta>> {
    let walk = Walk { cluster, prefix, after, deadline, folders: Vec::new() };
    stream::once(walk.begin()).map_ok(|walk| stream::try_unfold(walk, Walk::next)).try_flatten()
}

impl Walk {
    /// Reads the deepest folder that contains all keys with the prefix.
    async fn begin(mut self) -> Result<Self> {
        let prefix = self.prefix.as_bytes();
        let end = prefix.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let folder = Key::new(prefix[..end].to_vec());
        // If HDFS cannot store keys with this prefix, the result is empty.
        if folder.is_empty() || refusal(&prefix[..end - 1]).is_none() {
            self.enter(&folder).await?;
        }
        Ok(self)
    }

    async fn next(mut self) -> Result<Option<(Meta, Self)>> {
        while let Some(folder) = self.folders.last_mut() {
            let Some((key, status)) = folder.pop() else {
                self.folders.pop();
                continue;
            };
            if status.isdir {
                if self.may_hold(&key) {
                    self.enter(&key).await?;
                }
            } else if key.as_bytes().starts_with(self.prefix.as_bytes())
                && self.after.as_ref().is_none_or(|after| key > *after)
            {
                return Ok(Some((meta(key, &status), self)));
            }
        }
        Ok(None)
    }

    /// Returns true if a key below the folder may match the prefix and sort after the start key.
    fn may_hold(&self, folder: &Key) -> bool {
        let (key, prefix) = (folder.as_bytes(), self.prefix.as_bytes());
        (key.starts_with(prefix) || prefix.starts_with(key))
            && self.after.as_ref().is_none_or(|after| folder > after || after.as_bytes().starts_with(key))
    }

    /// Reads the folder `key`, which ends in `/` or is empty. A missing folder counts as an empty folder.
    async fn enter(&mut self, key: &Key) -> Result<()> {
        let cluster = &self.cluster;
        cluster.metrics.count(Metric::Requests);
        cluster.metrics.count(Metric::Lists);
        let path = format!("/{}", key.as_str().unwrap_or_default().trim_end_matches('/'));
        let place = cluster.place(key);
        let work = async {
            let client = cluster.client(ClientKind::Fast).await?;
            cluster.call(&place, NAMENODE * PAGES, client.list_status(&path, false)).await
        };
        let listed = match cluster.timed(&format!("LIST {place}"), self.deadline, work).await {
            Err(Error::NotFound { .. }) if !key.is_empty() => return Ok(()),
            // The prefix ends in a folder name, but a file with that name exists.
            Err(Error::KeyRefused { .. }) => return Ok(()),
            result => result?,
        };
        let mut names = Vec::with_capacity(listed.len());
        for mut status in listed {
            let name = status.path.rsplit('/').next().unwrap_or_default();
            // HDFS lists a file as a folder with one entry: the file itself.
            if status.path == path || name.is_empty() || name.starts_with(TEMPORARY) {
                continue;
            }
            let mut name = key.join(name.as_bytes());
            if status.isdir {
                name = name.join(b"/");
            }
            status.path = String::new();
            names.push((name, status));
        }
        names.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        self.folders.push(names);
        Ok(())
    }
}
