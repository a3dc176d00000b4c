// SPDX-License-Identifier: Apache-2.0
//! Starts real servers for the tests: versitygw (S3), Azurite and fake-gcs-server. Each test has its own process on its
//! own port, which stops when the test ends.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use penstock_store::StoreSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Name of the bucket that each server contains.
pub const BUCKET: &str = "bucket";
const ACCESS: &str = "test-access";
const SECRET: &str = "test-secret-key";

pub struct Peer {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Peer {
    /// Starts a server. Returns `None` only if `PENSTOCK_SKIP_S3=1` is set.
    #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
    pub async fn start() -> Option<Self> {
        if std::env::var("PENSTOCK_SKIP_S3").is_ok_and(|value| value == "1") {
            return None;
        }
        let program = program("versitygw")
            .expect("versitygw is not here: `make setup-peers`; PENSTOCK_SKIP_S3=1 leaves its tests out");
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(BUCKET)).unwrap();
        let (child, address) = launch("versitygw", |address| {
            let mut command = Command::new(&program);
            command.args(["--port", &address.to_string(), "--quiet", "posix"]).arg(dir.path());
            command.env("ROOT_ACCESS_KEY", ACCESS).env("ROOT_SECRET_KEY", SECRET);
            command
        })
        .await;
        Some(Self { child, address, _dir: dir })
    }

    pub fn env(&self) -> HashMap<String, String> {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ACCESS_KEY_ID", ACCESS.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    pub fn settings(&self) -> StoreSettings {
        StoreSettings::from_env(&self.env()).unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "a test's search for a program")]
fn program(name: &str) -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let gopath = Command::new("go").args(["env", "GOPATH"]).output().ok();
    let gopath =
        gopath.and_then(|output| Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()).join("bin")));
    let azurite = tools.join("../azurite/node_modules/.bin");
    [tools, azurite]
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain(gopath)
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

/// Starts a server that listens on the given address, and waits until it responds to HTTP. Tries up to five ports.
pub async fn launch(name: &str, command: impl Fn(SocketAddr) -> Command) -> (Child, SocketAddr) {
    for _ in 0..5 {
        let address = free_address();
        let mut child = command(address).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        for _ in 0..800 {
            let answers = answers_http(address).await;
            if child.try_wait().unwrap().is_some() {
                break; // Another server has taken the port meanwhile.
            }
            if answers {
                return (child, address);
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        let _ = child.kill();
        let _ = child.wait();
    }
    panic!("{name} did not come up in five tries");
}

/// Returns a free port below the kernel's ephemeral range, so that no connection of another test uses it. A process
/// never returns the same port twice, so a server's port is not reused before its test ends.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id() * 64;
    loop {
        let port = 10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        let address = SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

async fn answers_http(address: SocketAddr) -> bool {
    let Ok(mut socket) = tokio::net::TcpStream::connect(address).await else { return false };
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let mut answer = [0; 5];
    socket.write_all(request.as_bytes()).await.is_ok()
        && socket.read_exact(&mut answer).await.is_ok()
        && &answer == b"HTTP/"
}

/// Sends one request and returns the status of the response.
async fn sent(address: SocketAddr, head: &http::request::Parts, body: &str) -> u16 {
    let mut text = format!(
        "{} {} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n",
        head.method,
        head.uri.path_and_query().unwrap()
    );
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != "host") {
        text += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    text += &format!("\r\n{body}");
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = vec![0; 64];
    let count = socket.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("answered {answer:?}"))
}

/// A running Azurite, Microsoft's emulator of Azure Storage.
pub struct Azurite {
    child: Child,
    pub address: SocketAddr,
    _dir: tempfile::TempDir,
}

const ACCOUNT: &str = "testaccount";
/// Base64 of `test-key-of-azurite`: an invented key, which the emulator receives at its start.
const KEY: &str = "dGVzdC1rZXktb2YtYXp1cml0ZQ==";

impl Azurite {
    /// Starts Azurite with a container named [`BUCKET`] and a public container named `public`.
    pub async fn start() -> Self {
        let program = program("azurite-blob").expect("azurite-blob is not here: `make setup-peers`");
        let dir = tempfile::tempdir().unwrap();
        let (child, address) = launch("azurite-blob", |address| {
            let mut command = Command::new(&program);
            command.args(["--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]);
            command.args(["--blobHost", "127.0.0.1", "--blobPort", &address.port().to_string()]);
            command.env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{KEY}")).current_dir(dir.path());
            command
        })
        .await;
        let this = Self { child, address, _dir: dir };
        for (name, is_public) in [(BUCKET, false), ("public", true)] {
            let uri = format!("http://{address}/{ACCOUNT}/{name}?restype=container");
            let mut request =
                http::Request::put(uri).header("x-ms-version", "2020-12-06").header("content-length", "0");
            if is_public {
                request = request.header("x-ms-blob-public-access", "container");
            }
            let (mut head, ()) = request.body(()).unwrap().into_parts();
            let keys = reqsign_azure_storage::StaticCredentialProvider::new_shared_key(ACCOUNT, KEY);
            let context = reqsign_core::Context::new();
            let signer = reqsign_core::Signer::new(context, keys, reqsign_azure_storage::RequestSigner::new());
            signer.sign(&mut head, None).await.unwrap();
            assert_eq!(sent(address, &head, "").await, 201);
        }
        this
    }

    pub fn env(&self) -> HashMap<String, String> {
        [
            ("AZURE_STORAGE_ACCOUNT", ACCOUNT.to_owned()),
            ("AZURE_STORAGE_KEY", KEY.to_owned()),
            ("AZURE_STORAGE_ENDPOINT", format!("http://{}/{ACCOUNT}", self.address)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// Returns a SAS that allows listing and reading one container for ten minutes.
pub async fn sas(account: &str, key: &str, container: &str) -> String {
    let uri = format!("https://{account}.blob.core.windows.net/{container}");
    let (mut head, ()) = http::Request::get(uri).body(()).unwrap().into_parts();
    let keys = reqsign_azure_storage::StaticCredentialProvider::new_shared_key(account, key);
    let signer = reqsign_azure_storage::RequestSigner::new().with_service_sas_permissions("rl");
    let signer = reqsign_core::Signer::new(reqsign_core::Context::new(), keys, signer);
    signer.sign(&mut head, Some(Duration::from_secs(600))).await.unwrap();
    head.uri.query().unwrap().to_owned()
}

impl Drop for Azurite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running fake-gcs-server that stores its objects in memory.
pub struct FakeGcs {
    child: Child,
    pub address: SocketAddr,
}

impl FakeGcs {
    /// Starts fake-gcs-server with the bucket [`BUCKET`].
    pub async fn start() -> Self {
        let program = program("fake-gcs-server").expect("fake-gcs-server is not here: `make setup-peers`");
        let (child, address) = launch("fake-gcs-server", |address| {
            let (port, url) = (address.port().to_string(), format!("http://{address}"));
            let mut command = Command::new(&program);
            command.args(["-scheme", "http", "-host", "127.0.0.1", "-port", &port, "-backend", "memory"]);
            command.args(["-public-host", &address.to_string(), "-external-url", &url]);
            command
        })
        .await;
        let this = Self { child, address };
        let body = format!("{{\"name\":\"{BUCKET}\"}}");
        let request = http::Request::post(format!("http://{address}/storage/v1/b?project=p"))
            .header("content-type", "application/json")
            .header("content-length", body.len());
        let (head, ()) = request.body(()).unwrap().into_parts();
        assert_eq!(sent(address, &head, &body).await, 200);
        this
    }

    pub fn env(&self) -> HashMap<String, String> {
        [("STORAGE_EMULATOR_HOST".to_owned(), self.address.to_string())].into()
    }
}

impl Drop for FakeGcs {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
