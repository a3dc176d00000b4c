// SPDX-License-Identifier: Apache-2.0
//! The error type of all Penstock calls. Each variant is an error that the caller can act on; all other errors are
//! `Bug`.
//!
//! Each message contains the object, the problem and the numbers. `crates/python` matches this enum without a wildcard,
//! so a new variant without a Python class does not compile.

use std::time::Duration;

use crate::with_separators;

/// `Result` with Penstock's [`Error`] as the default error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of any Penstock call, classified by what the caller can do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No object, bucket, folder or file has this name.
    #[error("{}", not_found(place))]
    NotFound {
        /// URL or path, or `any object under URL`.
        place: String,
    },
    /// The credentials or permissions do not allow the operation.
    #[error("{place} cannot be accessed: {reason}")]
    Denied {
        /// URL or path.
        place: String,
        /// Message of the store or the operating system, without secrets.
        reason: String,
    },
    /// The store throttled the requests, and the time budget for retries is used up.
    #[error("{place} refused {refused} of {sent} requests in {:.1} s", window.as_secs_f64())]
    Throttled {
        /// URL.
        place: String,
        /// Number of requests that failed with 429 or 503.
        refused: u32,
        /// Number of requests sent.
        sent: u32,
        /// Time during which the requests were retried.
        window: Duration,
        /// Minimum wait before the next attempt, if the store requested one.
        retry_after: Option<Duration>,
        /// HTTP status of the last throttled request; 0 if the protocol is not HTTP.
        status: u16,
    },
    /// The server sent no response. Name resolution, the connection or TLS failed, or the connection was interrupted.
    #[error("{place} cannot be reached: {reason}")]
    Unreachable {
        /// Endpoint or URL.
        place: String,
        /// Message of the network library.
        reason: String,
    },
    /// This machine does not trust the server's certificate: its issuer is unknown, it was issued for another host
    /// name, or it has expired.
    #[error("the certificate of {place} is not trusted: {reason}")]
    Untrusted {
        /// Endpoint or URL.
        place: String,
        /// Reason why the certificate is not trusted.
        reason: String,
    },
    /// The store returned a 5xx status (other than for throttling) or violated the protocol. A retry may succeed.
    #[error("{}", server(place, *status, reason))]
    Server {
        /// URL.
        place: String,
        /// HTTP status, or 0 if the response was not HTTP.
        status: u16,
        /// Message of the store.
        reason: String,
    },
    /// The call did not finish before its deadline.
    #[error("{what} did not finish in {:.1} s", limit.as_secs_f64())]
    Deadline {
        /// Description of the call.
        what: String,
        /// Time limit of the call.
        limit: Duration,
    },
    /// The bytes are wrong: truncated, with a wrong checksum, or in another format.
    #[error("{place} {problem}")]
    Corrupt {
        /// URL or path, and the record if it is known.
        place: String,
        /// Description of the problem with its numbers, for example `ends inside record 88 (want 2,828,486 bytes, have
        /// 1,048,576 bytes)`.
        problem: String,
    },
    /// A record is complete, but its content does not match the definition of a field.
    #[error("{place}: {problem}")]
    Mismatch {
        /// URL or path, and the record.
        place: String,
        /// The field, its definition, and the content of the record.
        problem: String,
    },
    /// The object no longer has the pinned version.
    #[error("{place} was replaced while it was read (pinned version: {want}, found: {have})")]
    Changed {
        /// URL.
        place: String,
        /// Pinned version.
        want: String,
        /// Version that was found; `another` if it is unknown.
        have: String,
    },
    /// The precondition of a write was not met (for example, the object already exists).
    #[error("{place} was not written: {reason}")]
    Precondition {
        /// URL or path.
        place: String,
        /// The precondition, and the state that was found instead.
        reason: String,
    },
    /// Another process holds the lock.
    #[error("{place} is in use: {holder}")]
    Busy {
        /// URL or path.
        place: String,
        /// The process that holds the lock, and what it is doing.
        holder: String,
    },
    /// An invalid setting, flag or argument.
    #[error("{what}: {problem}")]
    Config {
        /// Name of the setting, flag or argument.
        what: String,
        /// Problem with the value, including the value.
        problem: String,
    },
    /// The store or this build does not support the operation.
    #[error("{what} is not supported by {by}")]
    Unsupported {
        /// Unsupported operation.
        what: String,
        /// Component that does not support the operation.
        by: String,
    },
    /// The memory budget is too small for the request.
    #[error("{}", over_budget(what, *need, *budget))]
    BudgetExceeded {
        /// Purpose of the memory.
        what: String,
        /// Number of bytes needed.
        need: u64,
        /// Memory budget in bytes; 0 if the system could not allocate the memory.
        budget: u64,
    },
    /// The disk is full.
    #[error("{}", no_space(place, *need, *free))]
    NoSpace {
        /// Path.
        place: String,
        /// Number of bytes needed; 0 if unknown, because the system's error for a full disk does not state it.
        need: u64,
        /// Number of free bytes on the disk; 0 if unknown.
        free: u64,
    },
    /// The destination cannot store an object as a file: its key is not a valid path, or conflicts with another key.
    #[error("key `{key}` cannot be written under {place}: {reason}")]
    KeyRefused {
        /// Key in escaped form.
        key: String,
        /// Destination folder.
        place: String,
        /// Reason: for example, the key leads out of the folder, is too long, or differs from another key only in case.
        reason: String,
    },
    /// The operating system returned another error (EIO, ELOOP, ...).
    #[error("{place}: {reason}")]
    System {
        /// Path or endpoint.
        place: String,
        /// Message of the operating system.
        reason: String,
    },
    /// Another rank of the job failed, so this rank cannot continue.
    #[error("rank {rank} failed: {reason}")]
    RankFailed {
        /// Number of the failed rank.
        rank: u32,
        /// Reason of the failure.
        reason: String,
    },
    /// The user interrupted the call.
    #[error("interrupted")]
    Interrupted,
    /// A bug in Penstock: the program reached a state that should be impossible.
    #[error("this is a bug in Penstock: {what}")]
    Bug {
        /// Violated invariant.
        what: String,
    },
}

fn not_found(place: &str) -> String {
    match place.strip_prefix("any ") {
        Some(what) => format!("there is no {what}"),
        None => format!("{place} does not exist"),
    }
}

fn server(place: &str, status: u16, reason: &str) -> String {
    match status {
        0 => format!("{place}: {reason}"),
        status => format!("{place} returned HTTP {status}: {reason}"),
    }
}

fn over_budget(what: &str, need: u64, budget: u64) -> String {
    match budget {
        0 => format!("{what} needs {} bytes, which cannot be allocated", with_separators(need)),
        budget => format!(
            "{what} needs {} bytes, but the memory budget is {} bytes",
            with_separators(need),
            with_separators(budget)
        ),
    }
}

fn no_space(place: &str, need: u64, free: u64) -> String {
    match need {
        0 => format!("{place} cannot be written: the disk is full"),
        need => format!("{place} has {} bytes free, but {} are needed", with_separators(free), with_separators(need)),
    }
}

/// Hints for unsupported data, as pairs. The first text of each pair is the start of `by` in [`Error::Unsupported`].
const UNSUPPORTED_HINTS: [(&str, &str); 16] = [
    ("penstock.open", "set format= if the names do not show the format; otherwise, convert the objects"),
    ("the Arrow reader", READ_OTHER_COLUMNS),
    ("the Parquet reader", READ_OTHER_COLUMNS),
    ("image decoding", "convert the image to PNG or JPEG, or read its bytes as penstock.raw()"),
    ("the .npy reader", "save plain numbers in C order: np.save(PATH, np.ascontiguousarray(ARRAY))"),
    ("the HDF5 chunk reader", "write the dataset again with compression=\"gzip\""),
    ("the Zarr reader", WRITE_ZARR_AGAIN),
    ("the chunk reader", WRITE_ZARR_AGAIN),
    ("the JSON lines reader", "write one object per line: jq -c '.[]' OLD.json > NEW.jsonl"),
    ("the tar reader", "write the archive again with GNU tar or Python's tarfile"),
    ("the zip reader", "write the archive again with np.savez"),
    ("the MDS reader", "read the column as penstock.raw(), or write the shards again with compression=\"zstd\""),
    ("the TFRecord reader", "write the file again with compression_type=\"GZIP\""),
    ("text formats", "compress the object by gzip, zstd or LZ4, and let its name end in `.gz`, `.zst` or `.lz4`"),
    ("the default fields", "name the fields: dataset.fields(NAME=penstock.raw())"),
    ("typed fields", "read it as penstock.raw(), or the whole record as penstock.raw(record=True)"),
];
const READ_OTHER_COLUMNS: &str =
    "read other columns, or write the file again with other types (see \"What is not read\" in docs/guides/formats.md)";
const WRITE_ZARR_AGAIN: &str = "write the numbers again in C order, compressed by zstd, gzip or Blosc";

impl Error {
    /// Short stable name of the error, printed as `error[code]`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "not-found",
            Self::Denied { .. } | Self::Untrusted { .. } => "denied",
            Self::Throttled { .. } => "throttled",
            Self::Unreachable { .. } => "unreachable",
            Self::Server { .. } => "server",
            Self::Deadline { .. } => "deadline",
            Self::Corrupt { .. } => "corrupt",
            Self::Mismatch { .. } => "mismatch",
            Self::Changed { .. } => "changed",
            Self::Precondition { .. } => "precondition",
            Self::Busy { .. } => "busy",
            Self::Config { .. } => "config",
            Self::Unsupported { .. } => "unsupported",
            Self::BudgetExceeded { .. } => "budget",
            Self::NoSpace { .. } => "no-space",
            Self::KeyRefused { .. } => "key",
            Self::System { .. } => "system",
            Self::RankFailed { .. } => "rank-failed",
            Self::Interrupted => "interrupted",
            Self::Bug { .. } => "bug",
        }
    }

    /// Returns true if the same request may succeed later.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Throttled { .. } | Self::Unreachable { .. } | Self::Server { .. } | Self::Deadline { .. })
    }

    /// Returns a hint for the user in one line; `None` if there is no useful hint.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::NotFound { place } if place.starts_with("s3:") => {
                "check the bucket and prefix with `aws s3 ls`, and AWS_ENDPOINT_URL if the store is not AWS"
            }
            Self::NotFound { place } if place.contains("hf://") => {
                "check the name and the revision on the dataset's page, and check that its list of files contains the folder"
            }
            Self::NotFound { .. } => "check the path",
            Self::Denied { place, .. } if place.starts_with("hf:") => {
                "check the dataset's name on its page, and check the token's account with `hf auth whoami`"
            }
            Self::Denied { place, .. } if place.starts_with("az:") => {
                "check that AZURE_STORAGE_KEY, AZURE_STORAGE_SAS_TOKEN or `az login` allows listing and reading this container"
            }
            Self::Denied { place, .. } if place.starts_with("gs:") => {
                "check that GOOGLE_APPLICATION_CREDENTIALS or `gcloud auth application-default login` allows listing and reading this bucket"
            }
            Self::Denied { place, .. } if place.starts_with("hdfs:") => {
                "check HADOOP_USER_NAME or the Kerberos ticket (`klist`), and the owner and mode of the folder"
            }
            Self::Denied { place, .. } if place.starts_with("http") => {
                "use a public URL: Penstock sends no credentials to web servers"
            }
            Self::Denied { place, .. } if place.contains("://") && !place.starts_with("file:") => {
                "check that the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE, ...) allow listing and reading this bucket"
            }
            Self::Denied { .. } => "check the owner and mode of the folder",
            Self::Throttled { place, .. } if place.starts_with("hf:") => {
                "set HF_TOKEN, because the Hub accepts more requests with a token, or copy the dataset once with `penstock stage`"
            }
            Self::Throttled { .. } => "lower --concurrency, or spread the data over more prefixes or accounts",
            Self::Unreachable { place, .. } if place.starts_with("s3:") => {
                "check AWS_ENDPOINT_URL and that the endpoint is up"
            }
            Self::Unreachable { place, .. } if place.starts_with("hdfs:") => {
                "check the NameNode's RPC address (fs.defaultFS, not its web address) and that its DataNodes are up: `hdfs dfsadmin -report`"
            }
            Self::Unreachable { place, .. } if place.starts_with("hf:") => {
                "check HF_ENDPOINT, and check that this machine can reach the Hub; if the compute nodes cannot, first copy the dataset with `penstock stage`"
            }
            Self::Unreachable { .. } => {
                "check that the endpoint is up and that its address (such as AWS_ENDPOINT_URL) is correct"
            }
            Self::Untrusted { reason, .. } if reason.starts_with("its issuer") => {
                "set SSL_CERT_FILE (for S3: AWS_CA_BUNDLE) to the PEM file of the issuer"
            }
            Self::Untrusted { .. } => "check the endpoint's name and its server's certificate",
            Self::Server { .. } => "try again later",
            Self::Deadline { .. } => "raise --timeout, or check the endpoint's health",
            Self::Corrupt { .. } => "fetch the object again, or compare it with its source",
            Self::Mismatch { problem, .. } if problem.contains("but its row is padded to") => {
                "pad to a larger number of items, use padded(truncate=True), or correct the lengths given to batch_by"
            }
            Self::Mismatch { problem, .. } if problem.contains("more than max_seconds") => {
                "raise max_seconds, or leave such samples out with on_error=\"skip\""
            }
            Self::Mismatch { problem, .. } if problem.contains("but its clip starts at") => {
                "start the clip earlier, or leave such samples out with on_error=\"skip\""
            }
            Self::Mismatch { problem, .. }
                if [" want ", "expects ", "record contains"].iter().all(|words| !problem.contains(words)) =>
            {
                "leave such samples out with on_error=\"skip\", or leave the field out"
            }
            Self::Mismatch { .. } => {
                "declare the fields with the types of the records; `penstock.open(url).schema()` lists the types of the first record"
            }
            Self::Changed { .. } => "run `penstock index` again: the dataset is being written to",
            Self::Precondition { place, .. } if !place.contains("://") => {
                "choose another folder, or use --overwrite to replace the existing files"
            }
            Self::Precondition { .. } => "choose another name, or remove the existing object",
            Self::Busy { .. } => "wait until the other process ends, or stop it; then run the same command again",
            Self::BudgetExceeded { .. } => "raise the memory budget or make the batch smaller",
            Self::NoSpace { .. } => {
                "free some space or choose another destination, then run the same command again to resume"
            }
            Self::KeyRefused { .. } => "rename the object at the source, or stage a prefix that does not contain it",
            Self::RankFailed { .. } => "read that rank's log",
            Self::Bug { .. } => "report the bug, and include the output of the same command with --debug",
            Self::Unsupported { by, .. } => UNSUPPORTED_HINTS.iter().find(|(start, _)| by.starts_with(start))?.1,
            Self::Config { .. } | Self::System { .. } | Self::Interrupted => return None,
        };
        Some(text.to_owned())
    }

    /// Builds an [`Error::Config`].
    pub fn config(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Config { what: what.into(), problem: problem.into() }
    }

    /// Builds an [`Error::Corrupt`].
    pub fn corrupt(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Corrupt { place: place.into(), problem: problem.into() }
    }

    /// Builds an [`Error::Changed`] for an object whose size has changed.
    pub fn resized(place: impl Into<String>, want: u64, have: u64) -> Self {
        let (want, have) = (with_separators(want), with_separators(have));
        Self::Changed { place: place.into(), want: format!("{want} bytes"), have: format!("{have} bytes") }
    }

    /// Builds an [`Error::Mismatch`].
    pub fn mismatch(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Mismatch { place: place.into(), problem: problem.into() }
    }

    /// Builds an [`Error::Bug`].
    pub fn bug(what: impl Into<String>) -> Self {
        Self::Bug { what: what.into() }
    }

    /// Converts an error that the operating system returned for `place`.
    pub fn from_io(place: impl Into<String>, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        let place = place.into();
        match error.kind() {
            ErrorKind::NotFound => Self::NotFound { place },
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                Self::Denied { place, reason: error.to_string() }
            }
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::NoSpace { place, need: 0, free: 0 },
            ErrorKind::AlreadyExists => {
                Self::Precondition { place, reason: "a file or folder with this name already exists".to_owned() }
            }
            ErrorKind::Interrupted => Self::Interrupted,
            ErrorKind::UnexpectedEof => Self::Corrupt { place, problem: "ends too early".to_owned() },
            _ => Self::System { place, reason: error.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_place_and_numbers() {
        let error = Error::Throttled {
            place: "s3://frames/a".into(),
            refused: 3,
            sent: 9,
            window: Duration::from_millis(1500),
            retry_after: None,
            status: 503,
        };
        assert_eq!(error.to_string(), "s3://frames/a refused 3 of 9 requests in 1.5 s");
        assert!(error.retryable() && error.hint().is_some());
        let error = Error::NotFound { place: "any object under s3://frames/".into() };
        assert_eq!(error.to_string(), "there is no object under s3://frames/");
    }

    #[test]
    fn io_errors_become_actionable_variants() {
        let full = std::io::Error::from_raw_os_error(28);
        assert_eq!(Error::from_io("/d", &full).code(), "no-space");
        assert_eq!(Error::from_io("/d", &full).to_string(), "/d cannot be written: the disk is full");
        let denied = std::io::Error::from_raw_os_error(13);
        assert_eq!(Error::from_io("/d", &denied).code(), "denied");
    }
}
