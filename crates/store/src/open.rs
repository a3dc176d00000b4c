// SPDX-License-Identifier: Apache-2.0
//! Opens the store of a URL and adds retries and metrics.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock_types::{Deadline, Error, Key, Metrics, Result, Scheme, Url};

use crate::{
    Azure, Gcs, Hdfs, Hedge, Hub, Local, LocalReads, Memory, MeteredStore, Mirrors, Opened, Retry, S3, Store,
    StoreSettings, Web,
};

/// Opens the store of a URL without sending a request.
///
/// The root is the bucket or container of a cloud store, the host of a web server, the dataset on the Hub, `/` of HDFS,
/// or the name of a memory store. The prefix is the key in the URL. For a local folder, the root is the folder and the
/// prefix is empty. For a local file, the root is its folder and the prefix is the file name. A local folder need not
/// exist: a write creates it, and a read finds no objects in it.
///
/// Returns a `Config` error for invalid settings.
pub fn open(url: &Url, settings: &StoreSettings, metrics: Arc<Metrics>) -> Result<Opened> {
    let Opened { mut store, prefix } = base(url, settings, metrics.clone())?;
    if settings.hedges == Some(true) && !matches!(url.scheme, Scheme::File | Scheme::Memory) {
        store = Arc::new(Hedge::new(store, metrics.clone()));
    }
    Ok(Opened { store: Arc::new(Retry::new(store, settings.retry.clone()).with_metrics(metrics)), prefix })
}

/// Opens a dataset that is stored in several places, each with its own settings. The first store is authoritative, and
/// reads are spread over all stores. All timeouts come from the settings of the first store. The idle timeout is at
/// most 10 s.
pub fn open_mirrored(
    first: (&Url, &StoreSettings),
    mirrors: &[(Url, StoreSettings)],
    metrics: Arc<Metrics>,
) -> Result<(Opened, Mirrors)> {
    let mut members = vec![base(first.0, first.1, metrics.clone())?];
    for (url, settings) in mirrors {
        members.push(base(url, settings, metrics.clone())?);
    }
    let prefix = members[0].prefix.clone();
    let mirrors = Mirrors::new(members)?;
    let mut policy = first.1.retry.clone();
    policy.stall_after = policy.stall_after.min(SILENT_MIRROR);
    let store = Arc::new(Retry::new(Arc::new(mirrors.clone()), policy).with_metrics(metrics));
    Ok((Opened { store, prefix }, mirrors))
}

/// Maximum idle timeout of a mirror. After the timeout, the read continues on another mirror.
const SILENT_MIRROR: Duration = Duration::from_secs(10);

/// Opens the store with metrics but without retries.
fn base(url: &Url, settings: &StoreSettings, metrics: Arc<Metrics>) -> Result<Opened> {
    let settings = &settings.of(url);
    let (base, prefix): (Arc<dyn Store>, Key) = match url.scheme {
        Scheme::File => {
            let path = url.to_path().ok_or_else(|| Error::bug("a file URL has no path"))?;
            let local = |path: &Path| {
                let local = Local::new(path)?.with_reads(settings.local_reads.unwrap_or(LocalReads::Threads));
                Ok::<_, Error>(match settings.local_piece_bytes {
                    Some(piece) => local.with_piece(piece),
                    None => local,
                })
            };
            let is_file = !url.key.as_bytes().ends_with(b"/") && path.is_file();
            match (is_file, path.parent(), path.file_name()) {
                (true, Some(parent), Some(name)) => {
                    let name = Key::new(std::os::unix::ffi::OsStrExt::as_bytes(name).to_vec());
                    (Arc::new(MeteredStore::new(Arc::new(local(parent)?), metrics.clone())), name)
                }
                _ => (Arc::new(MeteredStore::new(Arc::new(local(&path)?), metrics.clone())), Key::default()),
            }
        }
        Scheme::Memory => {
            let memory = Arc::new(Memory::named(&url.authority));
            (Arc::new(MeteredStore::new(memory, metrics.clone())), url.key.clone())
        }
        // S3 counts its own requests, because one call may need several requests. `Retry` verifies whole objects,
        // because it can also verify a read that was interrupted and resumed.
        Scheme::S3 => {
            let s3 = S3::new(&url.authority, &settings.s3, metrics.clone())?.unverified();
            (Arc::new(s3), url.key.clone())
        }
        Scheme::Http | Scheme::Https => (Arc::new(Web::new(url, metrics.clone())?), url.key.clone()),
        Scheme::Hub => (Arc::new(Hub::new(url, &settings.hub, metrics.clone())?), url.key.clone()),
        Scheme::Azure => {
            let azure = Azure::new(&url.authority, &settings.azure, metrics.clone())?.unverified();
            (Arc::new(azure), url.key.clone())
        }
        Scheme::Gcs => {
            let gcs = Gcs::new(&url.authority, &settings.gcs, metrics.clone())?.unverified();
            (Arc::new(gcs), url.key.clone())
        }
        Scheme::Hdfs => {
            let hdfs = Hdfs::new(&url.authority, &settings.hdfs, metrics.clone())?;
            (Arc::new(hdfs), url.key.clone())
        }
    };
    Ok(Opened { store: base, prefix })
}

/// Returns the URL of a Hub dataset with the commit that `store` reads instead of the revision. A branch may move, but
/// a commit never changes. `store` must have been opened for this URL. Returns other URLs unchanged.
pub async fn pinned(store: &dyn Store, url: &Url, deadline: Deadline) -> Result<Url> {
    if url.scheme != Scheme::Hub {
        return Ok(url.clone());
    }
    let root = store.head(&Key::default(), deadline).await?;
    let commit = root.version.ok_or_else(|| Error::bug("a dataset of the Hub has no commit"))?;
    let url = url.without_revision();
    Ok(Url { authority: format!("{}@{commit}", url.authority), ..url })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(text: &str) -> Result<Opened> {
        open(&text.parse()?, &StoreSettings::default(), Arc::default())
    }

    #[test]
    fn test_open_prefix_is_the_key_and_a_file_is_rooted_at_its_folder() {
        let bucket = opened("s3://bucket/a/b").unwrap();
        assert_eq!((bucket.prefix, bucket.store.root().to_string()), (Key::from("a/b"), "s3://bucket/".to_owned()));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("one"), b"x").unwrap();
        let file = opened(dir.path().join("one").to_str().unwrap()).unwrap();
        assert_eq!(file.prefix, Key::from("one"));
        let folder = opened(dir.path().to_str().unwrap()).unwrap();
        assert_eq!(folder.prefix, Key::default());
        assert_eq!(folder.store.root(), file.store.root());
    }
}
