// SPDX-License-Identifier: Apache-2.0
//! Writes files. A write creates a temporary file in the same folder, sends the bytes through the DataNode pipeline,
//! closes the file and renames it. Readers therefore never see a partial object. After a failure, `Retry` sends the
//! whole object again with another temporary name.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use hdfs_native::client::FileStatus;
use hdfs_native::{Client, WriteOptions};
use penstock_types::{Error, Key, Metric, Result};

use super::{ClientKind, Cluster, NAMENODE, TEMPORARY, error, meta, version};
use crate::{Meta, Precondition, PutOptions, checksum};

/// Number of bytes per write call. A write can be cancelled between two calls.
const PIECE: usize = 1 << 20;
/// If a pipeline does not accept one piece within this time, the write fails. hdfs-native itself would wait a minute
/// for each DataNode.
const STALLED: Duration = Duration::from_secs(20);

pub(super) async fn put(cluster: &Arc<Cluster>, key: &Key, parts: Vec<Bytes>, options: &PutOptions) -> Result<Meta> {
    let (path, place) = (cluster.path(key)?, cluster.place(key));
    if options.encoding.is_some() {
        return Err(Error::Unsupported { what: "a Content-Encoding".to_owned(), by: "HDFS".to_owned() });
    }
    checksum::check_parts(options.checksum.as_ref(), &parts, || place.clone())?;
    let existing = cluster.existing(key).await?;
    if existing.as_ref().is_some_and(|status| status.isdir) {
        return Err(cluster.refused(key, "a folder with this name exists"));
    }
    check(&options.precondition, existing.as_ref(), &place)?;
    cluster.metrics.count(Metric::Requests);
    cluster.metrics.count(Metric::Puts);
    cluster.metrics.add(Metric::BytesSent, parts.iter().map(|part| part.len() as u64).sum());

    let client = cluster.client(ClientKind::Slow).await?;
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let temporary = format!("{folder}/{TEMPORARY}{:016x}", rand::random::<u64>());
    let temporary = Temporary { client: client.clone(), path: temporary, is_ours: true };
    write(cluster, &client, &temporary.path, parts, &place).await?;
    let mut written = cluster.call(&place, NAMENODE, client.get_file_info(&temporary.path)).await?;
    let existing = match &options.precondition {
        Precondition::Matches(_) => cluster.existing(key).await?,
        Precondition::None | Precondition::Absent => existing,
    };
    check(&options.precondition, existing.as_ref(), &place)?;
    // The NameNode stores times in whole milliseconds. Without this change of the mtime, two writes of equal size
    // within one millisecond would have the same version.
    if let Some(old) = &existing
        && old.modification_time >= written.modification_time
    {
        let after = old.modification_time + 1;
        cluster.call(&place, NAMENODE, client.set_times(&temporary.path, after, written.access_time)).await?;
        written.modification_time = after;
    }
    let overwrite = options.precondition != Precondition::Absent;
    cluster.call(&place, NAMENODE, client.rename(&temporary.path, &path, overwrite)).await?;
    temporary.keep();
    Ok(meta(key.clone(), &written))
}

fn check(precondition: &Precondition, existing: Option<&FileStatus>, place: &str) -> Result<()> {
    let refuse = |reason: String| Err(Error::Precondition { place: place.to_owned(), reason });
    match (precondition, existing) {
        (Precondition::Absent, Some(_)) => refuse("an object with this key already exists".to_owned()),
        (Precondition::Matches(want), None) => refuse(format!("version {want} no longer exists")),
        (Precondition::Matches(want), Some(status)) if *want != version(status) => {
            refuse(format!("version {want} is no longer current (now {})", version(status)))
        }
        (Precondition::None | Precondition::Absent | Precondition::Matches(_), _) => Ok(()),
    }
}

async fn write(cluster: &Cluster, client: &Client, path: &str, parts: Vec<Bytes>, place: &str) -> Result<()> {
    let options = WriteOptions::default().create_parent(true);
    let mut file = match cluster.call(place, NAMENODE, client.create(path, options)).await {
        // A file exists where the key requires a folder.
        Err(Error::Precondition { place, .. }) => {
            let (key, root) = (place.clone(), cluster.root.to_string());
            let key = key.strip_prefix(&root).unwrap_or(&key).to_owned();
            return Err(Error::KeyRefused {
                key,
                place: root,
                reason: "a file exists where its folder should be".to_owned(),
            });
        }
        result => result?,
    };
    for mut part in parts {
        while !part.is_empty() {
            let piece = part.split_to(part.len().min(PIECE));
            moving(cluster, place, file.write_bytes(piece)).await?;
        }
    }
    moving(cluster, place, file.close()).await
}

/// Runs one step of a write. Fails if the step takes longer than `STALLED`.
async fn moving<T>(cluster: &Cluster, place: &str, work: impl Future<Output = hdfs_native::Result<T>>) -> Result<T> {
    let work = std::panic::AssertUnwindSafe(work).catch_unwind();
    match tokio::time::timeout(STALLED, work).await {
        Ok(Ok(result)) => result.map_err(|error| error::of(place, &cluster.root.to_string(), &error)),
        Ok(Err(_)) => Err(error::odd(place)),
        Err(_) => {
            let reason = format!("the DataNodes accepted no data for {} s", STALLED.as_secs());
            Err(Error::Unreachable { place: place.to_owned(), reason })
        }
    }
}

/// A temporary file. Unless it was renamed, it is deleted when dropped, even if the write was cancelled.
struct Temporary {
    client: Client,
    path: String,
    is_ours: bool,
}

impl Temporary {
    fn keep(mut self) {
        self.is_ours = false;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let (true, Ok(runtime)) = (self.is_ours, tokio::runtime::Handle::try_current()) {
            let (client, path) = (self.client.clone(), std::mem::take(&mut self.path));
            // Ignore errors, because listings skip temporary names.
            runtime.spawn(async move { tokio::time::timeout(NAMENODE, client.delete(&path, false)).await });
        }
    }
}
