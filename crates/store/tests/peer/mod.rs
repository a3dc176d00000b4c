// SPDX-License-Identifier: Apache-2.0
//! versitygw, the strict S3 peer: one process for each test, on a port of its own, ended with the test.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use penstock_store::StoreSettings;

/// The bucket that stands ready.
pub const BUCKET: &str = "bucket";
const ACCESS: &str = "test-access";
const SECRET: &str = "test-secret-key";

pub struct Peer {
    child: Child,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Peer {
    /// Starts one; `None` only where `PENSTOCK_SKIP_S3=1` asks for it.
    #[expect(clippy::disallowed_methods, reason = "a test's own switch")]
    pub async fn start() -> Option<Self> {
        if std::env::var("PENSTOCK_SKIP_S3").is_ok_and(|value| value == "1") {
            return None;
        }
        let program = program().expect(
            "versitygw is not here: `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`, or `make tools`; \
             PENSTOCK_SKIP_S3=1 leaves its tests out",
        );
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(BUCKET)).unwrap();
        for _ in 0..5 {
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut child = Command::new(&program)
                .args(["--port", &address.to_string(), "--quiet", "posix"])
                .arg(dir.path())
                .env("ROOT_ACCESS_KEY", ACCESS)
                .env("ROOT_SECRET_KEY", SECRET)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            for _ in 0..200 {
                if tokio::net::TcpStream::connect(address).await.is_ok() {
                    return Some(Self { child, address, _dir: dir });
                }
                if child.try_wait().unwrap().is_some() {
                    break; // The port was taken meanwhile.
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        panic!("versitygw did not come up in five tries");
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
fn program() -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let gopath = Command::new("go").args(["env", "GOPATH"]).output().ok();
    let gopath =
        gopath.and_then(|output| Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()).join("bin")));
    std::iter::once(tools)
        .chain(std::env::split_paths(&path))
        .chain(gopath)
        .map(|dir| dir.join("versitygw"))
        .find(|program| program.is_file())
}
