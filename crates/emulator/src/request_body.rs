// SPDX-License-Identifier: Apache-2.0
//! Receives a request body into a temporary file, and verifies every checksum that the request states.

use std::io::{self, Write as _};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt as _;
use http::HeaderMap;
use md5::{Digest as _, Md5};
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3Result, TrailingHeaders, s3_error};

use crate::fs_backend::{Folder, Temp};
use crate::key_path::hex;
use crate::object_metadata::Checksum;

/// Checksum algorithms of S3, by their S3 names.
pub(crate) const ALGORITHMS: [&str; 5] = ["CRC32C", "CRC32", "CRC64NVME", "SHA1", "SHA256"];

/// Maximum number of chunks in the queue from the socket to the thread that hashes and writes them.
const CHUNKS_AHEAD: usize = 4;

/// Expected size and digests of a request body, from the headers of a write.
#[derive(Default)]
pub(crate) struct Promise {
    /// Value in base64.
    pub content_md5: Option<String>,
    /// Algorithm and value of the checksum. The value is missing if the client sends it in a trailer, or if the client
    /// only requested that the server compute a checksum.
    pub checksum: Option<(String, Option<String>)>,
    pub length: Option<u64>,
}

/// A received body whose size and digests match the expected ones.
pub(crate) struct Received {
    pub temp: Temp,
    pub size: u64,
    pub etag: String,
    pub checksum: Option<Checksum>,
}

impl Promise {
    /// Parses the expected size and digests from the headers of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let header = |algorithm: &str| format!("x-amz-checksum-{}", algorithm.to_lowercase());
        let stated = ALGORITHMS.iter().find_map(|name| Some(((*name).to_owned(), Some(text(&header(name))?))));
        let trailer = text("x-amz-trailer").map(|names| names.to_lowercase());
        let asked = text("x-amz-sdk-checksum-algorithm").or_else(|| text("x-amz-checksum-algorithm"));
        let later = ALGORITHMS.iter().find(|name| {
            trailer.as_ref().is_some_and(|names| names.split(',').any(|one| one.trim() == header(name)))
                || asked.as_ref().is_some_and(|asked| asked.eq_ignore_ascii_case(name))
        });
        Self {
            content_md5: text("content-md5"),
            checksum: stated.or_else(|| later.map(|name| ((*name).to_owned(), None))),
            length: text("x-amz-decoded-content-length")
                .or_else(|| text("content-length"))
                .and_then(|n| n.parse().ok()),
        }
    }
}

/// Creates a hasher for one of S3's checksum algorithms.
pub(crate) fn hasher(algorithm: &str) -> ChecksumHasher {
    let mut hasher = ChecksumHasher::default();
    match algorithm {
        "CRC32C" => hasher.crc32c = Some(Crc32c::new()),
        "CRC32" => hasher.crc32 = Some(Crc32::new()),
        "CRC64NVME" => hasher.crc64nvme = Some(Crc64Nvme::new()),
        "SHA1" => hasher.sha1 = Some(Sha1::new()),
        "SHA256" => hasher.sha256 = Some(Sha256::new()),
        _ => {}
    }
    hasher
}

/// Returns the value of a hasher that [`hasher`] created.
pub(crate) fn value_of(hasher: ChecksumHasher) -> Option<String> {
    let sums = hasher.finalize();
    let values = [sums.checksum_crc32c, sums.checksum_crc32, sums.checksum_crc64nvme, sums.checksum_sha1];
    values.into_iter().flatten().next().or(sums.checksum_sha256)
}

struct Hashed {
    temp: Temp,
    size: u64,
    md5: [u8; 16],
    checksum: Option<String>,
}

/// Receives a body into a temporary file. If an error occurs, the file is removed.
pub(crate) async fn receive(
    folder: Arc<Folder>,
    body: Option<StreamingBlob>,
    promise: Promise,
    trailers: Option<TrailingHeaders>,
) -> S3Result<Received> {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(CHUNKS_AHEAD);
    let algorithm = promise.checksum.as_ref().map(|(name, _)| name.clone());
    let named = algorithm.clone();
    let task = tokio::task::spawn_blocking(move || write(&folder, receiver, named.as_deref()));
    let mut broken = None;
    if let Some(mut body) = body {
        while let Some(chunk) = body.next().await {
            match chunk {
                Ok(bytes) => {
                    // The receiver closes only if the writer fails. The code below returns the writer's error.
                    if sender.send(bytes).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    broken = Some(body_error(error));
                    break;
                }
            }
        }
    }
    drop(sender);
    let hashed = task.await.map_err(internal)?;
    if let Some(error) = broken {
        return Err(error);
    }
    let Hashed { temp, size, md5, checksum } = hashed.map_err(io_error)?;
    if promise.length.is_some_and(|length| length != size) {
        return Err(s3_error!(IncompleteBody));
    }
    if let Some(promised) = &promise.content_md5 {
        match STANDARD.decode(promised) {
            Ok(value) if value.len() == 16 => {
                if value != md5 {
                    return Err(s3_error!(BadDigest, "The Content-MD5 you specified did not match what we received."));
                }
            }
            _ => return Err(s3_error!(InvalidDigest, "The Content-MD5 you specified is not valid.")),
        }
    }
    let checksum = match (algorithm, checksum) {
        (Some(algorithm), Some(value)) => {
            let header = format!("x-amz-checksum-{}", algorithm.to_lowercase());
            let trailed = trailers.and_then(|trailers| {
                trailers.read(|map| map.get(&header).and_then(|value| value.to_str().ok()).map(str::to_owned)).flatten()
            });
            let promised = promise.checksum.and_then(|(_, value)| value).or(trailed);
            if promised.is_some_and(|promised| promised != value) {
                let text = format!("The {algorithm} you specified did not match the calculated checksum.");
                return Err(S3Error::with_message(s3s::S3ErrorCode::BadDigest, text));
            }
            Some(Checksum { algorithm, value, composite: false })
        }
        _ => None,
    };
    Ok(Received { temp, size, etag: hex(&md5), checksum })
}

fn write(
    folder: &Folder,
    mut chunks: tokio::sync::mpsc::Receiver<Bytes>,
    algorithm: Option<&str>,
) -> io::Result<Hashed> {
    let mut temp = folder.temp()?;
    let (mut md5, mut size) = (Md5::new(), 0);
    let mut sums = algorithm.map(hasher);
    while let Some(bytes) = chunks.blocking_recv() {
        md5.update(&bytes);
        if let Some(sums) = &mut sums {
            sums.update(&bytes);
        }
        temp.file.write_all(&bytes)?;
        size += bytes.len() as u64;
    }
    Ok(Hashed { temp, size, md5: md5.finalize().into(), checksum: sums.and_then(value_of) })
}

/// Converts an error of the body. Either a signed digest does not match, or the client closed the connection.
fn body_error(error: s3s::StdError) -> S3Error {
    let text = error.to_string();
    if text.to_lowercase().contains("sha256") || text.to_lowercase().contains("checksum") {
        let code = s3s::S3ErrorCode::Custom("XAmzContentSHA256Mismatch".into());
        let mut error =
            S3Error::with_message(code, "The provided x-amz-content-sha256 header does not match the body.");
        error.set_status_code(http::StatusCode::BAD_REQUEST);
        error
    } else {
        S3Error::with_source(s3s::S3ErrorCode::IncompleteBody, error)
    }
}

/// Converts a file system error to an S3 error.
pub(crate) fn io_error(error: io::Error) -> S3Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            S3Error::with_message(s3s::S3ErrorCode::AccessDenied, format!("access to the folder was denied: {error}"))
        }
        _ => S3Error::with_message(s3s::S3ErrorCode::InternalError, format!("the folder returned an error: {error}")),
    }
}

/// Converts the error of a task that did not finish.
pub(crate) fn internal(error: tokio::task::JoinError) -> S3Error {
    S3Error::with_message(s3s::S3ErrorCode::InternalError, error.to_string())
}
