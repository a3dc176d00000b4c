// SPDX-License-Identifier: Apache-2.0
//! HDFS store. A URL has one of three forms: `hdfs://namenode:port/path`, `hdfs://nameservice/path` for a name service
//! of the Hadoop configuration, or `hdfs:///path` for the configured default file system.
//!
//! This module maps keys to paths and implements versions, atomic writes and timeouts. The library `hdfs-native`
//! implements the protocols and verifies the CRC of every packet. If a DataNode hangs, a read waits only a few seconds.
//! A version consists of mtime and size, because the library does not expose file IDs. Every write by Penstock changes
//! the mtime or the size. Keys that are not valid paths are rejected: empty names, `.`, `..`, colons, NUL bytes and
//! invalid UTF-8.

mod error;
mod list;
mod read;
mod settings;
mod write;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use hdfs_native::client::FileStatus;
use hdfs_native::{Client, ClientBuilder};
use penstock_types::{ByteRange, Deadline, Error, Key, Metric, Metrics, Result, Scheme, Url};

pub use self::settings::HdfsSettings;
use crate::metered::count_error;
use crate::transport::within;
use crate::{Capabilities, GetResult, ListStream, Meta, MultipartStore, ObjectRef, PutOptions, Store, Version};

/// If a DataNode sends nothing for this time, the read switches to the next replica. Before the switch, hdfs-native may
/// wait this time on up to four connections: the current one, two pooled ones and a new one. The total of 4 s is below
/// the documented 5 s.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle timeout of the second attempt, which starts after every replica has timed out. It is longer because the disks
/// may be slow.
const SLOW_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of a call to the NameNode. After a timeout, the next call uses a new connection.
const NAMENODE: Duration = Duration::from_secs(20);
/// Maximum number of concurrent deletes.
const AT_ONCE: usize = 16;
/// Time after which hdfs-native no longer uses pooled connections to DataNodes, plus a margin.
const POOL_TTL: Duration = Duration::from_millis(3200);
/// Prefix of temporary file names, which listings skip.
const TEMPORARY: &str = ".penstock-tmp-";

/// HDFS cluster as a store. Cheap to clone.
#[derive(Clone)]
pub struct Hdfs {
    cluster: Arc<Cluster>,
}

struct Cluster {
    root: Url,
    settings: HdfsSettings,
    metrics: Arc<Metrics>,
    clients: Mutex<Option<Clients>>,
}

/// Clients of one process and one runtime. Their connections cannot be used in another process or another runtime.
#[derive(Clone)]
struct Clients {
    process: u32,
    runtime: tokio::runtime::Id,
    fast: Client,
    slow: Client,
}

impl fmt::Debug for Hdfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hdfs").field("root", &self.cluster.root.to_string()).finish_non_exhaustive()
    }
}

/// Selects the client with the short (`Fast`) or the long (`Slow`) idle timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientKind {
    Fast,
    Slow,
}

impl Hdfs {
    /// Creates the store for a NameNode (`host:port`) or a name service. If `authority` is empty, uses the configured
    /// default. Sends no request.
    pub fn new(authority: &str, settings: &HdfsSettings, metrics: Arc<Metrics>) -> Result<Self> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '[' | ']');
        if !authority.chars().all(is_plain) {
            // The error does not contain the URL, because the URL may contain a password.
            return Err(Error::config("url", "hdfs:// must be followed by host:port or a name service"));
        }
        let root = Url { scheme: Scheme::Hdfs, authority: authority.to_owned(), key: Key::default() };
        if settings.is_strange {
            let problem =
                "HADOOP_USER_NAME is not set for the tenant of this URL (the value of the process is not used)";
            return Err(Error::config(root.to_string(), problem));
        }
        let cluster = Cluster { root, settings: settings.clone(), metrics, clients: Mutex::default() };
        Ok(Self { cluster: Arc::new(cluster) })
    }
}

impl Cluster {
    fn place(&self, key: &Key) -> String {
        crate::place(&self.root, key)
    }

    fn refused(&self, key: &Key, reason: &str) -> Error {
        Error::KeyRefused { key: key.to_string(), place: self.root.to_string(), reason: reason.to_owned() }
    }

    /// Returns the path of a key, or `KeyRefused` if HDFS cannot store the key.
    fn path(&self, key: &Key) -> Result<String> {
        match refusal(key.as_bytes()) {
            Some(reason) => Err(self.refused(key, reason)),
            None => Ok(format!("/{key}", key = key.as_str().unwrap_or_default())),
        }
    }

    fn build(&self, silence: Duration) -> Result<Client> {
        let silence = silence.as_millis().to_string();
        let builder = ClientBuilder::new()
            .with_config([
                ("dfs.client.socket-timeout", silence.as_str()),
                // `Retry` repeats failed requests, so hdfs-native retries only to try the other NameNode.
                ("dfs.client.failover.max.attempts", "3"),
                ("dfs.client.failover.sleep.base.millis", "100"),
                ("dfs.client.failover.sleep.max.millis", "1000"),
            ])
            .with_url(format!("hdfs://{}", self.root.authority));
        let builder = match &self.settings.conf_dir {
            Some(dir) => builder.with_config_dir(dir.to_string_lossy()),
            None => builder,
        };
        let builder = match &self.settings.user {
            Some(user) => builder.with_user(user.clone()),
            None => builder,
        };
        let built = std::panic::catch_unwind(AssertUnwindSafe(|| builder.build()));
        match built {
            Ok(result) => result.map_err(|error| {
                let reason = error::shown(&error.to_string());
                Error::config(
                    self.root.to_string(),
                    format!("no HDFS cluster is configured for this URL ({reason}); check HADOOP_CONF_DIR"),
                )
            }),
            Err(_) => Err(Error::config("HADOOP_USER_NAME", "not set, and the current user has no name")),
        }
    }

    /// Returns the clients of this process and runtime. Creates them at the first call.
    async fn clients(&self) -> Result<Clients> {
        let (process, runtime) = (std::process::id(), tokio::runtime::Handle::current().id());
        let is_forked = {
            let mut held = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            match &*held {
                Some(clients) if clients.process == process && clients.runtime == runtime => return Ok(clients.clone()),
                Some(clients) if clients.process != process => {
                    // The parent owns these connections, so the child must not close them.
                    std::mem::forget(held.take());
                    true
                }
                _ => false,
            }
        };
        if is_forked {
            // hdfs-native keeps connections in a process-wide table. Wait until the parent's connections expire.
            tokio::time::sleep(POOL_TTL).await;
        }
        let clients = Clients { process, runtime, fast: self.build(IDLE_TIMEOUT)?, slow: self.build(SLOW_TIMEOUT)? };
        *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = Some(clients.clone());
        Ok(clients)
    }

    async fn client(&self, kind: ClientKind) -> Result<Client> {
        let clients = self.clients().await?;
        Ok(match kind {
            ClientKind::Fast => clients.fast,
            ClientKind::Slow => clients.slow,
        })
    }

    /// Runs one NameNode call, or a few calls, with a timeout. Converts a panic of the library to an error.
    async fn call<T>(
        &self,
        place: &str,
        limit: Duration,
        work: impl Future<Output = hdfs_native::Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(limit, AssertUnwindSafe(work).catch_unwind()).await {
            Ok(Ok(result)) => result.map_err(|error| error::of(place, &self.root.to_string(), &error)),
            Ok(Err(_)) => Err(error::odd(place)),
            Err(_) => {
                // The connection may be dead without an error, so let the next call open a new connection.
                *self.clients.lock().unwrap_or_else(PoisonError::into_inner) = None;
                let reason = format!("the NameNode did not respond for {} s", limit.as_secs());
                Err(Error::Unreachable { place: self.root.to_string(), reason })
            }
        }
    }

    async fn status(&self, key: &Key) -> Result<FileStatus> {
        let (path, place) = (self.path(key)?, self.place(key));
        let client = self.client(ClientKind::Fast).await?;
        match self.call(&place, NAMENODE, client.get_file_info(&path)).await {
            // A file exists where the key requires a folder.
            Err(Error::KeyRefused { .. }) => Err(Error::NotFound { place }),
            result => result,
        }
    }

    async fn head(&self, key: &Key) -> Result<Meta> {
        let status = self.status(key).await?;
        if status.isdir {
            return Err(Error::NotFound { place: self.place(key) });
        }
        Ok(meta(key.clone(), &status))
    }

    /// Returns the status of a file or folder; `None` if it does not exist.
    async fn existing(&self, key: &Key) -> Result<Option<FileStatus>> {
        match self.status(key).await {
            Ok(status) => Ok(Some(status)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        let (path, place) = (self.path(key)?, self.place(key));
        // A folder is not an object. Without this check, empty folders would be deleted.
        if self.existing(key).await?.is_none_or(|status| status.isdir) {
            return Ok(());
        }
        let client = self.client(ClientKind::Fast).await?;
        match self.call(&place, NAMENODE, client.delete(&path, false)).await {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn timed<T>(&self, what: &str, deadline: Deadline, work: impl Future<Output = Result<T>>) -> Result<T> {
        deadline.check(what)?;
        within(deadline, what, work).await.inspect_err(|error| count_error(&self.metrics, error))
    }
}

/// Returns the reason why HDFS cannot store `key`; `None` if it can. Applies the rules of `DFSUtilClient.isValidName`,
/// and also rejects keys that `hdfs-native` cannot express.
fn refusal(key: &[u8]) -> Option<&'static str> {
    if key.is_empty() {
        return Some("the key is empty");
    }
    if std::str::from_utf8(key).is_err() {
        return Some("HDFS names must be UTF-8");
    }
    key.split(|&byte| byte == b'/').find_map(|name| match name {
        b"" if key.starts_with(b"/") => Some("the key begins with `/`"),
        b"" => Some("the key has an empty component"),
        b"." | b".." => Some("the key has a `.` or `..` component"),
        name if name.contains(&0) => Some("the key contains a NUL byte"),
        name if name.contains(&b':') => Some("HDFS names cannot contain `:`"),
        _ => None,
    })
}

fn version(status: &FileStatus) -> Version {
    Version(format!("{}-{}", status.modification_time, status.length))
}

fn meta(key: Key, status: &FileStatus) -> Meta {
    Meta {
        key,
        size: status.length as u64,
        version: Some(version(status)),
        digests: Vec::new(),
        encoding: None,
        modified_s: Some(status.modification_time as f64 / 1e3),
    }
}

#[async_trait]
impl Store for Hdfs {
    fn root(&self) -> &Url {
        &self.cluster.root
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { checksums: false, any_key: false, ..Capabilities::ALL }
    }

    fn list(&self, prefix: &Key, after: Option<&Key>, deadline: Deadline) -> ListStream<'_> {
        list::stream(self.cluster.clone(), prefix.clone(), after.cloned(), deadline).boxed()
    }

    async fn head(&self, key: &Key, deadline: Deadline) -> Result<Meta> {
        let what = format!("HEAD {}", self.cluster.place(key));
        self.cluster.metrics.count(Metric::Requests);
        self.cluster.metrics.count(Metric::Heads);
        self.cluster.timed(&what, deadline, self.cluster.head(key)).await
    }

    async fn get_ranges(&self, object: &ObjectRef, ranges: &[ByteRange], deadline: Deadline) -> Result<GetResult> {
        let what = format!("GET {}", self.cluster.place(&object.key));
        self.cluster.timed(&what, deadline, read::get(&self.cluster, object, ranges, deadline)).await
    }

    /// The NameNode enforces the precondition `Absent`. `Matches` is checked immediately before the rename.
    async fn put(&self, key: &Key, parts: Vec<Bytes>, options: &PutOptions, deadline: Deadline) -> Result<Meta> {
        let what = format!("PUT {}", self.cluster.place(key));
        self.cluster.timed(&what, deadline, write::put(&self.cluster, key, parts, options)).await
    }

    /// Not supported, because `hdfs-native` has no call for `concat`.
    fn multipart(&self) -> Option<&dyn MultipartStore> {
        None
    }

    async fn delete(&self, keys: &[Key], deadline: Deadline) -> Result<()> {
        let each = |key: Key| {
            let cluster = self.cluster.clone();
            async move { cluster.delete(&key).await }
        };
        let work = stream::iter(keys.to_vec()).map(each).buffer_unordered(AT_ONCE).try_for_each(|()| async {
            self.cluster.metrics.count(Metric::Requests);
            self.cluster.metrics.count(Metric::Deletes);
            Ok(())
        });
        self.cluster.timed("DELETE", deadline, work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_refusal_of_keys_that_hdfs_does_not_hold_says_why() {
        for key in [&b""[..], b"/a", b"a//b", b"a/", b"..", b"a/../b", b"./a", b"a\0b", b"a:b", b"\xff"] {
            assert!(refusal(key).is_some(), "{key:?}");
        }
        for key in [&b"a"[..], b"a/b", b"..a/b..", b"...", b"a b+c%20", "ü".as_bytes(), b"a\nb"] {
            assert!(refusal(key).is_none(), "{key:?}");
        }
    }

    #[test]
    fn test_authority_that_is_none_is_refused_and_not_shown() {
        for authority in ["user:secret@host:1", "h/secret", "h?secret"] {
            let error = Hdfs::new(authority, &HdfsSettings::default(), Arc::default()).unwrap_err();
            assert!(error.code() == "config" && !error.to_string().contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn test_name_service_without_a_configuration_is_a_config_error() {
        let nowhere = HdfsSettings {
            conf_dir: Some("/nonexistent".into()),
            user: Some("u".to_owned()),
            ..HdfsSettings::default()
        };
        let store = Hdfs::new("a-name-service", &nowhere, Arc::default()).unwrap();
        let error = store.head(&Key::from("k"), Deadline::within(Duration::from_secs(5))).await.unwrap_err();
        assert_eq!(error.code(), "config", "{error}");
        assert!(error.to_string().contains("HADOOP_CONF_DIR"), "{error}");
    }
}
