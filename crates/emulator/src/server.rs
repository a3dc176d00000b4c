// SPDX-License-Identifier: Apache-2.0
//! S3 server of the emulator: accepts connections and serves them on its own threads until it is stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use penstock_types::{Error, Result, Timer};
use s3s::auth::{S3Auth, SecretKey};
use s3s::service::S3ServiceBuilder;
use s3s::{S3Result, s3_error};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::bucket::{Bucket, MultipartStore, REGION};
use crate::connections::Connections;
use crate::fs_backend::Folder;
use crate::limits::Limits;
use crate::object_metadata::Stamp;
use crate::throttle_layer::{Counters, Stats, ThrottleLayer};
use crate::tier::Tier;

/// Maximum time from the opening of a connection to a complete request head.
const HEAD_LIMIT: Duration = Duration::from_secs(60);
/// Maximum wait at shutdown until all connections have ended.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// A pair of access keys. The debug output does not contain the secret key.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// Access key ID.
    pub access: String,
    /// Secret key, which signs requests.
    pub secret: String,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("access", &self.access).finish_non_exhaustive()
    }
}

impl Keys {
    /// Creates a random pair of keys.
    pub fn random() -> Self {
        const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let letters = |bytes: &[u8]| bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect();
        let (access, secret): ([u8; 16], [u8; 40]) = (rand::random(), rand::random());
        let access: String = letters(&access);
        Self { access: format!("PSTK{access}"), secret: letters(&secret) }
    }
}

/// Settings of an endpoint.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Root folder of the bucket.
    pub folder: PathBuf,
    /// Tier whose limits are enforced.
    pub tier: Tier,
    /// Factor by which the tier's rates are multiplied.
    pub scale: f64,
    /// Address to listen on; port 0 picks a free port.
    pub bind: SocketAddr,
    /// The only pair of keys that the endpoint accepts in signatures.
    pub keys: Keys,
}

/// A running endpoint. Dropping it stops the endpoint.
#[derive(Debug)]
pub struct Emulator {
    address: SocketAddr,
    bucket: String,
    keys: Keys,
    front: Arc<FrontHandle>,
    stop: watch::Sender<bool>,
    runtime: Option<Runtime>,
    process: u32,
}

struct FrontHandle {
    front: ThrottleLayer,
    uploads: Arc<MultipartStore>,
}

impl std::fmt::Debug for FrontHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThrottleLayer").finish_non_exhaustive()
    }
}

struct OnePair(Keys);

#[async_trait::async_trait]
impl S3Auth for OnePair {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.0.access {
            Ok(SecretKey::from(self.0.secret.clone()))
        } else {
            Err(s3_error!(InvalidAccessKeyId, "The AWS Access Key Id you provided does not exist in our records."))
        }
    }
}

/// Derives a bucket name from the name of a folder: replaces the characters that S3 does not allow. If the result is
/// still invalid, returns `penstock`.
pub fn bucket_name(folder: &std::path::Path) -> String {
    let name = folder.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let kept: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(63).collect();
    let kept = kept.trim_matches('-');
    // Names with a reserved prefix or suffix of S3 are invalid, too.
    let reserved = kept.starts_with("xn--") || kept.ends_with("-s3alias");
    if (3..=63).contains(&kept.len()) && !reserved { kept.to_owned() } else { "penstock".to_owned() }
}

impl Emulator {
    /// Binds the address and starts serving.
    pub fn start(settings: Settings) -> Result<Self> {
        let Settings { folder, tier, scale, bind, keys } = settings;
        let limits = Limits::new(tier, scale)?;
        let place = folder.display().to_string();
        let absolute = folder.canonicalize().map_err(|error| Error::from_io(&place, &error))?;
        let opened = Arc::new(Folder::open(&absolute)?);
        let name = bucket_name(&absolute);
        let uploads = Arc::new(MultipartStore::default());
        let bucket =
            Bucket { name: name.as_str().into(), folder: opened, uploads: uploads.clone(), began: Stamp::now() };
        let mut builder = S3ServiceBuilder::new(bucket);
        builder.set_auth(OnePair(keys.clone()));
        let front =
            ThrottleLayer { service: builder.build(), limits, counters: Counters::default(), timer: Timer::start()? };
        let front = Arc::new(FrontHandle { front, uploads });

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8)))
            .thread_name("penstock-emulator")
            .enable_all()
            .build()
            .map_err(|error| Error::from_io("the emulator's threads", &error))?;
        let refused = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                Error::config("bind", format!("{bind} is in use by another program; use port 0 to get a free port"))
            }
            _ => Error::System { place: format!("the address {bind}"), reason: error.to_string() },
        };
        let listener = runtime.block_on(TcpListener::bind(bind)).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let (stop, stopped) = watch::channel(false);
        runtime.spawn(accept(listener, front.clone(), stopped));
        Ok(Self { address, bucket: name, keys, front, stop, runtime: Some(runtime), process: std::process::id() })
    }

    /// URL of the endpoint: `http://127.0.0.1:PORT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// URL of the bucket: `s3://BUCKET/`.
    pub fn url(&self) -> String {
        format!("s3://{}/", self.bucket)
    }

    /// The pair of keys that the endpoint accepts.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Region that the endpoint reports.
    pub fn region(&self) -> &'static str {
        REGION
    }

    /// The tier with its year, for example `azure-hot@2021`.
    pub fn tier(&self) -> String {
        self.front.front.limits.tier().label()
    }

    /// Factor by which the tier's rates are multiplied.
    pub fn scale(&self) -> f64 {
        self.front.front.limits.scale()
    }

    /// Counters since the start of the endpoint.
    pub fn stats(&self) -> Stats {
        self.front.front.counters.read()
    }

    /// Stops the endpoint: closes connections and aborts open uploads. A second call does nothing. Must not be called
    /// inside an async runtime.
    pub fn stop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if self.process != std::process::id() {
            // The runtime's threads do not exist in a forked child, so waiting for them would never end.
            std::mem::forget(runtime);
            return;
        }
        let _ = self.stop.send(true);
        runtime.shutdown_timeout(STOP_LIMIT);
        self.front.uploads.clear();
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn accept(listener: TcpListener, front: Arc<FrontHandle>, mut stopped: watch::Receiver<bool>) {
    let connections = Arc::new(Connections::new());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.changed() => return,
        };
        let Ok((stream, _)) = accepted else {
            // The process probably has no free file descriptor. Ask a connection to close, and retry after a pause.
            connections.evict();
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        // Without TCP_NODELAY, a small response waits for the client's delayed ACK. Measured with s3s-fs: 270
        // requests/s without TCP_NODELAY, 6,000 with it.
        let _ = stream.set_nodelay(true);
        let front = front.clone();
        let mut stopped = stopped.clone();
        front.front.counters.connections.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let registered = connections.add();
        tokio::spawn(async move {
            let connection = Arc::new(front.front.limits.connection());
            let service = service_fn(|request| {
                registered.asks();
                let (front, connection) = (front.clone(), connection.clone());
                async move { front.front.answer(request, &connection).await }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_LIMIT)
                .serve_connection(TokioIo::new(stream), service);
            tokio::pin!(served);
            let mut is_evicted = false;
            loop {
                tokio::select! {
                    // Ignore errors of the connection, because they concern only its client.
                    _ = &mut served => return,
                    _ = stopped.changed() => return,
                    never_asked = registered.peer.evicted(), if !is_evicted => {
                        if never_asked {
                            return;
                        }
                        is_evicted = true;
                        served.as_mut().graceful_shutdown();
                    }
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn bucket_name_of_any_folder_is_one_that_s3_allows() {
        for (folder, want) in [
            ("/d/bucket", "bucket"),
            ("/d/My Data_1", "my-data-1"),
            ("/d/..", "penstock"),
            ("/", "penstock"),
            ("/d/ä", "penstock"),
            ("/d/ab", "penstock"),
            ("/d/xn--b", "penstock"),
        ] {
            assert_eq!(bucket_name(Path::new(folder)), want, "{folder}");
        }
    }

    #[test]
    fn keys_debug_hides_the_secret() {
        let keys = Keys::random();
        assert!(!format!("{keys:?}").contains(&keys.secret));
        assert_ne!(keys, Keys::random());
    }
}
